"""The training loop: Adam, warm-up, clipping, averaged weights, and a run folder that survives an interruption.

`train` is a generator that yields its progress, so that a command line can draw a bar and a notebook can watch. All
randomness after the initial weights comes from one generator whose state is part of the checkpoint. A resumed run
continues as if it had never stopped, wherever it was interrupted: a step that fails before the weights change leaves no
trace, and one torn while they change is not saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .._check import require
from ..denoiser import Denoiser
from ..random import stream
from ..recipe.config import OptimConfig, RunConfig
from .build import build_data, build_denoiser, build_loss, check, pick_device
from .folder import RunFolder, flatten, load_weights

__all__ = ["Progress", "TrainState", "learning_rate", "train"]


class Progress(NamedTuple):
    step: int
    """Steps done."""
    steps: int
    loss: float
    """Mean loss since the last log."""
    denoiser: Denoiser
    """The averaged weights; a view into the run, not a copy."""


def learning_rate(optim: OptimConfig, step: int, steps: int) -> float:
    """The rate of step `step` (from 0): cosine warm-up, then constant or cosine decay to 0 at `steps`."""
    rate = optim.lr
    if step < optim.warmup:
        rate *= (1 - math.cos(math.pi * (step + 1) / optim.warmup)) / 2
    if optim.decay == "cosine":
        rate *= (1 + math.cos(math.pi * step / steps)) / 2
    return rate


def _averaging(decay: float) -> Callable[..., None]:
    """Exponential averaging that begins as a plain mean, so that short runs are not ruled by their initial weights."""

    def update(averaged: Any, current: Any, count: Tensor) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(count)) / (10 + int(count))))(averaged, current, count)

    return update


def train(
    config: RunConfig, out: str | Path | None = None, *, resume: bool = False, overwrite: bool = False
) -> Generator[Progress, None, None]:
    """Train a denoiser, yielding once a step. Without `out` nothing is written.

    Interrupting the iteration (an exception in its body, Ctrl-C, closing it) saves a checkpoint first.
    """
    check(config)
    folder = None if out is None else RunFolder(out)
    require(not (resume and folder is None), "resume", resume, "used with a run folder")
    if folder is not None and resume:
        _require_same(folder, config)
    elif folder is not None:
        folder.create(config, overwrite=overwrite)
    return _iterate(TrainState(config), folder, resume)


def _require_same(folder: RunFolder, config: RunConfig) -> None:
    """A resumed run may be longer or log differently, but is otherwise the same run."""
    saved = folder.read_config()
    free = {name: getattr(config, name) for name in ("steps", "device", "log_every", "save_every")}
    before, after = flatten(asdict(replace(saved, **free))), flatten(asdict(config))
    changed = [f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name]]
    require(not changed, "settings", "; ".join(changed), f"those of the run in {folder.path}")


class TrainState:
    """All that changes in a run."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.device = pick_device(config.device)
        data = build_data(config.data)
        self.loss = build_loss(config.loss, data)
        self.data = data.to(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(config.seed, "weights"))
            self.denoiser = build_denoiser(config.network).to(self.device)
        self.ema = AveragedModel(self.denoiser, multi_avg_fn=_averaging(config.optim.ema))
        optim = config.optim
        self.optimizer = torch.optim.Adam(
            self.denoiser.parameters(), lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=self.device.type != "mps"
        )
        self.generator = torch.Generator(self.device).manual_seed(stream(config.seed, "batches"))
        self.step = 0
        self.torn = False
        """Whether the weights are between two steps, after an interruption at the worst moment."""

    def advance(self) -> Tensor:
        """One step; the batch's mean loss."""
        before = self.generator.get_state()
        try:
            loss = self.gradients()
        except BaseException:
            self.generator.set_state(before)
            raise
        self.torn = True
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.optim, self.step, self.config.steps)
        self.optimizer.step()
        self.ema.update_parameters(self.denoiser)
        self.step += 1
        self.torn = False
        return loss

    def gradients(self) -> Tensor:
        """Put the clipped gradient of a fresh batch into the parameters; its loss."""
        size = (self.config.batch_size,)
        rows = torch.randint(len(self.data), size, generator=self.generator, device=self.device)
        loss = self.loss(self.denoiser, self.data[rows], generator=self.generator).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.denoiser.parameters(), self.config.optim.clip)
        if not bool(torch.isfinite(loss.detach() + norm)):
            raise FloatingPointError(
                f"step {self.step + 1}: loss {loss.item()}, gradient norm {norm.item()}; the weights of step "
                f"{self.step} are untouched. A lower optim.lr or another loss may help"
            )
        return loss.detach()

    def tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{key}": value for key, value in self.denoiser.state_dict().items()}
        tensors |= {f"ema.{key}": value for key, value in self.ema.state_dict().items()}
        tensors |= {
            f"optimizer.{index}.{key}": value
            for index, state in self.optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }
        return tensors | {"generator": self.generator.get_state()}

    def save(self, folder: RunFolder) -> None:
        folder.save(folder.weights, self.ema.module.state_dict())
        folder.save(folder.checkpoint, self.tensors(), {"step": str(self.step), "device": self.device.type})

    def restore(self, folder: RunFolder) -> None:
        """Take up the last checkpoint of a run."""
        source = folder.checkpoint
        tensors, metadata = folder.load(source)
        step, device = metadata.get("step", ""), metadata.get("device", "")
        require(step.isdigit(), f"step of {source}", step, "a whole number")
        require(
            device == self.device.type, "device", self.device.type, f"{device}, as the run in {folder.path} began on"
        )
        require(int(step) <= self.config.steps, "steps", self.config.steps, f"at least {step}, which are done already")
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}}
        for key, value in tensors.items():
            if key != "generator":
                group, _, name = key.partition(".")
                groups.setdefault(group, {})[name] = value
        load_weights(self.denoiser, groups["model"], source)
        load_weights(self.ema, groups["ema"], source)
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in groups["optimizer"].items():
            index, _, name = key.partition(".")
            states.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": states})
        self.generator.set_state(tensors["generator"])
        self.step = int(step)


def _iterate(state: TrainState, folder: RunFolder | None, resume: bool) -> Generator[Progress, None, None]:
    config = state.config
    averaged: Denoiser = state.ema.module  # type: ignore[assignment]
    if folder is not None and resume:
        state.restore(folder)
        folder.write_config(config)
        folder.trim_metrics(state.step)
    earlier = folder.seconds() if folder is not None else 0.0
    total, count, start, saved = 0.0, 0, time.perf_counter() - earlier, state.step
    try:
        while state.step < config.steps:
            total, count = total + float(state.advance()), count + 1
            mean = total / count
            if state.step % config.log_every == 0 or state.step == config.steps:
                if folder is not None:
                    rate = learning_rate(config.optim, state.step - 1, config.steps)
                    seconds = round(time.perf_counter() - start, 3)
                    folder.log({"step": state.step, "loss": mean, "lr": rate, "seconds": seconds})
                total, count = 0.0, 0
            if folder is not None and state.step % config.save_every == 0:
                state.save(folder)
                saved = state.step
            yield Progress(state.step, config.steps, mean, averaged)
    finally:
        if folder is not None and not state.torn and (state.step > saved or not folder.weights.exists()):
            state.save(folder)
