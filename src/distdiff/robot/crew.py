"""Worker processes that each do one piece of work after the other, and of which a death is noticed.

Workers are spawned, not forked, and compute with one thread each: simulators and OpenGL outlive no fork, and threads
of several processes slow each other down.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Generic, TypeVar

from .._check import BadArgument, FailedRuns

__all__ = ["Crew"]

Work = TypeVar("Work")
Result = TypeVar("Result")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ADVICE = "the same command goes on where it stopped"


class Crew(Generic[Work, Result]):
    """Some processes that apply one function; a context that ends them when it is left."""

    def __init__(self, function: Callable[[Work], Result], size: int) -> None:
        self._function = function
        self._size = size
        self._free: list[Connection] = []
        self._doing: dict[Connection, Work] = {}
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}

    @property
    def busy(self) -> int:
        """How many are at work."""
        return len(self._doing)

    @property
    def idle(self) -> bool:
        """Whether one could begin now."""
        return self.busy < self._size

    def start(self, work: Work) -> None:
        if not self._free:
            self._free.append(self._hire())
        worker = self._free.pop()
        worker.send(work)
        self._doing[worker] = work

    def wait(self) -> list[tuple[Work, Result]]:
        """Wait until something is done. A worker that died, or whose work raised an error, is a `FailedRuns`."""
        finished = []
        for worker in wait(list(self._doing)):
            assert isinstance(worker, Connection)
            work = self._doing.pop(worker)
            try:
                result, error = worker.recv()
            except (EOFError, ConnectionError):
                process = self._processes[worker]
                process.join(5)
                raise FailedRuns({str(work): f"its process died, exit code {process.exitcode}"}, ADVICE) from None
            if isinstance(error, BadArgument):
                raise error
            if error is not None:
                raise FailedRuns({str(work): error}, ADVICE)
            finished.append((work, result))
            self._free.append(worker)
        return finished

    def __enter__(self) -> Crew[Work, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker, process in self._processes.items():
            worker.close()
            if worker in self._doing or kind is not None:
                process.terminate()
            process.join(10)
            if process.is_alive():
                process.kill()

    def _hire(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._function, theirs), daemon=True)
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))
        try:
            process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()
        self._processes[ours] = process
        return ours


def _serve(function: Callable[[Work], Result], orders: Connection) -> None:
    """Until the pipe is closed: receive work, send (result, None) or (None, what went wrong)."""
    try:
        while True:
            work = orders.recv()
            try:
                answer: tuple[Result | None, BadArgument | str | None] = (function(work), None)
            except BadArgument as error:
                answer = (None, error)
            except Exception as error:
                answer = (None, f"{type(error).__name__}: {error}")
            orders.send(answer)
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return
