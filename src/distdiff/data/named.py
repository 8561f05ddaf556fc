"""Sets of pictures that have a name, and the two of them that need no library to read: digits and IDX files.

A set has splits, and each picture of a split a class, a vector of attributes, or nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .._check import BadArgument, require, require_choice

__all__ = [
    "DEBIAN_FASHION_MNIST",
    "NAMED",
    "SPLITS",
    "Condition",
    "Found",
    "Named",
    "Pictures",
    "Raw",
    "class_condition",
    "digits",
    "idx_set",
    "idx_splits",
    "numbered",
    "pick_split",
    "read_idx",
]

CELEBA_ATTRIBUTES = (
    *("5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose"),
    *("Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses"),
    *("Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache"),
    *("Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks"),
    *("Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick"),
    *("Wearing_Necklace", "Wearing_Necktie", "Young"),
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    *("T-shirt / top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
NUMERALS = tuple("0123456789")


@dataclass(frozen=True)
class Named:
    """A set with a name: its place on the hub, and its classes or attributes. With neither it is unconditional."""

    hub: str
    classes: tuple[str, ...] | None = None
    attributes: tuple[str, ...] | None = None


NAMED: dict[str, Named] = {
    "digits": Named("", classes=NUMERALS),
    "mnist": Named("ylecun/mnist", classes=NUMERALS),
    "fashion-mnist": Named("zalando-datasets/fashion_mnist", classes=FASHION_CLASSES),
    "cifar10": Named("uoft-cs/cifar10", classes=CIFAR10_CLASSES),
    "celeba": Named("flwrlabs/celeba", attributes=CELEBA_ATTRIBUTES),
    "celeba-hq": Named("korexyz/celeba-hq-256x256"),
    "lsun-bedroom": Named("pcuenq/lsun-bedrooms"),
}
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
DIGITS_TRAIN, DIGITS_SEED = 1437, 0

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class Pictures(Protocol):
    """Pictures that are not yet decoded."""

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> Sequence[tuple[str, bytes | str | np.ndarray | None]]:
        """The name of each picture, and its pixels, its bytes or the path of its file; None for an empty cell."""
        ...

    def identity(self) -> Iterator[str]:
        """What changes when the pictures change."""
        ...


class Raw:
    """Greyscale pictures that are in memory as they are: uint8, (n, height, width)."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, rows: Sequence[int]) -> list[tuple[str, np.ndarray]]:
        return [(f"row {row}", self.pixels[row]) for row in rows]

    def identity(self) -> Iterator[str]:
        yield hashlib.sha256(self.pixels.tobytes()).hexdigest()


class Condition(NamedTuple):
    """Of every picture the class, int64 (n,), the attributes, float32 (n, a), or nothing; and their names."""

    values: Tensor | None = None
    classes: tuple[str, ...] | None = None
    attributes: tuple[str, ...] | None = None


class Found(NamedTuple):
    """One split of a set."""

    name: str
    split: str
    pictures: Pictures
    condition: Condition


def pick_split(split: str, splits: Sequence[str]) -> str:
    """The split of that name, where val, valid and validation (and such) are one name."""
    if split in splits:
        return split
    same = [name for name in splits if SPLITS.get(name, name) == SPLITS.get(split, split)]
    if not same:
        require_choice("split", split, splits)
    return same[0]


def class_condition(column: str, indices: np.ndarray, names: Sequence[str]) -> Condition:
    wrong = np.flatnonzero((indices < 0) | (indices >= len(names)))
    if len(wrong):
        raise BadArgument(
            f"labels in column {column!r} must be in [0, {len(names) - 1}], got {indices[wrong[0]]} in row {wrong[0]}"
        )
    return Condition(torch.from_numpy(indices.astype(np.int64)), classes=tuple(names))


def numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def digits(split: str, label_column: str | None) -> Found:
    """Scikit-learn's 1,797 digits of 8x8, whose values 0..16 become 0..255; 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits

    split = pick_split(split, ("train", "test"))
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(DIGITS_SEED)).numpy()
    rows = order[:DIGITS_TRAIN] if split == "train" else order[DIGITS_TRAIN:]
    pixels = np.rint(images[rows].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    return Found("digits", split, Raw(pixels), _labels(labels[rows], NUMERALS, label_column))


def idx_splits(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The files of pictures and of labels of each split that lies in a folder, named as MNIST's are."""
    found = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for end in ("", ".gz"):
            images = folder / f"{prefix}-images-idx3-ubyte{end}"
            if images.is_file():
                found[split] = images, folder / f"{prefix}-labels-idx1-ubyte{end}"
    return found


def idx_set(name: str, folder: Path, split: str, classes: tuple[str, ...] | None, label_column: str | None) -> Found:
    splits = idx_splits(folder)
    split = pick_split(split, tuple(splits))
    images, labels = read_idx(splits[split][0], 3), read_idx(splits[split][1], 1)
    counts = f"{len(images)} pictures and {len(labels)} labels"
    require(0 < len(images) == len(labels), "source", counts, f"pictures with a label each in {folder}")
    return Found(name, split, Raw(images), _labels(labels, classes, label_column))


def _labels(labels: np.ndarray, classes: tuple[str, ...] | None, label_column: str | None) -> Condition:
    require_choice("label_column", label_column, (None, "label", "none"))
    if label_column == "none":
        return Condition()
    return class_condition("label", labels, classes or numbered(int(labels.max()) + 1))


def read_idx(path: str | Path, dimensions: int) -> np.ndarray:
    """The array of unsigned bytes in an IDX file, gzipped or not.

    The format: two zero bytes, 8 for unsigned bytes, the number of dimensions, each size as four bytes with the
    highest first, then the values, the last dimension varying fastest.
    """
    try:
        data = Path(path).read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise BadArgument(f"source must be a readable IDX file, got {str(path)!r}: {error}") from None
    start = 4 + 4 * dimensions
    head = bytes((0, 0, 8, dimensions))
    require(data[:4] == head, "source", data[:4].hex(), f"an IDX file that begins with {head.hex()} in {path}")
    require(len(data) >= start, "source", f"{len(data)} bytes", f"an IDX file of at least {start} bytes in {path}")
    sizes = struct.unpack(f">{dimensions}I", data[4:start])
    expected = start + math.prod(sizes)
    require(len(data) == expected, "source", f"{len(data)} bytes", f"an IDX file of {expected} bytes in {path}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)
