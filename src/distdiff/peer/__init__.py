"""What people train instead when they want few steps: flow matching, OT-CFM and MeanFlow, on the library's networks."""

from .flow import sample_euler
from .mean_flow import MeanFlowLoss, sample_mean_flow
from .ot_cfm import OTFlowLoss

__all__ = ["MeanFlowLoss", "OTFlowLoss", "sample_euler", "sample_mean_flow"]
