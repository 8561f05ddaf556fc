from __future__ import annotations

import hashlib
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.datasets import load_digits
from torch import Tensor, nn

from distdiff._check import BadArgument
from distdiff.cache import cache_folder, cached, digest
from distdiff.evaluate import inception
from distdiff.evaluate.classifier import load_classifier, training_steps, turn
from distdiff.evaluate.frechet import Reference, floor, frechet_distance, kernel_distance
from distdiff.evaluate.inception import Extractor, extract, load_inception, resize_like_tensorflow1

NUMERALS = tuple("0123456789")


class Pictures:
    """A set of pictures in memory that counts how many were read."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        classes: tuple[str, ...] | None = None,
        attributes: tuple[str, ...] | None = None,
    ) -> None:
        self.images, self.labels, self.classes, self.attributes = images, labels, classes, attributes
        self.channels, self.size = images.shape[1], images.shape[-1]
        self.reads = 0

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        self.reads += len(rows)
        return self.images[rows], None if self.labels is None else self.labels[rows]

    def content(self) -> str:
        return digest({"images": self.images})


class Pixels(Extractor):
    """Features that are the pixels."""

    def __init__(self, num_features: int, name: str = "pixels", key: str = "0") -> None:
        super().__init__(name=name, key=key, num_features=num_features, resize="none", batch_size=64)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).float() / 128


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIFF_CACHE", str(tmp_path / "cache"))


def noise(n: int, seed: int = 0, high: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(high, (n, 1, 4, 4), dtype=torch.uint8, generator=generator)


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def exact_moments(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Points moved and stretched so that their own mean and covariance are exactly those given."""
    x = x - x.mean(0)
    x = x @ torch.linalg.inv(torch.linalg.cholesky(x.T.cov())).T
    return mean + x * deviation


@pytest.fixture(scope="module")
def digits() -> tuple[Pictures, Pictures]:
    data = load_digits()
    images = torch.tensor(data.images / 16 * 255).round().to(torch.uint8)[:, None]
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    train, test = order[:1437], order[1437:]
    return Pictures(images[train], labels[train], NUMERALS), Pictures(images[test], labels[test], NUMERALS)


# The cache


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DISTDIFF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "distdiff"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "distdiff"


def test_what_is_kept_is_not_made_again_unless_it_is_corrupt_or_not_wanted():
    calls = []

    def make() -> dict[str, Tensor]:
        calls.append(1)
        return {"x": torch.arange(6.0).reshape(2, 3).T}

    for _ in range(2):
        assert torch.equal(cached("kind", "key", make)["x"], torch.arange(6.0).reshape(2, 3).T)
    assert len(calls) == 1
    (kept,) = (cache_folder() / "kind").iterdir()
    assert kept.name == "key.safetensors"
    kept.write_bytes(kept.read_bytes()[:40])
    for _ in range(2):
        cached("kind", "key", make)
    assert len(calls) == 2
    cached("kind", "key", make, enabled=False)
    cached("kind", "other", make)
    assert len(calls) == 4


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DISTDIFF_CACHE", str(tmp_path / "file" / "below"))
    assert torch.equal(cached("kind", "key", lambda: {"x": torch.ones(2)})["x"], torch.ones(2))


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden"])
def test_a_key_cannot_leave_its_folder(key):
    with pytest.raises(BadArgument, match="key must be"):
        cached("kind", key, dict)


def test_digests_tell_names_types_shapes_and_values_apart():
    x = torch.arange(4.0)
    others = [{"y": x}, {"x": x.double()}, {"x": x.reshape(2, 2)}, {"x": x + 1}, {"x": x, "y": x}]
    assert len({digest({"x": x}), *map(digest, others)}) == 6
    assert digest({"x": x}) == digest({"x": x.clone()})


# Distances


def test_frechet_distance_has_the_closed_form_of_diagonal_gaussians():
    d = 6
    mean, a, b = normal(3, d, seed=1)
    a, b = a.abs() + 0.1, b.abs() + 0.1
    found = frechet_distance(
        exact_moments(normal(50, d, 2), torch.zeros(d), a), exact_moments(normal(80, d, 3), mean, b)
    )
    assert math.isclose(found, float(mean.square().sum() + (a - b).square().sum()), rel_tol=1e-9)


def test_frechet_distance_agrees_with_a_matrix_square_root():
    x = normal(300, 12, 0) @ normal(12, 12, 1)
    y = normal(200, 12, 2) @ normal(12, 12, 3) + 0.5
    a, b = x.T.cov(), y.T.cov()
    root = torch.as_tensor(sqrtm((a @ b).numpy()).real)
    expected = (x.mean(0) - y.mean(0)).square().sum() + (a + b - 2 * root).trace()
    assert math.isclose(frechet_distance(x, y), float(expected), rel_tol=1e-6)


def test_frechet_distance_works_with_fewer_pictures_than_features():
    x, y = normal(10, 40, 0), normal(12, 40, 1)
    assert abs(frechet_distance(x, x)) < 1e-4
    a, b = (v - v.mean(0) for v in (x, y))
    # tr (A'A B'B)^1/2 is the sum of the singular values of A B', a well-conditioned way to the same number
    cross = torch.linalg.svdvals(a @ b.T).sum() / math.sqrt(9 * 11)
    expected = (x.mean(0) - y.mean(0)).square().sum() + x.T.cov().trace() + y.T.cov().trace() - 2 * cross
    assert math.isclose(frechet_distance(x, y), float(expected), rel_tol=1e-5)


def test_kid_is_the_unbiased_squared_mmd():
    x, y = normal(3, 5, 0), normal(3, 5, 1)

    def k(a: Tensor, b: Tensor) -> Tensor:
        return ((a * b).sum() / 5 + 1) ** 3

    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    subsets = []  # with three pictures a side there is one subset of two: one of the nine possible
    for left in pairs:
        for right in pairs:
            (a, b), (c, d) = (x[i] for i in left), (y[i] for i in right)
            across = (k(a, c) + k(a, d) + k(b, c) + k(b, d)) / 4
            subsets.append(float(k(a, b) + k(c, d) - 2 * across))
    mean, deviation = kernel_distance(x, y)
    assert min(abs(mean - s) for s in subsets) < 1e-9
    assert deviation == 0
    x, y = normal(40, 5, 2), normal(30, 5, 3) + 0.5
    gram = [(u @ v.T / 5 + 1) ** 3 for u, v in ((x, x), (y, y), (x, y))]
    inner = [(g.sum() - g.trace()) / (len(g) * (len(g) - 1)) for g in gram[:2]]
    mean, deviation = kernel_distance(x, y)
    assert deviation > 0
    assert abs(mean - float(inner[0] + inner[1] - 2 * gram[2].mean())) < 4 * deviation / 10


def test_kid_repeats_itself_and_leaves_the_global_random_state_alone():
    state = torch.random.get_rng_state()
    first = kernel_distance(normal(30, 4, 0), normal(30, 4, 1))
    torch.rand(1)
    assert kernel_distance(normal(30, 4, 0), normal(30, 4, 1)) == first
    assert kernel_distance(normal(30, 4, 0), normal(30, 4, 1), seed=1) != first
    torch.random.set_rng_state(state)
    kernel_distance(normal(30, 4, 0), normal(30, 4, 1))
    assert torch.equal(torch.random.get_rng_state(), state)


# The reference


def test_a_reference_scores_its_own_pictures_zero_and_others_more():
    reference = Reference(Pixels(16), Pictures(noise(200)))
    own = reference.score(noise(200))
    assert (own.metric, own.n, own.n_reference) == ("fd", 200, 200)
    assert abs(own.frechet) < 1e-6
    assert own.kid < 0  # unbiased for independent sets: pictures shared by both pull it below 0
    dark = reference.score(noise(100, seed=1, high=128))
    assert dark.frechet > 3
    assert dark.kid > 3 * dark.kid_std
    assert dark == reference.score(extract(Pixels(16), noise(100, seed=1, high=128)).double())


def test_the_score_of_inception_features_alone_is_called_fid():
    assert Reference(Pixels(16, name="inception-2015"), Pictures(noise(20))).score(noise(20)).metric == "fid"
    assert Reference(Pixels(16, name="script"), Pictures(noise(20))).score(noise(20)).metric == "fd"


def test_a_reference_holds_the_features_of_rows_chosen_by_the_seed():
    pictures = Pictures(noise(50))
    whole = extract(Pixels(16), pictures.images)
    assert torch.equal(Reference(Pixels(16), pictures).features, whole)
    some, other = (Reference(Pixels(16), pictures, n=20, seed=seed) for seed in (0, 1))
    assert some.features.shape == (20, 16)
    assert not torch.equal(some.features, other.features)
    rest = Reference(Pixels(16), pictures, n=30, skip=20)
    joined = torch.cat([some.features, rest.features])
    assert torch.equal(joined.unique(dim=0), whole.unique(dim=0))


def test_features_are_computed_once_for_each_content():
    reads = []
    pictures, changed = Pictures(noise(50)), Pictures(noise(50))
    changed.images[0, 0, 0, 0] ^= 1
    for extractor, source, settings in [
        (Pixels(16), pictures, {}),
        (Pixels(16), pictures, {}),
        (Pixels(16), pictures, {"seed": 1}),  # all pictures whatever the seed
        (Pixels(16), changed, {}),
        (Pixels(16, key="1"), pictures, {}),
        (Pixels(16), pictures, {"n": 20}),
        (Pixels(16), pictures, {"n": 20, "seed": 1}),
        (Pixels(16), pictures, {"n": 20}),
        (Pixels(16), pictures, {"cache": False}),
    ]:
        before = source.reads
        Reference(extractor, source, **settings)
        reads.append(source.reads - before)
    assert reads == [50, 0, 0, 50, 50, 20, 20, 0, 50]


def test_the_floor_compares_disjoint_real_sets():
    pictures = Pictures(noise(400))
    reference = Reference(Pixels(16), pictures, n=200)
    found = floor(reference)
    assert (found.n, found.n_reference) == (200, 200)
    assert 0 < found.frechet < 0.5
    assert floor(reference, n=50).frechet > found.frechet  # fewer pictures, more bias
    assert floor(reference, Pictures(noise(30, seed=1))).n == 30
    with pytest.raises(BadArgument, match="held_out must be given"):
        floor(Reference(Pixels(16), pictures))


@pytest.mark.parametrize("n", [0, 1, 51, 2.5])
def test_impossible_references_are_refused(n):
    with pytest.raises(BadArgument, match="n must be"):
        Reference(Pixels(16), Pictures(noise(50)), n=n)


@pytest.mark.parametrize(
    "samples",
    [torch.zeros(5, 15), torch.zeros(1, 16), noise(1), torch.zeros(5, 1, 4, 4), torch.full((5, 16), math.nan)],
)
def test_samples_that_cannot_be_scored_are_refused(samples):
    with pytest.raises(BadArgument, match="samples must be"):
        Reference(Pixels(16), Pictures(noise(50))).score(samples)


# Extraction


def test_extraction_does_not_depend_on_batches_and_counts_pictures():
    done: list[int] = []
    whole = extract(Pixels(16), noise(10))
    assert torch.equal(extract(Pixels(16), noise(10).split(4), batch_size=3, callback=done.append), whole)
    assert done == [3, 4, 7, 8, 10]
    assert not whole.is_inference()
    assert extract(Pixels(16), []).shape == (0, 16)


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 4, 4), noise(2)[0], noise(2).expand(-1, 2, -1, -1)])
def test_only_pictures_of_bytes_are_extracted(images):
    with pytest.raises(BadArgument, match="images must be uint8"):
        extract(Pixels(16), images)


# Inception


def test_resizing_has_no_half_pixel_centres():
    x = torch.tensor([[[0.0, 3.0, 6.0]]])
    assert torch.allclose(resize_like_tensorflow1(x, 9)[0, 0], torch.tensor([0, 1, 2, 3, 4, 5, 6, 6, 6.0]))
    assert torch.equal(resize_like_tensorflow1(x, 1), torch.zeros(1, 1, 1))
    same = torch.rand(1, 299, 299)
    assert torch.equal(resize_like_tensorflow1(same), same)
    ramp = torch.arange(6.0)[:, None].expand(6, 4)
    assert torch.allclose(resize_like_tensorflow1(ramp, 12)[:, 0], (torch.arange(12.0) / 2).clamp_max(5))


def test_a_file_of_another_checksum_is_refused_before_it_is_loaded(monkeypatch, tmp_path):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(torch.jit, "load", never)
    wrong = tmp_path / "wrong.pt"
    wrong.write_bytes(b"something else")
    with pytest.raises(BadArgument, match=hashlib.sha256(b"something else").hexdigest()):
        load_inception(wrong)
    with pytest.raises(BadArgument, match="No such file"):
        load_inception(tmp_path / "absent.pt")


def test_a_trusted_script_gives_features_but_not_fid(tmp_path):
    path = tmp_path / "script.pt"
    torch.jit.trace(nn.AdaptiveAvgPool2d(1), torch.zeros(1, 3, 299, 299)).save(path)
    extractor = load_inception(path, trust=True)
    assert (extractor.name, extractor.num_features) == ("script", 3)
    grey = torch.full((2, 1, 8, 8), 192, dtype=torch.uint8)
    assert torch.allclose(extract(extractor, grey), torch.full((2, 3), 0.5))
    path.write_bytes(b"no script")
    with pytest.raises(BadArgument, match="source must be a TorchScript file"):
        load_inception(path, trust=True)


@pytest.mark.parametrize(("source", "says"), [(None, r"install distdiff\[fid\]"), ("torch-fidelity", "install torch")])
def test_a_missing_package_is_named(monkeypatch, source, says):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadArgument, match=says):
        load_inception(source)


def test_an_unknown_device_is_refused():
    with pytest.raises(BadArgument, match="device must be"):
        load_inception(device="abacus")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(inception.PACKAGE) is None, reason="the extra fid is not installed")
def test_inception_agrees_with_the_script_it_is_read_from():
    extractor = load_inception()
    assert (extractor.name, extractor.num_features) == ("inception-2015", 2048)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 1, 32, 32), dtype=torch.uint8, generator=generator)
    script = torch.jit.load(inception._packaged()).eval()
    with torch.no_grad():
        expected = script((resize_like_tensorflow1(images.float()) - 128).div(128).repeat(1, 3, 1, 1))
    assert torch.allclose(extract(extractor, images), expected, rtol=1e-3, atol=1e-4)


# The classifier


def test_turning_is_turning():
    x = noise(4)
    turned = turn(x, torch.arange(4))
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[2], x[2].flip(1, 2))
    assert torch.equal(turn(turned, (4 - torch.arange(4)) % 4), x)


def test_the_classifier_learns_digits_and_scores_models_of_them(digits):
    train, test = digits
    extractor = load_classifier(train, steps=200)
    with torch.no_grad():
        right = extractor.logits(test.images).argmax(1) == test.labels
    assert right.float().mean() > 0.95
    reference = Reference(extractor, train)
    assert torch.allclose(reference.features.mean(0), torch.zeros(64), atol=1e-4)
    assert math.isclose(float(reference.features.var(0).mean()), 1, rel_tol=1e-3)
    held_out = floor(reference, test)
    ones = reference.score(test.images[test.labels == 1])
    upside_down = reference.score(test.images.flip(2))
    assert held_out.frechet < 1
    assert 5 < upside_down.frechet < ones.frechet
    assert abs(held_out.kid) < 3 * held_out.kid_std


def test_the_classifier_is_a_function_of_seed_and_content_and_is_kept(digits):
    train, _ = digits
    state = torch.random.get_rng_state()
    done: list[int] = []
    first = load_classifier(train, steps=3, callback=done.append)
    assert done == [1, 2, 3]
    with torch.no_grad():
        assert load_classifier(train, steps=3, cache=False).key == first.key
    before = train.reads
    kept = load_classifier(train, steps=3, callback=done.append)
    assert train.reads == before
    assert len(done) == 3
    assert kept.key == first.key
    assert torch.equal(extract(kept, train.images[:20]), extract(first, train.images[:20]))
    changed = Pictures(train.images.flip(0), train.labels, NUMERALS)
    others = [
        load_classifier(train, steps=3, seed=1),
        load_classifier(train, steps=4),
        load_classifier(changed, steps=3),
    ]
    assert len({first.key, *(other.key for other in others)}) == 4
    assert torch.equal(torch.random.get_rng_state(), state)


def test_without_labels_the_task_is_to_tell_turns_apart(digits):
    train, test = digits
    unlabelled = Pictures(train.images)
    assert training_steps(unlabelled) < training_steps(train)
    extractor = load_classifier(unlabelled, steps=120)
    turns = torch.arange(len(test)) % 4
    with torch.no_grad():
        right = extractor.logits(turn(test.images, turns)).argmax(1) == turns
    assert right.float().mean() > 0.5  # by chance 0.25


def test_attributes_are_learned_each_by_itself(digits):
    train, test = digits

    def attributes(images: Tensor) -> Tensor:
        halves = images.float().flatten(1).split(32, dim=1)
        return torch.stack([halves[0].mean(1) > halves[1].mean(1), images.float().mean((1, 2, 3)) > 78], 1).float()

    source = Pictures(train.images, attributes(train.images), attributes=("top", "bright"))
    extractor = load_classifier(source, steps=150)
    with torch.no_grad():
        right = (extractor.logits(test.images) > 0) == attributes(test.images).bool()
    assert (right.float().mean(0) > 0.8).all()


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3), (64, 3), (128, 3)])
def test_the_classifier_adapts_to_the_size(size, channels):
    images = torch.randint(256, (4, channels, size, size), dtype=torch.uint8)
    extractor = load_classifier(Pictures(images), steps=1)
    assert extract(extractor, images).shape == (4, 64)
    assert (extractor.resize == "none") == (size <= 64)


def test_sets_that_cannot_be_learned_are_refused():
    for images, says in [(noise(4), "size"), (noise(1).repeat(1, 1, 2, 2), "2 pictures")]:
        with pytest.raises(BadArgument, match=says):
            load_classifier(Pictures(images), steps=1)
    with pytest.raises(BadArgument, match="steps must be"):
        load_classifier(Pictures(noise(4).repeat(1, 1, 2, 2)), steps=0)
