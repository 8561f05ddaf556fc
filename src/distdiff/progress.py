"""Progress bars for training and sampling."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .recipe.config import PointsRun, RobotRun, RunConfig
from .train import RunFolder, build_task, train

__all__ = ["bar", "console", "reports", "training"]

console = Console(stderr=True, quiet=int(os.environ.get("RANK", "0")) > 0)
"""Of processes that train together, the first one speaks."""


@contextmanager
def bar(label: str, total: int, *, transient: bool = False) -> Iterator[Callable[..., None]]:
    """A bar of `total` units; the context is a function that advances it by one and may set a note beside it.

    A transient bar vanishes when it is full.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=transient) as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(note: str | None = None, to: int | None = None, total: int | None = None) -> None:
            progress.update(task, advance=1 if to is None else None, completed=to, total=total)
            if note is not None:
                progress.update(task, note=note)

        yield advance


@contextmanager
def reports() -> Iterator[Callable[[str, int], Callable[[int], object]]]:
    """One bar at a time: a function of label and total that gives a function of what is done.

    Where no bar can be drawn, as in a log file, a line says what has begun.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:

        def report(label: str, total: int) -> Callable[[int], object]:
            if not console.is_terminal:
                console.print(f"{label} ({total})", highlight=False, soft_wrap=True)
            for earlier in progress.task_ids:
                progress.update(earlier, visible=False)
            task = progress.add_task(label, total=total)

            def tell(done: int) -> None:
                progress.update(task, completed=done)

            return tell

        yield report


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C and SIGTERM back; the context is a function that says whether one has come.

    A training step is thus never torn. A second Ctrl-C does not wait.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    def check() -> bool:
        return bool(came)

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
    config: RunConfig, out: Path | None, *, label: str, resume: bool | str = False, overwrite: bool = False
) -> float:
    """Train with a bar that shows loss and speed; the seconds it took. An interrupt stops it between two steps."""
    begun = time.perf_counter()
    if out is not None and not resume:
        RunFolder(out).require_free(overwrite)
    task = build_task(config)
    if not isinstance(config, PointsRun):
        console.print(task.describe(), soft_wrap=True, highlight=False)
    run = train(config, out, resume=resume, overwrite=overwrite, task=task)
    start, first, unit = time.perf_counter(), None, "rows" if isinstance(config, (PointsRun, RobotRun)) else "images"
    with deferred_interrupts() as interrupted, closing(run), bar(label, config.steps) as advance:
        for progress in run:
            if first is None:
                first, start = progress.step, time.perf_counter()
            elif progress.step % 10 == 0 or progress.step == progress.steps:
                speed = (progress.step - first) / max(time.perf_counter() - start, 1e-9)
                pace = f"{speed:.3g} steps/s, {speed * progress.rows:.3g} {unit}/s"
                advance(f"loss {progress.loss:.4f}, {pace}", to=progress.step)
            if interrupted():
                progress.stop()
    return round(time.perf_counter() - begun, 1)
