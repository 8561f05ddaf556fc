"""Reading a sweep: a table with a row for each run, number of steps and churn.

The table is a function of the folder's files alone, in an order that hangs on the values alone: loading a folder twice
gives equal tables. Figures and reports start from here.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._check import require
from .folder import Sweep, SweepFolder
from .grid import show, value_of

__all__ = ["Cell", "Row", "SweepTable", "load_sweep"]


@dataclass(frozen=True)
class Row:
    run: str
    settings: tuple[Any, ...]
    """Values of the table's axes."""
    seed: int
    steps: int
    sampler: str
    churn: float | None
    score: float
    error: float | None
    """Standard error of the score, where it is known."""
    train_seconds: float


@dataclass(frozen=True)
class Cell:
    """The score of some settings at a number of steps: mean over seeds, at the churn where that is least."""

    settings: tuple[Any, ...]
    steps: int
    churn: float | None
    score: float
    std: float | None
    """Standard deviation over seeds, if there are several."""
    seeds: int


@dataclass(frozen=True)
class SweepTable:
    sweep: Sweep
    axes: tuple[str, ...]
    """Names of the settings that differ between runs, or that a grid set."""
    rows: tuple[Row, ...]
    floor: float | None
    """The mean score of real data, and its standard error where it is known."""
    floor_error: float | None
    failed: tuple[tuple[str, str], ...]
    """Runs that failed, with their errors."""
    unfinished: tuple[str, ...]

    @property
    def train_seconds(self) -> float:
        """Seconds of training that the runs took, one by one."""
        return sum({row.run: row.train_seconds for row in self.rows}.values())

    @property
    def steps(self) -> list[int]:
        return sorted({row.steps for row in self.rows})

    def values(self, axis: str) -> list[Any]:
        """The values of an axis, rising."""
        return _ordered({row.settings[self._index(axis)] for row in self.rows})

    def _index(self, axis: str) -> int:
        require(axis in self.axes, "axis", axis, "one of " + ", ".join(self.axes))
        return self.axes.index(axis)

    def cells(self) -> list[Cell]:
        """Every combination of settings and steps, at its best churn."""
        groups: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
        for row in self.rows:
            groups.setdefault((row.settings, row.steps), {}).setdefault((row.sampler, row.churn), []).append(row.score)
        found = []
        for (settings, steps), by_churn in groups.items():
            most = max(len(scores) for scores in by_churn.values())
            means = {key: sum(s) / len(s) for key, s in by_churn.items() if len(s) == most}
            best = min(means, key=lambda key: means[key])
            scores, mean = by_churn[best], means[best]
            std = math.sqrt(sum((s - mean) ** 2 for s in scores) / (most - 1)) if most > 1 else None
            found.append(Cell(settings, steps, best[1], mean, std, most))
        return found

    def select(self, keep: Callable[[Row], bool]) -> SweepTable:
        """The same table with some of its rows."""
        return replace(self, rows=tuple(row for row in self.rows if keep(row)))

    def where(self, axis: str, value: Any) -> SweepTable:
        """The rows that have a value on an axis."""
        index = self._index(axis)
        return self.select(lambda row: row.settings[index] == value)

    def best_by(self, *axes: str) -> dict[tuple[Any, ...], Cell]:
        """The best cell for each (steps, value of each axis), over all other axes."""
        indices = [self._index(axis) for axis in axes]
        return _least(self.cells(), lambda cell: (cell.steps, *(cell.settings[i] for i in indices)))

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.axes, "seed", "steps", "sampler", "churn", self.sweep.metric, "error", "run"])
        for row in self.rows:
            numbers = [show(row.churn), repr(row.score), "" if row.error is None else repr(row.error)]
            writer.writerow([*map(show, row.settings), row.seed, row.steps, row.sampler, *numbers, row.run])
        return text.getvalue()


def load_sweep(path: str | Path) -> SweepTable:
    """The table of a sweep's folder."""
    folder = SweepFolder(path)
    sweep = folder.read()
    axes = tuple(sweep.axes)
    rows: list[Row] = []
    grounds: list[tuple[float, float | None]] = []
    failed, unfinished = [], []
    for name in sorted(sweep.runs()):
        state, scores = folder.status(sweep, name), folder.scores(name)
        if state == "failed":
            failed.append((name, folder.error(name) or ""))
        elif state == "left":
            unfinished.append(name)
        if scores is None:
            continue
        config = folder.run(name).read_config()
        settings = tuple(value_of(config, axis) for axis in axes)
        grounds.append((scores["floor"], scores["floor_error"]))
        rows += [
            Row(name, settings, config.seed, train_seconds=scores["train_seconds"], **row) for row in scores["rows"]
        ]
    rows.sort(key=lambda row: (*map(_rank, row.settings), row.seed, row.steps, row.sampler, _rank(row.churn)))
    floor = sum(value for value, _ in grounds) / len(grounds) if grounds else None
    errors = [error for _, error in grounds if error is not None]
    return SweepTable(sweep, axes, tuple(rows), floor, max(errors, default=None), tuple(failed), tuple(unfinished))


def _rank(value: Any) -> tuple[int, Any]:
    """A key by which values of any kind can be sorted: nothing first, then numbers, then words."""
    if value is None:
        return 0, 0
    if isinstance(value, (int, float)):
        return 1, value
    return (2, tuple(map(_rank, value))) if isinstance(value, tuple) else (3, str(value))


def _ordered(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=_rank)


def _least(cells: Iterable[Cell], key: Callable[[Cell], tuple[Any, ...]]) -> dict[tuple[Any, ...], Cell]:
    found: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        if key(cell) not in found or cell.score < found[key(cell)].score:
            found[key(cell)] = cell
    return found
