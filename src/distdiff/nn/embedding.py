"""Sinusoidal embedding of times, and of spans of time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._check import require

__all__ = ["Sinusoidal", "require_span"]


def require_span(spans: bool, span: Tensor | None) -> None:
    """A network without an input for spans must not be given one."""
    require(spans or span is None, "span", "given", "None for a network without spans")


class Sinusoidal(nn.Module):
    """t in [0, 1] to `width` sines and cosines, at geometrically spaced frequencies of 1 to `max_frequency`."""

    frequencies: Tensor

    def __init__(self, width: int, max_frequency: float = 1000.0) -> None:
        super().__init__()
        require(width >= 4 and width % 2 == 0, "width", width, "an even number of at least 4")
        frequencies = torch.exp(torch.linspace(0, math.log(max_frequency), width // 2))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        angles = t.to(self.frequencies.dtype)[..., None] * self.frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
