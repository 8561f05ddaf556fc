"""What denormal numbers cost a training step on a CPU: steps of a run from its last checkpoint, flushed and not.

    python benchmarks/denormals.py runs/fashion-mnist-small

In turns, so that other programs hit both alike; processor time of one thread. Nothing is written to the run.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from distdiff.train import RunFolder
from distdiff.train.loop import TrainState, build_task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = RunFolder(args.run)
    config = folder.read_config()
    config = replace(config, tracker="none", steps=config.steps + 2 * args.rounds + 1)
    task = build_task(config)
    state = TrainState(task)
    task.learn()
    state.restore(folder.checkpoint("latest"), folder)
    state.advance()
    spent = {False: 0.0, True: 0.0}
    for _ in range(args.rounds):
        for flushed in spent:
            torch.set_flush_denormal(flushed)
            start = time.process_time()
            state.advance()
            spent[flushed] += time.process_time() - start
    each = {flushed: seconds / args.rounds for flushed, seconds in spent.items()}
    print(f"a step: {each[True]:.2f} s flushed, {each[False]:.2f} s not, {each[False] / each[True]:.2f} times as much")


if __name__ == "__main__":
    main()
