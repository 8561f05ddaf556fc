"""What every experiment leaves behind: figures, results.json and a one-page report.md."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..figure import save
from ..train.folder import make_folder

__all__ = ["Record", "scientific", "table"]


class Record:
    """Collects figures, numbers and text of one experiment, and writes them."""

    def __init__(self, name: str, scale: str, settings: Any, out: Path, options: str = "") -> None:
        self.folder = make_folder(out)
        self.name, self.scale, self.settings, self.options = name, scale, settings, options
        self.results: dict[str, Any] = {}
        self.text: list[str] = []
        self.figures: list[str] = []
        self.start = time.perf_counter()
        self.earlier = 0.0
        """Seconds of work taken over from an earlier run."""

    @property
    def command(self) -> str:
        return f"distdiff reproduce {self.name} --scale {self.scale}{self.options}"

    def figure(self, figure: Any, name: str, caption: str) -> None:
        self.figures += save(figure, self.folder, name)
        self.text.append(f"![{caption}]({name}.png)\n\n*{caption}*")

    def arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Points of a figure, too many for results.json: NAME.npz beside it."""
        np.savez_compressed(self.folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        self.results[name] = f"{name}.npz"

    def write(self, title: str, findings: Sequence[str]) -> None:
        """results.json and report.md; `findings` are the sentences a reader should take away."""
        seconds = round(time.perf_counter() - self.start + self.earlier, 1)
        versions = {name: version(name) for name in ("distdiff", "torch", "numpy", "scipy", "matplotlib")}
        payload = {
            "experiment": self.name,
            "scale": self.scale,
            "command": self.command,
            "settings": dataclasses.asdict(self.settings),
            "results": self.results,
            "figures": self.figures,
            "versions": versions | {"python": platform.python_version()},
            "threads": torch.get_num_threads(),
            "wall_seconds": seconds,
        }
        (self.folder / "results.json").write_text(_compact(json.dumps(payload, indent=2)) + "\n")
        page = [
            f"# {title}",
            f"`{self.command}`, {seconds:.0f} s on {torch.get_num_threads()} threads, torch {versions['torch']}. "
            "Every number is in `results.json`.",
            "\n".join(f"- {finding}" for finding in findings),
            *self.text,
        ]
        (self.folder / "report.md").write_text("\n\n".join(page) + "\n")


def _compact(text: str) -> str:
    """JSON with every list of numbers on a line of its own instead of one number a line."""
    return re.sub(r"\[\s+([-+.\de,\s]+?)\s+\]", lambda found: "[" + " ".join(found[1].split()) + "]", text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def scientific(value: float) -> str:
    return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")
