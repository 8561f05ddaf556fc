"""`distdiff sample`: points in the plane, or pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._check import require_between, require_count, require_seed
from ..baseline.samplers import SAMPLERS, require_sampler, sample_with
from ..data.toy import TOYS
from ..figure import COLORS, canvas, save
from ..progress import bar
from ..random import stream
from ..sample import Step
from ..train import load_denoiser
from ..train.folder import make_folder

__all__ = ["draw_images", "draw_points"]


def draw_points(
    run: Path,
    out: Path,
    *,
    steps: int,
    n: int,
    sampler: str = "distributional",
    churn: float | None = None,
    grid: str = "uniform",
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
) -> None:
    """Samples of a run into a folder: samples.npy, samples.png (and .pdf), samples.json with the settings."""
    own_churn = _check(steps, n, sampler, churn, seed, n if batch_size is None else batch_size)
    denoiser, config = load_denoiser(run, device)
    require_sampler(sampler, denoiser)
    make_folder(out)
    batches = 1 if batch_size is None else -(-n // batch_size)
    with bar("sampling", steps * batches) as advance:

        def callback(_: Step) -> None:
            advance()

        options: dict[str, Any] = {"batch_size": batch_size, "callback": callback}
        x = sample_with(denoiser, (n, 2), steps, sampler, own_churn, grid, seed, **options).cpu()
    np.save(out / "samples.npy", x.numpy())
    settings = {"run": str(run), "steps": steps, "n": n, "sampler": sampler}
    settings |= {"churn": own_churn, "grid": grid, "seed": seed}
    (out / "samples.json").write_text(json.dumps(settings, indent=2) + "\n")
    real = TOYS[config.data.name].sample(n, torch.Generator().manual_seed(stream(seed, "figure")))
    with canvas(1, 2, size=(4.0, 4.0), sharex=True, sharey=True) as (figure, panels):
        for axes, points, title in zip(panels, (real, x), ("data", f"samples, {steps} steps"), strict=True):
            color = "#444444" if title == "data" else COLORS["distributional"]
            axes.scatter(points[:, 0], points[:, 1], s=3, lw=0, alpha=0.6, color=color, rasterized=True)
            axes.set(title=title, xlim=(-6, 6), ylim=(-6, 6), aspect="equal")
        save(figure, out, "samples")


def draw_images(
    run: Path,
    out: Path,
    *,
    steps: int,
    n: int,
    sampler: str = "distributional",
    churn: float | None = None,
    grid: str = "uniform",
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
    label: str | None = None,
    trajectory: bool = False,
) -> None:
    """Pictures of a run into a folder: 000000.png and so on, grid.png, samples.json and, if asked, trajectory.gif."""
    from ..data.image import to_uint8
    from ..hub import load_pipeline
    from ..picture import as_image, save_animation
    from ..picture import grid as sheet

    size = min(n, 64) if batch_size is None else batch_size
    own_churn = _check(steps, n, sampler, churn, seed, size)
    pipe = load_pipeline(run, device)
    denoiser = pipe.denoiser
    require_sampler(sampler, denoiser)
    cond = pipe.condition(label, n)
    make_folder(out)
    for old in out.iterdir() if (out / "samples.json").exists() else ():
        if re.fullmatch(r"\d{6}\.png", old.name):
            old.unlink()
    made: list[Tensor] = []
    states: list[list[Tensor]] = [[] for _ in range(steps)]
    with bar("sampling", steps * -(-n // size)) as advance:

        def callback(step: Step) -> None:
            advance()
            if trajectory:
                states[step.index].append(to_uint8(pipe.decode(step.x0)).cpu())

        for first in range(0, n, size):
            count = min(size, n - first)
            labels = None if cond is None else cond[first : first + count]
            options: dict[str, Any] = {"cond": labels, "callback": callback}
            shape = (count, *pipe.sample_shape)
            with torch.no_grad():
                x = sample_with(denoiser, shape, steps, sampler, own_churn, grid, seed + first, **options)
                made.append(to_uint8(pipe.decode(x)).cpu())
    images = torch.cat(made)
    for index, image in enumerate(images):
        as_image(image).save(out / f"{index:06d}.png")
    sheet(images[:256]).save(out / "grid.png")
    if trajectory:
        save_animation([sheet(torch.cat(parts)[:64]) for parts in states], out / "trajectory.gif")
    settings = {"run": str(run), "steps": steps, "n": n, "sampler": sampler}
    settings |= {"churn": own_churn, "grid": grid, "seed": seed, "label": label}
    (out / "samples.json").write_text(json.dumps(settings, indent=2) + "\n")


def _check(steps: int, n: int, sampler: str, churn: float | None, seed: int, batch_size: int) -> float | None:
    """Raise the first thing wrong; the churn, for a sampler that takes one."""
    require_count("steps", steps)
    require_count("n", n)
    if churn is not None:
        require_between("churn", churn, 0, 1)
    require_count("batch_size", batch_size)
    require_seed(seed)
    require_seed(seed + n - 1)
    require_sampler(sampler)
    entry = SAMPLERS[sampler]
    return (entry.default if churn is None else churn) if entry.churn else None
