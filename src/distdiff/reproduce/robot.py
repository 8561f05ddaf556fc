"""Robot experiments: policies trained on the same demonstrations, let loose on the same episodes.

A classical policy is shown at the best of its samplers at each number of steps, found on the very episodes that are
reported: what picking a maximum gains is its gain. Intervals are Wilson's over the episodes of all seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .._check import require, require_count
from ..evaluate.rollout import Episode, Setting, Summary, summarise
from ..evaluate.rollout_workers import roll_out_run
from ..figure import canvas, plain_ticks
from ..policy import Policy
from ..progress import reports
from ..recipe.robot import ROBOT_STUDIES, RobotStudy
from ..train import RunFolder
from .job import Job, run_jobs
from .plans import draw_plans
from .record import Record, table

__all__ = ["EXPERIMENTS", "run"]

COLORS = ("#0b7a75", "#b4283c", "#d9822b", "#6a4fa3", "#6f9fd8", "#a0522d")


@dataclass(frozen=True)
class RobotJob(Job):
    """A policy to train and to let loose."""

    study: RobotStudy | None = None
    rollouts: tuple[Setting, ...] = ()

    def finished(self) -> bool:
        return self.trained() and len(self.episodes(run=False)) == self._count()

    def measure(self) -> None:
        self.episodes(run=True)

    def _count(self) -> int:
        from ..robot import open_suite

        assert self.study is not None
        tasks = len(open_suite(self.study.suite).tasks) if self.study.tasks is None else len(self.study.tasks)
        return tasks * self.study.episodes * len(self.rollouts)

    def episodes(self, *, run: bool) -> list[Episode]:
        """What came of all episodes; those that are missing are run, if they may be."""
        study = self.study
        assert study is not None
        return roll_out_run(
            self.folder,
            self.folder / "rollout",
            suite=study.suite,
            tasks=study.tasks,
            episodes=study.episodes,
            settings=self.rollouts,
            workers=1 if run else 0,
        )


def settings_of(study: RobotStudy, model: str) -> tuple[Setting, ...]:
    """All that is tried of a model; a single step is the same for every sampler."""
    samplers = study.samplers[model]
    return tuple(
        Setting(steps, churn, sampler)
        for steps in study.steps
        for sampler, churn in (samplers if steps > 1 else samplers[:1])
    )


def run(
    scale: str,
    out: Path,
    *,
    name: str,
    seeds: Sequence[int] | None = None,
    episodes: int | None = None,
    data: str | None = None,
) -> None:
    """Train, roll out, report. With other seeds or more episodes, what is there already is not done again."""
    study = ROBOT_STUDIES[name][scale]
    study = study if seeds is None else replace(study, seeds=tuple(seeds))
    study = study if episodes is None else replace(study, episodes=episodes)
    require_count("episodes", study.episodes)
    options = "" if seeds is None else f" --seeds {','.join(map(str, seeds))}"
    options += "" if episodes is None else f" --episodes {episodes}"
    options += "" if data is None else " --data DEMONSTRATIONS"
    source = _collected(study, out) if data is None else _place(data)
    record = Record(name, scale, study, out, options)
    jobs: list[RobotJob] = []
    for model, config in study.models.items():
        for seed in study.seeds:
            jobs.append(
                RobotJob(
                    name=f"{model}, seed {seed}",
                    config=replace(config, seed=seed, data=replace(config.data, source=source)),
                    folder=out / "runs" / f"{model.replace(' = ', '-').replace('λ', 'lambda')}-{seed}",
                    settings=(),
                    metric="rollout",
                    n=study.episodes,
                    n_reference=None,
                    study=study,
                    rollouts=settings_of(study, model),
                )
            )
    record.earlier = sum(RunFolder(job.folder).seconds() for job in jobs if job.finished())
    run_jobs(jobs, study.workers, name)
    by_model: dict[str, list[RobotJob]] = {}
    for job in jobs:
        by_model.setdefault(job.name.rsplit(",", 1)[0], []).append(job)
    _report(record, study, by_model)


def _place(data: str) -> str:
    """One spelling for a local path, so that finished runs are known again; anything else as it is."""
    return str(Path(data).resolve()) if Path(data).exists() else data


def _collected(study: RobotStudy, out: Path) -> str:
    """Demonstrations of a scripted expert, made now unless they are there."""
    require(study.demonstrations is not None, "data", None, f"where demonstrations of {study.suite} lie")
    assert study.demonstrations is not None
    from ..robot.collect import collect

    folder, size = out / "runs" / "demonstrations", study.cameras
    tasks = None if study.tasks is None else list(study.tasks)
    with reports() as report:
        collect(
            study.suite,
            tasks,
            study.demonstrations,
            folder,
            workers=study.workers,
            cameras=size is not None,
            camera_size=size or 128,
            progress=report,
        )
    return str(folder)


@dataclass(frozen=True)
class Result:
    """A model at a number of steps, over all training seeds."""

    setting: Setting
    pooled: Summary
    scores: tuple[float, ...]
    """Mean score of each seed."""
    successes: tuple[float, ...]
    """Success rate of each seed."""


def results_of(study: RobotStudy, jobs: Sequence[RobotJob]) -> dict[int, Result]:
    """The best setting of a model at each number of steps, by its mean score."""
    of_seed = [job.episodes(run=False) for job in jobs]
    pooled = summarise(episode for some in of_seed for episode in some)
    each = [summarise(some) for some in of_seed]
    found = {}
    for steps in study.steps:
        best = max((s for s in pooled if s.steps == steps), key=lambda s: (pooled[s].score, pooled[s].success))
        scores, successes = ([getattr(one[best], key) for one in each] for key in ("score", "success"))
        found[steps] = Result(best, pooled[best], tuple(scores), tuple(successes))
    return found


def _report(record: Record, study: RobotStudy, jobs: dict[str, list[RobotJob]]) -> None:
    found = {model: results_of(study, some) for model, some in jobs.items()}
    seconds = {model: [RunFolder(job.folder).seconds() for job in some] for model, some in jobs.items()}
    record.results = {
        "training_seconds": seconds,
        "models": {
            model: [_row(steps, result) for steps, result in results.items()] for model, results in found.items()
        },
    }
    _figure(record, study, found)
    if study.suite == "pusht":
        _plans(record, study, jobs)
    header = ["success, %", *(f"{steps} step{'s' * (steps > 1)}" for steps in study.steps), "training, s"]
    several = len(next(iter(found.values()))[study.steps[0]].pooled.tasks) > 1
    rows, medians, covers = [], [], []
    for model, results in found.items():
        cells = [_success(result) for result in results.values()]
        rows.append([model, *cells, f"{statistics.fmean(seconds[model]):.0f}"])
        medians.append([model, *(f"{100 * result.pooled.median:.0f}" for result in results.values())])
        covers.append([model, *(_score(result) for result in results.values())])
    record.text.append(table(header, rows))
    middle = header[1:-1]
    if several:
        record.text.append(table(["median over tasks, %", *middle], medians))
    else:
        record.text.append(table(["mean score, %", *middle], covers))
    count = len(study.seeds)
    record.text.append(
        f"{study.episodes} episodes a task, {count} training seed{'s' * (count > 1)}. In brackets: Wilson's 95 % "
        "interval over all episodes, or the standard deviation over seeds. A model with several samplers is shown at "
        "the best one, found on these episodes."
    )
    record.write(study.title, _findings(study, found))


def _success(result: Result) -> str:
    low, high = result.pooled.interval
    return f"{100 * result.pooled.success:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def _score(result: Result) -> str:
    spread = f" (± {100 * statistics.stdev(result.scores):.1f})" if len(result.scores) > 1 else ""
    return f"{100 * result.pooled.score:.1f}{spread}"


def _row(steps: int, result: Result) -> dict[str, Any]:
    one = result.pooled
    return {
        "steps": steps,
        "setting": result.setting.label,
        "success": one.success,
        "interval": list(one.interval),
        "median_of_tasks": one.median,
        "score": one.score,
        "score_error": one.score_error,
        "score_of_seed": list(result.scores),
        "success_of_seed": list(result.successes),
        "tasks": {str(task): list(counts) for task, counts in one.tasks.items()},
        "plan_milliseconds": 1e3 * one.plan_seconds,
    }


def _findings(study: RobotStudy, found: dict[str, dict[int, Result]]) -> list[str]:
    few, many = min(study.steps), max(study.steps)
    lines = []
    if "diffusion" in found:
        ours, classical = found["distributional"], found["diffusion"]
        for steps in (steps for steps in study.steps if steps <= 2):
            a, b = ours[steps].pooled, classical[steps].pooled
            lines.append(
                f"{steps} step{'s' * (steps > 1)}: distributional {100 * a.score:.1f} % score, "
                f"{100 * a.success:.1f} % success; classical ({classical[steps].setting.sampler}) "
                f"{100 * b.score:.1f} % and {100 * b.success:.1f} %."
            )
        best = max((steps for steps in study.steps if steps <= 2), key=lambda steps: ours[steps].pooled.score)
        gap = 100 * (classical[many].pooled.score - ours[best].pooled.score)
        lines.append(
            f"The classical policy scores {100 * classical[many].pooled.score:.1f} % at {many} steps; the "
            f"distributional one at {best} is {abs(gap):.1f} points {'below' if gap > 0 else 'above'} that."
        )
    for model, results in found.items():
        if many > few and results[many].pooled.success > 0:
            two = min((steps for steps in study.steps if steps >= 2), default=few)
            share = results[two].pooled.success / results[many].pooled.success
            lines.append(f"{model}: success at {two} steps is {share:.2f} of that at {many}.")
    times = {model: 1e3 * results[few].pooled.plan_seconds for model, results in found.items()}
    slow = {model: 1e3 * results[many].pooled.plan_seconds for model, results in found.items()}
    first = next(iter(found))
    lines.append(
        f"A plan of the {first} policy took {times[first]:.0f} ms with {few} and {slow[first]:.0f} with {many} steps."
    )
    return lines


def _figure(record: Record, study: RobotStudy, found: dict[str, dict[int, Result]]) -> None:
    single = len(study.steps) == 1
    with canvas() as (figure, axes):
        for color, (model, results) in zip(COLORS * 2, found.items(), strict=False):
            values = [100 * result.pooled.success for result in results.values()]
            edges = [[100 * result.pooled.interval[k] for result in results.values()] for k in (0, 1)]
            if single:
                reach = [[values[0] - edges[0][0]], [edges[1][0] - values[0]]]
                axes.errorbar([model], values, yerr=reach, fmt="o", color=color, capsize=3)
                continue
            axes.plot(list(results), values, "o-", label=model, color=color)
            axes.fill_between(list(results), *edges, color=color, alpha=0.12, linewidth=0)
        if not single:
            axes.set_xscale("log")
            plain_ticks(axes, study.steps)
            axes.set_xlabel("denoising steps a plan")
            axes.legend()
        axes.set(ylabel="success, %", ylim=(-2, 102))
        record.figure(figure, "success", "Success in simulation, with 95 % intervals over all episodes.")


def _plans(record: Record, study: RobotStudy, jobs: dict[str, list[RobotJob]]) -> None:
    """What both policies of the first seed would do next, with few steps and with many."""
    ours, classical = (Policy.load(jobs[model][0].folder, "cpu") for model in ("distributional", "diffusion"))
    few, many = min(study.steps), max(study.steps)
    shown = {
        f"distributional, {few} step": (ours, Setting(few)),
        f"diffusion, {few} step": (classical, Setting(few, None, "ddim")),
        f"diffusion, {many} steps": (classical, Setting(many, None, "sde")),
    }
    draw_plans(shown, (1, 2, 3), record)


EXPERIMENTS = {name: partial(run, name=name) for name in ROBOT_STUDIES}
