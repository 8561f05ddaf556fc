from __future__ import annotations

import math

import torch

from distdiff import RBF, FlowMatching, GaussianPosterior, discrepancy, sample
from distdiff.data.toy import Mixture2D
from distdiff.evaluate import Reference, floor, measure, posterior_spread


def test_measurements_are_discrepancies_of_the_samples():
    toy = Mixture2D()
    reference = Reference(toy, points=200, repeats=3, seed=5)
    found = measure(toy.posterior(), reference, steps=2, churn=0.5, repeats=3, seed=9)
    x = sample(toy.posterior(), (600, 2), 2, 0.5, seed=9).split(200)
    unbiased = [float(discrepancy(RBF(1), a, b)) for a, b in zip(x, reference.sets, strict=True)]
    biased = [float(discrepancy(RBF(1), a, b, unbiased=False)) for a, b in zip(x, reference.sets, strict=True)]
    assert math.isclose(found.unbiased, sum(unbiased) / 3, abs_tol=1e-7)
    assert math.isclose(found.biased, sum(biased) / 3, abs_tol=1e-7)
    assert math.isclose(found.error, float(torch.tensor(unbiased).std()) / math.sqrt(3), rel_tol=1e-3)
    assert found.repeats == 3


def test_the_floor_is_zero_when_unbiased_and_positive_when_biased():
    toy = Mixture2D()
    found = floor(toy, Reference(toy, points=500, repeats=20))
    assert abs(found.unbiased) < 4 * found.error
    assert found.biased > 1e-3
    assert found.error > 1e-5  # the sets differ
    assert found.repeats == 20


def test_spread_of_a_gaussian_posterior_is_its_standard_deviation():
    posterior = GaussianPosterior(0.0, 2.0, schedule=FlowMatching())
    xt = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    expected = float(posterior.variance(torch.tensor(0.5)).sqrt())
    assert math.isclose(posterior_spread(posterior, xt, 0.5, draws=64), expected, rel_tol=0.01)
