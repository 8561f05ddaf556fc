r"""Exact posteriors, in closed form, behind the same door as a network.

For data :math:`x_0 \sim \sum_k w_k N(\mu_k, s_k^2 I)` and :math:`x_t = \alpha x_0 + \sigma z`, the posterior is again
a mixture, of the components :math:`N(\mu_k + r_k (x_t - \alpha \mu_k), v_k I)` with

.. math:: r_k = \frac{\alpha s_k^2}{\alpha^2 s_k^2 + \sigma^2}, \qquad v_k = \frac{s_k^2 \sigma^2}{\alpha^2 s_k^2 +
          \sigma^2}, \qquad w_k(x_t) \propto w_k\, N(x_t; \alpha\mu_k, (\alpha^2 s_k^2 + \sigma^2) I).

Tests and studies sample through these where they would otherwise need a trained model.

Data known by a set of points alone, each as likely as any other, is the limit of s_k to 0: its posterior is on those
points, with probabilities

.. math:: w_i(x_t) \propto \exp\big((\alpha\, x_i^\top x_t - \alpha^2 \|x_i\|^2 / 2) / \sigma^2\big).

A clean point and what was noised from it are as likely together as a draw of this posterior and the same noisy point.
So a loss may compare with several such draws, or with their exact mean, where a training pair offers a single point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._check import require, require_count, require_positive
from .denoiser import row_times
from .random import rand, randn
from .schedule import FlowMatching, Schedule, as_time, expand

__all__ = ["EmpiricalPosterior", "GaussianPosterior", "MixturePosterior"]


class MixturePosterior:
    """The posterior of Gaussian-mixture data.

    Args:
        means: component means (K, *event).
        stds: one standard deviation, or one a component.
        weights: component weights, normalised here; equal by default.
    """

    own_noise = True

    def __init__(
        self,
        means: Tensor | Sequence[Any],
        stds: float | Sequence[float] | Tensor,
        weights: Sequence[float] | Tensor | None = None,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        self.means = torch.as_tensor(means, dtype=torch.float64)
        count = len(self.means)
        require(self.means.ndim >= 2, "means", tuple(self.means.shape), "of shape (K, *event)")
        given = torch.as_tensor(stds, dtype=torch.float64)
        fits = given.shape in ((), (count,)) and bool((given > 0).all())
        require(fits, "stds", stds, f"one positive number, or {count} of them")
        self.stds = given.expand(count)
        raw = (
            torch.ones(count, dtype=torch.float64) if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        )
        require(raw.shape == (count,) and bool((raw > 0).all()), "weights", weights, f"{count} positive numbers")
        self.weights = raw / raw.sum()
        self.schedule = FlowMatching() if schedule is None else schedule

    def components(self, xt: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior weights (n, K), means (n, K, *event) and variances, (1 or n, K), of each component."""
        means, stds, weights = (v.to(xt.device, xt.dtype) for v in (self.means, self.stds, self.weights))
        alpha, sigma = (c.to(xt.dtype).reshape(-1, 1) for c in self.schedule(row_times(t, xt)))
        total = (alpha * stds) ** 2 + sigma**2
        residual = xt[:, None] - expand(alpha, means[None]) * means
        logits = weights.log() - residual.square().flatten(2).sum(-1) / (2 * total) - means[0].numel() / 2 * total.log()
        gain = alpha * stds**2 / total
        return logits.softmax(-1), means + expand(gain, residual) * residual, (stds * sigma) ** 2 / total

    def draw(
        self, xt: Tensor, t: float | Tensor, m: int = 1, cond: Any = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """m independent posterior draws for each x_t: (n, *event) to (n, m, *event)."""
        require_count("m", m)
        weights, means, variances = self.components(xt, t)
        k = _choose(weights, m, generator)
        rows = torch.arange(len(xt), device=xt.device)[:, None]
        std = variances.sqrt().expand(len(xt), -1)[rows, k]
        z = randn((len(xt), m, *xt.shape[1:]), generator=generator, like=xt)
        return means[rows, k] + expand(std, z) * z

    def mean(self, xt: Tensor, t: float | Tensor) -> Tensor:
        """E[x_0 | x_t], (n, *event)."""
        weights, means, _ = self.components(xt, t)
        return (expand(weights, means) * means).sum(1)

    def std(self, xt: Tensor, t: float | Tensor) -> Tensor:
        """Standard deviation of x_0 given x_t in each coordinate, (n, *event)."""
        weights, means, variances = self.components(xt, t)
        second = means.square() + expand(variances.expand(len(xt), -1), means)
        variance = (expand(weights, means) * second).sum(1) - self.mean(xt, t).square()
        return variance.clamp_min(0).sqrt()


class EmpiricalPosterior:
    """The posterior of data that is one of some points, each as likely as any other.

    Args:
        points: all of them, (N, *event); kept in float32 or better, on the device they are asked on.
        cond: what each is conditioned on, (N, ...): a noisy point with a condition comes from one that shares it.
    """

    own_noise = True

    def __init__(self, points: Tensor, cond: Tensor | None = None, *, schedule: Schedule | None = None) -> None:
        require(len(points) > 0, "points", tuple(points.shape), "one or more")
        paired = cond is None or len(cond) == len(points)
        require(paired, "cond", None if cond is None else tuple(cond.shape), f"one of each of the {len(points)} points")
        self.event = tuple(points.shape[1:])
        self.points = points.to(torch.promote_types(points.dtype, torch.float32)).flatten(1)
        self.half_squares = self.points.square().sum(1) / 2
        self.cond = cond
        self.schedule = FlowMatching() if schedule is None else schedule

    def weights(self, xt: Tensor, t: float | Tensor, cond: Tensor | None = None) -> Tensor:
        """The probability of each point given each x_t, (n, N)."""
        self._move(xt.device)
        require((cond is None) == (self.cond is None), "cond", cond, "given if the points have conditions, else None")
        alpha, sigma = (c.to(self.points.dtype).reshape(-1, 1) for c in self.schedule(row_times(t, xt)))
        products = xt.flatten(1).to(self.points.dtype) @ self.points.T
        logits = (alpha * products - alpha**2 * self.half_squares) / sigma**2
        if cond is not None and self.cond is not None:
            same = self.cond == cond[:, None]
            logits.masked_fill_(~(same if same.ndim == 2 else same.flatten(2).all(2)), -torch.inf)
        return logits.softmax(1)

    def draw(
        self, xt: Tensor, t: float | Tensor, m: int = 1, cond: Any = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """m independent posterior draws for each x_t: (n, *event) to (n, m, *event)."""
        require_count("m", m)
        return self.draw_with_mean(xt, t, m, cond, generator)[0]

    def mean(self, xt: Tensor, t: float | Tensor, cond: Any = None) -> Tensor:
        """E[x_0 | x_t], (n, *event)."""
        return self._mean(self.weights(xt, t, cond)).to(xt.dtype)

    def draw_with_mean(
        self, xt: Tensor, t: float | Tensor, m: int = 1, cond: Any = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """m draws, (n, m, *event), and the mean, (n, *event)."""
        weights = self.weights(xt, t, cond)
        draws = self.points[_choose(weights, m, generator)].unflatten(-1, self.event)
        return draws.to(xt.dtype), self._mean(weights).to(xt.dtype)

    def _mean(self, weights: Tensor) -> Tensor:
        return (weights @ self.points).unflatten(-1, self.event)

    def _move(self, device: torch.device) -> None:
        if self.points.device != device:
            self.points, self.half_squares = self.points.to(device), self.half_squares.to(device)
            self.cond = None if self.cond is None else self.cond.to(device)


def _choose(weights: Tensor, m: int, generator: torch.Generator | None) -> Tensor:
    """m independent choices in each row of probabilities (n, K), as indices (n, m)."""
    u = rand((len(weights), m), generator=generator, like=weights)
    below = weights.cumsum(-1)
    return torch.searchsorted(below, u * below[:, -1:]).clamp_max(weights.shape[-1] - 1)


class GaussianPosterior:
    """The posterior of data N(mean, std**2 I), its variance times `factor`.

    With factor f(lambda, beta) (`distdiff.theory.variance_factor`) it is the best Gaussian under a generalized energy
    score; factor 1 is the true posterior and factor 0 the posterior mean, a classical diffusion model.
    """

    own_noise = True

    def __init__(
        self,
        mean: float | Tensor = 0.0,
        std: float = 1.0,
        *,
        factor: float = 1.0,
        schedule: Schedule | None = None,
    ) -> None:
        require_positive("std", std)
        require(math.isfinite(factor) and factor >= 0, "factor", factor, "a finite number of at least 0")
        self.center = torch.as_tensor(mean, dtype=torch.float64)
        self.scale = std
        self.factor = factor
        self.schedule = FlowMatching() if schedule is None else schedule

    def gain(self, t: float | Tensor) -> Tensor:
        """r(t), by which the posterior mean follows x_t; of the shape of t."""
        alpha, sigma = self.schedule(as_time(t))
        return alpha * self.scale**2 / ((alpha * self.scale) ** 2 + sigma**2)

    def variance(self, t: float | Tensor) -> Tensor:
        """Variance of a draw given x_t in each coordinate, of the shape of t: it does not depend on x_t."""
        alpha, sigma = self.schedule(as_time(t))
        return self.factor * (self.scale * sigma) ** 2 / ((alpha * self.scale) ** 2 + sigma**2)

    def mean(self, xt: Tensor, t: float | Tensor) -> Tensor:
        """E[x_0 | x_t], (n, *event)."""
        t = row_times(t, xt)
        center = self.center.to(xt.device, xt.dtype)
        alpha, gain = (expand(c.to(xt.dtype), xt) for c in (self.schedule(t)[0], self.gain(t)))
        return center + gain * (xt - alpha * center)

    def draw(
        self, xt: Tensor, t: float | Tensor, m: int = 1, cond: Any = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """m independent draws for each x_t: (n, *event) to (n, m, *event)."""
        require_count("m", m)
        z = randn((len(xt), m, *xt.shape[1:]), generator=generator, like=xt)
        return self.mean(xt, t)[:, None] + expand(self.variance(row_times(t, xt)).sqrt().to(xt.dtype), z) * z
