"""What PushT policies would do next: many plans for the same moment, drawn over a picture of it.

A classical policy asked in one step plans the mean of what people do; in many steps its plans differ as theirs do. A
distributional one draws such plans in a single step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..evaluate.rollout import Setting
from ..figure import COLORS, canvas
from ..policy import Policy
from ..robot import open_suite

__all__ = ["draw_plans"]

DRAWS = 40


def draw_plans(policies: Mapping[str, tuple[Policy, Setting]], episodes: Sequence[int], record: Any) -> None:
    """A row a moment (the start of an episode), a column a policy and its setting."""
    simulation = open_suite("pusht").make(0)
    with canvas(len(episodes), len(policies), size=(3.0, 3.15), squeeze=False) as (figure, panels):
        for index, (row, episode) in enumerate(zip(panels, episodes, strict=True)):
            simulation.reset(episode)
            state, frame = simulation.observe(["state"])["state"], simulation.frame()
            for axes, (name, (policy, setting)) in zip(row, policies.items(), strict=True):
                seen = np.broadcast_to(state, (DRAWS, policy.spec.history, len(state)))
                options: dict[str, Any] = {"churn": setting.churn, "sampler": setting.sampler}
                plans = policy.plan({"state": seen}, steps=setting.steps, seeds=range(DRAWS), **options)
                axes.imshow(frame, extent=(0, 512, 512, 0), alpha=0.55)
                starts = np.broadcast_to(state[:2], (DRAWS, 1, 2))
                for path in np.concatenate([starts, plans], 1):
                    axes.plot(*path.T, color=COLORS[name.split(",")[0]], alpha=0.35, linewidth=1)
                axes.plot(*state[:2], "o", color="black", markersize=5)
                axes.set(xlim=(0, 512), ylim=(512, 0), xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if index == 0:
                    axes.set_title(name)
        text = (
            f"{DRAWS} plans for the first moment of an episode; black: the agent, light green: where the block belongs."
        )
        record.figure(figure, "plans", text)
    simulation.close()
