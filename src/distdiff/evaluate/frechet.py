r"""How far generated pictures are from real ones, by their features.

The Fréchet distance takes both sets of features for Gaussians,

.. math:: \|\mu_a - \mu_b\|^2 + \mathrm{tr}\, (\Sigma_a + \Sigma_b - 2 (\Sigma_a \Sigma_b)^{1/2}),

and the kernel distance KID is the squared MMD with :math:`k(x, y) = (x \cdot y / d + 1)^3`, averaged over random
subsets, unbiased. Both are torchmetrics'. With Inception's features the first is FID; with others it is called `fd`
here. It is biased: two sets of the same distribution do not score 0, the less so the smaller they are, and with fewer
pictures than features the covariances are singular (the distance is still what the formula says). `floor` measures
that with real pictures, to stand beside every score. Compare scores of equally many pictures only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._check import require, require_between, require_count, require_seed
from ..cache import cached, key_of
from ..random import stream
from .classifier import ImageSource
from .inception import Extractor, extract

__all__ = ["Reference", "Score", "floor"]

SUBSETS = 100
SUBSET_SIZE = 1000


@dataclass(frozen=True)
class Score:
    """`metric` is "fid" with Inception's features, else "fd"; `kid_std` is the spread of KID over its subsets."""

    metric: str
    frechet: float
    kid: float
    kid_std: float
    n: int
    n_reference: int


class Reference:
    """Features of n real pictures, chosen by the seed, or of all; computed once and kept by their content.

    `skip` leaves out the first pictures of the order that the seed gives: a reference that skips as many as another
    one has shares none with it. The callback is told how many pictures are done.
    """

    def __init__(
        self,
        extractor: Extractor,
        images: ImageSource,
        n: int | None = None,
        seed: int = 0,
        cache: bool = True,
        callback: Callable[[int], object] | None = None,
        *,
        skip: int = 0,
    ) -> None:
        require_seed(seed)
        require_count("skip", skip, least=0)
        left = len(images) - skip
        require(left >= 2, "images", f"{len(images)} pictures", f"at least {skip + 2} pictures")
        self.n = left if n is None else n
        require_count("n", self.n, least=2)
        require_between("n", self.n, 2, left)
        self.extractor, self.images, self.seed, self.skip = extractor, images, seed, skip
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(stream(seed, "reference")))
        rows = order[skip : skip + self.n].sort().values

        def compute() -> dict[str, Tensor]:
            batches = (images.batch(part)[0] for part in rows.split(extractor.batch_size))
            return {"features": extract(extractor, batches, callback=callback)}

        choice = (seed, skip) if self.n < len(images) else ()
        key = key_of("features", extractor.name, extractor.key, images.content(), self.n, *choice)
        self.features = cached("features", key, compute, enabled=cache)["features"]

    def score(self, samples: Tensor, callback: Callable[[int], object] | None = None) -> Score:
        """Score pictures, uint8 (N, c, h, w), or their features, float (N, d)."""
        features = samples.cpu()
        if not samples.is_floating_point():
            features = extract(self.extractor, samples, callback=callback)
        d = self.extractor.num_features
        fits = features.ndim == 2 and features.shape[1] == d and len(features) >= 2
        require(fits, "samples", tuple(samples.shape), f"2 or more uint8 pictures (N, c, h, w) or features (N, {d})")
        require(bool(features.isfinite().all()), "samples", "features that are not", "finite")
        kid, spread = kernel_distance(self.features, features, seed=self.seed)
        return Score(
            metric="fid" if self.extractor.name == "inception-2015" else "fd",
            frechet=frechet_distance(self.features, features),
            kid=kid,
            kid_std=spread,
            n=len(features),
            n_reference=self.n,
        )


def floor(
    reference: Reference,
    held_out: ImageSource | None = None,
    n: int | None = None,
    *,
    cache: bool = True,
    callback: Callable[[int], object] | None = None,
) -> Score:
    """The score of real pictures that are not in the reference: what a perfect model would get with as many.

    They are n pictures of `held_out` or, if that is not given, of those that the reference left out of its own set.
    Without n, as many as the reference has, or all that there are.
    """
    images, skip = (reference.images, reference.skip + reference.n) if held_out is None else (held_out, 0)
    n = min(reference.n, len(images) - skip) if n is None else n
    require(n >= 2, "held_out", held_out, "given where the reference has taken every picture of its set")
    real = Reference(reference.extractor, images, n, reference.seed, cache, callback, skip=skip)
    return reference.score(real.features)


class _Given(nn.Module):
    """Stands where torchmetrics expects a network: features come in, the same go out."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """The squared Fréchet distance of the Gaussians of two sets of features, (n, d) each, in double precision."""
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(feature=_Given(real.shape[1]))
    for features, is_real in ((real, True), (generated, False)):
        for part in features.split(4096):
            metric.update(part.double(), real=is_real)
    return float(metric.compute())


def kernel_distance(real: Tensor, generated: Tensor, seed: int = 0) -> tuple[float, float]:
    """KID of two sets of features, (n, d) each, and its standard deviation over the subsets.

    A subset is 1000 of either set, or half of the smaller one: of fewer, as subsets of the whole would not differ. The
    mean is unbiased for every size. Sets of fewer than four have one subset, and no deviation: 0.
    """
    from torchmetrics.image.kid import KernelInceptionDistance

    least = min(len(real), len(generated))
    size = min(SUBSET_SIZE, max(2, least // 2))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*will save all extracted features in buffer")
        metric = KernelInceptionDistance(
            feature=_Given(real.shape[1]), subsets=SUBSETS if least > 3 else 1, subset_size=size
        )
    metric.update(real, real=True)
    metric.update(generated.to(real.dtype), real=False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream(seed, "kid"))
        mean, deviation = metric.compute()
    return float(mean), float(deviation)
