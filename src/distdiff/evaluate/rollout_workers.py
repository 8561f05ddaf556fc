"""Rollouts in worker processes, kept episode by episode, so that a second start goes on where the first one ended.

    rollout.json     what was asked: the policy (by the hash of its weights), the suite, the seed
    episodes.jsonl   a line an episode, as soon as its block is done

A worker loads the policy once, runs on one thread and keeps the simulation of its last task. Blocks of episodes are
handed out in the order of the tasks, all settings of a block at once.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._check import BadArgument, require, require_count, require_seed
from ..policy import Policy
from ..robot import Simulation, Suite, open_suite
from ..train.folder import RunFolder, make_folder
from .rollout import Episode, Setting, check_fit, roll_out

__all__ = ["roll_out_run", "start_worker"]

BLOCK = 5
"""Episodes a worker takes at once, where simulations do not run side by side."""

_policy: Policy
_suite: Suite
_simulations: dict[int, list[Simulation]] = {}


def start_worker(path: str, suite: str, device: str) -> None:
    """Called once in each worker process."""
    global _policy, _suite  # a worker has one policy and one suite for life
    torch.set_num_threads(1)
    _policy, _suite = Policy.load(path, device), open_suite(suite)


def _work(task: int, episodes: list[int], settings: list[Setting], seed: int) -> list[Episode]:
    return roll_out(_policy, _suite, [task], episodes, settings, seed=seed, simulations=_simulations)


def roll_out_run(
    run: Path,
    out: Path,
    *,
    suite: str,
    tasks: Sequence[int] | None,
    episodes: int,
    settings: Sequence[Setting],
    workers: int = 1,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, int], object] | None = None,
) -> list[Episode]:
    """Every episode of every task at every setting; those that `out` holds already are not run again.

    Without workers nothing is run, and the episodes that are there are given. Those have no actions. `progress` is
    called with what is done and what there is to do.
    """
    require_count("episodes", episodes)
    require_count("workers", workers, least=0)
    require_seed(seed)
    require(len(set(settings)) == len(settings), "steps", [one.label for one in settings], "without repetition")
    opened, policy = open_suite(suite), Policy.load(run, "cpu")
    require(episodes <= opened.episodes, "episodes", episodes, f"at most {opened.episodes}, those of {suite}")
    numbers = list(range(len(opened.tasks))) if tasks is None else list(tasks)
    check_fit(policy, opened, numbers, settings)
    kept = _kept(run, make_folder(out), suite, seed)
    wanted = {(task, k, one) for task in numbers for k in range(episodes) for one in settings}
    done = {key: episode for key, episode in kept.items() if key in wanted}
    size = max(1, min(getattr(opened, "together", BLOCK), -(-episodes // max(workers, 1))))
    jobs = []
    for task in numbers:
        for first in range(0, episodes, size):
            block = range(first, min(first + size, episodes))
            groups: dict[tuple[int, ...], list[Setting]] = {}
            for one in settings:
                left = tuple(k for k in block if (task, k, one) not in done)
                groups.setdefault(left, []).append(one)
            jobs += [(task, list(left), some) for left, some in groups.items() if left]
    _tell(progress, len(wanted), len(done))
    if workers:
        _run_jobs(jobs, out, done, workers, (str(run), suite, device), seed, partial(_tell, progress, len(wanted)))
    return [done[key] for key in sorted(done, key=lambda key: (key[2].label, key[0], key[1]))]


def _tell(progress: Callable[[int, int], object] | None, total: int, done: int) -> None:
    if progress is not None:
        progress(done, total)


def _run_jobs(
    jobs: list[tuple[int, list[int], list[Setting]]],
    out: Path,
    done: dict[tuple[int, int, Setting], Episode],
    workers: int,
    start: tuple[str, str, str],
    seed: int,
    tell: Callable[[int], object],
) -> None:
    """Hand blocks of episodes to worker processes and keep what comes back."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=start)
    try:
        futures: list[Future[list[Episode]]] = [pool.submit(_work, *job, seed) for job in jobs]
        for future in as_completed(futures):
            for episode in future.result():
                done[episode.task, episode.episode, episode.setting] = episode
                _keep(out, episode)
            tell(len(done))
    except BrokenProcessPool:
        raise BadArgument(
            f"workers must be fewer than {workers}, or have more memory: a process died; what was done is in {out}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _kept(run: Path, out: Path, suite: str, seed: int) -> dict[tuple[int, int, Setting], Episode]:
    """The episodes of an earlier start of the same rollouts."""
    folder = RunFolder(run).policy if RunFolder(run).policy.is_dir() else run
    digest = hashlib.sha256((folder / "policy.safetensors").read_bytes()).hexdigest()
    asked, file = {"policy": digest, "suite": suite, "seed": seed}, out / "rollout.json"
    if file.is_file():
        before = json.loads(file.read_text())
        same = all(before.get(key) == value for key, value in asked.items())
        require(same, "out", str(out), "a new folder: it holds rollouts of another policy, suite or seed")
    file.write_text(json.dumps(asked, indent=2) + "\n")
    found = {}
    lines = (out / "episodes.jsonl").read_text().splitlines() if (out / "episodes.jsonl").exists() else []
    for line in lines:
        if line.endswith("}"):
            values: dict[str, Any] = json.loads(line)
            setting = Setting(**values.pop("setting"))
            episode = Episode(setting=setting, actions=np.zeros((0, 0), np.float32), **values)
            found[episode.task, episode.episode, setting] = episode
    return found


def _keep(out: Path, episode: Episode) -> None:
    values = asdict(episode)
    values.pop("actions")
    with (out / "episodes.jsonl").open("a") as file:
        file.write(json.dumps(values) + "\n")
