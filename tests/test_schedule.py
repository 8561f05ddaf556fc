from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distdiff import Cosine, FlowMatching, LinearBeta, add_noise, time_grid

SCHEDULES = [FlowMatching(), Cosine(), LinearBeta(), LinearBeta(beta_start=1e-3, beta_end=0.1, steps=50)]
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
inside = st.floats(1e-6, 1 - 1e-6)


@each_schedule
def test_time_zero_is_data(schedule):
    alpha, sigma = schedule(0.0)
    assert float(alpha) == 1
    assert float(sigma) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("schedule", [FlowMatching(), Cosine()], ids=repr)
def test_time_one_is_pure_noise_to_the_last_bit(schedule, dtype):
    alpha, sigma = schedule(torch.ones((), dtype=dtype))
    assert float(alpha) == 0
    assert float(sigma) == 1


@given(t=inside)
@pytest.mark.parametrize("schedule", [Cosine(), LinearBeta()], ids=repr)
def test_variance_preserving_schedules_keep_unit_variance(schedule, t):
    alpha, sigma = schedule(t)
    assert math.isclose(float(alpha**2 + sigma**2), 1, rel_tol=1e-14)


@each_schedule
@given(t=inside)
def test_log_snr_inverts_back_to_time(schedule, t):
    assert math.isclose(float(schedule.time(schedule.log_snr(t))), t, rel_tol=1e-8)


@each_schedule
def test_log_snr_falls_strictly(schedule):
    t = torch.linspace(1e-4, 1 - 1e-4, 4001, dtype=torch.float64)
    assert (schedule.log_snr(t).diff() < 0).all()


def test_log_snr_of_flow_matching_in_closed_form():
    assert math.isclose(float(FlowMatching().log_snr(0.2)), 2 * math.log(4), rel_tol=1e-15)


def test_linear_beta_is_the_schedule_of_diffusers():
    from diffusers import DDPMScheduler

    reference = DDPMScheduler(beta_schedule="linear").alphas_cumprod.double()
    alpha, _ = LinearBeta()(torch.arange(1, 1001, dtype=torch.float64) / 1000)
    torch.testing.assert_close(alpha**2, reference, rtol=2e-5, atol=0)  # diffusers multiplies in float32


def test_linear_beta_is_the_product_of_its_betas():
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    alpha, _ = LinearBeta()(torch.arange(1, 1001, dtype=torch.float64) / 1000)
    torch.testing.assert_close(alpha**2, (1 - betas).cumprod(0), rtol=1e-12, atol=0)


@each_schedule
def test_dtype_and_shape_follow_time(schedule):
    t = torch.rand(3, 2)
    for value in schedule(t):
        assert value.shape == t.shape
        assert value.dtype == torch.float32


def test_python_times_do_not_promote_float32_data():
    alpha, _ = FlowMatching()(0.3)
    assert alpha.dtype == torch.float64
    assert (alpha * torch.ones(2)).dtype == torch.float32


def test_noise_mixes_row_by_row(generator):
    x0, z = torch.randn(2, 3, 4, generator=generator), torch.randn(2, 3, 4, generator=generator)
    xt = add_noise(FlowMatching(), x0, torch.tensor([0.25, 1.0]), z)
    torch.testing.assert_close(xt[0], 0.75 * x0[0] + 0.25 * z[0])
    torch.testing.assert_close(xt[1], z[1])


@each_schedule
@given(steps=st.integers(1, 40), grid=st.sampled_from(["uniform", "logsnr", "edm"]), t_max=st.sampled_from([1.0, 0.99]))
def test_grids_fall_from_t_max_to_zero(schedule, steps, grid, t_max):
    times = time_grid(schedule, steps, grid, t_max=t_max)
    assert times.shape == (steps + 1,)
    assert times[0] == t_max
    assert times[-1] == 0
    assert (times.diff() < 0).all()


def test_uniform_grid_is_uniform():
    torch.testing.assert_close(time_grid(FlowMatching(), 4), torch.tensor([1, 0.75, 0.5, 0.25, 0], dtype=torch.float64))


def test_logsnr_grid_is_uniform_in_log_snr():
    schedule = Cosine()
    log_snr = schedule.log_snr(time_grid(schedule, 6, "logsnr", t_max=0.99, safety=0.01)[:-1])
    torch.testing.assert_close(log_snr.diff(), log_snr.diff()[:1].expand(5), rtol=1e-9, atol=0)


def test_edm_grid_is_uniform_in_the_seventh_root_of_the_noise_ratio():
    schedule = FlowMatching()
    alpha, sigma = schedule(time_grid(schedule, 6, "edm", t_max=0.99, safety=0.01)[:-1])
    root = (sigma / alpha) ** (1 / 7)
    torch.testing.assert_close(root.diff(), root.diff()[:1].expand(5), rtol=1e-9, atol=0)


def test_edm_grid_equals_the_sigmas_of_diffusers():
    from diffusers import EDMEulerScheduler

    scheduler = EDMEulerScheduler(sigma_min=0.01 / 0.99, sigma_max=99.0)
    scheduler.set_timesteps(8)
    alpha, sigma = FlowMatching()(time_grid(FlowMatching(), 8, "edm", t_max=0.99, safety=0.01)[:-1])
    torch.testing.assert_close((sigma / alpha).float(), scheduler.sigmas[:-1].float(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: time_grid(FlowMatching(), 0), "steps must be a whole number of at least 1, got 0"),
        (lambda: time_grid(FlowMatching(), 2.5), "steps must be a whole number of at least 1, got 2.5"),
        (lambda: time_grid(FlowMatching(), 3, "cosine"), "grid must be one of uniform, logsnr, edm, got 'cosine'"),
        (lambda: time_grid(FlowMatching(), 2, [1.0, 0.0]), "grid must be a list of 3 times"),
        (lambda: time_grid(FlowMatching(), 2, [0.5, 0.7, 0.0]), "grid must be strictly falling times"),
        (lambda: time_grid(FlowMatching(), 1, [0.5, 0.1]), "end at 0"),
        (lambda: LinearBeta(beta_start=0), "beta_start must be in (0, 1], got 0"),
        (lambda: LinearBeta(beta_end=1.5), "beta_end must be in [beta_start, 1), got 1.5"),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
