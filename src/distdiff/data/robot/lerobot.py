"""LeRobotDataset v3.0, read without lerobot: tables of steps in parquet, pictures in their cells or in video files.

    meta/info.json                       version, frames a second, features, where the videos lie
    meta/tasks.parquet                   the words of each task
    meta/episodes/chunk-*/file-*.parquet where in which video an episode begins
    data/chunk-*/file-*.parquet          a row a step: `action`, `observation.*`, `episode_index`, `frame_index`, ...

Many episodes share a file. Step k of an episode is the frame at from_timestamp + k / fps of its video.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from ..._check import BadArgument, require
from .episodes import Column, Episodes
from .read import Lazy, PerProcess, chosen, package

__all__ = ["read_lerobot"]

DECODERS = 8
"""Open videos of one camera that a process keeps."""
ENCODED_BYTES = 2**29
"""Encoded pictures of one camera that a process keeps."""
AHEAD = 1.0
"""Seconds that are decoded rather than jumped over."""
_KEYS = ("episode_index", "frame_index", "task_index")


def read_lerobot(source: str, path: Path, names: Sequence[str] | None, limit: int | None) -> Episodes:
    info = _info(source, path)
    features = info["features"]
    require("action" in features, f"features of {source}", list(features), "with one called 'action'")
    usable = {name: feature for name, feature in features.items() if _is_usable(feature)}
    named = chosen(source, names, [name for name in usable if name.startswith("observation")])
    left = [name for name in features if name.startswith("observation") and name not in usable]
    tables = _Tables(source, path)
    rows, ends, task, tasks, absent = _select(source, path, info, tables, limit)
    observations: dict[str, Column] = {}
    for name in named:
        if features[name]["dtype"] == "video":
            observations[name] = _video(source, path, name, info, tables, rows)
        elif features[name]["dtype"] == "image":
            observations[name] = _Pictures(path, tables, name, (len(rows), *_picture_shape(features[name])), rows)
        else:
            observations[name] = tables.values(name, features[name])[rows]
    actions = tables.values("action", features["action"])[rows]
    return Episodes(
        source=source,
        observations=observations,
        actions=actions.reshape(len(rows), -1),
        ends=ends,
        task=task,
        tasks=tasks,
        skipped=(*(f"{name}: neither numbers nor pictures in colour" for name in left if names is None), *absent),
    )


def _info(source: str, path: Path) -> dict[str, Any]:
    file = path / "meta" / "info.json"
    try:
        info = json.loads(file.read_text())
        version = str(info["codebase_version"])
        complete = isinstance(info["features"], dict) and float(info["fps"]) > 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadArgument(
            f"source must be a LeRobotDataset, got {source!r}, whose meta/info.json is bad: {error!r}"
        ) from error
    require(complete, f"meta/info.json of {source}", info["fps"], "with features, and fps above 0")
    advice = ""
    if version.startswith(("v1", "v2")):
        advice = "; convert it with lerobot's convert_dataset_v21_to_v30"
    if not version.startswith("v3."):
        raise BadArgument(f"source must be a LeRobotDataset of version v3.0, got {source!r} of {version}{advice}")
    return info


def _is_usable(feature: dict[str, Any]) -> bool:
    if feature["dtype"] not in ("image", "video"):
        return feature["dtype"] == "bool" or feature["dtype"].startswith(("float", "int", "uint"))
    told = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    depth = told.get("is_depth_map") or told.get("video.is_depth_map")
    return not depth and len(feature["shape"]) == 3 and 3 in (feature["shape"][0], feature["shape"][-1])


def _picture_shape(feature: dict[str, Any]) -> tuple[int, int, int]:
    """(height, width, 3), whichever way the feature is told."""
    first, second, third = feature["shape"]
    names = feature.get("names")
    channels_first = str(names[0]).startswith("channel") if isinstance(names, list) and names else third != 3
    return (second, third, 3) if channels_first else (first, second, 3)


class _Tables:
    """The tables of all steps, one after the other; only the columns that are asked for are read."""

    def __init__(self, source: str, path: Path) -> None:
        self.source = source
        self.files = sorted((path / "data").glob("*/*.parquet"))
        require(bool(self.files), "source", source, "a LeRobotDataset with files data/chunk-*/file-*.parquet")
        self.keys = {key: np.concatenate([self._column(file, key).to_numpy() for file in self.files]) for key in _KEYS}

    def _column(self, file: Path, name: str) -> Any:
        try:
            return pyarrow.parquet.read_table(file, columns=[name]).column(name).combine_chunks()
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            raise BadArgument(
                f"{file.name} of {self.source} must be a parquet file with the column {name!r}: {error}"
            ) from error

    def values(self, name: str, feature: dict[str, Any]) -> np.ndarray:
        """Numbers of shape (steps, *feature), float32."""
        parts = []
        for file in self.files:
            column = self._column(file, name)
            steps = len(column)
            while hasattr(column, "flatten") and pyarrow.types.is_nested(column.type):
                column = column.flatten()
            numbers = column.to_numpy(zero_copy_only=False).astype(np.float32)
            size = int(np.prod(feature["shape"]))
            require(
                len(numbers) == steps * size,
                f"{name} in {file.name} of {self.source}",
                f"{len(numbers)} numbers in {steps} rows",
                f"of size {size} in each row, as meta/info.json says",
            )
            parts.append(numbers.reshape(steps, *feature["shape"]))
        return np.concatenate(parts)


def _select(
    source: str, path: Path, info: dict[str, Any], tables: _Tables, limit: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The rows to take, the ends of their episodes, the tasks of these, the words of all, and what is absent."""
    order = np.lexsort((tables.keys["frame_index"], tables.keys["episode_index"]))
    episodes = tables.keys["episode_index"][order]
    require(len(order) > 0, "source", source, "a LeRobotDataset with at least one step")
    starts = np.flatnonzero(np.diff(episodes, prepend=episodes[0] - 1))
    task = tables.keys["task_index"][order][starts]
    words = _words(source, path, int(task.max()))
    taken: Counter[int] = Counter()
    kept = np.zeros(len(starts), bool)
    for episode, number in enumerate(task.tolist()):
        kept[episode] = limit is None or taken[number] < limit
        taken[number] += 1
    lengths = np.diff(np.append(starts, len(order)))
    told = int(info.get("total_episodes") or 0)
    absent = (f"{told - len(starts)} of {told} episodes: not in the data files",) if told > len(starts) else ()
    return order[np.repeat(kept, lengths)], np.cumsum(lengths[kept]), task[kept], words, absent


def _words(source: str, path: Path, largest: int) -> tuple[str, ...]:
    """The words of each task: in lerobot's table they are the index, whatever its name."""
    words = [""] * (largest + 1)
    file = path / "meta" / "tasks.parquet"
    if file.is_file():
        table = pyarrow.parquet.read_table(file).to_pydict()
        told = next(
            (column for name, column in table.items() if name != "task_index" and isinstance(column[0], str)), None
        )
        if told is not None and "task_index" in table:
            words += [""] * (max(table["task_index"]) + 1 - len(words))
            for number, text in zip(table["task_index"], told, strict=True):
                words[number] = text
    return tuple(words)


class _Pictures(Lazy):
    """Pictures in the cells of the tables: their bytes, or the path of a file. A row group is read at a time."""

    def __init__(self, path: Path, tables: _Tables, name: str, shape: tuple[int, ...], rows: np.ndarray) -> None:
        super().__init__(shape)
        self._path = path
        self._files = tables.files
        self._name = name
        self._rows = rows
        groups: list[tuple[int, int]] = []
        sizes: list[int] = []
        for number, file in enumerate(tables.files):
            metadata = pyarrow.parquet.read_metadata(file)
            groups += [(number, group) for group in range(metadata.num_row_groups)]
            sizes += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._groups = groups
        self._ends = np.cumsum(sizes)
        self._encoded = PerProcess(ENCODED_BYTES)

    def read(self, rows: np.ndarray) -> np.ndarray:
        pictures = np.empty((len(rows), *self.shape[1:]), self.dtype)
        stored = self._rows[rows]
        groups = np.searchsorted(self._ends, stored, side="right")
        for group in np.unique(groups):
            cells = self._encoded.get(int(group), partial(self._cells, int(group)), attrgetter("nbytes"))
            first = self._ends[group - 1] if group else 0
            for place in np.flatnonzero(groups == group):
                pictures[place] = self._picture(cells[int(stored[place] - first)].as_py())
        return pictures

    def _cells(self, group: int) -> Any:
        number, local = self._groups[group]
        with pyarrow.parquet.ParquetFile(self._files[number]) as file:
            return file.read_row_group(local, columns=[self._name]).column(self._name)

    def _picture(self, cell: dict[str, Any] | None) -> np.ndarray:
        cell = cell or {}
        encoded = io.BytesIO(cell["bytes"]) if cell.get("bytes") else self._path / (cell.get("path") or "")
        try:
            with Image.open(encoded) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except OSError as error:
            raise BadArgument(f"{self._name} must hold pictures that can be decoded: {error}") from error
        _check_size(self._name, pixels, self.shape)
        return pixels


def _check_size(name: str, pixels: np.ndarray, shape: tuple[int, ...]) -> None:
    require(pixels.shape == shape[1:], f"pictures of {name}", pixels.shape, f"{shape[1:]}, as meta/info.json says")


def _video(source: str, path: Path, name: str, info: dict[str, Any], tables: _Tables, rows: np.ndarray) -> Column:
    package("av", "videos of a LeRobotDataset")
    columns = [f"videos/{name}/{what}" for what in ("chunk_index", "file_index", "from_timestamp")]
    places: dict[int, tuple[Path, float]] = {}
    for file in sorted((path / "meta" / "episodes").glob("*/*.parquet")):
        try:
            table = pyarrow.parquet.read_table(file, columns=["episode_index", *columns]).to_pydict()
            cells = zip(table["episode_index"], *(table[column] for column in columns), strict=True)
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            raise BadArgument(f"{file.name} of {source} must say where the videos of {name} are: {error}") from error
        for episode, chunk, number, begin in cells:
            video = info["video_path"].format(video_key=name, chunk_index=chunk, file_index=number)
            places[episode] = path / video, begin
    episodes, which = np.unique(tables.keys["episode_index"][rows], return_inverse=True)
    unknown = [int(episode) for episode in episodes if episode not in places]
    require(
        not unknown, f"meta/episodes of {source}", f"nothing for {unknown[:3]}", f"the places of all videos of {name}"
    )
    videos = sorted({places[episode][0] for episode in episodes.tolist()})
    missing = next((video for video in videos if not video.is_file()), None)
    require(missing is None, f"videos of {source}", str(missing), "files that exist")
    numbers = np.array([videos.index(places[episode][0]) for episode in episodes.tolist()])
    begins = np.array([places[episode][1] for episode in episodes.tolist()])
    times = begins[which] + tables.keys["frame_index"][rows] / info["fps"]
    shape = (len(rows), *_picture_shape(info["features"][name]))
    return _Video(name, videos, numbers[which], times, shape, 0.5 / info["fps"])


class _Video(Lazy):
    """A camera over several videos: the frame of each row lies in a file, at a time."""

    def __init__(
        self,
        name: str,
        videos: list[Path],
        numbers: np.ndarray,
        times: np.ndarray,
        shape: tuple[int, ...],
        tolerance: float,
    ) -> None:
        super().__init__(shape)
        self._name = name
        self._videos = videos
        self._numbers = numbers
        self._times = times
        self._tolerance = tolerance
        self._decoders = PerProcess(DECODERS)

    def read(self, rows: np.ndarray) -> np.ndarray:
        pictures = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place in np.lexsort((self._times[rows], self._numbers[rows])):
            video = self._videos[self._numbers[rows[place]]]
            decoder = self._decoders.get(video, partial(_Decoder, video))
            pixels = decoder.frame(float(self._times[rows[place]]), self._tolerance)
            _check_size(self._name, pixels, self.shape)
            pictures[place] = pixels
        return pictures


class _Decoder:
    """An open video and the frame that was decoded last, from where the next ones are near."""

    def __init__(self, video: Path) -> None:
        av = package("av", "videos of a LeRobotDataset")
        self._video = video
        self._failures = (av.error.FFmpegError, IndexError)
        try:
            self._opened = av.open(str(video))
            self._stream = self._opened.streams.video[0]
        except self._failures as error:
            raise BadArgument(f"{video} must be a video that can be decoded: {error}") from error
        self._stream.codec_context.thread_count = 1  # a child would wait for threads that do not outlive the fork
        self._frames = self._opened.decode(self._stream)
        self._last: Any = None

    def frame(self, time: float, tolerance: float) -> np.ndarray:
        """The frame at a time in seconds, uint8 (height, width, 3)."""
        near = self._last is not None and -tolerance <= time - self._last.time <= AHEAD
        try:
            found = self._forward(time, tolerance) if near else None
            for start in (time, 0.0):  # some files are indexed so that a jump lands behind the frame
                if found is None:
                    self._opened.seek(int(start / self._stream.time_base), stream=self._stream)
                    self._frames = self._opened.decode(self._stream)
                    self._last = None
                    found = self._forward(time, tolerance)
        except self._failures as error:
            raise BadArgument(f"{self._video} must be a video that can be decoded: {error}") from error
        if found is None:
            raise BadArgument(f"{self._video} must hold a frame at {time:.3f} s, got none")
        return found.to_ndarray(format="rgb24", threads=1)

    def _forward(self, time: float, tolerance: float) -> Any:
        """The frame at a time, decoding on from the last one; None if the video is past it or ends."""
        while self._last is None or self._last.time < time - tolerance:
            self._last = next(self._frames, None)
            if self._last is None:
                return None
        return self._last if self._last.time <= time + tolerance else None
