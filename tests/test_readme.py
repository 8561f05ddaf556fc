"""The README's code runs as it stands and learns something."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from distdiff.cli import main

README = Path(__file__).parents[1] / "README.md"


def test_the_library_example_learns_its_four_corners(capsys):
    _, block = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    torch.manual_seed(0)
    exec(compile(block, str(README), "exec"), {})
    assert float(capsys.readouterr().out) < 0.01  # an untrained model is near 0.3


def test_the_pipeline_example_gives_what_the_command_line_wrote(tmp_path, monkeypatch):
    block, _ = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    main(["train", "image", "--scale", "smoke", "--out", "runs/mine"])
    main(["sample", "runs/mine", "--steps", "4", "--n", "64", "--seed", "0"])
    names: dict = {}
    exec(compile(block, str(README), "exec"), names)
    for index, image in enumerate(names["images"]):
        with Image.open(f"runs/mine/samples/{index:06d}.png") as written:
            assert np.array_equal(np.asarray(image), np.asarray(written))
