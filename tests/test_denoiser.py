from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from distdiff import Cosine, Denoiser, FlowMatching, SampleGenerator, add_noise
from distdiff.nn import MLP


class Oracle(nn.Module):
    """Predicts, for known x0 and z, exactly what it is asked for."""

    def __init__(self, x0, z, prediction, alpha, sigma):
        super().__init__()
        total = alpha**2 / 4 + sigma**2
        self.answer = {
            "x0": x0,
            "velocity": x0 - z,
            "noise": z,
            "v": alpha * z - sigma * x0,
            "edm": (x0 - alpha / 4 / total * (alpha * x0 + sigma * z)) * total.sqrt() / (sigma / 2),
        }[prediction]

    def forward(self, xt, t, xi=None, cond=None):
        return self.answer[:, None]


@pytest.mark.parametrize("schedule", [FlowMatching(), Cosine()], ids=repr)
@pytest.mark.parametrize("prediction", ["x0", "velocity", "noise", "v", "edm"])
def test_every_prediction_stands_for_the_same_clean_point(schedule, prediction, generator):
    x0, z = (torch.randn(6, 2, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    t = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    scales = (value[:, None, None] for value in schedule(t))
    denoiser = Denoiser(Oracle(x0, z, prediction, *scales), schedule=schedule, prediction=prediction)
    torch.testing.assert_close(denoiser.draw(add_noise(schedule, x0, t, z), t)[:, 0], x0)
    torch.testing.assert_close(denoiser.target(x0, z, t), denoiser.network.answer)


def test_a_classical_model_repeats_its_one_draw(generator):
    denoiser = Denoiser(MLP(2, width=8, depth=1, time_width=4), prediction="velocity")
    draws = denoiser.draw(torch.randn(3, 2, generator=generator), torch.tensor(0.5), 4)
    assert draws.shape == (3, 4, 2)
    assert torch.equal(draws, draws[:, :1].expand(-1, 4, -1))


def test_a_distributional_model_draws_differently_and_reproducibly(generator):
    torch.manual_seed(0)
    denoiser = Denoiser(MLP(2, noise_dim=3, width=8, depth=2, time_width=4), noise_shape=(3,))
    xt, t = torch.randn(3, 2, generator=generator), torch.tensor(0.5)
    draws = denoiser.draw(xt, t, 4, None, torch.Generator().manual_seed(1))
    assert draws.shape == (3, 4, 2)
    assert (draws.std(1) > 0).all()
    assert torch.equal(draws, denoiser.draw(xt, t, 4, None, torch.Generator().manual_seed(1)))


def test_the_mean_is_what_the_network_makes_of_no_noise(generator):
    class Sum(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return xt[:, None] * t.reshape(-1, 1, 1) + (0.0 if xi is None else xi.exp())

    xt, t = torch.randn(5, 2, generator=generator), torch.linspace(0.1, 0.9, 5)
    denoiser = Denoiser(Sum(), noise_shape=(2,))
    torch.testing.assert_close(denoiser.mean(xt, t), xt * t[:, None] + 1)
    draws, mean = denoiser.draw_with_mean(xt, t, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(draws, denoiser.draw(xt, t, 3, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(mean, denoiser.mean(xt, t))
    assert not denoiser.has_mean
    assert Denoiser(Sum(), noise_shape=(2,), anchored=True).has_mean

    classical = Denoiser(Sum())
    draws, mean = classical.draw_with_mean(xt, t, 3)
    assert classical.has_mean
    assert torch.equal(draws, mean[:, None].expand(-1, 3, -1))
    assert torch.equal(classical.mean(xt, t), mean)


def test_network_is_never_asked_outside_the_safe_interval():
    seen = []

    class Spy(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            seen.append(t)
            return xt[:, None]

    denoiser = Denoiser(Spy(), safety=0.1)
    denoiser.draw(torch.zeros(3, 2), torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(seen[0], torch.tensor([0.1, 0.5, 0.9]))


def test_time_may_be_a_python_number(generator):
    denoiser = Denoiser(MLP(2, width=8, depth=1, time_width=4), prediction="velocity")
    xt = torch.randn(3, 2, generator=generator)
    assert torch.equal(denoiser.draw(xt, 0.5), denoiser.draw(xt, torch.full((3,), 0.5)))


def test_conditioning_reaches_the_network():
    class Conditional(nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return xt[:, None] + cond[:, None]

    draws = Denoiser(Conditional()).draw(torch.zeros(2, 1), torch.tensor(0.5), cond=torch.tensor([[1.0], [2.0]]))
    assert draws.flatten().tolist() == [1.0, 2.0]


class TestMLP:
    def build(self, **options) -> MLP:
        torch.manual_seed(0)
        return MLP(2, noise_dim=2, width=16, depth=3, time_width=8, **options).double()

    def test_sharing_the_time_branch_equals_replicating_the_population(self, generator):
        network = self.build()
        xt, xi = (torch.randn(*s, 2, dtype=torch.float64, generator=generator) for s in ((5,), (5, 7)))
        t = torch.rand(5, dtype=torch.float64, generator=generator)
        shared = network(xt, t, xi)
        naive = network(xt.repeat_interleave(7, 0), t.repeat_interleave(7, 0), xi.reshape(35, 1, 2)).reshape(5, 7, 2)
        torch.testing.assert_close(shared, naive)

    def test_one_time_for_all_equals_that_time_for_each(self, generator):
        network = self.build()
        xt, xi = (torch.randn(*s, 2, dtype=torch.float64, generator=generator) for s in ((5,), (5, 7)))
        t = torch.tensor(0.3, dtype=torch.float64)
        torch.testing.assert_close(network(xt, t, xi), network(xt, t.expand(5), xi))

    def test_everything_matters(self, generator):
        network = self.build()
        xt, xi, t = torch.randn(4, 2).double(), torch.randn(4, 3, 2).double(), torch.rand(4).double()
        base = network(xt, t, xi)
        for other in (network(xt + 1, t, xi), network(xt, t / 2, xi), network(xt, t, xi + 1)):
            assert (other - base).abs().amax((1, 2)).min() > 1e-6

    def test_half_of_the_output_is_dropped_where_there_is_noise(self):
        assert self.build().output.out_features == 4
        assert MLP(2, width=8, depth=1, time_width=4).output.out_features == 2

    def test_layers_are_the_papers(self):
        network = MLP(2, noise_dim=2)
        linear = [tuple(m.weight.shape) for m in network.modules() if isinstance(m, nn.Linear)]
        assert linear.count((2048, 2048)) == 2
        assert linear.count((64, 2048)) == 1
        # three more on the time side, three on the point side, the joint one split in two, three after it
        assert linear.count((64, 64)) == 3 + 3 + 2 + 3
        assert linear.count((64, 2)) == 2
        assert linear.count((4, 64)) == 1


def test_rows_do_not_depend_on_the_batch(generator):
    torch.manual_seed(0)
    denoiser = Denoiser(MLP(2, noise_dim=2, width=8, depth=2, time_width=4).double(), noise_shape=(2,))
    xt, t = torch.randn(6, 2, dtype=torch.float64, generator=generator), torch.tensor(0.4, dtype=torch.float64)
    whole = denoiser.draw(xt, t, 2, None, SampleGenerator(range(6)))
    part = denoiser.draw(xt[4:], t, 2, None, SampleGenerator([4, 5]))
    torch.testing.assert_close(whole[4:], part)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Denoiser(nn.Identity(), prediction="score"), "prediction must be one of x0, velocity, noise"),
        (lambda: Denoiser(nn.Identity(), safety=0.7), "safety must be in [0, 0.5), got 0.7"),
        (lambda: Denoiser(nn.Identity()).draw(torch.zeros(2, 1), torch.tensor(0.5), 0), "m must be a whole number"),
        (
            lambda: Denoiser(nn.Identity()).draw(torch.zeros(2, 1), torch.zeros(3)),
            "t must be of shape () or (2,), got (3,)",
        ),
        (
            lambda: Denoiser(nn.Identity(), prediction="noise", safety=0),
            "safety must be positive for a noise prediction",
        ),
        (lambda: MLP(2, width=0), "width must be a whole number of at least 1, got 0"),
        (lambda: MLP(2, time_width=5), "width must be an even number of at least 4, got 5"),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
