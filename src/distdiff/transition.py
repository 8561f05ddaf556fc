r"""The reverse transition p(x_s | x_0, x_t) for s < t, with churn.

With :math:`a = \alpha_t/\alpha_s`, :math:`b = \sigma_s/\sigma_t` and :math:`u = \varepsilon^2 (1 - ab)`, the Gaussian

.. math:: x_s = c_{xt}\, x_t + c_{x0}\, x_0 + \mathrm{std}\, z, \qquad
          c_{xt} = b (1-u), \quad c_{x0} = \alpha_s - \alpha_t c_{xt}, \quad \mathrm{std}^2 = \sigma_s^2\, u (2-u)

leaves every marginal p(x_s | x_0) as the schedule has it. It is the paper's form with the powers collected: expanding
gives :math:`c_{xt} = \varepsilon^2 a b^2 + (1-\varepsilon^2) b` and
:math:`\mathrm{std}^2 = \sigma_s^2 (1 - (\varepsilon^2 ab + 1 - \varepsilon^2)^2)`. Churn 1 is DDPM's ancestral step,
churn 0 deterministic DDIM, and at s = 0 the step returns x_0 whatever the churn.

Churn is the paper's :math:`\varepsilon`. DDIM's eta scales the standard deviation instead,
:math:`\mathrm{std} = \eta\, \mathrm{std}_{\varepsilon=1}`; the two agree only at 0 and 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._check import require, require_between
from .schedule import ScheduleLike, as_time, expand

__all__ = ["Transition", "churn_to_eta", "eta_to_churn", "transition"]


class Transition(NamedTuple):
    """Coefficients of x_s = c_xt x_t + c_x0 x_0 + std z, each of the shape of s and t."""

    c_xt: Tensor
    c_x0: Tensor
    std: Tensor

    def __call__(self, xt: Tensor, x0: Tensor, z: Tensor | None = None) -> Tensor:
        """x_s for xt, x0 and noise z, all (n, *event). Without z, the mean."""
        mean = expand(self.c_xt, xt) * xt + expand(self.c_x0, x0) * x0
        return mean if z is None else mean + expand(self.std, z) * z


def transition(schedule: ScheduleLike, t: float | Tensor, s: float | Tensor, churn: float = 1.0) -> Transition:
    """The step from t down to s, 0 <= s < t <= 1, with churn in [0, 1]."""
    require_between("churn", churn, 0, 1)
    a, b, alpha_t, alpha_s, sigma_s = _ratios(schedule, t, s)
    u = churn**2 * (1 - a * b).clamp_min(0)
    c_xt = b * (1 - u)
    std = sigma_s * torch.sqrt(u * (2 - u)) if churn else torch.zeros_like(c_xt)  # no root of 0 to differentiate
    return Transition(c_xt, alpha_s - alpha_t * c_xt, std)


def churn_to_eta(schedule: ScheduleLike, t: float | Tensor, s: float | Tensor, churn: float) -> Tensor:
    """DDIM's eta of the step from t to s that has the given churn."""
    require_between("churn", churn, 0, 1)
    a, b, *_ = _ratios(schedule, t, s)
    u = churn**2 * (1 - a * b)
    return churn * torch.sqrt((2 - u) / (1 + a * b))


def eta_to_churn(schedule: ScheduleLike, t: float | Tensor, s: float | Tensor, eta: float) -> Tensor:
    """The churn of the step from t to s that has the given DDIM eta, in [0, 1]."""
    require_between("eta", eta, 0, 1)
    a, b, *_ = _ratios(schedule, t, s)
    root = torch.sqrt(1 - eta**2 * (1 - (a * b) ** 2))
    return (eta * torch.sqrt((1 + a * b) / (1 + root))).clamp_max(1)


def _ratios(schedule: ScheduleLike, t: float | Tensor, s: float | Tensor) -> tuple[Tensor, ...]:
    t, s = as_time(t), as_time(s)
    ordered = bool(((s >= 0) & (s < t) & (t <= 1)).all())
    require(ordered, "s, t", (s.tolist(), t.tolist()), "times with 0 <= s < t <= 1")
    alpha_t, sigma_t = map(as_time, schedule(t))
    alpha_s, sigma_s = map(as_time, schedule(s))
    return alpha_t / alpha_s, sigma_s / sigma_t, alpha_t, alpha_s, sigma_s
