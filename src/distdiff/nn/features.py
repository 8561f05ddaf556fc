r"""A small network whose activations are features of images, for scores of what images look like.

Stages of convolution, group normalisation and ReLU; each halves the side (but the first not that of pictures of fewer
than 16 pixels) and doubles the width (up to four times the first), until the side is 8 pixels or fewer, three stages at
the least. The first has one convolution, of 5x5 pixels, the others two of 3x3. A linear layer on the mean of the last
stage's positions makes it a classifier that can be trained (`distdiff.train.features`).

The maps of a stage are divided by `spread`, the root of their mean variance over a set of images, and multiplied by
s = 1/2, the scale of pictures in [-1, 1], so that distances of features and of pixels have the same size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._check import require_count

__all__ = ["Features"]

SCALE = 0.5
GROUPS = 4


class Features(nn.Module):
    """Images (n, channels, h, w) in [-1, 1] to one map of features a stage.

    Args:
        size: side of the images, which says how many stages there are.
        outputs: numbers that the classifier gives.
        width: channels of the first stage, a multiple of 4.
    """

    spread: Tensor

    def __init__(self, size: int, channels: int, outputs: int, *, width: int = 16) -> None:
        super().__init__()
        for name, value in {"size": size, "channels": channels, "outputs": outputs, "width": width}.items():
            require_count(name, value)
        stride = 2 if size >= 16 else 1
        self.stages, inputs, wide = nn.ModuleList([_convolve(channels, width, stride, kernel=5)]), width, width
        size = -(-size // stride)
        while len(self.stages) < 3 or size > 8:
            size, wide = -(-size // 2), min(2 * wide, 4 * width)
            self.stages.append(nn.Sequential(_convolve(inputs, wide, 2), _convolve(wide, wide, 1)))
            inputs = wide
        self.head = nn.Linear(wide, outputs)
        self.register_buffer("spread", torch.ones(len(self.stages)))

    def activations(self, images: Tensor) -> list[Tensor]:
        found, x = [], images
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found

    def forward(self, images: Tensor) -> list[Tensor]:
        found = self.activations(images.to(self.spread.dtype))
        return [a * (SCALE / spread) for a, spread in zip(found, self.spread, strict=True)]

    def logits(self, images: Tensor) -> Tensor:
        return self.head(self.activations(images)[-1].mean((2, 3)))


def _convolve(inputs: int, outputs: int, stride: int, kernel: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU())
