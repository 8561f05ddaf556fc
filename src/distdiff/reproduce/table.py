"""`distdiff reproduce table NAME`: NFE x method, mean and spread over training seeds, as Markdown, LaTeX and JSON.

For each method and number of steps the sampler's settings (churn, solver, time grid) are those with the least mean
over seeds of a score against other data than the one reported. Where one set of samples is too noisy to tell methods
apart, the chosen settings are then scored on further sets. Best in bold, second in italics. Beside the scores stands
what a method cost: the training time of its model, and of its teacher where it has one.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..baseline.samplers import SAMPLERS
from ..figure import canvas, plain_ticks
from ..recipe.config import RunConfig
from ..recipe.table import SHORT, STUDENT, TABLES, Column, TableStudy
from ..train import RunFolder
from ..train.folder import alone
from .job import Job, Pair, Setting, run_jobs
from .record import Record, scientific, table

__all__ = ["Cell", "cells", "latex", "markdown", "run"]

MATCHED = " (same time)"
LEAST = 1e-5
"""Where figures draw unbiased scores that are smaller, or negative."""
COLORS = {
    "Diffusion": "#b4283c",
    "DPM-Solver++": "#d9822b",
    "Distributional": "#0b7a75",
    SHORT: "#6fc7b8",
    "Distillation": "#6a4fa3",
    STUDENT: "#2f9e6e",
    "Flow matching": "#6f9fd8",
    "OT-CFM": "#a0522d",
    "MeanFlow": "#c2578a",
}


class Cell(NamedTuple):
    """A method at a number of steps."""

    mean: float
    std: float | None
    """Over training seeds; None with a single one."""
    values: tuple[float, ...]
    setting: str
    """The sampler's settings that were chosen."""
    model: str


Cells = dict[str, dict[int, Cell]]


def settings_of(column: Column, nfe: int) -> list[Setting]:
    """All settings a column tries at a number of steps; with one step churn and solver make no difference."""
    found = []
    for sampler in column.samplers if nfe > 1 else column.samplers[:1]:
        churns: Sequence[float | None] = column.churns if SAMPLERS[sampler].churn else (None,)
        for churn in churns if nfe > 1 else churns[-1:]:
            found += [Setting(nfe, sampler, churn, grid) for grid in (column.grids if nfe > 1 else column.grids[:1])]
    return found


def jobs_of(study: TableStudy, folder: Path, seeds: Sequence[int], runs: dict[str, RunConfig]) -> list[Job]:
    """What is to be trained and scored: the given runs, for each seed, at the settings of the columns they serve."""
    threads = max(1, torch.get_num_threads() // study.workers)
    jobs = []
    for name, config in runs.items():
        wanted = dict.fromkeys(
            setting
            for column in study.columns.values()
            for nfe in study.nfe
            if column.model(nfe) == name.removesuffix(MATCHED)
            for setting in settings_of(column, nfe)
        )
        teacher = study.models[name.removesuffix(MATCHED)].teacher
        for seed in seeds:
            init = {} if teacher is None else {"init": str(place(folder, teacher, seed))}
            jobs.append(
                Job(
                    name=job_name(name, seed),
                    config=replace(config, seed=seed, **init),  # type: ignore[arg-type]
                    folder=place(folder, name, seed),
                    settings=tuple(wanted),
                    metric=study.metric,
                    n=study.n,
                    n_reference=study.n_reference,
                    needs=None if teacher is None else job_name(teacher, seed),
                    threads=threads,
                )
            )
    return jobs


def job_name(model: str, seed: int) -> str:
    return f"{model}, seed {seed}"


def model_of(job: Job) -> str:
    return job.name.rsplit(",", 1)[0]


def place(folder: Path, model: str, seed: int) -> Path:
    return folder / "runs" / f"{model.replace(MATCHED, '-matched')}-{seed}"


Scores = dict[str, list[dict[Setting, Pair]]]
"""Of each model, by training seed."""


def scores_of(jobs: Sequence[Job]) -> Scores:
    found: Scores = {}
    for job in jobs:
        found.setdefault(model_of(job), []).append(job.scores())
    return found


def chosen(column: Column, nfe: int, scored: Sequence[dict[Setting, Pair]]) -> Setting:
    """The setting that all seeds of a model are sampled with."""
    options = [s for s in settings_of(column, nfe) if all(s in scores for scores in scored)]
    return min(options, key=lambda s: statistics.fmean(scores[s].choice for scores in scored))


def further_sets(study: TableStudy, jobs: Sequence[Job], columns: dict[str, Column], suffix: str = "") -> list[Job]:
    """The same jobs, with chosen settings to be scored on further sets."""
    scores, wanted = scores_of(jobs), dict[str, dict[Setting, None]]()
    for column in columns.values():
        for nfe in study.nfe:
            model = column.model(nfe) + suffix
            best = chosen(column, nfe, scores[model])
            wanted.setdefault(model, {}).update(dict.fromkeys(repeats(study, best)))
    return [
        replace(job, settings=tuple(dict.fromkeys([*job.settings, *wanted.get(model_of(job), {})]))) for job in jobs
    ]


def repeats(study: TableStudy, setting: Setting) -> list[Setting]:
    """The sets of samples on which a chosen setting is scored."""
    return [setting._replace(draw=draw) for draw in range(1, study.sets + 1)] or [setting]


def scatter(jobs: Sequence[Job]) -> float:
    """Standard deviation of a score from one further set to the next: the median over models and settings."""
    by_setting: dict[tuple[str, Setting], list[float]] = {}
    for job in jobs:
        for setting, pair in job.scores().items():
            if setting.draw:
                by_setting.setdefault((job.name, setting._replace(draw=0)), []).append(pair.score)
    return statistics.median(statistics.stdev(scores) for scores in by_setting.values())


def cells(study: TableStudy, jobs: Sequence[Job], columns: dict[str, Column], suffix: str = "") -> Cells:
    """The cells of some columns, settings chosen over all seeds."""
    found: Cells = {}
    by_model = scores_of(jobs)
    for name, column in columns.items():
        found[name] = {}
        for nfe in study.nfe:
            model = column.model(nfe) + suffix
            best = chosen(column, nfe, by_model[model])
            draws = repeats(study, best)
            values = tuple(statistics.fmean(scores[draw].score for draw in draws) for scores in by_model[model])
            spread = statistics.stdev(values) if len(values) > 1 else None
            found[name][nfe] = Cell(statistics.fmean(values), spread, values, best.name, model)
    return found


def seconds_of(jobs: Sequence[Job], study: TableStudy) -> dict[str, float]:
    """Mean training time of each model, in seconds, with its teacher's."""
    own: dict[str, list[float]] = {}
    for job in jobs:
        own.setdefault(model_of(job), []).append(RunFolder(job.folder).seconds())
    mean = {name: statistics.fmean(values) for name, values in own.items()}
    teachers = {name: study.models[name.removesuffix(MATCHED)].teacher for name in mean}
    return {name: value + (mean[t] if (t := teachers[name]) else 0.0) for name, value in mean.items()}


def ranks(found: Cells, nfe: int) -> dict[str, int]:
    """The place of each column at a number of steps, from 0."""
    order = sorted(found, key=lambda name: found[name][nfe].mean)
    return {name: index for index, name in enumerate(order)}


def number(value: float, metric: str) -> str:
    return scientific(value) if metric == "D" else f"{value:.2f}"


def spread(cell: Cell, metric: str, sign: str) -> str:
    shown = number(cell.mean, metric)
    return shown if cell.std is None else f"{shown} {sign} {number(cell.std, metric)}"


def markdown(study: TableStudy, found: Cells, floor: float, seconds: dict[str, float]) -> str:
    """The table, the floor, and the seconds of training below it."""
    rows = []
    for nfe in study.nfe:
        place_of, row = ranks(found, nfe), [str(nfe)]
        for name in found:
            text = spread(found[name][nfe], study.metric, "±")
            row.append(f"**{text}**" if place_of[name] == 0 else f"*{text}*" if place_of[name] == 1 else text)
            if name in study.paper:
                row.append(f"{study.paper[name][nfe]:.2f}" if nfe in study.paper[name] else "")
        rows.append(row)
    times, ground = ["training, s"], ["floor"]
    for name in found:
        spent = sorted({round(seconds[cell.model]) for cell in found[name].values()})
        times.append(str(spent[0]) if len(spent) == 1 else f"{spent[0]} to {spent[-1]}")
        ground.append(number(floor, study.metric) if len(ground) == 1 else "")
        if name in study.paper:
            times.append("")
            ground.append("")
    header = ["NFE"]
    for name in found:
        header += [name, "the paper's"] if name in study.paper else [name]
    return table(header, [*rows, ground, times])


def latex(study: TableStudy, found: Cells, floor: float, caption: str) -> str:
    """The paper's layout."""
    paper = {name: f"{name} (paper)" for name in found if name in study.paper}
    header = [shown for name in found for shown in (name, paper.get(name)) if shown]
    lines = [
        r"\begin{table}[h!]",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\begin{{tabular}}{{|{'|'.join('c' * (1 + len(header)))}|}}",
        r"\hline",
        " & ".join(["NFEs", *map(_escape, header)]) + r" \\",
        r"\hline",
    ]
    for nfe in study.nfe:
        place_of, row = ranks(found, nfe), [str(nfe)]
        for name in found:
            text = _exponents(spread(found[name][nfe], study.metric, r"\pm"))
            face = {0: r"\mathbf", 1: r"\mathit"}.get(place_of[name], "")
            row.append(f"${face}{{{text}}}$" if face else f"${text}$")
            if name in paper:
                row.append(f"{study.paper[name][nfe]:.2f}" if nfe in study.paper[name] else "")
        lines.append(" & ".join(row) + r" \\")
    ground = f"Floor (two real sets): ${_exponents(number(floor, study.metric))}$."
    return "\n".join([*lines, r"\hline", r"\end{tabular}", "", ground, r"\end{table}"]) + "\n"


def _escape(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def _exponents(text: str) -> str:
    """1.2e-3 as 1.2 times a power of ten."""
    return re.sub(r"e([-+]?\d+)", lambda found: rf" \cdot 10^{{{int(found[1])}}}", text)


def as_dict(found: Cells) -> dict[str, Any]:
    return {name: {str(nfe): cell._asdict() for nfe, cell in row.items()} for name, row in found.items()}


def run(name: str, scale: str, out: Path, *, seeds: Sequence[int] | None = None, same_time: bool = True) -> None:
    """Make a table; `seeds` and `same_time` change the training seeds and leave out the second part."""
    study, options = TABLES[name][scale], ""
    if seeds is not None:
        study = replace(study, seeds=tuple(seeds), matched_seeds=tuple(seeds)[:1])
        options += f" --seeds {','.join(map(str, seeds))}"
    if study.matched and not same_time:
        study = replace(study, matched=())
        options += " --no-same-time"
    with alone(out, "table", "runs"):
        make(name, study, Record(f"table {name}", scale, study, out, options))


def make(name: str, study: TableStudy, record: Record) -> None:
    """Train and score what is left, and write the table."""
    runs = {model: entry.run for model, entry in study.models.items()}
    jobs = jobs_of(study, record.folder, study.seeds, runs)
    record.earlier = sum(job.spent() for job in jobs) / study.workers
    run_jobs(jobs, study.workers, f"table {name}")
    jobs = score_further(study, jobs, study.columns)
    publish(name, study, record, jobs, [])
    if study.matched:
        matched = matched_jobs(study, record.folder, jobs)
        run_jobs(matched, study.workers, "same wall time")
        matched = score_further(study, matched, same_time_columns(study), MATCHED)
        publish(name, study, record, jobs, matched)


def score_further(study: TableStudy, jobs: list[Job], columns: dict[str, Column], suffix: str = "") -> list[Job]:
    """Score chosen settings on further sets, if the study has any; the jobs that hold these scores as well."""
    if study.sets:
        jobs = further_sets(study, jobs, columns, suffix)
        run_jobs(jobs, study.workers, f"{study.sets} sets of samples")
    return jobs


def same_time_columns(study: TableStudy) -> dict[str, Column]:
    """Those whose models were all trained again for the same time."""
    return {name: column for name, column in study.columns.items() if set(column.models.values()) <= set(study.matched)}


def publish(name: str, study: TableStudy, record: Record, jobs: Sequence[Job], matched: Sequence[Job]) -> None:
    """Write the table, and again with the second one once that is there."""
    record.text, record.figures = [], []
    seconds = seconds_of([*jobs, *matched], study)
    floor = statistics.fmean(job.floor() for job in jobs[: len(study.seeds)])
    found = cells(study, jobs, study.columns)
    caption = f"{name}: {METRICS[study.metric]}, mean over {len(study.seeds)} training seeds ± their standard deviation"
    record.text += [markdown(study, found, floor, seconds), NOTES[study.metric]]
    record.results |= {"cells": as_dict(found), "floor": floor, "train_seconds": seconds}
    if study.sets > 1:
        record.results["scatter"] = between = scatter(jobs)
        record.text.append(
            f"Each score is the mean over {study.sets} sets of {study.n} other samples, of the same seeds in all "
            f"columns; the standard deviation from one set to the next is {number(between, study.metric)} (median)."
        )
    if matched:
        at_time = cells(study, matched, same_time_columns(study), MATCHED)
        ours = {"Distributional": found["Distributional"]} if "Distributional" in found else {}
        together = ours | at_time
        record.results["cells_same_time"] = as_dict(together)
        record.text += [
            "## The same wall time",
            f"Peers trained for as long as the distributional model took ({seconds['distributional']:.0f} s a run), "
            f"{len(study.matched_seeds)} seed(s).",
            markdown(study, together, floor, seconds),
        ]
    with canvas(1, 1, size=(7.6, 4.2)) as (figure, axes):
        plot(axes, study, found, floor)
        below = f"{METRICS[study.metric]} against network evaluations a sample."
        noise = f" Values below {LEAST:g}, which are noise, are drawn there." if study.metric == "D" else ""
        record.figure(figure, "table", below + noise)
    (record.folder / "table.md").write_text(markdown(study, found, floor, seconds) + "\n")
    (record.folder / "table.tex").write_text(latex(study, found, floor, caption))
    (record.folder / "table.json").write_text(json.dumps({"floor": floor, "cells": as_dict(found)}, indent=1) + "\n")
    record.write(f"Table: {name}", findings(study, found, seconds))


def matched_jobs(study: TableStudy, folder: Path, jobs: Sequence[Job]) -> list[Job]:
    """Runs of the `matched` models with as many steps as the distributional model's time allows."""
    seconds = seconds_of(jobs, study)
    runs = {}
    for name in study.matched:
        config = study.models[name].run
        steps = max(1, round(config.steps * seconds["distributional"] / seconds[name]))
        runs[name + MATCHED] = replace(config, steps=steps)
    return jobs_of(study, folder, study.matched_seeds, runs)


def plot(axes: Any, study: TableStudy, found: Cells, floor: float) -> None:
    for name, row in found.items():
        ours, color = name == "Distributional", COLORS.get(name, "#8a8a8a")
        values = [max(row[nfe].mean, LEAST) for nfe in study.nfe]
        line = "o--" if name == "Flow matching" else "o-"  # which lies on Diffusion where churn 0 is that one's best
        axes.plot(study.nfe, values, line, color=color, label=name, lw=2.6 if ours else 1.4, zorder=3 if ours else 2)
    if floor > 0:
        axes.axhline(floor, color="#8a8a8a", ls="--", lw=1.2, label="two real sets")
    axes.set(xscale="log", yscale="log", xlabel="network evaluations a sample", ylabel=METRICS[study.metric])
    if study.metric != "D":
        plain_ticks(axes, study.nfe)
    else:
        axes.set_xticks(study.nfe, [str(nfe) for nfe in study.nfe])
        axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def findings(study: TableStudy, found: Cells, seconds: dict[str, float]) -> list[str]:
    """Where the distributional models stand."""
    said = []
    for name in (name for name in ("Distributional", SHORT, STUDENT) if name in found):
        ours = found[name]
        for rival in ("Diffusion", "DPM-Solver++"):
            won = [nfe for nfe in study.nfe if ours[nfe].mean < found[rival][nfe].mean]
            said.append(f"{name} beats {rival} at NFE {', '.join(map(str, won)) or 'none'}.")
        for nfe in study.nfe:
            theirs, spent = found["Distillation"][nfe], seconds[ours[nfe].model]
            said.append(
                f"{name} at NFE {nfe}: {number(ours[nfe].mean, study.metric)} against "
                f"{number(theirs.mean, study.metric)} of distillation ({spent:.0f} s of training against "
                f"{seconds[theirs.model]:.0f} s with the teacher)."
            )
    return said


METRICS = {"D": "unbiased D", "fd": "fd", "fid": "FID"}
NOTES = {
    "D": "Unbiased D with an RBF kernel of width 1 between samples and held-out points; the floor scatters around 0. "
    "Churn, solver and time grid were chosen on other held-out points.",
    "fd": "Fréchet distance on the features of a small classifier (not FID) to held-out pictures; floor: training "
    "pictures. Churn, solver and time grid were chosen by the distance to the training pictures.",
    "fid": "FID to held-out pictures; floor: training pictures. Churn, solver and time grid were chosen by fd to the "
    "training pictures.",
}

EXPERIMENTS: dict[str, Callable[..., None]] = {f"table {name}": partial(run, name) for name in TABLES}
