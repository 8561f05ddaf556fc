"""LIBERO's HDF5 layout: a file a task, in it `data/demo_i/actions` and `data/demo_i/obs/*`.

A policy acts on what it sees before it acts. LIBERO's own files hold the observation from after the action, o_{k+1}
beside a_k, so that they are shifted by one step here: an official demonstration loses its first action and its last
observation. Files of this project hold o_k beside a_k and say so: attribute `distdiff_observations` of `data`
is "before". Pictures stay as they are stored, which is upside down in both.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..._check import BadArgument, require
from .episodes import Column, Episodes
from .read import Lazy, PerProcess, chosen, hdf5_files, package

__all__ = ["read_libero"]

OPEN_FILES = 128
_FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)


class _Unusable(Exception):
    """Why a file or a demonstration is skipped."""


@dataclass
class _Kind:
    """What an observation is at one step."""

    shape: tuple[int, ...]
    picture: bool


@dataclass
class _Demonstration:
    file: str
    group: str
    words: str
    late: int
    """By how many rows an observation lies before the action it belongs to."""
    actions: np.ndarray
    kinds: dict[str, _Kind]
    values: dict[str, np.ndarray]
    """Observations that are not pictures."""


def read_libero(source: str, path: Path, names: Sequence[str] | None, limit: int | None) -> Episodes:
    h5py = package("h5py", "LIBERO's HDF5 layout")
    files = [path] if path.is_file() else hdf5_files(path)
    require(bool(files), "source", source, "one HDF5 file, or a folder that holds some")
    demonstrations: list[_Demonstration] = []
    there: dict[str, None] = {}
    skipped: list[str] = []
    taken: Counter[str] = Counter()
    for file in files:
        try:
            with h5py.File(file, "r") as opened:
                for group in _groups(opened):
                    words = _words(opened["data"], file)
                    if limit is not None and taken[words or str(file)] >= limit:
                        break
                    try:
                        there.update(dict.fromkeys(_observed(opened[group])))
                        demonstrations.append(_demonstration(opened, group, file, words, names))
                        taken[words or str(file)] += 1
                    except (_Unusable, *_FAILURES) as reason:
                        skipped.append(f"{file.name} {group.removeprefix('data/')}: {_first_line(reason)}")
        except _Unusable as reason:
            skipped.append(f"{file.name}: {reason}")
        except _FAILURES as error:
            skipped.append(f"{file.name}: cannot be read as HDF5 ({_first_line(error)})")
    if there:
        chosen(source, names, there)
    if not demonstrations:
        more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        raise BadArgument(
            f"source must hold demonstrations with actions in LIBERO's layout, got {source!r} without a usable one: "
            f"{'; '.join(skipped[:3])}{more}"
        )
    return _join(source, demonstrations, names, skipped)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _groups(opened: Any) -> list[str]:
    """The demonstrations of a file, ordered by their numbers."""
    if not len(opened):
        raise _Unusable("the file is empty")
    if "data" not in opened:
        raise _Unusable(f"there is no group 'data', only {', '.join(opened)}")
    numbers = {name: re.fullmatch(r"demo_?(\d+)", name) for name in opened["data"]}
    ordered = sorted((int(match[1]), name) for name, match in numbers.items() if match)
    if not ordered:
        raise _Unusable("the group 'data' holds no demonstrations (demo_0, demo_1, ...)")
    return [f"data/{name}" for _, name in ordered]


def _words(data: Any, file: Path) -> str:
    """The task in words: as the file says, else as LIBERO names its files; empty where neither does."""
    if "problem_info" in data.attrs:
        try:
            told = json.loads(data.attrs["problem_info"])["language_instruction"]
            return (told if isinstance(told, str) else " ".join(told)).strip(' "')
        except (ValueError, KeyError, TypeError):
            pass
    named = re.fullmatch(r"(?:[A-Z_]+SCENE\d+_)?(\w+)_demo", file.stem)
    return named[1].replace("_", " ") if named else ""


def _observed(group: Any) -> list[str]:
    """The names of the observations that are arrays of numbers."""
    observed = group.get("obs", {})
    return [name for name, stored in observed.items() if hasattr(stored, "dtype") and stored.dtype.kind in "fiub"]


def _demonstration(opened: Any, group: str, file: Path, words: str, names: Sequence[str] | None) -> _Demonstration:
    stored = opened[group]
    if "actions" not in stored:
        raise _Unusable("it has no actions")
    late = 0 if opened["data"].attrs.get("distdiff_observations") == "before" else 1
    shape = stored["actions"].shape
    if len(shape) != 2 or not shape[1]:
        raise _Unusable(f"its actions must be of shape (steps, size), not {shape}")
    if shape[0] <= late:
        raise _Unusable(f"{shape[0]} steps are too few")
    observed = _observed(stored)
    missing = [name for name in names or () if name not in observed]
    if missing:
        raise _Unusable(f"it has no {', '.join(missing)}")
    kinds: dict[str, _Kind] = {}
    values: dict[str, np.ndarray] = {}
    for name in observed if names is None else dict.fromkeys(names):
        array = stored["obs"][name]
        if array.shape[:1] != shape[:1]:
            raise _Unusable(f"{name} has {array.shape[0] if array.shape else 0} steps, its actions have {shape[0]}")
        kinds[name] = _Kind(array.shape[1:], array.dtype == np.uint8 and len(array.shape) == 4)
        if not kinds[name].picture:
            values[name] = array[: shape[0] - late].astype(np.float32)
    actions = stored["actions"][late:].astype(np.float32)
    return _Demonstration(str(file), group, words, late, actions, kinds, values)


def _join(
    source: str, demonstrations: list[_Demonstration], names: Sequence[str] | None, skipped: list[str]
) -> Episodes:
    sizes = {demonstration.actions.shape[1]: Path(demonstration.file).name for demonstration in demonstrations}
    told = ", ".join(f"{size} in {file}" for size, file in sizes.items())
    require(len(sizes) == 1, f"actions of {source}", told, "of one size in all files")
    ends = np.cumsum([len(demonstration.actions) for demonstration in demonstrations])
    tasks = {demonstration.words or demonstration.file: demonstration.words for demonstration in demonstrations}
    numbers = {key: number for number, key in enumerate(tasks)}
    opened = PerProcess(OPEN_FILES)
    observations: dict[str, Column] = {}
    for name, kind in _common(source, demonstrations, names, skipped):
        if kind.picture:
            observations[name] = _Pictures(name, (int(ends[-1]), *kind.shape), demonstrations, ends, opened)
        else:
            observations[name] = np.concatenate([demonstration.values[name] for demonstration in demonstrations])
    return Episodes(
        source=source,
        observations=observations,
        actions=np.concatenate([demonstration.actions for demonstration in demonstrations]),
        ends=ends,
        task=np.array([numbers[demonstration.words or demonstration.file] for demonstration in demonstrations]),
        tasks=tuple(tasks.values()),
        skipped=tuple(skipped),
    )


def _common(
    source: str, demonstrations: list[_Demonstration], names: Sequence[str] | None, skipped: list[str]
) -> Iterator[tuple[str, _Kind]]:
    """The observations that every demonstration has, of one kind. One that was asked for must be of one kind."""
    for name in dict.fromkeys(name for demonstration in demonstrations for name in demonstration.kinds):
        having = [demonstration for demonstration in demonstrations if name in demonstration.kinds]
        first = having[0].kinds[name]
        other = next((demonstration for demonstration in having if demonstration.kinds[name] != first), None)
        if other is not None:
            files = Path(having[0].file).name, Path(other.file).name
            shapes = f"{first.shape} in {files[0]}, {other.kinds[name].shape} in {files[1]}"
            require(names is None, f"{name} of {source}", shapes, "of one shape in all files")
            skipped.append(f"{name}: its shape differs ({shapes})")
        elif len(having) < len(demonstrations):
            skipped.append(f"{name}: only {len(having)} of {len(demonstrations)} demonstrations have it")
        else:
            yield name, first


class _Pictures(Lazy):
    """A camera over the demonstrations of several files."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        demonstrations: list[_Demonstration],
        ends: np.ndarray,
        opened: PerProcess,
    ) -> None:
        super().__init__(shape)
        self._places = [(demonstration.file, f"{demonstration.group}/obs/{name}") for demonstration in demonstrations]
        self._ends = ends
        self._opened = opened

    def read(self, rows: np.ndarray) -> np.ndarray:
        h5py = package("h5py", "LIBERO's HDF5 layout")
        pictures = np.empty((len(rows), *self.shape[1:]), self.dtype)
        episodes = np.searchsorted(self._ends, rows, side="right")
        for episode in np.unique(episodes):
            here = np.flatnonzero(episodes == episode)
            file, place = self._places[episode]
            stored = self._opened.get(file, partial(h5py.File, file, "r"))[place]
            local = rows[here] - (self._ends[episode - 1] if episode else 0)
            first, last = int(local[0]), int(local[-1]) + 1
            if last - first <= 2 * len(local):
                pictures[here] = stored[first:last][local - first]
            else:
                pictures[here] = stored[local]
        return pictures
