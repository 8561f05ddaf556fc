from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distdiff import RBF, Energy, Exponential, InverseMultiquadric, discrepancy, median_distance, score_loss

KERNELS = [Energy(0.3), Energy(1), Energy(2), InverseMultiquadric(0.7), RBF(1.3), Exponential(0.8)]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


@given(r=st.floats(1e-6, 50), p=st.floats(0.01, 2))
def test_values_are_the_formulas(r, p):
    distance = torch.tensor(r, dtype=torch.float64)
    for kernel, value in [
        (Energy(p), r**p),
        (InverseMultiquadric(p), -((r**2 + p) ** -0.5)),
        (RBF(p), -math.exp(-(r**2) / (2 * p**2))),
        (Exponential(p), -math.exp(-r / p)),
    ]:
        assert math.isclose(float(kernel.rho(distance)), value, rel_tol=1e-12, abs_tol=1e-300)


@each_kernel
def test_events_of_any_shape_are_flattened(kernel, generator):
    x, y = (torch.randn(5, 3, 4, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    r = (x - y).square().sum((1, 2, 3)).sqrt()
    torch.testing.assert_close(kernel(x, y), kernel.rho(r), rtol=1e-12, atol=0)


@each_kernel
def test_kernels_are_negative_definite(kernel, generator):
    """c' R c <= 0 for every c that sums to 0."""
    x = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    c = torch.randn(200, 20, dtype=torch.float64, generator=generator)
    c = c - c.mean(1, keepdim=True)
    gram = kernel.rho(torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"))
    assert torch.einsum("ki,ij,kj->k", c, gram, c).max() < 1e-10


@given(r=st.floats(1e-3, 100), beta=st.floats(1e-4, 2))
def test_scaled_form_is_an_affine_map_of_the_plain_one(r, beta):
    distance = torch.tensor(r, dtype=torch.float64)
    scaled, plain = (float(Energy(beta, scaled=flag).rho(distance)) for flag in (True, False))
    assert math.isclose(scaled, (plain - 1) / beta, rel_tol=1e-9, abs_tol=1e-9)


def test_scaled_form_tends_to_the_logarithm_in_float32():
    r = torch.tensor([0.01, 0.5, 3.0])
    torch.testing.assert_close(Energy(1e-4, scaled=True).rho(r), r.log(), rtol=1e-3, atol=1e-4)


def test_scaled_loss_moves_by_a_factor_and_a_constant(generator):
    draws, x0 = torch.randn(6, 5, 3, dtype=torch.float64, generator=generator), torch.zeros(6, 3, dtype=torch.float64)
    beta, lam = 0.2, 0.6
    plain, scaled = (score_loss(Energy(beta, scaled=flag), draws, x0, lam=lam) for flag in (False, True))
    torch.testing.assert_close(scaled, (plain - (1 - lam / 2)) / beta, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("beta", [1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0, 1.5, 1.99, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [0.0, 1e-30, 1e-20, 1e-12, 1e-7])
def test_gradients_stay_finite_when_draws_coincide_or_nearly_do(beta, dtype, gap, scaled):
    base = torch.zeros(1, 4, 3, dtype=dtype)
    base[0, 1] += gap
    base[0, 3] = 1.0
    draws = base.requires_grad_()
    x0 = torch.zeros(1, 3, dtype=dtype)
    loss = score_loss(Energy(beta, scaled=scaled), draws, x0, lam=0.5)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(draws.grad).all()
    assert draws.grad[0, 3].abs().sum() > 0


@each_kernel
def test_coincident_draws_push_with_no_force(kernel):
    draws = torch.ones(2, 3, 4, requires_grad=True)
    score_loss(kernel, draws, torch.ones(2, 4)).sum().backward()
    assert torch.equal(draws.grad, torch.zeros_like(draws))


@pytest.mark.parametrize("beta", [1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0, 1.5, 1.99, 2.0])
def test_gradients_stay_finite_under_bfloat16_autocast(beta):
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    x = torch.zeros(2, 5, 4)
    x[:, 2:] = torch.randn(2, 3, 4)  # the first two draws coincide
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draws = layer(x)
        assert draws.dtype == torch.bfloat16
        loss = score_loss(Energy(beta), draws, torch.zeros(2, 3))
    assert loss.dtype == torch.float32
    loss.sum().backward()
    assert torch.isfinite(layer.weight.grad).all()
    assert layer.weight.grad.abs().sum() > 0


def test_gradient_equals_finite_differences(generator):
    draws = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    x0 = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    for kernel in KERNELS:
        assert torch.autograd.gradcheck(lambda d, k=kernel: score_loss(k, d, x0, lam=0.7), draws)


def test_close_draws_far_from_the_origin_keep_their_distance():
    """A Gram expansion would lose all digits here."""
    x = torch.full((2, 1, 3), 1000.0)
    x[1] += 0.01
    r = Energy(1)(x[:1].flatten(1), x[1:].flatten(1))
    assert math.isclose(float(r), 0.01 * math.sqrt(3), rel_tol=1e-2)


def test_median_distance_is_the_median_over_pairs_of_each_batch(generator):
    batches = [torch.randn(9, 2, 2, dtype=torch.float64, generator=generator) for _ in range(3)]
    pairs = [float((b[i] - b[j]).norm()) for b in batches for i in range(9) for j in range(i)]
    assert math.isclose(median_distance(batches), sorted(pairs)[(len(pairs) - 1) // 2], rel_tol=1e-12)


def test_median_heuristic_scales_with_gamma():
    assert math.isclose(RBF.from_median(3.0, gamma=0.25).sigma ** 2, 0.25 * 9)
    assert math.isclose(Exponential.from_median(3.0, gamma=0.25).sigma, 0.75)


def test_kernels_compare_by_their_parameters():
    assert RBF(1.0) == RBF(1.0) != RBF(2.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Energy(beta=0), "beta must be in (0, 2], got 0"),
        (lambda: Energy(beta=2.1), "beta must be in (0, 2], got 2.1"),
        (lambda: Energy(beta=-1), "beta must be in (0, 2], got -1"),
        (lambda: Energy(beta=math.nan), "beta must be in (0, 2], got nan"),
        (lambda: Energy(beta="1"), "beta must be in (0, 2], got '1'"),
        (lambda: InverseMultiquadric(c=0), "c must be a positive finite number, got 0"),
        (lambda: RBF(sigma=-1.0), "sigma must be a positive finite number, got -1.0"),
        (lambda: Exponential(sigma=math.inf), "sigma must be a positive finite number, got inf"),
        (lambda: median_distance(torch.zeros(1, 2)), "batches must be batches of two points or more"),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


def test_discrepancy_of_a_scaled_kernel_is_the_plain_one_over_beta(generator):
    x, y = torch.randn(30, 2, dtype=torch.float64, generator=generator), torch.randn(40, 2, dtype=torch.float64)
    plain, scaled = (discrepancy(Energy(0.4, scaled=flag), x, y) for flag in (False, True))
    torch.testing.assert_close(scaled, plain / 0.4, rtol=1e-10, atol=1e-12)


def test_sets_of_different_precision_and_shape_of_event_are_fine():
    x, y = torch.randn(5, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    expected = discrepancy(RBF(1), x.double()[:, None], y.double()[:, None])
    torch.testing.assert_close(discrepancy(RBF(1), x, y), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(discrepancy(RBF(1), x, y.double()), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(Energy(1)(x[:4], y.double()), (x[:4].double() - y).abs())
    assert median_distance(y) == 1.0
