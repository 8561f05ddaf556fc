from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distdiff import Cosine, FlowMatching, LinearBeta, churn_to_eta, eta_to_churn, transition

SCHEDULES = [FlowMatching(), Cosine(), LinearBeta()]
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
unit = st.floats(0, 1)


@st.composite
def two_times(draw) -> tuple[float, float]:
    t = draw(st.floats(1e-3, 1))
    return t, t * draw(st.floats(0, 0.999))


def close(a, b, scale=1.0) -> bool:
    return math.isclose(float(a), float(b), rel_tol=1e-12, abs_tol=1e-13 * scale)


@each_schedule
@given(times=two_times(), churn=unit)
def test_marginals_are_those_of_the_schedule(schedule, times, churn):
    t, s = times
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    move = transition(schedule, t, s, churn)
    assert close(alpha_t * move.c_xt + move.c_x0, alpha_s)
    assert close(sigma_t**2 * move.c_xt**2 + move.std**2, sigma_s**2)


@each_schedule
@given(times=two_times(), churn=unit)
def test_coefficients_are_the_papers(schedule, times, churn):
    t, s = times
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    a, b, e = alpha_t / alpha_s, sigma_s / sigma_t, churn**2
    move = transition(schedule, t, s, churn)
    assert close(move.c_xt, e * a * b**2 + (1 - e) * b)
    assert close(move.c_x0, alpha_s * (1 - e * a**2 * b**2 - (1 - e) * a * b))
    assert close(move.std**2, sigma_s**2 * (1 - (e * a * b + 1 - e) ** 2))


@each_schedule
@given(t=st.floats(1e-3, 1), churn=unit)
def test_last_step_returns_the_draw(schedule, t, churn):
    assert [float(v) for v in transition(schedule, t, 0.0, churn)] == [0, 1, 0]


@given(times=two_times())
@each_schedule
def test_no_churn_is_no_noise_and_keeps_the_noise_direction(schedule, times):
    t, s = times
    move = transition(schedule, t, s, 0.0)
    assert float(move.std) == 0
    x0, z = torch.tensor(1.7, dtype=torch.float64), torch.tensor(-0.3, dtype=torch.float64)
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    assert close(move(alpha_t * x0 + sigma_t * z, x0), alpha_s * x0 + sigma_s * z)


@given(times=two_times(), churn=unit)
@each_schedule
def test_two_steps_down_have_the_marginal_of_one(schedule, times, churn):
    """Chapman-Kolmogorov in the marginals: going t to r to s, for fixed x0, ends in p(x_s | x_0)."""
    t, s = times
    r = (t + s) / 2
    first, second = transition(schedule, t, r, churn), transition(schedule, r, s, churn)
    sigma_t = schedule(t)[1]
    variance = second.std**2 + second.c_xt**2 * (first.std**2 + first.c_xt**2 * sigma_t**2)
    assert close(variance, schedule(s)[1] ** 2)


def diffusers_schedule(scheduler):
    """A callable schedule that reads diffusers' own table: time (k + 1) / 1000 is its timestep k."""
    table = torch.cat([torch.ones(1, dtype=torch.float64), scheduler.alphas_cumprod.double()])

    def schedule(t):
        alpha_bar = table[torch.round(t * 1000).long()]
        return alpha_bar.sqrt(), (1 - alpha_bar).sqrt()

    return schedule


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("k", "previous"), [(999, 899), (500, 400), (100, 0), (50, -50)])
def test_ddim_steps_equal_those_of_diffusers(k, previous, eta, generator):
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(beta_schedule="linear", prediction_type="sample", clip_sample=False)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.double()
    scheduler.final_alpha_cumprod = torch.ones((), dtype=torch.float64)
    scheduler.num_inference_steps = 1000 // (k - previous)
    xt, x0, z = (torch.randn(4, 2, dtype=torch.float64, generator=generator) for _ in range(3))
    theirs = scheduler.step(x0, k, xt, eta=eta, variance_noise=z if eta else None).prev_sample
    schedule, t, s = diffusers_schedule(scheduler), (k + 1) / 1000, max(previous + 1, 0) / 1000
    churn = float(eta_to_churn(schedule, t, s, eta))
    torch.testing.assert_close(transition(schedule, t, s, churn)(xt, x0, z), theirs, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("k", [999, 500, 20, 1])
def test_full_churn_equals_the_ancestral_step_of_diffusers(k, generator):
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(beta_schedule="linear", prediction_type="sample", clip_sample=False)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.double()
    schedule, t, s = diffusers_schedule(scheduler), (k + 1) / 1000, k / 1000
    xt, x0 = (torch.randn(4, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    z = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    theirs = scheduler.step(x0, k, xt, generator=torch.Generator().manual_seed(7)).prev_sample
    torch.testing.assert_close(transition(schedule, t, s, 1.0)(xt, x0, z), theirs, rtol=1e-6, atol=1e-7)


@each_schedule
@given(times=two_times(), churn=unit)
def test_churn_and_eta_invert_each_other(schedule, times, churn):
    t, s = times
    eta = churn_to_eta(schedule, t, s, churn)
    assert 0 <= float(eta) <= 1 + 1e-12
    back = float(eta_to_churn(schedule, t, s, min(float(eta), 1.0)))
    assert math.isclose(back, churn, abs_tol=1e-7)  # the map is flat at eta = 1 when s = 0
    assert 0 <= back <= 1
    assert close(transition(schedule, t, s, churn).std, eta * transition(schedule, t, s, 1.0).std)


@pytest.mark.parametrize("value", [0.0, 1.0])
@each_schedule
def test_churn_and_eta_agree_at_their_ends(schedule, value):
    assert close(churn_to_eta(schedule, 0.8, 0.3, value), value)
    assert close(eta_to_churn(schedule, 0.8, 0.3, value), value)


def test_vectors_of_times_act_row_by_row(generator):
    xt, x0, z = (torch.randn(3, 2, 2, generator=generator) for _ in range(3))
    t, s = torch.tensor([0.9, 0.5, 0.4]), torch.tensor([0.1, 0.2, 0.0])
    together = transition(FlowMatching(), t, s, 0.7)(xt, x0, z)
    for i in range(3):
        alone = transition(FlowMatching(), t[i], s[i], 0.7)(xt[i : i + 1], x0[i : i + 1], z[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone)


@each_schedule
def test_neighbouring_float32_times_give_no_nan(schedule):
    t = torch.linspace(0.01, 1, 5000)
    s = torch.nextafter(t, torch.zeros(()))
    assert all(torch.isfinite(v).all() for v in transition(schedule, t, s, 1.0))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0.5, 0.2, 1.1), "churn must be in [0, 1], got 1.1"),
        ((0.5, 0.2, -0.1), "churn must be in [0, 1], got -0.1"),
        ((0.5, 0.2, math.nan), "churn must be in [0, 1], got nan"),
        ((0.2, 0.5, 1.0), "s, t must be times with 0 <= s < t <= 1, got (0.5, 0.2)"),
        ((0.5, 0.5, 1.0), "s, t must be times"),
        ((1.5, 0.5, 1.0), "s, t must be times"),
        ((0.5, -0.5, 1.0), "s, t must be times"),
    ],
)
def test_bad_arguments_are_named(arguments, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        transition(FlowMatching(), *arguments)


@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0])
def test_coefficients_can_be_differentiated_in_time(churn):
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    sum(transition(FlowMatching(), t, 0.2, churn)).backward()
    assert torch.isfinite(t.grad)
