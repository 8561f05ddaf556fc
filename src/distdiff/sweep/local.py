"""The local engine: a few worker processes that take the runs of a sweep one after the other.

A worker keeps its imports from run to run. One that dies fails only the run it was at, and is replaced. Workers are in
sessions of their own: Ctrl-C reaches the parent, which closes their inputs, whereupon they save and end.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from ..progress import deferred_interrupts
from .board import Board
from .folder import SweepFolder
from .work import Report
from .worker import STOPPED

__all__ = ["run_local"]

PATIENCE = 120.0
"""Seconds that workers have to save and end when a sweep is interrupted."""


class _Worker:
    """The parent's side of a worker process."""

    def __init__(self, folder: SweepFolder, slot: int, workers: int) -> None:
        self.slot = slot
        self.run: str | None = None
        self.unsound = False
        """Whether it must be replaced before the next run."""
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with (folder.path / "workers.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distdiff.sweep.worker", str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=_environment(slot, workers),
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.put(json.loads(line))

    @property
    def dead(self) -> bool:
        """Whether the process has ended and all it said is among the messages."""
        if self.process.poll() is None:
            return False
        self.reader.join(timeout=1)
        return True

    def take(self, name: str) -> None:
        self.run = name
        assert self.process.stdin is not None
        try:
            print(name, file=self.process.stdin, flush=True)
        except OSError:
            return  # it has died, which is noticed in its turn

    def stop(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            return

    def end(self, deadline: float) -> None:
        """Wait for the process until a point in time, then kill it."""
        try:
            self.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.reader.join(timeout=1)
        if not self.reader.is_alive():
            self.process.stdout.close()


def _environment(slot: int, workers: int) -> dict[str, str]:
    """Threads divided among the workers, and GPUs dealt out in turn."""
    threads = str(max(1, torch.get_num_threads() // workers))
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if (count := torch.cuda.device_count()) > 1:
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = given.split(",") if given else [str(index) for index in range(count)]
        env["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return env


def run_local(folder: SweepFolder, names: Sequence[str], workers: int, board: Board) -> None:
    """Work on the runs, `workers` at once. Interrupted, it stops the workers and raises KeyboardInterrupt."""
    todo = deque(names)
    workers = min(workers, len(todo))
    crew: list[_Worker] = []
    with deferred_interrupts() as interrupted, board.shown():
        try:
            crew += [_Worker(folder, slot, workers) for slot in range(workers)]
            while todo or any(worker.run for worker in crew):
                if interrupted():
                    raise KeyboardInterrupt("the sweep is interrupted; the same command goes on with it")
                for index in range(workers):
                    crew[index] = _attend(crew[index], folder, todo, workers, board)
                time.sleep(0.05)
        finally:
            for worker in crew:
                worker.stop()
            deadline = time.monotonic() + PATIENCE
            for worker in crew:
                worker.end(deadline)


def _attend(worker: _Worker, folder: SweepFolder, todo: deque[str], workers: int, board: Board) -> _Worker:
    """Hear a worker and give it something to do; it, or the one that took its place."""
    gone = worker.dead
    _hear(worker, folder, board)
    if gone and worker.run is not None:
        _bury(worker, folder, todo, board)
    if not todo or worker.run is not None:
        return worker
    if gone or worker.unsound:
        worker.stop()
        worker.end(time.monotonic() + PATIENCE)
        worker = _Worker(folder, worker.slot, workers)
    name = todo.popleft()
    worker.take(name)
    board.start(name)
    return worker


def _hear(worker: _Worker, folder: SweepFolder, board: Board) -> None:
    """What a worker has said since it was last heard."""
    while not worker.messages.empty():
        message = worker.messages.get()
        assert worker.run is not None
        if message["event"] == "progress":
            board.progress(worker.run, Report(*message["report"]))
        else:
            board.end(worker.run, message["event"], folder.error(worker.run))
            worker.run, worker.unsound = None, not message["sound"]


def _bury(worker: _Worker, folder: SweepFolder, todo: deque[str], board: Board) -> None:
    """A worker that died in the middle of a run has failed it; one that was told to stop has left it for later."""
    assert worker.run is not None
    code = worker.process.returncode
    if code == STOPPED:
        todo.append(worker.run)
        board.end(worker.run, "left")
    else:
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        folder.write_error(worker.run, f"the worker process was ended {how}; workers.log may say more")
        board.end(worker.run, "failed", folder.error(worker.run))
    worker.run = None
