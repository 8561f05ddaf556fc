"""Planning a sweep from what was asked, and running it with an engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from .._check import BadArgument, require, require_between, require_choice, require_count
from ..recipe import RECIPES, SCALES, AutoencoderRun, PointsRun
from ..train import check
from .board import Board
from .cluster import require_ray, run_ray
from .folder import METRICS, Sweep, SweepFolder
from .grid import check_cheaply, known_settings, parse_grid, parse_settings, value_of
from .local import run_local

__all__ = ["ENGINES", "check_sweep", "classical_grid", "plan", "run_sweep"]

ENGINES = ("local", "ray")
DRAWS = frozenset(
    [f"loss.{name}" for name in ("lam", "m", "patches", "features", "anchor", "targets", "warmup")]
    + [f"network.{name}" for name in ("branch_at", "noise_levels", "prediction")]
)
"""Settings that mean nothing, or something else, to a model that does not draw."""


def plan(
    recipe: str,
    scale: str = "small",
    *,
    grid: Sequence[str] = (),
    settings: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    steps: Sequence[int] = (2, 4, 8, 10, 30, 50, 100),
    churns: Sequence[float] = (0.0, 0.5, 1.0),
    metric: str | None = None,
    n: int | None = None,
    classical: bool = False,
) -> Sweep:
    """A sweep from the words of a command, every name and value checked; see `distdiff.sweep.grid` for their notation.

    By default points are scored by mmd, pictures by fd, on 16384 points or 2048 pictures (256 and 64 at smoke). With
    `classical` the recipe's classical twin is among the runs.
    """
    require_choice("recipe", recipe, RECIPES)
    require_choice("scale", scale, SCALES)
    base = RECIPES[recipe][scale]
    require(not isinstance(base, AutoencoderRun), "recipe", recipe, "one whose samples are scored")
    points = isinstance(base, PointsRun)
    metric = metric or ("mmd" if points else "fd")
    require_choice("metric", metric, METRICS)
    if n is None:
        n = (256 if points else 64) if scale == "smoke" else (16384 if points else 2048)
    seed = {"seed": tuple(dict.fromkeys(seeds)) if seeds else (base.seed,)}
    grids = [parse_grid(type(base), grid) | seed]
    changed = parse_settings(type(base), settings)
    if classical:
        grids.append(classical_grid(recipe, scale, changed) | seed)
    sweep = Sweep(
        recipe,
        scale,
        changed,
        metric,
        n,
        tuple(sorted(map(float, set(churns)))),
        tuple(sorted(set(steps))),
        tuple(grids),
    )
    check_sweep(sweep)
    return sweep


def classical_grid(recipe: str, scale: str, changed: Collection[str] = ()) -> dict[str, tuple[Any, ...]]:
    """The settings by which a recipe's classical twin differs from it, as a grid of one run.

    Of the settings that a sweep has `changed`, those of the draws are the twin's own, too.
    """
    require_choice("recipe", recipe, [name for name in RECIPES if f"{name}-diffusion" in RECIPES])
    own, twin = RECIPES[recipe][scale], RECIPES[f"{recipe}-diffusion"][scale]
    names = [name for name in known_settings(type(own)) if not name.startswith("evaluation.")]
    mine = DRAWS.intersection(changed)
    return {
        name: (value_of(twin, name),) for name in names if name in mine or value_of(twin, name) != value_of(own, name)
    }


def check_sweep(sweep: Sweep) -> None:
    """Raise the first thing wrong with a sweep that can be told without reading data."""
    points = isinstance(sweep.base, PointsRun)
    require_choice("metric", sweep.metric, METRICS)
    require((sweep.metric == "mmd") == points, "metric", sweep.metric, "mmd" if points else "fd or fid, for pictures")
    require_count("n", sweep.n, least=2)
    require(bool(sweep.steps and sweep.churns), "steps, churn", (sweep.steps, sweep.churns), "one number or more each")
    for count in sweep.steps:
        require_count("steps", count)
    for churn in sweep.churns:
        require_between("churn", churn, 0, 1)
    require("seed" not in sweep.settings, "settings", "seed", "without seed, which --seeds is for")
    both = sorted(set(sweep.settings) & {name for grid in sweep.grids[:1] for name in grid})
    require(not both, "settings", ", ".join(both), "without names that are on the grid")
    for name, config in sweep.runs().items():
        try:
            check_cheaply(config)
        except BadArgument as error:
            raise BadArgument(f"{error} (in the run {name})") from None


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: str = "local",
    retry_failed: bool = False,
) -> dict[str, str]:
    """Bring every run of a sweep to its scores, taking up what is in the folder; the errors of runs that failed.

    Args:
        workers: runs at once; one by default, with Ray as many as there is room for.
        retry_failed: try runs again that failed earlier.
    """
    require_choice("engine", engine, ENGINES)
    require(workers is None or workers >= 1, "workers", workers, "a whole number of at least 1")
    if engine == "ray":
        require_ray()
    folder = SweepFolder(out)
    check(next(iter(sweep.runs().values())))
    if sweep.metric == "fid":
        from ..evaluate.inception import load_inception

        load_inception()
    if folder.file.exists():
        folder.read().extended(sweep)
    with folder.locked():
        sweep = folder.prepare(sweep)
        names = list(sweep.runs())
        if retry_failed:
            for name in names:
                folder.forget_error(name)
        board = Board({name: folder.status(sweep, name) for name in names})
        board.errors = {name: folder.error(name) or "" for name, state in board.states.items() if state == "failed"}
        todo = [name for name, state in board.states.items() if state == "left"]
        board.console.print(f"{len(names)} runs: {board.summary()}", soft_wrap=True, highlight=False)
        if todo and engine == "ray":
            run_ray(folder, todo, workers, board)
        elif todo:
            run_local(folder, todo, workers or 1, board)
        return {name: folder.error(name) or "" for name in names if folder.status(sweep, name) == "failed"}
