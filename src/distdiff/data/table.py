"""Pictures in tables of the library `datasets`: folders of pictures, parquet files, saved datasets and the hub.

A set is a table for each split, with a column of pictures and columns that say what they show. Decoding is switched
off, so that a broken picture can be named and skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pyarrow
import torch

from .._check import BadArgument, require, require_choice
from .named import NAMED, SPLITS, Condition, Found, Named, class_condition, numbered, pick_split

__all__ = ["Encoded", "open_hub", "open_local", "select"]

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "class", "fine_label")
HUB_PATIENCE = 5.0  # seconds
_FAILURES = (OSError, ValueError, TypeError, KeyError, pyarrow.ArrowException, datasets.exceptions.DatasetsError)


class Encoded:
    """Picture files, or their bytes, in one column of a table of `datasets`."""

    def __init__(self, table: Any, column: str) -> None:
        self.column = column
        pictures = table.select_columns(column).cast_column(column, datasets.Image(decode=False))
        self.table = pictures.with_format("arrow")

    def __len__(self) -> int:
        return len(self.table)

    def read(self, rows: Sequence[int]) -> list[tuple[str, bytes | str | None]]:
        """The name of each picture, and its bytes or the path of its file; None for an empty cell."""
        cells = [cell or {} for cell in self.table[rows][self.column].to_pylist()] if len(rows) else []
        return [
            (cell.get("path") or f"row {row}", cell.get("bytes") or cell.get("path"))
            for row, cell in zip(rows, cells, strict=True)
        ]

    def identity(self) -> Iterator[str]:
        """Name, size and time of change of every file that holds pictures."""
        files = {file["filename"] for file in self.table.cache_files}
        for start in range(0, len(self), 1024):
            batch = self.read(range(start, min(start + 1024, len(self))))
            files.update(encoded for _, encoded in batch if isinstance(encoded, str))
        for file in sorted(files):
            try:
                status = os.stat(file)
                yield f"{file} {status.st_size} {status.st_mtime_ns}"
            except OSError:
                yield f"{file} missing"


def open_local(path: Path, files: Sequence[str]) -> Mapping[str, Any]:
    """The table of each split of a parquet file, of some that a pattern names, or of a folder."""
    if path.is_file():
        files = [str(path)]
    if files:
        wrong = next((file for file in files if not file.endswith(".parquet")), None)
        require(wrong is None, "source", wrong, "a folder, or parquet files")
        root = os.path.commonpath([os.path.dirname(file) for file in files])
        return _open(path, lambda: datasets.load_dataset("parquet", data_files=_parquet_splits(files, root)))
    if (path / "dataset_dict.json").is_file():
        return _open(path, lambda: datasets.load_from_disk(str(path)))
    if (path / "state.json").is_file():
        table = _open(path, lambda: datasets.load_from_disk(str(path)))
        return {str(table.split or "train").partition("[")[0]: table}
    files = sorted(str(file) for file in path.rglob("*.parquet") if file.name != "metadata.parquet")
    if files:
        return _open(path, lambda: datasets.load_dataset("parquet", data_files=_parquet_splits(files, str(path))))
    return _open(path, lambda: datasets.load_dataset("imagefolder", data_files=_folder_splits(path)))


def _parquet_splits(files: Sequence[str], root: str) -> dict[str, list[str]]:
    """Parquet files by split: a word of the file's name, else of a folder's name below root, else train."""
    splits: dict[str, list[str]] = {}
    for file in files:
        below = os.path.relpath(file, root).lower()
        words = [word for part in reversed(Path(below).parts) for word in re.split(r"[^a-z]+", part)]
        split = next((SPLITS[word] for word in words if word in SPLITS), "train")
        splits.setdefault(split, []).append(file)
    return splits


def _folder_splits(root: Path) -> dict[str, str]:
    """Patterns of files by split: the sub-folders train, test and so on, else all is train.

    One sub-folder called train among others is a class (of vehicles, say), not a split. The training split comes
    first, as `datasets` looks for classes in the splits it has seen so far.
    """
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    splits = {
        split: f"{folder}/**" for word, split in SPLITS.items() for folder in folders if folder.name.lower() == word
    }
    described = any(root.glob("metadata.*"))
    if splits and not described and (len(splits) > 1 or len(folders) == 1):
        return splits
    return {"train": f"{root}/**"}


def _open(place: Path, read: Callable[[], Any]) -> Any:
    """What `datasets` reads, without its progress bars, and with its complaints in one sentence."""
    try:
        with _quiet():
            return read()
    except _FAILURES as error:
        raise BadArgument(
            f"source must be a folder of pictures, parquet files or a saved dataset, got {str(place)!r}: "
            f"{_sentence(error)}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


@contextmanager
def _network(allowed: bool) -> Iterator[None]:
    """Without it `datasets` looks into its cache at once; on its own it would try the network for half a minute."""
    settings: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [setting.HF_HUB_OFFLINE for setting in settings]
    try:
        for setting in settings:
            setting.HF_HUB_OFFLINE = not allowed
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.HF_HUB_OFFLINE = value


def _sentence(error: BaseException) -> str:
    """The first line of what first went wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def open_hub(source: str, known: Named | None) -> Mapping[str, Any]:
    """The tables of a set on the hub, or of its copy in the cache of `datasets` where the hub is out of reach."""
    hub = known.hub if known else source
    require(
        re.fullmatch(r"\w[\w.-]*/[\w.-]+", hub) is not None,
        "source",
        source,
        f"an existing path, one of {', '.join(NAMED)}, or owner/name of the Hugging Face hub",
    )
    offline = datasets.config.HF_HUB_OFFLINE
    if not offline:
        try:
            huggingface_hub.utils.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=HUB_PATIENCE)
        except Exception:  # the kind depends on huggingface_hub's choice of http library
            offline = True
    try:
        with _network(not offline):
            return datasets.load_dataset(hub)
    except _FAILURES as error:
        reason = "the hub cannot be reached" if offline else _sentence(error)
    advice = "pass a local copy with path=" if known else "pass the path of a local copy"
    if source == "fashion-mnist":
        advice += ", or apt install dataset-fashion-mnist"
    raise BadArgument(
        f"source must be an existing path or a set on the Hugging Face hub, got {source!r}: there is no such path "
        f"here, and {hub} could not be read from the hub ({reason}); {advice}"
    )


def select(
    name: str,
    tables: Mapping[str, Any],
    split: str,
    known: Named | None,
    image_column: str | None,
    label_column: str | None,
) -> Found:
    """The pictures of one split and their conditions."""
    split = pick_split(split, tuple(tables))
    table = tables[split]
    require(len(table) > 0, "split", split, f"a split that holds pictures; that of {name} is empty")
    if image_column is None:
        image_column = _image_column(table.features)
    else:
        require_choice("image_column", image_column, table.column_names)
    try:
        with _quiet():
            pictures = Encoded(table, image_column)
    except _FAILURES as error:
        raise BadArgument(f"image_column must hold pictures, got {image_column!r}: {_sentence(error)}") from None
    return Found(name, split, pictures, _condition(tables, split, known, image_column, label_column))


def _condition(
    tables: Mapping[str, Any], split: str, known: Named | None, image_column: str, label_column: str | None
) -> Condition:
    table = tables[split]
    if label_column is not None and label_column != "none":
        require_choice("label_column", label_column, [c for c in table.column_names if c != image_column])
    elif label_column is None and known and known.attributes:
        return _attributes(_attribute_columns(table, known.attributes, image_column), known.attributes)
    elif label_column is None and (known is None or known.classes):
        label_column = _label_column(table.features)
        require(
            known is None or label_column is not None, "label_column", None, "given for a set with classes, or 'none'"
        )
    if label_column is None or label_column == "none":
        return Condition()
    return _labels(tables, split, label_column, known)


def _image_column(features: Mapping[str, Any]) -> str:
    encoded = [datasets.Value("binary"), datasets.Value("large_binary")]
    typed = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    loose = [
        column
        for column, feature in features.items()
        if feature in encoded or (isinstance(feature, dict) and feature.get("bytes") in encoded)
    ]
    candidates = typed or loose
    named = [column for column in candidates if column in IMAGE_COLUMNS] or candidates
    require(len(named) == 1, "image_column", None, f"given: one of {', '.join(candidates or features)}")
    return named[0]


def _label_column(features: Mapping[str, Any]) -> str | None:
    named = [column for column in LABEL_COLUMNS if column in features]
    typed = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    return next(iter(named + typed), None)


def _labels(tables: Mapping[str, Any], split: str, column: str, known: Named | None) -> Condition:
    """Classes, or attributes where a cell is a list, of one column. All splits together say which classes there are."""
    values = _values(tables[split], column)
    if hasattr(tables[split].features[column], "feature"):
        vectors = _stacked(column, values)
        return _attributes(vectors, numbered(vectors.shape[1]))
    everywhere = [_values(table, column) for table in tables.values() if column in table.column_names]
    if pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type):
        names = sorted({text for part in everywhere for text in part.unique().to_pylist()})
        position = {text: index for index, text in enumerate(names)}
        return class_condition(column, np.array([position[text] for text in values.to_pylist()]), names)
    whole = pyarrow.types.is_integer(values.type) or pyarrow.types.is_boolean(values.type)
    require(whole, "label_column", f"{column} of {values.type}", "a column of whole numbers, text or lists")
    classes = getattr(tables[split].features[column], "names", None) or (known and known.classes)
    largest = max(int(_array(part).max(initial=0)) for part in everywhere)
    return class_condition(column, _array(values).astype(np.int64), classes or numbered(largest + 1))


def _array(values: Any) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False)


def _values(table: Any, column: str) -> Any:
    """One column, as an array of pyarrow without holes."""
    values = table.select_columns(column).with_format("arrow")[:][column].combine_chunks()
    if values.null_count:
        hole = values.is_null().to_pylist().index(True)
        raise BadArgument(f"label_column must have a value for every picture, got {column!r} without one in row {hole}")
    return values


def _attribute_columns(table: Any, attributes: Sequence[str], image_column: str) -> np.ndarray:
    """One column an attribute, or one column of lists with a value an attribute; (n, a)."""
    columns = {column.lower(): column for column in table.column_names}
    missing = [name for name in attributes if name.lower() not in columns]
    if not missing:
        return np.stack([_array(_values(table, columns[name.lower()])) for name in attributes], axis=1)
    for column in table.column_names:
        if column != image_column and hasattr(table.features[column], "feature"):
            values = _stacked(column, _values(table, column))
            if values.shape[1] == len(attributes):
                return values
    raise BadArgument(
        f"the attributes must be columns of the set, got none for {', '.join(missing[:3])} and {len(missing)} of "
        f"{len(attributes)} in all; label_column='none' does without"
    )


def _stacked(column: str, values: Any) -> np.ndarray:
    lists = values.to_pylist()
    lengths = sorted({len(cell) for cell in lists})
    require(len(lengths) == 1, f"the lists in column {column!r}", f"lengths {lengths}", "equally long")
    return np.array(lists)


def _attributes(values: np.ndarray, names: tuple[str, ...]) -> Condition:
    """0 and 1 from booleans, from 0 and 1, or from -1 and 1."""
    wrong = ~np.isin(values, (-1, 0, 1))
    require(not wrong.any(), "attributes", values[wrong][:1].tolist(), "booleans, 0 and 1, or -1 and 1")
    return Condition(torch.from_numpy((values > 0).astype(np.float32)), attributes=names)
