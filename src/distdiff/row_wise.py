"""Per-sample noise for denoisers that know only torch's random functions.

A denoiser written elsewhere calls `torch.randn(..., generator=generator)` with the generator it is given. So that its
sample i depends on seed i alone too, the sampler runs it within `RowWise`, which answers such calls from the rows of
the `SampleGenerator` (see `distdiff.random`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._check import is_whole
from .random import SampleGenerator, rand, randn

__all__ = ["RowWise"]


class RowWise(TorchFunctionMode):
    """Within it, torch's own random functions honour the rows of a `SampleGenerator` passed to them.

    The rows are the first axis of the result (or a multiple of it, rows outermost), else the first axis of that size.
    Where there is none, or for a function not known here, the numbers come from a single stream, with a warning.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not isinstance(kwargs.get("generator"), SampleGenerator):
            return function(*args, **kwargs)
        found = _ROW_WISE[function](*args, **kwargs) if function in _ROW_WISE else None
        if found is None:
            name = getattr(function, "__name__", str(function))
            warnings.warn(f"{name} drew noise without a row a sample: samples depend on their batch", stacklevel=2)
            return function(*args, **kwargs)
        return found


def _filled(
    draw: Callable[..., Tensor], shape: Sequence[int], generator: SampleGenerator, like: Tensor
) -> Tensor | None:
    """Row-wise numbers of a shape, None if it has no axis for the rows."""
    rows, shape = len(generator.seeds), tuple(shape)
    if rows and shape and shape[0] % rows == 0:
        return draw((rows, shape[0] // rows, *shape[1:]), generator=generator, like=like).reshape(shape)
    if rows in shape:
        axis = shape.index(rows)
        return draw((rows, *shape[:axis], *shape[axis + 1 :]), generator=generator, like=like).movedim(0, axis)
    return None


def _factory(draw: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def make(*args: Any, generator: SampleGenerator, out: Tensor | None = None, **options: Any) -> Tensor | None:
        size = options.pop("size", args[0] if len(args) == 1 and not is_whole(args[0]) else args)
        return None if out is not None else _filled(draw, size, generator, torch.empty(0, **options))

    return make


def _like(draw: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def make(input: Tensor, *, generator: SampleGenerator, **options: Any) -> Tensor | None:
        return _filled(draw, input.shape, generator, torch.empty_like(input, **options))

    return make


def _normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, generator: SampleGenerator, **options: Any
) -> Tensor | None:
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(value.shape for value in tensors)) if tensors else size
    z = _filled(randn, shape, generator, tensors[0] if tensors else torch.empty(0, **options))
    return None if z is None else mean + std * z


def _normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: SampleGenerator) -> Tensor | None:
    z = _filled(randn, self.shape, generator, self)
    return None if z is None else self.copy_(mean + std * z)


def _uniform_(self: Tensor, *ends: float, generator: SampleGenerator, **named: float) -> Tensor | None:
    low, high = ends if ends else (named.get("from", 0.0), named.get("to", 1.0))
    u = _filled(rand, self.shape, generator, self)
    return None if u is None else self.copy_(low + (high - low) * u)


def _randint(*args: Any, generator: SampleGenerator, **options: Any) -> Tensor | None:
    names = (
        ("high", "size") if len(args) + len({"high", "low", "size"} & options.keys()) == 2 else ("low", "high", "size")
    )
    given = {"low": 0} | dict(zip(names, args, strict=False)) | {k: options.pop(k) for k in names if k in options}
    dtype = options.pop("dtype", torch.int64)
    u = _filled(rand, given["size"], generator, torch.empty(0, dtype=torch.float64, **options))
    return None if u is None else (given["low"] + torch.floor((given["high"] - given["low"]) * u)).to(dtype)


def _bernoulli(input: Tensor, *, generator: SampleGenerator) -> Tensor | None:
    u = _filled(rand, input.shape, generator, input)
    return None if u is None else (u < input).to(input.dtype)


def _multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: SampleGenerator
) -> Tensor | None:
    if input.ndim != 2 or not (replacement or num_samples == 1):
        return None
    u = _filled(rand, (len(input), num_samples), generator, input)
    if u is None:
        return None
    edges = (input / input.sum(-1, keepdim=True)).cumsum(-1)
    return torch.searchsorted(edges, u).clamp_max(input.shape[-1] - 1)


_ROW_WISE: dict[Any, Callable[..., Tensor | None]] = {
    torch.randn: _factory(randn),
    torch.rand: _factory(rand),
    torch.randn_like: _like(randn),
    torch.rand_like: _like(rand),
    torch.randint: _randint,
    torch.normal: _normal,
    torch.bernoulli: _bernoulli,
    torch.multinomial: _multinomial,
    torch.Tensor.normal_: _normal_,
    torch.Tensor.uniform_: _uniform_,
    torch.Tensor.multinomial: _multinomial,
}
