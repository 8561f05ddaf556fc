"""The paper's two Gaussians in the plane: scores against steps, the posterior's spread, and clouds of the posterior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..data.toy import Mixture2D
from ..denoiser import Denoiser, Draws
from ..evaluate import posterior_spread
from ..figure import COLORS, LABELS, canvas
from ..recipe import STUDIES, PointStudy
from .points import plot_scores, ratio_finding, record_scores, score_table, scores, train_models
from .record import Record, table

__all__ = ["run"]

CLOUD_TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)


def run(scale: str, out: Path) -> None:
    study = STUDIES["mixture2d"][scale]
    record = Record("mixture2d", scale, study, out)
    models, seconds = train_models(study, record.folder)
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
        caption = "Left: biased D_ρ against steps, each model at its best churn. Right: spread of x₀ given x_t."
        record.figure(figure, "mixture2d", caption)
    _clouds(record, models)
    record.text.append(score_table(found, ground))
    rows = [[f"{t:g}", f"{e:.3f}", f"{d:.3f}", f"{d / e - 1:+.1%}"] for t, e, d in _rows(spread)]
    record.text.append(table(["t", "exact std", "distributional", "error"], rows))
    few = tuple(n for n in study.steps if 1 < n <= 10)
    record.write(
        "Two Gaussians in the plane",
        [*ratio_finding(found, few), f"Posterior std within {worst:.1%} of the exact one for t from 0.2 to 0.9."],
    )


def _rows(spread: dict[str, list[float]]) -> list[tuple[float, float, float]]:
    return list(zip(spread["t"], spread["exact"], spread["distributional"], strict=True))


def _spread(study: PointStudy, models: dict[str, Denoiser]) -> dict[str, list[float]]:
    """Mean std of the draws at each time, for the exact posterior and the models that draw."""
    toy, generator = Mixture2D(), torch.Generator().manual_seed(1)
    exact = toy.posterior()
    denoisers: dict[str, Draws] = {"exact": exact, "distributional": models["distributional"], "twin": models["twin"]}
    found: dict[str, list[float]] = {"t": list(study.posterior_times), **{name: [] for name in denoisers}}
    device = next(models["distributional"].parameters()).device
    for t in study.posterior_times:
        x0 = toy.sample(study.points, generator)
        xt = exact.schedule.noise(x0, torch.tensor(t), torch.randn(x0.shape, generator=generator))
        for name, denoiser in denoisers.items():
            found[name].append(posterior_spread(denoiser, xt.to(device), t, study.posterior_draws))
    return found


def _clouds(record: Record, models: dict[str, Denoiser], points: int = 1024) -> None:
    """Draws of the exact posterior and of both models for one noisy point a time and a component."""
    toy, generator = Mixture2D(), torch.Generator().manual_seed(2)
    exact = toy.posterior()
    device = next(models["twin"].parameters()).device
    arrays: dict[str, np.ndarray] = {}
    with canvas(2, len(CLOUD_TIMES), size=(2.5, 2.5), sharex=True, sharey=True) as (figure, panels):
        for row, mean in enumerate(toy.means):
            for column, t in enumerate(CLOUD_TIMES):
                x0, axes = torch.tensor([mean]), panels[row][column]
                xt = exact.schedule.noise(x0, torch.tensor(t), torch.randn(x0.shape, generator=generator))
                arrays[f"{row}/{t}/xt"] = xt[0].numpy()
                for name in ("exact", "distributional", "twin"):
                    denoiser: Draws = exact if name == "exact" else models[name]
                    seed = torch.Generator(device).manual_seed(3 + column)
                    with torch.no_grad():
                        x = denoiser.draw(xt.to(device), torch.tensor(t, device=device), points, None, seed)[0].cpu()
                    arrays[f"{row}/{t}/{name}"] = x.numpy()
                    size = 9 if name == "exact" else 2.5
                    axes.scatter(x[:, 0], x[:, 1], s=size, lw=0, alpha=0.55, color=COLORS[name], rasterized=True)
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
    np.savez_compressed(record.folder / "clouds.npz", **arrays)  # type: ignore[arg-type]
    record.results["clouds"] = "clouds.npz"
