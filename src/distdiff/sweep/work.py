"""One run of a sweep from where it stands to its scores: train on from the latest checkpoint, score, write down.

It is the same function in a local worker process and in a trial of Ray Tune. An error is the run's own: it is written
into its folder, and the sweep goes on.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Literal, NamedTuple

from filelock import FileLock, Timeout

from .._check import BadArgument
from ..recipe.config import RunConfig
from .folder import SweepFolder

__all__ = ["Outcome", "Report", "work"]


class Report(NamedTuple):
    """Where a run is."""

    what: str
    """training, scoring, ..."""
    done: int
    total: int
    loss: float | None = None


class Outcome(NamedTuple):
    status: Literal["finished", "failed"]
    sound: bool = True
    """Whether the process is fit for another run: an error nobody foresaw may have left anything behind."""


def work(
    path: Path,
    name: str,
    tell: Callable[[Report], object] = lambda report: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train and score a run of the sweep in a folder; all it prints goes to its log.

    When `stopped` says so it saves a checkpoint and raises KeyboardInterrupt.
    """
    folder = SweepFolder(path)
    with _logging_to(folder.log(name)), _alone(folder.run_lock(name), tell, stopped):
        try:
            _train_and_score(folder, name, tell, stopped)
        except (BadArgument, FloatingPointError) as error:
            print(error, file=sys.stderr)
            folder.write_error(name, str(error))
            return Outcome("failed")
        except Exception as error:
            traceback.print_exc()
            folder.write_error(name, f"{type(error).__name__}: {error}")
            return Outcome("failed", sound=False)
    return Outcome("finished")


@contextmanager
def _alone(lock: FileLock, tell: Callable[[Report], object], stopped: Callable[[], bool]) -> Iterator[None]:
    """Hold a run's lock, after the worker of a killed sweep, which may still be saving, has let go of it."""
    while not lock.is_locked:
        if stopped():
            raise KeyboardInterrupt
        try:
            lock.acquire(timeout=0.5)
        except Timeout:
            tell(Report("waiting for another process", 0, 1))
    try:
        yield
    finally:
        lock.release()


def _train_and_score(
    folder: SweepFolder, name: str, tell: Callable[[Report], object], stopped: Callable[[], bool]
) -> None:
    from .score import score_run

    sweep, run = folder.read(), folder.run(name)
    config = run.read_config()
    if not (missing := folder.missing_steps(sweep, name)):
        return
    _train(config, folder, name, tell, stopped)

    def report(label: str, total: int) -> Callable[[int], object]:
        print(label)

        def advance(done: int) -> None:
            if stopped():
                raise KeyboardInterrupt
            tell(Report(label, done, total))

        advance(0)
        return advance

    new = score_run(run.path, config, sweep, missing, report)
    before = folder.scores(name) or {"rows": []}
    rows = sorted(before["rows"] + new["rows"], key=lambda row: row["steps"])
    floor = {key: before.get(key, new[key]) for key in ("floor", "floor_error")}
    folder.write_scores(
        name, {"metric": sweep.metric, "n": sweep.n, "train_seconds": run.seconds(), **floor, "rows": rows}
    )
    print("scored")


def _train(
    config: RunConfig,
    folder: SweepFolder,
    name: str,
    tell: Callable[[Report], object],
    stopped: Callable[[], bool],
) -> None:
    from ..train import train

    run = folder.run(name)
    done = run.done(config)
    if done == config.steps:
        return
    print(f"training from step {done or 0} of {config.steps}")
    with closing(
        train(config, run.path, resume="latest" if done is not None else False, overwrite=done is None)
    ) as steps:
        for progress in steps:
            tell(Report("training", progress.step, progress.steps, progress.loss))
            if stopped():
                progress.stop()


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Within it whatever this process prints, libraries in C included, is appended to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in (1, 2)]
    with file.open("a", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
        try:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            yield
        finally:
            for number, old in zip((1, 2), before, strict=True):
                os.dup2(old, number)
                os.close(old)
