"""DPM-Solver++ for models that have a mean: diffusers' multistep scheduler on the library's times.

The network is asked at the grid's exact times (not at rounded timesteps), the first of which is where sampling starts,
and hands the scheduler its x_0: the mean of a classical model, or of a distributional one with an anchor; a draw of one
without. With one or two steps the second-order correction never comes into play, so that dpm++ equals DDIM. The
schedule must be flow matching, sigma = t, which is what `use_flow_sigmas` means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .._check import require, require_choice
from ..denoiser import Denoiser, Draws
from ..random import randn
from ..sample import Plan, Step
from ..schedule import FlowMatching

__all__ = ["require_flow", "sample_dpm"]

ALGORITHMS = {"dpm++": "dpmsolver++", "sde-dpm++": "sde-dpmsolver++"}


def require_flow(denoiser: Draws) -> None:
    """DPM-Solver++ is for flow matching alone here."""
    require(
        isinstance(denoiser.schedule, FlowMatching), "schedule", denoiser.schedule, "flow matching for DPM-Solver++"
    )


@torch.no_grad()
def sample_dpm(
    denoiser: Draws,
    shape: Sequence[int],
    steps: int,
    algorithm: str = "dpm++",
    grid: str | Sequence[float] | Tensor = "uniform",
    seed: int | Sequence[int] | Tensor = 0,
    *,
    cond: Any = None,
    callback: Callable[[Step], object] | None = None,
) -> Tensor:
    """Samples (n, *event); sample i uses seed + i. `callback` is called after each step."""
    from diffusers import DPMSolverMultistepScheduler

    require_choice("algorithm", algorithm, ALGORITHMS)
    require_flow(denoiser)
    plan = Plan(denoiser, shape, steps, 0.0, grid, seed, None, None)
    times = torch.tensor(plan.times)
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="sample", algorithm_type=ALGORITHMS[algorithm], use_flow_sigmas=True
    )
    scheduler.set_timesteps(steps)
    scheduler.sigmas = times
    scheduler.timesteps = 1000 * times[:-1]
    x, generator = plan.start(0, plan.count)
    means = isinstance(denoiser, Denoiser) and denoiser.has_mean
    for index, (t, s) in enumerate(pairwise(plan.times)):
        with plan.guard():
            if means:
                x0 = denoiser.mean(x, plan.clock[index], cond)  # type: ignore[attr-defined]
            else:
                x0 = denoiser.draw(x, plan.clock[index], 1, cond, generator)[:, 0]
        noisy = algorithm == "sde-dpm++" and s > 0
        z = randn(x.shape, generator=generator, like=x) if noisy else torch.zeros_like(x)
        xs = scheduler.step(x0, scheduler.timesteps[index], x, variance_noise=z, return_dict=False)[0].to(x.dtype)
        if callback is not None:
            callback(Step(index, steps, t, s, x, x0, xs))
        x = xs
    return x
