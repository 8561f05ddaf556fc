"""What a late fork costs in quality: digits at `small`, the same training with several values of branch_at.

    python benchmarks/late_fork.py --steps 1000

Prints the time of a training step over that of a diffusion step, and fd to held-out digits (best of three churns) at 1,
2, 4 and 8 steps, beside the floor of real digits.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from timing import milliseconds

from distdiff.data.image import load_images
from distdiff.evaluate.image import best_entries, evaluate
from distdiff.recipe import IMAGES
from distdiff.train import build_task, train
from distdiff.train.loop import TrainState


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--branches", type=int, nargs="+", default=[0, 3, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--m", type=int, default=4)
    args = parser.parse_args()
    held_out, seen = load_images("digits", split="test"), load_images("digits")
    base = replace(IMAGES["digits"]["small"], steps=args.steps, save_every=args.steps)
    base = replace(base, loss=replace(base.loss, m=args.m, patches=(4,), anchor=0.0, targets=1, weighting="none"))
    configs = {
        branch: replace(base, network=replace(base.network, prediction="x0", branch_at=branch, noise_levels=0))
        for branch in args.branches
    }
    states = {"diffusion": TrainState(build_task(IMAGES["digits-diffusion"]["small"]))}
    states |= {str(branch): TrainState(build_task(config)) for branch, config in configs.items()}
    times = milliseconds({name: state.advance for name, state in states.items()}, rounds=15)
    for branch, config in configs.items():
        for seed in args.seeds:
            task = build_task(replace(config, seed=seed))
            *_, last = train(task.config, task=task)
            pipe = task.built.pipeline(last.denoiser, task.images)
            found = evaluate(pipe, seen, held_out, steps=[1, 2, 4, 8], churns=[0, 0.5, 1], n=1440)
            scores = ", ".join(f"{e.steps}: {e.score.frechet:.3f} ({e.name})" for e in best_entries(found.entries))
            ratio = times[str(branch)] / times["diffusion"]
            print(f"branch_at {branch}, seed {seed}: {ratio:.2f} x a diffusion step; fd at {scores}", flush=True)
    print(f"floor: fd {found.floor.frechet:.3f}")


if __name__ == "__main__":
    main()
