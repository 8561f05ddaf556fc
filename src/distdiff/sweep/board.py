"""What a sweep shows while it runs: a live table on a terminal, a line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ..progress import console as own_console
from .folder import Status
from .work import Report

__all__ = ["Board"]

MARKS = {"finished": "[green]done[/green]", "failed": "[red]failed[/red]", "left": "[dim]left[/dim]"}


class Board:
    """The state of every run, and its picture. `rows` is the most runs a table shows."""

    def __init__(self, states: Mapping[str, Status], console: Console | None = None, rows: int = 24) -> None:
        self.states = dict(states)
        self.errors: dict[str, str] = {}
        self.running: dict[str, Report] = {}
        self.console, self.rows = console or own_console, rows
        self.live: Live | None = None
        self.begun, self.ended = time.monotonic(), 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the table, if there is a terminal to draw it on."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self.table, console=self.console, refresh_per_second=4) as self.live:
            yield

    def start(self, name: str) -> None:
        self.running[name] = Report("starting", 0, 1)
        self._say(f"{name}: started")

    def progress(self, name: str, report: Report) -> None:
        self.running[name] = report

    def end(self, name: str, state: Status, error: str | None = None) -> None:
        self.running.pop(name, None)
        self.states[name] = state
        self.ended += state != "left"
        if error is not None:
            self.errors[name] = error
        verb = {"finished": "finished", "failed": f"failed: {error}", "left": "stopped"}[state]
        self._say(f"{name}: {verb} ({self.summary()})")

    def count(self, state: Status) -> int:
        return sum(found == state for found in self.states.values())

    def summary(self) -> str:
        left = self.count("left")
        text = f"{self.count('finished')} of {len(self.states)} done, {left} left"
        if failed := self.count("failed"):
            text += f", {failed} failed"
        if left and self.ended:
            seconds = (time.monotonic() - self.begun) / self.ended * left
            text += f", about {_duration(seconds)} to go"
        return text

    def table(self) -> Table:
        table = Table(title=self.summary(), title_justify="left", expand=True, box=None, pad_edge=False)
        table.add_column("run", no_wrap=True, overflow="ellipsis", ratio=3)
        table.add_column("", no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=2)
        shown = self._shown()
        for name in shown:
            if (report := self.running.get(name)) is not None:
                note = report.what + (f", loss {report.loss:.4g}" if report.loss is not None else "")
                table.add_row(name, ProgressBar(max(report.total, 1), report.done, width=16), note)
            else:
                table.add_row(name, MARKS[self.states[name]], self.errors.get(name, ""))
        if len(shown) < len(self.states):
            table.add_row(f"[dim]and {len(self.states) - len(shown)} more[/dim]", "", "")
        return table

    def _shown(self) -> list[str]:
        """All runs if they fit; else those that run or failed, then those next in turn, then those done last."""
        if len(self.states) <= self.rows:
            return list(self.states)
        failed = [name for name, state in self.states.items() if state == "failed"]
        left = [name for name, state in self.states.items() if state == "left" and name not in self.running]
        finished = [name for name, state in self.states.items() if state == "finished"]
        chosen = set([*self.running, *failed, *left, *finished[::-1]][: self.rows])
        return [name for name in self.states if name in chosen]

    def _say(self, line: str) -> None:
        if self.live is None:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
