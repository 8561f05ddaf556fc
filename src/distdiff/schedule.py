r"""Noise schedules: how much of the data and how much noise there is at time t.

The forward process is :math:`x_t = \alpha_t x_0 + \sigma_t z` with :math:`z \sim N(0, I)`, t = 0 being data and
t = 1 noise. A schedule is called as ``alpha, sigma = schedule(t)``. Everything else follows from the pair:

- the log signal-to-noise ratio :math:`\log(\alpha_t^2 / \sigma_t^2)`, strictly falling in t, and its inverse;
- grids of N + 1 falling times that end at 0, spaced uniformly in t, in log-SNR, or as EDM does in
  :math:`(\sigma_t/\alpha_t)^{1/7}`;
- the safe interval :math:`[\eta, 1-\eta]` outside of which a network is neither trained nor asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from ._check import BadArgument, require, require_between, require_choice, require_count

__all__ = [
    "GRIDS",
    "SCHEDULES",
    "Cosine",
    "FlowMatching",
    "LinearBeta",
    "Schedule",
    "ScheduleLike",
    "add_noise",
    "as_time",
    "expand",
    "log_snr",
    "named_schedule",
    "time_grid",
]

GRIDS = ("uniform", "logsnr", "edm")
SAFETY = 1e-3
"""Where the log-SNR and EDM grids begin and end for a denoiser that is safe on all of [0, 1]."""


def as_time(t: float | Tensor) -> Tensor:
    """t as a floating tensor. Python numbers become float64 scalars, which do not promote the tensors they meet."""
    if isinstance(t, Tensor):
        return t if t.is_floating_point() else t.to(torch.get_default_dtype())
    return torch.as_tensor(t, dtype=torch.float64)


def expand(value: Tensor, like: Tensor) -> Tensor:
    """Append axes to a coefficient of shape () or (n,) until it broadcasts against `like`, (n, ...)."""
    return value.reshape(value.shape + (1,) * (like.ndim - value.ndim)) if value.ndim else value


class ScheduleLike(Protocol):
    """Anything that maps t to (alpha_t, sigma_t)."""

    def __call__(self, t: Tensor, /) -> tuple[Tensor, Tensor]: ...


def add_noise(schedule: ScheduleLike, x0: Tensor, t: float | Tensor, z: Tensor) -> Tensor:
    """x_t = alpha_t x0 + sigma_t z for x0 and z (n, *event), t () or (n,), in the dtype of x0."""
    alpha, sigma = schedule(as_time(t))
    return (expand(alpha, x0) * x0 + expand(sigma, z) * z).to(x0.dtype)


def log_snr(schedule: ScheduleLike, t: Tensor) -> Tensor:
    """log(alpha_t**2 / sigma_t**2): +inf at t = 0, and -inf where alpha is 0."""
    alpha, sigma = schedule(t)
    return 2 * (alpha.log() - sigma.log())


class Schedule(ABC):
    """A pair of functions (alpha_t, sigma_t) on [0, 1]. Subclasses give the pair and the inverse of its log-SNR."""

    @abstractmethod
    def __call__(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """alpha_t and sigma_t, with the shape and dtype of t."""

    @abstractmethod
    def time(self, log_snr: float | Tensor) -> Tensor:
        """The t at which the log-SNR takes the given value, in [0, 1]."""

    def log_snr(self, t: float | Tensor) -> Tensor:
        return log_snr(self, as_time(t))


@dataclass(frozen=True)
class FlowMatching(Schedule):
    """alpha = 1 - t, sigma = t. The paper's schedule and the default everywhere."""

    def __call__(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        t = as_time(t)
        return 1 - t, t

    def time(self, log_snr: float | Tensor) -> Tensor:
        return torch.sigmoid(-as_time(log_snr) / 2)


@dataclass(frozen=True)
class Cosine(Schedule):
    """alpha = cos(pi t / 2), sigma = sin(pi t / 2), written so that alpha is exactly 0 at t = 1 in every dtype."""

    def __call__(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        t = as_time(t)
        return torch.sin(torch.pi / 2 * (1 - t)), torch.sin(torch.pi / 2 * t)

    def time(self, log_snr: float | Tensor) -> Tensor:
        return torch.atan(torch.exp(-as_time(log_snr) / 2)) * (2 / torch.pi)


@dataclass(frozen=True)
class LinearBeta(Schedule):
    r"""DDPM's discrete schedule :math:`\bar\alpha_k = \prod_{i \le k} (1 - \beta_i)` with linearly spaced betas.

    :math:`\alpha_t^2 = \bar\alpha_k` holds exactly at t = k / steps (diffusers' timestep k - 1); between those times
    :math:`\log\bar\alpha` is interpolated linearly, that is, the noise rate is constant within a DDPM step. As
    :math:`\alpha_1` is small but not zero, x_1 keeps a trace of the data.
    """

    beta_start: float = 1e-4
    beta_end: float = 0.02
    steps: int = 1000

    def __post_init__(self) -> None:
        require_between("beta_start", self.beta_start, 0, 1, open_low=True)
        require(self.beta_start <= self.beta_end < 1, "beta_end", self.beta_end, "in [beta_start, 1)")
        require_count("steps", self.steps)

    def __call__(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        t = as_time(t)
        knots = _log_alpha_bar(self.beta_start, self.beta_end, self.steps).to(t.device, t.dtype)
        position = t * self.steps
        left = position.detach().floor().clamp(0, self.steps - 1)
        index = left.long()
        log_alpha_bar = knots[index] + (position - left) * (knots[index + 1] - knots[index])
        return torch.exp(log_alpha_bar / 2), torch.sqrt(-torch.expm1(log_alpha_bar))

    def time(self, log_snr: float | Tensor) -> Tensor:
        log_snr = as_time(log_snr)
        knots = _log_alpha_bar(self.beta_start, self.beta_end, self.steps).to(log_snr.device, log_snr.dtype)
        log_alpha_bar = torch.nn.functional.logsigmoid(log_snr)
        index = (torch.searchsorted(-knots, -log_alpha_bar.contiguous()) - 1).clamp(0, self.steps - 1)
        fraction = (log_alpha_bar - knots[index]) / (knots[index + 1] - knots[index])
        return ((index + fraction) / self.steps).clamp(0, 1)


SCHEDULES: dict[str, type[Schedule]] = {"flow": FlowMatching, "cosine": Cosine, "linear-beta": LinearBeta}
"""Schedules by the names that configurations use."""


def named_schedule(name: str) -> Schedule:
    require_choice("schedule", name, SCHEDULES)
    return SCHEDULES[name]()


@lru_cache(maxsize=16)
def _log_alpha_bar(beta_start: float, beta_end: float, steps: int) -> Tensor:
    betas = torch.linspace(beta_start, beta_end, steps, dtype=torch.float64)
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.log1p(-betas).cumsum(0)])


def time_grid(
    schedule: ScheduleLike,
    steps: int,
    grid: str | Sequence[float] | Tensor = "uniform",
    *,
    t_max: float = 1.0,
    safety: float = SAFETY,
) -> Tensor:
    """N + 1 falling times from `t_max` to 0, in float64.

    `grid` names a spacing (uniform, logsnr, edm) or gives the times themselves, in which case `steps` must agree with
    them. The log-SNR and EDM spacings, infinite at 0 and 1, cover [safety, 1 - safety] with their first N times.
    """
    require_count("steps", steps)
    require_between("t_max", t_max, 0, 1, open_low=True)
    if not isinstance(grid, str):
        times = torch.as_tensor(grid, dtype=torch.float64).cpu()
        require(times.ndim == 1 and len(times) == steps + 1, "grid", tuple(times.shape), f"a list of {steps + 1} times")
        falling = bool((times.diff() < 0).all() and times[0] <= 1 and times[-1] == 0)
        require(falling, "grid", times.tolist(), "strictly falling times that start at 1 or below and end at 0")
        return times
    require_choice("grid", grid, GRIDS)
    if grid == "uniform" or steps == 1:
        return torch.linspace(t_max, 0, steps + 1, dtype=torch.float64)
    require_between("safety", safety, 0, 0.5, open_low=True)
    if not isinstance(schedule, Schedule):
        raise BadArgument(f"grid must be uniform or a list of times for a schedule without a log-SNR, got {grid!r}")
    edge = schedule.log_snr(torch.tensor([min(t_max, 1 - safety), safety], dtype=torch.float64))
    if grid == "edm":
        low, high = torch.exp(-edge / 2) ** (1 / 7)
        log_snr = -14 * torch.linspace(float(low), float(high), steps, dtype=torch.float64).log()
    else:
        log_snr = torch.linspace(float(edge[0]), float(edge[1]), steps, dtype=torch.float64)
    times = torch.cat([schedule.time(log_snr), torch.zeros(1, dtype=torch.float64)])
    times[0] = t_max
    return times
