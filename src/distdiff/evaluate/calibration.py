r"""Whether draws are as uncertain as they should be, direction by direction.

Given x_t, the data point behind it and m draws from the exact posterior are exchangeable. With the draws' mean
:math:`\bar x` and the posterior's covariance V, averaged over x_t,

.. math:: \mathrm{Cov}(x_0 - \bar x) = (1 + \tfrac1m)\, V, \qquad \mathrm{Cov}(\hat x_j - \bar x) = (1 - \tfrac1m)\, V.

Along any direction the second, so corrected, over the first is 1; more means draws that are too wide, less that they
are too narrow or their mean is wrong. The directions looked at are the principal ones of :math:`x_0 - \bar x`, from the
widest to the narrowest: scores of whole images hardly see the narrow ones. They are found on every other data point and
measured on the rest, for a direction is wider on the points that it was chosen by.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._check import require, require_between, require_count
from ..denoiser import Draws
from ..random import randn
from ..schedule import add_noise

__all__ = ["Calibration", "calibration"]


class Calibration(NamedTuple):
    """Groups of principal directions, widest first."""

    std: Tensor
    """Standard deviation of x_0 around the mean of the draws, (groups,)."""
    ratio: Tensor
    """Variance of the draws over that of x_0, (groups,); 1 for an exact posterior."""


@torch.no_grad()
def calibration(
    denoiser: Draws,
    x0: Tensor,
    t: float,
    cond: Any = None,
    *,
    draws: int = 8,
    groups: int = 8,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Spread of the draws against that of the data x0 (n, *event), noised to t; about as many directions a group."""
    require_between("t", t, 0, 1)
    require_count("draws", draws, least=2)
    dimensions = x0[0].numel() if len(x0) else 0
    require_count("groups", groups)
    require(groups <= dimensions, "groups", groups, f"at most {dimensions}, the numbers of a data point")
    require(len(x0) > 2 * dimensions, "x0", tuple(x0.shape), "more than two data points for each of their numbers")
    times = torch.full((len(x0),), t, device=x0.device)
    xt = add_noise(denoiser.schedule, x0, times, randn(x0.shape, generator=generator, like=x0))
    made = denoiser.draw(xt, times, draws, cond, generator).flatten(2).cpu().double()  # not every device has doubles
    mean = made.mean(1)
    error, spread = x0.flatten(1).cpu().double() - mean, made - mean[:, None]
    directions = torch.linalg.eigh(error[::2].T @ error[::2]).eigenvectors.flip(1)
    real = (error[1::2] @ directions).square().mean(0) * (draws / (draws + 1))
    model = (spread[1::2] @ directions).square().mean((0, 1)) * (draws / (draws - 1))
    parts = list(zip(real.tensor_split(groups), model.tensor_split(groups), strict=True))
    return Calibration(
        torch.stack([a.mean().sqrt() for a, _ in parts]), torch.stack([b.sum() / a.sum() for a, b in parts])
    )
