"""LeRobot's batches in, losses and chunks of actions out; the part of the plug-in that does not need LeRobot.

The network, its loss and the sampler are distdiff's. What is here is how LeRobot lays out a batch: vectors (n, size)
or (n, history, size), pictures (n, [history,] 3, height, width) in [0, 1], actions (n, chunk, size), all scaled by
LeRobot's own processors, and the instructions as strings under `task`. Of a history of pictures only the last is
looked at.

After an episode's end LeRobot repeats its last action and marks it in `action_is_pad`. The score of a chunk is one
number for all of its actions, so the repeated ones are learnt like the others: where actions are positions, to stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from distdiff import sample
from distdiff._check import require, require_between
from distdiff.nn.language import embed_sentences
from distdiff.policy import PolicySpec, build_policy_denoiser
from distdiff.recipe.config import LossConfig
from distdiff.train import build_loss

__all__ = ["Chunks", "language_size"]


def language_size(model: str | None) -> int:
    """Size of a sentence's vector, 0 for no language. Loads the model, so that a missing one is known at once."""
    return 0 if model is None else embed_sentences(["size"], model).shape[1]


class Chunks(nn.Module):
    """A denoiser of action chunks, the moving average of its weights, which is what plans, and its loss.

    Args:
        spec: states and cameras are the names of a batch; pictures are resized to `camera_size` if it is given.
        loss: used with the energy kernel; without noise in the network, a regression.
        ema: decay of the average.
    """

    def __init__(self, spec: PolicySpec, loss: LossConfig, ema: float = 0.999) -> None:
        super().__init__()
        require_between("ema", ema, 0, 1)
        self.spec = spec
        self.denoiser = build_policy_denoiser(spec)
        self.average = AveragedModel(self.denoiser, multi_avg_fn=_Averaging(ema)).requires_grad_(False).eval()
        self.objective = build_loss(loss, torch.empty(0))
        self._language: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> Chunks:
        super().train(mode)
        self.average.eval()
        return self

    def update(self) -> None:
        """To be called after each step of the optimiser."""
        self.average.update_parameters(self.denoiser)

    def observe(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """A batch as `PolicyNetwork.encode` takes it; a state without its history is repeated."""
        spec, seen = self.spec, {}
        wanted = [*spec.states, *spec.cameras, *(["task"] if spec.language_size else [])]
        missing = [name for name in wanted if name not in batch]
        require(not missing, "batch", sorted(batch), f"one with {', '.join(missing)}")
        if spec.states:
            seen["state"] = torch.cat([self._history(name, batch[name]) for name in spec.states], -1)
        for name in spec.cameras:
            seen[name] = self._picture(name, batch[name])
        if spec.language_size:
            seen["language"] = self._told(batch["task"]).to(next(self.denoiser.parameters()).device)
        return seen

    def _history(self, name: str, value: Tensor) -> Tensor:
        history, size = self.spec.history, self.spec.states[name]
        series = value[:, None].expand(-1, history, -1) if value.ndim == 2 else value
        allowed = f"of shape (n, {size}) or (n, {history}, {size})"
        require(series.ndim == 3 and series.shape[1:] == (history, size), name, tuple(value.shape), allowed)
        return series

    def _picture(self, name: str, value: Tensor) -> Tensor:
        frames = value[:, -1] if value.ndim == 5 else value
        fits = frames.ndim == 4 and frames.shape[1] == 3 and frames.is_floating_point()
        allowed = "floats of shape (n, 3, height, width) or (n, history, 3, height, width)"
        require(fits, name, f"{value.dtype} {tuple(value.shape)}", allowed)
        if self.spec.camera_size is not None and frames.shape[-2:] != self.spec.camera_size:
            frames = interpolate(frames, self.spec.camera_size, mode="bilinear", antialias=True)
        return 2 * frames - 1

    def _told(self, words: Sequence[str]) -> Tensor:
        spoken = not isinstance(words, str) and all(isinstance(text, str) and text for text in words)
        require(spoken, "task", words, "an instruction for each observation: the policy takes language")
        unknown = sorted(set(words) - set(self._language))
        if unknown:
            assert self.spec.network.language is not None
            self._language |= dict(zip(unknown, embed_sentences(unknown, self.spec.network.language), strict=True))
        return torch.stack([self._language[text] for text in words])

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """The loss of each row, (n,)."""
        require("action" in batch, "batch", sorted(batch), "one with action")
        actions = batch["action"]
        event = (self.spec.chunk, self.spec.action_size)
        require(actions.shape[1:] == event, "action", tuple(actions.shape), f"of shape (n, {event[0]}, {event[1]})")
        return self.objective(self.denoiser, actions, self.observe(batch))

    @torch.no_grad()
    def plan(
        self, batch: Mapping[str, Any], steps: int = 2, churn: float = 1.0, seeds: Sequence[int] | None = None
    ) -> Tensor:
        """Chunks (n, chunk, action_size), in the scale of training; row i depends on its own observation and seed.

        Seeds are drawn from torch's own generator unless they are given.
        """
        denoiser = self.average.module
        memory = denoiser.network.encode(self.observe(batch))
        drawn = torch.randint(2**63 - 1, (len(memory),)).tolist() if seeds is None else seeds
        shape = (len(memory), self.spec.chunk, self.spec.action_size)
        return sample(denoiser, shape, steps, churn, seed=drawn, cond=memory)


class _Averaging:
    """Exponential averaging that begins as a plain mean, as in distdiff's own training."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def __call__(self, averaged: Any, current: Any, count: Tensor) -> None:
        get_ema_multi_avg_fn(min(self.decay, (1 + int(count)) / (10 + int(count))))(averaged, current, count)
