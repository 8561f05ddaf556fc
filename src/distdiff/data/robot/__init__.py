"""Robot demonstrations: three layouts read into one, and the windows of them that a policy trains on."""

from .episodes import Column, Episodes
from .read import load_episodes
from .windows import Statistics, Windows

__all__ = ["Column", "Episodes", "Statistics", "Windows", "load_episodes"]
