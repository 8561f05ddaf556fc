"""Sets of pictures as tensors: folders, parquet files, saved datasets, named sets and the hub.

    pictures = load_images("cifar10", path="...")    # a local copy; without it, the hub is asked
    x0, labels = pictures.batch([0, 1, 2])           # uint8 (3, 3, 32, 32), int64 (3,)
    x0 = to_float(x0)                                # float32 in [-1, 1]

A source is looked for in this order: a local path (a folder of pictures, parquet files, a folder written by
`save_to_disk` of `datasets`, or IDX files), Debian's package `dataset-fashion-mnist`, and the Hugging Face hub. The
digits of scikit-learn, the default, are at hand everywhere.

A picture is turned upright by its EXIF tag, laid over white where it is transparent, brought to 8 bits and to one
channel (the luma of ITU-R 601) or three. Then its central square is resized by Pillow's bicubic filter, whose support
widens with the factor of shrinking, so that nothing aliases; a square of the right size is left as it is.

Sets of at most `MEMORY_LIMIT` bytes of pixels are decoded once. Larger ones are decoded on access.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from glob import glob, has_magic
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from .._check import BadArgument, require, require_choice, require_count
from .named import DEBIAN_FASHION_MNIST, NAMED, Found, Pictures, Raw, digits, idx_set, idx_splits

__all__ = ["MEMORY_LIMIT", "ImageSet", "load_images", "to_float", "to_uint8"]

MEMORY_LIMIT = 2**30
_CHUNK = 256
_UNREADABLE = Exception  # a damaged file can make Pillow's decoders raise almost anything

Progress = Callable[[int, int], object]


def to_float(images: Tensor) -> Tensor:
    """uint8 pixels as float32 in [-1, 1]."""
    require(images.dtype == torch.uint8, "images", images.dtype, "uint8")
    return images.float() / 127.5 - 1


def to_uint8(images: Tensor) -> Tensor:
    """Pixels in [-1, 1] as uint8, rounded; what lies outside is clamped, and what is no number becomes black."""
    return ((images.float().nan_to_num(nan=-1.0) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


class ImageSet(Dataset):
    """Square pictures of one size, uint8, with a class or a vector of attributes each, or neither; from `load_images`.

    A picture that cannot be decoded is skipped when the set is in memory. When it is decoded on access, the next
    usable row stands in for it, with a warning the first time; `bad` then names those met so far, in this process.
    """

    def __init__(
        self,
        found: Found,
        size: int,
        channels: int,
        pixels: Tensor | None,
        condition: Tensor | None,
        length: int,
        bad: dict[int, str],
    ) -> None:
        self.name, self.split = found.name, found.split
        self.classes, self.attributes = found.condition.classes, found.condition.attributes
        self.size, self.channels = size, channels
        self._pictures = found.pictures if pixels is None else None
        self._pixels, self._condition, self._length, self._bad = pixels, condition, length, bad
        self._content: str | None = None

    @property
    def bad(self) -> tuple[str, ...]:
        """Names (the path, or the number of the row) of pictures that could not be decoded, so far."""
        return tuple(self._bad.values())

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor | None]:
        """uint8 (n, c, size, size), and int64 (n,) classes, float32 (n, a) attributes or None."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        outside = (index < -len(self)) | (index >= len(self))
        if outside.any():
            raise IndexError(f"row {int(index[outside][0])} of a set of {len(self)} pictures")
        index = index % len(self)
        if self._pixels is None:
            pixels, index = self._decode(index.tolist())
        else:
            pixels = self._pixels[index]
        return pixels, None if self._condition is None else self._condition[index]

    def __getitems__(self, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor | None]:
        """For a `DataLoader` whose `collate_fn` passes batches through as they are."""
        return self.batch(rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor | None]:
        pixels, condition = self.batch([row])
        return pixels[0], None if condition is None else condition[0]

    def _decode(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """The pictures of these rows and the rows they came from, which differ where a picture is bad."""
        assert self._pictures is not None
        pixels = np.empty((len(rows), self.channels, self.size, self.size), np.uint8)
        used = []
        for position, (row, picture) in enumerate(zip(rows, self._pictures.read(rows), strict=True)):
            usable = row
            while (decoded := self._usable(usable, picture)) is None:
                usable = (usable + 1) % len(self)
                if usable == row:
                    raise BadArgument(f"{self.name} must hold a picture that can be decoded, got {len(self)} bad ones")
                (picture,) = self._pictures.read([usable])  # noqa: PLW2901
            pixels[position] = decoded
            used.append(usable)
        return torch.from_numpy(pixels), torch.tensor(used, dtype=torch.int64)

    def _usable(self, row: int, picture: tuple[str, bytes | str | np.ndarray | None]) -> np.ndarray | None:
        if row in self._bad:
            return None
        try:
            return _pixels(_upright(picture[1]), self.size, self.channels)
        except _UNREADABLE as error:
            self._bad[row] = picture[0]
            warnings.warn(f"{picture[0]} of {self.name} is left out: {error}", stacklevel=4)
            return None

    def describe(self) -> str:
        text = f"{self.name} ({self.split}): {len(self)} pictures of {self.size}x{self.size}x{self.channels}"
        names = self.classes or self.attributes
        if names:
            text += f", {len(names)} {'classes' if self.classes else 'attributes'}: {_shortened(names)}"
        if self._pixels is None:
            text += ", decoded on access"
        if self.bad:
            text += f"; {len(self.bad)} could not be decoded: {_shortened(self.bad)}"
        return text

    def content(self) -> str:
        """sha256, in hexadecimal, of what the set holds: the key of caches.

        In memory it is that of pixels and conditions. Otherwise it is that of settings and conditions with the
        names, sizes and times of change of the files.
        """
        if self._content is None:
            digest = hashlib.sha256()
            shape = (len(self), self.channels, self.size)
            digest.update(repr((shape, self.classes, self.attributes)).encode())
            if self._condition is not None:
                digest.update(self._condition.numpy().data)
            if self._pixels is not None:
                digest.update(self._pixels.numpy().data)
            elif self._pictures is not None:
                for line in self._pictures.identity():
                    digest.update(f"{line}\n".encode())
            self._content = digest.hexdigest()
        return self._content


def load_images(
    source: str = "digits",
    *,
    split: str = "train",
    path: str | Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The pictures of a local path, a named set (its local copy with `path`), or owner/name on the hub.

    size: side of the squares; None is the largest square of the first usable picture. channels: 1 or 3; None follows
    the first usable picture. The columns are found by their type and name; `label_column="none"` leaves labels out.
    limit: the first so many usable pictures. progress(done, total) is called while pictures are decoded.
    """
    if size is not None:
        require_count("size", size)
    require_choice("channels", channels, (None, 1, 3))
    if limit is not None:
        require_count("limit", limit)
    found = _find(source, split, path, image_column, label_column)
    pictures, condition = found.pictures, found.condition.values
    first = _first_usable(found)
    bad: dict[int, str] = {}
    size = size or min(first.size)
    channels = channels or (1 if _is_grey(first) else 3)
    length = min(len(pictures), limit or len(pictures))
    if length * channels * size * size > MEMORY_LIMIT:
        condition = condition if condition is None else condition[:length]
        return ImageSet(found, size, channels, None, condition, length, bad)
    if isinstance(pictures, Raw) and channels == 1 and pictures.pixels.shape[1:] == (size, size):
        pixels, rows = torch.from_numpy(pictures.pixels[:length, None].copy()), list(range(length))
        if progress is not None:
            progress(length, length)
    else:
        pixels, rows = _decode_all(pictures, size, channels, length, bad, progress)
    condition = condition if condition is None else condition[rows]
    return ImageSet(found, size, channels, pixels, condition, len(rows), bad)


def _find(
    source: str, split: str, path: str | Path | None, image_column: str | None, label_column: str | None
) -> Found:
    known = NAMED.get(source)
    if path is not None:
        require(known is not None, "source", source, f"a named set when path is given: one of {', '.join(NAMED)}")
        if source == "digits":
            source, known = str(path), None
    elif source == "digits":
        return digits(split, label_column)
    local = Path(source if path is None else path).expanduser()
    files = sorted(glob(str(local), recursive=True)) if has_magic(str(local)) and not local.exists() else []
    here = local.exists() or bool(files)
    require(here or path is None, "path", str(path), "an existing file or folder, or a pattern of parquet files")
    folder = local if here else DEBIAN_FASHION_MNIST
    if (here or source == "fashion-mnist") and idx_splits(folder):
        return idx_set(source, folder, split, known.classes if known else None, label_column)

    from .table import open_hub, open_local, select

    tables = open_local(local, files) if here else open_hub(source, known)
    return select(source, tables, split, known, image_column, label_column)


def _decode_all(
    pictures: Pictures, size: int, channels: int, length: int, bad: dict[int, str], progress: Progress | None
) -> tuple[Tensor, list[int]]:
    """The first usable pictures, at most `length`, and their rows; `bad` receives the others'."""
    pixels = torch.empty(length, channels, size, size, dtype=torch.uint8)
    view = pixels.numpy()
    rows: list[int] = []
    for start in range(0, len(pictures), _CHUNK):
        chunk = range(start, min(start + _CHUNK, len(pictures)))
        for row, (name, encoded) in zip(chunk, pictures.read(chunk), strict=True):
            if len(rows) == length:
                break
            try:
                view[len(rows)] = _pixels(_upright(encoded), size, channels)
                rows.append(row)
            except _UNREADABLE:
                bad[row] = name
        if progress is not None:
            progress(min(chunk.stop, length), length)
        if len(rows) == length:
            break
    return pixels[: len(rows)], rows


def _first_usable(found: Found) -> Image.Image:
    reason = ""
    for row in range(len(found.pictures)):
        ((name, encoded),) = found.pictures.read([row])
        try:
            picture = _upright(encoded)
            _pixels(picture, size=1, channels=3)
            return picture
        except _UNREADABLE as error:
            reason = reason or f"{name}: {error}"
    raise BadArgument(
        f"source must hold a picture that can be decoded, got {found.name!r} with {len(found.pictures)} that cannot "
        f"in split {found.split!r} ({reason})"
    )


def _upright(encoded: bytes | str | np.ndarray | None) -> Image.Image:
    """The decoded picture, turned as its EXIF tag says."""
    if encoded is None:
        raise ValueError("the cell is empty")
    if isinstance(encoded, np.ndarray):
        return Image.fromarray(encoded)
    with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as picture:
        ImageOps.exif_transpose(picture, in_place=True)
        return picture


def _is_grey(picture: Image.Image) -> bool:
    return picture.mode in ("1", "L", "LA", "La") or picture.mode.startswith("I")


def _pixels(picture: Image.Image, size: int, channels: int) -> np.ndarray:
    """The central square, uint8 (channels, size, size)."""
    if picture.mode.startswith("I"):  # 16 bits, whatever the order of the bytes
        scaled = np.rint(np.asarray(picture).astype(np.float64) / 257)
        picture = Image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    elif picture.mode == "F":
        raise ValueError("pictures of floating-point numbers have no known range")
    elif picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        white.alpha_composite(picture.convert("RGBA"))
        picture = white
    mode = "L" if channels == 1 else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    if picture.size != (size, size):
        short = min(picture.size)
        left, top = (picture.width - short) // 2, (picture.height - short) // 2
        square = (left, top, left + short, top + short)
        if short == size:
            picture = picture.crop(square)
        else:
            picture = picture.resize((size, size), Image.Resampling.BICUBIC, box=square)
    array = np.asarray(picture)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _shortened(names: Sequence[str], shown: int = 5) -> str:
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
