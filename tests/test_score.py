from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from distdiff import (
    RBF,
    Energy,
    Exponential,
    InverseMultiquadric,
    confinement,
    discrepancy,
    interaction,
    kernel_score,
    score_loss,
)
from distdiff.score import feature_score, patch_score

KERNELS = [Energy(0.3), Energy(1), Energy(2), InverseMultiquadric(0.7), RBF(1.3), Exponential(0.8)]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pair(kernel, a, b) -> float:
    return float(kernel.rho((a - b).norm()))


@each_kernel
@pytest.mark.parametrize("event", [(), (3,), (2, 3, 2)])
def test_terms_are_the_sums_over_pairs(kernel, event):
    draws, x0 = normal(3, 4, *event), normal(3, *event, seed=1)
    for i in range(3):
        own = [pair(kernel, draws[i, j], x0[i]) for j in range(4)]
        others = [pair(kernel, draws[i, j], draws[i, k]) for j in range(4) for k in range(4) if j != k]
        assert math.isclose(float(confinement(kernel, draws, x0)[i]), np.mean(own), rel_tol=1e-12)
        assert math.isclose(float(interaction(kernel, draws)[i]), np.mean(others), rel_tol=1e-12)
        expected = np.mean(own) - 0.3 / 2 * np.mean(others)
        assert math.isclose(float(score_loss(kernel, draws, x0, lam=0.3)[i]), expected, rel_tol=1e-11)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 4), m=st.integers(2, 9), dim=st.integers(1, 6))
def test_energy_at_beta_one_is_the_fair_energy_score_of_scoringrules(seed, n, m, dim):
    import scoringrules

    draws, x0 = normal(n, m, dim, seed=seed), normal(n, dim, seed=seed + 1)
    theirs = scoringrules.es_ensemble(x0.numpy(), draws.numpy(), estimator="fair")
    np.testing.assert_allclose(score_loss(Energy(beta=1), draws, x0, lam=1.0).numpy(), theirs, rtol=1e-12)


@given(seed=st.integers(0, 10**6), m=st.integers(1, 5))
def test_beta_two_without_interaction_is_squared_error(seed, m):
    draws, x0 = normal(4, m, 3, 2, seed=seed), normal(4, 3, 2, seed=seed + 1)
    error = (draws - x0[:, None]).square().sum((2, 3)).mean(1)
    torch.testing.assert_close(score_loss(Energy(beta=2), draws, x0, lam=0.0), error, rtol=1e-13, atol=0)


@given(seed=st.integers(0, 10**6))
def test_beta_two_with_full_interaction_sees_the_mean_only(seed):
    """At beta = 2, lambda = 1 the U-statistic is |mean - x0|**2 minus the population's variance of the mean."""
    draws, x0 = normal(2, 6, 3, seed=seed), normal(2, 3, seed=seed + 1)
    mean_error = (draws.mean(1) - x0).square().sum(1)
    expected = mean_error - draws.var(1).sum(1) / 6
    torch.testing.assert_close(score_loss(Energy(2), draws, x0), expected, rtol=1e-11, atol=1e-12)


@each_kernel
def test_interaction_of_coincident_draws_is_rho_at_zero(kernel):
    draws = torch.ones(2, 5, 3, dtype=torch.float64) * 0.7
    torch.testing.assert_close(interaction(kernel, draws), kernel.rho(torch.zeros(2, dtype=torch.float64)))


@each_kernel
@given(seed=st.integers(0, 10**6))
def test_losses_ignore_order_translation_and_rotation(kernel, seed):
    draws, x0 = normal(2, 5, 3, seed=seed), normal(2, 3, seed=seed + 1)
    loss = score_loss(kernel, draws, x0, lam=0.8)
    rotation = torch.linalg.qr(normal(3, 3, seed=seed + 2)).Q
    shift = normal(3, seed=seed + 3)
    moved = score_loss(kernel, draws @ rotation + shift, x0 @ rotation + shift, lam=0.8)
    torch.testing.assert_close(moved, loss, rtol=1e-9, atol=1e-11)
    shuffled = score_loss(kernel, draws[:, torch.randperm(5)], x0, lam=0.8)
    torch.testing.assert_close(shuffled, loss, rtol=1e-12, atol=1e-13)


@each_kernel
def test_loss_is_unbiased_in_the_population_size(kernel):
    """The mean over many populations of 2 equals that of one population of all draws."""
    draws, x0 = normal(1, 4000, 2), torch.zeros(1, 2, dtype=torch.float64)
    whole = float(score_loss(kernel, draws, x0))
    parts = score_loss(kernel, draws.reshape(2000, 2, 2), x0.expand(2000, -1))
    assert abs(float(parts.mean()) - whole) < 4 * float(parts.std()) / math.sqrt(2000)


@pytest.mark.parametrize("kernel", [Energy(0.5), Energy(1), Energy(1.5), RBF(1.0), InverseMultiquadric(1.0)], ids=repr)
def test_score_is_proper(kernel):
    """No other forecast beats the true distribution in expectation; a wrong spread or mean loses clearly."""
    x0 = normal(20000, 1)
    true = float(score_loss(kernel, normal(20000, 2, 1, seed=1), x0).mean())
    for forecast in (
        normal(20000, 2, 1, seed=2) * 0.5,
        normal(20000, 2, 1, seed=3) * 2,
        normal(20000, 2, 1, seed=4) + 1,
    ):
        assert float(score_loss(kernel, forecast, x0).mean()) > true + 0.005


def test_score_is_the_negative_loss():
    draws, x0 = normal(2, 3, 2), normal(2, 2, seed=1)
    assert torch.equal(kernel_score(RBF(1), draws, x0, 0.5), -score_loss(RBF(1), draws, x0, 0.5))


def test_single_precision_loss_is_single_precision():
    assert score_loss(Energy(1), torch.randn(2, 3, 2), torch.randn(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: score_loss(Energy(1), torch.zeros(2, 1, 3), torch.zeros(2, 3), lam=0.5),
            "m must be at least 2 when lam > 0",
        ),
        (
            lambda: score_loss(Energy(1), torch.zeros(2, 2, 3), torch.zeros(2, 3), lam=1.5),
            "lam must be in [0, 1], got 1.5",
        ),
        (
            lambda: score_loss(Energy(1), torch.zeros(2, 2, 3), torch.zeros(2, 3), lam=-1),
            "lam must be in [0, 1], got -1",
        ),
        (
            lambda: score_loss(Energy(1), torch.zeros(2, 2, 3), torch.zeros(2, 4)),
            "draws must be of shape (n, m, *event)",
        ),
        (
            lambda: score_loss(Energy(1), torch.zeros(3, 2, 3), torch.zeros(2, 3)),
            "draws must be of shape (n, m, *event)",
        ),
        (lambda: interaction(Energy(1), torch.zeros(2, 1, 3)), "m must be at least 2 draws"),
        (
            lambda: discrepancy(Energy(1), torch.zeros(1, 2), torch.zeros(3, 2)),
            "x must be a set of at least 2 points, got (1, 2)",
        ),
        (lambda: discrepancy(Energy(1), torch.zeros(3, 2), torch.zeros(3, 4)), "y must be events like those of x"),
        (lambda: discrepancy(Energy(1), torch.zeros(3, 2), torch.zeros(3, 2), block=0), "block must be a whole number"),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


@each_kernel
@pytest.mark.parametrize("unbiased", [True, False])
@given(p=st.integers(2, 12), q=st.integers(2, 12), block=st.integers(1, 15), seed=st.integers(0, 10**6))
def test_discrepancy_is_its_definition_for_every_block_size(kernel, unbiased, p, q, block, seed):
    x, y = normal(p, 3, seed=seed), normal(q, 3, seed=seed + 1) + 0.5
    rho = {name: kernel.rho(torch.cdist(a, b)) for name, a, b in (("xy", x, y), ("xx", x, x), ("yy", y, y))}

    def within(matrix, n):
        return (matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1)) if unbiased else matrix.mean()

    expected = rho["xy"].mean() - within(rho["xx"], p) / 2 - within(rho["yy"], q) / 2
    found = discrepancy(kernel, x, y, unbiased=unbiased, block=block)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@each_kernel
def test_biased_discrepancy_of_a_set_with_itself_is_zero(kernel):
    x = normal(50, 2)
    assert abs(float(discrepancy(kernel, x, x, unbiased=False))) < 1e-14


def test_rbf_discrepancy_of_two_gaussians_in_closed_form():
    """E k(X, Y) = (1 + 2 s^2)^(-d/2) exp(-|shift|^2 / (2 (1 + 2 s^2))) for X, Y ~ N(., s^2 I) and sigma = 1."""
    s, shift, d = 0.8, 1.2, 2
    wide = 1 + 2 * s**2
    same = wide ** (-d / 2)
    expected = same - same * math.exp(-(shift**2) / (2 * wide))
    x, y = s * normal(6000, d), s * normal(6000, d, seed=1)
    y[:, 0] += shift
    assert abs(float(discrepancy(RBF(1), x, y)) - expected) < 0.01


def test_energy_discrepancy_is_half_of_scipys_squared_cramer_distance_in_one_dimension():
    from scipy.stats import energy_distance

    x, y = normal(300, 1), normal(200, 1, seed=1) * 2
    theirs = energy_distance(x.flatten().numpy(), y.flatten().numpy()) ** 2  # 2 E|X-Y| - E|X-X'| - E|Y-Y'|
    assert math.isclose(float(discrepancy(Energy(1), x, y, unbiased=False)), theirs / 2, rel_tol=1e-9)


def test_unbiased_discrepancy_of_equal_distributions_scatters_around_zero():
    values = [
        float(discrepancy(RBF(1), normal(100, 2, seed=2 * k), normal(100, 2, seed=2 * k + 1))) for k in range(200)
    ]
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(200)
    assert min(values) < 0 < max(values)


def test_discrepancy_has_gradients():
    x = normal(20, 2).requires_grad_()
    discrepancy(Energy(1), x, normal(20, 2, seed=1) + 3).backward()
    assert float(x.grad[:, 0].mean()) < 0  # moving x towards y lowers the discrepancy


def test_memory_of_the_discrepancy_does_not_grow_with_the_sets():
    from torch.profiler import ProfilerActivity, profile

    def peak(points: int) -> int:
        x, y = torch.randn(points, 2), torch.randn(points, 2)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            discrepancy(RBF(1), x, y, block=256)
        return max(abs(event.cpu_memory_usage) // max(event.count, 1) for event in trace.key_averages())

    assert peak(4096) <= 4 * peak(512)


@pytest.mark.parametrize("kernel", [Energy(1), Energy(0.3), RBF(2.0)], ids=repr)
@pytest.mark.parametrize(("channels", "height", "width", "side", "stride"), [(1, 6, 6, 4, 2), (3, 7, 9, 3, 1)])
def test_patch_score_is_the_mean_score_of_overlapping_patches(kernel, channels, height, width, side, stride):
    draws = normal(2, 3, channels, height, width)
    x0 = normal(2, channels, height, width, seed=1)
    parts = [
        score_loss(kernel, draws[..., a : a + side, b : b + side], x0[..., a : a + side, b : b + side], 0.7)
        for a in range(0, height - side + 1, stride)
        for b in range(0, width - side + 1, stride)
    ]
    size = (height * width / side**2) ** (kernel.beta / 2) if isinstance(kernel, Energy) else 1
    expected = size * torch.stack(parts).mean(0)
    torch.testing.assert_close(patch_score(kernel, draws, x0, 0.7, side), expected)


def test_a_patch_as_large_as_the_image_is_the_image():
    draws, x0 = normal(2, 3, 1, 5, 5), normal(2, 1, 5, 5, seed=1)
    torch.testing.assert_close(patch_score(Energy(1), draws, x0, 1.0, 5), score_loss(Energy(1), draws, x0))
    with pytest.raises(ValueError, match="side must be within images"):
        patch_score(Energy(1), draws, x0, 1.0, 6)


@pytest.mark.parametrize("kernel", [Energy(1), Energy(0.3), RBF(2.0)], ids=repr)
def test_feature_score_is_the_mean_score_of_what_stands_at_each_position_of_each_map(kernel):
    draws, x0 = normal(2, 3, 1, 4, 4), normal(2, 1, 4, 4, seed=1)

    def maps(x):
        return [torch.cat([x, x.square()], 1), functional.avg_pool2d(x, 2)]

    expected = torch.zeros(2, dtype=x0.dtype)
    for flat, real in zip(maps(draws.flatten(0, 1)), maps(x0), strict=True):
        made, side, channels = flat.unflatten(0, (2, 3)), real.shape[-1], real.shape[1]
        size = (16 / channels) ** (kernel.beta / 2) if isinstance(kernel, Energy) else 1
        parts = [score_loss(kernel, made[..., a, b], real[..., a, b], 0.7) for a in range(side) for b in range(side)]
        expected += size * torch.stack(parts).mean(0) / 2
    torch.testing.assert_close(feature_score(kernel, draws, x0, 0.7, maps), expected)


def test_only_draws_have_gradients_through_features():
    draws, x0 = normal(2, 3, 1, 4, 4).requires_grad_(), normal(2, 1, 4, 4, seed=1).requires_grad_()
    feature_score(Energy(1), draws, x0, 1.0, lambda x: [x.sin()]).sum().backward()
    assert float(draws.grad.abs().sum()) > 0
    assert x0.grad is None


@pytest.mark.parametrize("kernel", [Energy(1), Energy(0.3), RBF(2.0)], ids=repr)
def test_the_score_against_several_observations_is_the_mean_of_the_scores(kernel):
    draws, several = normal(2, 3, 1, 4, 4), normal(2, 5, 1, 4, 4, seed=1)

    for score in (
        lambda x0: score_loss(kernel, draws, x0, 0.7),
        lambda x0: patch_score(kernel, draws, x0, 0.7, 2),
    ):
        expected = torch.stack([score(several[:, k]) for k in range(5)]).mean(0)
        torch.testing.assert_close(score(several), expected)
    with pytest.raises(ValueError, match="draws must be of shape"):
        score_loss(kernel, draws, several[:1])
