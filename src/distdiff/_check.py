"""One sentence for every bad argument: which one, what it was, what is allowed; and for runs that failed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any


class BadArgument(ValueError):
    """The project's `ValueError`: the argument, its value and what is allowed."""


class FailedRuns(RuntimeError):
    """Several runs have come to their end, but for some that failed: each with its error, and what to do."""

    def __init__(self, failed: Mapping[str, str], advice: str) -> None:
        lines = "".join(f"\n  {name}: {error}" for name, error in failed.items())
        super().__init__(f"{len(failed)} run{'s' * (len(failed) > 1)} failed; {advice}:{lines}")


def require(ok: bool, name: str, value: Any, allowed: str) -> None:
    if not ok:
        raise BadArgument(f"{name} must be {allowed}, got {value!r}")


def require_choice(name: str, value: Any, choices: Any) -> None:
    require(value in choices, name, value, "one of " + ", ".join(map(str, choices)))


def require_positive(name: str, value: float) -> None:
    require(is_number(value) and value > 0, name, value, "a positive finite number")


def require_count(name: str, value: int, least: int = 1) -> None:
    require(is_whole(value) and value >= least, name, value, f"a whole number of at least {least}")


def require_between(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    inside = is_number(value) and (low < value if open_low else low <= value) and value <= high
    require(inside, name, value, f"in {'(' if open_low else '['}{low:g}, {high:g}]")


def require_seed(value: int) -> None:
    require(is_whole(value) and 0 <= value < 2**63, "seed", value, "a whole number in [0, 2**63)")


def is_whole(value: Any) -> bool:
    """A whole number of Python's or NumPy's; booleans are not numbers."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A finite real number; booleans and strings are not numbers."""
    if isinstance(value, (bool, str)):
        return False
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        return False
