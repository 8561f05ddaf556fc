"""The notation `name=value`: settings of a recipe by their dotted names, and grids of them.

`loss.lam=0,0.5,1` on a grid is three values; the runs of a sweep are all combinations of the grid's values and seeds.
A value is read by the type of its setting: numbers, names, true or false, `none` where a setting is optional, and
several numbers joined by + where it is a tuple (`loss.patches=4+7`; nothing after the = for an empty one).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from .._check import BadArgument, require, require_choice, require_seed
from ..recipe.config import ImageRun, PointsRun, RunConfig
from ..train.build import build_loss, check_fit, check_run

__all__ = [
    "KERNEL_PARAMETERS",
    "Settings",
    "apply",
    "check_cheaply",
    "combinations",
    "known_settings",
    "parse_grid",
    "parse_settings",
    "run_name",
    "show",
    "value_of",
]

Settings = dict[str, Any]
"""Values by dotted names."""


KERNEL_PARAMETERS = {"energy": "loss.beta", "imq": "loss.c", "rbf": "loss.gamma", "exp": "loss.gamma"}
"""The parameter of each kernel."""


def known_settings(kind: type, prefix: str = "") -> dict[str, Any]:
    """The type of every setting of a configuration, by its dotted name, in the order they are declared."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found |= known_settings(typing.cast(type, hint), f"{prefix}{name}.")
        else:
            found[prefix + name] = hint
    return found


def parse_settings(kind: type, words: Sequence[str]) -> Settings:
    """`name=value` words as settings of a configuration."""
    known, found = known_settings(kind), {}
    for word in words:
        name, text = _split(word, known)
        require(name not in found, "settings", word, "given once")
        found[name] = _parse(known[name], text, name)
    return found


def parse_grid(kind: type, words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """`name=value,value` words as lists of distinct values."""
    known, found = known_settings(kind), {}
    for word in words:
        name, text = _split(word, known)
        require(name != "seed", "grid", word, "without seed, which --seeds is for")
        require(name not in found, "grid", word, "made of different names")
        found[name] = tuple(dict.fromkeys(_parse(known[name], part, name) for part in text.split(",")))
    return found


def _split(word: str, known: Mapping[str, Any]) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    require(bool(equals), "setting", word, "written as name=value")
    require_choice("setting", name, known)
    return name, text


def _parse(hint: Any, text: str, name: str) -> Any:
    text = text.strip()
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if text.lower() == "none" else _parse(options[0], text, name)
    if origin is Literal:
        values = {str(option): option for option in options}
        require_choice(name, text, values)
        return values[text]
    if origin is tuple:
        parts = re.split(r"(?<![eE])\+", text) if text else []
        require(
            options[-1] is Ellipsis or len(parts) == len(options), name, text, f"{len(options)} numbers joined by +"
        )
        return tuple(_parse(options[0], part, name) for part in parts)
    if hint is bool:
        require_choice(name, text.lower(), ("true", "false"))
        return text.lower() == "true"
    try:
        return hint(text)
    except ValueError:
        raise BadArgument(f"{name} must be {'a whole number' if hint is int else 'a number'}, got {text!r}") from None


def value_of(config: Any, name: str) -> Any:
    """A setting by its dotted name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def apply(config: Any, settings: Mapping[str, Any]) -> Any:
    """A configuration with some settings changed, by their dotted names."""
    for name, value in settings.items():
        head, _, rest = name.partition(".")
        config = dataclasses.replace(config, **{head: apply(getattr(config, head), {rest: value}) if rest else value})
    return config


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """All combinations of the grid's values, the last name running fastest.

    Where kernels are on the grid, each is combined with values of its own parameter only.
    """
    found = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if "loss.kernel" not in grid:
        return found
    foreign = {kernel: set(KERNEL_PARAMETERS.values()) - {own} for kernel, own in KERNEL_PARAMETERS.items()}
    own = [{k: v for k, v in settings.items() if k not in foreign[settings["loss.kernel"]]} for settings in found]
    return [settings for index, settings in enumerate(own) if settings not in own[:index]]


def show(value: Any) -> str:
    """A value as the notation writes it."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, (tuple, list)):
        return "+".join(map(show, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def run_name(settings: Mapping[str, Any], seed: int) -> str:
    """A folder's name that says what is special about a run, the same for the same settings in any order."""
    full = ",".join(f"{name}={show(settings[name])}" for name in sorted(settings) if name != "seed")
    full = f"{full},seed={seed}" if full else f"seed={seed}"
    name = re.sub(r"[^\w.,=+-]", "_", full)
    if name == full and len(name) <= 200:
        return name
    import hashlib

    return f"{name[:180]}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"


def check_cheaply(config: RunConfig) -> None:
    """Raise the first thing wrong with a run that can be told without reading its data."""
    assert isinstance(config, (PointsRun, ImageRun))
    check_run(config)
    require_seed(config.seed)
    build_loss(config.loss, torch.eye(2))
    check_fit(config)
