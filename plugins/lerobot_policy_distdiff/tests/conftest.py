"""One thread, and a torchvision that was built for another torch made importable by declaring its operators."""

from __future__ import annotations

import sys

import torch

torch.set_num_threads(1)

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:  # operator torchvision::nms does not exist
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for _name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:  # half imported
        del sys.modules[_name]
