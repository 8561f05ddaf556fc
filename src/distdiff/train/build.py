"""From the names in a configuration to the objects they stand for, and the checks that all kinds of runs share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._check import (
    BadArgument,
    is_number,
    require,
    require_count,
    require_positive,
    require_seed,
)
from ..baseline.distill import MomentMatching
from ..kernel import RBF, Energy, Exponential, InverseMultiquadric, Kernel, median_distance
from ..loss import (
    ConditionalLoss,
    JointLoss,
    Loss,
    MarginalLoss,
    NoWeighting,
    RegressionLoss,
    Sigmoid,
    Spread,
    Weighting,
)
from ..peer import MeanFlowLoss, OTFlowLoss
from ..posterior import EmpiricalPosterior
from ..recipe.config import ImageRun, LossConfig, OptimConfig, PointsRun, RobotRun, RunConfig, UNetConfig
from ..score import FeatureMaps

__all__ = ["POPULATION_LOSSES", "build_loss", "check_fit", "check_run", "pick_device"]

POPULATION_LOSSES = {"conditional": ConditionalLoss, "joint": JointLoss, "marginal": MarginalLoss}


def check_run(config: RunConfig) -> None:
    """Raise the first thing wrong with the settings that every kind of run has."""
    for name in ("steps", "batch_size", "accumulate", "log_every", "save_every", "keep"):
        require_count(name, getattr(config, name))
    require_seed(config.seed)
    device = pick_device(config.device)
    half = config.precision == "fp16" and device.type == "cpu"
    require(not half, "precision", config.precision, "no or bf16 on a CPU")
    if config.tracker == "wandb":
        try:
            import wandb  # noqa: F401
        except ImportError:
            raise BadArgument(
                "tracker must be tensorboard or none unless wandb is installed: pip install wandb"
            ) from None
    _check_optim(config.optim)
    restart = config.optim.restart
    require(restart == 0 or restart < config.steps, "optim.restart", restart, f"less than the {config.steps} steps")


def _check_optim(optim: OptimConfig) -> None:
    require_positive("optim.lr", optim.lr)
    require_positive("optim.eps", optim.eps)
    require_positive("optim.clip", optim.clip)
    for name in ("warmup", "restart"):
        require_count(f"optim.{name}", getattr(optim, name), least=0)
    for name, value in (("optim.ema", optim.ema), *(("optim.betas", b) for b in optim.betas)):
        require(0 <= value < 1, name, value, "in [0, 1)")


def check_fit(config: PointsRun | ImageRun | RobotRun) -> None:
    """Whether a run's loss fits its length, its batch, its network and what that starts from."""
    loss, batch_size, network, init = config.loss, config.batch_size, config.network, getattr(config, "init", None)
    short = loss.warmup >= config.steps
    require(not short, "loss.warmup", loss.warmup, f"less than the {config.steps} steps, which it is the start of")
    pictures = isinstance(network, UNetConfig)
    for name in ("patches", "features"):
        value = getattr(loss, name)
        require(pictures or not value, f"loss.{name}", value, "left out for data that are no pictures")
    pixels = pictures and getattr(config, "latent", None) is None
    require(pixels or loss.targets == 1, "loss.targets", loss.targets, "1 for data other than the pixels of pictures")
    noise: int | bool = network.noise if isinstance(network, UNetConfig) else network.noise_dim
    noise_name = f"network.{'noise' if pictures else 'noise_dim'}"
    distilled = loss.kind == "moment-matching"
    require(not (distilled and init is None), "init", init, "the run of a teacher for a loss of kind moment-matching")
    fresh = init is None or loss.kind != "mean-flow"
    require(fresh, "init", init, "left out for a loss of kind mean-flow, whose network takes spans")
    if loss.kind not in POPULATION_LOSSES:
        require(not noise, noise_name, noise, f"{type(noise)(0)} for a loss of kind {loss.kind}")
    elif loss.lam > 0:
        require(bool(noise), noise_name, noise, "given" if noise is False else "a whole number of at least 1")
    if loss.kind in ("joint", "marginal"):
        require(batch_size % loss.m == 0, "batch_size", batch_size, f"a multiple of loss.m = {loss.m}")
    averages = loss.kind == "mean-flow"
    require(network.spans == averages, "network.spans", network.spans, f"{averages} for loss.kind = {loss.kind}")
    if averages:
        require(network.prediction == "velocity", "network.prediction", network.prediction, "velocity for mean-flow")
        require(network.schedule == "flow", "network.schedule", network.schedule, "flow for mean-flow")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise BadArgument(f"device must be auto or a device of this machine such as cpu, got {name!r}") from None
    return torch.device(name)


def build_loss(
    config: LossConfig,
    data: Tensor,
    features: FeatureMaps | None = None,
    posterior: EmpiricalPosterior | None = None,
) -> Loss | MomentMatching:
    """The loss; kernels that take their width from the data measure it on `data` (n, *event), in batches of 512.

    `posterior` is that of the training data, for a loss of several targets.
    """
    require_count("loss.warmup", config.warmup, least=0)
    require_count("loss.targets", config.targets)
    fits = config.kind == "conditional" or config.targets == 1
    require(fits, "loss.targets", config.targets, "1 unless loss.kind is conditional")
    for name in ("anchor", "features"):
        value = getattr(config, name)
        require(is_number(value) and value >= 0, f"loss.{name}", value, "a number of at least 0")
    for name in ("patches", "warmup", "anchor", "features"):
        value = getattr(config, name)
        fits = config.kind == "conditional" or not value
        require(fits, f"loss.{name}", value, "left out unless loss.kind is conditional")
    scored = config.features > 0 or config.perceptual_weights is None
    require(scored, "loss.perceptual_weights", config.perceptual_weights, "left out where loss.features is 0")
    weightings: dict[str, Weighting] = {"none": NoWeighting(), "sigmoid": Sigmoid(config.bias), "spread": Spread()}
    weighting = weightings[config.weighting]
    if config.kind == "regression":
        return RegressionLoss(weighting=weighting)
    if config.kind == "ot-flow":
        return OTFlowLoss(weighting=weighting)
    if config.kind == "mean-flow":
        return MeanFlowLoss(weighting=weighting, times=config.times, span_share=config.span_share, power=config.power)
    if config.kind == "moment-matching":
        return MomentMatching(k=config.k, churn=config.churn, weighting=weighting)
    kind = POPULATION_LOSSES[config.kind]
    more: dict[str, Any] = {}
    if kind is ConditionalLoss:
        more = {"patches": config.patches, "anchor": config.anchor}
        if features is not None:
            more |= {"features": features, "feature_weight": config.features}
        if posterior is not None:
            more |= {"posterior": posterior, "targets": config.targets}
    return kind(kernel=_kernel(config, data), lam=config.lam, m=config.m, weighting=weighting, **more)


def _kernel(config: LossConfig, data: Tensor) -> Kernel:
    if config.kernel == "energy":
        return Energy(config.beta, scaled=config.scaled)
    if config.kernel == "imq":
        return InverseMultiquadric(config.c)
    median = median_distance(data.split(512))
    return (RBF if config.kernel == "rbf" else Exponential).from_median(median, config.gamma)
