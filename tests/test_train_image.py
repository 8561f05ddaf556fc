"""Image runs: exactness across processes, kills and resumption; what a run folder holds; what is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from distdiff.data.image import to_float
from distdiff.hub import load_pipeline
from distdiff.nn.perceptual import Perceptual
from distdiff.random import BlockGenerator, rand, randn
from distdiff.recipe import RECIPES, ImageRun
from distdiff.recipe.config import EvaluationConfig, PreviewConfig
from distdiff.train import RunFolder, build_task, train
from distdiff.train.features import build_features, learn_features
from distdiff.train.image import held_out, read_images
from distdiff.train.loop import scaler_state
from distdiff.train.task import rows_in_order

SMOKE: ImageRun = RECIPES["digits"]["smoke"]
WORDS = ["train", "digits", "--scale", "smoke"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDIFF_CACHE", str(tmp_path / "cache"))


def finish(run) -> None:
    for _ in run:
        pass


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(run).checkpoint())


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def command(*words: str, cwd: Path, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *launcher, "-m", "distdiff", *words],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_run_folder_holds_what_it_says(tmp_path):
    config = replace(
        SMOKE,
        tracker="tensorboard",
        preview=PreviewConfig(every=2, n=9, steps=2),
        evaluation=EvaluationConfig(every=2, metric="fd", n=64, steps=2),
        data=replace(SMOKE.data, limit=200),
    )
    finish(train(config, tmp_path / "run"))
    run = tmp_path / "run"
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file() and "tensorboard" not in str(p)}
    assert names == {
        "checkpoints/best.safetensors",
        "checkpoints/step-00000002.safetensors",
        "checkpoints/step-00000004.safetensors",
        "config.json",
        "data.png",
        "metrics.jsonl",
        "pipeline/model_index.json",
        "pipeline/scheduler/scheduler_config.json",
        "pipeline/unet/config.json",
        "pipeline/unet/diffusion_pytorch_model.safetensors",
        "previews/00000002.png",
        "previews/00000004.png",
    }
    assert list(run.glob("tensorboard/**/events*"))
    with Image.open(run / "previews/00000004.png") as preview:
        assert preview.width > 200
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["fd"] for line in lines if "fd" in line}
    assert set(scores) == {2, 4}
    best = RunFolder(run).load(RunFolder(run).best)[1]
    assert float(best["best"]) == min(scores.values())
    assert scores[int(best["step"])] == min(scores.values())
    averaged = {
        key.removeprefix("ema.module.network."): value
        for key, value in load_file(RunFolder(run).best).items()
        if key.startswith("ema.module.")
    }
    saved = load_pipeline(run, "cpu").unet.network.state_dict()
    assert same(dict(saved), averaged)


def test_checkpoints_are_pruned_to_the_last_few(tmp_path):
    finish(train(replace(SMOKE, steps=5, save_every=1, keep=3), tmp_path / "run"))
    assert RunFolder(tmp_path / "run").steps() == [3, 4, 5]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("flip", [False, True])
def test_an_interrupted_image_run_resumes_bit_for_bit(tmp_path, dropout, flip):
    config = replace(
        SMOKE, steps=7, network=replace(SMOKE.network, dropout=dropout), data=replace(SMOKE.data, flip=flip)
    )
    finish(train(config, tmp_path / "whole"))
    run = train(config, tmp_path / "broken")
    list(islice(run, 3))
    run.close()
    finish(train(config, tmp_path / "broken", resume="latest"))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))


def test_channels_last_resumes_bit_for_bit(tmp_path):
    config = replace(SMOKE, steps=6, channels_last=True)
    finish(train(config, tmp_path / "whole"))
    run = train(config, tmp_path / "broken")
    list(islice(run, 3))
    run.close()
    finish(train(config, tmp_path / "broken", resume="latest"))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))


def test_the_state_of_a_gradient_scaler_survives_a_checkpoint():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], 0.1)
    saved = {key: torch.as_tensor(value, dtype=torch.float64) for key, value in scaler.state_dict().items()}
    scaler.load_state_dict(scaler_state(saved))
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.state_dict()["_growth_tracker"] == 1


def test_files_of_others_are_not_deleted(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/precious.pt").write_text("")
    with pytest.raises(ValueError, match="out must be a folder without checkpoints of something else"):
        train(SMOKE, tmp_path)
    assert (tmp_path / "checkpoints/precious.pt").exists()


def test_a_kill_between_checkpoint_and_export_cannot_happen(tmp_path, monkeypatch):
    """The model is exported before the checkpoint that says the step is done."""
    seen = []
    original = RunFolder.save

    def save(self, file, *args):
        seen.append((file.name, self.pipeline.exists()))
        original(self, file, *args)

    monkeypatch.setattr(RunFolder, "save", save)
    finish(train(replace(SMOKE, steps=2), tmp_path / "run"))
    assert seen == [("step-00000002.safetensors", True)]


def test_another_number_of_processes_is_another_run(tmp_path):
    finish(train(replace(SMOKE, steps=2), tmp_path / "run"))
    folder = RunFolder(tmp_path / "run")
    tensors, metadata = folder.load(folder.checkpoint())
    folder.save(folder.checkpoint(), tensors, metadata | {"rows": "16"})
    with pytest.raises(ValueError, match="batch of all processes must be 16, as the run began with, got 8"):
        finish(train(SMOKE, tmp_path / "run", resume=True))


def test_resuming_at_a_chosen_step(tmp_path):
    finish(train(replace(SMOKE, keep=9, steps=6), tmp_path / "run"))
    whole = weights(tmp_path / "run")
    steps = [p.step for p in train(replace(SMOKE, keep=9, steps=6), tmp_path / "run", resume="2")]
    assert steps == [3, 4, 5, 6]
    assert same(whole, weights(tmp_path / "run"))
    with pytest.raises(ValueError, match="resume must be latest, best or one of the steps 2, 4, 6, got '3'"):
        train(replace(SMOKE, keep=9, steps=6), tmp_path / "run", resume="3")
    with pytest.raises(ValueError, match="has no best checkpoint"):
        train(replace(SMOKE, keep=9, steps=6), tmp_path / "run", resume="best")


@pytest.mark.slow
def test_killing_a_run_again_and_again_leaves_no_trace(tmp_path):
    """kill -9 at random moments; benchmarks/kill_resume.py does it ten times."""
    words = [*WORDS, "--steps", "30", "--save-every", "3", "--batch-size", "16"]
    finish(train(replace(SMOKE, steps=30, save_every=3, batch_size=16), tmp_path / "whole"))
    chance = random.Random(0)
    for attempt in range(4):
        resume = ["--resume", "latest"] if RunFolder(tmp_path / "run").steps() else ["--overwrite"]
        process = subprocess.Popen(
            [sys.executable, "-m", "distdiff", *words, "--out", "run", *resume],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if attempt < 3:
            before = _progress(tmp_path / "run")
            deadline = time.monotonic() + 120
            while _progress(tmp_path / "run") == before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
        process.wait(timeout=120)
    assert process.returncode == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def _progress(run: Path) -> str:
    file = run / "metrics.jsonl"
    return file.read_text() if file.exists() else ""


@pytest.mark.slow
def test_two_processes_are_one_process_with_the_doubled_batch(tmp_path):
    launcher = (
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        str(random.randint(20000, 40000)),
    )
    more = ["--steps", "5", "--network.branch-at", "2", "--data.flip", "--optim.warmup", "0", "--optim.eps", "1e-4"]
    two = command(*WORDS, *more, "--batch-size", "4", "--out", "two", cwd=tmp_path, launcher=launcher)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("Trained.") == 1
    one = command(*WORDS, *more, "--batch-size", "8", "--out", "one", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    parts = command(*WORDS, *more, "--batch-size", "2", "--accumulate", "4", "--out", "parts", cwd=tmp_path)
    assert parts.returncode == 0, parts.stderr
    whole = weights(tmp_path / "one")
    start = build_task(replace(SMOKE, network=replace(SMOKE.network, branch_at=2))).model.state_dict()
    moved = max(float((whole[f"model.{key}"] - value).abs().max()) for key, value in start.items())
    for name in ("two", "parts"):
        other = weights(tmp_path / name)
        worst = max(float((whole[key] - other[key]).abs().max()) for key in whole if key.startswith(("model", "ema")))
        assert worst < 1e-3 * moved


def test_workers_read_the_same_batches(tmp_path):
    config = replace(SMOKE, data=replace(SMOKE.data, limit=40))
    finish(train(config, tmp_path / "here"))
    finish(train(replace(config, data=replace(config.data, workers=2)), tmp_path / "there"))
    assert same(weights(tmp_path / "here"), weights(tmp_path / "there"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_signal_saves_before_leaving(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-m", "distdiff", *WORDS, "--steps", "100000", "--save-every", "100000", "--out", "run"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not _progress(tmp_path / "run"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert RunFolder(tmp_path / "run").steps()
    assert load_pipeline(tmp_path / "run", "cpu")(1, num_inference_steps=1, output_type="np").images.shape == (
        1,
        8,
        8,
        1,
    )


def test_the_parameter_whose_gradient_is_not_finite_is_named(tmp_path):
    task = build_task(SMOKE)
    network = task.model.network
    network.decoder[1].second.bias.register_hook(lambda gradient: gradient * float("nan"))
    says = r"step 1: the gradient of model\.network\.decoder\.1\.second\.bias is not finite"
    with pytest.raises(FloatingPointError, match=says):
        finish(train(SMOKE, tmp_path / "run", task=task))


def test_a_run_that_explodes_stops_with_good_weights(tmp_path):
    run = train(replace(SMOKE, steps=50, optim=replace(SMOKE.optim, lr=1e30, warmup=0)), tmp_path / "run")
    with pytest.raises(
        FloatingPointError, match=r"step \d+: the (loss|gradient of model\.network\.\S+).* is not finite"
    ):
        finish(run)
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "run").values())


def test_bf16_trains(tmp_path):
    finish(train(replace(SMOKE, steps=2, precision="bf16"), tmp_path / "run"))
    assert all(value.dtype != torch.bfloat16 for value in weights(tmp_path / "run").values())


@pytest.mark.parametrize("kernel", ["imq", "rbf", "exp"])
def test_every_kernel_trains(kernel):
    finish(train(replace(SMOKE, steps=2, loss=replace(SMOKE.loss, kernel=kernel))))


@pytest.mark.parametrize("kind", ["kl", "vq"])
@pytest.mark.slow
def test_an_autoencoder_then_a_latent_model(tmp_path, kind):
    first = RECIPES["autoencoder"]["smoke"]
    first = replace(first, network=replace(first.network, kind=kind), data=replace(first.data, limit=32))
    finish(train(first, tmp_path / "ae"))
    again = train(first, tmp_path / "broken")
    list(islice(again, 2))
    again.close()
    finish(train(first, tmp_path / "broken", resume=True))
    assert same(weights(tmp_path / "ae"), weights(tmp_path / "broken"))
    config = json.loads((tmp_path / "ae/autoencoder/config.json").read_text())
    assert config["scaling_factor"] not in (1.0, 0.18215)
    latent = replace(
        SMOKE, steps=2, latent=str(tmp_path / "ae"), data=replace(first.data), network=replace(SMOKE.network, patch=1)
    )
    task = build_task(latent)
    assert task.shape == (3, 6, 6)
    finish(train(latent, tmp_path / "latent"))
    pipe = load_pipeline(tmp_path / "latent", "cpu")
    assert pipe.vae is not None
    assert pipe(2, num_inference_steps=2, output_type="np").images.shape == (2, 24, 24, 1)


class TestOrder:
    def test_an_epoch_sees_every_row_once(self):
        rows = rows_in_order(10, 0, 0, 4, 0, 4)
        seen = [row for some in islice(rows, 5) for row in some]
        assert sorted(seen[:10]) == list(range(10))
        assert sorted(seen[10:]) == list(range(10))
        assert seen[:10] != seen[10:]

    def test_processes_share_a_batch_and_a_late_start_is_a_resumption(self):
        whole = list(islice(rows_in_order(10, 0, 0, 4, 0, 4), 6))
        halves = [list(islice(rows_in_order(10, 0, 0, 2, offset, 4), 6)) for offset in (0, 2)]
        assert whole == [a + b for a, b in zip(*halves, strict=True)]
        assert list(islice(rows_in_order(10, 0, 12, 4, 0, 4), 3)) == whole[3:]

    def test_a_batch_may_be_larger_than_the_set(self):
        assert sorted(next(rows_in_order(3, 0, 0, 6, 0, 6))) == [0, 0, 1, 1, 2, 2]


class TestBlocks:
    def test_parts_of_a_batch_draw_what_the_whole_draws(self):
        like = torch.empty(0)
        whole = BlockGenerator(5, 3, 0, 100)
        parts = [BlockGenerator(5, 3, first, count) for first, count in ((0, 7), (7, 50), (57, 43))]
        for draw, shape in ((randn, (4, 3)), (rand, ()), (randn, (2,))):
            together = draw((100, *shape), generator=whole, like=like)
            split = [draw((part.count, *shape), generator=part, like=like) for part in parts]
            assert torch.equal(together, torch.cat(split))

    def test_rows_steps_and_seeds_differ_and_are_normal(self):
        like = torch.empty(0)
        draws = [
            randn((64, 500), generator=BlockGenerator(seed, step, 0, 64), like=like)
            for seed, step in ((0, 0), (0, 1), (1, 0))
        ]
        every = torch.cat(draws)
        assert len(torch.unique(every[:, 0])) == 192
        assert abs(float(every.mean())) < 0.02
        assert abs(float(every.std()) - 1) < 0.02
        correlation = torch.corrcoef(every) - torch.eye(192)
        assert float(correlation.abs().max()) < 0.25


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"network": {"patch": 3}}, "network.patch must be a divisor of 8, got 3"),
        ({"network": {"branch_at": 9}}, "branch_at must be 0, or a block of the decoder, 1 to 2, got 9"),
        ({"network": {"noise": False}}, "network.noise must be given, got False"),
        ({"loss": {"kind": "regression"}}, "network.noise must be False for a loss of kind regression, got True"),
        ({"loss": {"lam": 2.0}}, r"lam must be in \[0, 1\]"),
        ({"data": {"source": "nowhere-at-all"}}, "nowhere-at-all"),
        ({"data": {"split": "night"}}, "night"),
        ({"data": {"workers": -1}}, "data.workers must be a whole number"),
        ({"evaluation": {"n": 1}}, "evaluation.n must be a whole number of at least 2"),
        ({"preview": {"churn": 2.0}}, "preview.churn must be"),
        ({"loss": {"patches": (9,)}}, "loss.patches must be in"),
        ({"loss": {"targets": 0}}, "loss.targets must be a whole number of at least 1, got 0"),
        ({"loss": {"targets": 4, "kind": "joint"}}, "loss.targets must be 1 unless loss.kind is conditional, got 4"),
        ({"loss": {"targets": 4}, "latent": "nowhere"}, "loss.targets must be 1 for data other than the pixels"),
        ({"loss": {"features": -1.0}}, "loss.features must be a number of at least 0, got -1.0"),
        ({"loss": {"kind": "joint", "features": 1.0}}, "loss.features must be left out unless loss.kind is cond"),
        (
            {"loss": {"perceptual_weights": "alexnet"}},
            "loss.perceptual_weights must be left out where loss.features is",
        ),
        ({"loss": {"features": 1.0, "perceptual_weights": "no"}}, "perceptual weights must be a file that exists"),
        ({"loss": {"features": 1.0}, "latent": "nowhere"}, "loss.features must be 0 in the latents"),
        ({"precision": "fp16"}, "precision must be no or bf16 on a CPU"),
        ({"accumulate": 0}, "accumulate must be a whole number"),
        ({"latent": "nowhere"}, "nowhere"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, change, says):
    config = SMOKE
    for name, value in change.items():
        inner = replace(getattr(config, name), **value) if isinstance(value, dict) else value
        config = replace(config, **{name: inner})
    with pytest.raises(ValueError, match=says):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_paper_scale_holds_the_papers_numbers():
    cifar, celeba, lsun = (RECIPES[name]["paper"] for name in ("cifar10", "celeba", "lsun"))
    assert (cifar.steps, cifar.batch_size, cifar.loss.m) == (1_000_000, 256, 4)
    assert (cifar.network.width, cifar.network.multipliers, cifar.network.blocks) == (256, (1, 2, 2, 2), 2)
    assert (cifar.network.attention, cifar.network.heads, cifar.network.branch_at) == ((1,), 8, 0)
    assert (cifar.optim.lr, cifar.optim.warmup, cifar.optim.clip, cifar.optim.decay) == (1e-4, 100, 1.0, "constant")
    assert (cifar.evaluation.every, cifar.evaluation.n, cifar.evaluation.steps) == (10_000, 2048, 10)
    assert RECIPES["cifar10-diffusion"]["paper"].evaluation.steps == 100
    assert RECIPES["cifar10-diffusion"]["paper"].network.prediction == "velocity"
    assert (celeba.batch_size, lsun.batch_size, celeba.data.size, lsun.data.size) == (64, 64, 64, 64)
    latent, first = RECIPES["celebahq-latent"]["paper"], RECIPES["autoencoder"]["paper"]
    assert (latent.steps, latent.batch_size, latent.network.attention) == (2_000_000, 16, (3,))
    assert (first.steps, first.batch_size, first.data.size) == (2_000_000, 16, 256)
    assert (first.loss.adversarial, first.loss.generator, first.loss.codebook, first.loss.kl) == (0.1, 100, 100, 1e-6)
    assert 2 ** (len(first.network.multipliers) - 1) == 4


def test_a_run_that_scores_features_learns_them_once_and_resumes_exactly(tmp_path, monkeypatch):
    config = replace(SMOKE, data=replace(SMOKE.data, limit=200), loss=replace(SMOKE.loss, features=1.0))
    finish(train(config, tmp_path / "whole"))
    features = {key: value for key, value in weights(tmp_path / "whole").items() if key.startswith("features.")}
    assert float(features["features.spread"].std()) > 0
    seconds = [RunFolder(tmp_path / "whole").seconds()]

    def forbidden(*_, **__):
        raise AssertionError("learned again")

    monkeypatch.setattr("distdiff.train.features.fit", forbidden)
    for _ in islice(train(config, tmp_path / "torn"), 3):
        pass
    monkeypatch.setenv("DISTDIFF_CACHE", str(tmp_path / "empty"))  # a checkpoint needs no cache
    finish(train(config, tmp_path / "torn", resume=True))
    assert same(weights(tmp_path / "torn"), weights(tmp_path / "whole"))
    seconds.append(RunFolder(tmp_path / "torn").seconds())
    finish(train(replace(config, loss=SMOKE.loss), tmp_path / "plain"))
    assert min(seconds) > RunFolder(tmp_path / "plain").seconds()  # what was learned before counts


def test_features_that_were_learned_tell_digits_apart_and_have_the_scale_of_pictures():
    images = read_images(SMOKE.data)
    network = build_features(images, 0)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    assert learn_features(network, images, 0) > 0
    assert not same(network.state_dict(), before)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    pictures, labels = held_out(SMOKE, "test").batch(list(range(300)))
    assert float((network.logits(to_float(pictures)).argmax(1) == labels).float().mean()) > 0.9
    maps = network(to_float(pictures))
    assert [tuple(a.shape[1:]) for a in maps] == [(16, 8, 8), (32, 4, 4), (64, 2, 2)]
    for found in maps:
        assert abs(float(found.var(0).mean().sqrt()) - 0.5) < 0.05


def test_a_run_can_score_the_features_of_a_perceptual_network(tmp_path):
    """They have the scale of pictures, enter the loss, and do not keep a run from being resumed exactly."""
    torch.manual_seed(0)
    file = tmp_path / "weights.safetensors"
    save_file(Perceptual("alexnet").state_dict(), file)
    loss = replace(SMOKE.loss, features=1.0, perceptual_weights=str(file))
    config = replace(SMOKE, data=replace(SMOKE.data, limit=200), loss=loss)
    task = build_task(config)
    task.learn()
    pictures = to_float(task.load(list(range(100)))[0])
    maps = task.features(pictures)
    assert [tuple(a.shape[1:]) for a in maps[:3]] == [(64, 13, 13), (192, 6, 6), (384, 2, 2)]  # of 56 by 56 pixels
    for found in maps:
        assert abs(float(found.var(0).mean().sqrt()) - 0.5) < 0.1
    finish(train(config, tmp_path / "whole"))
    finish(train(replace(config, loss=SMOKE.loss), tmp_path / "plain"))
    assert not same(
        *({k: v for k, v in weights(tmp_path / n).items() if k[:6] == "model."} for n in ("whole", "plain"))
    )
    for _ in islice(train(config, tmp_path / "torn"), 3):
        pass
    finish(train(config, tmp_path / "torn", resume=True))
    assert same(weights(tmp_path / "torn"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("recipe", ["checkerboard", "pusht"])
@pytest.mark.parametrize("setting", [{"features": 1.0}, {"patches": (2,)}, {"targets": 2}])
def test_only_pictures_have_features_patches_and_targets(recipe, setting):
    config = RECIPES[recipe]["smoke"]
    with pytest.raises(ValueError, match=r"must be (left out|1) for data (that are|other than)"):
        build_task(replace(config, loss=replace(config.loss, **setting)))


@pytest.mark.parametrize("flip", [False, True])
def test_a_run_with_several_targets_resumes_exactly_and_however_its_batch_is_split(tmp_path, flip):
    loss = replace(SMOKE.loss, targets=3, anchor=1.0, patches=(2,))
    config = replace(SMOKE, loss=loss, data=replace(SMOKE.data, flip=flip), save_every=1)
    finish(train(config, tmp_path / "whole"))
    finish(train(replace(config, batch_size=4, accumulate=2), tmp_path / "split"))
    for _ in islice(train(config, tmp_path / "cut"), 2):
        pass
    finish(train(config, tmp_path / "cut", resume=True))
    whole, split, cut = (weights(tmp_path / name) for name in ("whole", "split", "cut"))
    assert same(whole, cut)
    models = [name for name in whole if name.startswith("model.")]
    assert models
    for name in models:
        torch.testing.assert_close(whole[name], split[name], rtol=1e-3, atol=1e-4)


def test_targets_are_the_training_pictures_with_their_labels_and_mirror_images():
    task = build_task(replace(SMOKE, loss=replace(SMOKE.loss, targets=2), data=replace(SMOKE.data, flip=True)))
    known, count = task.loss.posterior, task.length
    pictures, labels = task.images.batch(range(count))
    assert known.points.shape == (2 * count, 64)
    assert torch.equal(known.points[:count].view(-1, 1, 8, 8), to_float(pictures))
    assert torch.equal(known.points[count:].view(-1, 1, 8, 8), to_float(pictures).flip(-1))
    assert torch.equal(known.cond, torch.cat([labels, labels]))
    assert task.loss.targets == 2


def test_a_run_with_an_anchor_says_that_it_has_a_mean(tmp_path):
    """So does a run that starts from it, for itself."""
    anchored = replace(SMOKE, steps=2, loss=replace(SMOKE.loss, anchor=0.5))
    finish(train(anchored, tmp_path / "run"))
    assert load_pipeline(tmp_path / "run", "cpu").denoiser.has_mean
    words = ("sample", "run", "--steps", "2", "--n", "2", "--sampler", "hybrid", "--out", "made")
    assert command(*words, cwd=tmp_path).returncode == 0
    finish(train(replace(SMOKE, steps=2, init=str(tmp_path / "run")), tmp_path / "next"))
    assert not load_pipeline(tmp_path / "next", "cpu").denoiser.has_mean
    refused = command("sample", "next", "--steps", "2", "--n", "2", "--sampler", "hybrid", cwd=tmp_path)
    assert refused.returncode == 2
    assert "sampler must be another one for a model trained without --loss.anchor" in refused.stderr
