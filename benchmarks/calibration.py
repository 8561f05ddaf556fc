"""How wide the draws of a trained image run are, against the data behind noisy pictures; 1.00 is right.

    python benchmarks/calibration.py runs/digits-small

Prints, for several times, the variance of the draws over that of x_0 around their mean, for groups of principal
directions from the widest to the narrowest, on the pictures that the run was trained on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from distdiff.data.image import to_float
from distdiff.evaluate import calibration
from distdiff.hub import load_pipeline
from distdiff.train.image import image_config, read_images


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--times", type=float, nargs="+", default=[0.125, 0.25, 0.5, 0.75, 0.95])
    parser.add_argument("--pictures", type=int, default=4096)
    args = parser.parse_args()
    pipe, images = load_pipeline(args.run), read_images(image_config(args.run).data)
    pixels, cond = images.batch(torch.arange(min(args.pictures, len(images))))
    x0, cond = to_float(pixels).to(pipe.device), None if cond is None else cond.to(pipe.device)
    for t in args.times:
        generator = torch.Generator().manual_seed(0)
        found = calibration(pipe.denoiser, x0, t, cond, generator=generator)
        print(f"t = {t:5.3f}:", " ".join(f"{float(ratio):5.2f}" for ratio in found.ratio), flush=True)


if __name__ == "__main__":
    main()
