"""Scores that are written down as they come, so that a long evaluation that is stopped goes on where it was.

They belong to the weights of a model, to how it was sampled, to what it was compared with and to the version of this
package: another model, or another setting, finds none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .frechet import Score

__all__ = ["KeptScores"]


class KeptScores:
    """A file of scores. One that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            rows = json.loads(path.read_text())
            self.scores = {key: Score(**row) for key, row in rows.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.scores = {}

    def get(self, compute: Callable[[], Score], **how: Any) -> Score:
        """The score of that description, computed and written down if it is not there."""
        key = json.dumps(how, sort_keys=True)
        if key not in self.scores:
            self.scores[key] = compute()
            aside = self.path.with_suffix(".partial")
            aside.write_text(json.dumps({key: asdict(score) for key, score in self.scores.items()}, indent=1) + "\n")
            aside.replace(self.path)
        return self.scores[key]
