"""Pictures of pictures: grids, animations, PNG files. Tensors here are uint8 (n, c, h, w)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["as_image", "grid", "save_animation", "zoom_for"]


def as_image(pixels: Tensor, zoom: int = 1) -> Any:
    """One picture (c, h, w) as a PIL image, each pixel `zoom` wide."""
    from PIL import Image

    array = np.ascontiguousarray(pixels.permute(1, 2, 0).cpu().numpy())
    image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
    return image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST) if zoom > 1 else image


def zoom_for(size: int, columns: int, width: int = 640) -> int:
    """How often to enlarge pictures so that a row of them is about `width` pixels wide."""
    return max(1, round(width / (columns * size)))


def grid(images: Tensor, columns: int | None = None, *, gap: int = 1, zoom: int | None = None) -> Any:
    """Pictures in rows on white, enlarged so that a stranger can see small ones."""
    count, channels, height, width = images.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    sheet = torch.full((channels, rows * (height + gap) + gap, columns * (width + gap) + gap), 255, dtype=torch.uint8)
    for index, image in enumerate(images.cpu()):
        top, left = (gap + k * (side + gap) for k, side in zip(divmod(index, columns), (height, width), strict=True))
        sheet[:, top : top + height, left : left + width] = image
    return as_image(sheet, zoom or zoom_for(width, columns))


def save_animation(frames: Sequence[Any], path: Path, *, seconds: float = 0.4, hold: float = 1.6) -> None:
    """PIL images one after the other, the last one held, without end."""
    durations = [round(1000 * seconds)] * (len(frames) - 1) + [round(1000 * hold)]
    frames[0].save(path, save_all=True, append_images=list(frames[1:]), duration=durations, loop=0)
