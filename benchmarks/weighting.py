"""Why `small` drops the sigmoid weighting: the posterior's spread on the 2D mixture with it and without.

Trains the distributional model of `mixture2d` at `small` for 6000 steps each and prints the ratio of the draws'
standard deviation to that of the exact posterior in closed form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from distdiff import add_noise
from distdiff.data.toy import Mixture2D
from distdiff.evaluate import posterior_spread
from distdiff.progress import bar
from distdiff.recipe import RECIPES
from distdiff.train import train

TIMES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9)


def ratios(weighting: Literal["none", "sigmoid"], steps: int = 6000) -> list[float]:
    base = RECIPES["mixture2d"]["small"]
    config = replace(base, steps=steps, loss=replace(base.loss, weighting=weighting))
    with bar(weighting, steps) as advance:
        for last in train(config):
            advance(f"loss {last.loss:.3f}")
    toy = Mixture2D()
    exact = toy.posterior()
    found = []
    for t in TIMES:
        generator = torch.Generator().manual_seed(1)
        x0 = toy.sample(4096, generator)
        xt = add_noise(exact.schedule, x0, torch.tensor(t), torch.randn(x0.shape, generator=generator))
        found.append(posterior_spread(last.denoiser, xt, t, draws=64) / float(exact.std(xt, t).mean()))
    return found


def main() -> None:
    print("posterior std over the exact one at t =", *TIMES)
    for weighting in ("none", "sigmoid"):
        print(f"{weighting:8}", *(f"{value:.2f}" for value in ratios(weighting)))


if __name__ == "__main__":
    main()
