"""Muon: what it does to matrices, what it leaves to Adam, and that runs with it resume."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from distdiff.recipe import RECIPES
from distdiff.recipe.config import OptimConfig
from distdiff.train import RunFolder, train
from distdiff.train.optimizer import RMS, Muon, build_optimizer, is_matrix, orthogonalize


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (16, 16)])
def test_singular_values_come_near_one_and_their_vectors_stay(shape):
    matrix = gaussian(3, *shape)
    found = orthogonalize(matrix)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = left.mT @ found @ right.mT
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert (values - torch.diag_embed(diagonal)).abs().max() < 1e-3
    assert diagonal.min() > 0.3
    assert diagonal.max() < 1.3
    wide = diagonal[..., : diagonal.shape[-1] // 2]  # the least ones of a square matrix need more iterations
    assert ((wide > 0.6) & (wide < 1.3)).all()


def test_a_step_does_not_hang_on_the_size_of_the_gradient_and_has_that_of_the_rate():
    moved = []
    for factor in (1.0, 1e-4):
        weight = nn.Parameter(torch.zeros(24, 6, 3, 3))
        weight.grad = factor * gaussian(24, 6, 3, 3)
        Muon([weight], lr=0.01).step()
        moved.append(weight.detach().clone())
    torch.testing.assert_close(*moved, rtol=1e-3, atol=1e-6)
    size = moved[0].square().mean().sqrt()
    assert 0.7 * RMS * 0.01 < size < 1.2 * RMS * 0.01
    assert (moved[0] * gaussian(24, 6, 3, 3)).sum() < 0  # downhill


def test_a_kernel_is_a_matrix_with_a_row_an_output():
    kernel, flat = nn.Parameter(gaussian(16, 4, 3, 3)), nn.Parameter(gaussian(16, 4, 3, 3).flatten(1))
    gradient = gaussian(16, 4, 3, 3, seed=1)
    kernel.grad, flat.grad = gradient.to(memory_format=torch.channels_last), gradient.flatten(1)
    for p in (kernel, flat):
        Muon([p], lr=0.1).step()
    torch.testing.assert_close(kernel.flatten(1), flat)


def test_what_is_no_matrix_moves_as_under_adam():
    shapes = [(20,), (4, 30), (30, 3)]
    ours, theirs = ([nn.Parameter(gaussian(*shape)) for shape in shapes] for _ in range(2))
    settings = OptimConfig(kind="muon", lr=0.05, betas=(0.8, 0.95), eps=1e-6)
    muon = build_optimizer(ours, settings, torch.device("cpu"))
    adam = build_optimizer(theirs, replace(settings, kind="adam"), torch.device("cpu"))
    assert isinstance(muon, Muon)
    assert not any(map(is_matrix, ours))
    for step in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = b.grad = gaussian(*a.shape, seed=step)
        muon.step()
        adam.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_matrices_of_one_shape_do_not_mix():
    alone, other = nn.Parameter(gaussian(12, 12)), nn.Parameter(gaussian(12, 12, seed=1))
    twin = nn.Parameter(alone.detach().clone())
    alone.grad = twin.grad = gaussian(12, 12, seed=2)
    other.grad = gaussian(12, 12, seed=3)
    Muon([alone], lr=0.1).step()
    Muon([other, twin], lr=0.1).step()
    torch.testing.assert_close(alone, twin)


def test_a_run_with_muon_resumes_as_if_it_had_never_stopped(tmp_path):
    smoke = RECIPES["digits"]["smoke"]
    config = replace(smoke, channels_last=True, optim=replace(smoke.optim, kind="muon"))
    for _ in train(config, tmp_path / "whole"):
        pass
    for _ in islice(train(config, tmp_path / "parts"), 3):
        pass
    for _ in train(config, tmp_path / "parts", resume="latest"):
        pass
    whole, parts = (load_file(RunFolder(tmp_path / name).checkpoint()) for name in ("whole", "parts"))
    assert any(key.endswith(".momentum") for key in whole)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
