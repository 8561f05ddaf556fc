"""The paper's image experiments, and the same at sizes that two CPU cores manage.

`paper` holds the numbers of its appendix: U-Nets of width 256 with multipliers (1, 2, 2, 2), population 4, Adam at
1e-4. Where the paper sweeps (beta, lambda, weighting) a recipe takes values from the sweep; where it is silent (the
rate of dropout, the averaging of weights, mirrored pictures) it takes what is usual. `small` narrows the network, works
on blocks of 2 x 2 pixels and trains for less than an hour on two cores; `smoke` is good for nothing but tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .config import (
    FLOWS,
    AutoencoderConfig,
    AutoencoderRun,
    EvaluationConfig,
    ImageData,
    ImageRun,
    LossConfig,
    OptimConfig,
    PreviewConfig,
    ReconstructionConfig,
    UNetConfig,
)

__all__ = ["AUTOENCODER", "COMPLEXITY", "IMAGES", "IMAGE_DEMO", "IMAGE_STUDIES", "ComplexityStudy", "ImageStudy"]

MEAN_FLOW_LR = 1e-3
"""The largest learning rate of MeanFlow, whose errors are divided by themselves, so that gradients do not fall with
them: at that of `small` one training in three of digits ended far off, at this none did."""
PAPER = ImageRun(
    steps=1_000_000,
    batch_size=256,
    tracker="tensorboard",
    precision="no",
    data=ImageData("cifar10", size=32, channels=3, flip=True, workers=4),
    network=UNetConfig(),
    loss=LossConfig(beta=1.0, lam=1.0, m=4, weighting="sigmoid"),
    optim=OptimConfig(lr=1e-4, ema=0.9999),
)
SMALL = ImageRun(
    steps=8_000,
    batch_size=32,
    tracker="tensorboard",
    log_every=50,
    save_every=500,
    network=UNetConfig(width=24, multipliers=(1, 2, 2), dropout=0.0, patch=2),
    loss=LossConfig(beta=1.0, lam=1.0, m=4, weighting="none"),
    optim=OptimConfig(lr=2e-3, decay="cosine", ema=0.999),
    preview=PreviewConfig(every=1000, steps=4),
    evaluation=EvaluationConfig(every=0, metric="fd"),
)
SMOKE = replace(
    SMALL,
    steps=4,
    batch_size=8,
    log_every=2,
    save_every=2,
    tracker="none",
    network=UNetConfig(width=8, multipliers=(1, 2), blocks=1, dropout=0.0, patch=2),
    preview=PreviewConfig(every=0, n=16, steps=2),
    evaluation=EvaluationConfig(every=0, metric="fd", n=64, steps=2),
)


def _scales(paper: ImageRun, small: ImageRun, smoke: ImageRun) -> dict[str, ImageRun]:
    return {"paper": paper, "small": small, "smoke": smoke}


def _classical(config: ImageRun) -> ImageRun:
    """The classical twin: same network without noise, velocity prediction, regression; scored at 100 steps."""
    weighting = "none" if config.loss.weighting == "spread" else config.loss.weighting  # velocities have one spread
    return replace(
        config,
        network=replace(config.network, noise=False, branch_at=0, noise_levels=0, prediction="velocity"),
        optim=replace(config.optim, restart=0),
        loss=replace(
            config.loss,
            kind="regression",
            lam=0.0,
            m=1,
            patches=(),
            features=0.0,
            perceptual_weights=None,
            anchor=0.0,
            targets=1,
            warmup=0,
            weighting=weighting,
        ),
        evaluation=replace(config.evaluation, steps=100 if config.evaluation.steps == 10 else config.evaluation.steps),
    )


def _peer(config: ImageRun, kind: Literal["ot-flow", "mean-flow"]) -> ImageRun:
    """A peer: the network, data, steps and batch of the classical twin, without churn."""
    twin, averages = _classical(config), kind == "mean-flow"
    optim = replace(twin.optim, lr=min(twin.optim.lr, MEAN_FLOW_LR)) if averages else twin.optim
    return replace(
        twin,
        network=replace(twin.network, spans=averages),
        optim=optim,
        loss=replace(twin.loss, kind=kind, weighting="none" if averages else twin.loss.weighting),
        preview=replace(twin.preview, churn=0.0),
        evaluation=replace(config.evaluation if averages else twin.evaluation, churn=0.0),
    )


_DIGITS = ImageData("digits", size=8, channels=1)
_FASHION = ImageData("fashion-mnist", size=28, channels=1)
_CIFAR = ImageData("cifar10", size=32, channels=3, flip=True)
_FACES = ImageData("celeba", size=64, channels=3, flip=True, workers=4)
_BEDROOMS = ImageData("lsun-bedroom", size=64, channels=3, flip=True, workers=4)
_FACES_LARGE = ImageData("celeba-hq", size=256, channels=3, flip=True, workers=4)

_digits_small = replace(
    SMALL,
    steps=3_000,
    channels_last=True,
    data=_DIGITS,
    network=replace(SMALL.network, multipliers=(1, 2), patch=1, branch_at=3, noise_levels=2, prediction="edm"),
    loss=replace(SMALL.loss, m=2, patches=(2, 4), anchor=1.0, targets=16, weighting="spread"),
)
_smoke_digits = replace(SMOKE, data=_DIGITS)
_colour_small = replace(
    SMALL,
    steps=4_000,
    channels_last=True,
    data=_CIFAR,
    network=replace(SMALL.network, width=48, multipliers=(1, 2, 2, 2), branch_at=7, noise_levels=3),
)

_DISTRIBUTIONAL: dict[str, dict[str, ImageRun]] = {
    "cifar10": _scales(PAPER, _colour_small, _smoke_digits),
    "celeba": _scales(
        replace(PAPER, batch_size=64, data=_FACES), replace(_colour_small, data=replace(_FACES, size=32)), _smoke_digits
    ),
    "lsun": _scales(
        replace(PAPER, batch_size=64, data=_BEDROOMS),
        replace(_colour_small, data=replace(_BEDROOMS, size=32)),
        _smoke_digits,
    ),
    "celebahq-latent": _scales(
        replace(
            PAPER,
            steps=2_000_000,
            batch_size=16,
            data=_FACES_LARGE,
            latent="runs/autoencoder-paper",
            network=replace(PAPER.network, attention=(3,)),
        ),
        replace(
            _colour_small,
            data=replace(_FACES_LARGE, size=64),
            latent="runs/autoencoder-small",
            network=replace(SMALL.network, patch=1),
        ),
        _smoke_digits,
    ),
    "fashion-mnist": _scales(
        replace(PAPER, data=_FASHION, network=replace(PAPER.network, multipliers=(1, 2, 2))),
        replace(
            SMALL,
            steps=4_500,
            channels_last=True,
            data=replace(_FASHION, label_column="none"),
            network=replace(SMALL.network, width=32, refine=8, prediction="edm"),
            loss=replace(
                SMALL.loss,
                m=2,
                patches=(4, 7, 14),
                features=1.0,
                perceptual_weights="alexnet",
                anchor=1.0,
                weighting="spread",
            ),
            optim=replace(SMALL.optim, kind="muon"),
        ),
        replace(SMOKE, data=_DIGITS),
    ),
    "digits": _scales(
        replace(PAPER, steps=100_000, data=_DIGITS, network=replace(PAPER.network, width=64, multipliers=(1, 2))),
        _digits_small,
        _smoke_digits,
    ),
    "image": _scales(replace(PAPER, data=ImageData(flip=True)), replace(SMALL, data=ImageData()), _smoke_digits),
}

IMAGES: dict[str, dict[str, ImageRun]] = {
    name + suffix: {scale: change(config) for scale, config in scales.items()}
    for name, scales in _DISTRIBUTIONAL.items()
    for suffix, change in (("", lambda config: config), ("-diffusion", _classical))
} | {
    f"{name}-{peer}": {scale: _peer(config, peer) for scale, config in _DISTRIBUTIONAL[name].items()}
    for name in _DISTRIBUTIONAL
    for peer in FLOWS
}
"""Image runs by name and scale; each has a classical twin with the suffix -diffusion and peers."""

_AUTOENCODER = AutoencoderRun(
    steps=2_000_000,
    batch_size=16,
    tracker="tensorboard",
    data=_FACES_LARGE,
    network=AutoencoderConfig(),
    loss=ReconstructionConfig(),
    optim=OptimConfig(lr=1e-4, ema=0.999),
)
AUTOENCODER: dict[str, AutoencoderRun] = {
    "paper": _AUTOENCODER,
    "small": replace(
        _AUTOENCODER,
        steps=2_000,
        batch_size=8,
        log_every=20,
        save_every=200,
        data=replace(_CIFAR, workers=0),
        network=AutoencoderConfig(width=16, multipliers=(1, 2, 2), blocks=1, codebook=512),
        loss=ReconstructionConfig(adversarial_start=1_000),
        preview=PreviewConfig(every=500),
        optim=OptimConfig(lr=1e-3, ema=0.99),
    ),
    "smoke": replace(
        _AUTOENCODER,
        steps=4,
        batch_size=4,
        log_every=2,
        save_every=2,
        tracker="none",
        data=replace(_DIGITS, size=24),
        network=AutoencoderConfig(width=8, multipliers=(1, 2, 2), blocks=1, codebook=16),
        loss=ReconstructionConfig(adversarial_start=2),
        preview=PreviewConfig(every=2, n=4),
        optim=OptimConfig(lr=1e-3, ema=0.9),
    ),
}


@dataclass(frozen=True)
class ImageStudy:
    """What one `distdiff reproduce` of an image experiment trains and measures."""

    models: dict[str, ImageRun]
    """Trained models by name: distributional and diffusion."""
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 50)
    """Numbers of sampling steps."""
    churns: tuple[float, ...] = (0.0, 0.5, 1.0)
    """Churns tried for each."""
    samplers: tuple[str, ...] = ("distributional", "dpm++", "sde-dpm++")
    """Samplers tried for the classical model."""
    own: tuple[str, ...] | None = None
    """Samplers tried for the distributional model; all that its loss allows by default."""
    metric: Literal["fid", "fd"] = "fid"
    """The score."""
    screen_by: Literal["fd", "kid"] = "fd"
    """What churn and sampler are chosen by, for fid."""
    n_screen: int = 512
    """Samples for that choice."""
    classical_steps: tuple[int, ...] | None = None
    """Numbers of steps of the classical model, if not all of them."""
    n: int = 2048
    """Samples a score."""
    n_reference: int | None = None
    """Held-out pictures compared with; all by default."""
    seed: int = 0
    """Sample i uses seed + i."""


def _pair(name: str, scale: str) -> dict[str, ImageRun]:
    return {"distributional": IMAGES[name][scale], "diffusion": IMAGES[f"{name}-diffusion"][scale]}


_TINY = {"steps": (1, 2), "metric": "fd", "n": 64}

IMAGE_STUDIES: dict[str, dict[str, ImageStudy]] = {
    "fashion-mnist": {
        "paper": ImageStudy(_pair("fashion-mnist", "paper"), n=50_000),
        "small": ImageStudy(
            _pair("fashion-mnist", "small"),
            own=("distributional", "settle"),
            classical_steps=(4, 8),
            screen_by="kid",
            n_screen=256,
            n_reference=2_500,
        ),
        "smoke": ImageStudy(_pair("fashion-mnist", "smoke"), **_TINY),  # type: ignore[arg-type]
    },
    "digits": {
        "paper": ImageStudy(_pair("digits", "paper"), metric="fd"),
        "small": ImageStudy(_pair("digits", "small"), metric="fd"),
        "smoke": ImageStudy(_pair("digits", "smoke"), **_TINY),  # type: ignore[arg-type]
    },
    "cifar10": {
        "paper": ImageStudy(_pair("cifar10", "paper"), steps=(10, 30, 50, 70, 90, 100), n=50_000),
        "small": ImageStudy(_pair("cifar10", "small"), n_reference=5_000),
        "smoke": ImageStudy(_pair("cifar10", "smoke"), **_TINY),  # type: ignore[arg-type]
    },
}

_demo = replace(
    _digits_small,
    steps=500,
    tracker="none",
    network=replace(_digits_small.network, noise_levels=0, prediction="x0"),
    loss=replace(_digits_small.loss, m=8, patches=(4,), anchor=0.0, weighting="none"),
    preview=PreviewConfig(every=0),
    save_every=500,
)

IMAGE_DEMO = ImageStudy(
    {"distributional": _demo, "diffusion": _classical(_demo)},
    steps=(1, 2, 4, 8),
    samplers=("distributional",),
    metric="fd",
    n=720,
)
"""`make demo`: digits, a minute or two."""


@dataclass(frozen=True)
class ComplexityStudy:
    """Cost of a training step against the population, for the network of a recipe."""

    run: ImageRun
    populations: tuple[int, ...] = (1, 2, 4, 8)
    branches: tuple[int, ...] = (0, 7)
    """Values of branch_at."""
    rounds: int = 8
    """Timed steps of each, in turns."""
    batch_size: int = 32


COMPLEXITY: dict[str, ComplexityStudy] = {
    "paper": ComplexityStudy(IMAGES["cifar10"]["paper"], batch_size=256),
    "small": ComplexityStudy(IMAGES["cifar10"]["small"]),
    "smoke": ComplexityStudy(IMAGES["cifar10"]["smoke"], populations=(1, 2), branches=(0, 2), rounds=1, batch_size=4),
}
