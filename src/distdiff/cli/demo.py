"""`make demo`: a few-step model of handwritten digits and its classical twin, side by side at 1, 2, 4 and 8 steps."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from ..evaluate.image import best_entries
from ..figure import canvas, save
from ..picture import grid
from ..progress import console
from ..recipe import IMAGE_DEMO
from ..reproduce.images import compare, samples_of, score_table
from ..reproduce.runs import train_runs
from ..train.folder import make_folder
from ..train.image import held_out

__all__ = ["run"]

ROWS = {"distributional": "distributional:\ndraws from the posterior", "diffusion": "diffusion:\npredicts its mean"}
SHOWN = 30


def run(out: Path) -> Path:
    """Train both, write demo.png, demo.pdf and demo.md; the path of the figure."""
    make_folder(out)
    study = IMAGE_DEMO
    console.print("Two models, same data, same network, same number of training steps: which one samples in few steps?")
    runs, *_ = train_runs(study.models, out, side_by_side=True)
    found = compare(study, runs)
    best = {name: {e.steps: e for e in best_entries(found[name].entries)} for name in ROWS}
    real, _ = held_out(study.models["distributional"], "auto").batch(list(range(SHOWN)))
    with canvas(2, len(study.steps) + 1, size=(2.3, 2.9)) as (figure, panels):
        for row, (name, title) in zip(panels, ROWS.items(), strict=True):
            config = study.models[name]
            shown = {"held-out digits": real} | {
                f"{n} step{'s' * (n > 1)}: fd {best[name][n].score.frechet:.2f}": samples_of(
                    runs[name], best[name][n], SHOWN, study.seed, config.device
                )
                for n in study.steps
            }
            for axes, (label, pictures) in zip(row, shown.items(), strict=True):
                axes.imshow(grid(pictures, columns=5), cmap="gray")
                axes.set_title(label)
                axes.set(xticks=[], yticks=[])
                axes.grid(visible=False)
                for spine in axes.spines.values():
                    spine.set_visible(False)
            row[0].set_ylabel(title)
        save(figure, out, "demo")
    ground = found["distributional"].floor.frechet
    settings = found["distributional"].settings
    (out / "demo.md").write_text(
        "# Few steps: drawing from the posterior against predicting its mean\n\n![samples](demo.png)\n\n"
        + score_table(found)
        + f"\n\nfd: Fréchet distance on features of a small classifier, {settings['n']} samples against "
        f"{settings['n_reference']} pictures of {settings['reference']}; real training pictures score {ground:.2f}. "
        "Each model is shown at its best churn.\n"
    )
    table = Table(title=f"fd to held-out digits (real training digits score {ground:.2f})")
    for heading in ("steps", *ROWS, "ratio"):
        table.add_column(heading, justify="right")
    for n in study.steps:
        ours, other = (best[name][n].score.frechet for name in ROWS)
        table.add_row(str(n), f"{ours:.2f}", f"{other:.2f}", f"{other / ours:.1f}")
    console.print(table)
    return out / "demo.png"
