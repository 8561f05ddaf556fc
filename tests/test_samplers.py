"""All samplers behind one call: what each is, that noise belongs to a sample, and the orders of convergence."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from distdiff import Cosine, Denoiser, FlowMatching, GaussianPosterior, MixturePosterior, sample
from distdiff.baseline import SAMPLERS, sample_dpm, sample_with
from distdiff.cli import main
from distdiff.data.toy import Mixture2D
from distdiff.evaluate import Reference, evaluate_points, measure
from distdiff.evaluate.setting import plan
from distdiff.nn import MLP
from distdiff.recipe import RECIPES
from distdiff.schedule import GRIDS, time_grid
from distdiff.train import load_denoiser, train


@pytest.fixture(scope="module")
def denoiser() -> Denoiser:
    torch.manual_seed(0)
    return Denoiser(MLP(2, width=16, depth=2, time_width=8), prediction="velocity")


def network_for(sampler: str) -> Denoiser:
    """A network that a sampler is for."""
    torch.manual_seed(0)
    network = MLP(2, width=16, depth=2, time_width=8, spans=sampler == "mean-flow")
    return Denoiser(network, prediction="velocity")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("points") / "run"
    for _ in train(RECIPES["checkerboard-diffusion"]["smoke"], out):
        pass
    return out


class Recorder:
    """A posterior mean that remembers the times it was asked at and the first x it saw."""

    own_noise = True

    def __init__(self, safety: float) -> None:
        self.exact, self.safety, self.asked, self.first = GaussianPosterior(1.0, 0.5, factor=0.0), safety, [], None
        self.schedule = self.exact.schedule

    def draw(self, xt, t, m=1, cond=None, generator=None):
        self.first = xt if self.first is None else self.first
        self.asked.append(float(t))
        return self.exact.draw(xt, t, m, cond, generator)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sample_depends_on_its_seed_alone(name):
    denoiser = network_for(name)
    whole = sample_with(denoiser, (7, 2), 5, name, seed=3)
    split = sample_with(denoiser, (7, 2), 5, name, seed=3, batch_size=3)
    listed = sample_with(denoiser, (7, 2), 5, name, seed=list(range(9, 2, -1)), batch_size=2)
    torch.testing.assert_close(listed.flip(0), whole)
    torch.testing.assert_close(whole, split)
    torch.testing.assert_close(whole[4:], sample_with(denoiser, (3, 2), 5, name, seed=7))
    assert not torch.allclose(whole, sample_with(denoiser, (7, 2), 5, name, seed=4))


def test_sde_and_ddim_are_the_two_ends_of_churn(denoiser):
    for name, churn in (("sde", 1.0), ("ddim", 0.0)):
        ours = sample(denoiser, (6, 2), 4, churn, "edm", seed=2)
        torch.testing.assert_close(sample_with(denoiser, (6, 2), 4, name, grid="edm", seed=2), ours)
        torch.testing.assert_close(sample_with(denoiser, (6, 2), 4, churn=churn, grid="edm", seed=2), ours)


def test_conditioning_is_split_with_the_batch():
    class Echo:
        schedule, own_noise = FlowMatching(), True

        def draw(self, xt, t, m=1, cond=None, generator=None):
            return cond[:, None]

    cond = torch.arange(10.0).reshape(5, 2)
    for name in ("distributional", "sde", "ddim", "dpm++", "sde-dpm++"):
        assert torch.equal(sample_with(Echo(), (5, 2), 3, name, cond=cond, batch_size=2), cond)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps", [1, 2])
def test_dpm_solver_is_ddim_for_one_and_two_steps_on_every_grid(denoiser, grid, steps):
    ours = sample_with(denoiser, (6, 2), steps, "ddim", grid=grid, seed=3)
    torch.testing.assert_close(sample_with(denoiser, (6, 2), steps, "dpm++", grid=grid, seed=3), ours)


class Asked(torch.nn.Module):
    """Predicts a shrunken x_t, plus noise; keeps what it was given of it."""

    def __init__(self):
        super().__init__()
        self.noisy = []

    def forward(self, xt, t, xi=None, cond=None):
        self.noisy.append(bool(xi.abs().sum() > 0))
        return 0.5 * xt[:, None] + xi


@pytest.mark.parametrize("churn", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_hybrid_draws_once_and_then_follows_the_mean(steps, churn):
    denoiser = Denoiser(Asked(), noise_shape=(2,), anchored=True)
    seen = []
    x = sample_with(denoiser, (5, 2), steps, "hybrid", churn, seed=3, callback=seen.append)
    assert denoiser.network.noisy == [True] + [False] * (steps - 1)
    first = sample_with(denoiser, (5, 2), 1, "distributional", seed=3)
    torch.testing.assert_close(seen[0].x0, first)
    if steps == 1:
        torch.testing.assert_close(x, first)
    sample_with(denoiser, (5, 2), steps, "dpm++", seed=3)
    assert denoiser.network.noisy[-steps:] == [False] * steps


@pytest.mark.parametrize("churn", [0.0, 0.5, None])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_settle_goes_the_way_of_the_draws_and_ends_at_the_mean(steps, churn):
    denoiser = Denoiser(Asked(), noise_shape=(2,), anchored=True)
    drawn, settled = [], []
    sample_with(denoiser, (5, 2), steps, "distributional", churn, seed=3, callback=drawn.append)
    denoiser.network.noisy.clear()
    x = sample_with(denoiser, (5, 2), steps, "settle", churn, seed=3, callback=settled.append)
    assert denoiser.network.noisy == ([True] if steps == 1 else [True] * (steps - 1) + [False])
    for a, b in zip(drawn[:-1], settled[:-1], strict=True):
        torch.testing.assert_close(a.xs, b.xs)
    last = settled[-1]
    torch.testing.assert_close(x, drawn[0].x0 if steps == 1 else denoiser.mean(last.xt, last.t))
    with pytest.raises(ValueError, match=r"trained without --loss\.anchor, got 'settle'"):
        sample_with(Denoiser(Asked(), noise_shape=(2,)), (2, 2), 2, "settle")


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_hybrid_of_a_classical_model_is_dpm_solver(denoiser, steps, grid):
    """At churn 0, where diffusers' code has the same steps."""
    solver = sample_with(denoiser, (6, 2), steps, "dpm++", grid=grid, seed=3)
    torch.testing.assert_close(sample_with(denoiser, (6, 2), steps, "hybrid", 0.0, grid=grid, seed=3), solver)


def test_hybrid_with_churn_converges_to_the_data():
    """A Gaussian's exact mean and draws give its standard deviation."""
    exact = GaussianPosterior(1.0, 0.5)

    class Exact(torch.nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            return exact.mean(xt, t)[:, None] + exact.variance(t).sqrt() * xi

    denoiser = Denoiser(Exact(), noise_shape=(1,), anchored=True, safety=1e-3)
    for churn in (0.0, 0.5, 1.0):
        x = sample_with(denoiser, (4000, 1), 60, "hybrid", churn, grid="logsnr")
        assert abs(float(x.mean()) - 1) < 0.03
        assert abs(float(x.std()) - 0.5) < 0.02


def test_hybrid_wants_a_mean_and_has_churn():
    says = "sampler must be another one for a model trained without --loss.anchor, got 'hybrid'"
    with pytest.raises(ValueError, match=says):
        sample_with(Denoiser(Asked(), noise_shape=(2,)), (2, 2), 2, "hybrid")
    settings = [s.name for s in plan([1, 2], [0.0, 0.5], ["distributional", "hybrid"])]
    assert settings == ["churn 0.5", "churn 0", "churn 0.5", "hybrid, churn 0", "hybrid, churn 0.5"]
    assert [s.name for s in plan([1], [0.0, 0.5], ["hybrid"])] == ["hybrid, churn 0.5"]
    anchored = Denoiser(Asked(), noise_shape=(2,), anchored=True)
    unsaid = sample_with(anchored, (2, 2), 3, "hybrid")
    assert torch.equal(unsaid, sample_with(anchored, (2, 2), 3, "hybrid", 0.0))


def test_hybrid_comes_closer_to_the_modes_in_two_steps_than_the_solver_alone():
    posterior = MixturePosterior(torch.tensor([[-1.0], [1.0]]), 0.05)

    class Exact(torch.nn.Module):
        def forward(self, xt, t, xi=None, cond=None):
            if not xi.any():
                return posterior.mean(xt, t)[:, None]
            return posterior.draw(xt, t, 1, None, torch.Generator().manual_seed(0))

    denoiser = Denoiser(Exact(), noise_shape=(1,), anchored=True)
    hybrid, solver = (
        float((sample_with(denoiser, (2000, 1), 2, name, churn).abs() - 1).abs().mean())
        for name, churn in (("hybrid", 0.0), ("dpm++", None))
    )
    assert hybrid < 0.9 * solver


@pytest.mark.parametrize("name", ["dpm++", "sde-dpm++"])
@pytest.mark.parametrize("grid", GRIDS)
def test_dpm_solver_starts_at_the_grids_first_time_and_asks_at_its_exact_times(grid, name):
    recorder = Recorder(safety=0.03)
    sample_with(recorder, (4000, 1), 5, name, grid=grid)
    times = time_grid(recorder.schedule, 5, grid, t_max=0.97, safety=0.03)
    torch.testing.assert_close(torch.tensor(recorder.asked), times[:-1].float(), rtol=0, atol=1e-7)
    assert math.isclose(float(recorder.first.std()), 0.97, rel_tol=0.03)


def test_dpm_solver_converges_at_second_order_and_ddim_at_first():
    """For Gaussian data the exact flow is linear: it keeps (x - alpha mu) / sqrt(alpha^2 s^2 + sigma^2) constant.

    The spacing in log-SNR ends at the safety, from where both take the posterior mean.
    """

    def spread(t: float) -> float:
        return math.sqrt(((1 - t) * 0.5) ** 2 + t**2)

    def error(name: str, steps: int) -> float:
        recorder = Recorder(safety=0.05)
        x = sample_with(recorder, (50, 1), steps, name, grid="logsnr")
        last = recorder.first - (1 - 0.95)
        last = (1 - 0.05) + spread(0.05) / spread(0.95) * last
        return float((x - recorder.exact.mean(last, 0.05)).abs().mean())

    assert 0.9 < math.log2(error("ddim", 24) / error("ddim", 48)) < 1.1
    assert 1.8 < math.log2(error("dpm++", 24) / error("dpm++", 48)) < 2.2
    assert error("dpm++", 48) < error("ddim", 48) / 20


def test_the_stochastic_solver_keeps_the_spread_of_the_data():
    x = sample_with(Recorder(safety=1e-3), (4000, 1), 40, "sde-dpm++", grid="logsnr")
    assert math.isclose(float(x.mean()), 1, abs_tol=0.05)
    assert math.isclose(float(x.std()), 0.5, rel_tol=0.1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_callback_sees_every_step_of_every_batch(name):
    denoiser = network_for(name)
    seen = []
    x = sample_with(denoiser, (5, 2), 3, name, batch_size=2, callback=seen.append)
    assert [step.index for step in seen] == [0, 1, 2] * 3
    assert all(step.xs.shape == step.x0.shape for step in seen)
    assert torch.equal(torch.cat([step.xs for step in seen if step.s == 0]), x)


def test_bad_arguments_are_named(denoiser):
    with pytest.raises(ValueError, match="sampler must be one of distributional, sde, ddim, dpm\\+\\+, sde-dpm\\+\\+"):
        sample_with(denoiser, (2, 2), 2, "heun")
    with pytest.raises(ValueError, match=r"churn must be left out for ddim, got 0\.5"):
        sample_with(denoiser, (2, 2), 2, "ddim", 0.5)
    with pytest.raises(ValueError, match="spans must be True for mean-flow"):
        sample_with(denoiser, (2, 2), 2, "mean-flow")
    with pytest.raises(ValueError, match="prediction must be velocity, got 'x0'"):
        sample_with(Denoiser(MLP(2, width=8, depth=2, time_width=8)), (2, 2), 2, "euler")
    curved = Denoiser(MLP(2, width=8, depth=2, time_width=8), schedule=Cosine())
    for call in (sample_with, sample_dpm):
        with pytest.raises(ValueError, match=r"schedule must be flow matching for DPM-Solver\+\+, got Cosine\(\)"):
            call(curved, (2, 2), 2, "dpm++")


def test_one_step_is_scored_once_where_all_samplers_agree():
    settings = [(s.steps, s.name) for s in plan([2, 1], [0.0, 1.0], ["distributional", "ddim", "dpm++"])]
    assert settings == [(1, "churn 1"), (2, "churn 0"), (2, "churn 1"), (2, "ddim"), (2, "dpm++")]
    assert [s.name for s in plan([1], [0.0], ["ddim", "dpm++"])] == ["ddim", "dpm++"]


def test_points_are_measured_by_any_sampler():
    toy = Mixture2D()
    reference = Reference(toy, points=200, repeats=2, seed=5)
    for name in SAMPLERS:
        denoiser = network_for(name)
        found = measure(denoiser, reference, steps=3, sampler=name, repeats=2, seed=9, grid="logsnr")
        x = sample_with(denoiser, (400, 2), 3, name, grid="logsnr", seed=9).split(200)
        assert found == reference.compare(x)
    evaluation = evaluate_points(toy.posterior(), toy, steps=[1, 3], samplers=["sde"], n=1000, repeats=3)
    assert [(e.steps, e.name) for e in evaluation.entries] == [(1, "sde"), (3, "sde")]
    for entry in evaluation.entries:
        assert abs(entry.score.unbiased) < 5 * max(entry.score.error, evaluation.floor.error)


def test_evaluate_of_points_writes_scores_of_every_sampler_and_the_floor(run, tmp_path, capsys):
    words = ["--steps", "2,4", "--churn", "0.5", "--sampler", "distributional,sde,ddim,dpm++,sde-dpm++", "--n", "200"]
    main(["evaluate", str(run), *words, "--repeats", "2", "--grid", "edm", "--out", str(tmp_path / "e")])
    assert sorted(file.name for file in (tmp_path / "e").iterdir()) == ["metrics.json", "scores.pdf", "scores.png"]
    found = json.loads((tmp_path / "e/metrics.json").read_text())
    rows = [(row["steps"], row["sampler"], row["churn"]) for row in found["scores"]]
    names = [("distributional", 0.5), ("sde", None), ("ddim", None), ("dpm++", None), ("sde-dpm++", None)]
    assert rows == [(n, *name) for n in (2, 4) for name in names]
    score = {(row["steps"], row["sampler"]): row["unbiased"] for row in found["scores"]}
    assert math.isclose(score[2, "ddim"], score[2, "dpm++"], rel_tol=1e-3)
    assert len(set(score.values())) > 7
    assert abs(found["floor"]["unbiased"]) < min(score.values())
    assert found["settings"]["data"] == "checkerboard"
    assert "two real sets" in capsys.readouterr().err


def test_sample_takes_a_sampler(run, tmp_path):
    denoiser, _ = load_denoiser(run, "cpu")
    for name in ("sde", "ddim", "sde-dpm++"):
        words = ["--sampler", name, "--n", "20", "--steps", "6", "--batch-size", "7", "--out", str(tmp_path / name)]
        main(["sample", str(run), *words])
        expected = sample_with(denoiser, (20, 2), 6, name)
        np.testing.assert_allclose(np.load(tmp_path / name / "samples.npy"), expected.numpy(), atol=1e-5)
        settings = json.loads((tmp_path / name / "samples.json").read_text())
        assert (settings["sampler"], settings["churn"]) == (name, None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("evaluate RUN --sampler heun", "sampler must be one of distributional, sde, ddim, dpm++, sde-dpm++"),
        ("evaluate RUN --metric fd", "metric must be left out for points, got 'fd'"),
        ("evaluate RUN --split test", "split must be left out for points, got 'test'"),
        ("evaluate RUN --n 1", "n must be a whole number of at least 2, got 1"),
        ("evaluate RUN --repeats 0", "repeats must be a whole number of at least 1, got 0"),
        ("sample RUN --sampler heun", "sampler must be one of distributional, sde, ddim, dpm++, sde-dpm++"),
        ("evaluate CURVED --sampler ddim,dpm++", "schedule must be flow matching for DPM-Solver++, got Cosine()"),
        ("sample CURVED --sampler dpm++", "schedule must be flow matching for DPM-Solver++, got Cosine()"),
    ],
)
def test_bad_command_lines_write_nothing(run, tmp_path, capsys, words, says):
    if "CURVED" in words:
        config = RECIPES["checkerboard-diffusion"]["smoke"]
        config = replace(config, steps=1, network=replace(config.network, schedule="cosine"))
        list(train(config, tmp_path / "curved"))
    places = {"RUN": str(run), "CURVED": str(tmp_path / "curved")}
    before = {*run.rglob("*"), *tmp_path.rglob("*")}
    with pytest.raises(SystemExit) as stop:
        main([places.get(word, word) for word in words.split()])
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
    assert {*run.rglob("*"), *tmp_path.rglob("*")} == before
