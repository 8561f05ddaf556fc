"""The paper's two studies in closed form: the Gaussian analysis and the signal-to-noise ratios."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["GAUSSIAN", "SNR", "GaussianStudy", "SnrStudy"]


@dataclass(frozen=True)
class GaussianStudy:
    std: float = 2.0
    """Target N(0, std**2)."""
    lam: float = 0.5
    beta: float = 0.2
    steps: tuple[int, ...] = tuple(range(5, 101, 5))
    """Numbers of sampling steps."""
    churn: float = 1.0
    resolution: int = 101
    """Points along each axis of the map of f(lambda, beta)."""
    samples: int = 20_000
    """Samples drawn through the sampler to check each fourth of the recursions."""
    seed: int = 0


@dataclass(frozen=True)
class SnrStudy:
    biases: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Biases of the sigmoid weighting."""
    variances: tuple[float, float] = (0.01, 4.0)
    """Range of the data's variance."""
    resolution: int = 120
    groups: int = 400
    """Simulated batches of 64 points by which the formulas are checked."""
    population: int = 64
    """Draws a point in those simulations."""
    seed: int = 0


GAUSSIAN = {
    "paper": GaussianStudy(),
    "small": GaussianStudy(),
    "smoke": replace(GaussianStudy(), resolution=21, samples=500, steps=(5, 10)),
}
SNR = {
    "paper": SnrStudy(),
    "small": SnrStudy(),
    "smoke": replace(SnrStudy(), resolution=8, groups=8, population=8),
}
