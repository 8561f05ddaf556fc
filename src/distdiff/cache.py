"""Tensors that are costly to make and depend on content alone, kept between runs.

Each is a safetensors file, `KIND/KEY.safetensors`, in one folder: `$DISTDIFF_CACHE`, else `distdiff` in the user's
cache folder. The key holds all that the tensors depend on, so that nothing ever goes stale: another content is another
file. Files are written aside and renamed, so that two processes may share them. One that cannot be read is made anew,
and where nothing can be written everything works, only without being kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ._check import require

__all__ = ["cache_folder", "cached", "digest", "key_of"]


def cache_folder() -> Path:
    """Where kept tensors lie; the folder need not exist yet."""
    if own := os.environ.get("DISTDIFF_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "distdiff"


def cached(kind: str, key: str, make: Callable[[], dict[str, Tensor]], enabled: bool = True) -> dict[str, Tensor]:
    """The tensors of that key: read if they are kept, else made, and kept if `enabled`. On the CPU when read."""
    for name, value in {"kind": kind, "key": key}.items():
        require(
            bool(re.fullmatch(r"\w[\w.=-]*", value)), name, value, "letters, digits and any of _.=- after the first"
        )
    path = _path(kind, key) if enabled else None
    kept = None if path is None else _read(path)
    if kept is not None:
        return kept
    tensors = make()
    if path is not None:
        _keep(path, tensors)
    return tensors


def _path(kind: str, key: str) -> Path | None:
    try:
        return cache_folder() / kind / f"{key}.safetensors"
    except RuntimeError:  # there is no home
        return None


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return None


def _keep(path: Path, tensors: Mapping[str, Tensor]) -> None:
    aside = path.with_name(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, aside)
        aside.replace(path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Sixteen hexadecimal digits that name the content: names, types, shapes and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def key_of(*parts: str | int) -> str:
    """A key of 32 hexadecimal digits for all that something depends on."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
