"""Timing several alternatives in turns, so that noise hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def milliseconds(
    runs: dict[str, Callable[[], object]],
    rounds: int = 30,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median time of a call of each, taken in turns; `clock` may be that of the processor."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(warmup + rounds):
        for name, run in runs.items():
            start = clock()
            run()
            if index >= warmup:
                times[name].append(1e3 * (clock() - start))
    return {name: statistics.median(values) for name, values in times.items()}
