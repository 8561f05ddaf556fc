"""The Gaussian analysis: how much variance lambda < 1 loses, and how more steps win it back.

Left, the factor f(lambda, beta) by which the best Gaussian's variance is too small. Right, the variance of the
sampler's state on its way from noise to data for a Gaussian target, whose posteriors are all shrunk by f; a run of the
real sampler through such posteriors stands beside the recursion.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..figure import canvas
from ..posterior import GaussianPosterior
from ..recipe import GAUSSIAN
from ..sample import sample
from ..schedule import FlowMatching, time_grid
from ..theory import gaussian_path, variance_factor
from .record import Record, table

__all__ = ["run"]


def run(scale: str, out: Path) -> None:
    study = GAUSSIAN[scale]
    record = Record("gaussian", scale, study, out)
    lam = np.linspace(0, 1, study.resolution)
    beta = np.linspace(0, 2, study.resolution + 1)[1:]
    factors = variance_factor(lam[:, None], beta[None, :])
    factor = float(variance_factor(study.lam, study.beta))

    schedule = FlowMatching()
    posterior = GaussianPosterior(0.0, study.std, factor=factor, schedule=schedule)
    paths, sampled = {}, {}
    for steps in study.steps:
        grid = time_grid(schedule, steps)
        paths[steps] = gaussian_path(grid, std=study.std, factor=factor, churn=study.churn, schedule=schedule)
    for steps in study.steps[::4]:
        x = sample(posterior, (study.samples, 1), steps, study.churn, seed=study.seed)
        sampled[steps] = float(x.var())

    record.results = {
        "factor": factor,
        "map": {"lam": lam.tolist(), "beta": beta.tolist(), "factor": factors.tolist()},
        "paths": {str(n): {"t": p.times.tolist(), "variance": p.variance.tolist()} for n, p in paths.items()},
        "sampled_variance": {str(n): v for n, v in sampled.items()},
    }
    with canvas(1, 2, size=(5.4, 4.0)) as (figure, (left, right)):
        mesh = left.pcolormesh(beta, lam, factors, cmap="viridis", vmin=0, vmax=1, shading="nearest", rasterized=True)
        left.contour(beta, lam, factors, levels=[0.1, 0.25, 0.5, 0.75, 0.9], colors="white", linewidths=0.8)
        left.set(xlabel="β", ylabel="λ", title="share of the variance that is kept, f(λ, β)")
        left.grid(False)
        left.plot(study.beta, study.lam, "o", color="white", markeredgecolor="black")
        left.annotate(f"f = {factor:.3f}", (study.beta, study.lam), (8, 6), textcoords="offset points", color="white")
        figure.colorbar(mesh, ax=left)
        colors = _blue_to_red(len(paths))
        for color, (steps, path) in zip(colors, paths.items(), strict=True):
            right.plot(path.times, path.variance, color=color, lw=1.2, label=f"{steps} steps")
        ends = list(sampled.items())
        right.plot([0] * len(ends), [v for _, v in ends], "x", color="black", label="sampler", clip_on=False, zorder=5)
        right.axhline(study.std**2, color="black", ls="--", lw=1, label="target")
        right.set(xlabel="time t (noise at 1, data at 0)", ylabel="variance of the state", xlim=(1, 0))
        right.set_title(f"N(0, {study.std**2:g}), λ={study.lam:g}, β={study.beta:g}")
        handles, labels = right.get_legend_handles_labels()
        keep = [0, len(paths) - 1, len(paths), len(paths) + 1]
        right.legend([handles[i] for i in keep], [labels[i] for i in keep], loc="center left")
        caption = "Left: f(λ, β). Right: variance along the sampler, blue to red for more steps; crosses are samples."
        record.figure(figure, "gaussian", caption)

    rows = [
        [str(n), f"{float(paths[n].variance[-1]):.3f}", f"{v:.3f}", f"{3 * v * (2 / study.samples) ** 0.5:.3f}"]
        for n, v in sampled.items()
    ]
    record.text.append(table(["steps", "variance, recursion", "variance, sampler", "3 standard errors"], rows))
    few, many = min(paths), max(paths)
    record.write(
        "Gaussian analysis",
        [
            f"At λ={study.lam:g}, β={study.beta:g} the score keeps {factor:.1%} of a posterior's variance.",
            f"For the target variance {study.std**2:g}, {few} steps end at {float(paths[few].variance[-1]):.3f} and "
            f"{many} steps at {float(paths[many].variance[-1]):.3f}: small steps forgive a narrow posterior.",
        ],
    )


def _blue_to_red(count: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    return [tuple(colormaps["coolwarm"](k / max(count - 1, 1))) for k in range(count)]
