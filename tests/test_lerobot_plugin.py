"""The part of the LeRobot plug-in that needs no LeRobot; the plug-in's own tests hold the rest to LeRobot's classes."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from distdiff import ConditionalLoss, Energy, RegressionLoss, Sigmoid, sample
from distdiff._check import BadArgument
from distdiff.policy import PolicySpec
from distdiff.recipe.config import LossConfig, PolicyConfig

SOURCES = Path(__file__).parents[1] / "plugins" / "lerobot_policy_distdiff" / "src" / "lerobot_policy_distdiff"
ARM, WORLD, CAMERA = "observation.state", "observation.environment_state", "observation.images.top"


def load_chunks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lerobot_plugin_chunks", SOURCES / "chunks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chunks(noise_dim: int = 2, **changes):
    network = PolicyConfig(
        width=16, depth=2, heads=2, encoder_depth=0, vision="resnet10", vision_width=8, noise_dim=noise_dim
    )
    settings = {"action_size": 2, "chunk": 4, "execute": 4, "history": 2, "states": {WORLD: 2, ARM: 3}}
    settings |= {"cameras": (CAMERA,), "camera_size": None, "language_size": 0, "words": (), "network": network}
    torch.manual_seed(0)
    loss = LossConfig(kind="conditional" if noise_dim else "regression", beta=1.0, lam=0.5, m=3)
    return load_chunks().Chunks(PolicySpec(**settings | changes), loss)


def batch(n: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {ARM: (2, 3), WORLD: (2, 2), CAMERA: (2, 3, 40, 40), "action": (4, 2)}
    return {name: torch.rand((n, *shape), generator=generator) for name, shape in shapes.items()}


def test_a_batch_becomes_an_observation_of_joined_states_and_the_latest_picture():
    given = batch()
    seen = chunks().observe(given)
    assert torch.equal(seen["state"], torch.cat([given[WORLD], given[ARM]], -1))
    assert torch.equal(seen[CAMERA], 2 * given[CAMERA][:, 1] - 1)
    assert chunks(camera_size=(24, 32)).observe(given)[CAMERA].shape == (3, 3, 24, 32)


def test_a_state_without_history_is_repeated():
    given = batch()
    alone = {name: value[:, -1] if name != "action" else value for name, value in given.items()}
    state = chunks().observe(alone)["state"]
    assert torch.equal(state[:, 0], state[:, 1])
    assert torch.equal(state[:, 1], chunks().observe(given)["state"][:, 1])


@pytest.mark.parametrize("noise_dim", [0, 2])
def test_the_loss_is_the_librarys(noise_dim):
    model, given = chunks(noise_dim), batch()
    population = ConditionalLoss(kernel=Energy(1.0), lam=0.5, m=3, weighting=Sigmoid())
    expected = population if noise_dim else RegressionLoss(weighting=Sigmoid())
    torch.manual_seed(1)
    losses = model(given)
    torch.manual_seed(1)
    assert torch.equal(losses, expected(model.denoiser, given["action"], model.observe(given)))


def test_chunks_are_the_librarys_samples_of_the_averaged_weights():
    model, given = chunks(), batch()
    with torch.no_grad():
        for parameter in model.denoiser.parameters():
            parameter.add_(0.1)
    before = model.plan(given, 3, 0.5, seeds=[4, 5, 6])
    model.update()
    after = model.plan(given, 3, 0.5, seeds=[4, 5, 6])
    assert torch.equal(after, sample(model.denoiser, (3, 4, 2), 3, 0.5, seed=4, cond=model.observe(given)))
    assert not torch.allclose(before, after)
    torch.manual_seed(2)
    first = model.plan(given)
    torch.manual_seed(2)
    assert torch.equal(model.plan(given), first)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({ARM: None}, "batch must be one with observation.state"),
        ({CAMERA: None}, "batch must be one with observation.images.top"),
        ({CAMERA: torch.zeros(3, 3, 40, 40, dtype=torch.uint8)}, "must be floats of shape"),
        ({ARM: torch.zeros(3, 5, 3)}, r"observation.state must be of shape \(n, 3\) or \(n, 2, 3\)"),
        ({"action": torch.zeros(3, 4, 7)}, r"action must be of shape \(n, 4, 2\)"),
        ({"action": None}, "batch must be one with action"),
    ],
)
def test_a_batch_that_does_not_fit_is_told(change, sentence):
    given = {name: value for name, value in (batch() | change).items() if value is not None}
    with pytest.raises(BadArgument, match=sentence):
        chunks()(given)


def test_the_plug_in_keeps_the_names_that_lerobot_looks_for():
    names = {}
    for kind in ("configuration", "modeling", "processor"):
        tree = ast.parse((SOURCES / f"{kind}_distdiff.py").read_text())
        names[kind] = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert "DistdiffConfig" in names["configuration"]
    assert "DistdiffPolicy" in names["modeling"]
    assert "make_distdiff_pre_post_processors" in names["processor"]
