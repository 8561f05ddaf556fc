"""The README's code runs as it stands and learns something."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).parents[1] / "README.md"


def test_the_library_example_learns_its_four_corners(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    torch.manual_seed(0)
    exec(compile(block, str(README), "exec"), {})
    assert float(capsys.readouterr().out) < 0.01  # an untrained model is near 0.3
