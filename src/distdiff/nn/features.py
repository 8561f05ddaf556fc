r"""Networks whose activations are features of images, for scores of what images look like.

`Features` is a small one that can learn them from the images themselves (`distdiff.train.features`): stages of
convolution, group normalisation and ReLU; each halves the side (but the first not that of pictures of fewer than 16
pixels) and doubles the width (up to four times the first), until the side is 8 pixels or fewer, three stages at the
least. The first has one convolution, of 5x5 pixels, the others two of 3x3. A linear layer on the mean of the last
stage's positions makes it a classifier.

`PerceptualFeatures` takes those that LPIPS compares, of a network trained on photographs (`distdiff.nn.perceptual`),
for images enlarged by the least whole factor that makes their side 56 pixels or more, for its first layers are coarse.

The maps of a stage are divided by `spread`, the root of their mean variance over a set of images, and multiplied by
s = 1/2, the scale of pictures in [-1, 1], so that distances of features and of pixels have the same size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._check import require_count
from .perceptual import Perceptual

__all__ = ["Features", "PerceptualFeatures", "ScaledFeatures"]

SCALE = 0.5
GROUPS = 4
ENLARGED = 56
"""Least side of the images that a perceptual network sees."""


class ScaledFeatures(nn.Module, ABC):
    """Images (n, channels, h, w) in [-1, 1] to maps of features, each of the scale of pictures."""

    spread: Tensor

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.register_buffer("spread", torch.ones(stages))

    @abstractmethod
    def activations(self, images: Tensor) -> list[Tensor]:
        """The maps as the network has them."""

    @torch.no_grad()
    def measure(self, images: Tensor) -> None:
        """Set the spread of each stage to that of its maps of some images."""
        maps = self.activations(images.to(self.spread.dtype))
        self.spread.copy_(torch.stack([a.var(0).mean().sqrt().clamp_min(1e-6) for a in maps]))

    def forward(self, images: Tensor) -> list[Tensor]:
        found = self.activations(images.to(self.spread.dtype))
        return [a * (SCALE / spread) for a, spread in zip(found, self.spread, strict=True)]


class PerceptualFeatures(ScaledFeatures):
    """The features of a perceptual network, one map a compared layer."""

    def __init__(self, network: Perceptual) -> None:
        super().__init__(network.layers)
        self.network = network

    def activations(self, images: Tensor) -> list[Tensor]:
        factor = -(-ENLARGED // min(images.shape[-2:]))
        if factor > 1:
            images = functional.interpolate(images, scale_factor=factor, mode="bilinear", align_corners=False)
        return self.network.maps(images)


class Features(ScaledFeatures):
    """Images (n, channels, h, w) in [-1, 1] to one map of features a stage.

    Args:
        size: side of the images, which says how many stages there are.
        outputs: numbers that the classifier gives.
        width: channels of the first stage, a multiple of 4.
    """

    def __init__(self, size: int, channels: int, outputs: int, *, width: int = 16) -> None:
        for name, value in {"size": size, "channels": channels, "outputs": outputs, "width": width}.items():
            require_count(name, value)
        stride = 2 if size >= 16 else 1
        stages, inputs, wide = [_convolve(channels, width, stride, kernel=5)], width, width
        size = -(-size // stride)
        while len(stages) < 3 or size > 8:
            size, wide = -(-size // 2), min(2 * wide, 4 * width)
            stages.append(nn.Sequential(_convolve(inputs, wide, 2), _convolve(wide, wide, 1)))
            inputs = wide
        super().__init__(len(stages))
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(wide, outputs)

    def activations(self, images: Tensor) -> list[Tensor]:
        found, x = [], images
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found

    def logits(self, images: Tensor) -> Tensor:
        return self.head(self.activations(images)[-1].mean((2, 3)))


def _convolve(inputs: int, outputs: int, stride: int, kernel: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU())
