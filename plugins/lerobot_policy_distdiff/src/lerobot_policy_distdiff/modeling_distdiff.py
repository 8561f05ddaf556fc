"""The policy as LeRobot calls it, around `Chunks`."""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from typing import Any

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from distdiff._check import require, require_choice
from distdiff.policy import PolicySpec
from distdiff.recipe.config import LossConfig, PolicyConfig

from .chunks import Chunks, language_size
from .configuration_distdiff import DistdiffConfig

__all__ = ["DistdiffPolicy"]


class DistdiffPolicy(PreTrainedPolicy):
    """Chunks of actions in a few steps; chance comes from torch's seed, which LeRobot sets."""

    config_class = DistdiffConfig
    name = "distdiff"

    def __init__(self, config: DistdiffConfig, **_: Any) -> None:  # LeRobot also passes the dataset's statistics
        super().__init__(config)
        config.validate_features()
        loss = LossConfig(
            kind="conditional" if config.noise_dim else "regression",
            beta=config.beta,
            lam=config.lam,
            m=config.m,
            weighting=config.weighting,  # type: ignore[arg-type]
        )
        self.chunks = Chunks(_spec(config), loss, config.ema)
        self.reset()

    def get_optim_params(self) -> Any:
        return self.chunks.denoiser.parameters()

    def reset(self) -> None:
        self._states: deque[dict[str, Tensor]] = deque(maxlen=self.config.n_obs_steps)
        self._actions: deque[Tensor] = deque()

    def update(self) -> None:
        """LeRobot calls this after each step of the optimiser."""
        self.chunks.update()

    def forward(self, batch: dict[str, Any], reduction: str = "mean") -> tuple[Tensor, dict[str, Any]]:
        """The loss, its mean or (n,) with ``reduction="none"``; and nothing else to log."""
        require_choice("reduction", reduction, ("mean", "none"))
        losses = self.chunks(batch)
        return losses if reduction == "none" else losses.mean(), {}

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], noise: Tensor | None = None) -> Tensor:
        """Chunks (n, chunk_size, action size), in the scale that the post-processor takes.

        States may have their history, (n, n_obs_steps, size), or not, (n, size): then the present one is repeated.
        """
        require(noise is None, "noise", "a tensor", "left out: a chunk is drawn anew, from torch's seed")
        self.eval()
        return self.chunks.plan(batch, self.config.num_inference_steps, self.config.churn)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], noise: Tensor | None = None) -> Tensor:
        """The next action (n, action size); a chunk is planned when `n_action_steps` of the last one are used up."""
        present = {name: batch[name] for name in self.config.state_sizes if name in batch}
        self._states.append(present)
        while len(self._states) < self.config.n_obs_steps:  # before the first step there was the same, as in training
            self._states.append(present)
        if not self._actions:
            series = {name: torch.stack([state[name] for state in self._states], 1) for name in present}
            planned = self.predict_action_chunk({**batch, **series}, noise)
            self._actions.extend(planned[:, : self.config.n_action_steps].unbind(1))
        return self._actions.popleft()


def _spec(config: DistdiffConfig) -> PolicySpec:
    shared = [item.name for item in fields(PolicyConfig) if hasattr(config, item.name)]
    return PolicySpec(
        action_size=config.action_feature.shape[0],
        chunk=config.chunk_size,
        execute=config.n_action_steps,
        history=config.n_obs_steps,
        states=config.state_sizes,
        cameras=tuple(sorted(config.image_features)),
        camera_size=None if config.resize_shape is None else tuple(config.resize_shape),
        language_size=language_size(config.language),
        words=(),
        network=PolicyConfig(**{name: getattr(config, name) for name in shared}),
    )
