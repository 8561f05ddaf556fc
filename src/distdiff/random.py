r"""Noise that belongs to a sample, not to a batch.

A denoiser takes its randomness from a `torch.Generator`. When sampling, sample i must depend on seed i alone, however
the batch is split, so the sampler passes a `SampleGenerator`: a `torch.Generator` with one seed a row. `randn` and
`rand` here know it, and then compute row i as a function of (seed i, number of earlier calls, position): SplitMix64
(Steele, Lea and Flood, 2014), whose n-th output is a hash of a start and n, started at a hash of seed and call. Half
a word makes a normal number, by the inverse of its distribution function. The same seed therefore gives the same noise
on every device, up to rounding, in a few operations a number.

To `torch.randn` and its kin a `SampleGenerator` is an ordinary generator of one stream, unless they are called within
`distdiff.row_wise.RowWise`, into which the sampler wraps denoisers it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._check import require, require_seed

__all__ = ["BlockGenerator", "SampleGenerator", "rand", "randn", "stream"]

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's constants. Products wrap modulo 2**64; int64, which is all that torch has, holds them less 2**64."""


def stream(seed: int, purpose: str) -> int:
    """A seed for one purpose of a run (weights, data, ...) that no other purpose shares.

    torch's CPU generator keeps 32 bits of a seed, so that offsets beyond them would collide.
    """
    require_seed(seed)
    return int(np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1)[0])


class SampleGenerator(torch.Generator):
    """One independent, splittable stream of noise for each seed."""

    def __new__(cls, seeds: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> SampleGenerator:
        return super().__new__(cls, device=device)  # type: ignore[call-arg]

    def __init__(self, seeds: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> None:
        for value in _extremes(seeds):
            require_seed(value)
        self.seeds = torch.as_tensor(seeds, dtype=torch.int64, device=device)
        self.calls = 0
        self._roots = splitmix(self.seeds)
        self._room = np.empty((2, 0), np.uint64)
        self._ready, self._ready_from = torch.empty(0, len(self.seeds), 0), 0
        self.manual_seed(int(self.seeds[0]) if len(seeds) else 0)

    def words(self, count: int) -> Tensor:
        """`count` fresh words of 64 bits a row, as int64 of shape (rows, count)."""
        self.calls += 1
        return self._words(1, count, self.calls - 1)[0].clone()

    def _words(self, calls: int, count: int, first: int) -> Tensor:
        """The words of some calls, (calls, rows, count), in memory that the next call writes over.

        Fresh memory for each call would cost as much as the hash: the system hands it out page by page.
        """
        device = self.seeds.device
        start = splitmix(self._roots + torch.arange(first, first + calls, device=device)[:, None])
        if not _few_threads(device):
            return _splitmix_torch(start[..., None] + torch.arange(1, count + 1, device=device).mul_(_GOLDEN - 2**64))
        size = start.numel() * count
        if self._room.shape[1] < size:
            self._room = np.empty((2, size), np.uint64)
        words, spare = (part[:size].reshape(*start.shape, count) for part in self._room)
        np.add(start.numpy().view(np.uint64)[..., None], _multiples(count), out=words)
        return torch.from_numpy(_mix(words, spare).view(np.int64))

    def normals(self, count: int, dtype: torch.dtype) -> Tensor:
        """`count` fresh normal numbers a row, (rows, count); float32 or float64."""
        index = self.calls - self._ready_from
        self.calls += 1
        held, _, width = self._ready.shape
        if 0 <= index < held and count <= width and dtype == self._ready.dtype:
            return self._ready[index, :, :count]
        return self._normals(1, count, dtype, self.calls - 1)[0]

    def prepare(self, calls: int, count: int, dtype: torch.dtype) -> None:
        """Make the normal numbers of the next calls, up to `count` a row in each, in one go.

        They are the same numbers; for small events one go takes a fraction of the time.
        """
        self._ready, self._ready_from = self._normals(calls, count, dtype, self.calls), self.calls

    def _normals(self, calls: int, count: int, dtype: torch.dtype, first: int) -> Tensor:
        half = -(-count // 2)
        below_one = 1 - max(torch.finfo(dtype).eps / 2, 2**-32)
        words = self._words(calls, half, first)
        halves = words.view(torch.int32) if words.numel() else words.to(torch.int32)
        return halves[..., :count].to(dtype).mul_(2**-31 * below_one).erfinv_().mul_(math.sqrt(2))


class BlockGenerator(torch.Generator):
    """Noise of a training step that does not depend on how the step's batch is split.

    The rows of the whole batch are cut into blocks with a stream each; this generator gives the rows `first` to
    `first + count`. Processes and micro-batches that share a batch thus draw what one process would have drawn.
    """

    size = 32

    def __new__(
        cls, seed: int, step: int, first: int, count: int, device: torch.device | str = "cpu"
    ) -> BlockGenerator:
        return super().__new__(cls, device=device)  # type: ignore[call-arg]

    def __init__(self, seed: int, step: int, first: int, count: int, device: torch.device | str = "cpu") -> None:
        self.first, self.count = first, count
        self.blocks = {
            block: torch.Generator(device).manual_seed(
                int(np.random.SeedSequence([seed, step, block]).generate_state(1, np.uint64)[0] >> 1)
            )
            for block in range(first // self.size, -(-(first + count) // self.size))
        }

    def fill(self, draw: Callable[..., Tensor], shape: Sequence[int], **options: Any) -> Tensor:
        """Numbers of a shape whose first axis is the rows."""
        require(shape[0] == self.count, "shape[0]", shape[0], f"{self.count}, one for each row of the batch")
        start = self.first // self.size * self.size
        parts = [draw((self.size, *shape[1:]), generator=g, **options) for g in self.blocks.values()]
        return torch.cat(parts)[self.first - start : self.first - start + self.count]


def _extremes(seeds: Sequence[int] | Tensor) -> Sequence[int]:
    """Seeds among which any bad one is; all of them unless they are ordered or a tensor."""
    if isinstance(seeds, Tensor):
        return [int(seeds.min()), int(seeds.max())] if len(seeds) else []
    return [seeds[0], seeds[-1]] if isinstance(seeds, range) and len(seeds) else seeds


def splitmix(state: Tensor) -> Tensor:
    """SplitMix64's output for a state of 64 bits, both as int64.

    On a CPU with few threads by numpy, which has unsigned numbers and is faster there.
    """
    return _splitmix_numpy(state) if _few_threads(state.device) else _splitmix_torch(state)


def _few_threads(device: torch.device) -> bool:
    return device.type == "cpu" and torch.get_num_threads() < 4


def _splitmix_numpy(state: Tensor) -> Tensor:
    z = state.numpy().astype(np.uint64)
    return torch.from_numpy(_mix(z, np.empty_like(z)).view(np.int64))


def _mix(z: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """SplitMix64's output for states z (uint64), in place; `spare` is memory of the same shape to work in."""
    for bits, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
        z ^= np.right_shift(z, np.uint64(bits), out=spare)
        if factor > 1:
            z *= np.uint64(factor)
    return z


@lru_cache(maxsize=8)
def _multiples(count: int) -> np.ndarray:
    """The first multiples of SplitMix64's increment."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _splitmix_torch(state: Tensor) -> Tensor:
    z = _fold(state.clone(), 30).mul_(_FIRST - 2**64)
    return _fold(_fold(z, 27).mul_(_SECOND - 2**64), 31)


def _fold(z: Tensor, bits: int) -> Tensor:
    """z ^ (z >> bits), the shift bringing in zeros; in place."""
    return z.bitwise_xor_((z >> bits).bitwise_and_(2 ** (64 - bits) - 1))


def _unit(words: Tensor, like: Tensor) -> Tensor:
    """The upper 32 bits of words as numbers in (0, 1): in float64 where `like` is, else in float32."""
    wide = torch.promote_types(like.dtype, torch.float32)
    return (words >> 32).to(wide).mul_(2**-32).add_(0.5 + 2**-33)


def _rows(shape: Sequence[int], generator: SampleGenerator) -> int:
    require(shape[0] == len(generator.seeds), "shape[0]", shape[0], f"{len(generator.seeds)}, one row a seed")
    return math.prod(shape[1:])


def rand(shape: Sequence[int], *, generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Uniform numbers of the device and floating dtype of `like`; row-wise for a `SampleGenerator`."""
    if isinstance(generator, SampleGenerator):
        u = _unit(generator.words(_rows(shape, generator)), like).reshape(tuple(shape)).to(like.device, like.dtype)
        return u.clamp_max(1 - torch.finfo(like.dtype).eps / 2)  # rounding must not reach 1
    return _plain(torch.rand, shape, generator, like)


def randn(shape: Sequence[int], *, generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Standard normal numbers of the device and floating dtype of `like`; row-wise for a `SampleGenerator`."""
    if not isinstance(generator, SampleGenerator):
        return _plain(torch.randn, shape, generator, like)
    count, wide = _rows(shape, generator), torch.promote_types(like.dtype, torch.float32)
    return generator.normals(count, wide).reshape(tuple(shape)).to(like.device, like.dtype)


def _plain(
    draw: Callable[..., Tensor], shape: Sequence[int], generator: torch.Generator | None, like: Tensor
) -> Tensor:
    """torch's own numbers. A CPU generator may feed any device, as in diffusers: they are drawn there, then moved."""
    device = like.device if generator is None else generator.device
    if isinstance(generator, BlockGenerator):
        return generator.fill(draw, tuple(shape), device=device, dtype=like.dtype).to(like.device)
    return draw(tuple(shape), generator=generator, device=device, dtype=like.dtype).to(like.device)
