"""`distdiff evaluate`: scores of a run against steps, churn and sampler, as a table, a plot and metrics.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from .._check import require_count
from ..baseline.samplers import require_sampler
from ..data.toy import TOYS
from ..evaluate.image import Evaluation, best_entries, evaluate
from ..evaluate.inception import load_inception
from ..evaluate.kept import KeptScores
from ..evaluate.points import PointEvaluation, best_points, evaluate_points
from ..evaluate.setting import Setting, check
from ..figure import canvas, plain_ticks, save
from ..hub import load_pipeline
from ..progress import console, reports
from ..train import load_denoiser
from ..train.folder import make_folder
from ..train.image import held_out, image_config, read_images

__all__ = ["evaluate_images_run", "evaluate_points_run"]


def evaluate_images_run(
    run: Path, out: Path, *, split: str = "auto", device: str = "auto", **options: Any
) -> Evaluation:
    """Score an image run and write metrics.json, scores.png and scores.pdf into a folder."""
    config = image_config(run)
    check(*(options[name] for name in ("steps", "churns", "samplers", "n", "batch_size")))
    pipe = load_pipeline(run, device)
    for name in options["samplers"]:
        require_sampler(name, pipe.denoiser)
    train, reference = read_images(config.data), held_out(config, split)
    if options["metric"] == "fid":
        load_inception(options.get("inception"))  # a missing network is said before anything is written
    make_folder(out)
    with reports() as report:
        found = evaluate(pipe, train, reference, kept=KeptScores(out / "scores.json"), report=report, **options)
    name, settings = found.metric.upper() if found.metric == "fid" else found.metric, found.settings
    title = f"{settings['n']} samples against {settings['n_reference']} of {settings['reference']}"
    curves = [("best churn" if found.screened else e.name, e.steps, e.score.frechet) for e in found.entries]
    rows = [(e, f"{e.score.frechet:.3f}", f"{e.score.kid:.5f}", f"{e.score.kid_std:.5f}") for e in found.entries]
    caption = f"two real sets: {name} {found.floor.frechet:.3g}, KID {found.floor.kid:.2g}"
    table = _table(f"{name}: {title}", caption, (name, "KID", "±"), rows, best_entries(found.entries))
    _write(run, out, found)
    _plot(out, title, name, curves, found.floor.frechet)
    console.print(table)
    return found


def evaluate_points_run(run: Path, out: Path, *, device: str = "auto", **options: Any) -> PointEvaluation:
    """Score a points run and write the same files."""
    n, size = options["n"], options["batch_size"]
    check(options["steps"], options["churns"], options["samplers"], n, n if size is None else size)
    denoiser, config = load_denoiser(run, device)
    for name in options["samplers"]:
        require_sampler(name, denoiser)
    require_count("repeats", options["repeats"])
    make_folder(out)
    with reports() as report:
        found = evaluate_points(denoiser, TOYS[config.data.name], report=report, **options)
    found.settings = {"data": config.data.name} | found.settings
    title = f"{options['repeats']} sets of {n} samples against {config.data.name}"
    rows = [(e, f"{e.score.unbiased:.2e}", f"{e.score.error:.0e}", f"{e.score.biased:.2e}") for e in found.entries]
    caption = f"two real sets: {found.floor.unbiased:.1e}, biased {found.floor.biased:.1e}"
    table = _table(f"D: {title}", caption, ("D", "±", "biased"), rows, best_points(found.entries))
    _write(run, out, found)
    curves = [(e.name, e.steps, e.score.biased) for e in found.entries]
    _plot(out, title, "D, biased", curves, found.floor.biased)
    console.print(table)
    return found


def _write(run: Path, out: Path, found: Evaluation | PointEvaluation) -> None:
    found.settings = {"run": str(run)} | found.settings
    (out / "metrics.json").write_text(json.dumps(found.as_dict(), indent=2) + "\n")


def _table(
    title: str,
    caption: str,
    headings: Sequence[str],
    rows: Iterable[tuple[Setting, str, str, str]],
    best: Sequence[Setting],
) -> Table:
    """A row a setting, the best score at each number of steps in bold."""
    table = Table(title=title, caption=caption)
    for heading in ("steps", "sampler", *headings):
        table.add_column(heading, justify="right")
    for setting, score, *more in rows:
        mark = f"[bold]{score}[/bold]" if setting in best else score
        table.add_row(str(setting.steps), setting.name, mark, *more)
    return table


def _plot(out: Path, title: str, label: str, curves: Sequence[tuple[str, int, float]], ground: float) -> None:
    """A curve for each name of (name, steps, score), above the floor."""
    with canvas(size=(5.6, 3.8)) as (figure, axes):
        for name in dict.fromkeys(name for name, *_ in curves):
            axes.plot(*zip(*((n, score) for own, n, score in curves if own == name), strict=True), "o-", label=name)
        axes.axhline(ground, color="#8a8a8a", ls="--", lw=1.2, label="two real sets")
        axes.set(xscale="log", yscale="log", xlabel="denoising steps", ylabel=label)
        plain_ticks(axes, [n for _, n, _ in curves])
        axes.set_title(title, fontsize=9)
        axes.legend()
        save(figure, out, "scores")
