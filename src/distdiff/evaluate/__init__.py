"""Measuring samples and posteriors."""

from .calibration import Calibration, calibration
from .points import Measurement, Reference, evaluate_points, floor, measure, posterior_spread
from .setting import Setting

__all__ = [
    "Calibration",
    "Measurement",
    "Reference",
    "Setting",
    "calibration",
    "evaluate_points",
    "floor",
    "measure",
    "posterior_spread",
]
