"""What the sampler adds to N bare forward passes, for the 2D network and for a convolutional one at image size."""

from __future__ import annotations

from itertools import pairwise

import torch
from timing import milliseconds
from torch import nn

from distdiff import Denoiser, sample
from distdiff.recipe import RECIPES
from distdiff.train import build_denoiser


class Convolutions(nn.Module):
    """Stands in for a small U-Net: eight 3x3 convolutions of width 64 on (3, 32, 32)."""

    def __init__(self) -> None:
        super().__init__()
        widths = [6, *[64] * 7, 3]
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GELU()) for a, b in pairwise(widths))
        )

    def forward(self, xt, t, xi=None, cond=None):
        x = torch.cat([xt[:, None].expand_as(xi), xi], dim=2)
        return self.layers(x.flatten(0, 1)).unflatten(0, xi.shape[:2])


def main() -> None:
    steps = 4
    cases = {
        "2D network, 4096 points": (build_denoiser(RECIPES["checkerboard"]["small"].network), (4096, 2), (4096, 1, 2)),
        "convolutions, 32 images": (
            Denoiser(Convolutions(), noise_shape=(3, 32, 32)),
            (32, 3, 32, 32),
            (32, 1, 3, 32, 32),
        ),
    }
    for name, (denoiser, shape, noise) in cases.items():
        xt, xi, t = torch.randn(shape), torch.randn(noise), torch.tensor(0.5)

        @torch.no_grad()
        def bare(denoiser=denoiser, xt=xt, xi=xi, t=t) -> None:
            for _ in range(steps):
                denoiser(xt, t, xi)

        def whole(denoiser=denoiser, shape=shape) -> None:
            sample(denoiser, shape, steps=steps)

        times = milliseconds({"bare": bare, "sampler": whole}, rounds=15)
        over = times["sampler"] / times["bare"] - 1
        print(f"{name}: {steps} bare passes {times['bare']:.1f} ms, sampler {times['sampler']:.1f} ms, {over:+.1%}")


if __name__ == "__main__":
    main()
