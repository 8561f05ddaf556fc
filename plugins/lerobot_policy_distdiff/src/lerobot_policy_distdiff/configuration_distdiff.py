"""Settings of the policy type `distdiff`. What is observed comes from the dataset, as LeRobot has it."""

from dataclasses import dataclass, field

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode
from lerobot.optim.optimizers import AdamConfig
from lerobot.optim.schedulers import DiffuserSchedulerConfig
from lerobot.utils.constants import ACTION

from distdiff._check import require, require_between, require_count

__all__ = ["DistdiffConfig"]


@PreTrainedConfig.register_subclass("distdiff")
@dataclass
class DistdiffConfig(PreTrainedConfig):
    """A few-step distributional diffusion policy.

    It looks at all that `input_features` declares: vectors are joined into one state, of which it sees `n_obs_steps`;
    of each camera it sees the present picture.

    Args:
        n_obs_steps: states seen, the last one the present.
        chunk_size: actions planned at once, the first for the present step.
        n_action_steps: actions of a chunk that are carried out before the next one is planned.
        num_inference_steps: denoising steps a chunk.
        churn: 1 for the ancestral sampler, 0 for the deterministic one.
        noise_dim: size of the network's noise beside each action; 0 for a classical model, trained by regression.
        beta, lam, m: exponent of the energy score, weight of its interaction, draws a data point.
        weighting: of times in the loss, sigmoid or none.
        language: frozen BERT for the task's words: minilm, or a folder or hub name; None for a policy told nothing.
        width, depth, heads, encoder_depth, dropout, branch_at: sizes of the transformer, see `distdiff.nn.policy`.
        vision, vision_width: resnet10 or resnet18 a camera, channels of its first stage.
        resize_shape: height and width that pictures are resized to; as they come by default.
        prediction, schedule, safety: see `distdiff.Denoiser`.
        ema: decay of the moving average of the weights, which is what acts.
    """

    n_obs_steps: int = 1
    chunk_size: int = 8
    n_action_steps: int = 8
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "STATE": NormalizationMode.MEAN_STD,
            "ENV": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MIN_MAX,
            "VISUAL": NormalizationMode.IDENTITY,
        }
    )

    num_inference_steps: int = 2
    churn: float = 1.0

    noise_dim: int = 2
    beta: float = 1.0
    lam: float = 1.0
    m: int = 16
    weighting: str = "sigmoid"

    language: str | None = None
    width: int = 512
    depth: int = 6
    heads: int = 8
    encoder_depth: int = 4
    dropout: float = 0.0
    branch_at: int = 0
    vision: str = "resnet18"
    vision_width: int = 64
    resize_shape: tuple[int, int] | None = None
    prediction: str = "x0"
    schedule: str = "flow"
    safety: float = 1e-2
    ema: float = 0.999

    optimizer_lr: float = 1e-4
    optimizer_betas: tuple[float, float] = (0.9, 0.999)
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 0.0
    optimizer_grad_clip_norm: float = 1.0
    scheduler_name: str = "cosine"
    scheduler_warmup_steps: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_obs_steps", "chunk_size", "n_action_steps", "num_inference_steps"):
            require_count(name, getattr(self, name))
        fits = self.n_action_steps <= self.chunk_size
        require(fits, "n_action_steps", self.n_action_steps, f"at most chunk_size, {self.chunk_size}")
        require_between("churn", self.churn, 0, 1)
        require(self.weighting in ("sigmoid", "none"), "weighting", self.weighting, "sigmoid or none")
        if self.resize_shape is not None:
            pair = len(self.resize_shape) == 2 and min(self.resize_shape) > 0
            require(pair, "resize_shape", self.resize_shape, "a height and a width")

    @property
    def state_sizes(self) -> dict[str, int]:
        """Vectors that are joined into the state, by name; sorted, so that the order of a file does not matter."""
        kinds = (FeatureType.STATE, FeatureType.ENV)
        inputs = sorted((self.input_features or {}).items())
        return {name: feature.shape[0] for name, feature in inputs if feature.type in kinds}

    def validate_features(self) -> None:
        seen = self.state_sizes or self.image_features
        require(bool(seen), "input_features", sorted(self.input_features or {}), "a state or a camera, or several")
        for name, feature in (self.input_features or {}).items():
            shape = tuple(feature.shape)
            if feature.type is FeatureType.VISUAL:
                require(len(shape) == 3 and shape[0] == 3, name, shape, "colour pictures of shape (3, height, width)")
            elif name in self.state_sizes:
                require(len(shape) == 1, name, shape, "a vector; leave it out of input_features if it is none")
        outputs = sorted(self.output_features or {})
        require(self.action_feature is not None, "output_features", outputs, f"one with {ACTION!r}")
        shape = tuple(self.action_feature.shape)
        require(len(shape) == 1, ACTION, shape, "a vector")

    def get_optimizer_preset(self) -> AdamConfig:
        return AdamConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=self.optimizer_grad_clip_norm,
        )

    def get_scheduler_preset(self) -> DiffuserSchedulerConfig:
        return DiffuserSchedulerConfig(name=self.scheduler_name, num_warmup_steps=self.scheduler_warmup_steps)

    @property
    def observation_delta_indices(self) -> list[int]:
        return list(range(1 - self.n_obs_steps, 1))

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        return None
