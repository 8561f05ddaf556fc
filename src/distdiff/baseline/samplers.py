"""Every sampler behind one call.

    distributional   the library's own, with churn: each step draws x_0 and moves on by the transition
    sde, ddim        the same with churn 1 and 0, by the names that classical diffusion models know them by
    dpm++, sde-dpm++ diffusers' DPM-Solver++, deterministic and stochastic, for flow-matching models
    hybrid           a draw, then second-order steps on the mean, with churn, for models trained with an anchor
    settle           draws with churn, but for the last step, which ends at the mean, for the same models
    euler, mean-flow those of the peers, for networks that predict a velocity and a mean velocity

`SAMPLERS` is the table that commands, evaluations and figures read: a further sampler is one more entry. In all of them
sample i depends on seed + i alone, however the batch is split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._check import require, require_choice, require_count
from ..denoiser import Draws
from ..hybrid import require_mean, sample_hybrid
from ..peer.flow import require_velocity, sample_euler
from ..peer.mean_flow import require_spans, sample_mean_flow
from ..sample import Step, rows_of, sample
from .dpm import require_flow, sample_dpm

__all__ = ["SAMPLERS", "Sampler", "require_sampler", "sample_with"]


@dataclass(frozen=True)
class Sampler:
    """An entry of the table."""

    draw: Callable[..., Tensor]
    """Called as draw(denoiser, shape, steps, [churn=,] grid=, seed=, cond=, callback=)."""
    churn: bool = False
    """Whether it takes a churn."""
    default: float = 1.0
    """The churn of one that takes it, unless told."""
    check: Callable[[Draws], None] = lambda denoiser: None
    """Raises if a denoiser is not for it."""
    draws_at_one: bool = True
    """Whether a single step is one draw from the denoiser at pure noise, as it is for all who differ later only."""


SAMPLERS: dict[str, Sampler] = {
    "distributional": Sampler(sample, churn=True),
    "sde": Sampler(partial(sample, churn=1.0)),
    "ddim": Sampler(partial(sample, churn=0.0)),
    "dpm++": Sampler(partial(sample_dpm, algorithm="dpm++"), check=require_flow),
    "sde-dpm++": Sampler(partial(sample_dpm, algorithm="sde-dpm++"), check=require_flow),
    "hybrid": Sampler(sample_hybrid, churn=True, default=0.0, check=require_mean),
    "settle": Sampler(partial(sample_hybrid, means=1), churn=True, check=partial(require_mean, sampler="settle")),
    "euler": Sampler(sample_euler, check=require_velocity),
    "mean-flow": Sampler(sample_mean_flow, check=require_spans, draws_at_one=False),
}


def require_sampler(name: str, denoiser: Draws | None = None) -> None:
    """Raise if there is no sampler of that name, or if it is not for a denoiser."""
    require_choice("sampler", name, SAMPLERS)
    if denoiser is not None:
        SAMPLERS[name].check(denoiser)


def sample_with(
    denoiser: Draws,
    shape: Sequence[int],
    steps: int,
    sampler: str = "distributional",
    churn: float | None = None,
    grid: str = "uniform",
    seed: int | Sequence[int] = 0,
    *,
    cond: Any = None,
    batch_size: int | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Tensor:
    """Samples (n, *event) by the sampler of a name.

    Args:
        churn: of distributional and settle (1 by default) and hybrid (0); the others have none.
        seed: sample i uses seed + i; or a sequence of n seeds.
        cond: conditioning, split with the batch as in `sample`.
        batch_size: samples drawn at once; all by default.
        callback: called after each step of each batch.
    """
    require_sampler(sampler, denoiser)
    entry = SAMPLERS[sampler]
    require(entry.churn or churn is None, "churn", churn, f"left out for {sampler}")
    options = {"churn": entry.default if churn is None else churn} if entry.churn else {}
    n, event = shape[0], tuple(shape[1:])
    size = max(n, 1) if batch_size is None else batch_size
    require_count("batch_size", size)
    done = [
        entry.draw(
            denoiser,
            (min(size, n - first), *event),
            steps,
            grid=grid,
            seed=seed + first if isinstance(seed, int) else seed[first : first + size],
            cond=rows_of(cond, first, first + size),
            callback=callback,
            **options,
        )
        for first in range(0, max(n, 1), size)
    ]
    return done[0] if len(done) == 1 else torch.cat(done)
