"""Networks. They know nothing of schedules, losses or samplers."""

from .mlp import MLP

__all__ = ["MLP"]
