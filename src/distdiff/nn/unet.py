r"""The paper's U-Net for images, with a population axis and an optional late fork.

Each level holds `blocks` residual blocks: adaptive RMSNorm, 3x3 convolution, GELU, dropout, 3x3 convolution, added to
the block's input (through a 1x1 convolution where widths differ). Multi-head attention follows the blocks of the levels
listed in `attention`, and sits between two blocks in the bottleneck. Time goes through a sinusoidal embedding and an
MLP; a class (embedding matrix) or a vector of attributes (linear) is added to it, and so is, in a network of average
velocities (`spans`; see `distdiff.peer.mean_flow`), an embedding of the span that the average is over. The sum gives
scale and bias of every norm. The decoder's blocks see the encoder's outputs of the same level beside their input.

The noise :math:`\xi` has the shape of the image. With `branch_at` 0 it is concatenated with :math:`x_t` on the channels
and the output has twice the channels, the first half of which is dropped, as in the paper: the whole network runs for
each of the m draws. With `branch_at` k > 0 it is concatenated with what the first convolution of the decoder's k-th
residual block sees (counted from 1, deepest first): everything before runs once an image. As
:math:`W [h, \xi] = W_h h + W_\xi \xi`, that convolution is a sum whose first term is shared as well. What follows a
late fork sees only a neighbourhood of each pixel, so that means of :math:`\xi` over a coarse grid also join the
conditioning vector of the remaining norms, which makes global choices possible. `noise_levels` k > 0 makes them
easier: the convolution of the noise also sees it averaged over blocks of 2, 4, ... 2**k pixels of the fork's
resolution, each scaled to unit variance and drawn large again, and what it adds is multiplied by a gain that depends on
the conditioning and on the features of the pixel, for a posterior is wide where there is much noise and narrow where
there is little, or where the picture is blank.

`patch` p > 1 works on p x p blocks of pixels as channels, at a p-th of the resolution: cheap, for small computers.
What it draws then shows the grid of the blocks, for the pixels of a block are made of the same features by different
weights. `refine` k > 0 gives the blocks k more channels a pixel, of which two 3x3 convolutions at the full resolution,
which see the draw and :math:`x_t` too, make something to add to it; nothing at first.
Pictures of any size pass; odd sizes are met on the way up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._check import is_number, require, require_count
from .embedding import Sinusoidal, require_span

__all__ = ["UNet"]

NOISE_GRID = 4
"""A late fork's conditioning sees the noise averaged over a grid of this many cells a side."""


class UNet(nn.Module):
    """Images (n, channels, h, w) to (n, m, channels, h, w).

    Args:
        width: channels of the first level; `multipliers` scale it level by level.
        attention: levels (from 0) with attention after each residual block; the bottleneck always has it.
        classes, attributes: number of classes (cond is int64 (n,)) or size of the attribute vector (cond is (n, k)).
        noise_channels: channels of xi; 0 for a classical model.
        branch_at: 0, or the residual block of the decoder in which the population forks.
        noise_levels: coarser resolutions at which a late fork sees the noise as well.
        patch: side of the pixel blocks taken as channels.
        refine: channels of the convolutions at full resolution that follow the blocks; 0 for none.
        spans: whether the network takes a span of time.
    """

    def __init__(
        self,
        channels: int = 3,
        *,
        width: int = 256,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] = (1,),
        heads: int = 8,
        dropout: float = 0.0,
        classes: int = 0,
        attributes: int = 0,
        noise_channels: int = 0,
        branch_at: int = 0,
        noise_levels: int = 0,
        patch: int = 1,
        refine: int = 0,
        spans: bool = False,
    ) -> None:
        super().__init__()
        counts = {"channels": channels, "width": width, "blocks": blocks, "heads": heads, "patch": patch}
        for name, value in counts.items():
            require_count(name, value)
        require(len(multipliers) > 0 and all(k >= 1 for k in multipliers), "multipliers", multipliers, "counts")
        last = len(multipliers) * blocks
        require(all(0 <= k < len(multipliers) for k in attention), "attention", attention, "levels of the network")
        require(is_number(dropout) and 0 <= dropout < 1, "dropout", dropout, "in [0, 1)")
        require(not (classes and attributes), "classes, attributes", (classes, attributes), "one or the other")
        for name, value in {"classes": classes, "attributes": attributes, "noise_channels": noise_channels}.items():
            require_count(name, value, least=0)
        require(0 <= branch_at <= last, "branch_at", branch_at, f"0, or a block of the decoder, 1 to {last}")
        require(not branch_at or noise_channels > 0, "branch_at", branch_at, "0 for a network without noise")
        require_count("noise_levels", noise_levels, least=0)
        require_count("refine", refine, least=0)
        require(not noise_levels or branch_at > 0, "noise_levels", noise_levels, "0 unless branch_at is positive")
        widths = [width * k for k in multipliers]
        wrong = [widths[k] for k in (*attention, -1) if widths[k] % heads]
        require(not wrong, "heads", heads, f"a divisor of the widths with attention, {wrong}")

        self.channels, self.noise_channels, self.branch_at, self.patch = channels, noise_channels, branch_at, patch
        self.dropout, self.classes, self.attributes, self.spans = dropout, classes, attributes, spans
        self.noise_levels = noise_levels
        inner = channels * patch**2
        cond = 4 * width
        self.time = _embedding(width, cond)
        self.label = nn.Embedding(classes, cond) if classes else nn.Linear(attributes, cond) if attributes else None
        self.input = nn.Conv2d(inner, width, 3, padding=1)

        def block(inputs: int, level: int) -> Block:
            return Block(inputs, widths[level], cond, dropout, heads if level in attention else 0)

        self.encoder, self.down = nn.ModuleList(), nn.ModuleList()
        size = width
        for level, out in enumerate(widths):
            self.encoder.append(nn.ModuleList(block(size if k == 0 else out, level) for k in range(blocks)))
            self.down.append(nn.Conv2d(out, out, 3, stride=2, padding=1) if level + 1 < len(widths) else nn.Identity())
            size = out
        self.middle = nn.ModuleList([Block(size, size, cond, dropout, heads), Block(size, size, cond, dropout, 0)])
        self.decoder = nn.ModuleList()
        for level in reversed(range(len(widths))):
            for _ in range(blocks):
                self.decoder.append(block(size + widths[level], level))
                size = widths[level]
        fork_width = widths[len(widths) - 1 - (branch_at - 1) // blocks] if branch_at else width
        self.norm = AdaptiveRMSNorm(size, cond)
        self.halved = bool(noise_channels) and not branch_at
        outputs = channels * (2 if self.halved else 1)
        self.output = nn.Conv2d(size, (outputs + refine) * patch**2, 3, padding=1)
        self.refine = Refinement(outputs, channels, refine) if refine else None
        seen = noise_channels * (patch**2 + noise_levels)
        self.noise = nn.Conv2d(seen, fork_width, 3, padding=1, bias=False) if noise_channels else None
        self.noise_embed = (
            nn.Sequential(nn.Linear(noise_channels * NOISE_GRID**2, cond), nn.GELU(), nn.Linear(cond, cond))
            if branch_at
            else None
        )
        self.noise_gain = _zero_linear(cond, fork_width) if noise_levels else None
        self.noise_gate = _zero_convolution(fork_width) if noise_levels else None
        self.span = _embedding(width, cond) if spans else None

    def forward(
        self, xt: Tensor, t: Tensor, xi: Tensor | None = None, cond: Any = None, span: Tensor | None = None
    ) -> Tensor:
        """xt (n, c, h, w), t () or (n,), xi (n, m, c, h, w) or None, and labels or None to (n, m or 1, c, h, w).

        A network with spans takes one for each t; None stands for 0.
        """
        require_span(self.spans, span)
        require(
            (xi is None) == (self.noise is None), "xi", None if xi is None else tuple(xi.shape), self._noise_shape()
        )
        whole = xt
        if self.patch > 1:
            xt = functional.pixel_unshuffle(xt, self.patch)
            xi = None if xi is None else functional.pixel_unshuffle(xi, self.patch)
        h = self.input(xt)
        state = Population(self._embed(t, span, cond, len(xt)))
        if xi is not None and not self.branch_at:
            noise, state = self._noise(xi, state, h.shape[-2:])
            h = fork(h, noise)
        skips: list[Tensor] = []
        for level, down in zip(self.encoder, self.down, strict=True):
            for block in level.children():
                h = block(h, state)
                skips.append(h)
            h = down(h)
        for block in self.middle:
            h = block(h, state)
        for index, block in enumerate(self.decoder, 1):
            skip = skips.pop()
            if h.shape[-2:] != skip.shape[-2:]:
                h = functional.interpolate(h, size=skip.shape[-2:], mode="nearest")
            h = torch.cat([h, repeat(skip, len(h))], dim=1)
            if xi is not None and index == self.branch_at:
                noise, forked = self._noise(xi, state, h.shape[-2:])
                h, state = block(h, state, Fork(noise, forked, self._gain(state))), forked
            else:
                h = block(h, state)
        h = self.output(functional.gelu(self.norm(h, state)))
        h = functional.pixel_shuffle(h, self.patch) if self.patch > 1 else h
        h = h if self.refine is None else self.refine(h, whole)
        h = h[:, h.shape[1] // 2 :] if self.halved else h
        return h.unflatten(0, (len(xt), -1))

    def _noise_shape(self) -> str:
        return "noise (n, m, c, h, w)" if self.noise is not None else "None for a network without noise"

    def _embed(self, t: Tensor, span: Tensor | None, cond: Any, count: int) -> Tensor:
        """The conditioning vector of each image, (n, k), or (1, k) where one time and no label serve all."""
        weight = self.time[1].weight
        embedding = self.time[1:](self.time[0](t.reshape(-1)).to(weight.dtype))
        if self.span is not None:
            span = torch.zeros_like(t) if span is None else span
            embedding = embedding + self.span[1:](self.span[0](span.reshape(-1)).to(weight.dtype))
        if self.label is None:
            return embedding
        require(isinstance(cond, Tensor), "cond", cond, "the label of each image")
        if self.classes:
            fits = cond.shape == (count,) and not cond.is_floating_point()
            require(fits, "cond", f"{cond.dtype} {tuple(cond.shape)}", f"whole numbers of shape ({count},)")
            return embedding + self.label(cond)
        require(cond.shape == (count, self.attributes), "cond", tuple(cond.shape), f"({count}, {self.attributes})")
        return embedding + self.label(cond.to(weight.dtype))

    def _noise(self, xi: Tensor, state: Population, size: Sequence[int]) -> tuple[Tensor, Population]:
        """What the noise adds to the features of each draw, (n m, ...), and the conditioning after the fork."""
        assert self.noise is not None
        n, m = xi.shape[:2]
        flat = xi.flatten(0, 1)
        pixels = functional.pixel_shuffle(flat, self.patch) if self.patch > 1 and self.branch_at else flat
        seen = [flat if flat.shape[-2:] == size else _pool(flat, size)]
        for level in range(1, self.noise_levels + 1):
            coarse = _pool(pixels, [-(-side // 2**level) for side in size])
            seen.append(functional.interpolate(coarse, size=size, mode="bilinear", align_corners=False))
        noise = self.noise(torch.cat(seen, dim=1) if len(seen) > 1 else seen[0])
        if self.noise_embed is None:
            return noise, state
        vector = self.noise_embed(_pool(pixels, (NOISE_GRID, NOISE_GRID)).flatten(1))
        return noise, Population(state.cond.expand(n, -1).repeat_interleave(m, 0) + vector)

    def _gain(self, state: Population) -> Callable[[Tensor], Tensor] | None:
        """What the noise is multiplied by, for the features that it is added to."""
        gain, gate = self.noise_gain, self.noise_gate
        if gain is None or gate is None:
            return None
        return lambda h: 1 + gain(state.active)[:, :, None, None] + gate(h)


def _embedding(width: int, cond: int) -> nn.Sequential:
    return nn.Sequential(Sinusoidal(width), nn.Linear(width, cond), nn.GELU(), nn.Linear(cond, cond))


def _zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map that is zero at first."""
    linear = nn.Linear(inputs, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _zero_convolution(channels: int) -> nn.Conv2d:
    """A map of the channels of each pixel that is zero at first."""
    convolution = nn.Conv2d(channels, channels, 1, bias=False)
    nn.init.zeros_(convolution.weight)
    return convolution


def fork(h: Tensor, noise: Tensor) -> Tensor:
    """Features (n, ...) and what the noise adds to them for each draw, (n m, ...), to (n m, ...)."""
    last = h.is_contiguous(memory_format=torch.channels_last) and not h.is_contiguous()
    forked = (h[:, None] + noise.unflatten(0, (len(h), -1))).flatten(0, 1)
    return forked.contiguous(memory_format=torch.channels_last) if last else forked


def repeat(value: Tensor, rows: int) -> Tensor:
    """A value an image, (n, ...) (or one for all), as a value a row, (n m, ...)."""
    return value if len(value) == rows else value.repeat_interleave(rows // len(value), 0)


def _pool(noise: Tensor, size: Sequence[int]) -> Tensor:
    """Means of standard normal noise over a grid of cells, scaled to be standard normal again."""
    cells = noise.shape[-2] * noise.shape[-1] / (size[0] * size[1])
    return functional.adaptive_avg_pool2d(noise, (size[0], size[1])) * max(cells, 1.0) ** 0.5


class Population:
    """The conditioning vectors of a batch, one an image (or one for all) before a late fork, one a draw after it."""

    def __init__(self, cond: Tensor) -> None:
        self.cond = cond
        self.active = functional.gelu(cond)


class Fork(NamedTuple):
    """A late fork: what the noise adds for each draw (n m, ...), the conditioning after it, the gain of the noise."""

    noise: Tensor
    after: Population
    gain: Callable[[Tensor], Tensor] | None


class AdaptiveRMSNorm(nn.Module):
    """x / rms(x) over the channels of each pixel, with scale and bias from the conditioning vector."""

    def __init__(self, channels: int, cond: int) -> None:
        super().__init__()
        self.modulation = _zero_linear(cond, 2 * channels)

    def forward(self, x: Tensor, state: Population) -> Tensor:
        scale, bias = repeat(self.modulation(state.active), len(x))[:, :, None, None].chunk(2, dim=1)
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        norm = torch.rsqrt(length.square() / x.shape[1] + 1e-6).to(x.dtype)
        return torch.addcmul(bias, x * norm, 1 + scale)


class Block(nn.Module):
    """A residual block, with attention after it where `heads` is not 0."""

    def __init__(self, inputs: int, outputs: int, cond: int, dropout: float, heads: int) -> None:
        super().__init__()
        self.norm = AdaptiveRMSNorm(inputs, cond)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = Attention(outputs, cond, heads) if heads else None
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, state: Population, late: Fork | None = None) -> Tensor:
        """The population forks here, after the first convolution, if it forks `late`."""
        h = self.first(self.norm(x, state))
        if late is not None:
            noise = late.noise if late.gain is None else late.noise * repeat(late.gain(h), len(late.noise))
            h, state = fork(h, noise), late.after
        h = self.second(self.dropout(functional.gelu(h)))
        h = h + repeat(self.shortcut(x), len(h))
        return h if self.attention is None else self.attention(h, state)


class Refinement(nn.Module):
    """What is drawn (n m, outputs + width, ...), its last channels for this, to what is drawn with more detail."""

    def __init__(self, outputs: int, channels: int, width: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.first = nn.Conv2d(outputs + width + channels, width, 3, padding=1)
        self.second = nn.Conv2d(width, outputs, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, h: Tensor, xt: Tensor) -> Tensor:
        detail = self.second(functional.gelu(self.first(torch.cat([h, repeat(xt, len(h))], dim=1))))
        return h[:, : self.outputs] + detail


class Attention(nn.Module):
    """Multi-head attention between the pixels of a feature map, added to it."""

    def __init__(self, channels: int, cond: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = AdaptiveRMSNorm(channels, cond)
        self.inward = nn.Conv2d(channels, 3 * channels, 1)
        self.outward = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, state: Population) -> Tensor:
        tokens = self.inward(self.norm(x, state)).flatten(2).unflatten(1, (3, self.heads, -1))
        query, key, value = tokens.transpose(-1, -2).contiguous().unbind(1)  # fused kernels want channels last
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.outward(mixed.transpose(-1, -2).reshape(x.shape))
