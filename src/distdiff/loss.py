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
- `MeanLoss`: the same for the draw that a distributional model makes of no noise, which becomes the posterior mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ._check import is_number, require, require_choice, require_count
from .denoiser import DATA_STD, Denoiser, Draws, safe_interval
from .kernel import Energy, Kernel, distance
from .posterior import EmpiricalPosterior
from .random import rand, randn
from .schedule import ScheduleLike, add_noise, log_snr
from .score import FeatureMaps, feature_score, patch_score, require_population, score_loss

__all__ = [
    "Batch",
    "ConditionalLoss",
    "JointLoss",
    "Loss",
    "MarginalLoss",
    "MeanLoss",
    "NoWeighting",
    "RegressionLoss",
    "Sigmoid",
    "Spread",
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


@dataclass(frozen=True)
class Spread:
    """w_t = sqrt(1 + s**2 SNR(t)), s = 1/2: one over the error of the best linear guess of x_0, as EDM has it.

    The scale of the posterior, and with it the score of the energy kernel at beta = 1, falls with t; this makes up.
    """

    def __call__(self, schedule: ScheduleLike, t: Tensor) -> Tensor:
        return torch.sqrt(1 + DATA_STD**2 * log_snr(schedule, t).exp())


class Batch(NamedTuple):
    """Noised data, as every loss sees it: x0, its noise z and x_t (n, *event), times and conditioning (n, ...)."""

    x0: Tensor
    z: Tensor
    xt: Tensor
    t: Tensor
    cond: Any


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """Draws times and noise, and weights what a subclass makes of them."""

    weighting: Weighting = field(default_factory=NoWeighting)

    @property
    def group(self) -> int:
        """Neighbouring data points that share a time."""
        return 1

    def spread(self, u: Tensor) -> Tensor:
        """Times within [0, 1] for uniform numbers, which they are by default."""
        return u

    def noise(self, x0: Tensor, generator: torch.Generator | None) -> Tensor:
        """The z of each data point."""
        return randn(x0.shape, generator=generator, like=x0)

    @abstractmethod
    def values(self, denoiser: Any, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """The loss of each data point, (n,), before weighting."""

    def __call__(
        self,
        denoiser: Any,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
        t: Tensor | None = None,
    ) -> Tensor:
        """Weighted loss (n,) of data x0 (n, *event). Times, (n / group,), are drawn unless given."""
        count, rest = divmod(len(x0), self.group)
        require(rest == 0, "batch size", len(x0), f"a multiple of m = {self.group}")
        if t is None:
            low, high = safe_interval(denoiser)
            like = x0.new_empty(0, dtype=torch.promote_types(x0.dtype, torch.float32))
            u = rand((len(x0),), generator=generator, like=like)[:: self.group]
            t = low + (high - low) * self.spread(u)
        require(t.shape == (count,), "t", tuple(t.shape), f"of shape ({count},)")
        t = t.repeat_interleave(self.group) if self.group > 1 else t
        z = self.noise(x0, generator)
        batch = Batch(x0, z, add_noise(denoiser.schedule, x0, t, z), t, cond)
        return self.weighting(denoiser.schedule, t) * self.values(denoiser, batch, generator)


@dataclass(frozen=True, kw_only=True)
class _PopulationLoss(Loss):
    kernel: Kernel = field(default_factory=Energy)
    lam: float = 1.0
    m: int = 4

    def __post_init__(self) -> None:
        require_count("m", self.m)
        require_population(self.lam, self.m)


@dataclass(frozen=True, kw_only=True)
class ConditionalLoss(_PopulationLoss):
    """Score of m draws a data point against that point.

    `patches` adds, for images, the mean score of overlapping square patches of each side given, and takes the mean of
    all. As the score of the whole image is among them, the posterior remains the only minimiser; a picture has many
    patches, so that this sum has far less noise than the score of the whole, and sees what is wrong locally.

    `feature_weight` adds so many times the score of `features` of the images to that mean: what a network that knows
    such images sees at each position, where differences of pixels say little about what looks wrong.

    `anchor` adds so many times the `MeanLoss`, left alone by the weighting. The score never sees the draw at xi = 0,
    which has no mass, so that the posterior still minimises the sum; but the network learns to denoise from both terms,
    and `Denoiser.mean` then serves samplers that want a mean.

    `posterior`, that of the training data, offers more than the x_0 that was noised: pixels are scored against
    `targets` of its draws, and the anchor's target is its mean. Both terms have the expectation that they have without
    it, and less noise where much is open, at large t. Features, which are dear, see x_0 alone.
    """

    patches: tuple[int, ...] = ()
    feature_weight: float = 0.0
    features: FeatureMaps | None = None
    anchor: float = 0.0
    targets: int = 1
    posterior: EmpiricalPosterior | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("targets", self.targets)
        for name, value in (("anchor", self.anchor), ("feature_weight", self.feature_weight)):
            require(is_number(value) and value >= 0, name, value, "a number of at least 0")
        given = not self.feature_weight or self.features is not None
        require(given, "features", self.features, "given where they have a weight")

    def values(self, denoiser: Draws, batch: Batch, generator: torch.Generator | None) -> Tensor:
        if self.anchor:
            require(isinstance(denoiser, Denoiser), "denoiser", type(denoiser).__name__, "a Denoiser for an anchor")
            draws, mean = denoiser.draw_with_mean(batch.xt, batch.t, self.m, batch.cond, generator)  # type: ignore[attr-defined]
        else:
            draws, mean = denoiser.draw(batch.xt, batch.t, self.m, batch.cond, generator), None
        real, center = batch.x0, batch
        if self.posterior is not None:
            with torch.no_grad():
                known = self.posterior.draw_with_mean(batch.xt, batch.t, self.targets, batch.cond, generator)
            real, center = known[0], batch._replace(x0=known[1])
        value = score_loss(self.kernel, draws, real, self.lam)
        if self.patches:
            parts = [patch_score(self.kernel, draws, real, self.lam, side) for side in self.patches]
            value = (value + sum(parts)) / (1 + len(parts))
        if self.feature_weight and self.features is not None:
            score = feature_score(self.kernel, draws, batch.x0, self.lam, self.features)
            value = (value + self.feature_weight * score) / (1 + self.feature_weight)
        if mean is None:
            return value
        return value + self.anchor * velocity_error(denoiser, center, mean) / self.weighting(denoiser.schedule, batch.t)

    @property
    def start(self) -> Loss:
        """A cheap loss for the first steps of a training: of the mean alone if there is an anchor, else of one draw."""
        if self.anchor:
            return MeanLoss(scale=self.anchor, posterior=self.posterior)
        return replace(self, m=1, lam=0.0)


def velocity_error(denoiser: Draws, batch: Batch, mean: Tensor) -> Tensor:
    """Squared error (n,) of the velocities that means (n, *event) of x_0 stand for.

    It is a mean over the d numbers of an event times sqrt(d), to grow with d as the energy kernel of beta = 1 does.
    """
    alpha, sigma = denoiser.schedule(batch.t)
    error = (mean.to(torch.promote_types(mean.dtype, torch.float32)) - batch.x0).square().flatten(1).sum(1)
    return error * (1 + alpha / sigma).square() / batch.x0[0].numel() ** 0.5


@dataclass(frozen=True, kw_only=True)
class MeanLoss(Loss):
    """The loss of a classical diffusion model for the draw at xi = 0, `scale` times: the squared error of velocities.

    It leaves the weights that the noise goes through as they are. With a `posterior`, its mean is the target.
    """

    scale: float = 1.0
    posterior: EmpiricalPosterior | None = None

    def values(self, denoiser: Denoiser, batch: Batch, generator: torch.Generator | None) -> Tensor:
        if self.posterior is not None:
            batch = batch._replace(x0=self.posterior.mean(batch.xt, batch.t, batch.cond))
        return self.scale * velocity_error(denoiser, batch, denoiser.mean(batch.xt, batch.t, batch.cond))


@dataclass(frozen=True, kw_only=True)
class _GroupLoss(_PopulationLoss):
    """Score over groups of m data points that share a time; n must be a multiple of m."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("m", self.m, least=2)

    @property
    def group(self) -> int:
        return self.m

    def values(self, denoiser: Draws, batch: Batch, generator: torch.Generator | None) -> Tensor:
        draws = denoiser.draw(batch.xt, batch.t, 1, batch.cond, generator)
        cross, within = self.pairs(*(v.reshape(-1, self.m, batch.x0[0].numel()) for v in (batch.x0, draws, batch.xt)))
        other = 1 - torch.eye(self.m, dtype=cross.dtype, device=cross.device)
        return (((cross - self.lam / 2 * within) * other).sum(-1) / (self.m - 1)).flatten()

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

    def values(self, denoiser: Denoiser, batch: Batch, generator: torch.Generator | None) -> Tensor:
        if self.space == "x0":
            error = denoiser.draw(batch.xt, batch.t, 1, batch.cond, generator)[:, 0] - batch.x0
        else:
            require(denoiser.noise_shape is None, "noise_shape", denoiser.noise_shape, "None for a regression")
            error = denoiser(batch.xt, batch.t, None, batch.cond)[:, 0] - denoiser.target(batch.x0, batch.z, batch.t)
        wide = torch.promote_types(error.dtype, torch.float32)
        return error.to(wide).square().flatten(1).sum(1)
