"""What people use instead: samplers of classical diffusion models, and distillation."""

from .distill import MomentMatching
from .dpm import sample_dpm
from .samplers import SAMPLERS, sample_with

__all__ = ["SAMPLERS", "MomentMatching", "sample_dpm", "sample_with"]
