"""What is scored: a number of steps, a sampler and, where it takes one, a churn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._check import require, require_between, require_count
from ..baseline.samplers import SAMPLERS, require_sampler

__all__ = ["Setting", "check", "name_of", "plan"]


def name_of(sampler: str, churn: float | None) -> str:
    """How tables and figures call a sampler: the library's own by its churn alone."""
    if churn is None:
        return sampler
    return f"churn {churn:g}" if sampler == "distributional" else f"{sampler}, churn {churn:g}"


@dataclass(frozen=True)
class Setting:
    steps: int
    sampler: str
    churn: float | None
    """None for samplers that take none."""

    @property
    def name(self) -> str:
        return name_of(self.sampler, self.churn)


def check(steps: Sequence[int], churns: Sequence[float], samplers: Sequence[str], n: int, batch_size: int) -> None:
    """Raise the first thing wrong with what is to be scored."""
    require(len(steps) > 0 and len(churns) > 0, "steps, churn", (steps, churns), "one number or more each")
    for count in steps:
        require_count("steps", count)
    require_count("n", n, least=2)
    require_count("batch_size", batch_size)
    for churn in churns:
        require_between("churn", churn, 0, 1)
    for name in samplers:
        require_sampler(name)


def plan(steps: Sequence[int], churns: Sequence[float], samplers: Sequence[str]) -> Iterator[Setting]:
    """Every setting to be scored; one step is the same for all churns and samplers, and then done once."""
    for count in sorted(set(steps)):
        for name in samplers:
            sampler, first = SAMPLERS[name], name == "distributional" or "distributional" not in samplers
            if count > 1 or first or not sampler.draws_at_one:
                for churn in (churns if count > 1 else churns[-1:]) if sampler.churn else (None,):
                    yield Setting(count, name, churn)
