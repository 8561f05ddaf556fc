"""Demonstrations, whatever file they came from: all steps of all episodes, one after the other.

A step holds what was observed and the action that was taken then. Cameras may be too large for memory, so that
a column of observations is anything that is indexed by rows as an array is (`Column`): an array, a memory map, or a
reader that opens its files when it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..._check import require

__all__ = ["Column", "Episodes"]


class Column(Protocol):
    """One observation at every step, (steps, *shape): floats, or uint8 pictures of shape (height, width, 3)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, rows: Any) -> np.ndarray:
        """The rows of a slice, or of an array of whole numbers in any order, repeated ones included."""
        ...


@dataclass(frozen=True)
class Episodes:
    source: str
    """Where they were read from."""
    observations: dict[str, Column]
    actions: np.ndarray
    """(steps, size), float32."""
    ends: np.ndarray
    """(episodes,), rising: episode e has the steps from ends[e - 1] (0 for the first) to before ends[e]."""
    task: np.ndarray
    """(episodes,): the number of each episode's task."""
    tasks: tuple[str, ...]
    """What each task is, in words; empty words where a set does not say."""
    skipped: tuple[str, ...] = ()
    """What could not be used, and why."""

    def __post_init__(self) -> None:
        steps = len(self.actions)
        require(steps > 0, "data", self.source, "demonstrations with at least one step")
        wrong = {name: column.shape[0] for name, column in self.observations.items() if column.shape[0] != steps}
        require(not wrong, f"steps of {self.source}", wrong, f"{steps} for each observation, as there are actions")
        rising = len(self.ends) > 0 and bool((np.diff(self.ends, prepend=0) > 0).all()) and self.ends[-1] == steps
        require(rising, f"episode ends of {self.source}", self.ends.tolist()[-3:], f"rising to {steps}")

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], self.ends[:-1]])

    @property
    def cameras(self) -> list[str]:
        """Observations that are pictures."""
        return [
            name for name, column in self.observations.items() if column.dtype == np.uint8 and len(column.shape) == 4
        ]

    def describe(self) -> str:
        """One line: what was found."""
        sizes = ", ".join(
            f"{name} {'x'.join(map(str, column.shape[1:])) or 'scalar'}" for name, column in self.observations.items()
        )
        told = sum(map(bool, self.tasks))
        words = f"{len(self.tasks)} task{'s' * (len(self.tasks) > 1)}{'' if told else ' without words'}"
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return (
            f"{self.source}: {len(self.ends):,} demonstrations, {len(self.actions):,} steps, {words}{skipped}; "
            f"actions of size {self.actions.shape[1]}; {sizes}"
        )
