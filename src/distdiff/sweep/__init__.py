"""Sweeps: many runs of a recipe over a grid of its settings, their scores, and figures of them."""

from .folder import Sweep, SweepFolder
from .run import plan, run_sweep
from .table import Cell, Row, SweepTable, load_sweep

__all__ = ["Cell", "Row", "Sweep", "SweepFolder", "SweepTable", "load_sweep", "plan", "run_sweep"]
