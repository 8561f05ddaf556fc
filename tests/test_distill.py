"""Moment-matching distillation: its losses, where they are stationary, that it works, and that runs of it resume."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from distdiff import Denoiser, FlowMatching, GaussianPosterior, discrepancy, sample
from distdiff.baseline import MomentMatching
from distdiff.cli import main
from distdiff.kernel import RBF
from distdiff.nn import MLP
from distdiff.posterior import MixturePosterior
from distdiff.recipe import RECIPES
from distdiff.train import RunFolder, build_task, check, load_denoiser, train
from distdiff.transition import transition

TEACHER = RECIPES["checkerboard-diffusion"]["smoke"]
STUDENT = replace(TEACHER, loss=replace(TEACHER.loss, kind="moment-matching", k=4))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    out = tmp_path_factory.mktemp("teacher") / "run"
    list(train(TEACHER, out))
    return out


@pytest.fixture(scope="module")
def image_teacher(tmp_path_factory):
    out = tmp_path_factory.mktemp("teacher") / "images"
    list(train(replace(RECIPES["digits-diffusion"]["smoke"], steps=3), out))
    return out


class Linear(nn.Module):
    """x_0 = gain x_t, for one-dimensional Gaussian data."""

    schedule = FlowMatching()

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain, dtype=torch.float64))

    def draw(self, xt, t, m=1, cond=None, generator=None):
        return (self.gain * xt)[:, None]


class Mean:
    """E[x_0 | x_t] of N(0, 1), or with a student's gain the exact E[made | z_s] of its step from t to s."""

    schedule = FlowMatching()

    def __init__(self, gain: float | None = None, half: bool = False) -> None:
        self.gain, self.half = gain, half
        self.exact = GaussianPosterior(0.0, 1.0)

    def draw(self, xt, t, m=1, cond=None, generator=None):
        taught = self.exact.mean(xt, t)
        if self.gain is None:
            return taught[:, None]
        made = moment(self.gain) * xt
        return ((made + taught) / 2 if self.half else made)[:, None]


S, T = 0.25, 0.5


class OneStep(MomentMatching):
    """All steps from T to S."""

    def times(self, denoiser, count, generator, like):
        return like.new_full((count,), S), like.new_full((count,), T)


def moment(gain: float) -> float:
    """The slope of E[made | z_s] in z_s for a linear student, where made = gain x_t and data is N(0, 1)."""
    move = transition(FlowMatching(), T, S)
    variance, into = (1 - T) ** 2 + T**2, float(move.c_xt + move.c_x0 * gain)
    return gain * into * variance / (into**2 * variance + float(move.std) ** 2)


def matched_gain() -> float:
    """The student's gain at which its moment is the teacher's, by bisection."""
    target = float(GaussianPosterior(0.0, 1.0).gain(S))
    low, high = 0.5, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if moment(middle) < target else (low, middle)
    return low


def expected_gradient(gain: float) -> float:
    student, x0 = Linear(gain), torch.randn(200_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)
    OneStep().student(Mean(), student, Mean(gain, half=True), x0, generator=noise).mean().backward()
    return float(student.gain.grad)


def test_the_students_gradient_vanishes_where_its_moments_are_the_teachers():
    gain = matched_gain()
    mean = float(GaussianPosterior(0.0, 1.0).gain(T))
    assert gain > 1.05 * mean  # a posterior mean spreads too little: the student must spread more
    assert abs(expected_gradient(gain)) < 1e-9
    assert expected_gradient(mean) < -0.005  # descent raises the gain
    assert expected_gradient(1.1 * gain) > 0.005


def test_the_students_gradient_is_half_the_gap_times_its_own():
    """In closed form: E[x_t (moment - r) z_s] / 2."""
    gain = 1.0
    move = transition(FlowMatching(), T, S)
    across = float(move.c_xt + move.c_x0 * gain) * ((1 - T) ** 2 + T**2)  # E[x_t z_s]
    expected = (moment(gain) - float(GaussianPosterior(0.0, 1.0).gain(S))) / 2 * across
    assert math.isclose(expected_gradient(gain), expected, rel_tol=0.02)


def test_the_auxiliary_learns_the_midpoint_of_student_and_teacher():
    gain = 1.2
    x0 = torch.randn(100_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def slope(at: float) -> float:
        auxiliary, noise = Linear(at), torch.Generator().manual_seed(1)
        OneStep().auxiliary(Mean(), Linear(gain), auxiliary, x0, generator=noise).mean().backward()
        return float(auxiliary.gain.grad)

    minimum = slope(0.0) / (slope(0.0) - slope(1.0))  # the loss is a parabola
    middle = (moment(gain) + float(GaussianPosterior(0.0, 1.0).gain(S))) / 2
    assert math.isclose(minimum, middle, rel_tol=0.01)


def student_gain(t: float, k: int, churn: float) -> float:
    """Where a linear student of N(0, 1) settles at t: the gradient averaged over s, uniform in the step below t."""
    s = t - (1 - 0.01) * torch.linspace(0.001, 0.999, 101, dtype=torch.float64) * min(1 / k, t - 0.01)
    move = transition(FlowMatching(), torch.full_like(s, t), s, churn)
    variance, taught = (1 - t) ** 2 + t**2, GaussianPosterior(0.0, 1.0).gain(s)
    low, high = 0.01, 4.0
    for _ in range(50):
        gain = (low + high) / 2
        into = move.c_xt + move.c_x0 * gain
        made = gain * into * variance / (into**2 * variance + move.std**2)
        low, high = (gain, high) if float(((made - taught) * into).mean()) < 0 else (low, gain)
    return low


def sampled_variance(gain, k: int, churn: float) -> float:
    """The variance of k steps' samples of a linear model with a gain at each t."""
    times = torch.linspace(0.99, 0, k + 1, dtype=torch.float64).tolist()
    variance = times[0] ** 2
    for t, s in itertools.pairwise(times):
        move = transition(FlowMatching(), t, s, churn)
        variance = float(move.c_xt + move.c_x0 * gain(t)) ** 2 * variance + float(move.std) ** 2
    return variance


def test_a_student_has_the_datas_spread_at_a_churn_below_that_of_its_training():
    posterior = GaussianPosterior(0.0, 1.0)
    assert round(max(sampled_variance(lambda t: float(posterior.gain(t)), 4, c) for c in (0.0, 0.5, 1.0)), 2) == 0.52
    found = {
        (trained, churn): sampled_variance(lambda t, trained=trained: student_gain(t, 4, trained), 4, churn)
        for trained, churn in ((0.5, 0.0), (1.0, 1.0), (1.0, 0.75), (1.0, 0.0))
    }
    assert {key: round(value, 2) for key, value in found.items()} == {
        (0.5, 0.0): 1.01,
        (1.0, 1.0): 0.80,
        (1.0, 0.75): 1.00,
        (1.0, 0.0): 1.35,
    }


def test_each_loss_reaches_its_own_network_alone():
    loss, x0 = MomentMatching(k=3), torch.randn(16, 2)
    teacher, student, auxiliary = (Denoiser(MLP(2, width=8, depth=2, time_width=8)) for _ in range(3))
    networks = {"teacher": teacher, "student": student, "auxiliary": auxiliary}
    for name, values in (("student", loss.student), ("auxiliary", loss.auxiliary)):
        found = values(teacher, student, auxiliary, x0)
        assert found.shape == (16,)
        found.mean().backward()
        reached = [key for key, network in networks.items() if any(p.grad is not None for p in network.parameters())]
        assert reached == [name]
        networks[name].zero_grad(set_to_none=True)


def test_times_are_safe_and_a_step_apart_at_most():
    denoiser = Denoiser(MLP(2, width=8, depth=2, time_width=8), safety=0.02)
    s, t = MomentMatching(k=4).times(denoiser, 50_000, torch.Generator().manual_seed(0), torch.zeros(1))
    assert float(s.min()) >= 0.02 - 1e-6
    assert float(t.max()) <= 0.98 + 1e-6
    assert bool((s < t).all())
    apart = (t - s)[s < 0.7]  # further up the largest safe time cuts the step short
    assert 0.249 < float(apart.max()) <= 0.25 + 1e-6
    assert math.isclose(float(apart.mean()), 0.125, rel_tol=0.02)
    assert math.isclose(float(s.mean()), 0.5, rel_tol=0.01)


class AroundTheMean(nn.Module):
    """The exact posterior mean of a mixture plus a network that is zero at first."""

    def __init__(self, exact: MixturePosterior) -> None:
        super().__init__()
        self.exact, self.change = exact, MLP(2, width=48, depth=2, time_width=16)
        nn.init.zeros_(self.change.output.weight)
        nn.init.zeros_(self.change.output.bias)

    def forward(self, xt, t, xi=None, cond=None):
        return self.exact.mean(xt, t)[:, None] + self.change(xt, t)


def test_distillation_recovers_the_samples_of_an_exact_mixture_teacher_in_four_steps():
    torch.manual_seed(0)
    means, std, steps, rate = torch.tensor([[-1.2, -1.2], [-1.2, 1.2], [1.2, -1.2], [1.2, 1.2]]), 0.4, 400, 1.5e-3
    exact = MixturePosterior(means, std)
    teacher, student, auxiliary = (Denoiser(AroundTheMean(exact)) for _ in range(3))
    averaged = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    loss, noise = MomentMatching(k=4), torch.Generator().manual_seed(1)
    phases = [
        (values, torch.optim.Adam(network.parameters(), betas=(0.0, 0.99), fused=True))
        for values, network in ((loss.auxiliary, auxiliary), (loss.student, student))
    ]

    def data(count: int) -> torch.Tensor:
        rows = torch.randint(len(means), (count,), generator=noise)
        return means[rows] + std * torch.randn(count, 2, generator=noise)

    for step in range(steps):
        for values, optimizer in phases:
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.zero_grad()
            values(teacher, student, auxiliary, data(512), generator=noise).mean().backward()
            optimizer.step()
        averaged.update_parameters(student)

    real = data(4096)

    def score(denoiser: nn.Module) -> float:
        """At the best churn."""
        sets = (sample(denoiser, (4096, 2), 4, churn) for churn in (0.0, 0.5, 0.75, 1.0))
        return min(float(discrepancy(RBF(1.0), x, real)) for x in sets)

    floor, before, after = float(discrepancy(RBF(1.0), data(4096), real)), score(teacher), score(averaged.module)
    assert before > 5e-3
    assert after < before / 10
    assert after < floor + 7e-4


def test_a_student_starts_as_its_teacher_in_all_three_networks(teacher):
    task = build_task(replace(STUDENT, init=str(teacher)))
    assert list(task.modules) == ["model", "auxiliary", "teacher"]
    saved = load_file(teacher / "weights.safetensors")
    for module in task.modules.values():
        assert all(torch.equal(value, saved[key]) for key, value in module.state_dict().items())
        assert not module.training
    assert [phase.name for phase in task.phases()] == ["auxiliary", "student"]
    assert not any(p.requires_grad for p in task.modules["teacher"].parameters())


@pytest.mark.parametrize("stop", [1, 13])
def test_a_distillation_resumes_bit_for_bit(teacher, tmp_path, stop):
    config = replace(STUDENT, init=str(teacher))
    list(train(config, tmp_path / "whole"))
    run = train(config, tmp_path / "broken")
    list(itertools.islice(run, stop))
    run.close()
    assert next(iter(train(config, tmp_path / "broken", resume=True))).step == stop + 1
    list(train(config, tmp_path / "broken", resume=True))
    whole, broken = (load_file(RunFolder(tmp_path / name).checkpoint()) for name in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[key], broken[key]) for key in whole)
    start = load_file(teacher / "weights.safetensors")
    assert all(torch.equal(start[key], whole[f"teacher.{key}"]) for key in start)
    for name in ("model", "auxiliary"):
        assert not all(torch.equal(start[key], whole[f"{name}.{key}"]) for key in start)
    lines = RunFolder(tmp_path / "whole").logged()
    assert all(math.isfinite(line["student"]) and math.isfinite(line["auxiliary"]) for line in lines)


def test_a_distillation_of_images_resumes_bit_for_bit_and_makes_a_pipeline(image_teacher, tmp_path):
    base = RECIPES["digits-diffusion"]["smoke"]
    loss = replace(base.loss, kind="moment-matching", k=2)
    config = replace(base, init=str(image_teacher), steps=4, loss=loss)
    list(train(config, tmp_path / "whole"))
    run = train(config, tmp_path / "broken")
    list(itertools.islice(run, 2))
    run.close()
    list(train(config, tmp_path / "broken", resume=True))
    whole, broken = (load_file(RunFolder(tmp_path / name).checkpoint()) for name in ("whole", "broken"))
    assert all(torch.equal(whole[key], broken[key]) for key in whole)
    main(["sample", str(tmp_path / "whole"), "--steps", "2", "--sampler", "ddim", "--n", "3"])
    assert (tmp_path / "whole/samples/grid.png").is_file()


def test_the_cost_of_a_student_includes_its_teacher(teacher, tmp_path):
    list(train(replace(STUDENT, init=str(teacher)), tmp_path / "student"))
    own, before = RunFolder(tmp_path / "student").seconds(), RunFolder(teacher).seconds()
    assert own > 0
    assert before > 0
    assert math.isclose(RunFolder(tmp_path / "student").total_seconds(), own + before)
    assert RunFolder(teacher).total_seconds() == before


def test_a_distributional_student_starts_as_its_teacher_whatever_its_noise(teacher, tmp_path):
    config = replace(RECIPES["checkerboard"]["smoke"], init=str(teacher))
    assert config.network.prediction == "x0"
    task = build_task(config)
    denoiser, _ = load_denoiser(teacher, "cpu")
    xt, t = torch.randn(50, 2), torch.rand(50)
    draws = task.model.draw(xt, t, 3)
    torch.testing.assert_close(draws, denoiser.draw(xt, t, 3))
    list(train(config, tmp_path / "student"))
    student, found = load_denoiser(tmp_path / "student", "cpu")
    assert (found.network.prediction, found.network.noise_dim) == ("velocity", 2)
    assert RunFolder(tmp_path / "student").read_config() == config
    assert student.network.noise.weight.abs().max() > 1e-6  # the noise has begun to matter


BAD = [
    ({"init": None}, "init must be the run of a teacher for a loss of kind moment-matching, got None"),
    ({"init": "nowhere"}, "init must be a run folder with a config.json, got 'nowhere'"),
    ({"network.noise_dim": 2}, "network.noise_dim must be 0 for a loss of kind moment-matching, got 2"),
    ({"loss.k": 0}, "k must be a whole number of at least 1, got 0"),
    ({"loss.churn": 2}, "churn must be in [0, 1], got 2.0"),
]


@pytest.mark.parametrize(("settings", "says"), BAD)
def test_bad_settings_are_named_before_anything_is_written(teacher, tmp_path, capsys, settings, says):
    words = {"init": str(teacher), "loss.kind": "moment-matching"} | settings
    flags = [word for name, value in words.items() if value is not None for word in (f"--{name}", str(value))]
    with pytest.raises(SystemExit) as stop:
        main(["train", "checkerboard-diffusion", "--scale", "smoke", "--out", str(tmp_path / "run"), *flags])
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_model_with_noise_has_no_moments_to_match_and_keeps_its_noise(tmp_path, image_teacher):
    noisy = replace(RECIPES["checkerboard"]["smoke"], steps=1)
    list(train(noisy, tmp_path / "noisy"))
    with pytest.raises(ValueError, match=r"network.noise_dim must be 2, as the run of --init has, got 0"):
        check(replace(STUDENT, init=str(tmp_path / "noisy")))
    list(train(replace(RECIPES["digits"]["smoke"], steps=1), tmp_path / "images"))
    base = RECIPES["digits-diffusion"]["smoke"]
    loss = replace(base.loss, kind="moment-matching")
    with pytest.raises(ValueError, match="init must be a classical model without noise"):
        check(replace(base, init=str(tmp_path / "images"), loss=loss))
    with pytest.raises(ValueError, match="run must be a points run"):
        check(replace(STUDENT, init=str(image_teacher)))


def test_distillation_runs_in_bfloat16(teacher):
    config = replace(STUDENT, init=str(teacher), precision="bf16", device="cpu", steps=3)
    assert all(math.isfinite(progress.loss) for progress in train(config))
