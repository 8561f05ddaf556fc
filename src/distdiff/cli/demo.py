"""`make demo`: a few-step model and its classical twin on the same data, side by side at 2, 4 and 8 steps."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from ..data.toy import TOYS
from ..evaluate import Measurement
from ..figure import COLORS, canvas, save
from ..progress import console
from ..random import stream
from ..recipe import DEMO
from ..reproduce.points import score_table, scores, shown_churn, train_models
from ..reproduce.record import scientific
from ..sample import sample
from ..train.folder import make_folder

__all__ = ["run"]

ROWS = {"distributional": "distributional: draws from the posterior", "diffusion": "diffusion: predicts its mean"}


def run(out: Path) -> Path:
    """Train both, write demo.png, demo.pdf and demo.md; the path of the figure."""
    make_folder(out)
    study = DEMO
    console.print("Two models, same data, same network, same number of training steps: which one samples in few steps?")
    models, *_ = train_models(study, out)
    found, ground = scores(study, models)
    data = TOYS["mixture2d"].sample(study.points, torch.Generator().manual_seed(stream(study.seed, "figure")))
    with canvas(2, len(study.steps) + 1, size=(2.9, 2.6), sharex=True, sharey=True) as (figure, panels):
        for row, (name, title) in zip(panels, ROWS.items(), strict=True):
            shown: dict[str, tuple[Tensor, Measurement | None]] = {"data": (data, None)}
            for n in study.steps:
                churn, best = shown_churn(name, found[name][n])
                shown[f"{n} steps"] = (sample(models[name], (study.points, 2), n, churn, seed=study.seed).cpu(), best)
            for axes, (label, (x, score)) in zip(row, shown.items(), strict=True):
                color = "#444444" if label == "data" else COLORS[name]
                axes.scatter(x[:, 0], x[:, 1], s=2.5, lw=0, alpha=0.6, color=color, rasterized=True)
                axes.set(xlim=(-5.5, 5.5), ylim=(-0.5, 6.5))
                axes.set_title(label if score is None else f"{label}: distance {scientific(score.unbiased)}")
            row[0].set_ylabel(title.replace(": ", ":\n"))
        save(figure, out, "demo")
    (out / "demo.md").write_text(
        "# Few steps: drawing from the posterior against predicting its mean\n\n![samples](demo.png)\n\n"
        + score_table(found, ground)
        + "\n\nDistance between samples and held-out data (MMD², unbiased; 0 is perfect, and two real sets differ by "
        "the floor). The classical model is shown at its best churn, the distributional one at churn 1.\n"
    )
    table = Table(title="distance to held-out data (MMD², 0 is perfect)")
    for heading in ("steps", "distributional", "diffusion", "two real sets"):
        table.add_column(heading, justify="right")
    for n in study.steps:
        cells = [scientific(shown_churn(name, found[name][n])[1].unbiased) for name in ROWS]
        table.add_row(str(n), *cells, f"0 ± {scientific(ground.error * ground.repeats**0.5)}")
    console.print(table)
    return out / "demo.png"
