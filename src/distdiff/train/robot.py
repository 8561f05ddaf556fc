"""Robot runs: demonstrations, and a policy that denoises chunks of actions.

The same denoiser, losses, loop and checkpoints as for images; an observation is the conditioning. Now and then the
policy may be let loose in simulation, and the best checkpoint kept by its score, as the paper does. Its artefact is
RUN/policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from .._check import require, require_between, require_choice, require_count
from ..data.robot import Episodes, Windows, load_episodes
from ..data.robot.derive import sources
from ..denoiser import Denoiser
from ..policy import Policy, PolicySpec, build_policy_denoiser, pictures
from ..random import rand
from ..recipe.config import RobotData, RobotRun
from .build import POPULATION_LOSSES, build_loss, check_fit, check_run
from .folder import RunFolder
from .loader import read_ahead
from .task import Phase, Task, denoiser_modules, denoiser_phases, seeded

__all__ = ["RobotTask", "read_windows"]


def read_windows(data: RobotData) -> Windows:
    """The windows of the demonstrations that a configuration names."""
    for name in ("chunk", "execute", "history"):
        require_count(f"data.{name}", getattr(data, name))
    require_between("data.execute", data.execute, 1, data.chunk)
    for name in ("shift", "workers"):
        require_count(f"data.{name}", getattr(data, name), least=0)
    require(bool(data.source), "data.source", data.source, "where demonstrations lie: a file, a folder or a hub name")
    present: tuple[str, ...] = ()
    names = [*sources(data.states, present), *data.cameras]
    episodes = load_episodes(data.source, layout=data.layout, names=names, limit=data.limit)
    return Windows(episodes, data.states, data.cameras, chunk=data.chunk, history=data.history, hold=data.hold)


class RobotTask(Task):
    def __init__(self, config: RobotRun) -> None:
        check_run(config)
        build_loss(config.loss, torch.eye(2))
        check_fit(config)
        _check_rollout(config)
        kinds = (*POPULATION_LOSSES, "regression")
        require_choice("loss.kind", config.loss.kind, kinds)
        self.config: RobotRun = config
        self.windows = read_windows(config.data)
        self.length = len(self.windows)
        episodes = self.windows.episodes
        self.language = _embeddings(config, episodes)
        self.spec = _spec(config, self.windows, self.language)
        with seeded(config.seed, "weights"):
            self.model: Denoiser = build_policy_denoiser(self.spec)
        self.statistics = self.windows.statistics
        self.loss = build_loss(config.loss, self._for_median())
        self.modules = denoiser_modules(self.model, self.loss)

    def _for_median(self) -> Tensor:
        """Chunks for the kernels that take their width from the data."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(self.length, generator=generator)[: 20 * 512]
        return self.statistics.action(torch.from_numpy(self.windows.actions(rows.numpy())))

    def phases(self) -> list[Phase]:
        return denoiser_phases(self.modules, self.loss, self.config.loss.warmup)

    def load(self, rows: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.windows.batch(rows)

    def batches(self, rows: Iterable[list[int]]) -> Iterator[Any]:
        if not self.config.data.workers:
            return super().batches(rows)
        return read_ahead(_Rows(self.windows), rows, self.config.data.workers)

    def prepare(
        self, batch: tuple[Tensor, dict[str, Tensor]], device: torch.device, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        actions, observed = batch
        cond: dict[str, Tensor] = {}
        if self.spec.states:
            cond["state"] = self.statistics.state(observed["state"].to(device, non_blocking=True))
        for name in self.spec.cameras:
            seen = pictures(observed[name].to(device, non_blocking=True))
            cond[name] = shifted(seen, self.config.data.shift, generator) if self.config.data.shift else seen
        if self.language is not None:
            cond["language"] = self.language[observed["task"]].to(device)
        return self.statistics.action(actions.to(device, non_blocking=True)), cond

    def describe(self) -> str:
        return self.windows.episodes.describe()

    def policy(self, model: nn.Module) -> Policy:
        assert isinstance(model, Denoiser)
        return Policy(self.spec, model, self.statistics, self.language)

    def export(self, folder: RunFolder, model: nn.Module) -> None:
        folder.replace_folder(folder.policy, self.policy(model).save)

    def observe(self, step: int, model: nn.Module, folder: RunFolder) -> dict[str, float]:
        look = self.config.rollout
        if not look.every or not (step % look.every == 0 or step == self.config.steps):
            return {}
        from ..evaluate.rollout import Setting, roll_out, summarise

        setting = Setting(look.steps, look.churn)
        episodes = roll_out(self.policy(model), look.suite, look.tasks, range(look.episodes), [setting])
        summary = summarise(episodes)[setting]
        return {"success": summary.success, "coverage": summary.score, "score": 1 - summary.score}


class _Rows(Dataset[Any]):
    """Windows as a loader's workers read them: a list of rows is one item."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __getitems__(self, rows: list[int]) -> Any:
        return self.windows.batch(rows)


def _check_rollout(config: RobotRun) -> None:
    look = config.rollout
    require_count("rollout.every", look.every, least=0)
    if not look.every:
        return
    from ..robot import open_suite

    require_count("rollout.episodes", look.episodes)
    require_count("rollout.steps", look.steps)
    require_between("rollout.churn", look.churn, 0, 1)
    open_suite(look.suite)


def _embeddings(config: RobotRun, episodes: Episodes) -> Tensor | None:
    """The instructions of the tasks as vectors, (tasks, size); None for a policy that is told nothing."""
    language = config.network.language
    if language is None:
        return None
    silent = [str(number) for number, words in enumerate(episodes.tasks) if not words]
    require(
        not silent,
        "network.language",
        language,
        f"none for {episodes.source}: task{'s' * (len(silent) > 1)} {', '.join(silent[:5])} without words",
    )
    from ..nn.language import embed_sentences

    return embed_sentences(episodes.tasks, language)


def _spec(config: RobotRun, windows: Windows, language: Tensor | None) -> PolicySpec:
    data, observations = config.data, windows.episodes.observations
    sizes = {tuple(observations[name].shape[1:3]) for name in data.cameras}
    require(len(sizes) < 2, "data.cameras", sorted(sizes), "of one size")
    return PolicySpec(
        action_size=windows.episodes.actions.shape[1],
        chunk=data.chunk,
        execute=data.execute,
        history=data.history,
        states=windows.sizes,
        cameras=tuple(data.cameras),
        camera_size=next(iter(sizes), None),  # type: ignore[arg-type]
        language_size=0 if language is None else language.shape[1],
        words=windows.episodes.tasks if language is not None else (),
        network=config.network,
        anchored=config.loss.anchor > 0,
    )


def shifted(frames: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Pictures (n, 3, height, width) moved by up to `most` pixels, each on its own; edges are repeated."""
    height, width = frames.shape[-2:]
    move = (rand((len(frames), 2), generator=generator, like=frames) * (2 * most + 1)).long() - most
    rows = (torch.arange(height, device=frames.device) + move[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=frames.device) + move[:, 1:]).clamp(0, width - 1)
    which = torch.arange(len(frames), device=frames.device)[:, None, None]
    return frames.movedim(1, -1)[which, rows[:, :, None], columns[:, None]].movedim(-1, 1)
