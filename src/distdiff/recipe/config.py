"""Every setting of a training run: frozen dataclasses, printed, saved with the run, overridable from the command line.

They hold numbers and names. What the names stand for is built in `distdiff.train.build`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SCALES", "DataConfig", "LossConfig", "NetworkConfig", "OptimConfig", "RunConfig"]

SCALES = ("paper", "small", "smoke")


@dataclass(frozen=True)
class DataConfig:
    name: Literal["mixture2d", "checkerboard"] = "mixture2d"
    """Distribution to train on."""
    points: int = 102400
    """Training points drawn from it once."""
    seed: int = 0
    """Seed of those points."""


@dataclass(frozen=True)
class NetworkConfig:
    width: int = 64
    """Width of the MLP's layers."""
    depth: int = 4
    """Layers before time and point are joined, and after."""
    time_width: int = 2048
    """Width of the time embedding and of its two-layer MLP."""
    noise_dim: int = 2
    """Size of the noise xi beside each point; 0 for a classical model."""
    prediction: Literal["x0", "velocity", "noise"] = "x0"
    """What the network predicts."""
    schedule: Literal["flow", "cosine", "linear-beta"] = "flow"
    """Noise schedule."""
    safety: float = 1e-2
    """Times are kept in [safety, 1 - safety]."""


@dataclass(frozen=True)
class LossConfig:
    kind: Literal["conditional", "joint", "marginal", "regression"] = "conditional"
    """conditional is the paper's; regression is classical diffusion."""
    kernel: Literal["energy", "imq", "rbf", "exp"] = "energy"
    """Kernel of the score."""
    beta: float = 0.1
    """Exponent of the energy kernel, in (0, 2]."""
    scaled: bool = False
    """Use (rho - 1) / beta for the energy kernel, which keeps gradients in range as beta shrinks."""
    c: float = 1.0
    """Parameter of the imq kernel."""
    gamma: float = 1.0
    """Width of rbf (squared) and exp kernels as a multiple of the data's median distance (squared for rbf)."""
    lam: float = 1.0
    """Weight of the interaction, in [0, 1]; 1 is the proper score."""
    m: int = 32
    """Population: draws a data point."""
    weighting: Literal["none", "sigmoid"] = "sigmoid"
    """Weight of each time in the loss."""
    bias: float = 0.0
    """Bias of the sigmoid weighting."""


@dataclass(frozen=True)
class OptimConfig:
    lr: float = 1e-3
    """Adam's learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's averaging constants."""
    eps: float = 1e-8
    """Adam's epsilon."""
    warmup: int = 100
    """Steps of cosine warm-up."""
    decay: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.99
    """Decay of the moving average of the weights, which is what samples."""


@dataclass(frozen=True)
class RunConfig:
    steps: int = 100_000
    """Training steps."""
    batch_size: int = 128
    """Data points a step."""
    seed: int = 0
    """Seed of the weights, the order of the data and all noise."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, ..."""
    log_every: int = 100
    """Steps between lines of metrics.jsonl."""
    save_every: int = 5000
    """Steps between checkpoints."""
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
