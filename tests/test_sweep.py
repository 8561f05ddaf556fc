"""Sweeps: notation, folders, workers that fail or are killed, tables, figures, Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdiff._check import BadArgument
from distdiff.cli import main
from distdiff.recipe import HEATMAPS, RECIPES, SCALES, ImageRun, PointsRun
from distdiff.recipe.config import RunConfig
from distdiff.sweep import Sweep, SweepFolder, load_sweep, plan, run_sweep
from distdiff.sweep.figures import best_values, draw_figures, heatmap_figures, number, split
from distdiff.sweep.grid import combinations, parse_grid, parse_settings, run_name
from distdiff.sweep.report import findings, lambda_falls, write_report
from distdiff.sweep.run import check_sweep, classical_grid
from distdiff.sweep.work import work

FEW = ["--scale", "smoke", "--steps", "1,2", "--churn", "0,1", "--n", "64"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "distdiff", "sweep", *words]


def until(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def starts(folder: Path) -> int:
    """How often the training of a run has begun."""
    return (folder / "log.txt").read_text().count("training from step 0")


def score(config: RunConfig, steps: int, churn: float) -> float:
    """Made-up scores: the best lambda falls with the steps, the best beta is 1, churn 1 is worse."""
    assert isinstance(config, (PointsRun, ImageRun))
    loss = config.loss
    if loss.kind == "regression":
        return 4 + 200 / steps
    ideal = {2: 1.0, 8: 0.5, 50: 0.0}[steps]
    bend = {"energy": loss.beta - 1, "imq": loss.c - 2, "rbf": loss.gamma, "exp": loss.gamma}[loss.kernel]
    return 3 + 20 / steps + 9 * (loss.lam - ideal) ** 2 + bend**2 + churn + config.seed


def made_up(out: Path, sweep: Sweep, *, failed: tuple[str, ...] = ()) -> Path:
    """A sweep's folder as if it had been run."""
    folder = SweepFolder(out)
    sweep = folder.prepare(sweep)
    for name, config in sweep.runs().items():
        if name in failed:
            folder.write_error(name, "it broke")
            continue
        rows = [
            {"steps": n, "sampler": "distributional", "churn": c, "score": score(config, n, c), "error": None}
            for n in sweep.steps
            for c in sweep.churns
        ]
        folder.write_scores(name, {"train_seconds": 1.0, "floor": 2.0, "floor_error": None, "rows": rows})
    return out


@pytest.fixture
def digits(tmp_path) -> Path:
    grid = ["loss.lam=0,0.5,1", "loss.beta=0.5,1,2"]
    sweep = plan("digits", "smoke", grid=grid, steps=(2, 8, 50), churns=(0, 1), seeds=(0, 1), classical=True)
    return made_up(tmp_path / "digits", sweep)


def test_values_are_read_by_the_type_of_their_setting():
    grid = parse_grid(ImageRun, ["loss.lam=0,0.5,0.50,1", "loss.patches=,4,4+7", "init=none,a/b", "data.flip=true"])
    assert grid == {
        "loss.lam": (0.0, 0.5, 1.0),
        "loss.patches": ((), (4,), (4, 7)),
        "init": (None, "a/b"),
        "data.flip": (True,),
    }
    assert parse_settings(ImageRun, ["steps=500", "data.channels=3", "optim.betas=0.9+1e-1"]) == {
        "steps": 500,
        "data.channels": 3,
        "optim.betas": (0.9, 0.1),
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("loss.lamb=1", "setting must be one of steps, batch_size"),
        ("loss.lam", "written as name=value"),
        ("loss.lam=much", "loss.lam must be a number, got 'much'"),
        ("steps=1.5", "steps must be a whole number"),
        ("loss.kernel=cubic", "loss.kernel must be one of energy, imq, rbf, exp"),
        ("compile=maybe", "compile must be one of true, false"),
        ("optim.betas=0.9", "optim.betas must be 2 numbers"),
        ("seed=1", "--seeds"),
        ("loss.lam=0,2", "lam must be in [0, 1]"),
        ("loss.beta=0", "beta must be in (0, 2]"),
        ("steps=0", "steps must be a whole number of at least 1"),
    ],
)
def test_a_bad_name_or_value_is_one_sentence_before_anything_is_written(word, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["sweep", "mixture2d", *FEW, "--grid", word, "--out", str(tmp_path / "out")])
    sentence = capsys.readouterr().err
    assert left.value.code == 2
    assert said in sentence
    assert sentence.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["autoencoder"],
        ["nothing"],
        ["mixture2d", "--metric", "fd"],
        ["digits", "--metric", "mmd"],
        ["mixture2d", "--steps", "0"],
        ["mixture2d", "--steps", "few"],
        ["mixture2d", "--churn", "2"],
        ["mixture2d", "--n", "1"],
        ["mixture2d", "--seeds", "-1"],
        ["mixture2d", "--workers", "0"],
        ["mixture2d", "--grid", "loss.lam=0,1", "--set", "loss.lam=1"],
        ["mixture2d", "--set", "seed=1"],
    ],
)
def test_what_cannot_be_swept_is_refused(words, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["sweep", words[0], "--scale", "smoke", *words[1:], "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert not (tmp_path / "out" / "sweep.json").exists()


def test_names_do_not_hang_on_the_order_of_settings_and_are_fit_for_files():
    assert run_name({"b": 0.5, "a": 1e-4}, 3) == run_name({"a": 1e-4, "b": 0.5}, 3) == "a=0.0001,b=0.5,seed=3"
    one, other = (run_name({"data.path": path}, 0) for path in ("/a/b", "/a_b"))
    assert "/" not in one + other
    assert one != other


def test_kernels_are_combined_with_their_own_parameter_only():
    grid = {
        "loss.kernel": ("energy", "imq", "rbf"),
        "loss.beta": (0.1, 1.0),
        "loss.c": (1.0, 2.0, 3.0),
        "loss.lam": (1.0,),
    }
    found = combinations(grid)
    assert len(found) == 2 + 3 + 1
    assert {"loss.kernel": "rbf", "loss.lam": 1.0} in found


def test_every_study_is_a_sweep_that_passes_the_checks():
    for scales in HEATMAPS.values():
        assert set(scales) == set(SCALES)
        for scale, s in scales.items():
            grids = (s.grid | {"seed": s.seeds}, classical_grid(s.recipe, scale, s.settings) | {"seed": s.seeds})
            sweep = Sweep(s.recipe, scale, s.settings, s.metric, s.n, s.churns, s.steps, grids)
            check_sweep(sweep)
            twin = RECIPES[f"{s.recipe}-diffusion"][scale]
            assert any(config.loss == twin.loss and config.network == twin.network for config in sweep.runs().values())


def test_a_changed_setting_of_the_draws_leaves_the_classical_twin_alone():
    settings = ["loss.warmup=2", "loss.anchor=0.3", "network.branch_at=1", "network.noise_levels=1", "network.width=16"]
    *_, twin = plan("digits", "smoke", settings=settings, classical=True).runs().values()
    assert twin.loss.kind == "regression"
    assert (twin.loss.warmup, twin.loss.anchor) == (0, 0.0)
    assert (twin.network.branch_at, twin.network.noise_levels, twin.network.width) == (0, 0, 16)


def workers_of(out: Path) -> list[int]:
    """Processes that work on a sweep."""
    found = subprocess.run(["pgrep", "-f", f"distdiff.sweep.worker {out}"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_twelve_runs_two_of_which_fail_survive_a_kill_half_way(tmp_path):
    out = tmp_path / "sweep"
    rates = "optim.lr=0.001,0.002,0.003,0.004,0.005,1e30"  # the last one drives the weights to infinity in one step
    words = command("mixture2d", *FEW, "--grid", "loss.lam=0.5,1", rates, "--workers", "2", "--out", str(out))

    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(list(out.glob("runs/*/scores.json"))) >= 4)
    process.kill()
    process.wait()
    until(lambda: not workers_of(out))  # nobody goes on alone
    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/scores.json")}
    assert 4 <= len(before) < 10

    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    good, bad = [], []
    for run in sorted(out.glob("runs/*")):
        (bad if "1e+30" in run.name else good).append(run)
    assert (len(good), len(bad)) == (10, 2)
    for run in good:
        log = (run / "log.txt").read_text().splitlines()
        assert log.count("scored") == 1
        assert not (run / "error.txt").exists()
    for file, changed in before.items():
        assert file.stat().st_mtime_ns == changed
        assert starts(file.parent) == 1
    listed = again.stderr.partition("2 runs failed")[2]
    for run in bad:
        error = (run / "error.txt").read_text()
        assert "is not finite" in error.splitlines()[0]
        assert f"{run.name}: {error.splitlines()[0]}" in listed
    assert all(run.name not in listed for run in good)

    table = load_sweep(out)
    assert {row.run for row in table.rows} == {run.name for run in good}
    assert len(table.rows) == 10 * 3  # one step has one churn
    assert [name for name, _ in table.failed] == [run.name for run in bad]
    assert table.unfinished == ()
    assert (out / "table.csv").read_text() == table.csv()
    assert all(run.name in (out / "report.md").read_text() for run in bad)
    logs = {run: (run / "log.txt").read_text() for run in bad}
    with pytest.raises(SystemExit) as left:
        main(words[3:])
    assert left.value.code == 1
    assert {run: (run / "log.txt").read_text() for run in bad} == logs  # failed runs wait for --retry-failed


def test_a_worker_that_dies_fails_its_run_only_and_an_interrupt_leaves_a_checkpoint(tmp_path):
    out = tmp_path / "sweep"
    long = ["--set", "log_every=1", "--grid", "steps=100000,100001,100002", "--out", str(out)]
    process = subprocess.Popen(command("mixture2d", *FEW, *long), stderr=subprocess.PIPE, text=True)
    first, second, third = (out / "runs" / f"steps={count},seed=0" for count in (100000, 100001, 100002))
    until((first / "metrics.jsonl").exists)
    (worker,) = workers_of(out)
    os.kill(worker, signal.SIGKILL)
    until((second / "metrics.jsonl").exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in said
    assert not workers_of(out)
    assert "ended by signal 9" in (first / "error.txt").read_text()
    folder = SweepFolder(out)
    sweep = folder.read()
    assert [folder.status(sweep, run.name) for run in (first, second, third)] == ["failed", "left", "left"]
    done = folder.run(second.name).done(folder.run(second.name).read_config())
    assert done is not None
    assert done > 0
    assert not (third / "log.txt").exists()


def test_a_run_is_taken_up_where_it_stopped_and_more_steps_are_scored_without_training(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    options = {"scale": "smoke", "churns": (1,), "n": 64}
    sweep = folder.prepare(plan("mixture2d", steps=(1,), **options))
    (name,) = sweep.runs()
    calls = iter([False] * 7 + [True])
    with pytest.raises(KeyboardInterrupt):
        work(folder.path, name, stopped=lambda: next(calls))
    assert folder.status(sweep, name) == "left"
    assert work(folder.path, name).status == "finished"
    assert "training from step 7 of 20" in folder.log(name).read_text()
    one = folder.scores(name)
    sweep = folder.prepare(plan("mixture2d", steps=(1, 2), **options))
    assert folder.status(sweep, name) == "left"
    assert work(folder.path, name).status == "finished"
    assert folder.log(name).read_text().count("training from") == 2
    assert folder.scores(name)["rows"][0] == one["rows"][0]
    assert [row["steps"] for row in folder.scores(name)["rows"]] == [1, 2]

    whole = SweepFolder(tmp_path / "whole")
    whole.prepare(sweep)
    work(whole.path, name)
    assert whole.scores(name)["rows"] == folder.scores(name)["rows"]


def test_an_error_nobody_foresaw_is_the_runs_own_and_is_kept(tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path)
    sweep = folder.prepare(plan("mixture2d", "smoke", steps=(1,), n=64))
    (name,) = sweep.runs()
    monkeypatch.setattr("distdiff.sweep.score.score_points", lambda *_: 1 / 0)
    outcome = work(folder.path, name)
    assert (outcome.status, outcome.sound) == ("failed", False)
    assert folder.error(name) == "ZeroDivisionError: division by zero"
    assert "Traceback" in (folder.run(name).path / "error.txt").read_text()


def test_other_values_add_runs_and_other_settings_are_refused(tmp_path):
    folder = SweepFolder(tmp_path)
    first = plan("mixture2d", "smoke", grid=["loss.lam=0,1"])
    folder.prepare(first)
    wider = folder.prepare(plan("mixture2d", "smoke", grid=["loss.beta=0.1,1", "loss.lam=0.5,1"], steps=(3,)))
    assert wider.axes == ["loss.lam", "loss.beta"]
    assert len(wider.runs()) == 5  # the recipe's beta is 0.1: with lambda = 1 that run is there already
    assert set(first.runs()) < set(wider.runs())
    assert wider.steps == (2, 3, 4, 8, 10, 30, 50, 100)
    assert folder.read() == wider
    kept = folder.file.read_bytes()
    for changed in ({"settings": ["steps=5"]}, {"n": 8}, {"churns": (1,)}):
        with pytest.raises(BadArgument, match="as it began"):
            run_sweep(plan("mixture2d", "smoke", **changed), tmp_path)
    assert folder.file.read_bytes() == kept


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    sweep = plan("mixture2d", "smoke")
    with SweepFolder(tmp_path).locked(), pytest.raises(BadArgument, match="no other sweep"):
        run_sweep(sweep, tmp_path)


def test_loading_a_folder_twice_or_elsewhere_gives_the_same_table(digits, tmp_path):
    table = load_sweep(digits)
    assert load_sweep(digits) == table
    assert load_sweep(digits).csv() == table.csv()
    shutil.copytree(digits, tmp_path / "copy")
    assert load_sweep(tmp_path / "copy") == table
    assert len(table.rows) == (9 + 1) * 2 * 3 * 2
    lams = [row.settings[0] for row in table.rows]
    assert lams == sorted(lams)


def test_failed_and_unfinished_runs_are_listed_apart(tmp_path):
    sweep = plan("digits", "smoke", grid=["loss.lam=0,0.5,1"], steps=(2, 8, 50))
    names = list(sweep.runs())
    made_up(tmp_path, sweep, failed=(names[1],))
    (tmp_path / "runs" / names[2] / "scores.json").unlink()
    table = load_sweep(tmp_path)
    assert {row.run for row in table.rows} == {names[0]}
    assert table.failed == ((names[1], "it broke"),)
    assert table.unfinished == (names[2],)


def test_a_cell_is_the_mean_over_seeds_at_the_churn_where_that_is_least(digits):
    ours, theirs = split(load_sweep(digits))
    cell = ours.best_by("loss.lam", "loss.beta")[8, 0.5, 1.0]
    assert cell.churn == 0
    assert cell.seeds == 2
    assert cell.score == pytest.approx(3 + 20 / 8 + 0.5)
    assert cell.std == pytest.approx(0.5**0.5)
    assert {row.score for row in theirs.rows if row.steps == 50} == {8.0}


def test_the_best_lambda_is_said_to_fall_only_when_it_does(digits, tmp_path):
    table = load_sweep(digits)
    assert {n: best for n, (best, _) in best_values(split(table)[0], "loss.lam").items()} == {2: 1.0, 8: 0.5, 50: 0.0}
    assert lambda_falls(table)
    assert "falls from 1 at 2 steps to 0 at 50, as in the paper" in findings(table)[0]
    flat = table.select(lambda row: row.settings[0] != 0 and row.steps != 50)
    flat = flat.select(lambda row: (row.settings[0], row.steps) != (0.5, 8))
    assert not lambda_falls(flat)
    assert "does not fall" in findings(flat)[0]


def test_heatmaps_show_the_tables_values_and_grey_those_above_the_mask(digits):
    table, _ = split(load_sweep(digits))
    cells = table.best_by("loss.lam", "loss.beta")
    seen = {}

    def keep(figure, name, caption):
        for axes in figure.axes[:3]:
            steps = int(axes.get_title().split()[0])
            for text in axes.texts:
                lam = table.values("loss.lam")[round(text.get_position()[0])]
                beta = table.values("loss.beta")[round(text.get_position()[1])]
                seen[steps, lam, beta] = text.get_text(), text.get_color() == "#8a8a8a"

    heatmap_figures(table, keep, mask=14.0)
    assert seen == {key: (number(cell.score), cell.score > 14.0) for key, cell in cells.items()}
    assert any(grey for _, grey in seen.values())


def test_figures_and_report_are_written_for_kernels_too(tmp_path):
    grid = ["loss.kernel=energy,imq", "loss.lam=0.5,1", "loss.beta=0.5,1", "loss.c=1,2"]
    sweep = plan("digits", "smoke", grid=grid, steps=(2, 8), churns=(0, 1))
    broken = next(iter(sweep.runs()))
    made_up(tmp_path, sweep, failed=(broken,))
    write_report(tmp_path)
    made = {file.name for file in tmp_path.glob("*.p*")}
    assert made == {
        f"{n}.{e}" for n in ("heatmap-energy", "heatmap-imq", "best", "curves", "kernels") for e in ("png", "pdf")
    }
    report = (tmp_path / "report.md").read_text()
    assert f"`{broken}`: it broke" in report
    main(["sweep-figures", str(tmp_path), "--mask", "5", "--lam", "0.5", "--classical", "4"])


def test_a_sweep_without_scores_draws_nothing_and_still_reports(tmp_path):
    sweep = plan("digits", "smoke", grid=["loss.lam=0,1"])
    SweepFolder(tmp_path).prepare(sweep)
    table = write_report(tmp_path)
    assert table.unfinished == tuple(sorted(sweep.runs()))
    draw_figures(table, lambda *_: pytest.fail("nothing to draw"))
    assert "## Unfinished" in (tmp_path / "report.md").read_text()


def test_ray_gives_the_scores_of_local_workers_in_the_same_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    out = tmp_path / "ray"
    words = ["mixture2d", *FEW, "--grid", "optim.lr=0.006,1e30", "--workers", "1", "--out", str(out)]
    done = subprocess.run(command(*words, "--engine", "ray"), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "1 run failed" in done.stderr
    table = load_sweep(out)
    assert table.unfinished == ()
    assert [name for name, _ in table.failed] == ["optim.lr=1e+30,seed=0"]
    here = SweepFolder(tmp_path / "here")
    here.prepare(table.sweep)
    work(here.path, "optim.lr=0.006,seed=0")
    assert [row.score for row in load_sweep(here.path).rows] == [row.score for row in table.rows]


def test_without_ray_a_sentence_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as left:
        main(["sweep", "mixture2d", *FEW, "--engine", "ray", "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert "distdiff[ray]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_reproduce_makes_a_heatmap_from_scratch(tmp_path):
    main(["reproduce", "heatmap-checkerboard", "--scale", "smoke", "--out", str(tmp_path / "out")])
    results = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert set(results["best_lambda"]) == {"1", "2"}
    assert len({tuple(row["settings"]) for row in results["rows"]}) == 5  # the grid's four and the classical twin
    report = (tmp_path / "out/report.md").read_text()
    assert "The best λ" in report
    assert all((tmp_path / f"out/{name}.png").exists() for name in ("heatmap", "best", "curves"))
