"""What several targets for each noisy picture bring: on digits, in the noise of gradients and in quality.

    python benchmarks/targets.py --steps 3000 --seeds 0

First the variance of the gradient of the digits recipe at `small`, from one batch to the next, with one target and
with several, as a ratio for each of some times t. Then fd to held-out digits after equally long trainings, the mean
over sets of 720 samples of the same seeds, with one target, with several, and of the classical model as it is and with
posterior means as its targets. About four minutes a model on one core.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from distdiff.baseline import sample_with
from distdiff.data.image import load_images, to_float, to_uint8
from distdiff.evaluate.classifier import load_classifier
from distdiff.evaluate.frechet import Reference
from distdiff.loss import RegressionLoss
from distdiff.posterior import EmpiricalPosterior
from distdiff.recipe import RECIPES, ImageRun
from distdiff.schedule import expand
from distdiff.train import build_task, train

SET, BATCHES = 720, 48
SETTINGS = {1: ("distributional", 1.0), 2: ("distributional", 0.0), 4: ("distributional", 0.0), 8: ("hybrid", 0.0)}
"""Samplers of the distributional models, those that tables choose."""


@dataclass(frozen=True, kw_only=True)
class PosteriorMeans(RegressionLoss):
    """The classical loss, with E[x_0 | x_t] over the training data in place of the picture that was noised."""

    known: EmpiricalPosterior

    def values(self, denoiser: Any, batch: Any, generator: torch.Generator | None) -> torch.Tensor:
        x0 = self.known.mean(batch.xt, batch.t, batch.cond)
        alpha, sigma = (expand(value.float(), x0) for value in denoiser.schedule(batch.t))
        return super().values(denoiser, batch._replace(x0=x0, z=(batch.xt - alpha * x0) / sigma), generator)


def gradient_variance(config: ImageRun, t: float) -> float:
    """Of the whole gradient at the first weights, summed over them, from one batch at time t to the next."""
    task = build_task(config)
    rows = torch.randperm(task.length, generator=torch.Generator().manual_seed(1))
    total = square = torch.zeros(())
    for index in range(BATCHES):
        pictures, labels = task.images.batch(rows[torch.arange(32 * index, 32 * (index + 1)) % task.length])
        loss = task.loss(
            task.model, to_float(pictures), labels, torch.Generator().manual_seed(index), torch.full((32,), t)
        )
        task.model.zero_grad()
        loss.mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None])
        total, square = total + gradient / BATCHES, square + gradient.square().sum() / BATCHES
    return float(square - total.square().sum())


def trained(config: ImageRun, means: bool = False) -> Any:
    """The pipeline of a trained model; `means`: a classical one on posterior means."""
    task = build_task(config)
    if means:
        pictures, labels = task.images.batch(range(task.length))
        known = EmpiricalPosterior(to_float(pictures), labels)
        task.loss = PosteriorMeans(weighting=task.loss.weighting, known=known)
    *_, last = train(config, task=task)
    return task.built.pipeline(last.denoiser, task.images)


def scores(pipe: Any, reference: Reference, cond: torch.Tensor, sets: int) -> dict[int, list[float]]:
    """fd of each set of samples at each number of steps."""
    found: dict[int, list[float]] = {}
    for steps, (sampler, churn) in SETTINGS.items():
        how: Sequence[Any] = (sampler, churn) if pipe.denoiser.noise_shape is not None else ("dpm++", None)
        found[steps] = []
        for index in range(sets):
            seed = 10**6 + SET * index
            x = sample_with(pipe.denoiser, (SET, 1, 8, 8), steps, *how, seed=seed, cond=cond, batch_size=240)
            found[steps].append(reference.score(to_uint8(x)).frechet)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--targets", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--sets", type=int, default=8)
    args = parser.parse_args()
    base, twin = (replace(RECIPES[name]["small"], tracker="none") for name in ("digits", "digits-diffusion"))
    configs = {f"{k} target(s)": replace(base, loss=replace(base.loss, targets=k)) for k in args.targets}
    for t in (0.1, 0.3, 0.5, 0.7, 0.9):
        one, *more = (gradient_variance(config, t) for config in configs.values())
        print(f"t = {t}: variance of the gradient {', '.join(f'{v / one:.2f}' for v in more)} of that with one target")
    seen, test = load_images("digits"), load_images("digits", split="test")
    reference = Reference(load_classifier(seen), test)
    cond = test.batch(torch.arange(SET) % len(test))[1]
    for seed in args.seeds:
        models = {name: (config, False) for name, config in configs.items()}
        for name, (config, means) in (models | {"classical": (twin, False), "on means": (twin, True)}).items():
            config = replace(config, steps=args.steps, save_every=args.steps, seed=seed)  # noqa: PLW2901
            found = scores(trained(config, means), reference, cond, args.sets)
            shown = ", ".join(
                f"{steps}: {statistics.fmean(v):.3f} ± {statistics.stdev(v) / len(v) ** 0.5:.3f}"
                for steps, v in found.items()
            )
            print(f"{name}, seed {seed}: fd at {shown}", flush=True)


if __name__ == "__main__":
    main()
