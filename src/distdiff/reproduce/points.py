"""What the two experiments in the plane share: training a study's models and scoring them against steps and churn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.toy import TOYS
from ..denoiser import Denoiser
from ..evaluate import Measurement, Reference, floor, measure
from ..figure import COLORS, LABELS
from ..progress import bar
from ..recipe import PointStudy
from ..train import load_denoiser
from .record import Record, scientific, table
from .runs import train_runs

__all__ = [
    "churn_table",
    "plot_scores",
    "ratio_finding",
    "record_scores",
    "score_table",
    "scores",
    "shown_churn",
    "train_models",
]

Scores = dict[str, dict[int, dict[float, Measurement]]]


def train_models(study: PointStudy, folder: Path) -> tuple[dict[str, Denoiser], dict[str, float], float]:
    """Each model of a study, trained; the seconds that took, and how many of them earlier (see `train_runs`)."""
    runs, seconds, earlier = train_runs(study.models, folder)
    return {name: load_denoiser(path)[0] for name, path in runs.items()}, seconds, earlier


def scores(study: PointStudy, models: dict[str, Denoiser]) -> tuple[Scores, Measurement]:
    """D_rho of every model at every number of steps and churn, and the floor; beyond 100 steps, one repeat each."""
    toy = TOYS[next(iter(study.models.values())).data.name]
    reference = Reference(toy, points=study.points, repeats=study.repeats, seed=study.seed)
    found: Scores = {name: {n: {} for n in study.steps} for name in models}
    plan = [(name, n, churn) for name in models for n in study.steps for churn in study.churns if n > 1 or churn == 1]
    repeats = {n: study.repeats if n <= 100 else 1 for n in study.steps}
    with bar("sampling", sum(n * repeats[n] for _, n, _ in plan)) as advance:
        for name, n, churn in plan:
            found[name][n][churn] = measure(
                models[name],
                reference,
                steps=n,
                churn=churn,
                repeats=repeats[n],
                seed=study.seed,
                callback=lambda _: advance(),
            )
    return found, floor(toy, reference, study.seed)


def shown_churn(name: str, row: dict[float, Measurement]) -> tuple[float, Measurement]:
    """The churn a model is shown at, and its score there.

    Classical models get the best one in hindsight. The distributional model gets churn 1, so that picking the least of
    several noisy scores cannot flatter it.
    """
    churn = 1.0 if name == "distributional" else min(row, key=lambda c: row[c].unbiased)
    return churn, row[churn]


def record_scores(record: Record, found: Scores, ground: Measurement, seconds: dict[str, float]) -> None:
    record.results |= {
        "train_seconds": seconds,
        "floor": ground._asdict(),
        "scores": {
            name: {str(n): {f"{c:g}": m._asdict() for c, m in row.items()} for n, row in rows.items()}
            for name, rows in found.items()
        },
    }


def score_table(found: Scores, ground: Measurement, paper: dict[str, dict[int, float]] | None = None) -> str:
    """Rows of steps; for each model its unbiased and biased score, beside the paper's where it has one."""
    names = list(found)
    header = ["steps"]
    for name in names:
        header += [f"{name}: unbiased", "churn", "biased"] + (["paper"] if paper else [])
    rows = []
    for n in next(iter(found.values())):
        best = {name: shown_churn(name, found[name][n]) for name in names}
        winner = min(names, key=lambda name: best[name][1].unbiased)
        row = [str(n)]
        for name in names:
            churn, value = best[name]
            shown = (
                f"{scientific(value.unbiased)} ± {scientific(value.error)}"
                if value.repeats > 1
                else scientific(value.unbiased)
            )
            row += [f"**{shown}**" if name == winner else shown, f"{churn:g}", scientific(value.biased)]
            row += [scientific(paper[name][n])] if paper else []
        rows.append(row)
    empty = [""] * (3 if paper else 2)
    floor_row = ["floor", f"{scientific(ground.unbiased)} ± {scientific(ground.error)}", "", scientific(ground.biased)]
    rows.append(floor_row + empty[2:] + ["", *empty] * (len(names) - 1))
    return table(header, rows)


def churn_table(rows: dict[int, dict[float, Measurement]]) -> str:
    """Unbiased scores of one model, steps against churn."""
    churns = sorted({churn for row in rows.values() for churn in row})
    header = ["distributional, steps", *(f"churn {churn:g}" for churn in churns)]
    lines = [
        [str(n), *(scientific(row[churn].unbiased) if churn in row else "" for churn in churns)]
        for n, row in rows.items()
    ]
    return table(header, lines)


def plot_scores(axes: Any, found: Scores, ground: Measurement) -> None:
    """Biased scores against steps, each model at the churn it is shown at, above the floor of two real sets."""
    for name, rows in found.items():
        best = [shown_churn(name, row)[1].biased for row in rows.values()]
        axes.plot(list(rows), best, "o-", color=COLORS[name], label=LABELS[name])
    axes.axhline(ground.biased, color=COLORS["floor"], ls="--", lw=1.2, label=LABELS["floor"])
    ticks = list(next(iter(found.values())))
    axes.set(xscale="log", yscale="log", xlabel="sampling steps", ylabel="D against held-out points (lower is better)")
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.legend()


def ratio_finding(found: Scores, ground: Measurement, steps: Sequence[int]) -> list[str]:
    """A sentence on each number of steps; ratios allow for two standard errors of the smaller score."""
    sentences = []
    for n in steps:
        ours, theirs = (shown_churn(name, found[name][n])[1] for name in ("distributional", "diffusion"))
        least = theirs.unbiased / max(ours.unbiased + 2 * ours.error, ground.error)
        ratio = f", at least {least:.0f} times as much" if least > 1.5 else ""
        sentences.append(
            f"{n} steps: distributional {scientific(ours.unbiased)} ± {scientific(ours.error)} at churn 1, diffusion "
            f"at its best churn {scientific(theirs.unbiased)}{ratio}."
        )
    return sentences
