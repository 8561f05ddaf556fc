r"""A draw, then a solver: for distributional models that were trained with an anchor.

At the start, where the posterior has many modes and a step is long, a mean is far from any picture and a draw is exact.
Further on the posterior is narrow, and a solver of second order on its mean makes less of an error than draws that are
not quite the posterior's. So the first step draws, and those after it move on with the mean :math:`\hat x_0`, taken on
by half a step along the line through the last two, in half the log-SNR :math:`\lambda`:

.. math:: \hat x_0 + \frac{\lambda_s - \lambda_t}{2 (\lambda_t - \lambda_r)} (\hat x_0 - \hat x_0'),

where r and :math:`\hat x_0'` are time and estimate of the step before. The move itself is the library's transition,
with churn. At churn 0 and 1 that is DPM-Solver++(2M) and its stochastic twin. The last step ends at the mean.

`means` says how many of the last steps follow the mean, in place of all but the first. With one of them every step
draws until the last, which settles at the mean: what is left to decide there is grain, and a draw that is not quite the
posterior's gets grain wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ._check import require
from .denoiser import Denoiser, Draws
from .random import randn
from .sample import Plan, Step
from .schedule import as_time, log_snr

__all__ = ["require_mean", "sample_hybrid"]


def require_mean(denoiser: Draws, sampler: str = "hybrid") -> None:
    """Raise if a denoiser has no mean, which a sampler wants."""
    has = isinstance(denoiser, Denoiser) and denoiser.has_mean
    require(has, "sampler", sampler, "another one for a model trained without --loss.anchor")


@torch.no_grad()
def sample_hybrid(
    denoiser: Denoiser,
    shape: Sequence[int],
    steps: int,
    churn: float = 0.0,
    grid: str | Sequence[float] | Tensor = "uniform",
    seed: int | Sequence[int] | Tensor = 0,
    *,
    cond: Any = None,
    callback: Callable[[Step], object] | None = None,
    means: int | None = None,
) -> Tensor:
    """Samples (n, *event); sample i uses seed + i. `callback` is called after each step.

    The last `means` steps follow the mean; all but the first by default, which always draws.
    """
    require_mean(denoiser)
    drawn = 1 if means is None else max(1, steps - means)
    plan = Plan(denoiser, shape, steps, churn, grid, seed, None, None)
    x, generator = plan.start(0, plan.count)
    spans = [b - a for a, b in pairwise(float(log_snr(denoiser.schedule, as_time(t))) / 2 for t in plan.times)]
    before: Tensor | None = None
    for index, ((t, s), move) in enumerate(zip(pairwise(plan.times), plan.moves, strict=True)):
        if before is None or index < drawn:
            x0 = estimate = denoiser.draw(x, plan.clock[index], 1, cond, generator)[:, 0]
        else:
            x0 = estimate = denoiser.mean(x, plan.clock[index], cond)
            if s > 0:
                x0 = estimate + spans[index] / (2 * spans[index - 1]) * (estimate - before)
        z = randn(x.shape, generator=generator, like=x) if s > 0 and churn > 0 else None
        xs = move(x, x0, z).to(x.dtype)
        if callback is not None:
            callback(Step(index, steps, t, s, x, x0, xs))
        x, before = xs, estimate
    return x
