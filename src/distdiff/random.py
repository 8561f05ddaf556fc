r"""Noise that belongs to a sample, not to a batch.

A denoiser takes its randomness from a `torch.Generator`. When sampling, sample i must depend on seed i alone, however
the batch is split, so the sampler passes a `SampleGenerator`: a `torch.Generator` with one seed a row. `randn` and
`rand` here know it, and then compute row i as a function of (seed i, number of earlier calls, position) with the
counter-based generator Philox4x32-10 (Salmon et al., 2011) and Box and Muller's transform. The same seed therefore
gives the same noise on every device.

To `torch.randn` and its kin a `SampleGenerator` is an ordinary generator of one stream, unless they are called within
`RowWise()`, which makes them row-wise too. The sampler wraps denoisers it does not know into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._check import require, require_seed

__all__ = ["RowWise", "SampleGenerator", "rand", "randn"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


class SampleGenerator(torch.Generator):
    """One independent, splittable stream of noise for each seed."""

    def __new__(cls, seeds: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> SampleGenerator:
        return super().__new__(cls, device=device)  # type: ignore[call-arg]

    def __init__(self, seeds: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> None:
        values = seeds.tolist() if isinstance(seeds, Tensor) else list(seeds)
        for value in values:
            require_seed(value)
        self.seeds = torch.tensor(values, dtype=torch.int64, device=device)
        self.calls = 0
        self.manual_seed(values[0] if values else 0)

    def words(self, count: int) -> Tensor:
        """`count` fresh 32-bit words a row, as int64 of shape (rows, count)."""
        blocks = -(-count // 4)
        position = torch.arange(blocks, dtype=torch.int64, device=self.seeds.device).expand(len(self.seeds), -1)
        call = torch.full_like(position, self.calls)
        self.calls += 1
        key = self.seeds[:, None]
        words = philox((position, call, torch.zeros_like(call), torch.zeros_like(call)), (key & _MASK, key >> 32))
        return torch.stack(words, dim=-1).flatten(1)[:, :count]


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Philox4x32 with ten rounds: four counter words and two key words, 32 bits each in int64, to four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    product = word * factor  # wraps modulo 2**64, which keeps all 64 bits of the unsigned product
    return (product >> 32) & _MASK, product & _MASK


def _uniform(generator: SampleGenerator, count: int) -> Tensor:
    """Numbers strictly inside (0, 1) with 32 random bits each."""
    wide = torch.float32 if generator.device.type == "mps" else torch.float64
    return (generator.words(count).to(wide) + 0.5) / 2**32


def _rows(shape: Sequence[int], generator: SampleGenerator) -> int:
    require(shape[0] == len(generator.seeds), "shape[0]", shape[0], f"{len(generator.seeds)}, one row a seed")
    return math.prod(shape[1:])


def rand(shape: Sequence[int], *, generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Uniform numbers of the device and floating dtype of `like`; row-wise for a `SampleGenerator`."""
    if isinstance(generator, SampleGenerator):
        return _uniform(generator, _rows(shape, generator)).reshape(tuple(shape)).to(like.device, like.dtype)
    return torch.rand(tuple(shape), generator=generator, device=_device(generator, like), dtype=like.dtype).to(
        like.device
    )


def randn(shape: Sequence[int], *, generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Standard normal numbers of the device and floating dtype of `like`; row-wise for a `SampleGenerator`."""
    if not isinstance(generator, SampleGenerator):
        source = _device(generator, like)
        return torch.randn(tuple(shape), generator=generator, device=source, dtype=like.dtype).to(like.device)
    count = _rows(shape, generator)
    u = _uniform(generator, 2 * -(-count // 2)).unflatten(1, (-1, 2))
    radius, angle = torch.sqrt(-2 * torch.log(u[..., 0])), 2 * math.pi * u[..., 1]
    z = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return z.flatten(1)[:, :count].reshape(tuple(shape)).to(like.device, like.dtype)


def _device(generator: torch.Generator | None, like: Tensor) -> torch.device:
    """A CPU generator may feed any device, as in diffusers: its numbers are drawn where it lives, then moved."""
    return like.device if generator is None else generator.device


class RowWise(TorchFunctionMode):
    """Within it, torch's own random functions honour the rows of a `SampleGenerator` passed to them.

    That is so for results whose first axis is the number of rows or a multiple of it (rows outermost).
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        known = _ROW_WISE.get(function) if isinstance(kwargs.get("generator"), SampleGenerator) else None
        found = None if known is None else known(*args, **kwargs)
        return function(*args, **kwargs) if found is None else found


def _filled(
    draw: Callable[..., Tensor], shape: Sequence[int], generator: SampleGenerator, like: Tensor
) -> Tensor | None:
    """Row-wise numbers of a shape whose first axis is a multiple of the rows; None where it is not."""
    rows = len(generator.seeds)
    if not shape or rows == 0 or shape[0] % rows:
        return None
    return draw((rows, shape[0] // rows, *shape[1:]), generator=generator, like=like).reshape(tuple(shape))


def _factory(draw: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def make(*size: Any, generator: SampleGenerator, out: Tensor | None = None, **options: Any) -> Tensor | None:
        if out is not None:
            return None
        shape = options.pop("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        return _filled(draw, shape, generator, torch.empty(0, **options))

    return make


def _like(draw: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def make(tensor: Tensor, *, generator: SampleGenerator, **options: Any) -> Tensor | None:
        return _filled(draw, tensor.shape, generator, torch.empty_like(tensor, **options))

    return make


def _normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, generator: SampleGenerator, **options: Any
) -> Tensor | None:
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(value.shape for value in tensors)) if tensors else size
    z = _filled(randn, shape, generator, tensors[0] if tensors else torch.empty(0, **options))
    return None if z is None else mean + std * z


def _multinomial(
    weights: Tensor, count: int, replacement: bool = False, *, generator: SampleGenerator
) -> Tensor | None:
    if weights.ndim != 2 or not (replacement or count == 1):
        return None
    u = _filled(rand, (len(weights), count), generator, weights)
    if u is None:
        return None
    edges = (weights / weights.sum(-1, keepdim=True)).cumsum(-1)
    return torch.searchsorted(edges, u).clamp_max(weights.shape[-1] - 1)


_ROW_WISE: dict[Any, Callable[..., Tensor | None]] = {
    torch.randn: _factory(randn),
    torch.rand: _factory(rand),
    torch.randn_like: _like(randn),
    torch.rand_like: _like(rand),
    torch.normal: _normal,
    torch.multinomial: _multinomial,
    torch.Tensor.multinomial: _multinomial,
}
