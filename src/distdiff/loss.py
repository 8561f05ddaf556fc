r"""Training losses. Each is called as ``loss(denoiser, x0, cond, generator)`` and returns one value a data point.

All of them draw times t, noise the data to :math:`x_t`, ask the denoiser for draws and weight by :math:`w_t`:

- `ConditionalLoss`, the paper's: the score of m draws from :math:`p_\theta(\cdot | x_t)` against :math:`x_0`. Its
  minimiser is the posterior. With the energy kernel, beta = 2 and lambda = 0 it is the classical diffusion loss.
- `JointLoss`: the score of pairs (draw, :math:`x_t`) against pairs :math:`(x_0, x_t)`, over groups of m data points
  that share t. The kernel acts on the concatenated pair. The paper's sum rho(x_0, x_0') + rho(x_t, x_t') cannot
  see how the two depend on each other: its second term is free of theta, so that it is the marginal loss plus
  a constant; ``additive=True`` gives it all the same.
- `MarginalLoss`: the score of the draws against :math:`x_0` over such a group, blind to :math:`x_t`. Any transport of
  p_t to p_0 minimises it.
- `RegressionLoss`: squared error of a single prediction, in the space of what the network predicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ._check import is_number, require, require_choice, require_count
from .denoiser import Denoiser, Draws, safe_interval
from .kernel import Energy, Kernel, distance
from .random import rand, randn
from .schedule import ScheduleLike, add_noise, log_snr
from .score import require_population, score_loss

__all__ = [
    "ConditionalLoss",
    "JointLoss",
    "Loss",
    "MarginalLoss",
    "NoWeighting",
    "RegressionLoss",
    "Sigmoid",
    "Weighting",
]


class Weighting(Protocol):
    def __call__(self, schedule: ScheduleLike, t: Tensor) -> Tensor:
        """w_t, of the shape of t."""
        ...


@dataclass(frozen=True)
class NoWeighting:
    """w_t = 1."""

    def __call__(self, schedule: ScheduleLike, t: Tensor) -> Tensor:
        return torch.ones_like(t)


@dataclass(frozen=True)
class Sigmoid:
    """w_t = sigmoid(log-SNR(t) - bias): near 1 where there is signal, falling to 0 as t tends to 1."""

    bias: float = 0.0

    def __post_init__(self) -> None:
        require(is_number(self.bias), "bias", self.bias, "a finite number")

    def __call__(self, schedule: ScheduleLike, t: Tensor) -> Tensor:
        return torch.sigmoid(log_snr(schedule, t) - self.bias)


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    weighting: Weighting = field(default_factory=NoWeighting)

    @abstractmethod
    def __call__(
        self,
        denoiser: Any,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
        t: Tensor | None = None,
    ) -> Tensor:
        """Weighted loss (n,) of data x0 (n, *event). Times are uniform on the safe interval unless given."""

    def times(
        self, denoiser: Any, x0: Tensor, count: int, generator: torch.Generator | None, t: Tensor | None
    ) -> Tensor:
        if t is not None:
            require(t.shape == (count,), "t", tuple(t.shape), f"of shape ({count},)")
            return t
        low, high = safe_interval(denoiser)
        wide = torch.promote_types(x0.dtype, torch.float32)
        return low + (high - low) * rand((count,), generator=generator, like=x0.new_empty(0, dtype=wide))


@dataclass(frozen=True, kw_only=True)
class _Population(Loss):
    kernel: Kernel = field(default_factory=Energy)
    lam: float = 1.0
    m: int = 4

    def __post_init__(self) -> None:
        require_count("m", self.m)
        require_population(self.lam, self.m)


@dataclass(frozen=True, kw_only=True)
class ConditionalLoss(_Population):
    """Score of m draws a data point against that point."""

    def __call__(
        self,
        denoiser: Draws,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
        t: Tensor | None = None,
    ) -> Tensor:
        t = self.times(denoiser, x0, len(x0), generator, t)
        xt = add_noise(denoiser.schedule, x0, t, randn(x0.shape, generator=generator, like=x0))
        draws = denoiser.draw(xt, t, self.m, cond, generator)
        return self.weighting(denoiser.schedule, t) * score_loss(self.kernel, draws, x0, self.lam)


@dataclass(frozen=True, kw_only=True)
class _GroupLoss(_Population):
    """Score over groups of m data points that share a time; n must be a multiple of m, times are (n / m,)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("m", self.m, least=2)

    def __call__(
        self,
        denoiser: Draws,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
        t: Tensor | None = None,
    ) -> Tensor:
        require(len(x0) % self.m == 0, "batch size", len(x0), f"a multiple of m = {self.m}")
        t = self.times(denoiser, x0, len(x0) // self.m, generator, t)
        each = t.repeat_interleave(self.m)
        xt = add_noise(denoiser.schedule, x0, each, randn(x0.shape, generator=generator, like=x0))
        draws = denoiser.draw(xt, each, 1, cond, generator)
        x, y, z = (v.reshape(len(t), self.m, -1) for v in (x0, draws, xt))
        cross, within = self.pairs(x, y, z)
        other = 1 - torch.eye(self.m, dtype=cross.dtype, device=cross.device)
        loss = ((cross - self.lam / 2 * within) * other).sum(-1) / (self.m - 1)
        return (self.weighting(denoiser.schedule, t)[:, None] * loss).flatten()

    @abstractmethod
    def pairs(self, x0: Tensor, draws: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        """rho of each data point with each draw, and of each two draws, (groups, m, m), for events (groups, m, d)."""


@dataclass(frozen=True, kw_only=True)
class JointLoss(_GroupLoss):
    """Score on the joint distribution of (x_0, x_t)."""

    additive: bool = False

    def pairs(self, x0: Tensor, draws: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        rho = self.kernel.rho
        if self.additive:
            own = rho(distance(xt, xt))
            return rho(distance(x0, draws)) + own, rho(distance(draws, draws)) + own
        data, model = torch.cat([x0, xt], -1), torch.cat([draws.to(xt.dtype), xt], -1)
        return rho(distance(data, model)), rho(distance(model, model))


@dataclass(frozen=True, kw_only=True)
class MarginalLoss(_GroupLoss):
    """Score on the marginal distribution of x_0."""

    def pairs(self, x0: Tensor, draws: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel.rho(distance(x0, draws)), self.kernel.rho(distance(draws, draws))


@dataclass(frozen=True, kw_only=True)
class RegressionLoss(Loss):
    """|target - prediction|**2 in the space of the network's prediction, or of x_0 with ``space="x0"``."""

    space: str = "prediction"

    def __post_init__(self) -> None:
        require_choice("space", self.space, ("prediction", "x0"))

    def __call__(
        self,
        denoiser: Denoiser,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
        t: Tensor | None = None,
    ) -> Tensor:
        t = self.times(denoiser, x0, len(x0), generator, t)
        z = randn(x0.shape, generator=generator, like=x0)
        xt = add_noise(denoiser.schedule, x0, t, z)
        if self.space == "x0":
            error = denoiser.draw(xt, t, 1, cond, generator)[:, 0] - x0
        else:
            require(denoiser.noise_shape is None, "noise_shape", denoiser.noise_shape, "None for a regression")
            error = denoiser(xt, t, None, cond)[:, 0] - denoiser.target(x0, z)
        wide = torch.promote_types(error.dtype, torch.float32)
        return self.weighting(denoiser.schedule, t) * error.to(wide).square().flatten(1).sum(1)
