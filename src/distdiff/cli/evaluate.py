"""`distdiff evaluate`: scores of an image run against steps, churn and sampler, as a table, a plot and metrics.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .._check import BadArgument, require
from ..data.image import ImageSet
from ..evaluate.image import Evaluation, best_entries, evaluate
from ..figure import canvas, save
from ..hub import load_pipeline
from ..progress import console
from ..recipe import ImageRun
from ..train import RunFolder
from ..train.folder import make_folder
from ..train.image import read_images

__all__ = ["evaluate_run", "held_out", "image_config"]


def image_config(run: Path) -> ImageRun:
    """The configuration of an image run."""
    config = RunFolder(run).read_config()
    require(isinstance(config, ImageRun), "run", str(run), "an image run")
    assert isinstance(config, ImageRun)
    return config


def held_out(config: ImageRun, split: str) -> ImageSet:
    """The pictures of a split; with auto, the first there is of test, validation and the split trained on."""
    if split != "auto":
        return read_images(config.data, split)
    for name in ("test", "validation"):
        try:
            return read_images(config.data, name)
        except BadArgument:
            continue
    return read_images(config.data)


def evaluate_run(run: Path, out: Path, *, split: str = "auto", device: str = "auto", **options: Any) -> Evaluation:
    """Score a run and write metrics.json, scores.png and scores.pdf into a folder."""
    config = image_config(run)
    pipe = load_pipeline(run, device)
    train, reference = read_images(config.data), held_out(config, split)
    make_folder(out)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:

        def report(label: str, total: int) -> Callable[[int], object]:
            task = progress.add_task(label, total=total)
            sampling = label.startswith("sampling")

            def advance(done: int) -> None:
                progress.update(task, advance=done) if sampling else progress.update(task, completed=done)

            return advance

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
        _plain_ticks(axes, [entry.steps for entry in found.entries])
        settings = found.settings
        axes.set_title(f"{settings['n']} samples, {settings['n_reference']} of {settings['reference']}", fontsize=9)
        axes.legend()
        save(figure, out, "scores")


def _plain_ticks(axes: Any, steps: Sequence[int]) -> None:
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    axes.set_xticks(sorted(set(steps)), [str(n) for n in sorted(set(steps))])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
