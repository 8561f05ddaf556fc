r"""Scores of samples in low dimension, and of a posterior's spread.

Samples are compared with held-out points by :math:`D_\rho` with the RBF kernel of width 1, which the paper calls MMD
squared. Two sets of the true distribution do not score 0: the biased estimate of 4096 points each is about 2e-4, the
unbiased one scatters around 0. `floor` measures that in the same way, to stand beside every score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._check import require_count
from ..data.toy import Toy
from ..denoiser import Draws
from ..kernel import RBF
from ..sample import Step, sample
from ..score import discrepancy

__all__ = ["Measurement", "floor", "measure", "posterior_spread"]

KERNEL = RBF(1.0)


class Measurement(NamedTuple):
    """Mean over repeats of D_rho, unbiased and biased, and the standard error of the unbiased mean."""

    unbiased: float
    error: float
    biased: float
    repeats: int


def measure(
    denoiser: Draws,
    toy: Toy,
    *,
    steps: int,
    churn: float,
    points: int = 4096,
    repeats: int = 1,
    seed: int = 0,
    callback: Callable[[Step], object] | None = None,
) -> Measurement:
    """D_rho between samples of a denoiser and as many fresh points of the distribution."""
    samples = sample(
        denoiser,
        (points * repeats, 2),
        steps,
        churn,
        seed=seed,
        batch_size=points,
        callback=callback,
        dtype=torch.float32,
    )
    return _compare(samples.cpu().split(points), toy, points, repeats, seed)


def floor(toy: Toy, *, points: int = 4096, repeats: int = 1, seed: int = 0) -> Measurement:
    """D_rho between two sets of the true distribution."""
    generator = torch.Generator().manual_seed(seed + 2**32)
    return _compare([toy.sample(points, generator) for _ in range(repeats)], toy, points, repeats, seed)


def _compare(sets: Any, toy: Toy, points: int, repeats: int, seed: int) -> Measurement:
    generator = torch.Generator().manual_seed(seed + 2**33)
    unbiased, biased = [], []
    for samples in sets:
        real = toy.sample(points, generator)
        unbiased.append(float(discrepancy(KERNEL, samples, real)))
        biased.append(float(discrepancy(KERNEL, samples, real, unbiased=False)))
    mean = sum(unbiased) / repeats
    spread = math.sqrt(sum((v - mean) ** 2 for v in unbiased) / max(repeats - 1, 1) / repeats)
    return Measurement(mean, spread, sum(biased) / repeats, repeats)


def posterior_spread(denoiser: Draws, xt: Tensor, t: float, draws: int = 8, seed: int = 0) -> float:
    """Standard deviation over the draws, averaged over coordinates and over the noisy points xt (n, *event)."""
    require_count("draws", draws, least=2)
    time = torch.full((len(xt),), t, device=xt.device)
    generator = torch.Generator(xt.device).manual_seed(seed)
    with torch.no_grad():
        return float(denoiser.draw(xt, time, draws, None, generator).std(1).mean())
