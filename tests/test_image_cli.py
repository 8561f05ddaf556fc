"""The image commands as a user runs them: sample, posterior, evaluate, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from distdiff import Denoiser, sample
from distdiff.baseline import sample_dpm
from distdiff.cli import main
from distdiff.data.image import load_images
from distdiff.evaluate import image
from distdiff.evaluate.frechet import Score
from distdiff.evaluate.image import best_entries, evaluate
from distdiff.nn import MLP
from distdiff.recipe import RECIPES
from distdiff.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("images") / "run"
    for _ in train(replace(RECIPES["digits"]["smoke"], steps=3), out):
        pass
    return out


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDIFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_sample_writes_pictures_a_grid_and_an_animation(run, tmp_path, capsys):
    words = [
        "sample",
        str(run),
        "--steps",
        "3",
        "--n",
        "5",
        "--seed",
        "4",
        "--out",
        str(tmp_path / "s"),
        "--trajectory",
    ]
    main(words)
    assert "5 pictures in 3 steps" in capsys.readouterr().out
    names = sorted(file.name for file in (tmp_path / "s").iterdir())
    assert names == [*(f"{k:06d}.png" for k in range(5)), "grid.png", "samples.json", "trajectory.gif"]
    assert pixels(tmp_path / "s/000000.png").shape == (8, 8)
    with Image.open(tmp_path / "s/trajectory.gif") as animation:
        assert animation.n_frames == 3
    before = [pixels(tmp_path / f"s/{k:06d}.png") for k in range(5)]
    main([*words[:-1], "--n", "3", "--batch-size", "2"])
    assert not (tmp_path / "s/000004.png").exists()
    for k in range(3):
        assert np.abs(before[k].astype(int) - pixels(tmp_path / f"s/{k:06d}.png")).max() <= 1


def test_posterior_shows_draws_mean_and_spread(run, tmp_path, capsys):
    main(["posterior", str(run), "7", "--t", "0.8", "--draws", "6", "--out", str(tmp_path / "p")])
    assert "Mean std of a pixel at t = 0.8" in capsys.readouterr().out
    names = {file.name for file in (tmp_path / "p").iterdir()}
    assert names == {"draws.png", "mean.png", "posterior.json", "posterior.pdf", "posterior.png", "std.png"}
    found = json.loads((tmp_path / "p/posterior.json").read_text())
    test = load_images("digits", split="test")
    assert found["label"] == str(int(test.batch([7])[1][0]))
    assert 0 < found["mean_std"] <= found["max_std"]


def test_posterior_of_a_file_and_of_a_noisy_array(run, tmp_path):
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).save(tmp_path / "a.png")
    main(["posterior", str(run), str(tmp_path / "a.png"), "--label", "3", "--draws", "2", "--out", str(tmp_path / "p")])
    np.save(tmp_path / "a.npy", np.zeros((1, 8, 8), dtype=np.float32))
    main(
        [
            "posterior",
            str(run),
            str(tmp_path / "a.npy"),
            "--label",
            "3",
            "--noisy",
            "--draws",
            "2",
            "--out",
            str(tmp_path / "q"),
        ]
    )
    assert (tmp_path / "q/posterior.png").exists()


def test_an_evaluation_that_is_stopped_loses_no_score(run, tmp_path, monkeypatch):
    words = ["evaluate", str(run), "--metric", "fd", "--churn", "0,1", "--n", "64", "--out", str(tmp_path / "e")]
    drawn: list[int] = []
    draw = image.sample_with

    def watched(denoiser, shape, steps, *rest, **more):
        if steps == 3 and drawn.count(3) == 1:
            raise KeyboardInterrupt
        drawn.append(steps)
        return draw(denoiser, shape, steps, *rest, **more)

    monkeypatch.setattr(image, "sample_with", watched)
    with pytest.raises(SystemExit):
        main([*words, "--steps", "2,3"])
    monkeypatch.setattr(image, "sample_with", lambda *args, **more: drawn.append(args[2]) or draw(*args, **more))
    main([*words, "--steps", "2,3,4"])
    assert drawn == [2, 2, 3, 3, 4, 4]
    whole = json.loads((tmp_path / "e" / "metrics.json").read_text())["scores"]
    main([*words[:-1], str(tmp_path / "anew"), "--steps", "2,3,4"])
    assert json.loads((tmp_path / "anew" / "metrics.json").read_text())["scores"] == whole
    main([*words, "--steps", "2", "--seed", "5"])  # other settings have scores of their own
    assert drawn[-2:] == [2, 2]


def test_evaluate_writes_a_table_a_plot_and_every_setting(run, tmp_path, capsys):
    words = ["--metric", "fd", "--steps", "1,2", "--churn", "0,1", "--n", "40", "--sampler", "distributional,dpm++"]
    main(["evaluate", str(run), *words, "--out", str(tmp_path / "e")])
    found = json.loads((tmp_path / "e/metrics.json").read_text())
    rows = [(row["steps"], row["sampler"], row["churn"]) for row in found["scores"]]
    assert rows == [
        (1, "distributional", 1.0),
        (2, "distributional", 0.0),
        (2, "distributional", 1.0),
        (2, "dpm++", None),
    ]
    assert all(row["fd"] > 0 and "fid" not in row for row in found["scores"])
    settings = found["settings"]
    assert settings["reference"] == "digits, test split"
    assert (settings["n"], settings["n_reference"], settings["seed"]) == (40, 360, 0)
    assert settings["resize"]
    assert found["floor"]["frechet"] < min(row["fd"] for row in found["scores"])
    assert (tmp_path / "e/scores.png").stat().st_size > 5000
    assert "FID" not in capsys.readouterr().err


class Stamp:
    """A pipeline whose samples are pictures of the data itself, changed by the churn."""

    classes, attributes, sample_shape, device = 10, 0, (1, 8, 8), torch.device("cpu")

    def __init__(self, images):
        self.images = images

    @property
    def denoiser(self):
        stamp = self

        class Exact(torch.nn.Module):
            schedule = Denoiser(MLP(2)).schedule
            own_noise = True

            def draw(self, xt, t, m=1, cond=None, generator=None):
                rows = torch.randint(len(stamp.images), (len(xt),), generator=torch.Generator().manual_seed(len(xt)))
                return stamp.images.batch(rows)[0].float().div(127.5).sub(1)[:, None]

        return Exact()

    def decode(self, x):
        return x


def test_evaluation_finds_real_pictures_as_good_as_the_floor():
    train, test = load_images("digits"), load_images("digits", split="test")
    found = evaluate(Stamp(train), train, test, steps=[1, 2], churns=[0.0], n=360, batch_size=360)
    assert [entry.steps for entry in best_entries(found.entries)] == [1, 2]
    for entry in found.entries:
        assert entry.score.frechet < 2.5 * found.floor.frechet


def test_without_held_out_pictures_half_of_the_set_is_the_floor():
    train = load_images("digits", limit=400)
    found = evaluate(Stamp(train), train, train, steps=[1], churns=[1.0], n=100)
    assert found.settings["n_reference"] == 200
    assert found.floor.frechet > 1e-3


@pytest.mark.parametrize(("by", "chosen"), [("fd", 0.0), ("kid", 1.0)])
def test_fid_is_computed_for_what_the_cheaper_metric_prefers(monkeypatch, by, chosen):
    """Scores in which the distance prefers churn 0, and the KID churn 1."""
    asked = []

    class Scripted:
        def __init__(self, extractor, images, n=None, seed=0, callback=None):
            self.extractor, self.n, self.metric = extractor, n, "fid" if extractor.name == "inception" else "fd"

        def score(self, samples, callback=None):
            first = sum(metric == self.metric and n == len(samples) for metric, n in asked) == 0
            asked.append((self.metric, len(samples)))
            frechet, kid = (1.0, 0.2) if first else (2.0, 0.1)
            return Score(self.metric, frechet, kid, 0.0, len(samples), 1)

    extractor = SimpleNamespace(name="inception", key="0", resize="none")
    monkeypatch.setattr(image, "Reference", Scripted)
    monkeypatch.setattr(image, "load_inception", lambda *_: extractor)
    monkeypatch.setattr(
        image, "load_classifier", lambda *_, **__: SimpleNamespace(name="small", key="0", resize="none")
    )
    monkeypatch.setattr(image, "floor", lambda reference, *_, **__: Score("fid", 0.5, 0.0, 0.0, 1, 1))
    train, test = load_images("digits"), load_images("digits", split="test")
    options = {"steps": [2], "churns": [0.0, 1.0], "metric": "fid", "n": 40, "n_screen": 20}
    found = evaluate(Stamp(train), train, test, screen_by=by, **options)
    assert [entry.churn for entry in found.entries] == [chosen]
    assert asked == [("fid" if by == "kid" else "fd", 20)] * 2 + [("fid", 40)]
    assert found.settings["churn_chosen_by"] == f"{'KID' if by == 'kid' else 'fd'} of 20 samples"


@pytest.mark.parametrize("steps", [1, 2])
def test_dpm_solver_is_ddim_for_one_and_two_steps(steps):
    torch.manual_seed(0)
    denoiser = Denoiser(MLP(2, width=16, depth=2, time_width=8), prediction="velocity")
    ours = sample(denoiser, (6, 2), steps, churn=0.0, seed=3)
    torch.testing.assert_close(sample_dpm(denoiser, (6, 2), steps, seed=3), ours, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("algorithm", "bound"), [("dpm++", 0.25), ("sde-dpm++", 0.35)])
def test_dpm_solver_converges_to_the_data(algorithm, bound):
    """A classical model with the exact posterior mean of N(1, 0.25): second order beats DDIM at a few steps."""

    class Exact(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dummy = torch.nn.Parameter(torch.zeros(1))

        def forward(self, xt, t, xi=None, cond=None):
            alpha, sigma = 1 - t, t
            return (1 + alpha * 0.25 / (alpha**2 * 0.25 + sigma**2) * (xt - alpha))[:, None]

    denoiser = Denoiser(Exact(), prediction="x0", safety=1e-3)
    x = sample_dpm(denoiser, (4000, 1), 12, algorithm)
    assert abs(float(x.mean()) - 1) < 0.05
    assert abs(float(x.std()) / 0.5 - 1) < bound
    if algorithm == "dpm++":
        plain = sample(denoiser, (4000, 1), 12, churn=0.0)
        assert abs(float(x.std()) - 0.5) < abs(float(plain.std()) - 0.5)


BAD = [
    ("sample nowhere", "run must be a run folder with a pipeline"),
    ("sample RUN --label cow", "label must be one of 0, 1, 2"),
    ("sample RUN --n 0", "n must be a whole number of at least 1, got 0"),
    ("sample RUN --churn 2", "churn must be in [0, 1], got 2.0"),
    ("posterior RUN nothing.png", "image must be a picture"),
    ("posterior RUN 99999", "image must be a file, or a number below 360"),
    ("posterior RUN 3 --t 0", "t must be in (0, 1], got 0.0"),
    ("posterior RUN 3 --draws 1", "draws must be a whole number of at least 2, got 1"),
    ("evaluate RUN --steps one", "steps must be numbers separated by commas, got 'one'"),
    ("evaluate RUN --steps 0 --metric fd", "steps must be a whole number of at least 1, got 0"),
    ("evaluate RUN --churn 3 --metric fd", "churn must be in [0, 1], got 3.0"),
    ("evaluate RUN --sampler heun --metric fd", "sampler must be one of distributional, sde, ddim, dpm++, sde-dpm++"),
    ("evaluate RUN --split night --metric fd", "night"),
    ("evaluate nowhere", "run must be a run folder with a config.json"),
    ("train digits --scale smoke --data.source EMPTY", "EMPTY"),
    ("train digits --scale smoke --resume latest --out nowhere", "run must be a run folder with a config.json"),
    ("train digits --scale smoke --tracker wandb", "tracker must be tensorboard or none unless wandb is installed"),
]


@pytest.mark.parametrize(("words", "says"), BAD)
def test_bad_command_lines_say_what_is_wrong_and_write_nothing(run, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").mkdir()
    before = set(run.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main([str(run) if word == "RUN" else word for word in words.split()])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert sorted(Path().iterdir()) == [Path("EMPTY")]
    assert set(run.rglob("*")) == before


def test_a_label_is_required_for_a_picture_without_one(run, tmp_path, capsys):
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(SystemExit):
        main(["posterior", str(run), str(tmp_path / "a.png")])
    assert "label must be given, for a picture without one: 0, 1, 2" in capsys.readouterr().err
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(SystemExit):
        main(["posterior", str(run), str(tmp_path / "b.png"), "--label", "1"])
    assert "image must be a picture that can be decoded" in capsys.readouterr().err
