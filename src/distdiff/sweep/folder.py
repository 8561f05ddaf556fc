"""The folder of a sweep: what was asked, and a run folder for each run.

    sweep.json              recipe, settings, grids, seeds, and how runs are scored
    runs/NAME/              a run folder (see `distdiff.train.folder`), its config.json written before it starts
    runs/NAME/log.txt       what the run printed, a line at each start
    runs/NAME/scores.json   its scores, written when it is trained to the end and scored
    runs/NAME/error.txt     why it failed, in one sentence, and the last lines of its log
    table.csv, report.md    all scores, and what to take from them
    *.png, *.pdf            figures

Files are written aside and renamed, and what has become of a run is read from them alone: a sweep can be killed at any
moment, started again, and extended by other values, numbers of steps or seeds. One process works on a sweep at a time,
and one on a run: both hold a lock, which the system frees when they die.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from .._check import BadArgument, require
from ..recipe import RECIPES
from ..recipe.config import RunConfig
from ..train.folder import RunFolder, alone, make_folder
from .grid import Settings, apply, combinations, run_name

__all__ = ["METRICS", "Status", "Sweep", "SweepFolder", "write_json"]

METRICS = ("mmd", "fd", "fid")
"""D_rho of points; for images the fast Fréchet distance, and FID."""

Status = Literal["finished", "failed", "left"]


@dataclass(frozen=True)
class Sweep:
    """What all runs of a sweep share, and the grids whose combinations they are."""

    recipe: str
    scale: str
    settings: Settings = field(default_factory=dict)
    """Settings of the recipe changed for all runs."""
    metric: str = "fd"
    n: int = 2048
    """Samples a score."""
    churns: tuple[float, ...] = (0.0, 0.5, 1.0)
    steps: tuple[int, ...] = (2, 4, 8, 10, 30, 50, 100)
    """Numbers of sampling steps, rising."""
    grids: tuple[dict[str, tuple[Any, ...]], ...] = ()
    """Each a table of values by name; seeds under `seed`."""

    @property
    def base(self) -> RunConfig:
        return apply(RECIPES[self.recipe][self.scale], self.settings)

    @property
    def axes(self) -> list[str]:
        """Names that some grid sets, in the order they came."""
        return list(dict.fromkeys(name for grid in self.grids for name in grid if name != "seed"))

    def runs(self) -> dict[str, RunConfig]:
        """The runs by their names. Two combinations that come to the same settings are one run."""
        found: dict[RunConfig, str] = {}
        for grid in self.grids:
            for settings in combinations(grid):
                config = apply(self.base, settings)
                found.setdefault(config, run_name(settings, config.seed))
        return {name: config for config, name in found.items()}

    def extended(self, other: Sweep) -> Sweep:
        """This sweep with the grids and steps of another one that agrees on all else."""
        fixed = ("recipe", "scale", "settings", "metric", "n", "churns")
        changed = [
            f"{name} {getattr(self, name)} -> {getattr(other, name)}"
            for name in fixed
            if getattr(self, name) != getattr(other, name)
        ]
        require(not changed, "sweep", "; ".join(changed), "as it began in this folder; only grid, seeds and steps grow")
        new = tuple(grid for grid in other.grids if grid not in self.grids)
        return replace(self, grids=self.grids + new, steps=tuple(sorted({*self.steps, *other.steps})))


class SweepFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.file = self.path / "sweep.json"

    def read(self) -> Sweep:
        require(self.file.is_file(), "sweep", str(self.path), "a folder with a sweep.json")
        try:
            values = json.loads(self.file.read_text())
            values |= {name: tuple(values[name]) for name in ("churns", "steps")}
            values["settings"] = {name: _frozen(value) for name, value in values["settings"].items()}
            values["grids"] = tuple({name: _frozen(given) for name, given in grid.items()} for grid in values["grids"])
            return Sweep(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadArgument(f"{self.file} must be what a sweep wrote, got {error!r}") from None

    def prepare(self, sweep: Sweep) -> Sweep:
        """Write down what is asked, together with what was asked before; every run gets its folder and settings."""
        sweep = self.read().extended(sweep) if self.file.exists() else sweep
        runs = sweep.runs()
        for name, config in runs.items():
            run = self.run(name)
            if not run.config.exists():
                continue
            require(run.read_config() == config, "settings", name, f"those of the run in {run.path}")
        make_folder(self.path)
        write_json(self.file, asdict(sweep))
        for name, config in runs.items():
            run = self.run(name)
            run.path.mkdir(parents=True, exist_ok=True)
            if not run.config.exists():
                run.write_config(config)
        return sweep

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.path / "runs" / name)

    def log(self, name: str) -> Path:
        return self.run(name).path / "log.txt"

    def scores(self, name: str) -> dict[str, Any] | None:
        """What `work` wrote when it had scored a run."""
        file = self.run(name).path / "scores.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def write_scores(self, name: str, scores: dict[str, Any]) -> None:
        write_json(self.run(name).path / "scores.json", scores)

    def error(self, name: str) -> str | None:
        """Why a run failed: one sentence."""
        file = self.run(name).path / "error.txt"
        return file.read_text().partition("\n")[0] if file.is_file() else None

    def write_error(self, name: str, sentence: str, lines: int = 20) -> None:
        log = self.log(name)
        tail = log.read_text(errors="replace").splitlines()[-lines:] if log.is_file() else []
        text = " ".join(sentence.split()) + "\n\n" + "".join(f"{line}\n" for line in tail)
        _write(self.run(name).path / "error.txt", text)

    def forget_error(self, name: str) -> None:
        (self.run(name).path / "error.txt").unlink(missing_ok=True)

    def missing_steps(self, sweep: Sweep, name: str) -> list[int]:
        """Numbers of steps at which a run has no score yet."""
        scored = {row["steps"] for row in (self.scores(name) or {"rows": []})["rows"]}
        return [count for count in sweep.steps if count not in scored]

    def status(self, sweep: Sweep, name: str) -> Status:
        if not self.missing_steps(sweep, name):
            return "finished"
        return "left" if self.error(name) is None else "failed"

    def locked(self) -> AbstractContextManager[None]:
        """Work on this sweep, alone."""
        return alone(self.path, "sweep")

    def run_lock(self, name: str) -> FileLock:
        """Work on a run, alone; a worker whose parent was killed may still be saving it."""
        return FileLock(self.run(name).path / ".lock")


def write_json(file: Path, values: Any) -> None:
    _write(file, json.dumps(values, indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    aside = file.with_name(file.name + ".partial")
    aside.write_text(text)
    os.replace(aside, file)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
