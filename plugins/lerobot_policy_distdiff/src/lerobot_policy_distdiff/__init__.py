"""A LeRobot plug-in: importing it registers the policy type `distdiff`."""

from .configuration_distdiff import DistdiffConfig
from .modeling_distdiff import DistdiffPolicy
from .processor_distdiff import make_distdiff_pre_post_processors

__all__ = ["DistdiffConfig", "DistdiffPolicy", "make_distdiff_pre_post_processors"]
