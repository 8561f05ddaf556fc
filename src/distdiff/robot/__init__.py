"""Simulated robots: the suites of tasks, scripted experts, and the collection of demonstrations."""

from .suite import SUITES, Simulation, Suite, TaskSpec, open_suite

__all__ = ["SUITES", "Simulation", "Suite", "TaskSpec", "open_suite"]
