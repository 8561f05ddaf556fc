from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from distdiff import (
    RBF,
    ConditionalLoss,
    Cosine,
    Denoiser,
    EmpiricalPosterior,
    Energy,
    FlowMatching,
    GaussianPosterior,
    JointLoss,
    MarginalLoss,
    NoWeighting,
    RegressionLoss,
    Sigmoid,
    Spread,
    interaction,
    score_loss,
)
from distdiff.denoiser import PREDICTIONS, to_x0
from distdiff.schedule import add_noise


class Recorder:
    """Hands everything to a posterior and keeps the arguments and the draws."""

    safety = 0.01

    def __init__(self, posterior):
        self.posterior, self.schedule = posterior, posterior.schedule

    def draw(self, xt, t, m=1, cond=None, generator=None):
        self.xt, self.t, self.m, self.cond = xt, t, m, cond
        self.draws = self.posterior.draw(xt, t, m, cond, generator)
        return self.draws


def data(n: int, dim: int = 2, seed: int = 5) -> torch.Tensor:
    return torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [-2.0, 0.0, 1.0])
def test_sigmoid_weighting_is_its_formula(bias):
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    snr = ((1 - t) / t) ** 2
    torch.testing.assert_close(Sigmoid(bias)(FlowMatching(), t), snr / (snr + math.exp(bias)))


def test_spread_weighting_is_one_over_the_error_of_the_best_linear_guess():
    """For data of standard deviation 1/2 the guess is the posterior mean of a Gaussian."""
    t = torch.tensor([0.1, 0.5, 0.9, 0.99], dtype=torch.float64)
    exact = GaussianPosterior(0.0, 0.5).variance(t).sqrt()
    torch.testing.assert_close(Spread()(FlowMatching(), t) * exact, torch.full_like(t, 0.5))


def test_conditional_loss_is_the_weighted_score_of_the_draws(generator):
    denoiser, x0 = Recorder(GaussianPosterior(0.0, 1.0)), data(7)
    loss = ConditionalLoss(kernel=RBF(1.5), lam=0.4, m=5, weighting=Sigmoid(1.0))
    values = loss(denoiser, x0, cond="c", generator=generator)
    assert values.shape == (7,)
    assert denoiser.cond == "c"
    expected = Sigmoid(1.0)(FlowMatching(), denoiser.t) * score_loss(RBF(1.5), denoiser.draws, x0, lam=0.4)
    torch.testing.assert_close(values, expected)


def test_times_are_uniform_on_the_safe_interval(generator):
    denoiser = Recorder(GaussianPosterior(0.0, 1.0))
    denoiser.safety = 0.2
    ConditionalLoss(m=2)(denoiser, data(20000), generator=generator)
    assert 0.2 <= float(denoiser.t.min()) < 0.201
    assert 0.799 < float(denoiser.t.max()) <= 0.8
    assert abs(float(denoiser.t.mean()) - 0.5) < 0.01


def test_noisy_points_have_the_schedules_mean_and_variance(generator):
    schedule = Cosine()
    denoiser = Recorder(GaussianPosterior(0.0, 1.0, schedule=schedule))
    x0 = torch.full((40000, 1), 2.0, dtype=torch.float64)
    ConditionalLoss(m=2)(denoiser, x0, generator=generator, t=torch.full((40000,), 0.3, dtype=torch.float64))
    alpha, sigma = (float(v) for v in schedule(0.3))
    assert math.isclose(float(denoiser.xt.mean()), 2 * alpha, rel_tol=0.01)
    assert math.isclose(float(denoiser.xt.std()), sigma, rel_tol=0.02)


def test_half_precision_data_still_sees_a_continuum_of_times(generator):
    denoiser = Recorder(GaussianPosterior(0.0, 1.0))
    ConditionalLoss(m=2)(denoiser, data(2000).to(torch.bfloat16), generator=generator)
    assert denoiser.t.dtype == torch.float32
    assert len(denoiser.t.unique()) > 1990


def test_same_generator_same_loss():
    denoiser = GaussianPosterior(0.0, 1.0)
    a, b = (ConditionalLoss(m=3)(denoiser, data(4), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)


@pytest.mark.parametrize("prediction", ["x0", "velocity", "noise"])
def test_regression_is_squared_error_in_the_space_of_the_prediction(prediction):
    class Constant(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return torch.full_like(xt, 0.5)[:, None]

    x0, t = data(6), torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    denoiser = Denoiser(Constant(), prediction=prediction)
    loss = RegressionLoss(weighting=NoWeighting())(denoiser, x0, generator=torch.Generator().manual_seed(2), t=t)
    z = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    target = {"x0": x0, "velocity": x0 - z, "noise": z}[prediction]
    torch.testing.assert_close(loss, (target - 0.5).square().sum(1), rtol=1e-13, atol=0)


def test_classical_diffusion_is_the_limit_beta_two_lambda_zero(generator):
    """With one network without noise, the conditional loss at beta = 2, lambda = 0 is the x0-regression."""

    class Shrink(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return 0.3 * xt[:, None]

    x0, t = data(9), torch.rand(9, dtype=torch.float64, generator=generator)
    denoiser = Denoiser(Shrink())
    a = ConditionalLoss(kernel=Energy(2), lam=0, m=1)(denoiser, x0, generator=torch.Generator().manual_seed(1), t=t)
    b = RegressionLoss()(denoiser, x0, generator=torch.Generator().manual_seed(1), t=t)
    torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


def test_velocity_regression_in_x0_space_is_sigma_squared_times_that_in_velocity_space():
    class Zero(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return torch.zeros_like(xt)[:, None]

    denoiser, x0, t = Denoiser(Zero(), prediction="velocity"), data(5), torch.linspace(0.1, 0.9, 5).double()
    a, b = (
        RegressionLoss(space=space)(denoiser, x0, generator=torch.Generator().manual_seed(1), t=t)
        for space in ("x0", "prediction")
    )
    torch.testing.assert_close(a, t**2 * b, rtol=1e-12, atol=0)


class Prior:
    """A wrong coupling with the right marginal: draws from the data distribution whatever the noisy point."""

    schedule = FlowMatching()

    def draw(self, xt, t, m=1, cond=None, generator=None):
        return torch.randn(len(xt), m, xt.shape[-1], dtype=xt.dtype, generator=generator)


def expected_loss(loss, denoiser, n: int = 64000) -> tuple[float, float]:
    """Mean and standard error over groups of 8."""
    t = torch.full((n // 8,), 0.2, dtype=torch.float64)
    values = loss(denoiser, data(n, dim=1, seed=11), generator=torch.Generator().manual_seed(3), t=t)
    groups = values.reshape(-1, 8).mean(1)
    return float(groups.mean()), float(groups.std()) / math.sqrt(len(groups))


def test_joint_loss_tells_the_posterior_from_a_wrong_coupling_and_the_marginal_loss_does_not():
    true, wrong = GaussianPosterior(0.0, 1.0), Prior()
    for loss, sees in [(JointLoss(m=8), True), (MarginalLoss(m=8), False), (JointLoss(m=8, additive=True), False)]:
        (a, error_a), (b, error_b) = expected_loss(loss, true), expected_loss(loss, wrong)
        error = math.hypot(error_a, error_b)
        assert (b - a > 8 * error) if sees else (abs(b - a) < 4 * error), (loss, a, b, error)


def test_additive_joint_loss_is_the_marginal_loss_plus_a_term_free_of_the_model():
    x0, t = data(32), torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def gap(factor: float) -> torch.Tensor:
        denoiser = GaussianPosterior(0.0, 1.0, factor=factor)
        joint, marginal = (
            loss(denoiser, x0, generator=torch.Generator().manual_seed(9), t=t)
            for loss in (JointLoss(m=8, additive=True), MarginalLoss(m=8))
        )
        return joint - marginal

    torch.testing.assert_close(gap(0.2), gap(3.0))


@pytest.mark.parametrize("loss", [JointLoss(m=8), MarginalLoss(m=8), ConditionalLoss(m=8)], ids=repr)
def test_the_true_posterior_beats_a_narrow_and_a_wide_one(loss):
    x0 = data(64000, dim=1, seed=11)

    def value(factor: float) -> float:
        denoiser = GaussianPosterior(0.0, 1.0, factor=factor)
        count = len(x0) if isinstance(loss, ConditionalLoss) else len(x0) // 8
        t = torch.full((count,), 0.6, dtype=torch.float64)
        return float(loss(denoiser, x0, generator=torch.Generator().manual_seed(3), t=t).mean())

    assert value(1.0) < value(0.1) - 1e-3
    assert value(1.0) < value(4.0) - 1e-3


def test_group_losses_average_over_pairs_of_different_points():
    denoiser, x0 = Recorder(GaussianPosterior(0.0, 1.0)), data(3)
    values = MarginalLoss(m=3, lam=0.5)(denoiser, x0, generator=torch.Generator().manual_seed(0))
    y = denoiser.draws[:, 0]
    cross = torch.cdist(x0, y)
    expected = (cross.sum() - cross.trace()) / 6 - 0.25 * float(interaction(Energy(1), y[None]))
    torch.testing.assert_close(values.mean(), expected)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ConditionalLoss(lam=0.5, m=1), "m must be at least 2 when lam > 0"),
        (lambda: Sigmoid(math.nan), "bias must be a finite number, got nan"),
        (lambda: ConditionalLoss(lam=2.0), "lam must be in [0, 1], got 2.0"),
        (lambda: ConditionalLoss(anchor=-1.0), "anchor must be a number of at least 0, got -1.0"),
        (lambda: ConditionalLoss(feature_weight=1.0), "features must be given where they have a weight, got None"),
        (lambda: ConditionalLoss(m=0, lam=0), "m must be a whole number of at least 1, got 0"),
        (lambda: JointLoss(m=1, lam=0), "m must be a whole number of at least 2, got 1"),
        (lambda: JointLoss(m=4)(GaussianPosterior(), data(6)), "batch size must be a multiple of m = 4, got 6"),
        (lambda: ConditionalLoss()(GaussianPosterior(), data(6), t=torch.ones(2)), "t must be of shape (6,), got (2,)"),
        (lambda: RegressionLoss(space="noise"), "space must be one of prediction, x0, got 'noise'"),
        (
            lambda: RegressionLoss()(Denoiser(nn.Identity(), noise_shape=(2,)), data(2)),
            "noise_shape must be None for a regression, got (2,)",
        ),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


class Noisy(nn.Module):
    """Predicts something that depends on all it is given."""

    def forward(self, xt, t, xi=None, cond=None):
        return (xt * 0.3 + t[:, None])[:, None] + (0.1 * xi.sin() if xi is not None else 0)


@pytest.mark.parametrize("schedule", [FlowMatching(), Cosine()], ids=repr)
@pytest.mark.parametrize("weighting", [NoWeighting(), Spread(), Sigmoid(0.5)])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_an_anchor_is_the_regression_of_velocities_without_noise(prediction, weighting, schedule):
    """Whatever the network predicts and the weighting is; the score sees the same draws as ever."""
    denoiser = Denoiser(Noisy(), prediction=prediction, noise_shape=(2,), schedule=schedule)
    x0, t = data(6), torch.linspace(0.1, 0.9, 6, dtype=torch.float64)

    def loss(anchor):
        generator = torch.Generator().manual_seed(2)
        return ConditionalLoss(m=3, anchor=anchor, weighting=weighting)(denoiser, x0, generator=generator, t=t)

    z = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    xt = add_noise(schedule, x0, t, z)
    made = to_x0(prediction, schedule, Noisy()(xt, t, torch.zeros(6, 1, 2, dtype=torch.float64))[:, 0], xt, t)
    alpha, sigma = (value[:, None] for value in schedule(t))
    velocity = ((alpha + sigma) * made - xt) / sigma
    torch.testing.assert_close(loss(0.7) - loss(0.0), 0.7 * (velocity - (x0 - z)).square().sum(1) / math.sqrt(2))


def test_an_anchor_without_noise_is_a_multiple_of_the_classical_loss():
    denoiser, x0 = Denoiser(Noisy(), prediction="velocity"), data(6)
    values = [
        loss(denoiser, x0, generator=torch.Generator().manual_seed(2), t=torch.linspace(0.1, 0.9, 6).double())
        for loss in (ConditionalLoss(m=1, lam=0.0, anchor=1.0), ConditionalLoss(m=1, lam=0.0), RegressionLoss())
    ]
    torch.testing.assert_close(values[0] - values[1], values[2] / math.sqrt(2))


def test_the_posterior_still_minimises_an_anchored_loss():
    """Draws that are too wide, too narrow or off by a shift all score worse than the posterior's own."""

    class Bent(nn.Module):
        def __init__(self, spread, shift):
            super().__init__()
            self.spread, self.shift, self.posterior = spread, shift, GaussianPosterior(0.0, 1.0)

        def forward(self, xt, t, xi, cond=None):
            std = self.posterior.variance(t).sqrt()[:, None, None]
            return self.posterior.mean(xt, t)[:, None] + self.spread * std * xi + self.shift

    def score(spread, shift):
        generator, bent = torch.Generator().manual_seed(4), Denoiser(Bent(spread, shift), noise_shape=(2,))
        return float(ConditionalLoss(m=4, anchor=1.0)(bent, data(40000), generator=generator).mean())

    best = score(1.0, 0.0)
    assert all(best < score(*bend) for bend in ((0.7, 0.0), (1.3, 0.0), (1.0, 0.1)))


def test_an_anchor_wants_a_network():
    with pytest.raises(ValueError, match="denoiser must be a Denoiser for an anchor, got 'GaussianPosterior'"):
        ConditionalLoss(m=2, anchor=1.0)(GaussianPosterior(0.0, 1.0), data(4))


def test_the_score_of_features_joins_that_of_pixels_by_its_weight():
    class Pictures(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return xt[:, None] + 0.5 * xi

    denoiser = Denoiser(Pictures(), noise_shape=(1, 4, 4))
    x0, t = data(6, 16).reshape(6, 1, 4, 4), torch.linspace(0.1, 0.9, 6, dtype=torch.float64)

    def loss(weight, features):
        made = ConditionalLoss(m=3, patches=(2,), feature_weight=weight, features=features)
        return made(denoiser, x0, generator=torch.Generator().manual_seed(2), t=t)

    pixels, both = loss(0.0, None), loss(3.0, lambda x: [x.sin()])
    alone = (4 * both - pixels) / 3
    torch.testing.assert_close(loss(0.5, lambda x: [x.sin()]), (pixels + 0.5 * alone) / 1.5)
    torch.testing.assert_close(loss(1e9, lambda x: [x.sin()]), alone)
    assert not torch.allclose(alone, pixels)


@pytest.mark.parametrize("anchor", [0.0, 1.0])
@pytest.mark.parametrize("t", [0.3, 0.8])
def test_targets_from_the_posterior_leave_the_gradient_its_mean_and_less_noise(anchor, t):
    """Over many noisy versions of a few points, for a network whose shift is what is learned."""

    class Shifted(nn.Module):
        def __init__(self, shifts):
            super().__init__()
            self.shifts = shifts  # one for each noisy point, so that each has a gradient of its own

        def forward(self, xt, t, xi, cond=None):
            return (xt[:, None] + 0.5 * xi) * 0.7 + self.shifts[:, None]

    known, count = data(4), 4000

    def gradients(posterior, targets):
        loss = ConditionalLoss(kernel=Energy(1.0), m=2, anchor=anchor, posterior=posterior, targets=targets)
        shifts = torch.zeros(count, 2, dtype=torch.float64, requires_grad=True)
        denoiser, x0 = Denoiser(Shifted(shifts), noise_shape=(2,)), known.repeat(count // 4, 1)
        times = torch.full((count,), t, dtype=torch.float64)
        loss(denoiser, x0, generator=torch.Generator().manual_seed(6), t=times).sum().backward()
        return shifts.grad

    plain, several = gradients(None, 1), gradients(EmpiricalPosterior(known), 8)
    error = 4 * ((plain.var(0) + several.var(0)) / count).sqrt()
    assert bool(((plain.mean(0) - several.mean(0)).abs() < error).all())
    assert float(several.var(0).sum()) < (0.95 if t < 0.5 else 0.6) * float(plain.var(0).sum())
