r"""The paper's network for points in the plane (or any vector), with its time branch shared by the population.

Time goes through a sinusoidal embedding and a two-layer MLP, then `depth` layers of width `width`; :math:`[x_t, \xi]`
goes through `depth` layers of its own; the two are joined by `depth` more layers and one linear output, from which, as
in the paper, the first half is dropped where there is noise :math:`\xi`. Only :math:`\xi` differs between the m draws
of a population, so that everything on the side of time runs once a data point (or once a batch, for a single t). The
joint layer is split accordingly: :math:`W [h, g] = W_h h + W_g g`, the second term being computed without m.

With `spans` the network is one of average velocities (`distdiff.peer.mean_flow`): the length of the interval that the
average is over goes through an embedding like that of time, and is added to it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .._check import require_count
from .embedding import Sinusoidal, require_span

__all__ = ["MLP"]


class MLP(nn.Module):
    """Vectors of size `dim`, with noise vectors of size `noise_dim` (0: none) and, if asked for, a span of time."""

    def __init__(
        self,
        dim: int,
        *,
        noise_dim: int = 0,
        width: int = 64,
        depth: int = 4,
        time_width: int = 2048,
        spans: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"dim": dim, "width": width, "depth": depth, "time_width": time_width}.items():
            require_count(name, value)
        require_count("noise_dim", noise_dim, least=0)
        self.dim, self.noise_dim, self.spans = dim, noise_dim, spans
        self.embed = _embedding(time_width)
        self.time = _layers(time_width, width, depth)
        self.point = nn.Linear(dim, width)
        self.noise = nn.Linear(noise_dim, width, bias=False) if noise_dim else None
        self.input = _layers(width, width, depth - 1)
        self.from_input = nn.Linear(width, width)
        self.from_time = nn.Linear(width, width, bias=False)
        self.joint = _layers(width, width, depth - 1)
        self.output = nn.Linear(width, 2 * dim if noise_dim else dim)
        self.act = nn.GELU()
        self.span = _embedding(time_width) if spans else None

    def forward(
        self, xt: Tensor, t: Tensor, xi: Tensor | None = None, cond: Any = None, span: Tensor | None = None
    ) -> Tensor:
        """xt (n, dim), t () or (n,), xi (n, m, noise_dim) or None, span as t or None for 0, to (n, m or 1, dim)."""
        require_span(self.spans, span)
        embedding = self.embed(t)
        if self.span is not None:
            embedding = embedding + self.span(torch.zeros_like(t) if span is None else span)
        time = self.from_time(self.time(embedding))
        point = self.point(xt)[:, None]
        if self.noise is not None and xi is not None:
            point = point + self.noise(xi)
        time = time[:, None] if time.ndim == 2 else time
        hidden = self.from_input(self.input(self.act(point))) + time
        return self.output(self.joint(self.act(hidden)))[..., -self.dim :]


def _embedding(width: int) -> nn.Sequential:
    return nn.Sequential(Sinusoidal(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


def _layers(inputs: int, width: int, depth: int) -> nn.Sequential:
    sizes = [inputs] + [width] * depth
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairwise(sizes)))
