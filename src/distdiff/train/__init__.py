"""Training: building what a configuration names, the loop, and the folder a run leaves behind."""

from .build import build_data, build_denoiser, build_loss, pick_device
from .folder import RunFolder, load_denoiser
from .loop import Progress, train

__all__ = [
    "Progress",
    "RunFolder",
    "build_data",
    "build_denoiser",
    "build_loss",
    "load_denoiser",
    "pick_device",
    "train",
]
