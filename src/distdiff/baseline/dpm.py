"""DPM-Solver++ for classical models: diffusers' multistep scheduler on the library's times.

The network is asked at the grid's exact times (not at rounded timesteps), the first of which is where sampling starts,
and hands the scheduler its x_0. With one or two steps the second-order correction never comes into play, so that
dpm++ equals DDIM. The schedule must be flow matching, sigma = t, which is what `use_flow_sigmas` means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from .._check import require, require_choice
from ..denoiser import Denoiser, safe_interval
from ..random import SampleGenerator, randn
from ..schedule import SAFETY, FlowMatching, time_grid

__all__ = ["sample_dpm"]

ALGORITHMS = {"dpm++": "dpmsolver++", "sde-dpm++": "sde-dpmsolver++"}


@torch.no_grad()
def sample_dpm(
    denoiser: Denoiser,
    shape: Sequence[int],
    steps: int,
    algorithm: Literal["dpm++", "sde-dpm++"] = "dpm++",
    grid: str = "uniform",
    seed: int = 0,
    *,
    cond: Any = None,
    callback: Callable[[int], object] | None = None,
) -> Tensor:
    """Samples (n, *event); sample i uses seed + i. `callback` is called after each step with its index."""
    from diffusers import DPMSolverMultistepScheduler

    require_choice("algorithm", algorithm, ALGORITHMS)
    require(isinstance(denoiser.schedule, FlowMatching), "schedule", denoiser.schedule, "FlowMatching")
    low, high = safe_interval(denoiser)
    times = time_grid(denoiser.schedule, steps, grid, t_max=high, safety=low or SAFETY)
    parameter = next(denoiser.parameters())
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="sample", algorithm_type=ALGORITHMS[algorithm], use_flow_sigmas=True
    )
    scheduler.set_timesteps(steps)
    scheduler.sigmas = times.float()
    scheduler.timesteps = 1000 * times[:-1].float()
    generator = SampleGenerator(range(seed, seed + shape[0]), parameter.device)
    x = float(times[0]) * randn(shape, generator=generator, like=parameter)
    for index, (t, s) in enumerate(pairwise(times.tolist())):
        time = torch.tensor(t, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        x0 = denoiser.draw(x, time, 1, cond, generator)[:, 0]
        noisy = algorithm == "sde-dpm++" and s > 0
        z = randn(shape, generator=generator, like=x) if noisy else torch.zeros_like(x)
        x = scheduler.step(x0, scheduler.timesteps[index], x, variance_noise=z, return_dict=False)[0]
        if callback is not None:
            callback(index)
    return x
