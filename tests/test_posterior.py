from __future__ import annotations

import math
import re

import pytest
import torch
from scipy import integrate, stats

from distdiff import (
    Cosine,
    EmpiricalPosterior,
    FlowMatching,
    GaussianPosterior,
    LinearBeta,
    MixturePosterior,
    SampleGenerator,
)

each_schedule = pytest.mark.parametrize("schedule", [FlowMatching(), Cosine(), LinearBeta()], ids=repr)
MEANS, STDS, WEIGHTS = [-2.0, 0.5, 3.0], [0.4, 1.0, 0.7], [0.2, 0.5, 0.3]


@each_schedule
@pytest.mark.parametrize("t", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("xt", [-1.5, 0.3, 2.0])
def test_mixture_moments_equal_numerical_integration_of_bayes_rule(schedule, t, xt):
    alpha, sigma = (float(v) for v in schedule(t))

    def joint(x0: float, power: int) -> float:
        prior = sum(w * stats.norm.pdf(x0, m, s) for w, m, s in zip(WEIGHTS, MEANS, STDS, strict=True))
        return x0**power * prior * stats.norm.pdf(xt, alpha * x0, sigma)

    points = sorted({*MEANS, min(max(xt / alpha, -9.0), 9.0)})
    total, first, second = (
        integrate.quad(joint, -10, 10, args=(power,), points=points, limit=400)[0] for power in range(3)
    )
    posterior = MixturePosterior(torch.tensor(MEANS)[:, None], STDS, WEIGHTS, schedule=schedule)
    x, time = torch.tensor([[xt]], dtype=torch.float64), torch.tensor(t, dtype=torch.float64)
    mean = first / total
    assert math.isclose(float(posterior.mean(x, time)), mean, rel_tol=1e-6, abs_tol=1e-7)
    assert math.isclose(float(posterior.std(x, time)), math.sqrt(second / total - mean**2), rel_tol=1e-5)


def test_mixture_draws_have_the_posterior_distribution():
    posterior = MixturePosterior([[-2.0], [2.0]], 0.5, [0.3, 0.7])
    xt, t = torch.tensor([[0.1]], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    x = posterior.draw(xt, t, 20000, None, torch.Generator().manual_seed(0))[0, :, 0].numpy()
    weights, means, variances = (v.flatten().numpy() for v in posterior.components(xt, t))
    std = variances**0.5

    def cdf(value):
        return sum(w * stats.norm.cdf(value, m, s) for w, m, s in zip(weights, means, std, strict=True))

    assert stats.kstest(x, cdf).pvalue > 0.01


def test_mixture_draws_match_component_weights_and_means_in_two_dimensions():
    posterior = MixturePosterior([[3.0, 3.0], [-3.0, 3.0]], 0.5)
    xt = torch.tensor([[0.2, 0.5]], dtype=torch.float64).expand(30000, 2)
    t = torch.full((30000,), 0.8, dtype=torch.float64)
    draws = posterior.draw(xt, t, 1, None, torch.Generator().manual_seed(1))[:, 0]
    error = 4 * posterior.std(xt, t)[0] / math.sqrt(30000)
    assert ((draws.mean(0) - posterior.mean(xt, t)[0]).abs() < error).all()
    torch.testing.assert_close(draws.std(0), posterior.std(xt, t)[0], rtol=0.02, atol=0)


@each_schedule
def test_one_component_is_the_gaussian_posterior(schedule, generator):
    xt = torch.randn(5, 2, 3, dtype=torch.float64, generator=generator)
    t = torch.rand(5, dtype=torch.float64, generator=generator)
    mixture = MixturePosterior(torch.full((1, 2, 3), 1.5), 0.8, schedule=schedule)
    gaussian = GaussianPosterior(1.5, 0.8, schedule=schedule)
    torch.testing.assert_close(mixture.mean(xt, t), gaussian.mean(xt, t))
    spread = gaussian.variance(t).sqrt()[:, None, None].expand(5, 2, 3)
    torch.testing.assert_close(mixture.std(xt, t), spread, rtol=1e-6, atol=1e-7)


def test_posterior_is_the_prior_at_time_one_and_the_point_at_time_zero():
    posterior = GaussianPosterior(2.0, 3.0)
    xt = torch.tensor([[7.0]], dtype=torch.float64)
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    assert float(posterior.mean(xt, one)) == 2.0
    assert math.isclose(float(posterior.variance(one)), 9.0)
    assert float(posterior.mean(xt, zero)) == 7.0
    assert float(posterior.variance(zero)) == 0.0


def test_times_keep_the_precision_of_the_points():
    xt = torch.tensor([[0.7]], dtype=torch.float64)
    exact = 0.7 * (1 - 0.3) / ((1 - 0.3) ** 2 + 0.3**2)
    for posterior in (GaussianPosterior(), MixturePosterior([[0.0]], 1.0)):
        assert math.isclose(float(posterior.mean(xt, 0.3)), exact, rel_tol=1e-14)


def test_factor_scales_the_variance_and_not_the_mean():
    xt, t = torch.ones(40000, 1, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    full, half = GaussianPosterior(1.0, 2.0), GaussianPosterior(1.0, 2.0, factor=0.25)
    assert math.isclose(float(half.variance(t)), 0.25 * float(full.variance(t)))
    draws = half.draw(xt, t, 1, None, torch.Generator().manual_seed(0))
    assert math.isclose(float(draws.var()), float(half.variance(t)), rel_tol=0.03)
    torch.testing.assert_close(half.mean(xt, t), full.mean(xt, t))


@pytest.mark.parametrize("posterior", [GaussianPosterior(1.0, 2.0), MixturePosterior([[1.0, 0.0], [0.0, 2.0]], 0.3)])
def test_draws_depend_on_their_own_seed_alone(posterior, generator):
    xt, t = torch.randn(4, 2, generator=generator), torch.tensor(0.6)
    whole = posterior.draw(xt, t, 3, None, SampleGenerator([5, 6, 7, 8]))
    part = posterior.draw(xt[2:], t, 3, None, SampleGenerator([7, 8]))
    torch.testing.assert_close(whole[2:], part)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: GaussianPosterior(0.0, 0.0), "std must be a positive finite number, got 0.0"),
        (lambda: GaussianPosterior(0.0, 1.0, factor=-1), "factor must be a finite number of at least 0, got -1"),
        (lambda: MixturePosterior([[0.0]], -1.0), "stds must be one positive number, or 1 of them, got -1.0"),
        (lambda: MixturePosterior([[0.0], [1.0]], [1.0, 1.0, 1.0]), "stds must be one positive number, or 2 of them"),
        (lambda: MixturePosterior([0.0, 1.0], 1.0), "means must be of shape (K, *event), got (2,)"),
        (lambda: GaussianPosterior().mean(torch.zeros(3, 1), torch.ones(2)), "t must be of shape () or (3,), got (2,)"),
        (lambda: MixturePosterior([[0.0]], 1.0, [0.5, 0.5]), "weights must be 1 positive numbers"),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


def points(count: int = 7, seed: int = 3) -> torch.Tensor:
    return torch.randn(count, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@each_schedule
def test_the_posterior_of_points_is_the_limit_of_narrow_mixtures(schedule):
    data, t = points(), torch.tensor([0.02, 0.3, 0.6, 0.98], dtype=torch.float64)
    xt = points(4, seed=8)
    exact, narrow = EmpiricalPosterior(data, schedule=schedule), MixturePosterior(data, 1e-7, schedule=schedule)
    torch.testing.assert_close(exact.weights(xt, t), narrow.components(xt, t)[0], rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(exact.mean(xt, t), narrow.mean(xt, t), rtol=1e-6, atol=1e-9)


def test_draws_of_points_are_points_as_often_as_they_are_likely():
    data, t = points(), torch.tensor(0.7, dtype=torch.float64)
    posterior, xt = EmpiricalPosterior(data), points(1, seed=8)
    draws, mean = posterior.draw_with_mean(xt, t, 20000, None, torch.Generator().manual_seed(0))
    assert draws.shape == (1, 20000, 1, 2, 2)
    hits = (draws[0, :, None] == data).flatten(2).all(2)
    assert bool((hits.sum(1) == 1).all())
    expected = posterior.weights(xt, t)[0] * 20000
    assert expected.max() < 15000  # several are likely
    assert stats.chisquare(hits.sum(0), expected).pvalue > 0.01
    torch.testing.assert_close(mean, posterior.mean(xt, t))
    torch.testing.assert_close(draws.mean(1), mean, rtol=0, atol=0.05)


def test_noised_points_and_their_posterior_agree():
    """Points noised and drawn again are as frequent as they were: what makes a draw as good a target as the point."""
    data = points(3)
    rows = torch.arange(3).repeat(6000)
    z = torch.randn(18000, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = EmpiricalPosterior(data).weights(0.4 * data[rows] + 0.6 * z, torch.tensor(0.6, dtype=torch.float64))
    assert float(weights[range(18000), rows].mean()) < 0.9  # the noise hides which it was
    torch.testing.assert_close(weights.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64), rtol=0, atol=0.01)


@pytest.mark.parametrize("vectors", [False, True])
def test_points_of_another_condition_are_impossible(vectors):
    data, labels = points(6), torch.tensor([0, 1, 0, 1, 2, 2])
    cond = torch.stack([labels == 0, labels == 1], 1).float() if vectors else labels
    posterior, xt = EmpiricalPosterior(data, cond), points(3, seed=8)
    weights = posterior.weights(xt, 0.5, cond[[0, 1, 4]])
    for row, label in enumerate((0, 1, 2)):
        assert bool((weights[row, labels != label] == 0).all())
        alone = EmpiricalPosterior(data[labels == label]).weights(xt[row : row + 1], 0.5)[0]
        torch.testing.assert_close(weights[row, labels == label], alone)
    with pytest.raises(ValueError, match="cond must be given if the points have conditions"):
        posterior.mean(xt, 0.5)


def test_the_posterior_of_points_is_sharp_where_there_is_no_noise_in_single_precision():
    data = points(50).float()
    draws, mean = EmpiricalPosterior(data).draw_with_mean(0.99 * data + 0.01 * points(50, seed=9).float(), 0.01, 5)
    torch.testing.assert_close(draws, data[:, None].expand(-1, 5, -1, -1, -1))
    torch.testing.assert_close(mean, data)
