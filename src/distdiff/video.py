"""Short films of simulations: mp4 where PyAV is installed, an animated GIF otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["save_video"]


def save_video(frames: Sequence[np.ndarray], path: Path, fps: int = 20) -> Path:
    """Write frames, uint8 (height, width, 3) with even sides, to `path` with .mp4 or .gif behind it; that file."""
    try:
        import av
    except ImportError:
        file = path.with_suffix(".gif")
        first, *others = (Image.fromarray(frame) for frame in frames)
        first.save(file, save_all=True, append_images=others, duration=1000 // fps, loop=0)
        return file
    file = path.with_suffix(".mp4")
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(file), "w") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps))
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file
