from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize

from distdiff import (
    RBF,
    Cosine,
    Energy,
    Exponential,
    FlowMatching,
    InverseMultiquadric,
    LinearBeta,
    NoWeighting,
    Sigmoid,
    discrepancy,
    time_grid,
)
from distdiff.theory import (
    conditional_snr,
    diffusion_limit,
    gaussian_path,
    joint_snr,
    snr_crossing,
    variance_factor,
)


@pytest.mark.parametrize("beta", [0.2, 1.0, 1.7])
@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9, 1.0])
def test_variance_factor_minimises_the_expected_loss(lam, beta):
    """E|X - Y|^beta is (1 + v)^(beta/2) and E|X - X'|^beta is (2 v)^(beta/2), in units of E|Z|^beta."""

    def loss(log_v: float) -> float:
        v = math.exp(log_v)
        return (1 + v) ** (beta / 2) - lam / 2 * (2 * v) ** (beta / 2)

    best = optimize.minimize_scalar(loss, bounds=(-40, 5), method="bounded", options={"xatol": 1e-10})
    assert math.isclose(math.exp(best.x), float(variance_factor(lam, beta)), rel_tol=1e-4, abs_tol=1e-12)


@given(lam=st.floats(0, 1), beta=st.floats(1e-4, 2))
def test_variance_factor_lies_between_zero_and_one_and_grows_with_lambda(lam, beta):
    assert 0 <= variance_factor(lam, beta) <= 1
    assert variance_factor(lam / 2, beta) <= variance_factor(lam, beta)


@pytest.mark.parametrize("beta", [1e-4, 1.0, 1.999, 2.0])
def test_variance_factor_at_its_ends(beta):
    assert variance_factor(0.0, beta) == 0
    assert variance_factor(1.0, beta) == 1


def test_variance_factor_at_beta_two_keeps_nothing():
    assert variance_factor(0.999, 2.0) == 0


def test_variance_factor_takes_arrays_and_tensors():
    lam, beta = np.array([0.0, 0.5, 1.0]), np.array([[0.5], [1.0]])
    table = variance_factor(lam, beta)
    assert table.shape == (2, 3)
    assert math.isclose(table[1, 1], variance_factor(0.5, 1.0))
    tensor = variance_factor(torch.tensor([0.5]), 1.0)
    assert isinstance(tensor, torch.Tensor)
    assert math.isclose(float(tensor), 1 / 7)  # 1 / (2 * 0.5**-2 - 1)


@pytest.mark.parametrize("schedule", [FlowMatching(), Cosine()], ids=repr)
@given(steps=st.integers(1, 30), churn=st.floats(0, 1), mean=st.floats(-3, 3), std=st.floats(0.1, 5))
def test_exact_posteriors_reach_the_target_in_any_number_of_steps(schedule, steps, churn, mean, std):
    path = gaussian_path(time_grid(schedule, steps), mean=mean, std=std, churn=churn, schedule=schedule)
    assert math.isclose(float(path.mean[-1]), mean, rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(float(path.variance[-1]), std**2, rel_tol=1e-9)


@pytest.mark.parametrize("churn", [0.3, 1.0])
def test_exact_posteriors_follow_the_forward_marginals(churn):
    schedule = FlowMatching()
    path = gaussian_path(time_grid(schedule, 7), mean=2.0, std=0.5, churn=churn)
    alpha, sigma = schedule(path.times)
    torch.testing.assert_close(path.mean, 2 * alpha)
    torch.testing.assert_close(path.variance, alpha**2 * 0.25 + sigma**2)


def test_linear_beta_keeps_the_trace_of_data_it_starts_without():
    path = gaussian_path(time_grid(LinearBeta(), 50), mean=3.0, std=1.0, schedule=LinearBeta())
    assert abs(float(path.mean[-1]) - 3.0) < 0.02


@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0])
def test_narrow_posteriors_recover_the_target_at_first_order_in_the_step(churn):
    """With factor f < 1 the missing variance falls like 1 / N."""
    missing = [
        4 - float(gaussian_path(time_grid(FlowMatching(), n), std=2.0, factor=0.3, churn=churn).variance[-1])
        for n in (200, 400, 800)
    ]
    assert all(value > 0 for value in missing)
    assert 1.8 < missing[0] / missing[1] < 2.2
    assert 1.8 < missing[1] / missing[2] < 2.2


def by_riemann_sum(h) -> float:
    t = (np.arange(200_000) + 0.5) / 200_000
    values = h(t)
    return values.mean() ** 2 / values.var()


@pytest.mark.parametrize("std", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("bias", [None, 0.0, 2.0])
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_signal_to_noise_ratios_are_the_papers_integrals(std, bias, beta):
    def weight(t):
        return 1.0 if bias is None else 1 / (1 + np.exp(bias) * (t / (1 - t)) ** 2)

    weighting = NoWeighting() if bias is None else Sigmoid(bias)
    u = lambda t: t**2 / ((1 - t) ** 2 * std**2)  # noqa: E731
    conditional = by_riemann_sum(lambda t: weight(t) * (u(t) / (1 + u(t))) ** (beta / 2))
    joint = by_riemann_sum(lambda t: weight(t) * (std**beta + ((1 - t) ** 2 * std**2 + t**2) ** (beta / 2)))
    assert math.isclose(conditional_snr(std, weighting, beta=beta), conditional, rel_tol=1e-4)
    assert math.isclose(joint_snr(std, weighting, beta=beta), joint, rel_tol=1e-4)
    assert math.isclose(joint_snr(std, weighting, beta=beta, n=7), 7 * joint, rel_tol=1e-4)


@pytest.mark.parametrize("bias", [0.0, 1.0, 2.0])
def test_conditional_interaction_wins_above_the_crossing_and_loses_below(bias):
    weighting = Sigmoid(bias)
    std = snr_crossing(weighting)
    assert math.isclose(conditional_snr(std, weighting), joint_snr(std, weighting), rel_tol=1e-6)
    assert conditional_snr(1.2 * std, weighting) > joint_snr(1.2 * std, weighting)
    assert conditional_snr(0.8 * std, weighting) < joint_snr(0.8 * std, weighting)


@pytest.mark.parametrize("weighting", [None, NoWeighting(), Sigmoid(-4.0)])
def test_without_weight_on_clean_times_the_joint_interaction_wins_for_wide_data(weighting):
    assert joint_snr(1.0, weighting) > conditional_snr(1.0, weighting)
    assert snr_crossing(weighting) is None


def test_no_crossing_in_the_bracket_is_none():
    assert snr_crossing(Sigmoid(0.0), bracket=(2.0, 3.0)) is None


@pytest.mark.parametrize("schedule", [Cosine(), LinearBeta()], ids=repr)
def test_an_interaction_that_does_not_vary_has_infinite_ratio(schedule):
    assert joint_snr(1.0, schedule=schedule) == math.inf


WIDENING = [
    (RBF, 2.0),  # error of order 1 / sigma**2
    (InverseMultiquadric, 1.0),  # of order 1 / c
    (Exponential, 1.0),  # of order 1 / sigma
]


@pytest.mark.parametrize(("kernel", "order"), WIDENING, ids=["rbf", "imq", "exp"])
def test_wide_kernels_converge_to_their_diffusion_limit_at_the_stated_rate(kernel, order):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(50, 3, dtype=torch.float64, generator=generator) * 1.5 + 1
    limit = float(discrepancy(diffusion_limit(kernel(1.0)).limit, x, y, unbiased=False))
    widths = np.array([1e2, 2e2, 4e2]) if order == 2 else np.array([1e3, 2e3, 4e3])
    errors = [
        abs(diffusion_limit(kernel(w)).factor * float(discrepancy(kernel(w), x, y, unbiased=False)) - limit)
        for w in widths
    ]
    rates = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    np.testing.assert_allclose(rates, order, atol=0.05)
    assert errors[-1] < 0.01 * limit


def test_limit_of_the_diffusion_compatible_kernels_is_the_squared_distance_of_the_means():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    expected = (x.mean(0) - y.mean(0)).square().sum()
    torch.testing.assert_close(discrepancy(Energy(2), x, y, unbiased=False), expected, rtol=1e-10, atol=1e-12)
    for kernel in (RBF(5e2), InverseMultiquadric(1e5)):
        factor, limit = diffusion_limit(kernel)
        assert limit == Energy(2)
        found = factor * discrepancy(kernel, x, y, unbiased=False)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_papers_factor_for_the_inverse_multiquadric_would_vanish():
    """2 c in place of 2 c**1.5 tends to 0, not to the squared distance of the means."""
    x, y = torch.zeros(2, 1, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    value = float(discrepancy(InverseMultiquadric(1e6), x, y, unbiased=False))
    assert 2e6 * value < 0.01
    assert math.isclose(2e9 * value, 1.0, rel_tol=1e-3)


def test_expected_distance_behind_the_analysis():
    """E|N(0, v)|^beta scales as v^(beta/2), the fact the closed forms stand on."""
    beta, v = 0.7, 2.3
    ratio = integrate.quad(lambda x: abs(x) ** beta * math.exp(-x * x / (2 * v)) / math.sqrt(v), -60, 60)[0]
    ratio /= integrate.quad(lambda x: abs(x) ** beta * math.exp(-x * x / 2), -60, 60)[0]
    assert math.isclose(ratio, v ** (beta / 2), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: variance_factor(1.2, 1.0), "lam must be in [0, 1], got 1.2"),
        (lambda: variance_factor(0.5, 0.0), "beta must be in (0, 2], got 0.0"),
        (lambda: variance_factor(0.5, 2.5), "beta must be in (0, 2], got 2.5"),
        (lambda: conditional_snr(-1.0), "std must be a positive finite number, got -1.0"),
        (lambda: joint_snr(1.0, beta=3), "beta must be in (0, 2], got 3"),
        (lambda: gaussian_path([1.0]), "times must be two times or more"),
        (lambda: diffusion_limit(Energy(1)), "kernel must be one of RBF, InverseMultiquadric, Exponential"),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
