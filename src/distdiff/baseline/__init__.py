"""What classical diffusion models are sampled with elsewhere."""

from .dpm import sample_dpm

__all__ = ["sample_dpm"]
