r"""Moment-matching distillation (Salimans et al., 2024, the alternating variant): a student that samples in k steps.

A classical model, the teacher, knows the posterior mean :math:`g_\theta(z_s) \approx E[x_0 | z_s]`. A step of the
student goes from noised data :math:`x_t` through :math:`\tilde x = g_\eta(x_t)` to
:math:`z_s \sim p(z_s | \tilde x, x_t)`, the transition with churn. Were :math:`\tilde x` a draw from the posterior,
then :math:`z_s` would be distributed as noised data and :math:`E[\tilde x | z_s] = E[x_0 | z_s]`. The student is
trained towards this, the matching of moments :math:`E[\tilde x | z_s] = g_\theta(z_s)`. A third network
:math:`g_\phi` learns the left side. In turn, with :math:`\tilde x` and :math:`z_s` held fixed,

.. math:: L(\phi) = w_s \left( \|\tilde x - g_\phi(z_s)\|^2 + \|g_\theta(z_s) - g_\phi(z_s)\|^2 \right), \qquad
          L(\eta) = w_s\, \tilde x^\top \mathrm{sg}[g_\phi(z_s) - g_\theta(z_s)].

The first is a sum of two squares, whose minimiser is their midpoint
:math:`g_\phi = \frac12 (E[\tilde x | z_s] + g_\theta)`; so that :math:`g_\phi - g_\theta` is half of the gap
:math:`E[\tilde x | z_s] - g_\theta(z_s)`. The gradient of the second is then

.. math:: \tfrac12\, E\left[ w_s \left(\frac{\partial \tilde x}{\partial \eta}\right)^{\!\top}
          \left(E[\tilde x | z_s] - g_\theta(z_s)\right) \right],

that of :math:`\frac14 E\, w_s \|E[\tilde x | z_s] - g_\theta(z_s)\|^2` for :math:`z_s` held fixed: descending it takes
:math:`\tilde x` down where it lies above the teacher's mean and up where it lies below, and it vanishes when the
moments match. All three networks start as the teacher.

Times are the original's: s uniform and t = s + delta with delta uniform in (0, 1/k], both within the times at which the
networks may be asked. A student without noise cannot meet the condition at every s: at s close to t it asks for the
teacher's mean again, and at the far end, where :math:`x_t` and :math:`\tilde x` are more alike than data would be, for
too wide a spread. The compromise samples well at a churn below that of training. In closed form, for N(0, 1) and
k = 4: a teacher's samples have variance 0.52 at best, those of a student trained with churn 0.5 have 1.01 at churn 0,
and those of one trained with churn 1 have 0.80, 1.00 and 1.35 at churn 1, 0.75 and 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._check import require_between, require_count
from ..denoiser import Draws, safe_interval
from ..loss import NoWeighting, Weighting
from ..random import rand, randn
from ..schedule import add_noise
from ..transition import transition

__all__ = ["MomentMatching", "StudentStep"]

APART = 1e-2
"""The least distance of t from s, in steps: a transition needs s < t in every dtype."""


class StudentStep(NamedTuple):
    """A step of the student from noised data: its x_0, (n, *event), with a gradient, and where it led, without."""

    x0: Tensor
    zs: Tensor
    s: Tensor


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    """The two losses of a student of k steps; each returns one value a data point, (n,), weighted by w_s.

    Teacher, student and auxiliary are denoisers without noise xi, with the teacher's schedule. The value of the
    student's loss is w_s times the squared gap between auxiliary and teacher, which falls as the moments come to match.
    Its gradient is that of the inner product above.
    """

    k: int = 4
    churn: float = 1.0
    weighting: Weighting = field(default_factory=NoWeighting)

    def __post_init__(self) -> None:
        require_count("k", self.k)
        require_between("churn", self.churn, 0, 1)

    def times(
        self, denoiser: Any, count: int, generator: torch.Generator | None, like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """s and t, (count,) each: s uniform, t up to a step of 1 / k above it; both safe."""
        low, high = safe_interval(denoiser)
        like = like.new_empty(0, dtype=torch.promote_types(like.dtype, torch.float32))
        first, second = (rand((count,), generator=generator, like=like) for _ in range(2))
        s = low + (high - APART / self.k - low) * first
        return s, (s + (1 - (1 - APART) * second) / self.k).clamp_max(high)

    def step(self, student: Draws, x0: Tensor, cond: Any, generator: torch.Generator | None) -> StudentStep:
        """From data to x_t, by the student to an x_0, and by the transition to z_s."""
        schedule = student.schedule
        s, t = self.times(student, len(x0), generator, x0)
        xt = add_noise(schedule, x0, t, randn(x0.shape, generator=generator, like=x0))
        made = _mean(student, xt, t, cond)
        zs = transition(schedule, t, s, self.churn)(xt, made.detach(), randn(x0.shape, generator=generator, like=x0))
        return StudentStep(made, zs.to(x0.dtype), s)

    def auxiliary(
        self,
        teacher: Draws,
        student: Draws,
        auxiliary: Draws,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """L(phi), whose gradient reaches the auxiliary alone."""
        with torch.no_grad():
            made, zs, s = self.step(student, x0, cond, generator)
            taught = _mean(teacher, zs, s, cond)
        guess = _mean(auxiliary, zs, s, cond)
        return self.weighting(student.schedule, s) * (_squared(made - guess) + _squared(taught - guess))

    def student(
        self,
        teacher: Draws,
        student: Draws,
        auxiliary: Draws,
        x0: Tensor,
        cond: Any = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """L(eta), whose gradient reaches the student alone."""
        made, zs, s = self.step(student, x0, cond, generator)
        with torch.no_grad():
            gap = _mean(auxiliary, zs, s, cond) - _mean(teacher, zs, s, cond)
        inner = ((made - made.detach()) * gap).flatten(1).sum(1)
        return self.weighting(student.schedule, s) * (_squared(gap) + inner)


def _mean(denoiser: Draws, x: Tensor, t: Tensor, cond: Any) -> Tensor:
    """The single x_0 of a classical model, (n, *event), in float32 or better."""
    x0 = denoiser.draw(x, t, 1, cond)[:, 0]
    return x0.to(torch.promote_types(x0.dtype, torch.float32))


def _squared(error: Tensor) -> Tensor:
    return error.square().flatten(1).sum(1)
