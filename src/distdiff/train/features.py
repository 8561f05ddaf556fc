"""Features for the score of a run's pictures: learned from them before the first step, or a perceptual network's.

What is learned is the task of `distdiff.evaluate.classifier`, whose own network, the features of fd, has another
architecture and other weights: what a run is scored by is not what it was trained on. The weights belong to the content
of the set and the run's seed; they are kept in the cache, and in each checkpoint. The time that learning them took is
kept too, so that it counts for every run that uses them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from .._check import require, require_between
from ..cache import cached, key_of
from ..data.image import ImageSet, to_float
from ..evaluate.classifier import fit, task_of, training_steps
from ..nn.features import Features, PerceptualFeatures, ScaledFeatures
from ..nn.perceptual import Perceptual
from .task import seeded

__all__ = ["build_features", "learn_features"]

VERSION = 1  # of network and training: another one must not find the weights that this one kept
PICTURES = 1000  # that the spread is measured on


def build_features(images: ImageSet, seed: int, perceptual_weights: str | None = None) -> ScaledFeatures:
    """The network for a set of pictures, frozen: one that is not trained yet, or the perceptual one of a file."""
    if perceptual_weights is not None:
        return PerceptualFeatures(Perceptual.load(perceptual_weights)).eval().requires_grad_(False)
    require_between("data.size", images.size, 8, 1024)
    require(len(images) >= 2, "data", f"{len(images)} pictures", "at least 2 to learn features from")
    with seeded(seed, "feature weights"):
        return Features(images.size, images.channels, task_of(images)[1]).eval().requires_grad_(False)


def learn_features(
    network: ScaledFeatures, images: ImageSet, seed: int, callback: Callable[[int], object] | None = None
) -> float:
    """Ready a network of `build_features` for a set: train it, or read what was learned before; the seconds it took."""
    device, steps = network.spread.device, training_steps(images)

    def measure() -> None:
        rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:PICTURES]
        network.measure(to_float(images.batch(rows.tolist())[0].to(device)))

    def learn() -> dict[str, Tensor]:
        assert isinstance(network, Features)
        start, logits = time.perf_counter(), network.logits
        network.requires_grad_(True)
        fit(lambda u: logits(to_float(u)), network.parameters(), images, device, seed, steps, callback)
        network.requires_grad_(False)
        measure()
        return network.state_dict() | {"seconds": torch.tensor(time.perf_counter() - start, dtype=torch.float64)}

    if not isinstance(network, Features):
        measure()
        return 0.0
    content = (task_of(images)[0], images.content(), images.size, images.channels)
    kept = cached("loss-features", key_of("loss features", VERSION, *content, seed, steps), learn)
    seconds = float(kept.pop("seconds"))
    network.load_state_dict(kept)
    return seconds
