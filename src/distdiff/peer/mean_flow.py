r"""MeanFlow: a network of average velocities, made for one step (Geng et al. 2025).

Let y be the velocity towards the data, the mean of :math:`x_0 - z` given :math:`x_t`, so that :math:`dx_t/dt = -y`. Its
average over a span of time along the path of the flow,

.. math:: u(x_t, r, t) = \frac{1}{t - r} \int_r^t y(x_\tau, \tau)\, d\tau ,

makes a step of any length exact: :math:`x_r = x_t + (t - r)\, u(x_t, r, t)`. Taking the derivative of
:math:`(t - r) u` in t along the path gives the MeanFlow identity, from which the integral is gone,

.. math:: u = y - (t - r) \frac{d}{dt} u(x_t, r, t), \qquad
          \frac{d}{dt} u = \partial_t u + \frac{dx_t}{dt} \cdot \nabla_x u .

(The authors count velocity towards the noise: theirs is -u.) The loss regresses u on the right-hand side, held fixed,
with :math:`x_0 - z` for y. The derivative is a product of the network's Jacobian with one vector, which forward-mode
differentiation gives along with u. Where r = t this is flow matching, and most data points are of that kind.

The authors divide the squared error of each data point by itself (`power` 1). In many dimensions these errors are all
alike and so are the weights. In few they are not: the loss then is near log(error), whose minimiser is no longer the
mean. Recipes in the plane therefore have `power` 0, which the checkerboard's one-step samples bear out.

A network with `spans` takes (t, t - r), both of which grow at rate 1. As the deterministic step of the library, with u
in the place of y, is :math:`x_s = x_t + (t - s) u`, `sample` with churn 0 is MeanFlow's sampler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .._check import require, require_between, require_choice
from ..denoiser import Denoiser, safe_interval
from ..loss import Batch, Loss
from ..random import rand
from ..sample import Step, sample
from ..schedule import expand
from .flow import require_velocity

__all__ = ["TIMES", "MeanFlowLoss", "sample_mean_flow"]

TIMES = ("logit-normal", "uniform")
LOCATION, SCALE = -0.4, 1.0
"""The normal distribution of log(t / (1 - t))."""
SMALL = 1e-3
"""What keeps the adaptive weight finite."""


def require_spans(denoiser: Any) -> None:
    require_velocity(denoiser)
    require(denoiser.spans, "spans", denoiser.spans, "True for mean-flow: a network that takes spans")


@dataclass(frozen=True, kw_only=True)
class MeanFlowLoss(Loss):
    """Squared error of the MeanFlow identity, divided by (itself + 1e-3)**power, in which it is held fixed.

    The ends of a span are the larger and the smaller of two draws from the distribution `times`; a share `span_share`
    of the data points keeps its span, the others have r = t.
    """

    times: Literal["logit-normal", "uniform"] = "logit-normal"
    span_share: float = 0.25
    power: float = 1.0

    def __post_init__(self) -> None:
        require_choice("times", self.times, TIMES)
        require_between("span_share", self.span_share, 0, 1)
        require_between("power", self.power, 0, 2)

    def spread(self, u: Tensor) -> Tensor:
        """The larger of two draws: its distribution function is the square of theirs."""
        return self._quantile(u.sqrt())

    def values(self, denoiser: Denoiser, batch: Batch, generator: torch.Generator | None) -> Tensor:
        require_spans(denoiser)
        span = self.spans(denoiser, batch.t, generator)
        prediction, target = self.identity(denoiser, batch, span)
        wide = torch.promote_types(prediction.dtype, torch.float32)
        error = (prediction - target).to(wide).square().flatten(1).sum(1)
        return error / (error.detach() + SMALL) ** self.power

    def spans(self, denoiser: Denoiser, t: Tensor, generator: torch.Generator | None) -> Tensor:
        """t - r, (n,): r is the smaller of two draws of which t is the larger, or t."""
        low, high = safe_interval(denoiser)
        share, below = rand((len(t), 2), generator=generator, like=t).unbind(1)
        r = high * self._quantile(below * self._distribution((t - low) / (high - low)))
        return torch.where(share < self.span_share, (t - r).clamp_min(0), 0)

    def identity(self, denoiser: Denoiser, batch: Batch, span: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides of the identity, (n, *event): what the network says, and what it should have said."""
        velocity = batch.x0 - batch.z

        def average(xt: Tensor, t: Tensor, length: Tensor) -> Tensor:
            return denoiser(xt, t, None, batch.cond, length)[:, 0]

        ones = torch.ones_like(batch.t)
        with sdpa_kernel(SDPBackend.MATH):  # fused kernels have no forward-mode derivative
            there, along = (batch.xt, batch.t, span), (-velocity, ones, ones)
            prediction, slope = torch.func.jvp(average, there, along)  # type: ignore[misc]
        return prediction, velocity - expand(span, slope) * slope.detach()

    def _distribution(self, t: Tensor) -> Tensor:
        if self.times == "uniform":
            return t.clamp(0, 1)
        return (1 + torch.erf((torch.logit(t.clamp(0, 1)) - LOCATION) / (SCALE * math.sqrt(2)))) / 2

    def _quantile(self, p: Tensor) -> Tensor:
        """The inverse of the distribution function."""
        if self.times == "uniform":
            return p
        return torch.sigmoid(LOCATION + SCALE * math.sqrt(2) * torch.erfinv(2 * p - 1))


def sample_mean_flow(
    denoiser: Denoiser,
    shape: Sequence[int],
    steps: int = 1,
    grid: str = "uniform",
    seed: int = 0,
    *,
    cond: Any = None,
    callback: Callable[[Step], object] | None = None,
) -> Tensor:
    """Samples (n, *event), one call of the network a step; sample i uses seed + i.

    `callback` is called after each step.
    """
    require_spans(denoiser)
    return sample(denoiser, shape, steps, 0.0, grid, seed, cond=cond, callback=callback)
