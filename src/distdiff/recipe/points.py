"""The paper's two experiments in the plane: a mixture of two Gaussians, and a checkerboard.

`paper` holds the settings of its appendix. `small` narrows the 2048-wide time branch, shortens training and, since
training is short, takes a larger learning rate, lets it decay and averages the weights for longer; it also drops the
sigmoid weighting, which leaves t = 0.9 with 1 % of the weight of t = 0.1 and so starves the noisy times that few-step
sampling stands on (`benchmarks/weighting.py` measures it). `smoke` runs in seconds and is good for nothing but tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from .config import FLOWS, PointsRun

__all__ = ["POINT_PEERS", "STUDIES", "PointStudy"]

Toy = Literal["mixture2d", "checkerboard"]

PAPER = PointsRun()
SMALL = replace(
    PAPER,
    steps=10_000,
    network=replace(PAPER.network, time_width=64),
    loss=replace(PAPER.loss, weighting="none"),
    optim=replace(PAPER.optim, lr=6e-3, decay="cosine", ema=0.999),
)
SMOKE = replace(
    SMALL,
    steps=20,
    log_every=10,
    data=replace(SMALL.data, points=1024),
    network=replace(SMALL.network, width=16, time_width=16),
    loss=replace(SMALL.loss, m=4),
)


CLASSICAL_LR = 1e-3
"""The largest learning rate of a classical model: at that of `small` two seeds of three did not learn."""


@dataclass(frozen=True)
class PointStudy:
    """What one `distdiff reproduce` of a 2D experiment trains and measures."""

    models: dict[str, PointsRun]
    """Trained models by name: distributional, its twin with beta = 2 and lambda = 0, and diffusion."""
    steps: tuple[int, ...]
    """Numbers of sampling steps."""
    churns: tuple[float, ...] = (0.0, 0.5, 1.0)
    """Churns tried for each. Classical models are shown at their best, the distributional model at churn 1."""
    points: int = 4096
    """Samples and held-out points a measurement."""
    repeats: int = 4
    """Independent measurements, of which mean and standard error are reported."""
    posterior_times: tuple[float, ...] = ()
    """Times at which the posterior's spread is compared with the exact one."""
    posterior_draws: int = 128
    """Draws a noisy point for that comparison."""
    paper_draws: int = 8
    """Draws a noisy point in the paper's protocol, whose small samples understate the spread of two modes."""
    cloud_times: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Times of the pictured posteriors."""
    cloud_draws: int = 4096
    """Draws in each picture."""
    seed: int = 0
    """Seed of the samples and of the held-out points."""


def _models(base: PointsRun, data: Toy, *names: str) -> dict[str, PointsRun]:
    base = replace(base, data=replace(base.data, name=data))
    classical = replace(base, network=replace(base.network, noise_dim=0, prediction="velocity"))
    regression = replace(classical, loss=replace(base.loss, kind="regression", lam=0.0, m=1))
    diffusion = replace(regression, optim=replace(base.optim, lr=min(base.optim.lr, CLASSICAL_LR)))
    known = {
        "distributional": base,
        "twin": replace(base, loss=replace(base.loss, beta=2.0, lam=0.0, weighting="sigmoid")),
        "diffusion": diffusion,
        "ot-flow": replace(regression, loss=replace(regression.loss, kind="ot-flow")),
        "mean-flow": replace(
            regression,
            network=replace(regression.network, spans=True),
            loss=replace(regression.loss, kind="mean-flow", weighting="none", power=0.0),
        ),
    }
    return {name: known[name] for name in names}


_TIMES = tuple(round(0.05 * k, 2) for k in range(1, 20))
_MIXTURE = ("distributional", "twin", "diffusion")
_BOARD = ("distributional", "diffusion")

STUDIES: dict[str, dict[str, PointStudy]] = {
    "mixture2d": {
        "paper": PointStudy(_models(PAPER, "mixture2d", *_MIXTURE), (1, 2, 5, 10, 20, 50, 100), posterior_times=_TIMES),
        "small": PointStudy(_models(SMALL, "mixture2d", *_MIXTURE), (1, 2, 5, 10, 20, 50, 100), posterior_times=_TIMES),
        "smoke": PointStudy(
            _models(SMOKE, "mixture2d", *_MIXTURE),
            (1, 2),
            points=128,
            repeats=2,
            posterior_times=(0.2, 0.5, 0.9),
            posterior_draws=8,
            cloud_draws=64,
        ),
    },
    "checkerboard": {
        "paper": PointStudy(_models(PAPER, "checkerboard", *_BOARD), (5, 10, 50, 100, 1000)),
        "small": PointStudy(_models(SMALL, "checkerboard", *_BOARD), (5, 10, 50, 100, 1000)),
        "smoke": PointStudy(_models(SMOKE, "checkerboard", *_BOARD), (2, 5), points=128, repeats=2),
    },
}

POINT_PEERS: dict[str, dict[str, PointsRun]] = {
    f"{data}-{peer}": {
        scale: _models(base, data, peer)[peer] for scale, base in (("paper", PAPER), ("small", SMALL), ("smoke", SMOKE))
    }
    for data in get_args(Toy)
    for peer in FLOWS
}
"""Peers on the same data, network, steps, batch and learning rate as the classical model of a study.

MeanFlow goes without its adaptive weight here; see `distdiff.peer.mean_flow`.
"""
