"""Measuring samples and posteriors."""

from .points import Measurement, Reference, floor, measure, posterior_spread

__all__ = ["Measurement", "Reference", "floor", "measure", "posterior_spread"]
