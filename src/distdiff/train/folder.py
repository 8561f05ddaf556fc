"""The folder of a run: what was asked, what happened, and the weights.

    config.json                every setting
    metrics.jsonl              a line each `log_every` steps
    weights.safetensors        averaged weights, the ones to sample from
    checkpoint.safetensors     all that is needed to go on: weights, their average, optimizer, random state, step

Weights are written aside and renamed, so that a run that is killed leaves the last whole file behind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import typing
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .._check import BadArgument, require
from ..denoiser import Denoiser
from ..recipe.config import RunConfig
from .build import build_denoiser, pick_device

__all__ = ["RunFolder", "flatten", "from_dict", "load_denoiser", "load_weights", "make_folder"]


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


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.weights = self.path / "weights.safetensors"
        self.checkpoint = self.path / "checkpoint.safetensors"

    def create(self, config: RunConfig, *, overwrite: bool = False) -> None:
        """Start afresh; an earlier run is in the way unless it may be overwritten."""
        taken = self.config.exists() and not overwrite
        require(not taken, "out", str(self.path), "a new folder, or one to --resume or --overwrite")
        make_folder(self.path)
        for old in (self.metrics, self.weights, self.checkpoint):
            old.unlink(missing_ok=True)
        self.write_config(config)

    def write_config(self, config: RunConfig) -> None:
        self.config.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n")

    def read_config(self) -> RunConfig:
        require(self.config.is_file(), "run", str(self.path), "a run folder with a config.json")
        try:
            values = json.loads(self.config.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise BadArgument(f"{self.config} must be JSON, got {error}") from None
        return from_dict(RunConfig, values)

    def done(self, config: RunConfig) -> int | None:
        """Steps done of the run with these settings; None if the folder holds no such run, or no whole one."""
        try:
            same = self.read_config() == config
            step = self.load(self.checkpoint)[1].get("step", "") if same else ""
        except BadArgument:
            return None
        return int(step) if step.isdigit() else None

    def seconds(self) -> float:
        """Training time so far, as logged."""
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        return json.loads(lines[-1])["seconds"] if lines else 0.0

    def log(self, values: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def trim_metrics(self, step: int) -> None:
        """Forget what was logged after a checkpoint that training goes on from."""
        if self.metrics.exists():
            whole = [line for line in self.metrics.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in whole if json.loads(line)["step"] <= step]
            self.metrics.write_text("".join(line + "\n" for line in kept))

    def save(self, file: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
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


def load_denoiser(path: str | Path, device: str = "auto") -> tuple[Denoiser, RunConfig]:
    """The trained model of a run folder, ready to draw, and the configuration it was trained with."""
    folder = RunFolder(path)
    config = folder.read_config()
    denoiser = build_denoiser(config.network)
    load_weights(denoiser, folder.load(folder.weights)[0], folder.weights)
    return denoiser.to(pick_device(device)).eval().requires_grad_(False), config


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
    if origin is Literal:
        require(value in options, where, value, "one of " + ", ".join(map(str, options)))
        return value
    if origin is tuple:
        require(
            isinstance(value, list) and len(value) == len(options), where, value, f"a list of {len(options)} numbers"
        )
        return tuple(_convert(kind, entry, where) for kind, entry in zip(options, value, strict=True))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = number if hint is float else isinstance(value, hint)
    require(fits, where, value, f"of type {hint.__name__}")
    return value
