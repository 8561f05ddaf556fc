"""Recipes: every setting of every experiment, by name and scale."""

from .closed import GAUSSIAN, SNR, GaussianStudy, SnrStudy
from .config import SCALES, AutoencoderRun, ImageRun, PointsRun, RobotRun, RunConfig
from .heatmap import HEATMAPS, HeatmapStudy
from .image import AUTOENCODER, COMPLEXITY, IMAGE_DEMO, IMAGE_STUDIES, IMAGES, ComplexityStudy, ImageStudy
from .points import POINT_PEERS, STUDIES, PointStudy
from .robot import ROBOT_STUDIES, ROBOTS, RobotStudy
from .table import TABLES, TableStudy

__all__ = [
    "AUTOENCODER",
    "COMPLEXITY",
    "GAUSSIAN",
    "HEATMAPS",
    "IMAGES",
    "IMAGE_DEMO",
    "IMAGE_STUDIES",
    "POINT_PEERS",
    "RECIPES",
    "ROBOTS",
    "ROBOT_STUDIES",
    "SCALES",
    "SNR",
    "STUDIES",
    "TABLES",
    "AutoencoderRun",
    "ComplexityStudy",
    "GaussianStudy",
    "HeatmapStudy",
    "ImageRun",
    "ImageStudy",
    "PointStudy",
    "PointsRun",
    "RobotRun",
    "RobotStudy",
    "RunConfig",
    "SnrStudy",
    "TableStudy",
]

RECIPES: dict[str, dict[str, RunConfig]] = {
    **{
        study if model == "distributional" else f"{study}-{model}": {
            scale: STUDIES[study][scale].models[model] for scale in SCALES
        }
        for study in STUDIES
        for model in STUDIES[study]["paper"].models
    },
    **{name: dict(scales) for name, scales in (POINT_PEERS | IMAGES | ROBOTS).items()},
    "autoencoder": dict(AUTOENCODER),
}
"""Training runs: an experiment's name is its distributional model, a suffix its classical twins and its peers."""
