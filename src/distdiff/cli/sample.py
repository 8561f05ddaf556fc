"""`distdiff sample` for points in the plane."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from .._check import require_between, require_count, require_seed
from ..data.toy import TOYS
from ..figure import COLORS, canvas, save
from ..progress import bar
from ..random import stream
from ..sample import Step, sample
from ..train.folder import load_denoiser, make_folder

__all__ = ["draw_points"]


def draw_points(
    run: Path,
    out: Path,
    *,
    steps: int,
    n: int,
    churn: float = 1.0,
    grid: str = "uniform",
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
) -> None:
    """Samples of a run into a folder: samples.npy, samples.png (and .pdf), samples.json with the settings."""
    require_count("steps", steps)
    require_count("n", n)
    require_between("churn", churn, 0, 1)
    require_count("batch_size", n if batch_size is None else batch_size)
    require_seed(seed)
    require_seed(seed + n - 1)
    denoiser, config = load_denoiser(run, device)
    make_folder(out)
    batches = 1 if batch_size is None else -(-n // batch_size)
    with bar("sampling", steps * batches) as advance:

        def callback(_: Step) -> None:
            advance()

        x = sample(denoiser, (n, 2), steps, churn, grid, seed, batch_size=batch_size, callback=callback).cpu()
    np.save(out / "samples.npy", x.numpy())
    settings = {"run": str(run), "steps": steps, "n": n, "churn": churn, "grid": grid, "seed": seed}
    (out / "samples.json").write_text(json.dumps(settings, indent=2) + "\n")
    real = TOYS[config.data.name].sample(n, torch.Generator().manual_seed(stream(seed, "figure")))
    with canvas(1, 2, size=(4.0, 4.0), sharex=True, sharey=True) as (figure, panels):
        for axes, points, title in zip(panels, (real, x), ("data", f"samples, {steps} steps"), strict=True):
            color = "#444444" if title == "data" else COLORS["distributional"]
            axes.scatter(points[:, 0], points[:, 1], s=3, lw=0, alpha=0.6, color=color, rasterized=True)
            axes.set(title=title, xlim=(-6, 6), ylim=(-6, 6), aspect="equal")
        save(figure, out, "samples")
