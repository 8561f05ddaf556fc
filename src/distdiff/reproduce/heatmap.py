"""The paper's heatmaps: how good every lambda and beta is at each number of steps, from scratch.

A sweep of a recipe with its classical twin, the figures, and whether the best lambda falls as the number of steps
grows. The sweep lies in a folder of its own beside the report; what is finished there is not run again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from .._check import FailedRuns
from ..recipe import HEATMAPS, HeatmapStudy
from .record import Record

__all__ = ["EXPERIMENTS"]


def run(name: str, scale: str, out: Path) -> None:
    from ..sweep import Sweep, load_sweep, run_sweep
    from ..sweep.figures import best_values, draw_figures, split
    from ..sweep.report import best_table, failures, findings, lambda_falls
    from ..sweep.run import check_sweep, classical_grid

    study: HeatmapStudy = HEATMAPS[name][scale]
    seeds = {"seed": study.seeds}
    sweep = Sweep(
        study.recipe,
        scale,
        study.settings,
        study.metric,
        study.n,
        study.churns,
        study.steps,
        (study.grid | seeds, classical_grid(study.recipe, scale, study.settings) | seeds),
    )
    check_sweep(sweep)
    record = Record(f"heatmap-{name}", scale, study, out)
    folder = record.folder / "sweep"
    earlier = load_sweep(folder).train_seconds if (folder / "sweep.json").exists() else 0.0
    failed = run_sweep(sweep, folder, workers=study.workers)
    table = load_sweep(folder)
    record.earlier = earlier / study.workers
    ours, _ = split(table)
    record.results |= {
        "best_lambda": {str(count): value for count, (value, _) in best_values(ours, "loss.lam").items()},
        "lambda_falls": lambda_falls(table),
        "floor": table.floor,
        "train_seconds": table.train_seconds,
        "axes": list(table.axes),
        "rows": [
            {
                "settings": list(row.settings),
                "seed": row.seed,
                "steps": row.steps,
                "churn": row.churn,
                "score": row.score,
            }
            for row in table.rows
        ],
        "failed": dict(table.failed),
    }
    record.text.append(best_table(table))
    draw_figures(table, record.figure, mask=study.mask)
    if failed:
        record.text.append(f"Failed:\n\n{failures(table.failed)}")
    record.write(f"{name}: λ and β against the number of steps", findings(table))
    (record.folder / "table.csv").write_text(table.csv())
    if failed:
        raise FailedRuns(failed, f"error.txt of each under {folder / 'runs'} says more")


EXPERIMENTS: dict[str, Callable[[str, Path], None]] = {f"heatmap-{name}": partial(run, name) for name in HEATMAPS}
