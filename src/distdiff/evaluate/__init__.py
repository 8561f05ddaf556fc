"""Measuring samples and posteriors."""

from .points import Measurement, floor, measure, posterior_spread

__all__ = ["Measurement", "floor", "measure", "posterior_spread"]
