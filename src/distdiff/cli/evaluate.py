"""`distdiff evaluate`: scores of an image run against steps, churn and sampler, as a table, a plot and metrics.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from ..evaluate.image import Evaluation, best_entries, check, evaluate
from ..evaluate.inception import load_inception
from ..figure import canvas, plain_ticks, save
from ..hub import load_pipeline
from ..progress import console, reports
from ..train.folder import make_folder
from ..train.image import held_out, image_config, read_images

__all__ = ["evaluate_run"]


def evaluate_run(run: Path, out: Path, *, split: str = "auto", device: str = "auto", **options: Any) -> Evaluation:
    """Score a run and write metrics.json, scores.png and scores.pdf into a folder."""
    config = image_config(run)
    check(*(options[name] for name in ("steps", "churns", "samplers", "n", "batch_size")))
    pipe = load_pipeline(run, device)
    train, reference = read_images(config.data), held_out(config, split)
    if options["metric"] == "fid":
        load_inception(options.get("inception"))  # a missing network is said before anything is written
    make_folder(out)
    with reports() as report:
        found = evaluate(pipe, train, reference, report=report, **options)
    found.settings = {"run": str(run)} | found.settings
    (out / "metrics.json").write_text(json.dumps(found.as_dict(), indent=2) + "\n")
    _plot(found, out)
    console.print(_table(found))
    return found


def _table(found: Evaluation) -> Table:
    settings, name = found.settings, found.metric.upper() if found.metric == "fid" else found.metric
    title = f"{name}: {settings['n']} samples against {settings['n_reference']} of {settings['reference']}"
    table = Table(title=title, caption=f"two real sets: {name} {found.floor.frechet:.3g}, KID {found.floor.kid:.2g}")
    for heading in ("steps", "sampler", name, "KID", "±"):
        table.add_column(heading, justify="right")
    best = best_entries(found.entries)
    for entry in found.entries:
        shown = f"{entry.score.frechet:.3f}"
        mark = f"[bold]{shown}[/bold]" if entry in best else shown
        table.add_row(str(entry.steps), entry.name, mark, f"{entry.score.kid:.5f}", f"{entry.score.kid_std:.5f}")
    return table


def _plot(found: Evaluation, out: Path) -> None:
    label = "FID" if found.metric == "fid" else "fd"
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in found.entries:
        curves.setdefault("best churn" if found.screened else entry.name, []).append((entry.steps, entry.score.frechet))
    with canvas(size=(5.6, 3.8)) as (figure, axes):
        for name, points in curves.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.axhline(found.floor.frechet, color="#8a8a8a", ls="--", lw=1.2, label="two real sets")
        axes.set(xscale="log", yscale="log", xlabel="denoising steps", ylabel=label)
        plain_ticks(axes, [entry.steps for entry in found.entries])
        settings = found.settings
        axes.set_title(f"{settings['n']} samples, {settings['n_reference']} of {settings['reference']}", fontsize=9)
        axes.legend()
        save(figure, out, "scores")
