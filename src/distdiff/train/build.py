"""From the names in a configuration to the objects they stand for. Every setting is checked here, before any work."""

from __future__ import annotations

import torch
from torch import Tensor

from .._check import (
    BadArgument,
    require,
    require_choice,
    require_count,
    require_positive,
    require_seed,
)
from ..data.toy import TOYS
from ..denoiser import Denoiser
from ..kernel import RBF, Energy, Exponential, InverseMultiquadric, Kernel, median_distance
from ..loss import ConditionalLoss, JointLoss, Loss, MarginalLoss, NoWeighting, RegressionLoss, Sigmoid, Weighting
from ..nn import MLP
from ..random import stream
from ..recipe.config import DataConfig, LossConfig, NetworkConfig, OptimConfig, RunConfig
from ..schedule import Cosine, FlowMatching, LinearBeta

__all__ = ["build_data", "build_denoiser", "build_loss", "check", "pick_device"]

SCHEDULES = {"flow": FlowMatching, "cosine": Cosine, "linear-beta": LinearBeta}
POPULATION_LOSSES = {"conditional": ConditionalLoss, "joint": JointLoss, "marginal": MarginalLoss}


def check(config: RunConfig) -> None:
    """Raise the first thing wrong with a configuration."""
    for name in ("steps", "batch_size", "log_every", "save_every"):
        require_count(name, getattr(config, name))
    require_seed(config.seed)
    require_seed(config.data.seed)
    pick_device(config.device)
    _check_optim(config.optim)
    require_choice("data.name", config.data.name, TOYS)
    require_count("data.points", config.data.points, least=2)
    build_loss(config.loss, torch.eye(2))
    with torch.random.fork_rng(devices=[]):
        build_denoiser(config.network)
    _check_fit(config.network, config.loss, config.batch_size)


def _check_optim(optim: OptimConfig) -> None:
    require_positive("optim.lr", optim.lr)
    require_positive("optim.eps", optim.eps)
    require_positive("optim.clip", optim.clip)
    require_count("optim.warmup", optim.warmup, least=0)
    for name, value in (("optim.ema", optim.ema), *(("optim.betas", b) for b in optim.betas)):
        require(0 <= value < 1, name, value, "in [0, 1)")


def _check_fit(network: NetworkConfig, loss: LossConfig, batch_size: int) -> None:
    if loss.kind == "regression":
        require(network.noise_dim == 0, "network.noise_dim", network.noise_dim, "0 for a regression")
    elif loss.lam > 0:
        require_count("network.noise_dim", network.noise_dim)
    if loss.kind in ("joint", "marginal"):
        require(batch_size % loss.m == 0, "batch_size", batch_size, f"a multiple of loss.m = {loss.m}")


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


def build_data(data: DataConfig) -> Tensor:
    """The training points, (points, 2)."""
    return TOYS[data.name].sample(data.points, torch.Generator().manual_seed(stream(data.seed, "data")))


def build_denoiser(config: NetworkConfig) -> Denoiser:
    require_choice("network.schedule", config.schedule, SCHEDULES)
    network = MLP(2, noise_dim=config.noise_dim, width=config.width, depth=config.depth, time_width=config.time_width)
    return Denoiser(
        network,
        schedule=SCHEDULES[config.schedule](),
        prediction=config.prediction,
        noise_shape=(config.noise_dim,) if config.noise_dim else None,
        safety=config.safety,
    )


def build_loss(config: LossConfig, data: Tensor) -> Loss:
    """The loss; kernels that take their width from the data measure it on `data` (n, *event)."""
    weighting: Weighting = NoWeighting() if config.weighting == "none" else Sigmoid(config.bias)
    if config.kind == "regression":
        return RegressionLoss(weighting=weighting)
    kind = POPULATION_LOSSES[config.kind]
    return kind(kernel=_kernel(config, data), lam=config.lam, m=config.m, weighting=weighting)


def _kernel(config: LossConfig, data: Tensor) -> Kernel:
    if config.kernel == "energy":
        return Energy(config.beta, scaled=config.scaled)
    if config.kernel == "imq":
        return InverseMultiquadric(config.c)
    median = median_distance(data[: 100 * 512].split(512))
    return (RBF if config.kernel == "rbf" else Exponential).from_median(median, config.gamma)
