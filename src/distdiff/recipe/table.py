"""The comparison tables: NFE x method, as the paper lays them out, and at sizes that two CPU cores manage.

A study lists the models to train and the columns that are read off them: one model may serve several columns (the
classical model is sampled by the SDE or DDIM, by DPM-Solver++, and as flow matching by Euler), and one column several
models (a distilled student is trained for a number of steps). Every model has the width, data, batch and, unless it is
a student, the gradient steps of the distributional one. `matched` lists models that are trained once more, for the
wall time that the distributional model took. The other way round, points have a distributional model of fewer
steps, meant to take no longer than a teacher and its student.

At `small` a distilled student is trained for fewer steps than its teacher and at a smaller learning rate, which was
found to be better as well as faster: with more steps its samples drift away again. `paper` keeps the settings and the
numbers of the paper's own tables, which stand beside ours where the experiment is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .config import FLOWS, ImageRun, PointsRun, RunConfig, own_samplers
from .image import IMAGES
from .points import POINT_PEERS, STUDIES

__all__ = ["SHORT", "STUDENT", "TABLES", "Column", "Model", "TableStudy"]

NFE = (1, 2, 4, 8, 15)
PAPER_NFE = (2, 4, 8, 10, 12, 15)
CHURNS = (0.0, 0.5, 1.0)
SHORT = "Distributional, short"
"""Meant to be trained for no longer than a teacher and its student take together; the table shows the times."""
STUDENT = "Distributional student"
"""Starts from the same teacher as a distilled one, and is trained with the scoring rule."""
PAPER_TABLES: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar10": {
        "Diffusion": (80.77, 23.31, 7.53, 5.67, 4.83, 3.61),
        "DPM-Solver++": (19.41, 12.60, 3.95, 3.55, 3.69, 3.91),
        "Distributional": (29.33, 4.67, 3.21, 3.19, 3.03, 2.87),
        "Distillation": (5.19, 3.84, 3.13, 2.99, 2.93, 2.76),
    },
    "celeba": {
        "Diffusion": (62.85, 26.25, 13.07, 11.67, 10.00, 8.51),
        "DPM-Solver++": (58.39, 20.39, 17.28, 22.48, 23.23, 23.53),
        "Distributional": (81.79, 22.98, 4.94, 3.60, 3.37, 3.45),
        "Distillation": (7.02, 6.47, 4.43, 4.43, 4.25, 4.27),
    },
    "lsun": {
        "Diffusion": (238.85, 41.57, 10.82, 9.08, 7.04, 6.51),
        "DPM-Solver++": (120.99, 43.60, 12.95, 17.85, 16.07, 23.91),
        "Distributional": (233.24, 69.90, 9.79, 7.14, 6.12, 5.78),
        "Distillation": (16.04, 5.54, 4.52, 4.64, 3.81, 4.39),
    },
    "celebahq-latent": {
        "Diffusion": (101.47, 53.83, 15.60, 11.89, 9.97, 8.39),
        "DPM-Solver++": (114.44, 26.05, 20.70, 21.84, 24.61, 27.31),
        "Distributional": (67.60, 23.80, 9.84, 8.15, 7.04, 6.21),
        "Distillation": (37.88, 14.47, 8.22, 6.76, 6.05, 5.46),
    },
}
"""FID in the paper's appendix, at its numbers of evaluations."""


@dataclass(frozen=True)
class Model:
    """Something to train, once a seed."""

    run: RunConfig
    teacher: str | None = None
    """The model it starts from."""


@dataclass(frozen=True)
class Column:
    """A method of the table: how its models are sampled."""

    models: dict[int, str]
    """The model that is asked up to and including a number of steps; the last one serves all above."""
    samplers: tuple[str, ...]
    """Samplers tried."""
    churns: tuple[float, ...] = (1.0,)
    """Churns tried, by the samplers that have one."""
    grids: tuple[str, ...] = ("uniform",)
    """Time grids tried."""

    def model(self, nfe: int) -> str:
        """The name of the model for a number of steps."""
        return self.models[min((k for k in self.models if k >= nfe), default=max(self.models))]


@dataclass(frozen=True)
class TableStudy:
    models: dict[str, Model]
    columns: dict[str, Column]
    nfe: tuple[int, ...] = NFE
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds."""
    metric: str = "D"
    """D (points), fd or fid."""
    n: int = 2048
    """Samples a score."""
    sets: int = 0
    """Further sets of so many samples, on which a chosen setting is scored; 0: scored on those it was chosen by."""
    n_reference: int | None = None
    """Held-out data compared with; all by default."""
    workers: int = 1
    """Processes at once; a single one uses all cores."""
    matched: tuple[str, ...] = ()
    """Models trained again for as long as the distributional one took."""
    matched_seeds: tuple[int, ...] = (0,)
    """Training seeds of these."""
    paper: dict[str, dict[int, float]] = field(default_factory=dict)
    """The paper's numbers by column and NFE, where its experiment is the same."""


def _columns(students: dict[int, str], peers: bool, short: bool, own: tuple[str, ...]) -> dict[str, Column]:
    """The paper's columns, its future work, and the peers; `own` are the samplers of distributional models."""

    def one(name: str) -> dict[int, str]:
        return {1: name}

    columns = {
        "Diffusion": Column(one("diffusion"), ("distributional",), CHURNS),
        "DPM-Solver++": Column(one("diffusion"), ("dpm++", "sde-dpm++"), grids=("uniform", "logsnr", "edm")),
        "Distributional": Column(one("distributional"), own, CHURNS),
        **({SHORT: Column(one("short"), own, CHURNS)} if short else {}),
        "Distillation": Column(students, ("distributional",), (0.0, 0.25, 0.5, 0.75, 1.0)),
        STUDENT: Column(one("student"), own, CHURNS),
    }
    if peers:
        columns |= {
            "Flow matching": Column(one("diffusion"), ("euler",)),
            "OT-CFM": Column(one("ot-flow"), ("euler",)),
            "MeanFlow": Column(one("mean-flow"), ("mean-flow",)),
        }
    return columns


@dataclass(frozen=True)
class Students:
    """How students are distilled."""

    ks: tuple[int, ...] = (2, 4, 8)
    """Numbers of steps, each with a student of its own."""
    steps: int = 1000
    lr: float = 1e-3
    ema: float = 0.99
    betas: tuple[float, float] = (0.9, 0.999)


def _run(name: str, kind: str, scale: str) -> PointsRun | ImageRun:
    """A recipe's model of a kind: distributional, diffusion, ot-flow or mean-flow."""
    full = name if kind == "distributional" else f"{name}-{kind}"
    if name not in STUDIES:
        return IMAGES[full][scale]
    return POINT_PEERS[full][scale] if full in POINT_PEERS else STUDIES[name][scale].models[kind]


def _study(
    name: str, scale: str, distilled: Students, peers: bool = True, short: int | None = None, **options: Any
) -> TableStudy:
    """All columns for a recipe; `short` adds the distributional model of so many steps."""
    kinds = ("distributional", "diffusion", *(FLOWS if peers else ()))
    runs = {kind: _run(name, kind, scale) for kind in kinds}
    models = {kind: Model(run) for kind, run in runs.items()}
    ours, classical = runs["distributional"], runs["diffusion"]
    students = {k: f"distilled-{k}" for k in distilled.ks}
    optim = replace(classical.optim, lr=distilled.lr, ema=distilled.ema, betas=distilled.betas)
    for k, student in students.items():
        loss = replace(classical.loss, kind="moment-matching", k=k)
        models[student] = Model(replace(classical, steps=distilled.steps, loss=loss, optim=optim), "diffusion")
    steps = ours.steps - ours.loss.warmup if ours.loss.warmup else ours.steps // 2
    loss, optim = replace(ours.loss, warmup=0), replace(ours.optim, restart=0)
    models["student"] = Model(replace(ours, steps=steps, loss=loss, optim=optim), "diffusion")
    if short is not None:
        models["short"] = Model(replace(ours, steps=short))
    return TableStudy(models, _columns(students, peers, short is not None, own_samplers(ours.loss)), **options)


_NO_MOMENTUM = (0.0, 0.99)
"""Adam's constants of short distillations: with momentum student and auxiliary oscillate, and some runs diverge."""


def _points(name: str, scale: str, **options: Any) -> TableStudy:
    lengths = {"paper": Students(steps=20_000), "small": Students(steps=800, lr=3e-4), "smoke": Students(steps=10)}
    return _study(name, scale, replace(lengths[scale], betas=_NO_MOMENTUM), **options)


_PAPER_STUDENTS = Students(steps=100_000, lr=1e-4, ema=0.9999)


def _images(name: str, scale: str, **options: Any) -> TableStudy:
    small = Students((4, 8), steps=600, lr=3e-4, betas=_NO_MOMENTUM)
    lengths = {"paper": _PAPER_STUDENTS, "small": small, "smoke": Students(steps=2)}
    return _study(name, scale, lengths[scale], **options)


def _paper(name: str, numbers: dict[str, tuple[float, ...]]) -> TableStudy:
    """A table of the appendix: 100,000 steps a student, its number of steps the table's."""
    columns = {column: dict(zip(PAPER_NFE, values, strict=True)) for column, values in numbers.items()}
    distilled = replace(_PAPER_STUDENTS, ks=PAPER_NFE)
    options: dict[str, Any] = {"nfe": PAPER_NFE, "metric": "fid", "n": 50_000, "paper": columns}
    return _study(name, "paper", distilled, peers=False, **options)


_TINY: dict[str, Any] = {"nfe": (1, 2), "seeds": (0, 1), "n": 64}
_PEERS = ("diffusion", "ot-flow", "mean-flow")

TABLES: dict[str, dict[str, TableStudy]] = {
    **{
        name: {
            "paper": _points(name, "paper", n=16384),
            "small": _points(name, "small", n=16384, workers=2, matched=_PEERS, short=2_000),
            "smoke": _points(name, "smoke", **_TINY, matched=("diffusion",), short=6),
        }
        for name in ("checkerboard", "mixture2d")
    },
    "digits": {
        "paper": _images("digits", "paper", metric="fd"),
        "small": _images("digits", "small", metric="fd", n=720, sets=4, workers=2, matched=_PEERS),
        "smoke": _images("digits", "smoke", metric="fd", **_TINY),
    },
    "fashion-mnist": {
        "paper": _images("fashion-mnist", "paper", metric="fid", n=50_000),
        "small": _images("fashion-mnist", "small", metric="fd", seeds=(0,), workers=2, n_reference=4000),
        "smoke": _images("fashion-mnist", "smoke", metric="fd", **_TINY),
    },
    **{
        name: {
            "paper": _paper(name, numbers),
            "small": _images(name, "small", metric="fd", seeds=(0,), workers=2, n_reference=4000),
            "smoke": _images(name, "smoke", metric="fd", **_TINY),
        }
        for name, numbers in PAPER_TABLES.items()
    },
}
"""Tables by name and scale."""
