"""The paper's table on the checkerboard: D_rho against the number of steps, each with the measured floor."""

from __future__ import annotations

from pathlib import Path

import torch

from ..data.toy import TOYS
from ..figure import COLORS, canvas
from ..random import stream
from ..recipe import STUDIES
from ..sample import sample
from .points import (
    churn_table,
    plot_scores,
    ratio_finding,
    record_scores,
    score_table,
    scores,
    shown_churn,
    train_models,
)
from .record import Record

__all__ = ["run"]

PAPER = {
    "diffusion": {5: 7.00e-3, 10: 2.10e-3, 50: 2.70e-4, 100: 1.96e-4, 1000: 1.71e-4},
    "distributional": {5: 1.57e-4, 10: 1.96e-4, 50: 1.55e-4, 100: 2.00e-4, 1000: 1.83e-4},
}


def run(scale: str, out: Path) -> None:
    study = STUDIES["checkerboard"][scale]
    record = Record("checkerboard", scale, study, out)
    models, seconds, record.earlier = train_models(study, record.folder)
    found, ground = scores(study, models)
    record_scores(record, found, ground, seconds)
    few = study.steps[:2]
    with canvas(1, 2 + len(few), size=(3.5, 3.7)) as (figure, panels):
        plot_scores(panels[0], found, ground)
        generator = torch.Generator().manual_seed(stream(study.seed, "figure"))
        shown = {"data": TOYS["checkerboard"].sample(study.points, generator)}
        for name in ("diffusion", "distributional"):
            churn, _ = shown_churn(name, found[name][few[0]])
            shown[name] = sample(models[name], (study.points, 2), few[0], churn, seed=study.seed).cpu()
        record.arrays("samples", {name: x.numpy() for name, x in shown.items()})
        for axes, (name, x) in zip(panels[1:], shown.items(), strict=True):
            axes.scatter(x[:, 0], x[:, 1], s=1.5, lw=0, alpha=0.7, color=COLORS.get(name, "#444444"), rasterized=True)
            axes.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
            axes.set_title("data" if name == "data" else f"{name}, {few[0]} steps")
        record.figure(figure, "checkerboard", "Left: biased D_ρ against steps. Right: data and samples.")
    paper = PAPER if set(study.steps) <= set(PAPER["diffusion"]) else None
    record.text.append(score_table(found, ground, paper))
    record.text.append(churn_table(found["distributional"]))
    record.text.append(
        "D_ρ with an RBF kernel of width 1 (half of the usual MMD²) against held-out points; `biased` is the paper's "
        "estimator, which two real sets score at the floor."
    )
    record.write("Checkerboard", ratio_finding(found, ground, few))
