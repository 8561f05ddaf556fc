"""The program as a user runs it: in a process of its own for the main paths, in this one for the many errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from distdiff.cli import main

TINY = ["--steps", "6", "--save-every", "3"]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "distdiff", *words],
        check=False,
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )


def test_train_then_sample(tmp_path):
    trained = run("train", "mixture2d", "--scale", "smoke", "--loss.beta", "0.5", "--loss.lam=0.7", *TINY, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    folder = tmp_path / "runs/mixture2d-smoke"
    config = json.loads((folder / "config.json").read_text())
    assert (config["loss"]["beta"], config["loss"]["lam"], config["steps"]) == (0.5, 0.7, 6)
    assert "runs/mixture2d-smoke" in trained.stdout
    words = ["sample", "runs/mixture2d-smoke", "--steps", "3", "--n", "50", "--churn", "0.5", "--seed", "4"]
    drawn = run(*words, cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    x = np.load(folder / "samples/samples.npy")
    assert x.shape == (50, 2)
    assert (folder / "samples/samples.png").stat().st_size > 10_000
    again = run(*words, "--batch-size", "7", "--out", "other", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    np.testing.assert_allclose(np.load(tmp_path / "other/samples.npy"), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gaussian", "snr", "mixture2d", "checkerboard", "digits", "complexity"])
def test_reproduce_writes_figures_results_and_a_report(tmp_path, name):
    done = run("reproduce", name, "--scale", "smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    results = json.loads((out / "results.json").read_text())
    assert results["experiment"] == name
    assert results["settings"]
    assert results["versions"]["torch"]
    assert results["wall_seconds"] > 0
    for figure in results["figures"]:
        assert (out / figure).stat().st_size > 3_000
    assert {Path(f).suffix for f in results["figures"]} == ({".png", ".pdf"} if name != "complexity" else set())
    report = (out / "report.md").read_text()
    assert f"distdiff reproduce {name} --scale smoke" in report
    assert len(report.splitlines()) < 80
    if name in ("mixture2d", "checkerboard"):
        scores = results["results"]["scores"]
        assert set(scores) >= {"distributional", "diffusion"}
        assert "floor" in report
    assert "nan" not in (out / "results.json").read_text().lower().replace("nano", "")


def test_reproduce_takes_up_what_an_earlier_one_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "checkerboard", "--scale", "smoke", "--out", "out"])
    first = json.loads(Path("out/results.json").read_text())["results"]
    weights = Path("out/runs/diffusion/weights.safetensors").stat().st_mtime_ns
    shutil.rmtree("out/runs/distributional/checkpoints")
    capsys.readouterr()
    main(["reproduce", "checkerboard", "--scale", "smoke", "--out", "out"])
    assert capsys.readouterr().err.count("finished before") == 1
    assert Path("out/runs/diffusion/weights.safetensors").stat().st_mtime_ns == weights
    second = json.loads(Path("out/results.json").read_text())["results"]
    assert first["scores"] == second["scores"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_saves_and_resumes(tmp_path, number):
    words = ["train", "mixture2d", "--scale", "smoke", "--out", "r", "--log-every", "5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "distdiff", *words, "--steps", "100000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "r/metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    last = [json.loads(line)["step"] for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()][-1]
    done = run(*words, "--steps", str(last + 9), "--resume", "latest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


BAD = [
    ("train nothing", "recipe must be one of mixture2d, "),
    ("train mixture2d --scale huge", "scale must be one of paper, small, smoke, got 'huge'"),
    ("train mixture2d --loss.lam 1 --loss.m 1", "m must be at least 2 when lam > 0"),
    ("train mixture2d --loss.beta 0", "beta must be in (0, 2], got 0.0"),
    ("train mixture2d --loss.beta 2.5", "beta must be in (0, 2], got 2.5"),
    ("train mixture2d --loss.lam 2", "lam must be in [0, 1], got 2.0"),
    ("train mixture2d --steps 0", "steps must be a whole number of at least 1, got 0"),
    ("train mixture2d --optim.lr -1", "optim.lr must be a positive finite number, got -1.0"),
    ("train mixture2d --optim.ema 1", "optim.ema must be in [0, 1), got 1.0"),
    ("train mixture2d --loss.kind regression", "network.noise_dim must be 0 for a loss of kind regression, got 2"),
    ("train mixture2d --network.noise-dim 0", "network.noise_dim must be a whole number of at least 1, got 0"),
    ("train mixture2d --network.safety 0.9", "safety must be in [0, 0.5), got 0.9"),
    ("train mixture2d --loss.kind joint --batch-size 33", "batch_size must be a multiple of loss.m = 32, got 33"),
    ("train mixture2d --loss.kernel imq --loss.c -1", "c must be a positive finite number, got -1.0"),
    ("train mixture2d --device warp", "device must be auto or a device of this machine such as cpu, got 'warp'"),
    ("train mixture2d --seed -1", "seed must be a whole number in [0, 2**63), got -1"),
    ("train mixture2d --resume latest --overwrite", "resume, overwrite must be one or the other"),
    ("train mixture2d --resume latest --out nowhere", "run must be a run folder with a config.json, got 'nowhere'"),
    ("train mixture2d --scale smoke --out file/run", "out must be a folder that can be written to, got 'file/run'"),
    ("sample nowhere", "run must be a run folder with a pipeline (has it been trained?) or a hub name, got 'nowhere'"),
    ("sample nowhere --steps 0", "steps must be a whole number of at least 1, got 0"),
    ("sample nowhere --n 0", "n must be a whole number of at least 1, got 0"),
    ("sample nowhere --churn 1.5", "churn must be in [0, 1], got 1.5"),
    ("sample nowhere --seed -1", "seed must be a whole number in [0, 2**63), got -1"),
    ("sample nowhere --seed 9223372036854775806 --n 5", "seed must be a whole number in [0, 2**63)"),
    ("train mixture2d --loss.weighting sigmoid --loss.bias nan", "bias must be a finite number, got nan"),
    ("reproduce everything", "experiment must be one of gaussian, snr, mixture2d, checkerboard, complexity, "),
    ("reproduce snr --scale smoke --out file/x", "out must be a folder that can be written to, got 'file/x'"),
    (
        "fly",
        "command must be one of train, sample, posterior, evaluate, collect, rollout, sweep, sweep-figures, "
        "reproduce, demo, got 'fly'",
    ),
]


@pytest.mark.parametrize(("line", "says"), BAD, ids=[line for line, _ in BAD])
def test_a_bad_argument_is_one_sentence_exit_code_two_and_nothing_written(line, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "line", ["train mixture2d --loss.beta abc", "train mixture2d --lossbeta 1", "sample", "reproduce"]
)
def test_words_that_cannot_be_parsed_exit_with_two(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_corrupt_weights_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["train", "mixture2d", "--scale", "smoke", "--steps", "1", "--out", "r"])
    Path("r/weights.safetensors").write_bytes(b"\0" * 40)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["sample", "r"])
    assert stop.value.code == 2
    assert "must be a whole safetensors file" in capsys.readouterr().err


def test_help_lists_every_setting_with_its_meaning(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "mixture2d", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for flag in (
        "--loss.beta",
        "--loss.lam",
        "--optim.lr",
        "--network.time-width",
        "--data.points",
        "--scale",
        "--resume",
    ):
        assert flag in out
    assert "Exponent of the energy kernel" in out


def test_version_and_overview(capsys):
    main(["--version"])
    assert capsys.readouterr().out.startswith("distdiff 0.")
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "checkerboard-diffusion" in capsys.readouterr().out
