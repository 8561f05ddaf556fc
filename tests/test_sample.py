from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import distdiff
from distdiff import (
    RBF,
    Cosine,
    Denoiser,
    FlowMatching,
    GaussianPosterior,
    LinearBeta,
    MixturePosterior,
    discrepancy,
    sample,
    sample_trajectory,
    time_grid,
)
from distdiff.data.toy import Mixture2D
from distdiff.nn import MLP
from distdiff.theory import gaussian_path, variance_factor

each_schedule = pytest.mark.parametrize("schedule", [FlowMatching(), Cosine(), LinearBeta()], ids=repr)


@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("lam", "beta"), [(1.0, 1.0), (0.5, 0.2), (0.0, 2.0)])
@pytest.mark.parametrize(("steps", "grid"), [(1, "uniform"), (3, "uniform"), (6, "logsnr"), (6, "edm")])
@each_schedule
def test_sampling_through_gaussian_posteriors_follows_the_recursion(schedule, steps, grid, lam, beta, churn):
    n, mean, std, factor = 20000, 1.5, 2.0, float(variance_factor(lam, beta))
    posterior = GaussianPosterior(mean, std, factor=factor, schedule=schedule)
    x = sample(posterior, (n, 1), steps=steps, churn=churn, grid=grid, seed=17, dtype=torch.float64)
    path = gaussian_path(
        time_grid(schedule, steps, grid), mean=mean, std=std, factor=factor, churn=churn, schedule=schedule
    )
    expected_mean, expected_var = float(path.mean[-1]), float(path.variance[-1])
    assert abs(float(x.mean()) - expected_mean) < 4 * math.sqrt(expected_var / n) + 1e-9
    assert abs(float(x.var()) - expected_var) < 4 * expected_var * math.sqrt(2 / n) + 1e-9


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0])
def test_exact_mixture_posterior_samples_to_the_floor_at_any_number_of_steps(steps, churn):
    toy, n = Mixture2D(), 4096
    x = sample(toy.posterior(), (n, 2), steps=steps, churn=churn, seed=3)
    generator = torch.Generator().manual_seed(4)
    real = [toy.sample(n, generator) for _ in range(5)]
    floor = [abs(float(discrepancy(RBF(1), real[0], other))) for other in real[1:]]
    value = float(discrepancy(RBF(1), x, real[0]))
    assert abs(value) < 3 * max(*floor, 5e-5)
    wrong = GaussianPosterior(0.0, 1.0)
    assert float(discrepancy(RBF(1), sample(wrong, (n, 2), steps=steps, seed=3), real[0])) > 0.01


def test_a_posterior_mean_needs_many_steps_where_a_posterior_needs_one():
    toy = Mixture2D()

    class Mean:
        schedule = FlowMatching()

        def draw(self, xt, t, m=1, cond=None, generator=None):
            return toy.posterior().mean(xt, t)[:, None]

    real = toy.sample(4096, torch.Generator().manual_seed(1))
    few, many = (float(discrepancy(RBF(1), sample(Mean(), (4096, 2), steps=n, churn=0.0), real)) for n in (4, 100))
    assert few > 20 * abs(many)


@pytest.mark.parametrize("churn", [0.0, 0.7, 1.0])
def test_samples_depend_on_their_seed_alone(churn):
    posterior = MixturePosterior([[3.0, 3.0], [-3.0, 3.0]], 0.5)
    whole = sample(posterior, (10, 2), steps=4, churn=churn, seed=100)
    split = torch.cat(
        [sample(posterior, (k, 2), steps=4, churn=churn, seed=100 + i) for i, k in ((0, 3), (3, 6), (9, 1))]
    )
    assert torch.equal(whole, split)
    assert torch.equal(whole, sample(posterior, (10, 2), steps=4, churn=churn, seed=100, batch_size=4))
    order = [107, 100, 103]
    assert torch.equal(whole[[7, 0, 3]], sample(posterior, (3, 2), steps=4, churn=churn, seed=order))
    assert not torch.equal(whole, sample(posterior, (10, 2), steps=4, churn=churn, seed=101))


def test_a_network_samples_the_same_however_the_batch_is_split():
    torch.manual_seed(0)
    denoiser = Denoiser(MLP(3, noise_dim=2, width=8, depth=2, time_width=4), noise_shape=(2,))
    whole = sample(denoiser, (9, 3), steps=5, seed=1)
    torch.testing.assert_close(whole, sample(denoiser, (9, 3), steps=5, seed=1, batch_size=2), rtol=1e-5, atol=1e-6)


class Spy:
    """A foreign denoiser: it knows nothing of this package's generators."""

    def __init__(self, schedule=None):
        self.schedule = schedule or FlowMatching()
        self.calls = []

    def draw(self, xt, t, m, cond, generator):
        self.calls.append((xt.clone(), float(t), cond, torch.is_grad_enabled()))
        return torch.randn(len(xt), m, *xt.shape[1:], generator=generator)


def test_any_object_with_schedule_and_draw_is_a_denoiser():
    spy = Spy()
    x = sample(spy, (6, 2, 3), steps=4, churn=0.5, seed=2)
    assert x.shape == (6, 2, 3)
    assert [t for _, t, _, _ in spy.calls] == [1.0, 0.75, 0.5, 0.25]
    assert not any(grad for *_, grad in spy.calls)


@pytest.mark.parametrize("churn", [0.0, 1.0])
@pytest.mark.parametrize(
    "noise",
    [
        lambda n, m, g: torch.randn(n, m, 2, generator=g),
        lambda n, m, g: torch.randn((n * m, 2), generator=g).reshape(n, m, 2),
        lambda n, m, g: torch.randn_like(torch.empty(n, m, 2), generator=g),
        lambda n, m, g: torch.rand([n, m, 2], generator=g),
        lambda n, m, g: torch.normal(torch.ones(n, m, 2), 2.0, generator=g),
        lambda n, m, g: torch.normal(0.0, 1.0, size=(n, m, 2), generator=g),
        lambda n, m, g: torch.multinomial(torch.ones(n, 5), m, generator=g)[..., None].expand(n, m, 2).float(),
    ],
)
def test_foreign_denoisers_depend_on_their_seed_alone_too(noise, churn):
    class Foreign:
        schedule = FlowMatching()

        def draw(self, xt, t, m, cond, generator):
            return 0.5 * xt[:, None] + noise(len(xt), m, generator)

    whole = sample(Foreign(), (40, 2), steps=3, churn=churn, seed=7)
    split = [sample(Foreign(), (k, 2), steps=3, churn=churn, seed=7 + i) for i, k in ((0, 1), (1, 30), (31, 9))]
    torch.testing.assert_close(whole, torch.cat(split))
    assert len(whole.unique(dim=0)) == 40


def test_a_schedule_may_be_any_function_of_a_tensor():
    class Foreign:
        schedule = staticmethod(lambda t: (torch.cos(t * torch.pi / 2), torch.sin(t * torch.pi / 2)))

        def draw(self, xt, t, m, cond, generator):
            return xt[:, None].expand(-1, m, -1)

    assert sample(Foreign(), (3, 2), steps=2, seed=1).shape == (3, 2)
    with pytest.raises(ValueError, match="grid must be uniform or a list of times"):
        sample(Foreign(), (3, 2), steps=2, grid="edm")


@pytest.mark.parametrize("seed", [np.array([4, 9, 2]), torch.tensor([4, 9, 2]), (4, 9, 2), [4, 9, 2]])
def test_seeds_come_in_any_sequence(seed):
    expected = torch.cat([sample(GaussianPosterior(), (1, 2), steps=2, seed=s) for s in (4, 9, 2)])
    assert torch.equal(sample(GaussianPosterior(), (3, 2), steps=2, seed=seed), expected)


def test_numpy_numbers_are_numbers():
    a = sample(GaussianPosterior(), (np.int64(3), 2), steps=np.int64(2), churn=np.float32(0.5), seed=np.int64(4))
    assert torch.equal(a, sample(GaussianPosterior(), (3, 2), steps=2, churn=0.5, seed=4))


def test_grid_starts_at_the_largest_safe_time():
    spy = Spy()
    spy.safety = 0.1
    sample(spy, (2, 1), steps=3)
    assert math.isclose(spy.calls[0][1], 0.9, rel_tol=1e-6)


def test_start_is_noise_of_the_grids_first_time():
    spy = Spy()
    sample(spy, (20000, 1), grid=[0.5, 0.2, 0.0])
    assert math.isclose(float(spy.calls[0][0].std()), 0.5, rel_tol=0.03)
    assert len(spy.calls) == 2


def test_last_draw_is_returned_untouched():
    class Last(Spy):
        def draw(self, xt, t, m, cond, generator):
            self.last = super().draw(xt, t, m, cond, generator)
            return self.last

    spy = Last()
    assert torch.equal(sample(spy, (5, 2), steps=3), spy.last[:, 0])


def test_conditioning_is_split_with_the_batch():
    spy = Spy()
    labels = torch.arange(5)
    sample(spy, (5, 1), steps=1, batch_size=2, cond={"label": labels, "scale": 3})
    assert [call[2]["label"].tolist() for call in spy.calls] == [[0, 1], [2, 3], [4]]
    assert all(call[2]["scale"] == 3 for call in spy.calls)


def test_callback_sees_every_step():
    seen = []
    x = sample(GaussianPosterior(), (4, 2), steps=3, callback=seen.append)
    assert [(step.index, step.steps) for step in seen] == [(0, 3), (1, 3), (2, 3)]
    assert [(round(step.t, 6), round(step.s, 6)) for step in seen] == [
        (1.0, 0.666667),
        (0.666667, 0.333333),
        (0.333333, 0.0),
    ]
    assert torch.equal(seen[-1].xs, x)
    assert torch.equal(seen[1].xt, seen[0].xs)


def test_trajectory_records_every_state_and_ends_at_the_sample():
    path = sample_trajectory(GaussianPosterior(), (4, 2), 3, seed=5)
    assert path.x.shape == (4, 4, 2)
    assert path.x0.shape == (3, 4, 2)
    torch.testing.assert_close(path.times, time_grid(FlowMatching(), 3))
    assert torch.equal(path.x[-1], sample(GaussianPosterior(), (4, 2), steps=3, seed=5))


def test_dtype_and_device_are_those_of_the_network_unless_given():
    denoiser = Denoiser(MLP(2, width=4, depth=1, time_width=4).double())
    assert sample(denoiser, (2, 2), steps=2).dtype == torch.float64
    assert sample(GaussianPosterior(), (2, 2), steps=2).dtype == torch.float32
    assert sample(GaussianPosterior(), (2, 2), steps=2, dtype=torch.float64).dtype == torch.float64


def test_no_samples_is_an_empty_result():
    assert sample(GaussianPosterior(), (0, 2), steps=2).shape == (0, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 2, "churn": 1.5}, "churn must be in [0, 1], got 1.5"),
        ({"steps": 2, "churn": -0.5}, "churn must be in [0, 1], got -0.5"),
        ({"steps": 2, "grid": "karras"}, "grid must be one of uniform, logsnr, edm, got 'karras'"),
        ({"steps": None}, "steps must be given unless grid lists the times"),
        ({"steps": 2, "seed": [1, 2]}, "seed must be one number, or 3 of them, got '2 seeds'"),
        ({"steps": 2, "seed": -1}, "seed must be a whole number in [0, 2**63), got -1"),
        ({"steps": 2, "seed": 1.5}, "seed must be a whole number in [0, 2**63), got 1.5"),
        ({"steps": 2, "seed": None}, "seed must be a whole number in [0, 2**63), got None"),
        ({"steps": 2, "churn": torch.zeros(2)}, "churn must be in [0, 1]"),
        ({"steps": 2, "batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named_before_any_work(options, says):
    spy = Spy()
    with pytest.raises(ValueError, match=re.escape(says)):
        distdiff.sample(spy, (3, 2), **options)
    assert spy.calls == []


def test_a_shape_must_be_a_shape():
    with pytest.raises(ValueError, match=re.escape("shape must be (n, *event), of whole numbers, got 5")):
        sample(GaussianPosterior(), 5, steps=2)


@pytest.mark.parametrize("prediction", ["x0", "velocity", "noise"])
def test_asking_a_network_at_time_one_is_finite(prediction):
    denoiser = Denoiser(MLP(2, width=4, depth=1, time_width=4), prediction=prediction)
    assert torch.isfinite(sample(denoiser, (3, 2), grid=[1.0, 0.5, 0.0])).all()
