r"""Features that are learned from the data set itself, for a score that costs seconds.

Inception takes a large part of a second a picture and has never seen digits of eight by eight pixels. A small network
that learns for a minute to tell the classes of the set apart knows what matters in it, and reads thousands of pictures
a second. The Fréchet distance of its features is called `fd`: it compares models of one data set and no more.

The task is the labels where there are classes, the attributes where there are some, and else to tell by how many
quarter turns a picture was turned, which asks for no labels. A stem brings the picture to 8 to 16 pixels, three stages
of convolution, group normalisation and ReLU follow, then the mean over pixels and a linear layer that the classifier
reads. That last layer knows the class and little else: a blurred picture of the right class looks perfect there, and so
does the same picture a thousand times. The score therefore takes the activations :math:`a_k` of all three stages, on
grids of at most 4 by 4 cells and each stage divided by its spread, and mixes them to 64 features
:math:`h = \sum_k R_k a_k / s_k` with fixed random orthonormal rows: what is wrong in a texture, a shape or its
variety changes their mean or covariance. The features are

.. math:: (h - \bar h) / s, \qquad s^2 = \tfrac{1}{64} \textstyle\sum_k \mathrm{Var}(h_k),

with mean and variance over the set, so that real pictures have a variance of 1 a feature whatever the seed, and an fd
of 64 is what a single point in their middle would get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._check import require, require_between, require_count, require_seed
from ..cache import cached, digest, key_of
from ..random import stream
from .inception import Extractor, extract, require_device, require_pictures

__all__ = ["Classifier", "ImageSource", "fit", "load_classifier", "task_of", "training_steps"]

BATCH = 32
RATE = 3e-3
WIDTHS = (32, 64, 128)
FEATURES = 64
GRID = 4
VERSION = 2  # of network and training: another one must not find the weights that this one kept


class ImageSource(Protocol):
    """A set of square pictures, with labels or without."""

    @property
    def size(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def classes(self) -> tuple[str, ...] | None: ...

    @property
    def attributes(self) -> tuple[str, ...] | None: ...

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pictures, uint8 (n, channels, size, size), and their labels: classes (n,) or attributes (n, k) of 0 and 1."""

    def content(self) -> str:
        """A name for what the set holds: another content, another name."""


class Classifier(Extractor):
    """The network, and the mean and scale of its features over the set it was trained on."""

    mix: Tensor
    spread: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, size: int, channels: int, outputs: int) -> None:
        shrink = max(1, size // 64)
        resize = "none" if shrink == 1 else f"mean of blocks of {shrink} by {shrink} pixels"
        super().__init__(name="classifier", key="untrained", num_features=FEATURES, resize=resize, batch_size=256)
        self.shrink = shrink
        stride = max(1, size // shrink // 14)
        stem = nn.Conv2d(channels, WIDTHS[0], 2 * stride + 1, stride, padding=stride)
        stages: list[nn.Module] = [stem, nn.GroupNorm(8, WIDTHS[0]), nn.ReLU()]
        for inputs, width in zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False):
            stages += [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.MaxPool2d(2)]
        self.stages = nn.Sequential(*stages[:-1])
        self.features = nn.Linear(WIDTHS[-1], FEATURES)
        self.head = nn.Linear(FEATURES, outputs)
        side, sizes = -(-size // shrink // stride), []
        for width in WIDTHS:
            sizes.append(width * min(side, GRID) ** 2)
            side //= 2
        rows = torch.randn(sum(sizes), FEATURES, generator=torch.Generator().manual_seed(0))
        self.sizes = sizes
        self.register_buffer("mix", torch.linalg.qr(rows)[0].T.contiguous(), persistent=False)
        self.register_buffer("spread", torch.ones(len(WIDTHS)))
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("scale", torch.ones(()))

    def activations(self, images: Tensor) -> list[Tensor]:
        """What each stage sees: (n, width, h, w)."""
        require_pictures(images)
        x = images.float() / 127.5 - 1
        x = x if self.shrink == 1 else F.avg_pool2d(x, self.shrink)
        found = []
        for layer in self.stages:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                found.append(x)
        return found[1:]  # the stem's is the first

    def cells(self, images: Tensor) -> list[Tensor]:
        """Activations of each stage on its grid of cells, (n, cells)."""
        return [F.adaptive_avg_pool2d(a, min(a.shape[-1], GRID)).flatten(1) for a in self.activations(images)]

    def forward(self, images: Tensor) -> Tensor:
        parts = zip(self.cells(images), self.mix.split(self.sizes, dim=1), self.spread, strict=True)
        mixed = torch.stack([F.linear(a, rows) / spread for a, rows, spread in parts]).sum(0)
        return (mixed - self.mean) / self.scale

    def logits(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.features(self.activations(images)[-1].mean((2, 3)))))


def training_steps(images: ImageSource) -> int:
    """How many steps of 32 pictures the training takes by default: so many times through the set, within limits.

    That is about 10 s on one core for 1,437 digits of 8 by 8 and about 70 s for 60,000 pictures of 28 by 28. The set
    is seen 22 times, and 11 times without labels: upright pictures are one class of four then, and a network that has
    learned them by heart gives them all the same features, but not held-out ones.
    """
    passes = 11 if task_of(images)[0] == "turns" else 22
    return min(max(300, passes * len(images) // BATCH), 3500)


def load_classifier(
    images: ImageSource,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    steps: int | None = None,
    cache: bool = True,
    callback: Callable[[int], object] | None = None,
) -> Classifier:
    """The features of a set of pictures, learned or, if this was done before, read from the cache.

    The callback is told after each step how many are done. The global random state is left alone.
    """
    place = require_device(device)
    require_seed(seed)
    require_between("images.size", images.size, 8, 1024)
    require(images.channels in (1, 3), "images.channels", images.channels, "1 or 3")
    require(len(images) >= 2, "images", f"{len(images)} pictures", "at least 2 pictures")
    steps = training_steps(images) if steps is None else steps
    require_count("steps", steps)
    task, outputs = task_of(images)
    key = key_of("classifier", VERSION, task, images.content(), images.size, images.channels, seed, steps)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream(seed, "classifier weights"))
        network = Classifier(images.size, images.channels, outputs)
    network.to(place).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def train() -> dict[str, Tensor]:
        with torch.enable_grad():  # whoever scores may have switched gradients off
            fit(network.logits, network.parameters(), images, network.device, seed, steps, callback)
        _normalise(network, images, seed)
        return network.state_dict()

    network.load_state_dict(cached("classifier", key, train, enabled=cache))
    network.key = digest(network.state_dict())
    return network.eval().requires_grad_(False)


def task_of(images: ImageSource) -> tuple[str, int]:
    """What a network can learn of a set, and how many outputs that takes."""
    if images.classes is not None and len(images.classes) > 1:
        return "classes", len(images.classes)
    if images.attributes:
        return "attributes", len(images.attributes)
    return "turns", 4


def fit(
    logits: Callable[[Tensor], Tensor],
    parameters: Iterable[nn.Parameter],
    images: ImageSource,
    device: torch.device,
    seed: int,
    steps: int,
    callback: Callable[[int], object] | None,
) -> None:
    """Teach a classifier of pictures, uint8, the task of a set."""
    task = task_of(images)[0]
    generator = torch.Generator().manual_seed(stream(seed, "classifier batches"))
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)
    for step in range(steps):
        pictures, labels = images.batch(torch.randint(len(images), (BATCH,), generator=generator))
        if task == "turns":
            labels = torch.randint(4, (len(pictures),), generator=generator)
            pictures = turn(pictures, labels)
        assert labels is not None
        found, labels = logits(pictures.to(device)), labels.to(device)
        if task == "attributes":
            loss = F.binary_cross_entropy_with_logits(found, labels.float())
        else:
            loss = F.cross_entropy(found, labels.long())
        optimizer.param_groups[0]["lr"] = RATE * _rise_and_fall((step + 1) / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if callback is not None:
            callback(step + 1)


def _rise_and_fall(progress: float) -> float:
    """The learning rate in parts of its peak: linearly up over a fifth of the training, then down a cosine."""
    return progress / 0.2 if progress < 0.2 else (1 + math.cos(math.pi * (progress - 0.2) / 0.8)) / 2


def turn(pictures: Tensor, turns: Tensor) -> Tensor:
    """Picture i (n, c, size, size) turned by turns[i] quarters of a circle."""
    turned = torch.empty_like(pictures)
    for quarters in range(4):
        chosen = turns == quarters
        turned[chosen] = pictures[chosen].rot90(quarters, (2, 3))
    return turned


def _normalise(network: Classifier, images: ImageSource, seed: int) -> None:
    """Set the spread of each stage, mean and scale from the set, or from 10,000 pictures of it."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(stream(seed, "classifier scale")))
    rows = order[:10_000].split(network.batch_size)
    with torch.no_grad():
        first = network.cells(images.batch(order[:1000])[0].to(network.device))
        network.spread.copy_(torch.stack([a.var(0).sum().sqrt().clamp_min(1e-6) for a in first]))
    found = extract(network, (images.batch(part)[0] for part in rows)).double()
    network.mean.copy_(found.mean(0))
    network.scale.copy_(found.var(0).mean().sqrt().clamp_min(1e-6))
