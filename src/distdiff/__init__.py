"""Distributional diffusion models: networks that draw from the whole posterior, trained with proper scoring rules."""

from typing import Any

from . import theory
from .denoiser import Denoiser
from .kernel import RBF, Energy, Exponential, InverseMultiquadric, Kernel, median_distance
from .loss import ConditionalLoss, JointLoss, MarginalLoss, NoWeighting, RegressionLoss, Sigmoid, Spread
from .posterior import EmpiricalPosterior, GaussianPosterior, MixturePosterior
from .random import SampleGenerator, rand, randn
from .sample import Step, Trajectory, sample, sample_trajectory
from .schedule import Cosine, FlowMatching, LinearBeta, Schedule, add_noise, time_grid
from .score import confinement, discrepancy, interaction, kernel_score, score_loss
from .transition import Transition, churn_to_eta, eta_to_churn, transition

__version__ = "0.1.0"

_HUB = ("DistributionalPipeline", "DistributionalScheduler", "DistributionalUNet")


def __getattr__(name: str) -> Any:
    """diffusers looks here for the classes of a saved pipeline. They are imported when they are asked for."""
    if name in _HUB:
        from . import hub

        return getattr(hub, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "RBF",
    "ConditionalLoss",
    "Cosine",
    "Denoiser",
    "DistributionalPipeline",
    "DistributionalScheduler",
    "DistributionalUNet",
    "EmpiricalPosterior",
    "Energy",
    "Exponential",
    "FlowMatching",
    "GaussianPosterior",
    "InverseMultiquadric",
    "JointLoss",
    "Kernel",
    "LinearBeta",
    "MarginalLoss",
    "MixturePosterior",
    "NoWeighting",
    "RegressionLoss",
    "SampleGenerator",
    "Schedule",
    "Sigmoid",
    "Spread",
    "Step",
    "Trajectory",
    "Transition",
    "add_noise",
    "churn_to_eta",
    "confinement",
    "discrepancy",
    "eta_to_churn",
    "interaction",
    "kernel_score",
    "median_distance",
    "rand",
    "randn",
    "sample",
    "sample_trajectory",
    "score_loss",
    "theory",
    "time_grid",
    "transition",
]
