"""Kill a training run at random moments, resume it each time, and compare its end with an undisturbed run, bit for bit.

python benchmarks/kill_resume.py --kills 10
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from distdiff.train import RunFolder

WORDS = ["train", "digits", "--scale", "smoke", "--steps", "600", "--save-every", "7", "--batch-size", "16"]
MORE = ["--network.dropout", "0.1", "--data.flip", "--data.workers", "2", "--preview.every", "20"]


def start(out: Path, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "distdiff", *WORDS, *MORE, "--out", str(out), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def progress(run: Path) -> int:
    """How much has been logged."""
    file = run / "metrics.jsonl"
    return file.stat().st_size if file.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.5, help="longest time between a first step and its kill")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        assert start(whole).wait() == 0
        kills = 0
        for _ in range(4 * args.kills):
            done = RunFolder(broken).steps()
            process = start(broken, *(["--resume", "latest"] if done else ["--overwrite"]))
            if kills < args.kills:
                before = progress(broken)
                while progress(broken) == before and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, args.seconds))
                if process.poll() is None:
                    process.kill()
                    kills += 1
                    process.wait()
                    left = sorted(file.name for file in broken.glob("**/*partial*"))
                    print(
                        f"kill {kills}: checkpoints at {RunFolder(broken).steps()}, half-written: {left or 'nothing'}"
                    )
                    continue
            if process.wait() == 0:
                break
        else:
            sys.exit("the run fails without being killed")
        a, b = (load_file(RunFolder(run).checkpoint()) for run in (whole, broken))
        same = a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        weights = [load_file(run / "pipeline/unet/diffusion_pytorch_model.safetensors") for run in (whole, broken)]
        equal = all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
        print(f"{kills} kills; checkpoint of {len(a)} tensors equal: {same}; exported weights equal: {equal}")
        sys.exit(0 if same and equal else 1)


if __name__ == "__main__":
    main()
