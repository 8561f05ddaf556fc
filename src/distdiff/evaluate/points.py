r"""Scores of samples in low dimension, and of a posterior's spread.

Samples are compared with held-out points by :math:`D_\rho` with the RBF kernel of width 1, which the paper calls MMD
squared. Two sets of the true distribution do not score 0: the biased estimate of 4096 points each is about 2e-4, the
unbiased one scatters around 0. `floor` measures that in the same way, to stand beside every score. `evaluate_points`
scores a model against the number of steps, the churn and the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._check import require, require_between, require_count
from ..baseline.samplers import require_sampler, sample_with
from ..data.toy import Toy
from ..denoiser import Draws
from ..kernel import RBF
from ..random import stream
from ..sample import Step
from ..score import between, within
from .setting import Setting, check, plan

__all__ = [
    "Measurement",
    "PointEntry",
    "PointEvaluation",
    "Reference",
    "best_points",
    "evaluate_points",
    "floor",
    "measure",
    "posterior_spread",
]

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
    churn: float | None = None,
    sampler: str = "distributional",
    grid: str = "uniform",
    repeats: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Measurement:
    """D_rho between samples of a denoiser and as many held-out points, over the first `repeats` of the reference.

    `sampler` is one of `distdiff.baseline.SAMPLERS`, `churn` that of the distributional one. Samples are drawn
    `batch_size` at once, by default as many as a held-out set has points.
    """
    require_between("repeats", repeats, 1, len(reference.sets))
    shape, size = (reference.points * repeats, 2), reference.points if batch_size is None else batch_size
    x = sample_with(denoiser, shape, steps, sampler, churn, grid, seed, batch_size=size, callback=callback)
    return reference.compare(x.cpu().split(reference.points))


@dataclass(frozen=True)
class PointEntry(Setting):
    """One row of a table."""

    score: Measurement


@dataclass
class PointEvaluation:
    entries: list[PointEntry]
    floor: Measurement
    """The score of further points of the true distribution: what a perfect model would get."""
    settings: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        rows = [{"steps": e.steps, "sampler": e.sampler, "churn": e.churn} | e.score._asdict() for e in self.entries]
        return {"settings": self.settings, "floor": self.floor._asdict(), "scores": rows}


def best_points(entries: Sequence[PointEntry]) -> list[PointEntry]:
    """The entry with the least unbiased distance at each number of steps."""
    steps = sorted({entry.steps for entry in entries})
    return [min((e for e in entries if e.steps == n), key=lambda e: e.score.unbiased) for n in steps]


def evaluate_points(
    denoiser: Draws,
    toy: Toy,
    *,
    steps: Sequence[int],
    churns: Sequence[float] = (1.0,),
    samplers: Sequence[str] = ("distributional",),
    n: int = 4096,
    repeats: int = 4,
    seed: int = 0,
    grid: str = "uniform",
    batch_size: int | None = None,
    report: Callable[[str, int], Callable[[int], object]] = lambda label, total: lambda done: None,
) -> PointEvaluation:
    """Score a model of points: `repeats` sets of n samples each against as many held-out points.

    Sample i uses seed + i whatever the settings. `report`, called with a label and a total, gives a function that is
    told the progress.
    """
    check(steps, churns, samplers, n, n if batch_size is None else batch_size)
    for name in samplers:
        require_sampler(name, denoiser)
    reference = Reference(toy, points=n, repeats=repeats, seed=seed)

    def score(setting: Setting) -> PointEntry:
        count, name, churn = setting.steps, setting.sampler, setting.churn
        tell, done = report(f"sampling, {count} steps, {setting.name}", count * -(-n * repeats // (batch_size or n))), 0

        def callback(_: Step) -> None:
            nonlocal done
            done += 1
            tell(done)

        found = measure(
            denoiser,
            reference,
            steps=count,
            churn=churn,
            sampler=name,
            grid=grid,
            repeats=repeats,
            seed=seed,
            batch_size=batch_size,
            callback=callback,
        )
        return PointEntry(count, name, churn, found)

    entries = [score(setting) for setting in plan(steps, churns, samplers)]
    how = {"metric": "D_rho, RBF kernel of width 1", "n": n, "repeats": repeats, "seed": seed, "grid": grid}
    return PointEvaluation(entries, floor(toy, reference, seed), how)


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
