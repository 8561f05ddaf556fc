from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from distdiff import RBF, ConditionalLoss, Energy, discrepancy, sample
from distdiff.baseline import sample_with
from distdiff.data.toy import Checkerboard, Mixture2D
from distdiff.random import BlockGenerator, rand, stream
from distdiff.recipe import RECIPES, SCALES, STUDIES
from distdiff.recipe.config import LossConfig, OptimConfig, PointsRun
from distdiff.train import RunFolder, build_data, build_denoiser, build_loss, check, load_denoiser, train
from distdiff.train.loop import TrainState, build_task, learning_rate
from distdiff.train.task import DenoiserObjective

SMOKE = RECIPES["mixture2d"]["smoke"]


def finish(run) -> list:
    return list(run)


def last_checkpoint(run) -> dict:
    return load_file(RunFolder(run).checkpoint())


def test_a_run_leaves_config_metrics_and_weights_that_load(tmp_path):
    finish(train(SMOKE, tmp_path / "run"))
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "weights.safetensors",
    ]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20]
    assert all(math.isfinite(line["loss"]) for line in lines)
    denoiser, config = load_denoiser(tmp_path / "run", "cpu")
    assert config == SMOKE
    assert not denoiser.training
    assert sample(denoiser, (5, 2), steps=2).shape == (5, 2)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path):
    for name, config in {"a": SMOKE, "b": SMOKE, "c": replace(SMOKE, seed=1)}.items():
        finish(train(config, tmp_path / name))
    a, b, c = (load_file(tmp_path / name / "weights.safetensors") for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


def test_points_trained_with_an_anchor_have_a_mean_and_others_do_not(tmp_path):
    finish(train(replace(SMOKE, loss=replace(SMOKE.loss, anchor=1.0)), tmp_path / "anchored"))
    finish(train(SMOKE, tmp_path / "plain"))
    anchored, plain = (load_denoiser(tmp_path / name, "cpu")[0] for name in ("anchored", "plain"))
    x, t = torch.randn(4, 2), torch.tensor(0.5)
    torch.testing.assert_close(anchored.mean(x, t), anchored.to_x0(anchored(x, t, torch.zeros(4, 1, 2)), x, t)[:, 0])
    assert sample_with(anchored, (5, 2), 3, "hybrid").isfinite().all()
    with pytest.raises(ValueError, match=r"trained without --loss\.anchor"):
        sample_with(plain, (5, 2), 3, "hybrid")


@pytest.mark.parametrize("stop", [1, 7, 10, 13])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, stop):
    finish(train(SMOKE, tmp_path / "whole"))
    run = train(SMOKE, tmp_path / "broken")
    for progress in itertools.islice(run, stop):
        assert progress.steps == 20
    run.close()  # what Ctrl-C or an exception in the caller does
    steps = [progress.step for progress in train(SMOKE, tmp_path / "broken", resume=True)]
    assert steps[0] == stop + 1
    for file in ("weights", "checkpoints/step-00000020"):
        whole, broken = (load_file(tmp_path / name / f"{file}.safetensors") for name in ("whole", "broken"))
        assert whole.keys() == broken.keys()
        assert all(torch.equal(whole[key], broken[key]) for key in whole)
    lines = (tmp_path / "broken/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20]


@pytest.mark.parametrize("where", ["gradients", "loss"])
def test_an_interrupt_within_a_step_leaves_no_trace(tmp_path, monkeypatch, where):
    finish(train(SMOKE, tmp_path / "whole"))
    calls = itertools.count(1)
    if where == "gradients":  # before anything is drawn for the step
        original = TrainState.gradients

        def interrupted(self, *args):
            if next(calls) == 8:
                raise KeyboardInterrupt
            return original(self, *args)

        monkeypatch.setattr(TrainState, "gradients", interrupted)
    else:  # half way through it, with the batch and its noise already drawn
        original_backward = torch.Tensor.backward

        def interrupted_backward(self, *args, **kwargs):
            if next(calls) == 8:
                raise KeyboardInterrupt
            return original_backward(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, "backward", interrupted_backward)
    with pytest.raises(KeyboardInterrupt):
        finish(train(SMOKE, tmp_path / "broken"))
    assert next(iter(train(SMOKE, tmp_path / "broken", resume=True))).step == 8
    finish(train(SMOKE, tmp_path / "broken", resume=True))
    whole, broken = (last_checkpoint(tmp_path / name) for name in ("whole", "broken"))
    assert all(torch.equal(whole[key], broken[key]) for key in whole)


def test_a_step_torn_while_the_weights_change_is_not_saved(tmp_path, monkeypatch):
    config = replace(SMOKE, save_every=5)
    finish(train(config, tmp_path / "whole"))
    calls = itertools.count(1)
    original = torch.optim.swa_utils.AveragedModel.update_parameters

    def interrupted(self, model):
        if next(calls) == 8:
            raise KeyboardInterrupt
        return original(self, model)

    monkeypatch.setattr(torch.optim.swa_utils.AveragedModel, "update_parameters", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(train(config, tmp_path / "broken"))
    steps = [progress.step for progress in train(config, tmp_path / "broken", resume=True)]
    assert steps[0] == 6
    whole, broken = (last_checkpoint(tmp_path / name) for name in ("whole", "broken"))
    assert all(torch.equal(whole[key], broken[key]) for key in whole)


def test_a_finished_run_can_be_made_longer_but_not_shorter(tmp_path):
    finish(train(SMOKE, tmp_path / "run"))
    assert [p.step for p in train(replace(SMOKE, steps=23), tmp_path / "run", resume=True)] == [21, 22, 23]
    assert load_denoiser(tmp_path / "run", "cpu")[1].steps == 23
    with pytest.raises(ValueError, match="steps must be at least 23, which are done already, got 22"):
        finish(train(replace(SMOKE, steps=22), tmp_path / "run", resume=True))


def test_data_and_noise_share_no_random_stream():
    labels = build_data(SMOKE.data)[:, 0] < 0
    noise = BlockGenerator(stream(SMOKE.seed, "noise of loss"), 0, 0, len(labels))
    for draws in (
        rand((len(labels),), generator=noise, like=torch.empty(0)),
        torch.rand(len(labels), generator=torch.Generator().manual_seed(SMOKE.seed)),
    ):
        assert 0.4 < float(((draws < 0.5) == labels).float().mean()) < 0.6


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_weights(tmp_path):
    run = train(replace(SMOKE, optim=replace(SMOKE.optim, lr=1e30, warmup=0)), tmp_path / "run")
    with pytest.raises(FloatingPointError, match=r"step \d+: the gradient of model\.network\..* is not finite"):
        finish(run)
    weights = last_checkpoint(tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_training_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(train(SMOKE))
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_run_is_not_overwritten_unasked(tmp_path):
    finish(train(SMOKE, tmp_path / "run"))
    with pytest.raises(ValueError, match="out must be a new folder"):
        train(SMOKE, tmp_path / "run")
    stale, other = tmp_path / "run" / "rollout-pusht" / "rollout.json", tmp_path / "run" / "rollout-notes.txt"
    stale.parent.mkdir()
    stale.write_text("{}")
    other.write_text("mine")
    finish(train(replace(SMOKE, steps=3), tmp_path / "run", overwrite=True))
    assert not stale.parent.exists(), "what the old model did is not what the new one does"
    assert other.exists()
    assert load_denoiser(tmp_path / "run", "cpu")[1].steps == 3


def test_a_resumed_run_must_be_the_same_run(tmp_path):
    finish(train(SMOKE, tmp_path / "run"))
    with pytest.raises(ValueError, match=r"settings must be those of the run .* got 'batch_size 128 -> 64'"):
        train(replace(SMOKE, batch_size=64), tmp_path / "run", resume=True)


def test_training_does_not_disturb_the_global_random_state():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    finish(train(replace(SMOKE, steps=2)))
    assert torch.equal(torch.rand(3), expected)


def test_a_short_training_beats_an_untrained_model():
    config = replace(
        RECIPES["mixture2d"]["small"],
        steps=250,
        batch_size=64,
        data=replace(SMOKE.data, points=4096),
        loss=replace(RECIPES["mixture2d"]["small"].loss, m=8),
    )
    *_, last = train(config)
    real = Mixture2D().sample(1024, torch.Generator().manual_seed(9))
    trained = float(discrepancy(RBF(1), sample(last.denoiser, (1024, 2), steps=4), real))
    *_, first = train(replace(config, steps=1))
    untrained = float(discrepancy(RBF(1), sample(first.denoiser, (1024, 2), steps=4), real))
    assert trained < untrained / 4


def test_learning_rate_warms_up_and_decays():
    optim = OptimConfig(lr=2.0, warmup=10, decay="cosine")
    rates = [learning_rate(optim, step, 100) for step in range(100)]
    assert 0 < rates[0] < 0.1
    assert rates[:10] == sorted(rates[:10])
    assert math.isclose(rates[50], 1.0)
    assert rates[-1] < 0.001
    assert learning_rate(replace(optim, decay="constant"), 99, 100) == 2.0
    assert learning_rate(replace(optim, warmup=0, decay="constant"), 0, 100) == 2.0


def test_a_restarted_learning_rate_is_that_of_two_runs():
    once = OptimConfig(lr=2.0, warmup=10, decay="cosine")
    twice = replace(once, restart=60)
    rates = [learning_rate(twice, step, 100) for step in range(100)]
    assert rates[:60] == [learning_rate(once, step, 60) for step in range(60)]
    assert rates[60:] == [learning_rate(once, step, 40) for step in range(40)]


def test_a_restart_forgets_what_optimiser_and_average_remember():
    """Its first step is that of another run which starts from the same weights."""
    config = replace(SMOKE, steps=6, optim=replace(SMOKE.optim, restart=4, warmup=0))
    state = TrainState(build_task(config))
    for _ in range(4):
        state.advance()
    with torch.no_grad():
        before = [p.clone() for p in state.task.model.parameters()]
    state.advance()
    after = list(state.task.model.parameters())
    assert all(torch.equal(average, p) for average, p in zip(state.ema.module.parameters(), after, strict=True))
    assert all(int(memory["step"]) == 1 for memory in state.optimizers[0].state.values())
    sizes = [(p - old).abs().max() for p, old in zip(after, before, strict=True)]
    assert max(sizes) <= 1.001 * config.optim.lr  # Adam's first step is the rate times a sign


def test_a_restart_must_come_before_the_end(tmp_path):
    config = replace(SMOKE, steps=5, optim=replace(SMOKE.optim, restart=5))
    with pytest.raises(ValueError, match=r"optim\.restart must be less than the 5 steps, got 5"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_on_a_cpu_flushes_denormal_numbers_until_it_ends():
    tiny = torch.tensor([1e-40])
    assert (tiny * 1).item() != 0
    for _ in train(replace(SMOKE, device="cpu")):
        assert (tiny * 1).item() == 0
    assert (tiny * 1).item() != 0


class TestFolder:
    @pytest.fixture
    def run(self, tmp_path):
        finish(train(replace(SMOKE, steps=1), tmp_path / "run"))
        return tmp_path / "run"

    def refuse(self, run, says):
        with pytest.raises(ValueError, match=re.escape(says)):
            load_denoiser(run, "cpu")

    def test_missing_folder(self, tmp_path):
        self.refuse(tmp_path / "nowhere", "run must be a run folder with a config.json, got")

    def test_cut_off_weights(self, run):
        file = run / "weights.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        self.refuse(run, "must be a whole safetensors file, got a corrupt one")

    def test_garbage_weights(self, run):
        (run / "weights.safetensors").write_bytes(b"not weights at all")
        self.refuse(run, "must be a whole safetensors file, got a corrupt one")

    def test_empty_weights(self, run):
        (run / "weights.safetensors").write_bytes(b"")
        self.refuse(run, "must be a whole safetensors file, got a corrupt one")

    def test_missing_weights(self, run):
        (run / "weights.safetensors").unlink()
        self.refuse(run, "has it been trained?")

    def test_weights_of_another_network(self, run):
        config = json.loads((run / "config.json").read_text())
        config["network"]["width"] = 32
        (run / "config.json").write_text(json.dumps(config))
        self.refuse(run, "must be those of the network in config.json, got")

    def test_broken_config(self, run):
        (run / "config.json").write_text("{")
        self.refuse(run, "config.json must be JSON")

    def test_config_with_an_unknown_setting(self, run):
        config = json.loads((run / "config.json").read_text())
        config["loss"]["gama"] = 1
        (run / "config.json").write_text(json.dumps(config))
        self.refuse(run, "config.loss must be made of")

    def test_config_with_a_setting_of_the_wrong_type(self, run):
        config = json.loads((run / "config.json").read_text())
        config["loss"]["m"] = "many"
        (run / "config.json").write_text(json.dumps(config))
        self.refuse(run, "config.loss.m must be of type int, got 'many'")

    def test_config_with_the_wrong_number_of_averaging_constants(self, run):
        config = json.loads((run / "config.json").read_text())
        config["optim"]["betas"] = 0.9
        (run / "config.json").write_text(json.dumps(config))
        self.refuse(run, "config.optim.betas must be a list of 2 numbers, got 0.9")

    def test_a_half_written_line_of_metrics_does_not_stop_a_resume(self, run):
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 1, "lo')
        finish(train(replace(SMOKE, steps=2), run, resume=True))
        lines = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert lines == [1, 2]

    def test_a_checkpoint_without_its_step(self, run):
        folder = RunFolder(run)
        folder.save(folder.checkpoint(), folder.load(folder.checkpoint())[0])
        with pytest.raises(ValueError, match="must be a whole number, got ''"):
            finish(train(replace(SMOKE, steps=2), run, resume=True))

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="out must be a folder that can be written to"):
            train(SMOKE, tmp_path / "file" / "run")

    def test_resuming_without_a_checkpoint(self, run):
        RunFolder(run).checkpoint().unlink()
        with pytest.raises(ValueError, match="has it been trained"):
            finish(train(replace(SMOKE, steps=1), run, resume=True))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_survives_json(tmp_path, name, scale):
    folder, config = RunFolder(tmp_path), RECIPES[name][scale]
    folder.write_config(config)
    assert folder.read_config() == config


@pytest.mark.parametrize("name", [name for name in RECIPES if isinstance(RECIPES[name]["smoke"], PointsRun)])
@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_of_points_is_valid(name, scale):
    check(RECIPES[name][scale])


def test_the_paper_scale_holds_the_papers_numbers():
    config = RECIPES["checkerboard"]["paper"]
    assert (config.steps, config.batch_size, config.data.points) == (100_000, 128, 102_400)
    assert (config.loss.beta, config.loss.lam, config.loss.m, config.loss.weighting) == (0.1, 1.0, 32, "sigmoid")
    assert (config.network.width, config.network.depth, config.network.time_width) == (64, 4, 2048)
    assert config.network.safety == 1e-2
    assert config.optim == OptimConfig(
        kind="adam", lr=1e-3, betas=(0.9, 0.999), eps=1e-8, warmup=100, decay="constant", clip=1.0, ema=0.99
    )
    assert STUDIES["checkerboard"]["paper"].steps == (5, 10, 50, 100, 1000)
    assert STUDIES["checkerboard"]["paper"].points == 4096
    diffusion = RECIPES["checkerboard-diffusion"]["paper"]
    assert (diffusion.network.prediction, diffusion.network.noise_dim, diffusion.loss.kind) == (
        "velocity",
        0,
        "regression",
    )


def test_the_mixture_is_the_papers(generator):
    x = Mixture2D().sample(20000, generator)
    left, right = x[x[:, 0] < 0], x[x[:, 0] > 0]
    assert abs(len(left) / 20000 - 0.5) < 0.02
    torch.testing.assert_close(right.mean(0), torch.tensor([3.0, 3.0]), atol=0.02, rtol=0)
    torch.testing.assert_close(left.mean(0), torch.tensor([-3.0, 3.0]), atol=0.02, rtol=0)
    torch.testing.assert_close(left.std(0), torch.tensor([0.5, 0.5]), atol=0.02, rtol=0)


def test_the_board_has_eight_filled_squares_of_side_two(generator):
    x = Checkerboard().sample(40000, generator)
    assert float(x.min()) >= -4
    assert float(x.max()) <= 4
    cells = ((x + 4) / 2).long().clamp_max(3)
    counts = torch.zeros(4, 4)
    counts.index_put_((cells[:, 0], cells[:, 1]), torch.ones(len(x)), accumulate=True)
    filled = counts > 0
    assert filled.sum() == 8
    assert not (filled[1:] & filled[:-1]).any()
    assert not (filled[:, 1:] & filled[:, :-1]).any()
    torch.testing.assert_close(counts[filled] / len(x), torch.full((8,), 1 / 8), atol=0.01, rtol=0)


def test_a_run_folder_is_written_aside_and_renamed(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.save(folder.weights, {"a": torch.ones(2)})

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("distdiff.train.folder.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        folder.save(folder.weights, {"a": torch.zeros(2)})
    assert torch.equal(load_file(folder.weights)["a"], torch.ones(2))


def test_the_warm_up_scores_a_single_draw_and_then_the_population():
    denoiser = build_denoiser(SMOKE.network)
    full = ConditionalLoss(kernel=Energy(1.0), lam=1.0, m=4)
    objective = DenoiserObjective(denoiser, full, warmup=3)
    x0 = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))

    def value(loss_at: int) -> torch.Tensor:
        return objective(x0, None, torch.Generator().manual_seed(1), loss_at)

    alone = ConditionalLoss(kernel=Energy(1.0), lam=0.0, m=1)(denoiser, x0, None, torch.Generator().manual_seed(1))
    population = full(denoiser, x0, None, torch.Generator().manual_seed(1))
    assert not torch.equal(alone, population)
    assert all(torch.equal(value(step), alone) for step in (0, 2))
    assert all(torch.equal(value(step), population) for step in (3, 9))


def test_the_warm_up_of_an_anchored_loss_trains_the_mean_and_leaves_the_noise_alone():
    denoiser = build_denoiser(SMOKE.network)
    full = ConditionalLoss(kernel=Energy(1.0), lam=1.0, m=4, anchor=0.5)
    objective = DenoiserObjective(denoiser, full, warmup=3)
    x0 = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    value = objective(x0, None, torch.Generator().manual_seed(1), 0)
    # the population's score falls away when the draws do: what is left of the anchored loss is the warm-up's
    anchored = full(denoiser, x0, None, torch.Generator().manual_seed(1))
    plain = replace(full, anchor=0.0)(denoiser, x0, None, torch.Generator().manual_seed(1))
    torch.testing.assert_close(value, anchored - plain, rtol=1e-4, atol=1e-5)
    value.mean().backward()
    noise = denoiser.network.noise.weight
    assert noise.grad is None or not noise.grad.any()
    assert any(p.grad is not None and p.grad.any() for p in denoiser.parameters())


def test_a_run_resumed_within_its_warm_up_is_the_uninterrupted_one(tmp_path):
    config = replace(SMOKE, steps=6, loss=replace(SMOKE.loss, warmup=4))
    finish(train(config, tmp_path / "whole"))
    finish(itertools.islice(train(config, tmp_path / "parts"), 2))
    finish(train(config, tmp_path / "parts", resume=True))
    whole, parts = (last_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_warm_up_must_leave_steps_for_the_population(tmp_path):
    config = replace(SMOKE, steps=5, loss=replace(SMOKE.loss, warmup=5))
    with pytest.raises(ValueError, match=r"loss\.warmup must be less than the 5 steps"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_warm_up_is_for_the_conditional_loss_alone():
    with pytest.raises(ValueError, match=r"loss\.warmup must be left out unless loss\.kind is conditional, got 5"):
        build_loss(LossConfig(kind="regression", warmup=5), torch.eye(2))
