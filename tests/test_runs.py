"""Training the models of a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distdiff._check import FailedRuns
from distdiff.recipe import RECIPES
from distdiff.reproduce.runs import train_runs
from distdiff.train import RunFolder

SMOKE = replace(RECIPES["checkerboard"]["smoke"], steps=6, save_every=3)
MODELS = {"first": SMOKE, "second": replace(SMOKE, seed=1)}


def trained(path: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(path).checkpoint())


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_models_trained_side_by_side_are_those_trained_in_turn(tmp_path):
    together, seconds, earlier = train_runs(MODELS, tmp_path / "together", side_by_side=True)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    in_turn, *_ = train_runs(MODELS, tmp_path / "in turn")
    for name in MODELS:
        a, b = trained(together[name]), trained(in_turn[name])
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
        assert seconds[name] > 0
    assert earlier == 0
    again, _, before = train_runs(MODELS, tmp_path / "together", side_by_side=True)
    assert again == together
    assert before == pytest.approx(sum(seconds.values()))


@pytest.mark.usefixtures("two_threads")
def test_a_model_that_fails_beside_another_is_named_and_the_other_kept(tmp_path, capfd):
    wrong = replace(SMOKE, data=replace(SMOKE.data, name="nothing"))
    with pytest.raises(FailedRuns, match=r"1 run failed.*\n  second: exit code 1"):
        train_runs({"first": SMOKE, "second": wrong}, tmp_path, side_by_side=True)
    assert "data.name must be one of" in capfd.readouterr().err
    assert RunFolder(tmp_path / "runs" / "first").done(SMOKE) == SMOKE.steps
    assert torch.get_num_threads() == 2
