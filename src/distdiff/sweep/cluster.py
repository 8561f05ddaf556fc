"""The engine for clusters: every run is a trial of Ray Tune, which places, limits and lists them.

Ray is found by the address in RAY_ADDRESS, as all of its programs find it; without one it starts on this machine. Runs
write into the sweep's folder, which all machines must see under the same path, and the environment they run in must
have distdiff. A trial that is lost with its machine is simply left: the same command goes on with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._check import BadArgument
from .board import Board
from .folder import SweepFolder
from .work import Report, work

__all__ = ["require_ray", "run_ray"]

INTERVAL = 5.0
"""Seconds between reports on a run."""


def require_ray() -> Any:
    """Ray's module, or a sentence on how to get it."""
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the runs write their own logs
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the board is enough
    try:
        import ray
        import ray.tune
    except ImportError:
        raise BadArgument('engine must be local unless ray is installed: pip install "distdiff[ray]"') from None
    return ray


def run_ray(folder: SweepFolder, names: Sequence[str], workers: int | None, board: Board) -> None:
    """Work on the runs as trials, at most `workers` at once, or as many as the cluster has room for."""
    ray = require_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    gpu = ray.cluster_resources().get("GPU", 0) > 0
    tune = ray.tune
    path = str(folder.path.resolve())
    tuner = tune.Tuner(
        tune.with_resources(_trial, {"cpu": 1, "gpu": 1} if gpu else {"cpu": 1}),
        param_space={"folder": path, "run": tune.grid_search(list(names))},
        tune_config=tune.TuneConfig(max_concurrent_trials=workers, reuse_actors=True),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(folder.path.resolve() / "ray"),
            verbose=0,
            callbacks=[_watch(tune.Callback, board)],
        ),
    )
    try:
        with board.shown():
            results = tuner.fit()
    finally:
        ray.shutdown()
    lost = {result.config["run"]: str(result.error) for result in results if result.error is not None}
    for name in names:
        if name in lost and folder.error(name) is None:
            folder.write_error(name, f"Ray lost the trial: {lost[name].strip().splitlines()[-1]}")
    if any(folder.status(folder.read(), name) == "left" for name in names):
        raise KeyboardInterrupt("the sweep is interrupted; the same command goes on with it")


def _trial(config: dict[str, Any]) -> None:
    """One run, reporting to Tune."""
    from ray import tune

    last = 0.0

    def tell(report: Report) -> None:
        nonlocal last
        if time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            tune.report({"progress": tuple(report)})

    outcome = work(Path(config["folder"]), config["run"], tell)
    error = SweepFolder(config["folder"]).error(config["run"])
    if not outcome.sound:
        raise RuntimeError(error)  # has Tune replace the process
    tune.report({"outcome": outcome.status, "error": error})


def _watch(base: type, board: Board) -> Any:
    """Tune's callback that keeps the board; Tune saves its callbacks, a board is not for saving."""

    class Watch(base):
        board: Board

        def __getstate__(self) -> dict[str, Any]:
            return {}

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.board.start(trial.config["run"])

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
            if "outcome" in result:
                self.board.end(trial.config["run"], result["outcome"], result["error"])
            elif "progress" in result:
                self.board.progress(trial.config["run"], Report(*result["progress"]))

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.board.end(trial.config["run"], "failed", "the trial ended with an error")

    watch = Watch()
    watch.board = board
    return watch
