"""`distdiff rollout`: a policy in simulation, as a table, a figure, rollout numbers and films."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from .._check import require
from ..evaluate.rollout import Episode, Setting, Summary, summarise, wilson
from ..evaluate.rollout_workers import roll_out_run
from ..figure import COLORS, canvas, plain_ticks, save
from ..progress import bar, console
from ..robot import Simulation, Suite, open_suite
from ..video import save_video

__all__ = ["roll_out_and_report"]


def roll_out_and_report(
    run: Path, out: Path, *, suite: str, settings: Sequence[Setting], videos: int = 1, **options: Any
) -> dict[Setting, Summary]:
    """Roll out, write metrics.json, rollout.png and films to `out`, print the table. Options as in `roll_out_run`."""
    require(videos >= 0, "videos", videos, "a whole number of at least 0")
    opened = open_suite(suite)
    with bar("rollouts", 1) as advance:
        episodes = roll_out_run(
            run,
            out,
            suite=suite,
            settings=settings,
            progress=lambda done, total: advance(to=done, total=total),
            **options,
        )
    found = summarise(episodes)
    _write(out, opened, found, options)
    _draw(out, found)
    _film(out, opened, episodes, videos)
    _show(opened, found)
    return found


def _write(out: Path, suite: Suite, found: dict[Setting, Summary], options: dict[str, Any]) -> None:
    rows = []
    for setting, summary in found.items():
        tasks = [
            {
                "task": suite.tasks[task].name,
                "successes": good,
                "episodes": count,
                "rate": good / count,
                "interval": wilson(good, count),
            }
            for task, (good, count) in summary.tasks.items()
        ]
        rows.append(dataclasses.asdict(setting) | dataclasses.asdict(summary) | {"tasks": tasks})
    asked = {key: options[key] for key in ("episodes", "seed") if key in options}
    text = json.dumps({"suite": suite.name, **asked, "rollouts": rows}, indent=2)
    (out / "metrics.json").write_text(text + "\n")


def _draw(out: Path, found: dict[Setting, Summary]) -> None:
    with canvas() as (figure, axes):
        groups: dict[tuple[str, float | None], list[tuple[Setting, Summary]]] = {}
        for setting, summary in found.items():
            groups.setdefault((setting.sampler, setting.churn), []).append((setting, summary))
        for (sampler, churn), group in groups.items():
            group.sort(key=lambda pair: pair[0].steps)
            steps = [setting.steps for setting, _ in group]
            label = sampler if churn is None else f"{sampler}, churn {churn:g}"
            color = COLORS["distributional"] if len(groups) == 1 else None
            (line,) = axes.plot(steps, [100 * one.success for _, one in group], "o-", label=label, color=color)
            low, high = (np.array([100 * one.interval[k] for _, one in group]) for k in (0, 1))
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set_xscale("log")
        plain_ticks(axes, (setting.steps for setting in found))
        axes.set(xlabel="denoising steps a plan", ylabel="success, % (95 % interval)", ylim=(-2, 102))
        axes.legend()
        save(figure, out, "rollout")


def _film(out: Path, suite: Suite, episodes: list[Episode], videos: int) -> None:
    """The first successes and failures at each setting; their actions are played again, which is exact."""
    for setting in dict.fromkeys(one.setting for one in episodes):
        for success in (True, False):
            some = [one for one in episodes if one.setting == setting and one.success == success and one.actions.size]
            for one in some[:videos]:
                simulation = suite.make(one.task)
                try:
                    frames = _replay(simulation, one)
                finally:
                    simulation.close()
                words = "success" if success else "failure"
                name = f"{words}-{suite.tasks[one.task].name}-{one.episode}-{setting.label.replace(', ', '-')}"
                (out / "videos").mkdir(exist_ok=True)
                save_video(frames, out / "videos" / name.replace(" ", "-"))


def _replay(simulation: Simulation, episode: Episode) -> list[np.ndarray]:
    simulation.reset(episode.episode)
    frames = [simulation.frame()]
    for k, action in enumerate(episode.actions):
        simulation.step(action)
        if k % 2 or k + 1 == len(episode.actions):  # every other step is enough for the eye
            frames.append(simulation.frame())
    return frames + [frames[-1]] * 5


def _show(suite: Suite, found: dict[Setting, Summary]) -> None:
    table = Table(title=f"{suite.name}: success, % (95 % interval)")
    for name in ("sampler", "all", "median of tasks", "score", "ms a plan"):
        table.add_column(name, justify="left" if name == "sampler" else "right")
    for setting, one in sorted(found.items(), key=lambda pair: (pair[0].sampler, str(pair[0].churn), pair[0].steps)):
        low, high = one.interval
        table.add_row(
            setting.label,
            f"{100 * one.success:.1f} ({100 * low:.0f} to {100 * high:.0f})",
            f"{100 * one.median:.1f}",
            f"{one.score:.3f} ± {one.score_error:.3f}",
            f"{1e3 * one.plan_seconds:.1f}",
        )
    console.print(table)
    if len(suite.tasks) > 1:
        setting, best = next(iter(found.items()))
        rates = ", ".join(f"{suite.tasks[task].name} {good}/{count}" for task, (good, count) in best.tasks.items())
        console.print(f"{setting.label}: {rates}", soft_wrap=True, highlight=False)
