"""A worker process of a local sweep: takes names of runs from its standard input, reports on its standard output.

The end of its input, or a signal, stops it after the current step, with a checkpoint saved. As the system closes that
input when the parent dies, however it dies, no worker goes on alone; should a worker be stuck, it ends itself after a
while.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["STOPPED", "main"]

STOPPED = 130
"""Exit code of a worker that was stopped in the middle of a run."""

PATIENCE = 600.0
"""Seconds from the call to stop to the end of a worker that does not heed it."""
INTERVAL = 0.2
"""Seconds between reports on a run."""


class _Channel:
    """What the parent hears. A parent that is gone hears nothing."""

    def __init__(self) -> None:
        self.file = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.last = 0.0

    def send(self, **message: Any) -> None:
        try:
            print(json.dumps(message), file=self.file, flush=True)
        except OSError:
            return

    def report(self, report: Any) -> None:
        now = time.monotonic()
        if now - self.last >= INTERVAL:
            self.last = now
            self.send(event="progress", report=list(report))


def main() -> None:
    path = Path(sys.argv[1])
    channel, stop = _Channel(), threading.Event()
    names: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def end() -> None:
        stop.set()
        names.put(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end())

    def listen() -> None:
        rest = b""
        while chunk := os.read(0, 65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                names.put(line.decode())
        end()
        time.sleep(PATIENCE)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    from .work import work

    while (name := names.get()) is not None and not stop.is_set():
        try:
            outcome = work(path, name, channel.report, stop.is_set)
        except KeyboardInterrupt:
            raise SystemExit(STOPPED) from None
        channel.send(event=outcome.status, sound=outcome.sound)
        if not outcome.sound:
            return


if __name__ == "__main__":
    main()
