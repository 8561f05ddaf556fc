"""`distdiff reproduce NAME`: an experiment of the paper, from its settings to figures, numbers and a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._check import require_choice
from ..recipe import SCALES
from . import checkerboard, complexity, gaussian, heatmap, images, mixture2d, robot, snr, table

__all__ = ["EXPERIMENTS", "reproduce"]

EXPERIMENTS: dict[str, Callable[..., None]] = {
    "gaussian": gaussian.run,
    "snr": snr.run,
    "mixture2d": mixture2d.run,
    "checkerboard": checkerboard.run,
    "complexity": complexity.run,
    **images.EXPERIMENTS,
    **heatmap.EXPERIMENTS,
    **robot.EXPERIMENTS,
    **table.EXPERIMENTS,
}


def reproduce(name: str, scale: str, out: Path, **options: Any) -> Path:
    """Run one experiment into a folder; the path of its report. Tables and robots take options (see their `run`)."""
    require_choice("experiment", name, EXPERIMENTS)
    require_choice("scale", scale, SCALES)
    EXPERIMENTS[name](scale, out, **options)
    return out / "report.md"
