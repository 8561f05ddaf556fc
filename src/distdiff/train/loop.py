"""The training loop: Accelerate, an optimiser, warm-up, clipping, averaged weights, and a run folder that survives.

`train` is a generator that yields its progress, so that a command line can draw a bar and a notebook can watch. The
rows, noise and dropout of a step are functions of the seed and the step's number. A resumed run therefore continues as
if it had never stopped, wherever it was interrupted or killed: a step that fails before the weights change leaves no
trace, and one torn while they change is not saved. The same makes the split of a batch over processes and micro-batches
immaterial (but for rounding, and dropout): together they draw what one process with the whole batch would have drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .._check import require
from ..random import BlockGenerator, stream
from ..recipe.config import AutoencoderRun, ImageRun, OptimConfig, PointsRun, RobotRun, RunConfig
from .build import pick_device
from .folder import RunFolder, flatten, load_weights
from .optimizer import build_optimizer
from .task import Phase, PointsTask, Task, rows_in_order, seeded

__all__ = ["Progress", "TrainState", "build_task", "check", "learning_rate", "train"]


class Progress(NamedTuple):
    step: int
    """Steps done."""
    steps: int
    loss: float
    """Mean loss since the last log."""
    denoiser: Any
    """The averaged model; a view into the run, not a copy."""
    rows: int
    """Data points a step, over all processes."""
    stop: Callable[[], None]
    """End training after this step, on all processes alike."""


def learning_rate(optim: OptimConfig, step: int, steps: int) -> float:
    """The rate of step `step` (from 0): cosine warm-up, then constant or cosine decay to 0 at `steps`.

    With a restart this course is run through twice: up to that step, and from it on.
    """
    rate = optim.lr
    if optim.restart:
        step, steps = (step, optim.restart) if step < optim.restart else (step - optim.restart, steps - optim.restart)
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


def build_task(config: RunConfig) -> Task:
    """Check every setting, read the data and build the modules. Nothing is written.

    On a CPU this thread, and those that torch starts from it, flush denormal numbers to zero until training ends:
    gradients of saturated activations are full of them, and a step can take several times as long because of that.
    """
    if pick_device(config.device).type == "cpu":
        torch.set_flush_denormal(True)
    if isinstance(config, PointsRun):
        return PointsTask(config)
    if isinstance(config, ImageRun):
        from .image import ImageTask

        return ImageTask(config)
    if isinstance(config, RobotRun):
        from .robot import RobotTask

        return RobotTask(config)
    from .autoencoder import AutoencoderTask

    assert isinstance(config, AutoencoderRun)
    return AutoencoderTask(config)


def check(config: RunConfig) -> None:
    """Raise the first thing wrong with a configuration."""
    build_task(config)


def train(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    resume: bool | str = False,
    overwrite: bool = False,
    task: Task | None = None,
) -> Generator[Progress, None, None]:
    """Train a model, yielding once a step. Without `out` nothing is written.

    Interrupting the iteration (an exception in its body, Ctrl-C, closing it) saves a checkpoint first.

    Args:
        resume: "latest" (or True), "best" or the number of a step: go on from that checkpoint.
        overwrite: replace an earlier run in the folder.
        task: what `build_task(config)` gave, where the caller has built it already.
    """
    task = build_task(config) if task is None else task
    folder = None if out is None else RunFolder(out)
    require(not (resume and folder is None), "resume", resume, "used with a run folder")
    which = "latest" if resume is True else resume
    if folder is not None and which:
        _require_same(folder, config)
        folder.checkpoint(which)
    state = TrainState(task)
    if not which:
        with state.accelerator.main_process_first():  # the others read what it has kept
            task.learn()
    if folder is not None and not which:
        if state.main:
            folder.create(config, overwrite=overwrite)
        state.accelerator.wait_for_everyone()
    return _iterate(state, folder, which)


def _require_same(folder: RunFolder, config: RunConfig) -> None:
    """A resumed run may be longer, or log, save and look differently, but is otherwise the same run."""
    saved = folder.read_config()
    require(type(saved) is type(config), "settings", type(config).__name__, f"those of the run in {folder.path}")
    names = ("steps", "device", "log_every", "save_every", "keep", "tracker", "preview", "evaluation", "rollout")
    free = {name: getattr(config, name) for name in names if hasattr(config, name)}
    before, after = flatten(asdict(replace(saved, **free))), flatten(asdict(config))
    changed = [f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name]]
    require(not changed, "settings", "; ".join(changed), f"those of the run in {folder.path}")


class TrainState:
    """All that changes in a run."""

    def __init__(self, task: Task) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState

        config = task.config
        self.task, self.config = task, config
        device = pick_device(config.device)
        cpu = device.type == "cpu"
        together = PartialState(cpu=cpu, timeout=timedelta(hours=6))  # others wait while one process samples and scores
        AcceleratorState._reset_state(reset_partial_state=together.num_processes == 1)
        self.accelerator = Accelerator(device_placement=False, mixed_precision=config.precision, cpu=cpu)
        self.world, self.main = self.accelerator.num_processes, self.accelerator.is_main_process
        self.device = device if self.world == 1 else self.accelerator.device
        layout: Any = {"memory_format": torch.channels_last} if config.channels_last else {}
        for module in task.modules.values():
            module.to(self.device, **layout)
        self.ema = AveragedModel(task.model, multi_avg_fn=_averaging(config.optim.ema))
        self.ema.module.eval()
        self.phases: list[Phase] = task.phases()
        self.optimizers = [build_optimizer(phase.parameters, config.optim, self.device) for phase in self.phases]
        if config.compile:
            for module in task.modules.values():
                getattr(module, "network", module).compile()
        wrapped = self.accelerator.prepare(*(phase.objective for phase in self.phases), *self.optimizers)
        self.objectives, self.stepping = wrapped[: len(self.phases)], wrapped[len(self.phases) :]
        self.dropout = any(
            isinstance(part, nn.Dropout) and part.p > 0 for module in task.modules.values() for part in module.modules()
        )
        self.step = 0
        self.best: float | None = None
        self.loader: Any = None
        self.stopping = False
        self.torn = False
        """Whether the weights are between two steps, after an interruption at the worst moment."""

    def stop(self) -> None:
        """Leave after this step, together with the other processes."""
        self.stopping = True
        if self.world == 1:
            raise KeyboardInterrupt

    @property
    def rows(self) -> int:
        """Data points a step, over all processes and micro-batches."""
        return self.config.batch_size * self.config.accumulate * self.world

    def advance(self) -> dict[str, Tensor]:
        """One step; the mean loss of each phase on this process."""
        if self.step and self.step == self.config.optim.restart:
            self._begin_anew()
        batches = self._batches()
        losses: dict[str, Tensor] = {}
        for index, phase in enumerate(self.phases):
            losses[phase.name] = self.gradients(index, batches)
            self.torn = True
            for group in self.optimizers[index].param_groups:
                group["lr"] = learning_rate(self.config.optim, self.step, self.config.steps)
            self.stepping[index].step()
        self.ema.update_parameters(self.task.model)
        self.step += 1
        self.torn = False
        return losses

    def _begin_anew(self) -> None:
        """Forget what the optimisers and the average remember of the steps before, as another run would."""
        for optimizer in self.optimizers:
            optimizer.state.clear()
        self.ema.n_averaged.zero_()

    def _batches(self) -> list[Any]:
        """The micro-batches of this process in this step."""
        config, size = self.config, self.config.batch_size
        if self.loader is None:
            parts = [
                rows_in_order(
                    self.task.length,
                    config.seed,
                    self.step * self.rows,
                    size,
                    (micro * self.world + self.accelerator.process_index) * size,
                    self.rows,
                )
                for micro in range(config.accumulate)
            ]
            self.loader = self.task.batches(rows for step in zip(*parts, strict=True) for rows in step)
        return [next(self.loader) for _ in range(config.accumulate)]

    def gradients(self, index: int, batches: list[Any]) -> Tensor:
        """Put the clipped gradient of a phase into its parameters; its loss."""
        config, phase, objective = self.config, self.phases[index], self.objectives[index]
        self.optimizers[index].zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for micro, batch in enumerate(batches):
            first = (micro * self.world + self.accelerator.process_index) * config.batch_size
            seed = stream(config.seed, f"noise of {phase.name}")
            generator = BlockGenerator(seed, self.step, first, config.batch_size, self.device)
            data, cond = self.task.prepare(batch, self.device, generator)
            last = micro + 1 == len(batches)
            dropped = (
                seeded(config.seed, f"dropout {phase.name} {self.step} {first}") if self.dropout else nullcontext()
            )
            with nullcontext() if last else self.accelerator.no_sync(objective), dropped:
                loss = objective(data, cond, generator, self.step).mean() / len(batches)
                self.accelerator.backward(loss)
            total += loss.detach()
        self.accelerator.unscale_gradients(self.stepping[index])
        norm = nn.utils.get_total_norm([p.grad for p in phase.parameters if p.grad is not None])
        self._require_finite(phase, total, norm)
        nn.utils.clip_grads_with_norm_(phase.parameters, config.optim.clip, norm)
        return total

    def _require_finite(self, phase: Phase, loss: Tensor, norm: Tensor) -> None:
        finite = float(torch.isfinite(loss) if self.config.precision == "fp16" else torch.isfinite(loss + norm))
        if self.shared(finite) == 1:  # in fp16 the scaler skips a step whose gradients overflow, and lowers its scale
            return
        names = {id(p): f"{name}.{key}" for name, m in self.task.modules.items() for key, p in m.named_parameters()}
        bad = [names.get(id(p), "?") for p in phase.parameters if p.grad is not None and not p.grad.isfinite().all()]
        culprit = (
            "the loss" if not bool(torch.isfinite(loss)) else f"the gradient of {', '.join(bad[:3]) or 'the model'}"
        )
        raise FloatingPointError(
            f"step {self.step + 1}: {culprit} is not finite ({phase.name} {loss.item()}, gradient norm {norm.item()}); "
            f"the last checkpoint is of a good step. Start again with a lower optim.lr, or another loss"
        )

    def shared(self, value: float) -> float:
        """The mean of a number over all processes."""
        if self.world == 1:
            return value
        return float(self.accelerator.reduce(torch.tensor(value, device=self.device), reduction="mean"))

    def tensors(self) -> dict[str, Tensor]:
        tensors = {f"ema.{key}": value for key, value in self.ema.state_dict().items()}
        for name, module in self.task.modules.items():
            tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
        for phase, optimizer in zip(self.phases, self.optimizers, strict=True):
            tensors |= {
                f"optimizer.{phase.name}.{index}.{key}": value
                for index, state in optimizer.state_dict()["state"].items()
                for key, value in state.items()
            }
        scaler = self.accelerator.scaler
        for key, value in scaler.state_dict().items() if scaler is not None else ():
            tensors[f"scaler.{key}"] = torch.as_tensor(value, dtype=torch.float64)
        return tensors

    def save(self, folder: RunFolder, *, best: bool = False) -> None:
        """Write a checkpoint, and the model where users find it: the best one if runs are scored, else the last."""
        if not self.main:
            return
        if best or not folder.best.exists():
            self.task.export(folder, self.ema.module)  # first: a checkpoint says that all before it is done
        metadata = {"step": str(self.step), "device": self.device.type, "rows": str(self.rows)}
        if self.best is not None:
            metadata |= {"best": repr(self.best), "best_by": self._best_by()}
        folder.save(folder.best if best else folder.step_file(self.step), self.tensors(), metadata)
        if not best:
            folder.prune(self.config.keep)

    def _best_by(self) -> str:
        """How the score was taken: scores taken otherwise do not compare."""
        return repr(getattr(self.config, "evaluation", getattr(self.config, "rollout", None)))

    def restore(self, source: Path, folder: RunFolder) -> None:
        """Take up a checkpoint of a run."""
        tensors, metadata = folder.load(source)
        step, device = metadata.get("step", ""), metadata.get("device", "")
        require(step.isdigit(), f"step of {source}", step, "a whole number")
        require(
            device == self.device.type, "device", self.device.type, f"{device}, as the run in {folder.path} began on"
        )
        require(int(step) <= self.config.steps, "steps", self.config.steps, f"at least {step}, which are done already")
        rows = metadata.get("rows", str(self.rows))
        require(rows == str(self.rows), "batch of all processes", self.rows, f"{rows}, as the run began with")
        groups: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = value
        for name, module in {**self.task.modules, "ema": self.ema}.items():
            load_weights(module, groups.get(name, {}), source)
        states: dict[str, dict[int, dict[str, Tensor]]] = {phase.name: {} for phase in self.phases}
        for key, value in groups.get("optimizer", {}).items():
            phase_name, index, name = key.split(".")
            states[phase_name].setdefault(int(index), {})[name] = value
        for phase, optimizer in zip(self.phases, self.optimizers, strict=True):
            optimizer.load_state_dict(optimizer.state_dict() | {"state": states[phase.name]})
            for parameter, state in optimizer.state.items():  # moments must lie in memory as their parameter does
                for key, value in state.items():
                    if value.shape == parameter.shape:
                        state[key] = torch.empty_like(parameter).copy_(value)
        if self.accelerator.scaler is not None and "scaler" in groups:
            self.accelerator.scaler.load_state_dict(scaler_state(groups["scaler"]))
        self.step = int(step)
        same = folder.best_step() <= self.step and metadata.get("best_by") == self._best_by()
        self.best = float(metadata["best"]) if "best" in metadata and same else None


def scaler_state(tensors: dict[str, Tensor]) -> dict[str, float | int]:
    """The state of a gradient scaler, whose counts must be whole numbers."""
    values = {key: value.item() for key, value in tensors.items()}
    return {
        key: int(value) if key in ("growth_interval", "_growth_tracker") else value for key, value in values.items()
    }


def _begin(state: TrainState, folder: RunFolder | None, resume: str | bool) -> None:
    """Take up a checkpoint, or start a new run's folder."""
    if folder is None:
        return
    if not resume:
        if state.main:
            state.task.begin(folder)
        return
    source = folder.checkpoint(resume)
    state.restore(source, folder)
    state.accelerator.wait_for_everyone()
    if state.main:
        folder.trim(state.step)
        folder.write_config(state.config)


def _iterate(state: TrainState, folder: RunFolder | None, resume: str | bool) -> Generator[Progress, None, None]:
    config = state.config
    if state.device.type == "cpu":
        torch.set_flush_denormal(True)  # again, where another run has ended since the task was built
    _begin(state, folder, resume)
    earlier = (folder.seconds() if folder is not None else 0.0) or state.task.seconds
    total, count, start, saved = 0.0, 0, time.perf_counter() - earlier, state.step
    track = _Tracker(state, folder)
    try:
        while state.step < config.steps:
            losses = state.advance()
            total, count = total + float(losses[state.phases[0].name]), count + 1
            mean = total / count
            if state.step % config.log_every == 0 or state.step == config.steps:
                rate = learning_rate(config.optim, state.step - 1, config.steps)
                mean = state.shared(mean)
                values = {name: state.shared(float(loss)) for name, loss in losses.items()}
                values |= {"loss": mean, "lr": rate}
                track(values, seconds=round(time.perf_counter() - start, 3))
                total, count = 0.0, 0
            if folder is not None:
                measured = state.task.observe(state.step, state.ema.module, folder) if state.main else {}
                if measured:
                    track(measured)
                if "score" in measured and (state.best is None or measured["score"] < state.best):
                    state.best = measured["score"]
                    state.save(folder, best=True)
                if state.step % config.save_every == 0:
                    state.save(folder)
                    saved = state.step
            yield Progress(state.step, config.steps, mean, state.ema.module, state.rows, state.stop)
            if state.world > 1 and state.shared(float(state.stopping)) > 0:
                raise KeyboardInterrupt  # all processes leave after the same step
    finally:
        if folder is not None and not state.torn and (state.step > saved or not folder.steps()):
            state.save(folder)
        track.close()
        torch.set_flush_denormal(False)


class _Tracker:
    """metrics.jsonl, and TensorBoard or W&B beside it."""

    def __init__(self, state: TrainState, folder: RunFolder | None) -> None:
        self.state, self.folder = state, folder if state.main else None
        self.writer: Any = None
        if self.folder is None or state.config.tracker == "none":
            return
        if state.config.tracker == "tensorboard":
            from accelerate.tracking import TensorBoardTracker

            self.writer = TensorBoardTracker(".", self.folder.path / "tensorboard")
        else:
            from accelerate.tracking import WandBTracker

            self.writer = WandBTracker(self.folder.path.name, dir=str(self.folder.path), resume="allow")
        self.writer.start()
        if state.config.tracker == "wandb":
            self.writer.store_init_configuration(flatten(asdict(state.config)))

    def __call__(self, values: dict[str, float], **more: float) -> None:
        if self.folder is not None:
            self.folder.log({"step": self.state.step, **values, **more})
        if self.writer is not None:
            self.writer.log(values, step=self.state.step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.finish()
