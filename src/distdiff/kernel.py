r"""Negative definite kernels rho, functions of the Euclidean distance r = |x - x'| of two events.

========================  ==============================================  ==========================
``Energy(beta)``          :math:`r^\beta`, beta in (0, 2]                 diffusion loss at beta = 2
``InverseMultiquadric``   :math:`-(r^2 + c)^{-1/2}`                       as c grows
``RBF(sigma)``            :math:`-\exp(-r^2 / 2\sigma^2)`                 as sigma grows
``Exponential(sigma)``    :math:`-\exp(-r / \sigma)`                      energy distance, beta = 1
========================  ==============================================  ==========================

A positive definite kernel k enters as rho = -k. Distances come from direct differences in float32 or better, never
from a Gram expansion, whose cancellation would leak into the interaction of close draws. Gradients are finite
everywhere: at r = 0, where rho may have a cusp, the gradient is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ._check import require, require_between, require_positive

__all__ = ["RBF", "Energy", "Exponential", "InverseMultiquadric", "Kernel", "distance", "median_distance"]


def distance(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distances (..., p, q) of events x (..., p, d) and y (..., q, d)."""
    wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return torch.cdist(x.to(wide), y.to(wide), compute_mode="donot_use_mm_for_euclid_dist")


def points(x: Tensor) -> Tensor:
    """Events (n, *event) as vectors (n, d)."""
    return x.flatten(1) if x.ndim > 1 else x.unsqueeze(-1)


class Kernel(ABC):
    """rho as a function of distance. `kernel(x, y)` takes events of any shape, paired along the first axis."""

    @abstractmethod
    def rho(self, r: Tensor) -> Tensor:
        """rho at distances r >= 0, elementwise, with a finite gradient at r = 0."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """rho(x_i, y_i) for x and y (n, *event), of shape (n,)."""
        return self.rho(distance(points(x)[:, None], points(y)[:, None])[:, 0, 0])


@dataclass(frozen=True)
class Energy(Kernel):
    """r**beta. With `scaled`, (r**beta - 1) / beta.

    The scaled form tends to log r as beta shrinks, while r**beta itself tends to a constant and its gradients to 0,
    where Adam's epsilon and float32 swallow them. It changes a loss by the factor 1 / beta and a constant, no more.
    """

    beta: float = 1.0
    scaled: bool = False

    def __post_init__(self) -> None:
        require_between("beta", self.beta, 0, 2, open_low=True)

    def rho(self, r: Tensor) -> Tensor:
        if self.beta == 2 and not self.scaled:
            return r.square()
        apart = r > torch.finfo(r.dtype).tiny ** 0.4
        safe = torch.where(apart, r, 1.0)
        if self.scaled:
            return torch.where(apart, torch.expm1(self.beta * safe.log()), -1.0) / self.beta
        return torch.where(apart, safe.pow(self.beta), 0.0)


@dataclass(frozen=True)
class InverseMultiquadric(Kernel):
    """-(r**2 + c)**-1/2."""

    c: float = 1.0

    def __post_init__(self) -> None:
        require_positive("c", self.c)

    def rho(self, r: Tensor) -> Tensor:
        return -torch.rsqrt(r.square() + self.c)


@dataclass(frozen=True)
class RBF(Kernel):
    """-exp(-r**2 / (2 sigma**2))."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)

    def rho(self, r: Tensor) -> Tensor:
        return -torch.exp(r.square() * (-0.5 / self.sigma**2))

    @classmethod
    def from_median(cls, median: float, gamma: float = 1.0) -> RBF:
        """sigma**2 = gamma * median**2 (see `median_distance`)."""
        require_positive("gamma", gamma)
        return cls(sigma=median * gamma**0.5)


@dataclass(frozen=True)
class Exponential(Kernel):
    """-exp(-r / sigma)."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)

    def rho(self, r: Tensor) -> Tensor:
        return -torch.exp(r * (-1 / self.sigma))

    @classmethod
    def from_median(cls, median: float, gamma: float = 1.0) -> Exponential:
        """sigma = gamma * median (see `median_distance`)."""
        require_positive("gamma", gamma)
        return cls(sigma=median * gamma)


def median_distance(batches: Tensor | Iterable[Tensor]) -> float:
    """Median distance of two different points of the same batch, over all batches (n, *event) given.

    One tensor counts as one batch; keep batches near 512 points (the paper takes 100 of them), as a batch of n
    contributes n (n - 1) / 2 distances.
    """
    pooled = []
    for batch in [batches] if isinstance(batches, Tensor) else batches:
        flat = points(batch)
        row, column = torch.triu_indices(len(flat), len(flat), offset=1, device=flat.device)
        pooled.append(distance(flat, flat)[row, column])
    require(bool(pooled) and sum(map(len, pooled)) > 0, "batches", "no pair of points", "batches of two points or more")
    return float(torch.cat(pooled).median())
