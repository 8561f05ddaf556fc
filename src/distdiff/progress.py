"""Progress bars for training and sampling."""

from __future__ import annotations

import signal
import threading
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


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C and SIGTERM back; the context is a function that raises KeyboardInterrupt if one has come.

    A training step is thus never torn. A second Ctrl-C does not wait.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def training(
    config: RunConfig, out: Path | None, *, label: str, resume: bool = False, overwrite: bool = False
) -> float:
    """Train with a bar that shows loss and speed; the seconds it took. An interrupt stops it between two steps."""
    start, first = time.perf_counter(), None
    run = train(config, out, resume=resume, overwrite=overwrite)
    with deferred_interrupts() as check, closing(run), bar(label, config.steps) as advance:
        for progress in run:
            first = progress.step - 1 if first is None else first
            speed = (progress.step - first) / (time.perf_counter() - start)
            if progress.step % 10 == 0 or progress.step == progress.steps:
                advance(f"loss {progress.loss:.4f}, {speed:.0f} steps/s", to=progress.step)
            check()
    return round(time.perf_counter() - start, 1)
