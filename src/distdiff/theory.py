r"""The paper's closed forms: the Gaussian analysis, the signal-to-noise study, the diffusion limits of the kernels.

**Gaussian target.** Among Gaussians, the generalized energy score of data :math:`N(\mu, \sigma^2 I)` is best at the
right mean and the variance :math:`f(\lambda, \beta)\, \sigma^2` with :math:`f = 1 / (2 \lambda^{-2/(2-\beta)} - 1)`. In
a diffusion model every posterior has its variance shrunk by that factor, and one sampling step turns
:math:`N(\mu_t, \sigma_t^2)` into

.. math:: \mu_s = (c_{xt} + c_{x0} r) \mu_t + c_{x0} (1 - \alpha_t r) \mu, \qquad
          v_s = \mathrm{std}^2 + f v c_{x0}^2 + v_t (c_{xt} + c_{x0} r)^2.

**Signal to noise.** For data :math:`N(0, \sigma^2 I)` and the true posterior, the interaction of the conditional loss
is, at time t and for m large, proportional to :math:`h(t) = w_t v_t^{\beta/2}`, that of the (additive) joint loss to
:math:`h(t) = w_t (\sigma^\beta + (\alpha_t^2\sigma^2 + \sigma_t^2)^{\beta/2})`. Over uniform t, a batch of n points
estimates it with signal-to-noise ratio :math:`n\, E[h]^2 / \mathrm{Var}[h]`.

**Diffusion limits.** :math:`f\, D_\rho(p, q) \to |E_p X - E_q X|^2` as the kernel widens, with f = 2 sigma^2 for RBF
and f = 2 c^{3/2} for the inverse multiquadric; the exponential kernel with f = sigma tends to the energy distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import integrate, optimize
from torch import Tensor

from ._check import BadArgument, require, require_between, require_count, require_positive
from .kernel import RBF, Energy, Exponential, InverseMultiquadric, Kernel
from .loss import NoWeighting, Weighting
from .posterior import GaussianPosterior
from .schedule import FlowMatching, Schedule
from .transition import transition

__all__ = [
    "DiffusionLimit",
    "GaussianPath",
    "conditional_snr",
    "diffusion_limit",
    "gaussian_path",
    "joint_snr",
    "snr_crossing",
    "variance_factor",
]


def variance_factor(lam: Any, beta: Any) -> Any:
    """f(lambda, beta), for numbers, arrays or tensors: lambda in [0, 1], beta in (0, 2].

    The factor is 0 at lambda = 0 and 1 at lambda = 1. At beta = 2 it is 0 for every lambda < 1: there the score sees
    the mean only, and the slightest pull of the confinement wins.
    """
    tensor = isinstance(lam, Tensor) or isinstance(beta, Tensor)
    lam, beta = (np.asarray(v.detach().cpu() if isinstance(v, Tensor) else v, dtype=np.float64) for v in (lam, beta))
    require(bool(((lam >= 0) & (lam <= 1)).all()), "lam", lam.tolist(), "in [0, 1]")
    require(bool(((beta > 0) & (beta <= 2)).all()), "beta", beta.tolist(), "in (0, 2]")
    with np.errstate(divide="ignore", over="ignore"):
        factor = 1 / (2 * np.where(lam == 1, 1.0, lam ** (-2 / (2 - beta))) - 1)
    return torch.from_numpy(np.asarray(factor)) if tensor else factor[()]


class GaussianPath(NamedTuple):
    """Mean and variance of the sampler's state at each time of its grid, the last being those of the samples."""

    times: Tensor
    mean: Tensor
    variance: Tensor


def gaussian_path(
    times: Sequence[float] | Tensor,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    factor: float = 1.0,
    churn: float = 1.0,
    schedule: Schedule | None = None,
) -> GaussianPath:
    """The sampler's recursion for data N(mean, std**2) and posteriors whose variance is `factor` times the true one.

    `times` falls and ends at 0, as `distdiff.time_grid` gives it; the start is pure noise of variance sigma_t**2.
    """
    schedule = FlowMatching() if schedule is None else schedule
    times = torch.as_tensor(times, dtype=torch.float64)
    require(times.ndim == 1 and len(times) >= 2, "times", tuple(times.shape), "two times or more")
    posterior = GaussianPosterior(mean, std, factor=factor, schedule=schedule)
    means, variances = [torch.zeros((), dtype=torch.float64)], [schedule(times[0])[1] ** 2]
    for t, s in pairwise(times):
        move = transition(schedule, t, s, churn)
        gain = posterior.gain(t)
        slope = move.c_xt + move.c_x0 * gain
        means.append(slope * means[-1] + move.c_x0 * (1 - schedule(t)[0] * gain) * mean)
        variances.append(move.std**2 + move.c_x0**2 * posterior.variance(t) + slope**2 * variances[-1])
    return GaussianPath(times, torch.stack(means), torch.stack(variances))


def conditional_snr(
    std: float, weighting: Weighting | None = None, *, beta: float = 1.0, n: int = 1, schedule: Schedule | None = None
) -> float:
    """Signal-to-noise ratio of the conditional interaction, m large, for data N(0, std**2 I)."""
    require_positive("std", std)
    schedule = FlowMatching() if schedule is None else schedule
    posterior = GaussianPosterior(0.0, std, schedule=schedule)
    return _snr(lambda t: posterior.variance(t) ** (beta / 2), weighting, beta, n, schedule)


def joint_snr(
    std: float, weighting: Weighting | None = None, *, beta: float = 1.0, n: int = 1, schedule: Schedule | None = None
) -> float:
    """Signal-to-noise ratio of the (additive) joint interaction, m large, for data N(0, std**2 I)."""
    require_positive("std", std)
    schedule = FlowMatching() if schedule is None else schedule

    def spread(t: Tensor) -> Tensor:
        alpha, sigma = schedule(t)
        return std**beta + ((alpha * std) ** 2 + sigma**2) ** (beta / 2)

    return _snr(spread, weighting, beta, n, schedule)


def _snr(
    interaction: Callable[[Tensor], Tensor],
    weighting: Weighting | None,
    beta: float,
    n: int,
    schedule: Schedule,
) -> float:
    require_between("beta", beta, 0, 2, open_low=True)
    require_count("n", n)
    weight = NoWeighting() if weighting is None else weighting

    def integral(value: Callable[[float], float]) -> float:
        return integrate.quad(value, 0, 1, limit=200, epsabs=1e-13, epsrel=1e-10, points=(0.01, 0.1, 0.9))[0]

    def h(t: float) -> float:
        time = torch.tensor(t, dtype=torch.float64)
        return float(weight(schedule, time) * interaction(time))

    mean = integral(h)
    variance = integral(lambda t: (h(t) - mean) ** 2)
    return n * mean**2 / variance if variance > 1e-24 * mean**2 else math.inf


def snr_crossing(
    weighting: Weighting | None = None,
    *,
    beta: float = 1.0,
    schedule: Schedule | None = None,
    bracket: tuple[float, float] = (1e-2, 1e2),
) -> float | None:
    """The std from which on the conditional interaction is the easier one to estimate.

    None where the bracket holds no such std: with little or no weighting it is the joint one that wins for wide data.
    """

    def excess(log_std: float) -> float:
        std = float(np.exp(log_std))
        ratios = [snr(std, weighting, beta=beta, schedule=schedule) for snr in (conditional_snr, joint_snr)]
        return float(np.log(ratios[0] / ratios[1]))

    low, high = np.log(bracket)
    if not excess(low) < 0 < excess(high):
        return None
    return float(np.exp(optimize.brentq(excess, low, high, xtol=1e-10)))


class DiffusionLimit(NamedTuple):
    """factor * D_kernel tends to D_limit as the kernel widens."""

    factor: float
    limit: Kernel


def diffusion_limit(kernel: Kernel) -> DiffusionLimit:
    """What a kernel's discrepancy becomes for wide kernels. `Energy(beta=2)` stands for |E_p X - E_q X|**2."""
    if isinstance(kernel, RBF):
        return DiffusionLimit(2 * kernel.sigma**2, Energy(2))
    if isinstance(kernel, InverseMultiquadric):
        return DiffusionLimit(2 * kernel.c**1.5, Energy(2))
    if isinstance(kernel, Exponential):
        return DiffusionLimit(kernel.sigma, Energy(1))
    raise BadArgument(f"kernel must be one of RBF, InverseMultiquadric, Exponential, got {kernel!r}")
