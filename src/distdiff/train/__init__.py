"""Training: what each kind of run trains, the loop, and the folder a run leaves behind."""

from .build import build_loss, pick_device
from .folder import RunFolder
from .loop import Progress, build_task, check, train
from .task import build_data, build_denoiser, load_denoiser

__all__ = [
    "Progress",
    "RunFolder",
    "build_data",
    "build_denoiser",
    "build_loss",
    "build_task",
    "check",
    "load_denoiser",
    "pick_device",
    "train",
]
