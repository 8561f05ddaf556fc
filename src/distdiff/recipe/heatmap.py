"""The paper's heatmaps over lambda and beta, and the same at sizes that two CPU cores manage.

`paper` holds the grid of its appendix, scored by FID at its numbers of steps. `small` takes a coarser grid and shorter
training: enough to see where the good region lies and how it moves with the number of steps, not to compare scores
with those of a whole training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["HEATMAPS", "HeatmapStudy"]


@dataclass(frozen=True)
class HeatmapStudy:
    """What one `distdiff reproduce heatmap-NAME` trains and measures."""

    recipe: str
    grid: dict[str, tuple[Any, ...]]
    """Settings to vary, by their dotted names; all combinations are trained."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the recipe changed for all runs."""
    steps: tuple[int, ...] = (2, 4, 8, 10, 30, 50, 100)
    """Numbers of sampling steps."""
    churns: tuple[float, ...] = (0.0, 0.5, 1.0)
    """Churns tried for each; a cell shows its best."""
    metric: str = "fd"
    n: int = 2048
    """Samples a score."""
    seeds: tuple[int, ...] = (0,)
    workers: int = 2
    """Runs at once."""
    mask: float | None = None
    """Scores above it are greyed; by default those above 3 times the best of their panel."""


_PAPER_GRID: dict[str, tuple[Any, ...]] = {
    "loss.lam": (0.0, 0.1, 0.5, 1.0),
    "loss.beta": (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 1.5, 1.99, 2.0),
}
_PAPER_CHURNS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SMOKE_GRID: dict[str, tuple[Any, ...]] = {"loss.lam": (0.0, 1.0), "loss.beta": (0.5, 1.0)}
_AS_PAPER: dict[str, Any] = {
    "network.prediction": "x0",
    "network.branch_at": 0,
    "network.noise_levels": 0,
    "loss.m": 4,
    "loss.anchor": 0.0,
    "loss.targets": 1,
    "loss.weighting": "none",
}
_SHORT: dict[str, Any] = {"tracker": "none", "preview.every": 0, "log_every": 100, "save_every": 100}

HEATMAPS: dict[str, dict[str, HeatmapStudy]] = {
    "digits": {
        "paper": HeatmapStudy("digits", _PAPER_GRID, workers=1, churns=_PAPER_CHURNS),
        "small": HeatmapStudy(
            "digits",
            {"loss.lam": (0.0, 0.5, 0.8, 1.0), "loss.beta": (0.5, 1.0)},
            _SHORT | _AS_PAPER | {"steps": 500, "loss.warmup": 150},
            steps=(2, 4, 8, 16, 50),
            churns=(0.0, 1.0),
            n=720,
        ),
        "smoke": HeatmapStudy("digits", _SMOKE_GRID, steps=(1, 2), churns=(0.0, 1.0), n=64),
    },
    "checkerboard": {
        "paper": HeatmapStudy("checkerboard", _PAPER_GRID, workers=1, metric="mmd", n=16384, churns=_PAPER_CHURNS),
        "small": HeatmapStudy(
            "checkerboard",
            {"loss.lam": (0.0, 0.5, 0.8, 0.9, 1.0), "loss.beta": (0.1, 0.5, 1.0)},
            {"steps": 2000, "loss.m": 16, "save_every": 1000},
            steps=(2, 4, 8, 16, 50),
            churns=(0.0, 1.0),
            metric="mmd",
            n=8192,
        ),
        "smoke": HeatmapStudy("checkerboard", _SMOKE_GRID, steps=(1, 2), churns=(0.0, 1.0), metric="mmd", n=256),
    },
    "cifar10": {
        "paper": HeatmapStudy(
            "cifar10",
            _PAPER_GRID,
            steps=(10, 30, 50, 70, 90, 100),
            churns=_PAPER_CHURNS,
            metric="fid",
            n=50_000,
            workers=1,
            mask=9.8,
        ),
        "small": HeatmapStudy(
            "cifar10",
            {"loss.lam": (0.0, 0.5, 1.0), "loss.beta": (0.1, 1.0, 2.0)},
            _SHORT | {"steps": 2000, "save_every": 500},
            steps=(4, 8, 16, 50),
            churns=(0.0, 1.0),
        ),
        "smoke": HeatmapStudy("cifar10", _SMOKE_GRID, steps=(1, 2), churns=(0.0, 1.0), n=64),
    },
}
"""Studies by name and scale; the recipe is run at the same scale."""
