"""Image experiments: a distributional model and its classical twin, same network, data, steps and batch.

Both are scored against held-out pictures at each number of steps, each at its best churn (and the classical one at its
best sampler), beside the floor that real pictures give.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..baseline import sample_with
from ..data.image import to_uint8
from ..evaluate.image import NAMES, Entry, Evaluation, best_entries, evaluate
from ..evaluate.kept import KeptScores
from ..figure import COLORS, canvas, plain_ticks
from ..hub import load_pipeline
from ..picture import grid
from ..progress import reports
from ..recipe import IMAGE_STUDIES, ImageStudy
from ..recipe.config import own_samplers
from ..train.image import held_out, read_images
from .record import Record, table
from .runs import train_runs

__all__ = ["EXPERIMENTS", "compare", "plot_scores", "samples_of", "score_table"]

Report = Callable[[str, int], Callable[[int], object]]


def compare(study: ImageStudy, runs: dict[str, Path]) -> dict[str, Evaluation]:
    """The scores of each model of a study."""
    config = study.models["distributional"]
    train, reference = read_images(config.data), held_out(config, "auto")
    found: dict[str, Evaluation] = {}
    with reports() as report:
        for name, path in runs.items():
            pipe = load_pipeline(path, study.models[name].device)
            score = partial(
                evaluate,
                pipe,
                train,
                reference,
                churns=study.churns,
                samplers=study.samplers if name == "diffusion" else study.own or own_samplers(config.loss),
                metric=study.metric,
                screen_by=study.screen_by,
                n_screen=study.n_screen,
                n=study.n,
                n_reference=study.n_reference,
                seed=study.seed,
                kept=KeptScores(path / "scores.json"),
                report=partial(_named, report, name),
            )
            classical = study.classical_steps or study.steps
            found[name] = score(steps=classical if name == "diffusion" else study.steps)
    return found


def _named(report: Report, name: str, label: str, total: int) -> Callable[[int], object]:
    return report(f"{name}: {label}", total)


def score_table(found: dict[str, Evaluation]) -> str:
    """Rows of steps; for each model its best score and where it was found, and the floor below."""
    metric = NAMES[next(iter(found.values())).metric]
    best = {name: {e.steps: e for e in best_entries(evaluation.entries)} for name, evaluation in found.items()}
    header = ["steps"] + [heading for name in found for heading in (f"{name}: {metric}", "at", "KID")]
    rows = []
    for n in next(iter(best.values())):
        there = {name: entries[n] for name, entries in best.items() if n in entries}
        winner = min(there, key=lambda name: there[name].score.frechet) if len(there) > 1 else ""
        row = [str(n)]
        for name in best:
            if name not in there:
                row += ["", "", ""]
                continue
            shown = f"{there[name].score.frechet:.2f}"
            row += [f"**{shown}**" if name == winner else shown, there[name].name, f"{there[name].score.kid:.4f}"]
        rows.append(row)
    ground = next(iter(found.values())).floor
    rows.append(["floor", f"{ground.frechet:.2f}", "real", f"{ground.kid:.4f}", *[""] * (3 * (len(found) - 1))])
    return table(header, rows)


def plot_scores(axes: Any, found: dict[str, Evaluation]) -> None:
    """Best score against steps for each model, and the floor."""
    for name, evaluation in found.items():
        best = best_entries(evaluation.entries)
        axes.plot([e.steps for e in best], [e.score.frechet for e in best], "o-", color=COLORS[name], label=name)
    first = next(iter(found.values()))
    axes.axhline(first.floor.frechet, color=COLORS["floor"], ls="--", lw=1.2, label="two real sets")
    axes.set(xscale="log", yscale="log", xlabel="denoising steps", ylabel=NAMES[first.metric])
    plain_ticks(axes, [entry.steps for entry in first.entries])
    axes.legend()


@torch.no_grad()
def samples_of(path: Path, entry: Entry, count: int, seed: int, device: str) -> torch.Tensor:
    """uint8 pictures of a model at the setting of an entry; labels in turn."""
    pipe = load_pipeline(path, device)
    shape, cond = (count, *pipe.sample_shape), pipe.condition(None, count)
    x = sample_with(pipe.denoiser, shape, entry.steps, entry.sampler, entry.churn, seed=seed, cond=cond)
    return to_uint8(pipe.decode(x)).cpu()


def run(name: str, scale: str, out: Path) -> None:
    study = IMAGE_STUDIES[name][scale]
    record = Record(name, scale, study, out)
    runs, seconds, record.earlier = train_runs(study.models, record.folder, side_by_side=True)
    found = compare(study, runs)
    record.results |= {"train_seconds": seconds} | {model: e.as_dict() for model, e in found.items()}
    few = min(study.steps, key=lambda n: abs(n - 4))
    best = {model: {e.steps: e for e in best_entries(evaluation.entries)} for model, evaluation in found.items()}
    with canvas(1, 3, size=(4.2, 3.9)) as (figure, panels):
        plot_scores(panels[0], found)
        for axes, (model, path) in zip(panels[1:], runs.items(), strict=True):
            pictures = samples_of(path, best[model][few], 40, study.seed, study.models[model].device)
            axes.imshow(grid(pictures, columns=10 if pictures.shape[-1] < 16 else 8), cmap="gray")
            axes.set_axis_off()
            axes.set_title(f"{model}, {few} steps, {best[model][few].name}")
        record.figure(figure, name, f"Left: {NAMES[study.metric]} against steps. Right: samples in {few} steps.")
    record.text.append(score_table(found))
    settings = found["distributional"].settings
    record.text.append(
        f"{settings['n']} samples against {settings['n_reference']} pictures of {settings['reference']}; features: "
        f"{settings['features']}, {settings['resize']}; sampling seed {settings['seed']}. Churn and sampler chosen by "
        f"{settings['churn_chosen_by']}."
    )
    record.write(f"{name}: few-step sampling", _findings(best, few, NAMES[study.metric]))


def _findings(best: dict[str, dict[int, Entry]], few: int, metric: str) -> list[str]:
    ours, classical = (best[name][few].score.frechet for name in ("distributional", "diffusion"))
    curve = [entry.score.frechet for entry in best["distributional"].values()]
    rise = max(later / min(curve[: index + 1]) for index, later in enumerate(curve)) - 1
    return [
        f"At {few} steps: {metric} {ours:.2f} against {classical:.2f} of the classical model at its best, "
        f"{ours / classical:.2f} times as much.",
        f"Largest rise of the distributional curve above an earlier value: {rise:.1%}.",
    ]


EXPERIMENTS: dict[str, Callable[[str, Path], None]] = {name: partial(run, name) for name in IMAGE_STUDIES}
