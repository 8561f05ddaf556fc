"""Measuring samples and posteriors."""

from .points import Measurement, Reference, evaluate_points, floor, measure, posterior_spread
from .setting import Setting

__all__ = ["Measurement", "Reference", "Setting", "evaluate_points", "floor", "measure", "posterior_spread"]
