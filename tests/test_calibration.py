from __future__ import annotations

import pytest
import torch

from distdiff import FlowMatching
from distdiff.evaluate import calibration
from distdiff.schedule import expand

STDS = torch.tensor([4.0, 2.0, 1.0, 0.1], dtype=torch.float64)


class Posterior:
    """That of N(0, diag(STDS**2)) data, its spread stretched along each axis and its mean shifted."""

    own_noise = True

    def __init__(self, stretch=(1.0, 1.0, 1.0, 1.0), shift=0.0):
        self.schedule, self.stretch, self.shift = FlowMatching(), torch.tensor(stretch, dtype=torch.float64), shift

    def draw(self, xt, t, m=1, cond=None, generator=None):
        alpha, sigma = (expand(c, xt) for c in self.schedule(t.double()))
        total = (alpha * STDS) ** 2 + sigma**2
        mean, std = alpha * STDS**2 / total * xt + self.shift, STDS * sigma / total.sqrt()
        z = torch.randn(len(xt), m, *xt.shape[1:], dtype=xt.dtype, generator=generator)
        return mean[:, None] + self.stretch * std[:, None] * z


def data(count=20_000):
    return STDS * torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def measure(posterior, t=0.5, **options):
    generator = torch.Generator().manual_seed(1)
    return calibration(posterior, data(), t, groups=4, generator=generator, **options)


@pytest.mark.parametrize("draws", [2, 8])
@pytest.mark.parametrize("t", [0.2, 0.8])
def test_an_exact_posterior_has_ratios_of_one_and_its_own_spread(t, draws):
    found = measure(Posterior(), t, draws=draws)
    torch.testing.assert_close(found.ratio, torch.ones(4, dtype=torch.float64), rtol=0.05, atol=0)
    expected = STDS * t / ((1 - t) ** 2 * STDS**2 + t**2).sqrt()
    torch.testing.assert_close(found.std, expected, rtol=0.03, atol=0)


def test_ratios_tell_wide_and_narrow_directions_apart():
    stretch = (0.5, 1.0, 1.0, 3.0)
    found = measure(Posterior(stretch), 0.9)
    # the mean of 8 draws adds an eighth of the draws' variance instead of the posterior's to the errors
    expected = torch.tensor([s**2 * (9 / 8) / (1 + s**2 / 8) for s in stretch], dtype=torch.float64)
    torch.testing.assert_close(found.ratio, expected, rtol=0.06, atol=0)


def test_a_wrong_mean_looks_like_draws_that_are_too_narrow():
    ratio = measure(Posterior(shift=2.0), 0.9).ratio
    assert float(ratio.max()) < 0.95
    assert float(ratio.min()) < 0.5


def test_directions_are_not_judged_on_the_points_that_chose_them():
    class Round(Posterior):
        def draw(self, xt, t, m=1, cond=None, generator=None):
            return torch.randn(len(xt), m, 4, dtype=xt.dtype, generator=generator)

    x0 = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    generator, runs = torch.Generator().manual_seed(4), []
    for _ in range(60):
        mixed = x0[torch.randperm(40, generator=generator)]
        runs.append(calibration(Round(), mixed, 0.5, groups=4, generator=generator).std)
    widths = torch.stack(runs).mean(0)
    assert float(widths[0] / widths[-1]) < 1.25  # 1.97 on the points that chose them


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 1.5}, "t must be in"),
        ({"draws": 1}, "draws must be"),
        ({"groups": 5}, "groups must be at most 4"),
        ({"x0": torch.zeros(8, 4)}, "x0 must be more than two data points for each"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        calibration(Posterior(), **({"x0": data(100), "t": 0.5, "groups": 4} | change))
