"""Scores of an image model against the number of steps, the churn and the sampler.

Samples carry labels as frequent as in the reference, and sample i uses seed + i whatever the settings, so that rows of
a table differ by their settings alone. FID is slow on a CPU: with several churns (or samplers) it is computed only for
the one that a cheaper metric finds best at each number of steps: the fast `fd`, which also keeps the choice apart from
the score, or the KID of a few samples, which looks at what FID looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor

from .._check import require, require_choice
from ..baseline.samplers import require_sampler, sample_with
from ..cache import digest
from ..data.image import ImageSet, to_uint8
from ..random import stream
from .classifier import load_classifier, training_steps
from .frechet import Reference, Score, floor
from .inception import Extractor, load_inception
from .kept import KeptScores
from .setting import Setting, check, plan

__all__ = ["NAMES", "Entry", "Evaluation", "best_entries", "evaluate"]

NAMES = {"fid": "FID", "kid": "KID", "fd": "fd"}


@dataclass(frozen=True)
class Entry(Setting):
    """One row of a table."""

    score: Score


@dataclass
class Evaluation:
    metric: str
    entries: list[Entry]
    """Scores of the metric; with FID and several churns only the chosen ones."""
    screened: list[Entry]
    """Scores of the cheaper metric by which churns were chosen, where they were."""
    floor: Score
    """The score of held-out real pictures: what a perfect model would get."""
    settings: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        def rows(entries: list[Entry]) -> list[dict[str, Any]]:
            return [
                {"steps": e.steps, "sampler": e.sampler, "churn": e.churn}
                | {e.score.metric if key == "frechet" else key: value for key, value in asdict(e.score).items()}
                for e in entries
            ]

        return {
            "settings": self.settings,
            "floor": asdict(self.floor),
            "scores": rows(self.entries),
            "screened": rows(self.screened),
        }


def best_entries(entries: Sequence[Entry], by: Literal["frechet", "kid"] = "frechet") -> list[Entry]:
    """The entry with the least distance at each number of steps."""
    steps = sorted({entry.steps for entry in entries})
    return [min((e for e in entries if e.steps == n), key=lambda e: getattr(e.score, by)) for n in steps]


class _Sampler:
    """Draws the pictures of a setting."""

    def __init__(self, pipe: Any, reference: ImageSet, n: int, seed: int, batch_size: int, grid: str) -> None:
        self.pipe, self.seed, self.size, self.grid = pipe, seed, batch_size, grid
        generator = torch.Generator().manual_seed(stream(seed, "labels"))
        rows = torch.randperm(len(reference), generator=generator)[:n]
        rows = rows[torch.arange(n) % len(rows)]
        cond = reference.batch(rows)[1] if pipe.classes or pipe.attributes else None
        require(
            cond is not None or not (pipe.classes or pipe.attributes), "reference", reference.name, "a set with labels"
        )
        self.cond = None if cond is None else cond.to(pipe.device)

    def __call__(self, setting: Setting, n: int, advance: Callable[[int], object]) -> Tensor:
        denoiser, made = self.pipe.denoiser, []
        for first in range(0, n, self.size):
            last = min(first + self.size, n)
            shape = (last - first, *self.pipe.sample_shape)
            cond = None if self.cond is None else self.cond[first:last]
            seed = self.seed + first
            x = sample_with(denoiser, shape, setting.steps, setting.sampler, setting.churn, self.grid, seed, cond=cond)
            with torch.no_grad():
                made.append(to_uint8(self.pipe.decode(x)).cpu())
            advance(last)
        return torch.cat(made)


def evaluate(
    pipe: Any,
    train: ImageSet,
    reference: ImageSet,
    *,
    steps: Sequence[int],
    churns: Sequence[float] = (1.0,),
    samplers: Sequence[str] = ("distributional",),
    metric: Literal["fid", "fd"] = "fd",
    n: int = 2048,
    n_reference: int | None = None,
    seed: int = 0,
    grid: str = "uniform",
    batch_size: int = 256,
    screen: bool = True,
    screen_by: Literal["fd", "kid"] = "fd",
    n_screen: int = 512,
    inception: str | None = None,
    kept: KeptScores | None = None,
    report: Callable[[str, int], Callable[[int], object]] = lambda label, total: lambda done: None,
) -> Evaluation:
    """Score a pipeline.

    Args:
        train: the set that the features of the fast metric are learned on.
        reference: the pictures compared with, held out if there are such; `n_reference` of them, all by default.
        screen: with FID and several settings at a number of steps, choose one by a cheaper metric first, `screen_by`,
            on `n_screen` samples.
        inception: where FID's network is found; see `load_inception`.
        kept: where scores are written down as they come, and looked up first.
        report: called with a label and a total, gives a function that is told the progress.
    """
    check(steps, churns, samplers, n, batch_size)
    require_choice("metric", metric, ("fid", "fd"))
    require_choice("screen_by", screen_by, ("fd", "kid"))
    for name in samplers:
        require_sampler(name, pipe.denoiser)
    available = len(reference)
    alone = reference.content() == train.content()  # no held-out pictures: half of the set serves for the floor
    n_reference = min(available // 2 if alone else available, n_reference or available)
    held = None if alone or available - n_reference >= n else train
    settings = list(plan(steps, churns, samplers))
    several = len(settings) > len(set(steps))
    device = pipe.device
    extractor: Extractor | None = load_inception(inception, device) if metric == "fid" else None
    draw = _Sampler(pipe, reference, n, seed, batch_size, grid)

    def fast_reference() -> Reference:
        learned = load_classifier(train, device=device, callback=report("learning features", training_steps(train)))
        return Reference(learned, reference, n_reference, seed)

    weights = "" if kept is None else digest(pipe.unet.state_dict())

    def score(ref: Reference, setting: Setting, number: int) -> Entry:
        label = f"{setting.steps} steps, {setting.name}"

        def compute() -> Score:
            images = draw(setting, number, report(f"sampling, {label}", number))
            return ref.score(images, callback=report(f"scoring, {label}", number))

        how = asdict(setting) | {"n": number, "seed": seed, "grid": grid, "weights": weights}
        how |= {"reference": reference.content(), "n_reference": ref.n, "features": ref.extractor.key}
        how |= {"version": version("distdiff")}
        found = compute() if kept is None else kept.get(compute, **how)
        return Entry(setting.steps, setting.sampler, setting.churn, found)

    if extractor is None:
        main = fast_reference()
    else:
        main = Reference(extractor, reference, n_reference, seed, callback=report("real pictures", n_reference))
    screened: list[Entry] = []
    if metric == "fid" and several and screen:
        by_kid = screen_by == "kid"
        quick = main if by_kid else fast_reference()
        screened = [score(quick, setting, min(n, n_screen)) for setting in settings]
        settings = list[Setting](best_entries(screened, "kid" if by_kid else "frechet"))
    entries = [score(main, setting, n) for setting in settings]
    ground = floor(main, held, min(n, len(held) if held else available - main.n), callback=report("floor", n))
    chosen_by = f"{NAMES[screen_by]} of {min(n, n_screen)} samples"
    how = {
        "metric": metric,
        "features": main.extractor.name,
        "resize": main.extractor.resize,
        "reference": f"{reference.name}, {reference.split} split",
        "n": n,
        "n_reference": main.n,
        "seed": seed,
        "grid": grid,
        "size": reference.size,
        "churn_chosen_by": chosen_by if screened else "the score" if several else "given",
        "floor_from": f"{(held or reference).split} split",
    }
    return Evaluation(metric, entries, screened, ground, how)
