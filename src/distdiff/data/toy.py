"""Distributions in the plane that can be sampled without end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..posterior import MixturePosterior
from ..schedule import Schedule

__all__ = ["TOYS", "Checkerboard", "Mixture2D", "Toy"]


class Toy(Protocol):
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n points, (n, 2), in float32 on the CPU."""
        ...


@dataclass(frozen=True)
class Mixture2D:
    """The paper's two equal Gaussians at (3, 3) and (-3, 3) with standard deviation 0.5."""

    means: tuple[tuple[float, float], ...] = ((3.0, 3.0), (-3.0, 3.0))
    std: float = 0.5

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        means = torch.tensor(self.means)
        k = torch.randint(len(means), (n,), generator=generator)
        return means[k] + self.std * torch.randn(n, 2, generator=generator)

    def posterior(self, schedule: Schedule | None = None) -> MixturePosterior:
        return MixturePosterior(self.means, self.std, schedule=schedule)


@dataclass(frozen=True)
class Checkerboard:
    """Uniform on the eight filled squares of side 2 of a board on [-4, 4]**2: those of even column + row."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        column = torch.randint(4, (n,), generator=generator)
        row = 2 * torch.randint(2, (n,), generator=generator) + column % 2
        corner = torch.stack([column, row], dim=-1) * 2.0 - 4.0
        return corner + 2 * torch.rand(n, 2, generator=generator)


TOYS: dict[str, Toy] = {"mixture2d": Mixture2D(), "checkerboard": Checkerboard()}
