"""What Muon brings in few steps: a classical model of Fashion-MNIST with either optimiser, by its held-out error.

    python benchmarks/optimizer.py --steps 500

Trains the classical twin of `fashion-mnist` at `small` with Adam at two learning rates and with Muon at two, and prints
the squared error of its velocities on held-out pictures, as a ratio to that of the recipe's own optimiser and rate, and
what a step takes. Two to five minutes a model on one core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch

from distdiff import add_noise
from distdiff.data.image import to_float
from distdiff.denoiser import Denoiser
from distdiff.progress import bar
from distdiff.recipe import RECIPES
from distdiff.train import train
from distdiff.train.image import held_out

TIMES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.95)


@torch.no_grad()
def error(denoiser: Denoiser, x0: torch.Tensor) -> float:
    """Mean squared error of velocities over pictures and times."""
    z = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for t in TIMES:
        mean = denoiser.mean(add_noise(denoiser.schedule, x0, torch.tensor(t), z), t)
        total += float((mean - x0).square().mean()) / t**2
    return total / len(TIMES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    base = RECIPES["fashion-mnist-diffusion"]["small"]
    x0 = to_float(held_out(base, "auto").batch(list(range(512)))[0])
    own = (base.optim.kind, base.optim.lr)
    found: dict[tuple[str, float], tuple[float, float]] = {}
    for kind, lr in dict.fromkeys([own, ("adam", 2e-3), ("adam", 4e-3), ("muon", 1e-3), ("muon", 2e-3)]):
        config = replace(base, steps=args.steps, tracker="none", optim=replace(base.optim, kind=kind, lr=lr))
        start = time.perf_counter()
        with bar(f"{kind} {lr:g}", args.steps) as advance:
            for last in train(config):
                advance(f"loss {last.loss:.3f}")
        found[kind, lr] = error(last.denoiser, x0), time.perf_counter() - start
        ratios = (a / b for a, b in zip(found[kind, lr], found[own], strict=True))
        print(
            "{} {:g}: error {:.4f}, {:.2f} times the recipe's, in {:.2f} times its time".format(
                kind, lr, found[kind, lr][0], *ratios
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
