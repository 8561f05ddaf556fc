r"""The network of a policy: what the robot sees and is told, and a transformer that denoises a chunk of actions.

`encode` turns an observation into memory tokens: one for each state of the history, one for each place of each
camera's feature map, one for the instruction; with `encoder_depth` they attend to one another. The denoiser then works
on the tokens of the chunk, one an action: :math:`[a_k, \xi_k]` with noise on the action dimension as in the paper,
self-attention within the chunk, cross-attention to the memory, and a normalisation that is shifted and scaled by the
time and the mean of the memory (the cross-attention denoiser of ALOHA Unleashed, which the paper takes).

What does not depend on :math:`\xi` is computed once. The memory is passed as conditioning, so that a sampler encodes an
observation once for all its steps; the m draws of a population are m times as many queries to the same keys and values;
with `branch_at` they also share the first blocks, the noise entering after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from .._check import is_whole, require, require_count
from .embedding import Sinusoidal
from .resnet import ResNet

__all__ = ["PolicyNetwork"]


class PolicyNetwork(nn.Module):
    """Chunks of actions (n, chunk, action_size), given an observation.

    Args:
        state_size: size of the state vector; 0 for none.
        history: states given, the last one the present.
        cameras: names of the pictures in an observation.
        language_size: size of an instruction's embedding; 0 for none.
        noise_size: size of xi beside each action; 0 for a classical model.
        branch_at: blocks that run once for all draws, before the noise enters.
    """

    def __init__(
        self,
        action_size: int,
        *,
        chunk: int = 8,
        state_size: int = 0,
        history: int = 1,
        cameras: Sequence[str] = (),
        language_size: int = 0,
        noise_size: int = 2,
        width: int = 256,
        depth: int = 4,
        heads: int = 8,
        encoder_depth: int = 0,
        dropout: float = 0.0,
        branch_at: int = 0,
        vision: str = "resnet18",
        vision_width: int = 64,
    ) -> None:
        super().__init__()
        counts = {"action_size": action_size, "chunk": chunk, "history": history, "width": width, "heads": heads}
        for name, value in (counts | {"depth": depth}).items():
            require_count(name, value)
        sizes = {"state_size": state_size, "language_size": language_size, "noise_size": noise_size}
        for name, value in (sizes | {"encoder_depth": encoder_depth}).items():
            require_count(name, value, least=0)
        require(
            is_whole(branch_at) and 0 <= branch_at < depth, "branch_at", branch_at, f"in 0 to {depth - 1}, the blocks"
        )
        require(width % (2 * heads) == 0, "width", width, f"a multiple of twice the {heads} heads")
        require(bool(state_size or cameras), "state_size, cameras", "none", "something to observe")
        self.action_size, self.chunk, self.history, self.cameras = action_size, chunk, history, tuple(cameras)
        self.state_size, self.language_size, self.noise_size = state_size, language_size, noise_size
        self.branch_at = branch_at
        self.state = _two_layers(state_size, width) if state_size else None
        self.ages = nn.Parameter(0.02 * torch.randn(history, width)) if state_size else None
        self.eyes = nn.ModuleList(ResNet(vision, vision_width) for _ in cameras)
        self.see = nn.ModuleList(nn.Linear(eye.channels, width) for eye in self.eyes)  # type: ignore[arg-type]
        self.places = nn.Linear(2, width) if cameras else None
        self.language = nn.Linear(language_size, width) if language_size else None
        self.encoder = nn.ModuleList(_Block(width, heads, dropout, cross=False) for _ in range(encoder_depth))
        self.memory_norm = nn.LayerNorm(width)
        self.time = nn.Sequential(Sinusoidal(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.gist = nn.Linear(width, width, bias=False)
        self.action = nn.Linear(action_size, width)
        self.noise = nn.Linear(noise_size, width, bias=False) if noise_size else None
        self.positions = nn.Parameter(0.02 * torch.randn(chunk, width))
        self.blocks = nn.ModuleList(_Block(width, heads, dropout, cross=True) for _ in range(depth))
        self.norm = _AdaptiveNorm(width)
        self.output = nn.Linear(width, action_size)

    def encode(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Memory (n, tokens, width) of an observation.

        It has `state` (n, history, state_size), pictures (n, 3, height, width) in [-1, 1] by the names of the cameras,
        and `language` (n, language_size); a policy without one of them does not look at it.
        """
        tokens = []
        if self.state is not None and self.ages is not None:
            tokens.append(self.state(observation["state"]) + self.ages)
        for name, eye, project in zip(self.cameras, self.eyes, self.see, strict=True):
            features = eye(observation[name])
            assert self.places is not None
            seen = project(features.flatten(2).mT) + self.places(_grid(features))
            tokens.append(seen)
        if self.language is not None:
            tokens.append(self.language(observation["language"])[:, None])
        memory = torch.cat(tokens, 1)
        for block in self.encoder:
            memory = block(memory[:, None], None, None)[:, 0]
        return self.memory_norm(memory)

    def forward(self, xt: Tensor, t: Tensor, xi: Tensor | None = None, cond: Any = None) -> Tensor:
        """xt (n, chunk, action_size), t () or (n,), xi (n, m, chunk, noise_size) or None, to (n, m or 1, chunk, size).

        cond is an observation as `encode` takes it, or what `encode` made of it.
        """
        memory = cond if isinstance(cond, Tensor) else self.encode(cond)
        time = self.time(t)
        condition = (time if time.ndim == 2 else time[None]) + self.gist(memory.mean(1))
        tokens = (self.action(xt) + self.positions)[:, None]
        for index, block in enumerate(self.blocks):
            if index == self.branch_at and self.noise is not None and xi is not None:
                tokens = tokens + self.noise(xi)
            tokens = block(tokens, condition, memory)
        return self.output(self.norm(tokens, condition))


class _AdaptiveNorm(nn.Module):
    """Layer normalisation of (n, m, tokens, width), shifted and scaled by a condition (n, width) if there is one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.adapt = nn.Linear(width, 2 * width)
        nn.init.zeros_(self.adapt.weight)
        nn.init.zeros_(self.adapt.bias)

    def forward(self, tokens: Tensor, condition: Tensor | None) -> Tensor:
        normal = self.norm(tokens)
        if condition is None:
            return normal
        scale, shift = self.adapt(nn.functional.silu(condition))[:, None, None].chunk(2, -1)
        return torch.addcmul(shift, normal, 1 + scale)


class _Attention(nn.Module):
    """Attention of (n, queries, width) to (n, keys, width)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, (k, v) = self._split(self.queries(x)), (self._split(part) for part in self.keys(memory).chunk(2, -1))
        seen = scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out(seen.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Block(nn.Module):
    """Self-attention within each set of tokens (n, m, tokens, width), cross-attention to the memory of all m, MLP."""

    def __init__(self, width: int, heads: int, dropout: float, *, cross: bool) -> None:
        super().__init__()
        self.own_norm, self.mlp_norm = _AdaptiveNorm(width), _AdaptiveNorm(width)
        self.own = _Attention(width, heads, dropout)
        self.cross_norm = nn.LayerNorm(width) if cross else None
        self.cross = _Attention(width, heads, dropout) if cross else None
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, tokens: Tensor, condition: Tensor | None, memory: Tensor | None) -> Tensor:
        n, m, count, _ = tokens.shape
        normal = self.own_norm(tokens, condition).flatten(0, 1)
        tokens = tokens + self.own(normal, normal).unflatten(0, (n, m))
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            queries = self.cross_norm(tokens).flatten(1, 2)  # all draws ask the same keys
            tokens = tokens + self.cross(queries, memory).unflatten(1, (m, count))
        return tokens + self.mlp(self.mlp_norm(tokens, condition))


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    hidden = 2 * width
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, width)
    )


def _grid(features: Tensor) -> Tensor:
    """Where each place of a feature map (n, channels, height, width) lies, (height * width, 2) in [-1, 1]."""
    height, width = features.shape[-2:]
    rows = torch.linspace(-1, 1, height, device=features.device, dtype=features.dtype)
    columns = torch.linspace(-1, 1, width, device=features.device, dtype=features.dtype)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).flatten(0, 1)
