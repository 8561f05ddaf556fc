"""`discrepancy` of two sets of 100,000 points in the plane: time and peak memory, against a tenth of that."""

from __future__ import annotations

import resource
import time

import torch

from distdiff import RBF, discrepancy


def main() -> None:
    for points in (10_000, 100_000):
        x, y = torch.randn(points, 2), torch.randn(points, 2)
        start = time.perf_counter()
        value = float(discrepancy(RBF(1), x, y))
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{points:7} x {points:7}: D = {value:+.2e}, {seconds:6.1f} s, peak memory of the process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
