"""Training the models of a study, each into its own run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..progress import console, training
from ..recipe import RunConfig
from ..train import RunFolder

__all__ = ["train_runs"]


def train_runs(models: Mapping[str, RunConfig], folder: Path) -> tuple[dict[str, Path], dict[str, float], float]:
    """Folders of the trained models; the seconds their training took, and how many of these were spent earlier.

    A run of the same settings that is already there is taken up where it stopped, or taken as it is if it is finished.
    """
    paths, seconds, earlier = {}, {}, 0.0
    for name, config in models.items():
        run = RunFolder(folder / "runs" / name)
        done = run.done(config)
        earlier += 0.0 if done is None else run.seconds()
        if done == config.steps:
            console.print(f"{name}: finished before in {run.path}")
        else:
            training(config, run.path, label=name, resume=done is not None, overwrite=done is None)
        paths[name], seconds[name] = run.path, run.seconds()
    return paths, seconds, earlier
