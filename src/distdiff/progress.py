"""Progress bars for training and sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .recipe import RunConfig
from .train import train

__all__ = ["bar", "console", "training"]

console = Console(stderr=True)


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar of `total` units; the context is a function that advances it by one and may set a note beside it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(note: str | None = None, to: int | None = None) -> None:
            progress.update(task, advance=1 if to is None else None, completed=to)
            if note is not None:
                progress.update(task, note=note)

        yield advance


def training(
    config: RunConfig, out: Path | None, *, label: str, resume: bool = False, overwrite: bool = False
) -> float:
    """Train with a bar that shows loss and speed; the seconds it took."""
    start, first = time.perf_counter(), None
    with closing(train(config, out, resume=resume, overwrite=overwrite)) as run, bar(label, config.steps) as advance:
        for progress in run:
            first = progress.step - 1 if first is None else first
            speed = (progress.step - first) / (time.perf_counter() - start)
            if progress.step % 10 == 0 or progress.step == progress.steps:
                advance(f"loss {progress.loss:.4f}, {speed:.0f} steps/s", to=progress.step)
    return round(time.perf_counter() - start, 1)
