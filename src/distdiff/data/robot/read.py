"""Demonstrations from files, whatever their layout: the one way in, and what the readers of the layouts share.

    episodes = load_episodes("datasets/libero_goal")                    # a folder of LIBERO's HDF5 files
    episodes = load_episodes("pusht.zarr", names=["state"], limit=50)   # diffusion-policy's replay buffer
    episodes = load_episodes("lerobot/aloha_sim_insertion_human")       # LeRobotDataset v3, here from the hub

Actions and low-dimensional observations are read into memory. Cameras are `Lazy` columns, which open their files when
they are asked, anew in each process, so that they pass to the workers of a data loader.
"""

from __future__ import annotations

import importlib
import os
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np

from ..._check import BadArgument, require, require_choice, require_count
from .episodes import Episodes

__all__ = ["LAYOUTS", "Lazy", "PerProcess", "chosen", "hdf5_files", "load_episodes", "package"]

LAYOUTS = ("auto", "libero", "zarr", "lerobot")
HDF5_ENDINGS = (".hdf5", ".h5")
_ACCEPTED = (
    "a folder of LIBERO's .hdf5 files or one of them, a folder or .zarr.zip of diffusion-policy's zarr layout, a "
    "folder of a LeRobotDataset (with meta/info.json), or user/name of a dataset on the Hugging Face hub"
)


def hdf5_files(folder: Path) -> list[Path]:
    """The HDF5 files below a folder, but for those in hidden folders, where collections keep what is unfinished."""
    files = (file for file in folder.rglob("*") if file.suffix in HDF5_ENDINGS)
    return sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def load_episodes(
    source: str, *, layout: str = "auto", names: Sequence[str] | None = None, limit: int | None = None
) -> Episodes:
    """The demonstrations of a path, or of user/name on the hub.

    names: the observations to read; all by default. limit: the first so many episodes of each task.
    """
    require_choice("layout", layout, LAYOUTS)
    require(not isinstance(names, str), "names", names, "a list of observations")
    if limit is not None:
        require_count("limit", limit)
    path = Path(source).expanduser()
    if not path.exists():
        path = _download(source)
    if layout == "auto":
        layout = _layout(path, source)
    if layout == "libero":
        from .hdf5 import read_libero

        return read_libero(source, path, names, limit)
    if layout == "zarr":
        from .zarr_layout import read_zarr

        return read_zarr(source, path, names, limit)
    from .lerobot import read_lerobot

    return read_lerobot(source, path, names, limit)


def _layout(path: Path, source: str) -> str:
    if path.is_file():
        if path.suffix in HDF5_ENDINGS:
            return "libero"
        if path.suffix == ".zip":
            return "zarr"
    elif (path / "meta" / "info.json").is_file():
        return "lerobot"
    elif (path / ".zgroup").is_file() or (path / "zarr.json").is_file():
        return "zarr"
    elif hdf5_files(path):
        return "libero"
    raise BadArgument(f"source must be {_ACCEPTED}, got {source!r}")


def _download(source: str) -> Path:
    on_hub = re.fullmatch(r"\w[\w.-]*/[\w.-]+", source) is not None
    require(on_hub, "source", source, f"an existing path: {_ACCEPTED}")
    try:
        return Path(huggingface_hub.snapshot_download(source, repo_type="dataset"))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadArgument(
            f"source must be an existing path or a dataset on the Hugging Face hub, got {source!r}: there is no such "
            f"path here, and the hub did not give it ({reason}); pass the path of a local copy"
        ) from error


def package(name: str, layout: str) -> Any:
    """A package of the extra `robotics`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadArgument(
            f'{layout} must be read with the package {name}, which is missing here: pip install "distdiff[robotics]"'
        ) from error


def chosen(source: str, names: Sequence[str] | None, there: Iterable[str]) -> list[str]:
    """The observations to read, of those that are there."""
    there = list(there)
    if names is None:
        return there
    missing = [name for name in names if name not in there]
    require(
        not missing,
        "names",
        ", ".join(missing),
        f"observations that {source} holds ({', '.join(there) or 'it holds none'})",
    )
    return list(dict.fromkeys(names))


class PerProcess:
    """What was opened or decoded, by key: the least used goes first, and nothing passes to another process.

    An open file that is shared across a fork is read at the wrong place, and one cannot be pickled at all.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._clear()

    def _clear(self) -> None:
        self._process = os.getpid()
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any], weigh: Callable[[Any], int] = lambda value: 1) -> Any:
        """The value of a key, made if it is not held. The weights of what is held stay within the budget."""
        if self._process != os.getpid():
            self._clear()
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key][0]
        value = make()
        self._held[key] = (value, weigh(value))
        while len(self._held) > 1 and sum(weight for _, weight in self._held.values()) > self.budget:
            self._held.popitem(last=False)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {"budget": self.budget}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.budget = state["budget"]
        self._clear()


class Lazy(ABC):
    """A column that is read when it is asked: indexed as an array is, by a slice, a row, or an array of rows.

    A reader says how rising rows without repeats are read.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.uint8) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        steps = len(self)
        if isinstance(rows, slice):
            wanted = np.arange(*rows.indices(steps))
        else:
            wanted = np.asarray(rows, np.int64)
            if wanted.size and (wanted.min() < -steps or wanted.max() >= steps):
                raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {steps}")
            wanted = np.where(wanted < 0, wanted + steps, wanted)
        rising, place = np.unique(wanted, return_inverse=True)
        if not len(rising):
            return np.empty((*wanted.shape, *self.shape[1:]), self.dtype)
        return self.read(rising)[place.reshape(wanted.shape)]

    @abstractmethod
    def read(self, rows: np.ndarray) -> np.ndarray:
        """Rows that rise without repeats."""
