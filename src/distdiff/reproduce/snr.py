"""Conditional or joint scores: which interaction can be estimated with fewer samples?

The signal-to-noise ratios of both estimators in closed form against the variance of the data, for three biases of the
sigmoid weighting, with the variance from which on the conditional one wins; a simulation of the estimators stands
beside the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..figure import canvas
from ..kernel import Energy
from ..loss import Sigmoid
from ..posterior import GaussianPosterior
from ..random import stream
from ..recipe import SNR, SnrStudy
from ..schedule import FlowMatching, add_noise
from ..score import interaction
from ..theory import conditional_snr, joint_snr, snr_crossing
from .record import Record, table

__all__ = ["run"]

FORMULAS: dict[str, Callable[..., float]] = {"conditional": conditional_snr, "joint": joint_snr}


def run(scale: str, out: Path) -> None:
    study = SNR[scale]
    record = Record("snr", scale, study, out)
    variances = np.geomspace(*study.variances, study.resolution)
    curves = {
        kind: {b: [snr(float(v) ** 0.5, Sigmoid(b)) for v in variances] for b in study.biases}
        for kind, snr in FORMULAS.items()
    }
    stds = {b: snr_crossing(Sigmoid(b)) for b in study.biases}
    crossings = {b: None if std is None else std**2 for b, std in stds.items()}
    simulated = {kind: _simulate(kind, 1.0, Sigmoid(study.biases[0]), study) for kind in FORMULAS}
    exact = {kind: snr(1.0, Sigmoid(study.biases[0])) for kind, snr in FORMULAS.items()}
    record.results = {
        "variances": variances.tolist(),
        "snr": {kind: {f"{b:g}": curve for b, curve in curves[kind].items()} for kind in curves},
        "crossing_variance": {f"{b:g}": value for b, value in crossings.items()},
        "simulation": {"variance": 1.0, "bias": study.biases[0], "estimate": simulated, "formula": exact},
    }
    with canvas(size=(6.4, 4.2)) as (figure, axes):
        shades = np.linspace(1.0, 0.4, len(study.biases))
        for kind, color in (("conditional", "#b4283c"), ("joint", "#2b5fa8")):
            for shade, (bias, curve) in zip(shades, curves[kind].items(), strict=True):
                axes.plot(variances, curve, color=color, alpha=shade, label=f"{kind}, b={bias:g}")
        for shade, value in zip(shades, crossings.values(), strict=True):
            if value is not None:
                axes.axvline(value, color="black", alpha=shade, ls=":", lw=1.2)
        axes.set(xscale="log", xlabel="variance of the data σ²", ylabel="signal-to-noise ratio, one data point")
        axes.set_title("interaction of the conditional and the joint loss")
        axes.legend(ncols=2, frameon=True, framealpha=1, edgecolor="none")
        axes.set_ylim(bottom=0)
        record.figure(figure, "snr", "Right of each dotted line the conditional loss needs fewer samples.")
    rows = [[f"{b:g}", "none" if v is None else f"{v:.4f}"] for b, v in crossings.items()]
    record.text.append(table(["bias b", "σ² from which on the conditional loss wins"], rows))
    record.write(
        "Conditional or joint scores",
        [
            "The conditional interaction has the higher signal-to-noise ratio for every variance above "
            + ", ".join(f"{v:.3f} (b={b:g})" for b, v in crossings.items() if v is not None)
            + ".",
            f"Simulated at σ²=1, b={study.biases[0]:g} with populations of {study.population}: conditional "
            f"{simulated['conditional']:.2f} (formula, for infinite populations, {exact['conditional']:.2f}), joint "
            f"{simulated['joint']:.2f} ({exact['joint']:.2f}).",
        ],
    )


def _simulate(kind: str, std: float, weighting: Sigmoid, study: SnrStudy) -> float:
    """The ratio for one data point, from the mean and variance of simulated interactions."""
    schedule, kernel = FlowMatching(), Energy(1.0)
    posterior = GaussianPosterior(0.0, std, schedule=schedule)
    generator = torch.Generator().manual_seed(stream(study.seed, kind))
    n, m, dim = 64 * study.groups, study.population, 8

    def noisy(count: int, t: Tensor) -> tuple[Tensor, Tensor]:
        x0 = std * torch.randn(count, dim, generator=generator)
        return x0, add_noise(schedule, x0, t, torch.randn(count, dim, generator=generator))

    t = torch.rand(n, generator=generator)
    if kind == "conditional":
        values = interaction(kernel, posterior.draw(noisy(n, t)[1], t, m, generator=generator))
    else:
        x0, xt = (v.reshape(n, m, dim) for v in noisy(n * m, t.repeat_interleave(m)))
        values = interaction(kernel, x0) + interaction(kernel, xt)
    weighted = weighting(schedule, t) * values
    return float(weighted.mean() ** 2 / weighted.var())
