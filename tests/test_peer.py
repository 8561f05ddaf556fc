from __future__ import annotations

import itertools
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import ot
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from distdiff import Denoiser, RegressionLoss, sample
from distdiff.hub import load_pipeline
from distdiff.loss import Batch
from distdiff.nn import MLP
from distdiff.nn.unet import UNet
from distdiff.peer import MeanFlowLoss, OTFlowLoss, sample_euler, sample_mean_flow
from distdiff.peer.mean_flow import LOCATION, SCALE
from distdiff.peer.ot_cfm import pairing
from distdiff.random import SampleGenerator, randn
from distdiff.recipe import RECIPES, SCALES, STUDIES
from distdiff.recipe.config import FLOWS, PointsRun
from distdiff.schedule import Cosine, add_noise
from distdiff.train import RunFolder, check, load_denoiser, train

TORCHCFM = find_spec("torchcfm") is not None
"""Compared with where it is there: it asks for far more than it imports (pip install --no-deps torchcfm)."""


class GaussianFlow(nn.Module):
    """The exact flow to N(mean, std**2): x_t keeps its quantile, so that the average velocity has a closed form."""

    spans = True

    def __init__(self, mean: float = 1.5, std: float = 0.5) -> None:
        super().__init__()
        self.mean, self.std = nn.Parameter(torch.tensor(mean)), std

    def spread(self, t):
        return ((1 - t) ** 2 * self.std**2 + t**2).sqrt()

    def velocity(self, x, t):
        """The mean of x_0 - z given x_t."""
        return self.mean - (t - (1 - t) * self.std**2) / self.spread(t) ** 2 * (x - (1 - t) * self.mean)

    def forward(self, xt, t, xi=None, cond=None, span=None):
        t = t.expand(len(xt))[:, None]
        span = torch.zeros_like(t) if span is None else span.expand(len(xt))[:, None]
        r = t - span
        moved = (1 - r) * self.mean + self.spread(r) / self.spread(t) * (xt - (1 - t) * self.mean) - xt
        average = moved / torch.where(span > 0, span, 1)
        return torch.where(span > 0, average, self.velocity(xt, t))[:, None]


class Instantaneous(GaussianFlow):
    """The velocity at the end of a span in the place of its average: what plain flow matching would answer."""

    def forward(self, xt, t, xi=None, cond=None, span=None):
        return super().forward(xt, t, xi, cond, None)


def flow(network: nn.Module | None = None, safety: float = 0.0) -> Denoiser:
    return Denoiser(GaussianFlow() if network is None else network, prediction="velocity", safety=safety)


EVENTS = {"mlp": (2,), "unet": (1, 6, 6)}


def random_network(kind: str, **options) -> nn.Module:
    """A network with weights large enough that each of its inputs matters."""
    torch.manual_seed(0)
    if kind == "mlp":
        network: nn.Module = MLP(2, width=16, time_width=8, **options)
    else:
        network = UNet(1, width=8, multipliers=(1, 2), blocks=1, attention=(0, 1), heads=2, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_((0.3 if kind == "mlp" else 0.1) * torch.randn_like(parameter))
    return network


def on_path(denoiser: Denoiser, n: int, generator) -> Batch:
    """Points of the flow, as if x_0 - z were the exact velocity at each."""
    t = 0.05 + 0.9 * torch.rand(n, generator=generator, dtype=torch.float64)
    xt = 2 * torch.randn((n, 1), generator=generator, dtype=torch.float64)
    velocity = denoiser.network.velocity(xt, t[:, None])
    x0 = xt + t[:, None] * velocity
    return Batch(x0, x0 - velocity, xt, t, None)


class TestFlow:
    @pytest.mark.parametrize("grid", ["uniform", "logsnr", "edm"])
    @pytest.mark.parametrize("kind", EVENTS)
    def test_the_deterministic_step_is_eulers(self, kind, grid):
        denoiser = flow(random_network(kind), 1e-2)
        shape = (5, *EVENTS[kind])
        euler = sample_euler(denoiser, shape, 6, grid, seed=3)
        torch.testing.assert_close(euler, sample(denoiser, shape, 6, 0.0, grid, seed=3), rtol=1e-4, atol=1e-5)

    def test_euler_steps_add_up_velocities(self):
        denoiser = flow()
        x = randn((4, 1), generator=SampleGenerator(range(1, 5)), like=torch.empty(0))
        for t, s in itertools.pairwise(np.linspace(1, 0, 9)):
            x = x + (t - s) * denoiser.network.velocity(x, torch.tensor(t)).float().detach()
        torch.testing.assert_close(sample_euler(denoiser, (4, 1), 8, seed=1), x)

    def test_many_euler_steps_follow_the_flow(self):
        end = sample_mean_flow(flow(), (64, 1), 1)
        coarse, fine = ((sample_euler(flow(), (64, 1), steps) - end).abs().max() for steps in (8, 800))
        assert coarse > 0.1
        assert fine < 0.01

    def test_the_target_is_that_of_conditional_flow_matching(self, generator):
        data, noise = torch.randn((2, 6, 3), generator=generator)
        t = torch.rand(6, generator=generator)
        denoiser = Denoiser(MLP(3, width=4, time_width=4), prediction="velocity")
        xt, target = add_noise(denoiser.schedule, data, t, noise), denoiser.target(data, noise, t)
        step = 1e-3
        nearer = add_noise(denoiser.schedule, data, t - step, noise)
        torch.testing.assert_close((nearer - xt) / step, target, rtol=1e-2, atol=1e-2)
        if TORCHCFM:
            from torchcfm import ConditionalFlowMatcher

            theirs = ConditionalFlowMatcher(sigma=0.0)  # whose time runs from noise to data
            torch.testing.assert_close(theirs.compute_mu_t(noise, data, 1 - t), xt)
            torch.testing.assert_close(theirs.compute_conditional_flow(noise, data, t, xt), target)

    def test_every_step_is_reported(self):
        seen = []
        sample_euler(flow(), (2, 1), 3, callback=seen.append)
        sample_mean_flow(flow(), (2, 1), 2, callback=seen.append)
        assert [step.index for step in seen] == [0, 1, 2, 0, 1]

    @pytest.mark.parametrize(
        ("denoiser", "message"),
        [
            (Denoiser(MLP(2, width=4, time_width=4), prediction="x0"), "prediction must be velocity, got 'x0'"),
            (
                Denoiser(MLP(2, width=4, time_width=4), prediction="velocity", schedule=Cosine()),
                "schedule must be FlowMatching",
            ),
            (
                Denoiser(MLP(2, noise_dim=2, width=4, time_width=4), prediction="velocity", noise_shape=(2,)),
                r"noise_shape must be None for a flow, got \(2,\)",
            ),
        ],
    )
    def test_only_networks_of_velocities_flow(self, denoiser, message):
        for sampler in (sample_euler, sample_mean_flow):
            with pytest.raises(ValueError, match=message):
                sampler(denoiser, (2, 2), 1)


class TestPairing:
    def test_on_a_line_it_matches_the_order(self, generator):
        x, z = 3 * torch.randn((40, 1), generator=generator), torch.randn((40, 1), generator=generator)
        paired = z[pairing(x, z)]
        assert torch.equal(paired.flatten()[x.flatten().argsort()], z.flatten().sort().values)

    @pytest.mark.parametrize("event", [(2,), (1, 4, 4)])
    def test_it_is_the_exact_optimal_transport_plan(self, event, generator):
        x, z = 2 * torch.randn((48, *event), generator=generator), torch.randn((48, *event), generator=generator)
        found = pairing(x, z)
        weights = np.full(48, 1 / 48)
        plans = [ot.emd(weights, weights, ot.dist(x.flatten(1).double().numpy(), z.flatten(1).double().numpy()))]
        if TORCHCFM:
            from torchcfm.optimal_transport import OTPlanSampler

            plans.append(OTPlanSampler(method="exact").get_map(x, z))
        for plan in plans:
            np.testing.assert_allclose(plan, np.eye(48)[found.numpy()] / 48, atol=1e-12)

    def test_the_noise_is_dealt_out_again_and_nearer(self, generator):
        x = 3 * torch.randn((64, 2), generator=generator)
        plain = RegressionLoss().noise(x, torch.Generator().manual_seed(5))
        paired = OTFlowLoss().noise(x, torch.Generator().manual_seed(5))
        assert sorted(map(tuple, plain.tolist())) == sorted(map(tuple, paired.tolist()))
        assert (paired - x).square().sum() < 0.8 * (plain - x).square().sum()

    def test_it_needs_no_randomness_but_the_generators(self, generator):
        x, denoiser = torch.randn((16, 2), generator=generator), flow(random_network("mlp"), 1e-2)
        states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  what must not be touched
        first, again, other = (OTFlowLoss()(denoiser, x, None, torch.Generator().manual_seed(k)) for k in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(states[0], torch.get_rng_state())
        assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002

    def test_the_loss_is_the_regression_on_the_pairs(self, generator):
        x, denoiser = torch.randn((16, 2), generator=generator), flow(random_network("mlp"), 1e-2)
        t = torch.linspace(0.1, 0.9, 16)
        z = OTFlowLoss().noise(x, torch.Generator().manual_seed(3))
        error = denoiser(add_noise(denoiser.schedule, x, t, z), t)[:, 0] - (x - z)
        loss = OTFlowLoss()(denoiser, x, None, torch.Generator().manual_seed(3), t)
        torch.testing.assert_close(loss, error.square().sum(1))


class TestMeanFlow:
    def test_the_exact_average_velocity_satisfies_the_identity(self, generator):
        denoiser = flow().double()
        batch = on_path(denoiser, 64, generator)
        span = batch.t * torch.rand(64, generator=generator, dtype=torch.float64)
        prediction, target = MeanFlowLoss().identity(denoiser, batch, span)
        torch.testing.assert_close(prediction, target, rtol=1e-9, atol=1e-9)
        wrong = flow(Instantaneous()).double()
        prediction, target = MeanFlowLoss().identity(wrong, batch, span)
        assert (prediction - target).abs().mean() > 1e-2

    def test_the_exact_average_velocity_is_where_the_loss_does_not_pull(self):
        """Over data and noise the gradient has mean 0 at the truth, and not beside it."""

        def pull(network: GaussianFlow, mean: float) -> float:
            generator = torch.Generator().manual_seed(0)
            x0 = 1.5 + 0.5 * torch.randn((200_000, 1), generator=generator)
            with torch.no_grad():
                network.mean.fill_(mean)
            loss = MeanFlowLoss(power=0.0, span_share=1.0)(flow(network, 1e-2), x0, None, generator).mean()
            return abs(float(torch.autograd.grad(loss, network.mean)[0]))

        assert pull(GaussianFlow(), 1.5) < 0.02
        assert pull(GaussianFlow(), 1.8) > 0.2

    @pytest.mark.parametrize("kind", EVENTS)
    def test_the_derivative_is_that_of_finite_differences_along_the_path(self, kind, generator):
        denoiser = flow(random_network(kind, spans=True).double(), 1e-2)
        x0, z = torch.randn((2, 6, *EVENTS[kind]), generator=generator, dtype=torch.float64)
        t = 0.2 + 0.6 * torch.rand(6, generator=generator, dtype=torch.float64)
        span = t * torch.rand(6, generator=generator, dtype=torch.float64)
        batch = Batch(x0, z, add_noise(denoiser.schedule, x0, t, z), t, None)
        prediction, target = MeanFlowLoss().identity(denoiser, batch, span)
        h = 1e-6
        ahead, behind = (
            denoiser(add_noise(denoiser.schedule, x0, t + k, z), t + k, span=span + k)[:, 0] for k in (h, -h)
        )
        wide = span.reshape(-1, *[1] * (x0.ndim - 1))
        torch.testing.assert_close(target, (x0 - z) - wide * (ahead - behind) / (2 * h), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(prediction, denoiser(batch.xt, t, span=span)[:, 0])
        assert prediction.requires_grad
        assert not target.requires_grad

    @pytest.mark.parametrize("kind", EVENTS)
    def test_without_spans_it_is_flow_matching(self, kind, generator):
        denoiser, t = flow(random_network(kind, spans=True), 1e-2), torch.linspace(0.1, 0.9, 8)
        x0 = torch.randn((8, *EVENTS[kind]), generator=generator)
        ours, plain = (
            loss(denoiser, x0, None, torch.Generator().manual_seed(1), t)
            for loss in (MeanFlowLoss(span_share=0.0, power=0.0), RegressionLoss())
        )
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
        weighted = MeanFlowLoss(span_share=0.0)(denoiser, x0, None, torch.Generator().manual_seed(1), t)
        torch.testing.assert_close(weighted, plain / (plain + 1e-3), rtol=1e-4, atol=1e-5)

    def test_the_adaptive_weight_is_held_fixed(self, generator):
        denoiser, t = flow(random_network("mlp", spans=True), 1e-2), torch.full((1,), 0.5)
        x0 = torch.randn((1, 2), generator=generator)

        def gradient(power: float):
            loss = MeanFlowLoss(power=power)(denoiser, x0, None, torch.Generator().manual_seed(1), t)
            return float(loss.detach()), torch.autograd.grad(loss.sum(), denoiser.network.output.weight)[0]

        (error, plain), (_, weighted) = gradient(0.0), gradient(1.0)
        torch.testing.assert_close(weighted, plain / (error + 1e-3), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("times", ["logit-normal", "uniform"])
    def test_a_span_lies_between_two_draws_of_the_times(self, times, generator):
        n, loss = 100_000, MeanFlowLoss(times=times, span_share=1.0)
        t = loss.spread(torch.rand(n, generator=generator))
        r = t - loss.spans(flow(), t, generator)
        pair = torch.rand((n, 2), generator=generator)
        if times == "logit-normal":
            pair = torch.sigmoid(LOCATION + SCALE * torch.randn((n, 2), generator=generator))
        assert bool((r >= 0).all() and (r <= t).all())
        q = torch.linspace(0.02, 0.98, 25)
        for ours, theirs in ((t, pair.amax(1)), (r, pair.amin(1)), (t - r, (pair[:, 0] - pair[:, 1]).abs())):
            torch.testing.assert_close(ours.quantile(q), theirs.quantile(q), rtol=0, atol=0.01)

    def test_the_share_of_spans_is_as_asked(self, generator):
        t = torch.full((20_000,), 0.7)
        for share in (0.0, 0.25, 1.0):
            span = MeanFlowLoss(span_share=share).spans(flow(safety=1e-2), t, generator)
            assert abs(float((span > 0).float().mean()) - share) < 0.02

    def test_one_step_with_the_exact_average_gives_the_data_and_euler_its_mean(self):
        x = sample_mean_flow(flow(), (20_000, 1), 1)
        assert abs(float(x.mean()) - 1.5) < 0.02
        assert abs(float(x.std()) - 0.5) < 0.01
        torch.testing.assert_close(sample_mean_flow(flow(), (20_000, 1), 7), x, rtol=1e-4, atol=1e-4)
        assert float(sample_euler(flow(), (20_000, 1), 1).std()) < 1e-3

    @pytest.mark.parametrize("kind", EVENTS)
    def test_a_step_goes_along_the_average_over_it(self, kind):
        denoiser = flow(random_network(kind, spans=True), 1e-2)
        shape, times = (3, *EVENTS[kind]), torch.tensor([0.99, 0.66, 0.33, 0.0])
        x = times[0] * randn(shape, generator=SampleGenerator(range(4, 7)), like=torch.empty(0))
        with torch.no_grad():
            for t, s in itertools.pairwise(times):
                x = x + (t - s) * denoiser(x, t, span=t - s)[:, 0]
        torch.testing.assert_close(sample_mean_flow(denoiser, shape, 3, seed=4), x, rtol=1e-4, atol=1e-5)
        alone = sample_mean_flow(denoiser, (1, *EVENTS[kind]), 3, seed=6)
        torch.testing.assert_close(alone[0], x[2], rtol=1e-4, atol=1e-5)

    def test_with_churn_its_network_is_a_classical_model(self):
        spans, plain = flow(), flow(nn.Module())
        plain.network.forward = lambda xt, t, xi=None, cond=None: spans.network(xt, t)
        torch.testing.assert_close(sample(spans, (5, 1), 3, 1.0), sample(plain, (5, 1), 3, 1.0))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"times": "normal"}, "times must be one of logit-normal, uniform, got 'normal'"),
            ({"span_share": 1.5}, r"span_share must be in \[0, 1\], got 1.5"),
            ({"power": -1.0}, r"power must be in \[0, 2\], got -1.0"),
        ],
    )
    def test_bad_settings(self, options, message):
        with pytest.raises(ValueError, match=message):
            MeanFlowLoss(**options)

    def test_a_network_without_spans_is_refused(self):
        denoiser = flow(random_network("mlp"), 1e-2)
        with pytest.raises(ValueError, match="spans must be True for mean-flow"):
            MeanFlowLoss()(denoiser, torch.zeros(4, 2))
        with pytest.raises(ValueError, match="spans must be True for mean-flow"):
            sample_mean_flow(denoiser, (2, 2), 1)


class TestSpans:
    @pytest.mark.parametrize("kind", EVENTS)
    def test_a_network_sees_the_span_and_takes_none_for_zero(self, kind, generator):
        network = random_network(kind, spans=True)
        x, t = torch.randn((3, *EVENTS[kind]), generator=generator), torch.tensor([0.3, 0.5, 0.7])
        zero = network(x, t, span=torch.zeros(3))
        torch.testing.assert_close(network(x, t), zero)
        assert not torch.allclose(network(x, t, span=torch.full((3,), 0.2)), zero, atol=1e-2)
        one = torch.tensor(0.5)
        torch.testing.assert_close(network(x, one, span=one), network(x, one.expand(3), span=one.expand(3)))

    @pytest.mark.parametrize("kind", EVENTS)
    def test_a_network_without_spans_is_as_it_was(self, kind):
        network = random_network(kind)
        assert not any(name.startswith("span") for name in network.state_dict())
        with pytest.raises(ValueError, match="span must be None for a network without spans"):
            network(torch.zeros(2, *EVENTS[kind]), torch.tensor(0.5), span=torch.tensor(0.1))


def finish(config, out, **options) -> None:
    for _ in train(config, out, **options):
        pass


@pytest.mark.parametrize(
    "name", ["checkerboard-ot-flow", "checkerboard-mean-flow", "digits-ot-flow", "digits-mean-flow"]
)
def test_a_peers_run_resumes_bit_for_bit(tmp_path, name):
    config = replace(RECIPES[name]["smoke"], steps=4)
    finish(config, tmp_path / "whole")
    run = train(config, tmp_path / "broken")
    next(run)
    run.close()
    finish(config, tmp_path / "broken", resume=True)
    whole, broken = (load_file(RunFolder(tmp_path / side).checkpoint()) for side in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[key], broken[key]) for key in whole)


def test_a_points_run_of_mean_flow_loads_and_samples(tmp_path):
    finish(RECIPES["mixture2d-mean-flow"]["smoke"], tmp_path)
    denoiser, _ = load_denoiser(tmp_path, "cpu")
    assert denoiser.spans
    assert sample_mean_flow(denoiser, (5, 2), 1).shape == (5, 2)


def test_a_pipeline_keeps_the_spans_and_steps_along_averages(tmp_path):
    finish(replace(RECIPES["digits-mean-flow"]["smoke"], steps=2, batch_size=4), tmp_path)
    pipe = load_pipeline(tmp_path, "cpu")
    with torch.no_grad():  # two steps leave the zero weights of a new network near zero
        for parameter in pipe.unet.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    pipe.save_pretrained(tmp_path / "again")
    again = load_pipeline(tmp_path / "again", "cpu")
    assert again.denoiser.spans
    assert again.scheduler.config.churn == 0
    cond = again.condition(None, 3)
    wanted = sample_mean_flow(again.denoiser, (3, 1, 8, 8), 2, seed=7, cond=cond)
    made = again(3, num_inference_steps=2, generator=torch.Generator().manual_seed(7), output_type="latent").images
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
    plain = sample_euler(again.denoiser, (3, 1, 8, 8), 2, seed=7, cond=cond)
    assert not torch.allclose(made, plain, atol=1e-3)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["checkerboard", "mixture2d", "digits"])
def test_a_peer_differs_from_the_classical_twin_in_its_loss_and_rate_alone(name, scale):
    twin = RECIPES[f"{name}-diffusion"][scale]
    for peer in FLOWS:
        config = RECIPES[f"{name}-{peer}"][scale]
        assert config.loss.kind == peer
        assert replace(config.network, spans=False) == twin.network
        same = ("steps", "batch_size", "accumulate", "data", "seed")
        assert all(getattr(config, key) == getattr(twin, key) for key in same)
        most = 1.0 if isinstance(config, PointsRun) or peer != "mean-flow" else 1e-3
        optim = RECIPES[name][scale].optim
        assert config.optim == replace(optim, restart=0, lr=min(optim.lr, most))
        if isinstance(config, PointsRun):
            check(config)


def test_studies_train_no_peers():
    kinds = {
        model.loss.kind for scales in STUDIES.values() for study in scales.values() for model in study.models.values()
    }
    assert kinds == {"conditional", "regression"}


MEAN = RECIPES["checkerboard-mean-flow"]["smoke"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            replace(MEAN, network=replace(MEAN.network, spans=False)),
            "network.spans must be True for loss.kind = mean-flow",
        ),
        (
            replace(MEAN, loss=replace(MEAN.loss, kind="regression")),
            "network.spans must be False for loss.kind = regression",
        ),
        (
            replace(MEAN, network=replace(MEAN.network, noise_dim=2)),
            "network.noise_dim must be 0 for a loss of kind mean-flow, got 2",
        ),
        (
            replace(MEAN, network=replace(MEAN.network, prediction="x0")),
            "network.prediction must be velocity for mean-flow",
        ),
        (
            replace(MEAN, network=replace(MEAN.network, schedule="cosine")),
            "network.schedule must be flow for mean-flow",
        ),
        (replace(MEAN, loss=replace(MEAN.loss, span_share=2.0)), r"span_share must be in \[0, 1\], got 2.0"),
        (
            replace(RECIPES["digits-mean-flow"]["smoke"], init="somewhere"),
            "init must be left out for a loss of kind mean-flow, whose network takes spans, got 'somewhere'",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path, config, message):
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
