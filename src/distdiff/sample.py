r"""The few-step sampler (the paper's Algorithm 2).

From :math:`x_{t_N} = \sigma_{t_N} z`, for each step from t to s of a falling time grid: draw :math:`\hat x_0` from the
denoiser at :math:`(x_t, t)`, then :math:`x_s` from the transition :math:`p(x_s | \hat x_0, x_t)`. With an exact
posterior and a grid that starts where x_t is pure noise, the result has the data distribution for any number of steps
and any churn, a single step included; with a posterior *mean* (a classical diffusion model) only as the grid becomes
fine.

A network of average velocities (`distdiff.peer.mean_flow`) is asked, at churn 0, for the average over the step, which
makes the deterministic step MeanFlow's; at other churns it is a classical model.

Sample i depends on its seed alone (see `distdiff.random`): neither the batch it is in nor the device matter, up to
rounding in the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ._check import is_whole, require, require_between, require_count, require_seed
from .denoiser import Draws, safe_interval
from .random import SampleGenerator, randn
from .row_wise import RowWise
from .schedule import SAFETY, as_time, time_grid
from .transition import Transition, transition

PREPARED = 1 << 18
"""Numbers up to which the noise of all steps is made at once, which small events gain by."""

__all__ = ["Plan", "Step", "Trajectory", "rows_of", "sample", "sample_trajectory"]


@dataclass(frozen=True)
class Step:
    """One step of a batch, as a callback sees it."""

    index: int
    """Steps of this batch done before this one."""
    steps: int
    """Steps in all."""
    t: float
    s: float
    xt: Tensor
    x0: Tensor
    """The draw this step used, (n, *event)."""
    xs: Tensor


class Trajectory(NamedTuple):
    """Every state of a run, in the order it was visited; N + 1 times and states, N draws."""

    times: Tensor
    x: Tensor
    """(N + 1, n, *event); the last one is the sample."""
    x0: Tensor
    """(N, n, *event)."""


def sample(
    denoiser: Draws,
    shape: Sequence[int],
    steps: int | None = None,
    churn: float = 1.0,
    grid: str | Sequence[float] | Tensor = "uniform",
    seed: int | Sequence[int] | Tensor = 0,
    *,
    cond: Any = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Tensor:
    """Samples of shape (n, *event).

    Args:
        denoiser: anything with a `schedule` and a `draw(xt, t, m, cond, generator)`.
        shape: (n, *event).
        steps: number of denoiser calls a sample; may be left out when `grid` lists the times.
        churn: 1 for the ancestral step, 0 for the deterministic one.
        grid: "uniform", "logsnr", "edm", or N + 1 falling times that end at 0. Named grids start at the denoiser's
            largest safe time, 1 unless it has a `safety`.
        seed: sample i uses seed + i, so that independent sets need seeds n apart; or a sequence of n seeds.
        cond: conditioning, passed to the denoiser; tensors are split along the first axis with the batch, and so are
            the values of a dict.
        batch_size: samples drawn at once; all by default.
        device, dtype: those of the denoiser's parameters by default.
        callback: called after each step of each batch.
    """
    plan = Plan(denoiser, shape, steps, churn, grid, seed, device, dtype)
    size = plan.count if batch_size is None else batch_size
    require_count("batch_size", size, least=0 if plan.count == 0 else 1)
    done = [] if plan.count else [plan.start(0, 0)[0]]
    for first in range(0, plan.count, max(size, 1)):
        xs = None
        for step in plan.run(first, min(first + size, plan.count), cond):
            xs = step.xs
            if callback is not None:
                callback(step)
        assert xs is not None
        done.append(xs)
    return done[0] if len(done) == 1 else torch.cat(done)


def sample_trajectory(denoiser: Draws, shape: Sequence[int], steps: int | None = None, **options: Any) -> Trajectory:
    """All states on the way, for the arguments of `sample`; the whole batch is run at once."""
    require("batch_size" not in options, "batch_size", options.get("batch_size"), "left out when recording")
    states: list[Tensor] = []
    draws: list[Tensor] = []
    times: list[float] = []
    callback = options.pop("callback", None)

    def record(step: Step) -> None:
        if not states:
            states.append(step.xt)
            times.append(step.t)
        states.append(step.xs)
        draws.append(step.x0)
        times.append(step.s)
        if callback is not None:
            callback(step)

    sample(denoiser, shape, steps, callback=record, **options)
    require(bool(states), "shape", tuple(shape), "of one sample or more when recording")
    return Trajectory(torch.tensor(times, dtype=torch.float64), torch.stack(states), torch.stack(draws))


class Plan:
    """Checked arguments of a run, before any work is done; what all samplers share."""

    def __init__(
        self,
        denoiser: Draws,
        shape: Sequence[int],
        steps: int | None,
        churn: float,
        grid: str | Sequence[float] | Tensor,
        seed: int | Sequence[int] | Tensor,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        listed = isinstance(shape, Sequence) and len(shape) >= 1
        require(listed and all(is_whole(k) and k >= 0 for k in shape), "shape", shape, "(n, *event), of whole numbers")
        require_between("churn", churn, 0, 1)
        self.churn = churn
        self.averages = churn == 0 and getattr(denoiser, "spans", False)
        if steps is None:
            require(not isinstance(grid, str), "steps", steps, "given unless grid lists the times")
            steps = len(grid) - 1
        low, high = safe_interval(denoiser)
        self.times = time_grid(denoiser.schedule, steps, grid, t_max=high, safety=low or SAFETY).tolist()
        self.denoiser = denoiser
        self.guard = nullcontext if getattr(denoiser, "own_noise", False) else RowWise
        self.count, self.event = shape[0], tuple(shape[1:])
        self.seeds = _seeds(seed, self.count)
        tensor = next(denoiser.parameters(), None) if isinstance(denoiser, nn.Module) else None
        own_device, own_dtype = (tensor.device, tensor.dtype) if tensor is not None else ("cpu", None)
        self.device = torch.device(device if device is not None else own_device)
        self.dtype = dtype or own_dtype or torch.get_default_dtype()
        self.wide = torch.promote_types(self.dtype, torch.float32)
        known = isinstance(denoiser.schedule, Hashable)
        self.moves, self.clock = (_moves if known else _moves.__wrapped__)(
            denoiser.schedule, tuple(self.times), churn, self.device, self.wide
        )

    def start(self, first: int, last: int) -> tuple[Tensor, SampleGenerator]:
        generator = SampleGenerator(self.seeds[first:last].to(self.device), self.device)
        like = torch.empty(0, device=self.device, dtype=self.dtype)
        sigma = float(self.denoiser.schedule(as_time(self.times[0]))[1])
        numbers = max(math.prod(self.event), math.prod(getattr(self.denoiser, "noise_shape", None) or ()))
        calls = 1 + 2 * len(self.moves)
        if calls * (last - first) * numbers <= PREPARED:
            generator.prepare(calls, numbers, self.wide)
        return sigma * randn((last - first, *self.event), generator=generator, like=like), generator

    @torch.no_grad()
    def run(self, first: int, last: int, cond: Any) -> Iterator[Step]:
        xt, generator = self.start(first, last)
        cond = rows_of(cond, first, last)
        for index, move in enumerate(self.moves):
            t, s = self.times[index : index + 2]
            span = {"span": self.clock[index] - self.clock[index + 1]} if self.averages else {}
            with self.guard():
                x0 = self.denoiser.draw(xt, self.clock[index], 1, cond, generator, **span)[:, 0]
            z = randn(xt.shape, generator=generator, like=xt) if s > 0 and self.churn > 0 else None
            xs = move(xt, x0, z).to(self.dtype)
            yield Step(index, len(self.moves), t, s, xt, x0, xs)
            xt = xs


@lru_cache(maxsize=64)
def _moves(
    schedule: Any, times: tuple[float, ...], churn: float, device: torch.device, dtype: torch.dtype
) -> tuple[list[Transition], tuple[Tensor, ...]]:
    """The transitions of a falling time grid, and its times, as scalars on a device."""
    grid = torch.tensor(times, dtype=torch.float64)
    down = transition(schedule, grid[:-1], grid[1:], churn)
    parts = (value.to(device, dtype).unbind() for value in down)
    return [Transition(*move) for move in zip(*parts, strict=True)], grid.to(device, dtype).unbind()


def _seeds(seed: Any, count: int) -> Tensor:
    """One seed a sample, (count,): the given ones, or `count` consecutive ones."""
    if isinstance(seed, (Tensor, np.ndarray)):
        seed = seed.tolist()
    if not isinstance(seed, Sequence):
        require_seed(seed)
        seed = range(int(seed), int(seed) + count)
    require(len(seed) == count, "seed", f"{len(seed)} seeds", f"one number, or {count} of them")
    return SampleGenerator(seed).seeds


def rows_of(cond: Any, first: int, last: int) -> Any:
    """The conditioning of some rows: tensors, and the values of a dict, are split along their first axis."""
    if isinstance(cond, Tensor):
        return cond[first:last] if cond.ndim else cond
    return {key: rows_of(value, first, last) for key, value in cond.items()} if isinstance(cond, dict) else cond
