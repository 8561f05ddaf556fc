"""PushT (Chi et al., 2023): push a T-shaped block onto its outline, by the simulator of the package gym-pusht.

Observations are those of the human demonstrations: `state` (agent x, y, block x, y, angle) and `img` (96 px). Actions
are positions for the agent to go to, in [0, 512]. The score is the largest part of the outline that was covered, as
a share of the 95 % that count as success. Episode k starts from seed 100,000 + k, as diffusion policies are tested.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._check import BadArgument, require
from .suite import TaskSpec

__all__ = ["PushT"]

FIRST_SEED = 100_000


class PushT:
    name = "pusht"
    tasks = (TaskSpec("pusht", "push the T-shaped block onto its outline", 300),)
    action_size = 2
    episodes = 1_000_000
    together = 64
    """Simulations that one process runs side by side."""

    def __init__(self) -> None:
        _import()

    def make(self, task: int, camera_size: int = 96) -> PushTSimulation:
        require(task == 0, "task", task, "0, the only one of pusht")
        return PushTSimulation(camera_size)


def _import() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    try:
        import gym_pusht.envs.pusht as module
    except ImportError as error:
        more = ", and opencv-python-headless instead of opencv-python" if "libGL" in str(error) else ""
        advice = f'pip install "distdiff[robotics]"{more}'
        raise BadArgument(f"suite pusht needs its simulator: {advice} ({error})") from None
    return module


class PushTSimulation:
    def __init__(self, camera_size: int) -> None:
        options = {"observation_width": camera_size, "observation_height": camera_size}
        self._env = _import().PushTEnv(visualization_width=256, visualization_height=256, **options)
        self.success, self.score, self.done, self.steps = False, 0.0, False, 0
        self._state = np.zeros(5)

    def reset(self, episode: int) -> None:
        self._state, _ = self._env.reset(seed=FIRST_SEED + episode)
        self.success, self.score, self.done, self.steps = False, 0.0, False, 0

    def observe(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        known = {"state": lambda: self._state.astype(np.float32), "img": self._picture}
        for name in names:
            require(name in known, "observation", name, f"one of {', '.join(known)} in pusht")
        return {name: known[name]() for name in names}

    def _picture(self) -> np.ndarray:
        return np.ascontiguousarray(self._env._render(), dtype=np.uint8)

    def step(self, action: np.ndarray) -> None:
        self._state, reward, success, _, _ = self._env.step(np.clip(np.asarray(action, np.float64), 0, 512))
        self.steps += 1
        self.score = max(self.score, float(reward))
        self.success = self.success or bool(success)
        self.done = self.success or self.steps >= PushT.tasks[0].max_steps

    def frame(self) -> np.ndarray:
        return np.ascontiguousarray(self._env.render(), dtype=np.uint8)

    def close(self) -> None:
        self._env.close()
