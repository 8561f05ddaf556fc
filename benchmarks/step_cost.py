"""What a distributional training step costs, in diffusion steps (2D network, n=128, m=32).

The distributional model shares its time branch across the population; `naive` runs the same loss with every input
replicated to n*m rows, as the paper's pseudo-code does.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from timing import milliseconds

from distdiff import score_loss
from distdiff.recipe import RECIPES
from distdiff.train import build_task
from distdiff.train.loop import TrainState


class Replicating(torch.nn.Module):
    """The same network, asked for n*m single draws."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, xt, t, xi=None, cond=None):
        n, m = xi.shape[:2]
        t = t.expand(n).repeat_interleave(m)
        return self.network(xt.repeat_interleave(m, 0), t, xi.reshape(n * m, 1, -1)).reshape(n, m, -1)


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; n=128, m=32")
    for scale in ("small", "paper"):
        configs = {
            name: replace(RECIPES[name][scale], data=replace(RECIPES[name][scale].data, points=4096))
            for name in ("checkerboard", "checkerboard-diffusion")
        }
        shared, diffusion, naive = (
            TrainState(build_task(configs[n])) for n in ("checkerboard", "checkerboard-diffusion", "checkerboard")
        )
        naive.task.model.network = Replicating(naive.task.model.network)
        loss = shared.task.loss
        draws, x0 = torch.randn(128, 32, 2, requires_grad=True), torch.randn(128, 2)
        runs = {
            "diffusion": diffusion.advance,
            "distributional": shared.advance,
            "naive replication": naive.advance,
            "score alone": lambda d=draws, x=x0, k=loss.kernel: score_loss(k, d, x).mean().backward(),
        }
        times = milliseconds(runs, rounds=30 if scale == "small" else 8)
        print(f"\n{scale}: time branch {configs['checkerboard'].network.time_width} wide")
        for name, value in times.items():
            print(f"  {name:18} {value:8.2f} ms   {value / times['diffusion']:6.2f} x a diffusion step")


if __name__ == "__main__":
    main()
