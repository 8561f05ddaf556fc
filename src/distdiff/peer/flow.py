r"""Flow matching, with Euler steps (Lipman et al. 2023).

Along the straight line :math:`x_t = (1 - t) x_0 + t z` the state moves at :math:`dx_t/dt = z - x_0`. A network that is
regressed on it learns the mean of these velocities given :math:`x_t`, whose flow carries noise at t = 1 to data at
t = 0. In the library that is the schedule "flow", the prediction "velocity", :math:`y = x_0 - z` (the same velocity
towards the data), and `RegressionLoss` without weighting: the recipes with the suffix -diffusion.

Nor is the sampler new. With :math:`\hat x_0 = x_t + t \hat y` the deterministic step (churn 0, DDIM) from t to s is

.. math:: x_s = \tfrac{s}{t} x_t + \left(1 - \tfrac{s}{t}\right) \hat x_0 = x_t + (t - s) \hat y,

Euler's. `sample_euler` takes that step as it stands; ``sample(..., churn=0)`` gives the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .._check import require
from ..denoiser import Denoiser
from ..sample import Plan, Step
from ..schedule import FlowMatching

__all__ = ["require_velocity", "sample_euler"]


def require_velocity(denoiser: Any) -> None:
    """Raise unless a denoiser is a network of velocities on the flow matching schedule, without noise."""
    require(isinstance(denoiser.schedule, FlowMatching), "schedule", denoiser.schedule, "FlowMatching")
    require(denoiser.prediction == "velocity", "prediction", denoiser.prediction, "velocity")
    require(denoiser.noise_shape is None, "noise_shape", denoiser.noise_shape, "None for a flow")


@torch.no_grad()
def sample_euler(
    denoiser: Denoiser,
    shape: Sequence[int],
    steps: int,
    grid: str = "uniform",
    seed: int = 0,
    *,
    cond: Any = None,
    callback: Callable[[Step], object] | None = None,
) -> Tensor:
    """Samples (n, *event); sample i uses seed + i. `callback` is called after each step."""
    require_velocity(denoiser)
    plan = Plan(denoiser, shape, steps, 0.0, grid, seed, None, None)
    x, _ = plan.start(0, plan.count)
    for index, (t, s) in enumerate(pairwise(plan.times)):
        velocity = denoiser(x, plan.clock[index], None, cond)[:, 0]
        xs = x + (t - s) * velocity
        if callback is not None:
            callback(Step(index, steps, t, s, x, x + t * velocity, xs))
        x = xs
    return x
