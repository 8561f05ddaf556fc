"""The replay buffer of diffusion-policy: a zarr group with `data/*`, all steps in a row, and `meta/episode_ends`.

The folder, or the .zarr.zip, holds one task without words. `data/action` are the actions; each other array is what
was observed before the action of its row.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..._check import BadArgument, require
from .episodes import Column, Episodes
from .read import Lazy, PerProcess, chosen, package

__all__ = ["read_zarr"]

NOT_OBSERVED = ("action", "n_contacts", "timestamp")
CHUNK_BYTES = 2**30
"""Decoded chunks of one camera that a process keeps: all of PushT's pictures fit."""
_LAYOUT = "diffusion-policy's zarr layout"


def read_zarr(source: str, path: Path, names: Sequence[str] | None, limit: int | None) -> Episodes:
    group = _open(source, path)
    for needed in ("data/action", "meta/episode_ends"):
        require(needed in group, "source", source, f"in {_LAYOUT}, with data/action and meta/episode_ends")
    ends = np.asarray(group["meta/episode_ends"][:], np.int64).ravel()
    arrays = {name: array for name, array in sorted(group["data"].arrays()) if array.dtype.kind in "fiub"}
    named = chosen(source, names, [name for name in arrays if name not in NOT_OBSERVED])
    steps = int(ends[-1]) if len(ends) else 0
    wrong = {name: arrays[name].shape[:1] for name in ["action", *named] if arrays[name].shape[:1] != (steps,)}
    require(steps > 0, f"episode ends of {source}", ends.tolist(), "those of at least one episode")
    require(not wrong, f"steps of {source}", wrong, f"{steps} for each array, where the last episode ends")
    require(arrays["action"].ndim == 2, f"actions of {source}", arrays["action"].shape, "of shape (steps, size)")
    ends = ends[:limit]
    steps = int(ends[-1])
    observations: dict[str, Column] = {}
    for name in named:
        if arrays[name].ndim == 4 and arrays[name].shape[-1] == 3:
            observations[name] = _pictures(source, path, name, arrays[name], steps)
        else:
            observations[name] = arrays[name][:steps].astype(np.float32)
    return Episodes(
        source=source,
        observations=observations,
        actions=arrays["action"][:steps].astype(np.float32),
        ends=ends,
        task=np.zeros(len(ends), np.int64),
        tasks=("",),
    )


def _open(source: str, path: Path) -> Any:
    zarr = package("zarr", _LAYOUT)
    try:
        store = zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
        return zarr.open_group(store, mode="r")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadArgument(f"source must be in {_LAYOUT}, got {source!r}, which zarr cannot open: {error}") from error


def _pictures(source: str, path: Path, name: str, array: Any, steps: int) -> Column:
    if array.dtype != np.uint8:
        first = array[0]
        known = array.dtype.kind != "f" or not 0 < first.max() <= 1
        require(known, f"pictures {name} of {source}", f"{first.min():g} to {first.max():g}", "in the range 0 to 255")
    return _Pictures(path, name, (steps, *array.shape[1:]), array.chunks[0])


class _Pictures(Lazy):
    """A camera, as uint8 whatever it is stored as. A chunk is decoded whole, so that decoded ones are kept."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], chunk: int) -> None:
        super().__init__(shape)
        self._path = path
        self._name = name
        self._chunk = chunk
        self._opened = PerProcess(1)
        self._decoded = PerProcess(CHUNK_BYTES)

    def read(self, rows: np.ndarray) -> np.ndarray:
        pictures = np.empty((len(rows), *self.shape[1:]), self.dtype)
        chunks = rows // self._chunk
        for chunk in np.unique(chunks):
            here = chunks == chunk
            decoded = self._decoded.get(int(chunk), partial(self._decode, int(chunk)), attrgetter("nbytes"))
            pictures[here] = decoded[rows[here] - chunk * self._chunk]
        return pictures

    def _decode(self, chunk: int) -> np.ndarray:
        array = self._opened.get("array", lambda: _open(str(self._path), self._path)[f"data/{self._name}"])
        values = array[chunk * self._chunk : (chunk + 1) * self._chunk]
        return values if values.dtype == np.uint8 else np.rint(values).clip(0, 255).astype(np.uint8)
