"""Recipes: every setting of every experiment, by name and scale."""

from .closed import GAUSSIAN, SNR, GaussianStudy, SnrStudy
from .config import SCALES, RunConfig
from .points import DEMO, STUDIES, PointStudy

__all__ = [
    "DEMO",
    "GAUSSIAN",
    "RECIPES",
    "SCALES",
    "SNR",
    "STUDIES",
    "GaussianStudy",
    "PointStudy",
    "RunConfig",
    "SnrStudy",
]

RECIPES: dict[str, dict[str, RunConfig]] = {
    study if model == "distributional" else f"{study}-{model}": {
        scale: STUDIES[study][scale].models[model] for scale in SCALES
    }
    for study in STUDIES
    for model in STUDIES[study]["paper"].models
}
"""Training runs: a study's name is its distributional model, a suffix its classical twins."""
