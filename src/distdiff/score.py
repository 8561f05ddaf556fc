r"""Kernel scores of populations, and the discrepancy they induce between distributions.

For m draws :math:`\hat x_j` from a model and an observed :math:`x_0`, the generalized kernel score is estimated by

.. math:: \hat S = \frac{\lambda}{2}\,\underbrace{\frac{1}{m(m-1)} \sum_{j \ne j'} \rho(\hat x_j, \hat x_{j'})}_{
          \text{interaction}} - \underbrace{\frac1m \sum_j \rho(x_0, \hat x_j)}_{\text{confinement}},

unbiasedly, since the interaction leaves out j = j'. Where there are several observations, the confinement is the mean
over them, which has less noise. Confinement pulls the draws to the data, interaction pushes them
apart. lambda = 1 is strictly proper for the characteristic kernels; lambda = 0 with beta = 2 is squared error.

The discrepancy of two distributions is :math:`D_\rho(p, q) = E_{pq}\rho - \frac12 E_{pp}\rho - \frac12 E_{qq}\rho`,
half of the usual MMD squared for rho = -k, and half of the energy distance for the energy kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ._check import require, require_between, require_count
from .kernel import Kernel, distance, points

__all__ = [
    "FeatureMaps",
    "between",
    "confinement",
    "discrepancy",
    "feature_score",
    "interaction",
    "kernel_score",
    "patch_score",
    "score_loss",
    "within",
]

FeatureMaps = Callable[[Tensor], Sequence[Tensor]]
"""Images (k, c, h, w) to maps of features of them, (k, c', h', w') each."""


def confinement(kernel: Kernel, draws: Tensor, x0: Tensor) -> Tensor:
    """Mean of rho(x0, draw) over the population: draws (n, m, *event), x0 (n, *event) or (n, k, *event) to (n,)."""
    return kernel.rho(distance(_events(draws), _events(observed(draws, x0)))).mean((1, 2))


def observed(draws: Tensor, x0: Tensor) -> Tensor:
    """What draws (n, m, *event) are scored against, one observation (n, *event) or several, as (n, k, *event)."""
    several = x0 if x0.ndim == draws.ndim else x0[:, None]
    require(
        several.ndim == draws.ndim and draws.shape[:1] + draws.shape[2:] == several.shape[:1] + several.shape[2:],
        "draws",
        tuple(draws.shape),
        f"of shape (n, m, *event) for x0 of shape {tuple(x0.shape)}",
    )
    return several


def interaction(kernel: Kernel, draws: Tensor) -> Tensor:
    """Mean of rho over ordered pairs of different draws: draws (n, m, *event) to (n,). Needs m >= 2."""
    require(draws.ndim >= 2, "draws", tuple(draws.shape), "of shape (n, m, *event)")
    m = draws.shape[1]
    require(m >= 2, "m", m, "at least 2 draws for an interaction")
    flat = _events(draws)
    row, column = torch.triu_indices(m, m, offset=1, device=draws.device)
    return kernel.rho(distance(flat, flat)[:, row, column]).mean(1)


def kernel_score(kernel: Kernel, draws: Tensor, x0: Tensor, lam: float = 1.0) -> Tensor:
    """The generalized kernel score, (n,), larger for better draws."""
    return -score_loss(kernel, draws, x0, lam)


def score_loss(kernel: Kernel, draws: Tensor, x0: Tensor, lam: float = 1.0) -> Tensor:
    """The negative generalized kernel score of draws (n, m, *event) against x0 (n, *event), of shape (n,).

    With several observations of each, x0 (n, k, *event), the mean of their scores.
    """
    require_population(lam, draws.shape[1] if draws.ndim > 1 else 0)
    loss = confinement(kernel, draws, x0)
    return loss - lam / 2 * interaction(kernel, draws) if lam > 0 else loss


def patch_score(kernel: Kernel, draws: Tensor, x0: Tensor, lam: float, side: int) -> Tensor:
    """The mean loss (n,) of square patches of images, draws (n, m, c, h, w) against x0 (n, c, h, w) or (n, k, c, h, w).

    Patches overlap by half. An energy kernel grows with the size of what it compares; it is scaled to the size of the
    whole image, so that patches of all sides weigh alike.
    """
    require_count("side", side)
    fits = draws.ndim == 5 and side <= min(draws.shape[-2:])
    require(fits, "side", side, f"within images, got {tuple(draws.shape[2:])}")
    stride = max(1, side // 2)

    def cut(images: Tensor) -> Tensor:
        """(..., c, h, w) to (..., patches, c side side)."""
        parts = images.unfold(-2, side, stride).unfold(-2, side, stride)  # (..., c, rows, columns, side, side)
        return parts.movedim(-5, -3).flatten(-5, -4).flatten(-3)

    made, real = (cut(images).transpose(1, 2).flatten(0, 1) for images in (draws, observed(draws, x0)))
    size = (draws[0, 0].numel() / real.shape[-1]) ** (getattr(kernel, "beta", 0.0) / 2)
    return size * score_loss(kernel, made, real, lam).unflatten(0, (len(x0), -1)).mean(1)


def feature_score(kernel: Kernel, draws: Tensor, x0: Tensor, lam: float, features: FeatureMaps) -> Tensor:
    """The mean loss (n,) of the features of images at each position, draws (n, m, c, h, w) against x0 (n, c, h, w).

    The positions of a map are averaged, and then the maps. As with patches, an energy kernel is scaled to the size of
    the image. Images of different distributions may have features of the same one: this score is proper, and strictly
    so only beside that of the images themselves.
    """
    made = features(draws.flatten(0, 1))
    with torch.no_grad():
        real = features(x0)
    total = torch.zeros(len(x0), dtype=torch.promote_types(x0.dtype, torch.float32), device=x0.device)
    for of_draws, of_x0 in zip(made, real, strict=True):
        size = (x0[0].numel() / of_x0[0].numel()) ** (getattr(kernel, "beta", 0.0) / 2)
        total = total + size * patch_score(kernel, of_draws.unflatten(0, draws.shape[:2]), of_x0, lam, 1)
    return total / len(real)


def require_population(lam: float, m: int) -> None:
    """lambda in [0, 1], and at least two draws where there is an interaction."""
    require_between("lam", lam, 0, 1)
    require(m >= (2 if lam > 0 else 1), "m", m, "at least 2 when lam > 0, since the interaction compares two draws")


def discrepancy(kernel: Kernel, x: Tensor, y: Tensor, unbiased: bool = True, block: int = 1024) -> Tensor:
    """D_rho of the distributions behind two sample sets x (p, *event) and y (q, *event): a scalar, in float64.

    The unbiased estimate leaves each point's pair with itself out and can fall below 0; the biased one keeps them.
    Pairs are visited in blocks of at most `block` x `block`, so that memory does not grow with the sets (as long as no
    gradient is asked for).
    """
    require(x.shape[1:] == y.shape[1:] and x.ndim >= 1, "y", tuple(y.shape), f"events like those of x {tuple(x.shape)}")
    for name, value in (("x", x), ("y", y)):
        least = 2 if unbiased else 1
        require(len(value) >= least, name, tuple(value.shape), f"a set of at least {least} points")
    spread = within(kernel, x, unbiased, block) + within(kernel, y, unbiased, block)
    return between(kernel, x, y, block) - spread / 2


def between(kernel: Kernel, x: Tensor, y: Tensor, block: int = 1024) -> Tensor:
    """Mean of rho over all pairs of a point of x and a point of y, in float64."""
    require_count("block", block)
    x, y = points(x), points(y)
    total = torch.zeros((), dtype=_wide(x), device=x.device)
    for a in x.split(block):
        for b in y.split(block):
            total = total + _total(kernel, a, b)
    return total / (len(x) * len(y))


def within(kernel: Kernel, x: Tensor, unbiased: bool = True, block: int = 1024) -> Tensor:
    """Mean of rho over pairs of points of one set, in float64: pairs of different points, or all if not `unbiased`."""
    require_count("block", block)
    x = points(x)
    parts = x.split(block)
    total = torch.zeros((), dtype=_wide(x), device=x.device)
    own = len(x) * kernel.rho(total)
    for i, a in enumerate(parts):
        total = total + _total(kernel, a, a)
        for b in parts[i + 1 :]:
            total = total + 2 * _total(kernel, a, b)
    return (total - own) / (len(x) * (len(x) - 1)) if unbiased else total / len(x) ** 2


def _total(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    return kernel.rho(distance(x, y)).sum(dtype=_wide(x))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def _events(draws: Tensor) -> Tensor:
    """(n, m, *event) to (n, m, d)."""
    return draws.flatten(2) if draws.ndim > 2 else draws.unsqueeze(-1)
