"""LeRobot's own processors, in its usual order: normalised batches in, actions in the robot's units out."""

from __future__ import annotations

from typing import Any

from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    NormalizerProcessorStep,
    PolicyAction,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
    UnnormalizerProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from lerobot.utils.constants import POLICY_POSTPROCESSOR_DEFAULT_NAME, POLICY_PREPROCESSOR_DEFAULT_NAME
from torch import Tensor

from .configuration_distdiff import DistdiffConfig

__all__ = ["make_distdiff_pre_post_processors"]


def make_distdiff_pre_post_processors(
    config: DistdiffConfig, dataset_stats: dict[str, dict[str, Tensor]] | None = None
) -> tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]], PolicyProcessorPipeline[PolicyAction, PolicyAction]
]:
    norms, outputs = config.normalization_mapping, config.output_features
    before = [
        RenameObservationsProcessorStep(rename_map={}),
        AddBatchDimensionProcessorStep(),
        DeviceProcessorStep(device=config.device),
        NormalizerProcessorStep(features={**config.input_features, **outputs}, norm_map=norms, stats=dataset_stats),
    ]
    after = [
        UnnormalizerProcessorStep(features=outputs, norm_map=norms, stats=dataset_stats),
        DeviceProcessorStep(device="cpu"),
    ]
    return (
        PolicyProcessorPipeline[dict[str, Any], dict[str, Any]](steps=before, name=POLICY_PREPROCESSOR_DEFAULT_NAME),
        PolicyProcessorPipeline[PolicyAction, PolicyAction](
            steps=after,
            name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
            to_transition=policy_action_to_transition,
            to_output=transition_to_policy_action,
        ),
    )
