r"""Scores of samples in low dimension, and of a posterior's spread.

Samples are compared with held-out points by :math:`D_\rho` with the RBF kernel of width 1, which the paper calls MMD
squared. Two sets of the true distribution do not score 0: the biased estimate of 4096 points each is about 2e-4, the
unbiased one scatters around 0. `floor` measures that in the same way, to stand beside every score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .._check import require, require_between, require_count
from ..data.toy import Toy
from ..denoiser import Draws
from ..kernel import RBF
from ..random import stream
from ..sample import Step, sample
from ..score import between, within

__all__ = ["Measurement", "Reference", "floor", "measure", "posterior_spread"]

KERNEL = RBF(1.0)


class Measurement(NamedTuple):
    """Mean over repeats of D_rho, unbiased and biased, and the standard error of the unbiased mean."""

    unbiased: float
    error: float
    biased: float
    repeats: int


class Reference:
    """Held-out sets of a distribution to measure samples against, their own share of D_rho computed once."""

    def __init__(self, toy: Toy, *, points: int = 4096, repeats: int = 1, seed: int = 0) -> None:
        require_count("points", points, least=2)
        require_count("repeats", repeats)
        generator = torch.Generator().manual_seed(stream(seed, "held-out"))
        self.points = points
        self.sets = [toy.sample(points, generator) for _ in range(repeats)]
        self.own = [float(within(KERNEL, real)) for real in self.sets]

    def compare(self, sets: Iterable[Tensor]) -> Measurement:
        """D_rho of the k-th of the given sets, of equally many points, and the k-th held-out set."""
        n, at_zero = self.points, float(KERNEL.rho(torch.zeros(())))
        unbiased, biased = [], []
        for samples, real, own in zip(sets, self.sets, self.own, strict=False):  # fewer sets than held out will do
            require(len(samples) == n, "samples", len(samples), f"{n} points, as many as were held out")
            across, inside = float(between(KERNEL, samples, real)), float(within(KERNEL, samples))
            unbiased.append(across - (inside + own) / 2)
            biased.append(across - ((n - 1) * (inside + own) / 2 + at_zero) / n)
        repeats, mean = len(unbiased), sum(unbiased) / len(unbiased)
        error = math.sqrt(sum((v - mean) ** 2 for v in unbiased) / max(repeats - 1, 1) / repeats)
        return Measurement(mean, error, sum(biased) / repeats, repeats)


def measure(
    denoiser: Draws,
    reference: Reference,
    *,
    steps: int,
    churn: float,
    repeats: int = 1,
    seed: int = 0,
    callback: Callable[[Step], object] | None = None,
) -> Measurement:
    """D_rho between samples of a denoiser and as many held-out points, over the first `repeats` of the reference."""
    require_between("repeats", repeats, 1, len(reference.sets))
    shape = (reference.points * repeats, 2)
    x = sample(denoiser, shape, steps, churn, seed=seed, batch_size=reference.points, callback=callback)
    return reference.compare(x.cpu().split(reference.points))


def floor(toy: Toy, reference: Reference, seed: int = 0) -> Measurement:
    """D_rho between other sets of the true distribution and the held-out ones."""
    generator = torch.Generator().manual_seed(stream(seed, "floor"))
    return reference.compare(toy.sample(reference.points, generator) for _ in reference.sets)


def posterior_spread(denoiser: Draws, xt: Tensor, t: float, draws: int = 8, seed: int = 0) -> float:
    """Standard deviation over the draws, averaged over coordinates and over the noisy points xt (n, *event)."""
    require_count("draws", draws, least=2)
    time = torch.full((len(xt),), t, device=xt.device)
    generator = torch.Generator(xt.device).manual_seed(seed)
    with torch.no_grad():
        return float(denoiser.draw(xt, time, draws, None, generator).std(1).mean())
