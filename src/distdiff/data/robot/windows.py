"""The windows of demonstrations that a policy trains on, and the statistics that bring them to a common scale.

Every step is a row: the states of the last `history` steps, the pictures of this one, the number of the task, and the
`chunk` actions from here on. Before an episode's first step its first state is repeated. After its last step the last
action is repeated, which is right for targets (positions to go to); where actions are motions, `hold` names those of
their numbers that are repeated all the same (a gripper's), and the others are zero: the robot rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..._check import require, require_count
from .derive import derive
from .episodes import Episodes

__all__ = ["Statistics", "Windows"]


@dataclass(frozen=True)
class Statistics:
    """Shift and scale of states and actions; a value that never changes is left unscaled."""

    state_shift: Tensor
    state_scale: Tensor
    action_shift: Tensor
    action_scale: Tensor

    @classmethod
    def of(cls, states: np.ndarray, actions: np.ndarray) -> Statistics:
        """States to mean 0 and standard deviation 1, actions to [-1, 1]; both (steps, size)."""
        low, high = actions.min(0).astype(np.float64), actions.max(0).astype(np.float64)
        wide = states.astype(np.float64)
        values = (wide.mean(0), _scale(wide.std(0)), (low + high) / 2, _scale((high - low) / 2))
        return cls(*(torch.from_numpy(np.asarray(value, np.float32)) for value in values))

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))

    def state(self, state: Tensor) -> Tensor:
        return (state - self.state_shift.to(state)) / self.state_scale.to(state)

    def action(self, action: Tensor) -> Tensor:
        return (action - self.action_shift.to(action)) / self.action_scale.to(action)

    def restore_action(self, action: Tensor) -> Tensor:
        """From the network's scale back to the robot's."""
        return action * self.action_scale.to(action) + self.action_shift.to(action)


def _scale(spread: np.ndarray) -> np.ndarray:
    return np.where(spread > 1e-6 * max(float(spread.max(initial=0)), 1e-6), spread, 1.0)


class Windows:
    """Windows of demonstrations, by row."""

    def __init__(
        self,
        episodes: Episodes,
        states: Sequence[str],
        cameras: Sequence[str] = (),
        *,
        chunk: int = 8,
        history: int = 1,
        hold: Sequence[int] | None = None,
    ) -> None:
        require_count("chunk", chunk)
        require_count("history", history)
        require(bool(states or cameras), "states, cameras", "none", "at least one observation")
        size = episodes.actions.shape[1]
        for index in hold or ():
            require(0 <= index < size, "hold", index, f"numbers of the {size} actions, from 0")
        self.episodes, self.cameras, self.chunk, self.history = episodes, tuple(cameras), chunk, history
        for name in cameras:
            known = name in episodes.cameras
            require(known, "camera", name, f"one of {', '.join(episodes.cameras) or 'none: there are no cameras'}")
        parts = [self._vector(name) for name in states]
        self.sizes = {name: part.shape[1] for name, part in zip(states, parts, strict=True)}
        self.states = np.concatenate([np.zeros((len(episodes.actions), 0), np.float32), *parts], 1)
        lengths = np.diff(episodes.ends, prepend=0)
        self.first, self.last = np.repeat(episodes.starts, lengths), np.repeat(episodes.ends - 1, lengths)
        self.task = np.repeat(episodes.task, lengths)
        self.statistics = Statistics.of(self.states, episodes.actions)
        rest = np.zeros(size, bool)
        if hold is not None:
            rest[[index for index in range(size) if index not in hold]] = True
        self.rest = rest
        """Actions that are zero after the end of an episode."""

    def _vector(self, name: str) -> np.ndarray:
        value = np.asarray(derive(self.episodes.observations, name)[:], np.float32)
        require(value.ndim != 4, "states", name, "observations that are no pictures")
        value = value.reshape(len(value), -1)
        require(bool(np.isfinite(value).all()), f"observation {name}", "with nan or inf", "finite everywhere")
        return value

    def __len__(self) -> int:
        return len(self.states)

    def actions(self, rows: np.ndarray) -> np.ndarray:
        """(n, chunk, size)."""
        wanted = rows[:, None] + np.arange(self.chunk)
        last = self.last[rows][:, None]
        actions = self.episodes.actions[np.minimum(wanted, last)].astype(np.float32)
        actions[(wanted > last)[..., None] & self.rest] = 0
        return actions

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions (n, chunk, size) and what was observed: `state` (n, history, size), `task` (n,), uint8 pictures."""
        index = np.asarray(rows)
        back = np.arange(self.history - 1, -1, -1)
        earlier = np.maximum(index[:, None] - back, self.first[index][:, None])
        observed = {"state": torch.from_numpy(self.states[earlier]), "task": torch.from_numpy(self.task[index])}
        for name in self.cameras:
            observed[name] = torch.from_numpy(np.ascontiguousarray(self.episodes.observations[name][index]))
        return torch.from_numpy(self.actions(index)), observed
