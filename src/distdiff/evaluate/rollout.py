"""Policies in closed loop: plan a chunk, carry it out, look again, until the task is done or time is up.

Every episode is a function of its task, its number, the sampler's setting and a seed: neither the number of worker
processes nor the episodes run side by side matter, up to rounding in the network. What is reported: success a task with
Wilson's interval, the median over tasks as in the paper, the mean score, and the time a plan takes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import numpy as np

from .._check import require, require_between, require_count
from ..baseline.samplers import SAMPLERS, require_sampler
from ..data.robot.derive import sources
from ..policy import Policy
from ..random import stream
from ..robot import Simulation, Suite, open_suite

__all__ = ["Episode", "Setting", "Summary", "check_fit", "roll_out", "summarise", "wilson"]


@dataclass(frozen=True, order=True)
class Setting:
    """How a policy's chunks are sampled."""

    steps: int
    churn: float | None = 1.0
    sampler: str = "distributional"

    @property
    def label(self) -> str:
        churn = "" if self.churn is None else f", churn {self.churn:g}"
        return f"{self.steps} step{'s' * (self.steps > 1)}, {self.sampler}{churn}"


@dataclass(frozen=True)
class Episode:
    """What came of an episode."""

    task: int
    episode: int
    setting: Setting
    success: bool
    score: float
    length: int
    """Simulation steps."""
    plan_seconds: float
    """Median time of a plan, by the clock; of the whole batch where episodes ran side by side."""
    together: int
    """Episodes that were planned for at once."""
    actions: np.ndarray = field(compare=False, repr=False)
    """(length, size), as they were carried out."""


def check_fit(policy: Policy, suite: Suite, tasks: Sequence[int], settings: Sequence[Setting]) -> None:
    """Raise before any work if a policy cannot act in a suite."""
    own, wanted = policy.spec.action_size, suite.action_size
    require(own == wanted, "action size of the policy", own, f"{wanted}, that of {suite.name}")
    for task in tasks:
        require(0 <= task < len(suite.tasks), "task", task, f"in 0 to {len(suite.tasks) - 1}, those of {suite.name}")
        words = suite.tasks[task].words
        require(
            bool(words) or not policy.spec.language_size, "words of task", words, "given: the policy takes language"
        )
    for setting in settings:
        require_count("steps", setting.steps)
        if setting.churn is not None:
            require_between("churn", setting.churn, 0, 1)
        require_sampler(setting.sampler, policy.denoiser)
        takes = SAMPLERS[setting.sampler].churn
        require(takes or setting.churn is None, "churn", setting.churn, f"left out for {setting.sampler}")


def roll_out(
    policy: Policy,
    suite: str | Suite,
    tasks: Sequence[int] | None,
    episodes: Iterable[int],
    settings: Sequence[Setting],
    *,
    seed: int = 0,
    simulations: dict[int, list[Simulation]] | None = None,
    progress: Callable[[Episode], object] | None = None,
) -> list[Episode]:
    """Run episodes of some tasks (all by default) at each setting, in this process.

    Args:
        simulations: those of earlier calls by task, to be used again and added to; closed at the end by default.
        progress: called after each episode.
    """
    suite = open_suite(suite) if isinstance(suite, str) else suite
    tasks = range(len(suite.tasks)) if tasks is None else tasks
    numbers = list(episodes)
    require(all(0 <= k < suite.episodes for k in numbers), "episodes", numbers[-1:], f"below {suite.episodes}")
    check_fit(policy, suite, tasks, settings)
    kept = {} if simulations is None else simulations
    done: list[Episode] = []
    together = getattr(suite, "together", 1)
    try:
        for task in tasks:
            for setting in settings:
                for first in range(0, len(numbers), together):
                    block = numbers[first : first + together]
                    for episode in _side_by_side(policy, suite, task, block, setting, seed, kept):
                        done.append(episode)
                        if progress is not None:
                            progress(episode)
    finally:
        if simulations is None:
            for simulation in (some for group in kept.values() for some in group):
                simulation.close()
    return done


class _Actor:
    """One episode under way."""

    def __init__(self, simulation: Simulation, states: Sequence[str], history: int) -> None:
        self.simulation, self.states = simulation, states
        self.past: deque[dict[str, np.ndarray]] = deque(maxlen=history)
        self.actions: list[np.ndarray] = []
        self.plans = 0

    def look(self) -> None:
        self.past.append(self.simulation.observe(self.states))

    def observation(self, cameras: Sequence[str]) -> dict[str, np.ndarray]:
        """The history of states, the first one repeated where it is too short, and pictures of now."""
        assert self.past.maxlen is not None
        series = [self.past[0]] * (self.past.maxlen - len(self.past)) + list(self.past)
        return {name: np.stack([some[name] for some in series]) for name in self.states} | (
            self.simulation.observe(cameras) if cameras else {}
        )

    def act(self, action: np.ndarray, look: bool) -> None:
        self.simulation.step(action)
        self.actions.append(action)
        if look and not self.simulation.done:
            self.look()


def _side_by_side(
    policy: Policy,
    suite: Suite,
    task: int,
    numbers: Sequence[int],
    setting: Setting,
    seed: int,
    kept: dict[int, list[Simulation]],
) -> Iterator[Episode]:
    """Episodes of a task that plan at the same moments, so that their chunks are drawn in one batch."""
    spec = policy.spec
    states = tuple(sources(tuple(spec.states), ()))
    size = spec.camera_size[0] if spec.camera_size else 128
    for other in [key for key in kept if key != task]:  # one task at a time is kept in memory
        for simulation in kept.pop(other):
            simulation.close()
    simulations = kept.setdefault(task, [])
    while len(simulations) < len(numbers):
        simulations.append(suite.make(task, size))
    actors = []
    for number, simulation in zip(numbers, simulations, strict=False):
        simulation.reset(number)
        actors.append(_Actor(simulation, states, spec.history))
        actors[-1].look()
    words, times = suite.tasks[task].words, []
    while active := [(k, actor) for k, actor in zip(numbers, actors, strict=True) if not actor.simulation.done]:
        seen = [actor.observation(spec.cameras) for _, actor in active]
        batch = {name: np.stack([some[name] for some in seen]) for name in seen[0]}
        seeds = [stream(seed, f"{suite.name} {task} {k} plan {actor.plans}") for k, actor in active]
        begun = time.perf_counter()
        chunks = policy.plan(batch, [words] * len(active), seeds=seeds, **_options(setting))
        times.append(time.perf_counter() - begun)
        for (_, actor), chunk in zip(active, chunks, strict=True):
            actor.plans += 1
            for index, action in enumerate(chunk[: spec.execute]):
                actor.act(action, look=index >= spec.execute - spec.history)
                if actor.simulation.done:
                    break
    for k, actor in zip(numbers, actors, strict=True):
        simulation = actor.simulation
        yield Episode(
            task,
            k,
            setting,
            simulation.success,
            simulation.score,
            len(actor.actions),
            median(times),
            len(numbers),
            np.asarray(actor.actions, np.float32),
        )


def _options(setting: Setting) -> dict[str, Any]:
    return {"steps": setting.steps, "churn": setting.churn, "sampler": setting.sampler}


def wilson(successes: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a proportion, of 95 % by default."""
    share = successes / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)


@dataclass(frozen=True)
class Summary:
    """What a setting achieved over some tasks."""

    tasks: dict[int, tuple[int, int]]
    """Successes and episodes of each task."""
    success: float
    """Over all episodes."""
    interval: tuple[float, float]
    """Wilson's, of that."""
    median: float
    """Of the tasks' success rates, as the paper reports it."""
    score: float
    """Mean score."""
    score_error: float
    """Standard error of that."""
    plan_seconds: float
    """Median time of a plan."""


def summarise(episodes: Iterable[Episode]) -> dict[Setting, Summary]:
    groups: dict[Setting, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.setting, []).append(episode)
    return {setting: _summary(group) for setting, group in groups.items()}


def _summary(group: list[Episode]) -> Summary:
    tasks: dict[int, tuple[int, int]] = {}
    for episode in sorted(group, key=lambda one: one.task):
        good, count = tasks.get(episode.task, (0, 0))
        tasks[episode.task] = (good + episode.success, count + 1)
    successes, scores = sum(good for good, _ in tasks.values()), [one.score for one in group]
    return Summary(
        tasks=tasks,
        success=successes / len(group),
        interval=wilson(successes, len(group)),
        median=median(good / count for good, count in tasks.values()),
        score=mean(scores),
        score_error=float(np.std(scores, ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else 0.0,
        plan_seconds=median(one.plan_seconds for one in group),
    )
