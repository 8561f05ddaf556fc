"""Trained image models as diffusers knows them: a network, a scheduler and a pipeline that load and save as folders."""

from .pipeline import DistributionalPipeline, load_pipeline
from .scheduler import DistributionalScheduler
from .unet import DistributionalUNet

__all__ = ["DistributionalPipeline", "DistributionalScheduler", "DistributionalUNet", "load_pipeline"]
