r"""Optimisers of a run: Adam, the paper's, and Muon, which learns more from few steps.

Muon (Jordan et al., 2024) replaces the step of a matrix of weights by the nearest matrix with orthonormal rows or
columns, so that no direction dominates: of its averaged gradient :math:`G = U \Sigma V^\top` it keeps about
:math:`U V^\top`, found by five steps of a Newton-Schulz iteration. Kernels of convolutions count as matrices with a row
an output. The root mean square of such a step is that of `RMS` times the learning rate, so that rates of Adam serve.
Vectors and matrices with a side of 8 or less are left to Adam. `torch.optim.Muon` has neither kernels nor
that remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..recipe.config import OptimConfig

__all__ = ["Muon", "build_optimizer", "orthogonalize"]

RMS = 0.5
"""Size of a step of a matrix, in units of the learning rate."""
MOMENTUM = 0.95
SMALLEST = 9
"""Least side of a matrix that is orthogonalised."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration: it takes singular values in (0, 1] to the neighbourhood of 1, fast rather than
exactly."""


def build_optimizer(parameters: Iterable[nn.Parameter], optim: OptimConfig, device: torch.device) -> Any:
    """The optimiser that a configuration names."""
    if optim.kind == "muon":
        return Muon(parameters, optim.lr, optim.betas, optim.eps)
    fused = device.type != "mps"
    return torch.optim.Adam(parameters, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=fused)


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices (..., rows, columns) with their singular values brought near 1.

    What each step multiplies by is a polynomial of the Gram matrix, as is the next Gram matrix: the steps are taken on
    those, which are small, and the matrix is multiplied once.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    a, b, c = QUINTIC
    gram = x @ x.mT
    total = one = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    for _ in range(steps):
        factor = a * one + b * gram + c * gram @ gram
        total = factor @ total
        gram = factor @ gram @ factor
    x = total @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for matrices and kernels, Adam with `betas` and `eps` for all else."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            matrices: dict[tuple[torch.Size, torch.dtype], list[nn.Parameter]] = {}
            for p in trained:
                if is_matrix(p):
                    matrices.setdefault((p.shape, p.dtype), []).append(p)
            for alike in matrices.values():
                self._orthogonal_step(alike, group["lr"])
            rest = [p for p in trained if not is_matrix(p)]
            if rest:
                self._adam_step(rest, group)
        return loss

    def _orthogonal_step(self, alike: list[nn.Parameter], lr: float) -> None:
        """Step of matrices of one shape, which are orthogonalised together."""
        looked_ahead = []
        for p in alike:
            state, grad = self.state[p], p.grad
            assert grad is not None
            if not state:
                state["momentum"] = torch.zeros_like(p)
            state["momentum"].lerp_(grad, 1 - MOMENTUM)
            looked_ahead.append(grad.lerp(state["momentum"], MOMENTUM).flatten(1))
        steps = orthogonalize(torch.stack(looked_ahead))
        size = RMS * max(steps.shape[-2:]) ** 0.5
        for p, step in zip(alike, steps, strict=True):
            p.sub_(step.view(p.shape), alpha=lr * size)

    def _adam_step(self, rest: list[nn.Parameter], group: dict[str, Any]) -> None:
        first, second = group["betas"]
        for p in rest:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state["step"] += 1
            count, grad = float(state["step"]), p.grad
            assert grad is not None
            state["exp_avg"].lerp_(grad, 1 - first)
            state["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
            root = (state["exp_avg_sq"] / (1 - second**count)).sqrt_().add_(group["eps"])
            p.addcdiv_(state["exp_avg"], root, value=-group["lr"] / (1 - first**count))


def is_matrix(p: Tensor) -> bool:
    """Whether a parameter is orthogonalised: all but vectors and what has a small side, as inputs and outputs have."""
    return p.ndim >= 2 and min(p.shape[0], p[0].numel()) >= SMALLEST
