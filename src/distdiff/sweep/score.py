"""Scores of one run of a sweep, for every number of steps and churn, beside the floor that real data gives.

Both functions return `{"floor", "floor_error", "rows"}`; a row has steps, sampler, churn, score and, where it is
measured several times, the standard error of the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..recipe.config import PointsRun, RunConfig
from .folder import Sweep

__all__ = ["SET", "score_images", "score_points", "score_run"]

SET = 4096
"""Points of a set that D_rho is measured on; more samples are more sets."""

Report = Callable[[str, int], Callable[[int], object]]
"""Of a label and a total; gives a function that is told what is done."""


def score_run(run: Path, config: RunConfig, sweep: Sweep, steps: Sequence[int], report: Report) -> dict[str, Any]:
    """Score a trained run at these numbers of steps."""
    if isinstance(config, PointsRun):
        return score_points(run, steps, sweep.churns, sweep.n, report)
    return score_images(run, steps, sweep.churns, sweep.n, sweep.metric, report)


def score_points(run: Path, steps: Sequence[int], churns: Sequence[float], n: int, report: Report) -> dict[str, Any]:
    """Unbiased D_rho between samples and held-out points, in sets of at most 4096."""
    from ..data.toy import TOYS
    from ..evaluate.points import evaluate_points
    from ..train import load_denoiser

    denoiser, config = load_denoiser(run)
    repeats = max(1, n // SET)
    toy = TOYS[config.data.name]
    found = evaluate_points(denoiser, toy, steps=steps, churns=churns, n=min(n, SET), repeats=repeats, report=report)

    def error(value: float) -> float | None:
        return value if repeats > 1 else None

    rows = [
        {"steps": e.steps, "sampler": e.sampler, "churn": e.churn, "score": e.score.unbiased}
        | {"error": error(e.score.error)}
        for e in found.entries
    ]
    return {"floor": found.floor.unbiased, "floor_error": error(found.floor.error), "rows": rows}


def score_images(
    run: Path, steps: Sequence[int], churns: Sequence[float], n: int, metric: str, report: Report
) -> dict[str, Any]:
    """Fréchet distance between samples and held-out pictures."""
    from ..evaluate.image import evaluate
    from ..hub import load_pipeline
    from ..train.image import held_out, image_config, read_images

    config = image_config(run)
    found = evaluate(
        load_pipeline(run, config.device),
        read_images(config.data),
        held_out(config, "auto"),
        steps=steps,
        churns=churns,
        metric=metric,  # type: ignore[arg-type]
        n=n,
        report=report,
    )
    rows = [
        {"steps": e.steps, "sampler": e.sampler, "churn": e.churn, "score": e.score.frechet, "error": None}
        for e in found.entries
    ]
    return {"floor": found.floor.frechet, "floor_error": None, "rows": rows}
