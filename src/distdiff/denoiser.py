r"""A denoiser draws from (an approximation of) the posterior p(x_0 | x_t).

`draw(xt, t, m, cond, generator)` is the one door between a network and everything else: losses, samplers and studies
see draws of shape (n, m, \*event) and nothing of how they were made. `Denoiser` opens that door for a neural network
:math:`\hat x_\theta(t, x_t, \xi)`, which turns noise :math:`\xi` into draws; without :math:`\xi` the network is
a classical diffusion model and its single draw is the posterior mean. The closed-form posteriors of
`distdiff.posterior` open the same door.

A network may predict :math:`x_0` itself, the velocity :math:`x_0 - z`, the noise z, what diffusers calls v,
:math:`\alpha_t z - \sigma_t x_0`, or, as EDM does, what :math:`x_0` is beyond the best linear guess from
:math:`x_t = \alpha_t x_0 + \sigma_t z`, in units of that guess's error. Solving for :math:`x_0` gives

.. math:: \hat x_0 = \hat y, \qquad \hat x_0 = \frac{x_t + \sigma_t \hat y}{\alpha_t + \sigma_t}, \qquad
          \hat x_0 = \frac{x_t - \sigma_t \hat y}{\alpha_t}, \qquad
          \hat x_0 = \frac{\alpha_t x_t - \sigma_t \hat y}{\alpha_t^2 + \sigma_t^2}, \qquad
          \hat x_0 = \frac{\alpha_t s^2 x_t}{\alpha_t^2 s^2 + \sigma_t^2}
                      + \frac{\sigma_t s\, \hat y}{\sqrt{\alpha_t^2 s^2 + \sigma_t^2}}, \quad s = \tfrac12.

The last form is the first where there is only noise and the second where there is almost none: it can both start
a picture and leave a finished one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ._check import is_number, require, require_choice, require_count
from .random import randn
from .schedule import FlowMatching, Schedule, ScheduleLike, as_time, expand

__all__ = ["PREDICTIONS", "Denoiser", "Draws", "row_times", "safe_interval", "to_x0"]

PREDICTIONS = ("x0", "velocity", "noise", "v", "edm")
DATA_STD = 0.5
"""s above: the scale of pictures in [-1, 1], as EDM has it."""


@runtime_checkable
class Draws(Protocol):
    """What the sampler needs of a denoiser."""

    schedule: Any

    def draw(
        self, xt: Tensor, t: Tensor, m: int = 1, cond: Any = None, generator: torch.Generator | None = None
    ) -> Tensor: ...


def safe_interval(denoiser: Any) -> tuple[float, float]:
    """The times [eta, 1 - eta] a denoiser may be asked at; all of [0, 1] unless it has a `safety`."""
    safety = getattr(denoiser, "safety", 0.0)
    return safety, 1 - safety


def row_times(t: float | Tensor, xt: Tensor) -> Tensor:
    """t beside xt (n, *event): on its device, in float32 or better, of shape () or (n,)."""
    t = as_time(t)
    require(t.ndim == 0 or t.shape == xt.shape[:1], "t", tuple(t.shape), f"of shape () or ({len(xt)},)")
    return t.to(xt.device, torch.promote_types(xt.dtype, torch.float32))


def to_x0(prediction: str, schedule: ScheduleLike, output: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    """The x_0 that a network's output stands for; xt and output (n, ...) of equal shape, t () or (n,)."""
    if prediction == "x0":
        return output
    alpha, sigma = (expand(c, output) for c in schedule(t))
    if prediction == "velocity":
        return (xt + sigma * output) / (alpha + sigma)
    if prediction == "noise":
        return (xt - sigma * output) / alpha
    if prediction == "v":
        return (alpha * xt - sigma * output) / (alpha**2 + sigma**2)
    skip, scale = _precondition(alpha, sigma)
    return skip * xt + scale * output


def _precondition(alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """The best linear guess of x_0 from x_t, as a factor, and its error, for data of standard deviation s."""
    total = (alpha * DATA_STD) ** 2 + sigma**2
    return alpha * DATA_STD**2 / total, sigma * DATA_STD / total.sqrt()


class Denoiser(nn.Module):
    r"""A network, the schedule it was trained on, what it predicts and the noise it takes.

    The network is called as ``network(xt, t, xi, cond)`` with xt (n, \*event), t () or (n,) and
    xi (n, m, \*noise_shape) or None, and returns (n, m, \*event), with m = 1 where xi is None. One that has
    `spans` also takes ``span=``, () or (n,), and predicts the average over [t - span, t] of what it predicts without.

    Args:
        noise_shape: event shape of xi; None for a classical model, whose draws all coincide.
        safety: eta; times are clamped to [eta, 1 - eta] before the network sees them.
        anchored: whether the draw at xi = 0 was trained to be the posterior mean (an `anchor` of `ConditionalLoss`).
    """

    own_noise = True  # draws row by row from a `SampleGenerator`, see `distdiff.random`

    def __init__(
        self,
        network: nn.Module,
        *,
        schedule: Schedule | None = None,
        prediction: str = "x0",
        noise_shape: Sequence[int] | None = None,
        safety: float = 1e-2,
        anchored: bool = False,
    ) -> None:
        super().__init__()
        require_choice("prediction", prediction, PREDICTIONS)
        require(is_number(safety) and 0 <= safety < 0.5, "safety", safety, "in [0, 0.5)")
        require(safety > 0 or prediction != "noise", "safety", safety, "positive for a noise prediction")
        self.network = network
        self.schedule = FlowMatching() if schedule is None else schedule
        self.prediction = prediction
        self.noise_shape = None if noise_shape is None else tuple(noise_shape)
        self.safety = safety
        self.anchored = anchored

    @property
    def has_mean(self) -> bool:
        """Whether `mean` is the posterior mean: of a classical model, and of one that was trained with an anchor."""
        return self.noise_shape is None or self.anchored

    @property
    def spans(self) -> bool:
        """Whether the network predicts averages over spans of time."""
        return getattr(self.network, "spans", False)

    def forward(
        self, xt: Tensor, t: Tensor, xi: Tensor | None = None, cond: Any = None, span: Tensor | None = None
    ) -> Tensor:
        """The network's raw prediction, (n, m, *event)."""
        low, high = safe_interval(self)
        more = {} if span is None else {"span": span}
        return self.network(xt, t.clamp(low, high), xi, cond, **more)

    def draw(
        self,
        xt: Tensor,
        t: float | Tensor,
        m: int = 1,
        cond: Any = None,
        generator: torch.Generator | None = None,
        *,
        span: Tensor | None = None,
    ) -> Tensor:
        """m draws of x_0 for each x_t: (n, *event) to (n, m, *event).

        With a span, for a network that has them, what x_0 would be if the average over [t - span, t] went on to 0.
        """
        require_count("m", m)
        t = row_times(t, xt)
        if self.noise_shape is None:
            draws = self.to_x0(self(xt, t, None, cond, span), xt, t)
            return draws.expand(-1, m, *draws.shape[2:])
        xi = randn((len(xt), m, *self.noise_shape), generator=generator, like=xt)
        return self.to_x0(self(xt, t, xi, cond, span), xt, t)

    def draw_with_mean(
        self, xt: Tensor, t: float | Tensor, m: int = 1, cond: Any = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """m draws, (n, m, *event), and what the network makes of xi = 0, (n, *event), in one pass."""
        if self.noise_shape is None:
            draws = self.draw(xt, t, m, cond, generator)
            return draws, draws[:, 0]
        t = row_times(t, xt)
        xi = randn((len(xt), m, *self.noise_shape), generator=generator, like=xt)
        draws = self.to_x0(self(xt, t, torch.cat([xi, torch.zeros_like(xi[:, :1])], dim=1), cond), xt, t)
        return draws[:, :-1], draws[:, -1]

    def mean(self, xt: Tensor, t: float | Tensor, cond: Any = None) -> Tensor:
        """What the network makes of xi = 0, (n, *event): the posterior mean, for a denoiser that `has_mean`."""
        if self.noise_shape is None:
            return self.draw(xt, t, 1, cond)[:, 0]
        t = row_times(t, xt)
        return self.to_x0(self(xt, t, xt.new_zeros(len(xt), 1, *self.noise_shape), cond), xt, t)[:, 0]

    def to_x0(self, output: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """The x_0 that a prediction (n, m, *event) stands for."""
        return to_x0(self.prediction, self.schedule, output, xt[:, None], t.clamp_max(1 - self.safety))

    def target(self, x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """What the network should have predicted for x_t = alpha_t x0 + sigma_t z."""
        if self.prediction in ("x0", "velocity", "noise"):
            return {"x0": x0, "velocity": x0 - z, "noise": z}[self.prediction]
        alpha, sigma = (expand(c, x0) for c in self.schedule(t))
        if self.prediction == "v":
            return alpha * z - sigma * x0
        skip, scale = _precondition(alpha, sigma)
        return (x0 - skip * (alpha * x0 + sigma * z)) / scale
