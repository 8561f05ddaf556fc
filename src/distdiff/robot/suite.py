"""What a suite of simulated tasks looks like from outside.

A `Suite` lists tasks and makes simulations of them; a `Simulation` is reset to a numbered episode (the benchmark's own
initial state, or the seed of that number), observed by the names that demonstrations use, and moved on by an action.
Only what is asked for is observed, since a camera picture costs far more than a step. Suites are opened by name; each
imports its simulator when it is opened, and says what to install if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .._check import require_choice

__all__ = ["SUITES", "Simulation", "Suite", "TaskSpec", "open_suite"]


@dataclass(frozen=True)
class TaskSpec:
    name: str
    words: str
    """What is to be done, for policies that take language; may be empty."""
    max_steps: int
    """Steps after which an episode has failed."""


class Simulation(Protocol):
    @property
    def success(self) -> bool:
        """Whether the task has been done since the last reset."""
        ...

    @property
    def score(self) -> float:
        """The largest progress since the last reset, in [0, 1]; 1 on success."""
        ...

    @property
    def done(self) -> bool:
        """Whether the episode is over: done, or out of steps."""
        ...

    def reset(self, episode: int) -> None:
        """Begin the episode of a number: the same one for the same number, in every process."""
        ...

    def observe(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Observations by name; a name it does not have is a `BadArgument` that lists those it has."""
        ...

    def step(self, action: np.ndarray) -> None: ...

    def frame(self) -> np.ndarray:
        """A picture for people, uint8 (height, width, 3)."""
        ...

    def close(self) -> None: ...


class Suite(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def tasks(self) -> tuple[TaskSpec, ...]: ...

    @property
    def action_size(self) -> int: ...

    @property
    def episodes(self) -> int:
        """Episodes that the benchmark defines for a task."""
        ...

    def make(self, task: int, camera_size: int = 128) -> Simulation:
        """A simulation of a task. Cameras are opened when they are first asked for."""
        ...


def _pusht(name: str) -> Suite:
    from .pusht import PushT

    return PushT()


def _libero(name: str) -> Suite:
    from .libero import Libero

    return Libero(name)


SUITES: dict[str, Callable[[str], Suite]] = {
    "pusht": _pusht,
    **dict.fromkeys(("libero_goal", "libero_object", "libero_spatial", "libero_10", "libero_90"), _libero),
}


def open_suite(name: str) -> Suite:
    require_choice("suite", name, SUITES)
    return SUITES[name](name)
