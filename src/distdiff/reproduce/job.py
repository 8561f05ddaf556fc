"""Training and scoring the models of a table, several at once, each in a process and a run folder of its own.

A finished run is never trained again, an interrupted one goes on, and scores that are there are not measured again, so
that a table that was stopped can be started with the same command. Every setting is scored twice on the same samples:
against data by which settings are chosen (the training pictures, or other held-out points) and against the held-out
data that the table reports. Chosen settings may be scored again on further sets of samples.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._check import FailedRuns
from ..baseline.samplers import sample_with
from ..data.toy import TOYS
from ..evaluate.points import Reference as PointReference
from ..evaluate.points import floor as point_floor
from ..evaluate.setting import name_of
from ..progress import bar, console
from ..random import stream
from ..recipe.config import ImageRun, PointsRun, RunConfig
from ..train import RunFolder, load_denoiser
from .runs import train_here

__all__ = ["Job", "Pair", "Setting", "run_jobs"]

SET = 4096
"""Points of a set that D is measured on."""
BATCH = 256
"""Pictures drawn at once."""
SPARE = 4
"""Training pictures looked at for each one of the floor, so that every class has enough."""


class Setting(NamedTuple):
    """How a model is sampled."""

    nfe: int
    sampler: str
    churn: float | None
    grid: str
    draw: int = 0
    """Which set of samples: 0 is the one that settings are chosen by."""

    @property
    def name(self) -> str:
        return name_of(self.sampler, self.churn) + (f" {self.grid}" if self.grid != "uniform" else "")


class Pair(NamedTuple):
    choice: float
    """By which a setting is chosen."""
    score: float
    """On the held-out data."""


@dataclass(frozen=True)
class Job:
    """One model to train and score."""

    name: str
    config: RunConfig
    folder: Path
    settings: tuple[Setting, ...]
    metric: str
    n: int
    n_reference: int | None
    needs: str | None = None
    """The job that has to be done before."""
    threads: int = 1

    @property
    def file(self) -> Path:
        return self.folder / "table-scores.json"

    def scores(self) -> dict[Setting, Pair]:
        """What has been measured of this job's settings."""
        saved = self._read()
        return {
            Setting(*row["setting"]): Pair(row["choice"], row["score"])
            for row in saved.get("rows", [])
            if Setting(*row["setting"]) in self.settings
        }

    def floor(self) -> float:
        return float(self._read()["floor"])

    def spent(self) -> float:
        """Seconds of training and scoring so far."""
        return RunFolder(self.folder).seconds() + float(self._read().get("seconds", 0.0))

    def _read(self) -> dict[str, Any]:
        if not self.file.is_file():
            return {}
        saved = json.loads(self.file.read_text())
        return saved if saved["how"] == self.how() else {}

    def how(self) -> dict[str, Any]:
        """What the scores hang on beside the setting, as JSON has it; above all the whole run."""
        how = {"metric": self.metric, "n": self.n, "n_reference": self.n_reference, "run": asdict(self.config)}
        return json.loads(json.dumps(how))

    def finished(self) -> bool:
        return self.trained() and set(self.scores()) == set(self.settings)

    def trained(self) -> bool:
        return RunFolder(self.folder).done(self.config) == self.config.steps

    def measure(self) -> None:
        """Score the trained model at each setting that has no score yet."""
        score = scorer(self)
        found = self.scores()
        started = time.perf_counter() - float(self._read().get("seconds", 0.0))
        for setting in self.settings:
            if setting not in found:
                found[setting] = score.pair(setting)
        rows = [{"setting": setting, **pair._asdict()} for setting, pair in found.items()]
        payload = {"how": self.how(), "floor": score.floor(), "seconds": time.perf_counter() - started, "rows": rows}
        aside = self.file.with_suffix(".partial")
        aside.write_text(json.dumps(payload, indent=1) + "\n")
        aside.replace(self.file)


def run_jobs(jobs: Sequence[Job], workers: int, label: str) -> None:
    """Do what is left to do, `workers` at once; one failure does not stop the others, but is raised at the end."""
    left = {job.name: job for job in jobs if not job.finished()}
    if len(left) < len(jobs):
        console.print(f"{label}: {len(jobs) - len(left)} of {len(jobs)} runs are there already")
    running: dict[Future[None], Job] = {}
    failed: dict[str, str] = {}
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool, bar(label, len(jobs)) as advance:
        done = len(jobs) - len(left)
        advance(to=done)
        waiting = dict(left)
        while waiting or running:
            for name, job in list(waiting.items()):
                if job.needs in failed:
                    failed[name] = f"{job.needs} failed"
                    del waiting[name]
                elif job.needs not in left and len(running) < workers:
                    running[pool.submit(work, job)] = waiting.pop(name)
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                job, error = running.pop(future), future.exception()
                if isinstance(error, KeyboardInterrupt):
                    raise error
                if error is not None:
                    failed[job.name] = f"{type(error).__name__}: {error}"
                else:
                    left.pop(job.name)
                    done += 1
                    console.print(f"{job.name}: done, {RunFolder(job.folder).seconds():.0f} s of training")
                advance(to=done)
    if failed:
        raise FailedRuns(failed, "the others are kept, and the same command tries these again")


def work(job: Job) -> None:
    """Train and measure one model: in a process of its own."""
    train_here(job.config, job.folder, job.threads)
    job.measure()


def scorer(job: Job) -> PointScorer | ImageScorer:
    return PointScorer(job) if isinstance(job.config, PointsRun) else ImageScorer(job)


def _draw(denoiser: Any, shape: Sequence[int], setting: Setting, **options: Any) -> torch.Tensor:
    """Samples of a setting; sample i of a set has the same seed in every setting and model."""
    seed = stream(setting.draw, "table")
    return sample_with(denoiser, shape, setting.nfe, setting.sampler, setting.churn, setting.grid, seed, **options)


class PointScorer:
    """Unbiased D of n samples, in sets, against held-out points."""

    def __init__(self, job: Job) -> None:
        self.denoiser, config = load_denoiser(job.folder)
        self.toy, self.n, self.size = TOYS[config.data.name], job.n, min(job.n, SET)
        repeats = job.n // self.size
        self.held_out, self.others = (
            PointReference(self.toy, points=self.size, repeats=repeats, seed=seed) for seed in (0, 1)
        )

    def pair(self, setting: Setting) -> Pair:
        count = self.size * len(self.held_out.sets)
        x = _draw(self.denoiser, (count, 2), setting, batch_size=self.size).cpu()
        sets = x.split(self.size)
        return Pair(self.others.compare(sets).unbiased, self.held_out.compare(sets).unbiased)

    def floor(self) -> float:
        return point_floor(self.toy, self.held_out).unbiased


class ImageScorer:
    """Fréchet distance of n samples to held-out pictures; settings are chosen by fd to the training pictures."""

    def __init__(self, job: Job) -> None:
        from ..evaluate.classifier import load_classifier
        from ..evaluate.frechet import Reference
        from ..evaluate.inception import load_inception
        from ..hub import load_pipeline
        from ..train.image import held_out, read_images

        config = job.config
        assert isinstance(config, ImageRun)
        self.pipe, self.n = load_pipeline(job.folder, config.device), job.n
        self.train, test = read_images(config.data), held_out(config, "auto")
        fast = load_classifier(self.train, device=self.pipe.device)
        limit = job.n_reference
        self.choice = Reference(fast, self.train, None if limit is None else min(limit, len(self.train)))
        extractor = load_inception(None, self.pipe.device) if job.metric == "fid" else fast
        self.reference = Reference(extractor, test, None if limit is None else min(limit, len(test)))
        rows = torch.randperm(len(test), generator=torch.Generator().manual_seed(stream(0, "labels")))
        cond = (
            test.batch(rows[torch.arange(job.n) % len(rows)])[1] if self.pipe.classes or self.pipe.attributes else None
        )
        self.cond = None if cond is None else cond.to(self.pipe.device)

    @torch.no_grad()
    def pair(self, setting: Setting) -> Pair:
        from ..data.image import to_uint8

        x = _draw(self.pipe.denoiser, (self.n, *self.pipe.sample_shape), setting, cond=self.cond, batch_size=BATCH)
        pictures = torch.cat([to_uint8(self.pipe.decode(part)).cpu() for part in x.split(BATCH)])
        return Pair(self.choice.score(pictures).frechet, self.reference.score(pictures).frechet)

    def floor(self) -> float:
        """The score of as many training pictures as there are samples, or of all; of the samples' classes."""
        rows = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(stream(0, "floor")))
        if self.cond is None or self.cond.ndim > 1:
            return self.reference.score(self.train.batch(rows[: self.n])[0]).frechet
        pictures, labels = self.train.batch(rows[: SPARE * self.n])
        assert labels is not None
        kept = [(labels == label).nonzero()[:count, 0] for label, count in enumerate(self.cond.cpu().bincount())]
        return self.reference.score(pictures[torch.cat(kept)]).frechet
