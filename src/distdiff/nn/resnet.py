"""A small ResNet for camera pictures: group normalisation instead of batch statistics, feature maps instead of classes.

Averaged weights and batch statistics do not go together, and a policy sees one picture at a time; group normalisation
(Wu and He, 2018) needs no batch. `resnet18` has the original's four stages of two blocks, `resnet10` of one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._check import require, require_choice, require_count

__all__ = ["RESNETS", "ResNet"]

RESNETS = {"resnet10": (1, 1, 1, 1), "resnet18": (2, 2, 2, 2)}


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            _norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            _norm(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.body(x))


class ResNet(nn.Module):
    """Pictures (n, 3, height, width) in [-1, 1] to features (n, channels, height / 32, width / 32), rounded up."""

    def __init__(self, name: str = "resnet18", width: int = 64) -> None:
        super().__init__()
        require_choice("vision", name, RESNETS)
        require_count("vision_width", width)
        require(width % 8 == 0, "vision_width", width, "a multiple of 8")
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), _norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages, inputs = [], width
        for stage, blocks in enumerate(RESNETS[name]):
            outputs = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (blocks - 1)
            stages += [_Block(inputs if k == 0 else outputs, outputs, stride) for k, stride in enumerate(strides)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.channels = inputs

    def forward(self, pictures: Tensor) -> Tensor:
        return self.stages(self.stem(pictures))


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(channels // 8, channels)
