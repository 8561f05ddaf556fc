"""Training the models of a study, each into its own run folder: one after the other, or side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path

import torch

from .._check import FailedRuns
from ..progress import console, training
from ..recipe import RunConfig
from ..train import RunFolder, train

__all__ = ["train_here", "train_runs"]


def train_runs(
    models: Mapping[str, RunConfig], folder: Path, *, side_by_side: bool = False
) -> tuple[dict[str, Path], dict[str, float], float]:
    """Folders of the trained models; the seconds their training took, and how many of these were spent earlier.

    A run of the same settings that is already there is taken up where it stopped, or taken as it is if it is finished.
    With `side_by_side` the models share the threads of a CPU, which small networks cannot use alone: the first one
    shows its bar, the others train in processes of their own.
    """
    runs = {name: RunFolder(folder / "runs" / name) for name in models}
    done = {name: runs[name].done(config) for name, config in models.items()}
    earlier = sum(runs[name].seconds() for name, steps in done.items() if steps is not None)
    left = {name: config for name, config in models.items() if done[name] != config.steps}
    for name in models:
        if name not in left:
            console.print(f"{name}: finished before in {runs[name].path}")
    together = side_by_side and len(left) > 1 and torch.get_num_threads() >= len(left) and not _on_devices(left)
    while left:
        name, config = next(iter(left.items()))
        del left[name]
        others = {runs[other].path: left[other] for other in left} if together else {}
        with _beside(others):
            training(config, runs[name].path, label=name, resume=done[name] is not None, overwrite=done[name] is None)
        left = {} if together else left
    return {name: run.path for name, run in runs.items()}, {name: run.seconds() for name, run in runs.items()}, earlier


def _on_devices(models: Mapping[str, RunConfig]) -> bool:
    from ..train.build import pick_device

    return any(pick_device(config.device).type != "cpu" for config in models.values())


@contextmanager
def _beside(others: Mapping[Path, RunConfig]) -> Iterator[None]:
    """Train others in processes of their own, while the context trains one with its share of the threads."""
    threads = torch.get_num_threads()
    share = threads // (1 + len(others))
    context = get_context("spawn")
    processes = {
        path: context.Process(target=train_here, args=(config, path, share)) for path, config in others.items()
    }
    try:
        torch.set_num_threads(share)
        for process in processes.values():
            process.start()
        yield
        for path, process in processes.items():
            if process.is_alive():
                console.print(f"waiting for {path.name}")
            process.join()
        failed = {path.name: f"exit code {p.exitcode}, said above" for path, p in processes.items() if p.exitcode}
        if failed:
            raise FailedRuns(failed, "the others are kept, and the same command tries these again")
    finally:
        for process in processes.values():
            if process.is_alive():
                process.terminate()
        torch.set_num_threads(threads)


def train_here(config: RunConfig, path: Path, threads: int) -> None:
    """Train what is left of a run without a word, in a process that leaves when its parent is gone."""
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    folder = RunFolder(path)
    done = folder.done(config)
    if done == config.steps:
        return
    resume = done is not None and bool(folder.steps())
    parent = parent_process()
    steps = train(config, path, resume=resume, overwrite=not resume)
    for _ in steps:
        if parent is not None and not parent.is_alive():
            steps.close()  # a command that was killed leaves nobody behind who trains in its folder or waits
            os._exit(1)
