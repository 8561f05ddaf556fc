"""The folder of a run: what was asked, what happened, and the weights.

    config.json                          every setting, and the kind of run
    metrics.jsonl                        a line each `log_every` steps
    checkpoints/step-N.safetensors       all that is needed to go on: weights, their average, optimizers, step
    checkpoints/best.safetensors         the checkpoint with the best score, where a run is scored
    weights.safetensors                  averaged weights of a points run, the ones to sample from
    pipeline/                            the same for images: a folder that diffusers loads
    autoencoder/                         the same for an autoencoder
    policy/                              the same for a robot's policy

Everything is written aside and renamed, so that a run that is killed leaves the last whole file behind. All randomness
of a step is a function of the seed and the step's number, which is thus the random state and the loader's position too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .._check import BadArgument, require
from ..recipe.config import KINDS, RunConfig

__all__ = ["RunFolder", "alone", "flatten", "from_dict", "load_weights", "make_folder"]


def make_folder(path: Path) -> Path:
    """Create a folder that can be written to, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadArgument(
            f"out must be a folder that can be written to, got {str(path)!r} ({error.strerror})"
        ) from None
    return path


@contextmanager
def alone(path: Path, what: str, inside: str = ".") -> Iterator[None]:
    """Work in a folder where no other process does the same; the lock lies `inside` it."""
    lock = FileLock(make_folder(path / inside) / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadArgument(f"out must be a folder that no other {what} is using, got {str(path)!r}") from None
    try:
        yield
    finally:
        lock.release()


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.weights = self.path / "weights.safetensors"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.checkpoints / "best.safetensors"
        self.pipeline = self.path / "pipeline"
        self.autoencoder = self.path / "autoencoder"
        self.policy = self.path / "policy"

    def create(self, config: RunConfig, *, overwrite: bool = False) -> None:
        """Start afresh; an earlier run is in the way unless it may be overwritten."""
        self.require_free(overwrite)
        make_folder(self.path)
        for old in self._own():
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        self.write_config(config)

    def require_free(self, overwrite: bool = False) -> None:
        """Refuse a folder that holds a run, unless it may be replaced, or files of others under a run's names."""
        taken = self.config.exists() and not overwrite
        require(not taken, "out", str(self.path), "a new folder, or one to --resume or --overwrite")
        foreign = [] if self.config.exists() else [old.name for old in self._own() if old.exists()]
        require(not foreign, "out", str(self.path), f"a folder without {', '.join(foreign)} of something else")

    def _own(self) -> list[Path]:
        """What a run leaves in its folder, but for its configuration."""
        rollouts = [file.parent for file in self.path.glob("rollout*/rollout.json")]
        folders = [self.checkpoints, self.pipeline, self.autoencoder, self.policy, *rollouts]
        return [self.metrics, self.weights, *folders, self.path / "previews", self.path / "tensorboard"]

    def write_config(self, config: RunConfig) -> None:
        kind = next(name for name, cls in KINDS.items() if type(config) is cls)
        aside = self.config.with_suffix(".partial")
        aside.write_text(json.dumps({"kind": kind, **dataclasses.asdict(config)}, indent=2) + "\n")
        os.replace(aside, self.config)

    def read_config(self) -> RunConfig:
        require(self.config.is_file(), "run", str(self.path), "a run folder with a config.json")
        try:
            values = json.loads(self.config.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise BadArgument(f"{self.config} must be JSON, got {error}") from None
        require(isinstance(values, dict), "config", values, "a table of settings")
        kind = values.pop("kind", "points")
        require(kind in KINDS, "config.kind", kind, "one of " + ", ".join(KINDS))
        return from_dict(KINDS[kind], values)

    def steps(self) -> list[int]:
        """Steps at which there is a checkpoint, rising."""
        found = [re.fullmatch(r"step-(\d+)\.safetensors", file.name) for file in self.checkpoints.glob("step-*")]
        return sorted(int(match[1]) for match in found if match)

    def checkpoint(self, which: str | int = "latest") -> Path:
        """The file of a checkpoint: latest, best, or the one of a step."""
        if which == "best":
            require(self.best.is_file(), "resume", which, f"latest or a step: {self.path} has no best checkpoint")
            return self.best
        steps = self.steps()
        require(bool(steps), "run", str(self.path), "a run folder with a checkpoint; has it been trained?")
        if which == "latest":
            return self.step_file(steps[-1])
        known = str(which).isdigit() and int(which) in steps
        require(known, "resume", which, f"latest, best or one of the steps {', '.join(map(str, steps))}")
        return self.step_file(int(which))

    def best_step(self) -> float:
        """The step of the best checkpoint; infinite if there is none."""
        return int(self.load(self.best)[1].get("step", 0)) if self.best.exists() else math.inf

    def step_file(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}.safetensors"

    def prune(self, keep: int) -> None:
        """Forget all but the last `keep` checkpoints."""
        for step in self.steps()[:-keep]:
            self.step_file(step).unlink()

    def replace_folder(self, target: Path, write: Callable[[Path], object]) -> None:
        """Have a folder written aside, then put it where an older one may be."""
        aside, old = target.with_name(target.name + ".partial"), target.with_name(target.name + ".old")
        for leftover in (aside, old):
            shutil.rmtree(leftover, ignore_errors=True)
        write(aside)
        if target.exists():
            os.replace(target, old)
        os.replace(aside, target)
        shutil.rmtree(old, ignore_errors=True)

    def done(self, config: RunConfig) -> int | None:
        """Steps done of the run with these settings; None if the folder holds no such run, or no whole one."""
        try:
            same = self.read_config() == config
            step = self.load(self.checkpoint())[1].get("step", "") if same else ""
        except BadArgument:
            return None
        return int(step) if step.isdigit() else None

    def seconds(self) -> float:
        """Training time so far, as logged."""
        return max((line.get("seconds", 0.0) for line in self.logged()), default=0.0)

    def total_seconds(self) -> float:
        """Training time of this run and, where it started from another (a student's teacher), of that one too.

        A start that is no run folder, such as a model of the hub, counts nothing.
        """
        seconds, init = self.seconds(), getattr(self.read_config(), "init", None)
        start = None if init is None else RunFolder(Path(init).parent if Path(init).name == "pipeline" else init)
        return seconds if start is None or not start.metrics.is_file() else seconds + start.total_seconds()

    def logged(self) -> list[dict[str, Any]]:
        """The whole lines of metrics.jsonl."""
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def log(self, values: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def trim(self, step: int) -> None:
        """Forget what was logged and saved after a checkpoint that training goes on from."""
        kept = [line for line in self.logged() if line["step"] <= step]
        if self.metrics.exists():
            aside = self.metrics.with_suffix(".partial")
            aside.write_text("".join(json.dumps(line) + "\n" for line in kept))
            os.replace(aside, self.metrics)
        for later in self.steps():
            if later > step:
                self.step_file(later).unlink()
        if self.best.exists() and self.best_step() > step:
            self.best.unlink()

    def save(self, file: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        file.parent.mkdir(exist_ok=True)
        aside = file.with_suffix(".partial")
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, aside, metadata)
        os.replace(aside, file)

    def load(self, file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        require(file.is_file(), "run", str(self.path), f"a run folder with {file.name}; has it been trained?")
        try:
            with safe_open(file, framework="pt") as reader:
                metadata = reader.metadata() or {}
            return load_file(file), metadata
        except (SafetensorError, OSError) as error:
            raise BadArgument(f"{file} must be a whole safetensors file, got a corrupt one ({error})") from None


def load_weights(module: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Put tensors into a module, naming whatever does not fit."""
    want = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    have = {key: tuple(value.shape) for key, value in tensors.items()}
    wrong = sorted(key for key in want.keys() | have.keys() if want.get(key) != have.get(key))
    require(not wrong, f"tensors of {source}", ", ".join(wrong[:3]), "those of the network in config.json")
    module.load_state_dict(tensors)


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names, as the command line writes them."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def from_dict(cls: type, values: Any, where: str = "config") -> Any:
    """A dataclass from what `dataclasses.asdict` and JSON made of it; unknown or ill-typed entries are errors."""
    require(isinstance(values, dict), where, values, "a table of settings")
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(values) - set(hints))
    require(not unknown, where, unknown, "made of " + ", ".join(hints))
    return cls(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, where)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(options[0], value, where)
    if origin is Literal:
        require(value in options, where, value, "one of " + ", ".join(map(str, options)))
        return value
    if origin is dict:
        require(isinstance(value, dict), where, value, "a table")
        return {key: _convert(options[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if origin is tuple:
        endless = options[-1] is Ellipsis
        fits = isinstance(value, list) and (endless or len(value) == len(options))
        require(fits, where, value, "a list of numbers" if endless else f"a list of {len(options)} numbers")
        return tuple(_convert(options[0], entry, where) for entry in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = number if hint is float else isinstance(value, hint)
    require(fits, where, value, f"of type {hint.__name__}")
    return value
