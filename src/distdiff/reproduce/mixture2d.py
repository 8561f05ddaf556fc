"""The paper's two Gaussians in the plane: scores against steps, the posterior's spread, and clouds of the posterior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..data.toy import Mixture2D
from ..denoiser import Denoiser, Draws
from ..evaluate import posterior_spread
from ..figure import COLORS, LABELS, canvas
from ..random import stream
from ..recipe import STUDIES, PointStudy
from ..schedule import add_noise
from .points import churn_table, plot_scores, ratio_finding, record_scores, score_table, scores, train_models
from .record import Record, table

__all__ = ["run"]


def run(scale: str, out: Path) -> None:
    study = STUDIES["mixture2d"][scale]
    record = Record("mixture2d", scale, study, out)
    models, seconds, record.earlier = train_models(study, record.folder)
    found, ground = scores(study, models)
    record_scores(record, found, ground, seconds)
    spread = _spread(study, models)
    worst = max(abs(d / e - 1) for t, e, d in _rows(spread) if 0.2 <= t <= 0.9)
    record.results["posterior_std"] = spread
    record.results["posterior_std_worst_error"] = worst
    with canvas(1, 2, size=(5.2, 3.9)) as (figure, (left, right)):
        plot_scores(left, found, ground)
        for name in ("distributional", "twin"):
            right.plot(spread["t"], spread[name], "o-", color=COLORS[name], label=LABELS[name])
        right.plot(spread["t"], spread["exact"], "--", color="black", label=LABELS["exact"])
        right.set(xlabel="time t", ylabel="mean standard deviation of the draws")
        right.legend()
        caption = "Left: biased D_ρ against steps, classical models at their best churn. Right: spread of x₀ given x_t."
        record.figure(figure, "mixture2d", caption)
    _clouds(record, study, models)
    record.text.append(score_table(found, ground))
    record.text.append(churn_table(found["distributional"]))
    rows = [[f"{t:g}", f"{e:.3f}", f"{d:.3f}", f"{d / e - 1:+.1%}"] for t, e, d in _rows(spread)]
    record.text.append(table(["t", "exact std", "distributional", "error"], rows))
    few = tuple(n for n in study.steps if 1 < n <= 10)
    record.write(
        "Two Gaussians in the plane",
        [
            *ratio_finding(found, ground, few),
            f"Posterior std within {worst:.1%} of the exact one for t from 0.2 to 0.9.",
        ],
    )


def _rows(spread: dict[str, list[float]]) -> list[tuple[float, float, float]]:
    return list(zip(spread["t"], spread["exact"], spread["distributional"], strict=True))


def _spread(study: PointStudy, models: dict[str, Denoiser]) -> dict[str, list[float]]:
    """Mean posterior std at each time: exact in closed form, the models' over their draws; and the paper's protocol."""
    toy, generator = Mixture2D(), torch.Generator().manual_seed(stream(study.seed, "spread"))
    exact = toy.posterior()
    drawn: dict[str, tuple[Draws, int]] = {
        "distributional": (models["distributional"], study.posterior_draws),
        "twin": (models["twin"], study.posterior_draws),
        "exact, paper's protocol": (exact, study.paper_draws),
        "distributional, paper's protocol": (models["distributional"], study.paper_draws),
    }
    found: dict[str, list[float]] = {"t": list(study.posterior_times), "exact": [], **{name: [] for name in drawn}}
    device = next(models["distributional"].parameters()).device
    for t in study.posterior_times:
        x0 = toy.sample(study.points, generator)
        xt = add_noise(exact.schedule, x0, t, torch.randn(x0.shape, generator=generator)).to(device)
        found["exact"].append(float(exact.std(xt, t).mean()))
        for name, (denoiser, draws) in drawn.items():
            found[name].append(posterior_spread(denoiser, xt, t, draws, study.seed))
    return found


def _clouds(record: Record, study: PointStudy, models: dict[str, Denoiser]) -> None:
    """Draws of the exact posterior and of both models for one noisy point a time and a component."""
    toy, generator = Mixture2D(), torch.Generator().manual_seed(stream(study.seed, "clouds"))
    exact = toy.posterior()
    device = next(models["twin"].parameters()).device
    arrays: dict[str, np.ndarray] = {}
    with canvas(2, len(study.cloud_times), size=(2.5, 2.5), sharex=True, sharey=True) as (figure, panels):
        for row, mean in enumerate(toy.means):
            for column, t in enumerate(study.cloud_times):
                x0, axes = torch.tensor([mean]), panels[row][column]
                xt = add_noise(exact.schedule, x0, t, torch.randn(x0.shape, generator=generator))
                arrays[f"{row}/{t}/xt"] = xt[0].numpy()
                for name in ("exact", "distributional", "twin"):
                    denoiser: Draws = exact if name == "exact" else models[name]
                    seed = torch.Generator(device).manual_seed(stream(study.seed, f"cloud {column}"))
                    with torch.no_grad():
                        x = denoiser.draw(xt.to(device), torch.tensor(t), study.cloud_draws, None, seed)[0].cpu()
                    arrays[f"{row}/{t}/{name}"] = x.numpy()
                    size = {"exact": 7, "distributional": 2, "twin": 20}[name]
                    axes.scatter(x[:, 0], x[:, 1], s=size, lw=0, alpha=0.4, color=COLORS[name], rasterized=True)
                axes.plot(*x0[0], "+", color="#7a1fa2", ms=11, mew=2.2)
                axes.plot(*xt[0], "x", color="black", ms=8, mew=2)
                axes.set(xlim=(-5.5, 5.5), ylim=(-1.5, 6.5))
                if row == 0:
                    axes.set_title(f"t = {t:g}")
        from matplotlib.lines import Line2D

        dots = [("o", COLORS[name], LABELS[name]) for name in ("exact", "distributional", "twin")]
        crosses = [("+", "#7a1fa2", "clean point x₀"), ("x", "black", "noisy point x_t, all the model sees")]
        marks = [
            Line2D([], [], ls="", marker=marker, color=color, mew=2 if marker in "+x" else 0, ms=7, label=label)
            for marker, color, label in dots + crosses
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks))
        caption = "What x₀ could have been, given x_t: exact posterior, distributional model, and its β=2, λ=0 twin."
        record.figure(figure, "clouds", caption)
    record.arrays("clouds", arrays)
