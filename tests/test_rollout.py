"""Policies in closed loop, in the PushT simulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from distdiff.cli import main
from distdiff.data.robot import Statistics
from distdiff.evaluate.rollout import Episode, Setting, roll_out, summarise, wilson
from distdiff.evaluate.rollout_workers import roll_out_run
from distdiff.policy import Policy, PolicySpec, build_policy_denoiser
from distdiff.recipe import ROBOTS
from distdiff.robot import open_suite


def policy(**changes: object) -> Policy:
    network = ROBOTS["pusht"]["smoke"].network
    spec = PolicySpec(2, 8, 8, 2, {"pusht_corners": 18}, (), None, 0, (), network)
    spec = replace(spec, **changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    statistics = Statistics(
        torch.full((spec.state_size,), 256.0),
        torch.full((spec.state_size,), 128.0),
        torch.full((spec.action_size,), 256.0),
        torch.full((spec.action_size,), 200.0),
    )
    return Policy(spec, build_policy_denoiser(spec).eval(), statistics, None)


def test_an_episode_is_the_same_wherever_and_beside_whomever_it_runs() -> None:
    setting = Setting(2)
    both = roll_out(policy(), "pusht", None, [4, 5], [setting])
    alone = roll_out(policy(), "pusht", None, [5], [setting])[0]
    np.testing.assert_allclose(both[1].actions[:8], alone.actions[:8], rtol=1e-4)
    assert both[0].length == 300
    assert not np.allclose(both[0].actions[:8], both[1].actions[:8])


def test_actions_played_again_give_the_same_end() -> None:
    episode = roll_out(policy(), "pusht", None, [7], [Setting(1)])[0]
    simulation = open_suite("pusht").make(0)
    simulation.reset(7)
    for action in episode.actions:
        simulation.step(action)
    assert simulation.score == episode.score
    assert simulation.done


def test_a_policy_that_stays_where_it_is_scores_what_the_block_covers_at_the_start() -> None:
    simulation = open_suite("pusht").make(0)
    simulation.reset(0)
    here = simulation.observe(["state"])["state"][:2]
    simulation.step(here)
    assert simulation.score == pytest.approx(simulation._env._get_coverage() / 0.95)  # type: ignore[attr-defined]
    assert not simulation.success


def test_pushing_the_block_onto_its_outline_is_a_success() -> None:
    simulation = open_suite("pusht").make(0)
    simulation.reset(0)
    body = simulation._env.block  # type: ignore[attr-defined]
    x, y, angle = simulation._env.goal_pose  # type: ignore[attr-defined]
    body.angle, body.position = angle, (x, y)
    simulation.step(np.array([20.0, 20.0]))
    assert simulation.success
    assert simulation.done
    assert simulation.score == 1


@pytest.mark.parametrize(
    ("good", "count", "low", "high"), [(0, 10, 0.0, 0.278), (7, 10, 0.397, 0.892), (10, 10, 0.722, 1)]
)
def test_wilson_agrees_with_published_values(good: int, count: int, low: float, high: float) -> None:
    assert wilson(good, count) == pytest.approx((low, high), abs=1e-3)


def test_a_summary_counts_by_task_and_takes_the_median_over_tasks() -> None:
    setting, none = Setting(2), np.zeros((0, 2), np.float32)
    made = [
        Episode(task, k, setting, k < good, float(k < good), 10, 0.01, 1, none)
        for task, good in enumerate((4, 0, 2))
        for k in range(4)
    ]
    summary = summarise(made)[setting]
    assert summary.tasks == {0: (4, 4), 1: (0, 4), 2: (2, 4)}
    assert summary.success == 0.5
    assert summary.median == 0.5
    assert summary.interval == wilson(6, 12)


def test_finished_episodes_are_not_run_again_and_more_are_added(tmp_path: Path) -> None:
    policy().save(tmp_path / "policy")
    options = {"suite": "pusht", "tasks": None, "settings": [Setting(1)]}
    first = roll_out_run(tmp_path, tmp_path / "out", episodes=2, workers=1, **options)  # type: ignore[arg-type]
    again = roll_out_run(tmp_path, tmp_path / "out", episodes=2, workers=0, **options)  # type: ignore[arg-type]
    assert again == first
    missing = roll_out_run(tmp_path, tmp_path / "out", episodes=3, workers=0, **options)  # type: ignore[arg-type]
    assert [one.episode for one in missing] == [0, 1]
    torch.manual_seed(1)
    other = policy()
    other.statistics.action_shift.add_(1)
    other.save(tmp_path / "policy")
    with pytest.raises(ValueError, match="another policy"):
        roll_out_run(tmp_path, tmp_path / "out", episodes=2, workers=0, **options)  # type: ignore[arg-type]


def test_the_command_leaves_numbers_a_figure_and_films(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy().save(tmp_path / "policy")
    main(["rollout", str(tmp_path), "--suite", "pusht", "--steps", "1,2", "--episodes", "2", "--videos", "1"])
    out = tmp_path / "rollout-pusht"
    found = json.loads((out / "metrics.json").read_text())
    assert [row["steps"] for row in found["rollouts"]] == [1, 2]
    assert found["rollouts"][0]["tasks"][0]["episodes"] == 2
    assert (out / "rollout.png").stat().st_size > 1000
    films = list((out / "videos").iterdir())
    assert len(films) == 2
    assert all(film.stat().st_size > 1000 for film in films)
    assert "metrics.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--suite", "nowhere"], "suite must be one of pusht, libero_goal"),
        (["--task", "3"], "task must be in 0 to 0"),
        (["--sampler", "dpm++", "--steps", "0"], "steps"),
        (["--sampler", "magic"], "sampler must be one of"),
        (["--steps", "2,2"], "without repetition"),
        (["--episodes", "0"], "episodes must be a whole number of at least 1"),
        (["--steps", "two"], "steps must be numbers"),
    ],
)
def test_bad_command_lines_are_one_sentence_and_write_nothing(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy().save(tmp_path / "run" / "policy")
    with pytest.raises(SystemExit) as left:
        main(["rollout", str(tmp_path / "run"), "--out", str(tmp_path / "out"), *words])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_policy_of_another_action_size_is_refused() -> None:
    with pytest.raises(ValueError, match="action size of the policy must be 2, that of pusht, got 7"):
        roll_out(policy(action_size=7), "pusht", None, [0], [Setting(1)])


def test_a_policy_with_a_camera_that_the_simulation_lacks_is_refused() -> None:
    blind = policy(cameras=("agentview_rgb",), camera_size=(96, 96))
    with pytest.raises(ValueError, match="observation must be one of state, img in pusht, got 'agentview_rgb'"):
        roll_out(blind, "pusht", None, [0], [Setting(1)])


def test_sampling_a_policy_points_to_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from distdiff.train import RunFolder

    RunFolder(tmp_path / "run").create(ROBOTS["pusht"]["smoke"])
    for command in ("sample", "evaluate"):
        with pytest.raises(SystemExit) as left:
            main([command, str(tmp_path / "run")])
        assert left.value.code == 2
        assert "distdiff rollout" in capsys.readouterr().err


def write_demonstrations(path: Path) -> None:
    """Two short wanderings, as diffusion-policy stores them."""
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    rng = np.random.default_rng(0)
    columns = {"data/state": rng.uniform(100, 400, (24, 5)), "data/action": rng.uniform(100, 400, (24, 2))}
    for name, values in (columns | {"meta/episode_ends": np.array([11, 24])}).items():
        group.create_array(name, data=values)


def test_an_experiment_is_reported_and_its_runs_are_known_again_by_another_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_demonstrations(tmp_path / "demos.zarr")
    words = ["reproduce", "pusht", "--scale", "smoke", "--out", str(tmp_path / "out"), "--data"]
    main([*words, str(tmp_path / "demos.zarr")])
    results = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert set(results["models"]) == {"distributional", "diffusion"}
    assert [row["steps"] for row in results["models"]["distributional"]] == [1, 2]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "1 step: distributional" in report
    assert "; classical (" in report
    assert (tmp_path / "out" / "plans.png").stat().st_size > 10_000
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    main([*words, "demos.zarr"])
    assert "2 of 2 runs are there already" in capsys.readouterr().err
