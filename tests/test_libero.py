"""LIBERO: episodes come again, the expert solves tasks in several ways, demonstrations are written once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distdiff._check import BadArgument, FailedRuns
from distdiff.robot import open_suite
from distdiff.robot.collect import collect
from distdiff.robot.crew import Crew
from distdiff.robot.expert import Expert
from distdiff.robot.libero import LiberoSimulation

pytest.importorskip("libero")
h5py = pytest.importorskip("h5py")

BOWL_ON_PLATE = 8
STATES = ["ee_states", "gripper_states", "joint_states", "object_poses"]
SHAPES = {"ee_pos": 3, "ee_ori": 3, "ee_states": 6, "gripper_states": 2, "joint_states": 7, "object_poses": 7 * 12 + 4}


@pytest.fixture(scope="module")
def simulation() -> Iterator[LiberoSimulation]:
    simulation = open_suite("libero_goal").make(BOWL_ON_PLATE, camera_size=32)
    assert isinstance(simulation, LiberoSimulation)
    yield simulation
    simulation.close()


def walk(simulation: LiberoSimulation, episode: int) -> np.ndarray:
    """All states of an episode with ten random actions."""
    simulation.reset(episode)
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(10):
        rows.append(np.concatenate(list(simulation.observe(STATES).values())))
        simulation.step(rng.uniform(-1, 1, 7))
    return np.stack(rows)


def test_an_episode_is_the_same_whatever_was_simulated_before(simulation: LiberoSimulation) -> None:
    first = walk(simulation, 3)
    other = walk(simulation, 4)
    np.random.random()  # noqa: NPY002  (LIBERO places fixtures with NumPy's global generator)
    np.testing.assert_array_equal(walk(simulation, 3), first)
    assert np.abs(other[0] - first[0]).max() > 1e-3


def test_reset_leaves_numpys_generator_alone(simulation: LiberoSimulation) -> None:
    np.random.seed(7)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    simulation.reset(0)
    assert np.random.random() == expected  # noqa: NPY002


def test_observations_have_the_shapes_of_the_official_files(simulation: LiberoSimulation) -> None:
    simulation.reset(0)
    seen = simulation.observe(list(SHAPES))
    assert {name: value.shape for name, value in seen.items()} == {name: (size,) for name, size in SHAPES.items()}
    np.testing.assert_array_equal(seen["ee_states"], np.concatenate([seen["ee_pos"], seen["ee_ori"]]))


def test_object_poses_are_places_relative_places_and_orthonormal_columns(simulation: LiberoSimulation) -> None:
    simulation.reset(0)
    seen = simulation.observe(["object_poses", "ee_pos"])
    poses = seen["object_poses"][: 7 * 12].reshape(7, 12)
    np.testing.assert_allclose(poses[:, :3] - poses[:, 3:6], np.tile(seen["ee_pos"], (7, 1)), atol=1e-12)
    first, second = poses[:, 6:9], poses[:, 9:]
    np.testing.assert_allclose((first**2).sum(1), 1, atol=1e-9)
    np.testing.assert_allclose((first * second).sum(1), 0, atol=1e-9)
    bowl = simulation.bodies.index("akita_black_bowl_1")
    np.testing.assert_array_equal(poses[bowl, :3], simulation.data.body("akita_black_bowl_1_main").xpos)


def test_an_episode_without_success_ends_at_the_horizon(simulation: LiberoSimulation) -> None:
    simulation.reset(0)
    simulation.steps = simulation.task.max_steps - 1
    assert not simulation.done
    simulation.step(np.zeros(7))
    assert simulation.done
    assert not simulation.success
    assert simulation.score == 0


def test_the_expert_puts_the_bowl_on_the_plate_from_different_sides(simulation: LiberoSimulation) -> None:
    sides = []
    solved = 0
    for episode in range(3):
        simulation.reset(episode)
        expert = Expert(simulation, np.random.default_rng(episode))
        while not simulation.done and (action := expert.act()) is not None:
            assert np.abs(action).max() <= 1
            simulation.step(action)
        solved += simulation.success
        assert simulation.score == simulation.success
        sides.append(round(expert.choices["side"] / (np.pi / 2)) % 4)
    assert solved >= 2
    assert len(set(sides)) >= 2


START = """
import sys
from pathlib import Path
from distdiff.robot.collect import collect
if __name__ == "__main__":
    collect("libero_goal", [8], 20, Path(sys.argv[1]))
"""


def test_a_killed_collection_goes_on_and_makes_nothing_twice(tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(START)
    out = tmp_path / "out"
    killed = subprocess.Popen([sys.executable, str(script), str(out)], stderr=subprocess.DEVNULL)
    first = out / ".parts" / "put_the_bowl_on_the_plate" / "00000.hdf5"
    deadline = time.monotonic() + 120
    while not first.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    with h5py.File(first, "r+") as file:
        file.attrs["seen"] = "before the kill"
    (done,) = collect("libero_goal", [BOWL_ON_PLATE], 2, out)
    assert done.kept >= 2
    written = done.file.stat().st_mtime_ns
    assert collect("libero_goal", [BOWL_ON_PLATE], 2, out) == [done]
    assert done.file.stat().st_mtime_ns == written
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["put_the_bowl_on_the_plate_demo.hdf5"]
    with h5py.File(done.file) as file:
        assert file["data/demo_0"].attrs["seen"] == "before the kill"
        has_official_layout(file["data"], done.kept)
    with pytest.raises(BadArgument, match="other settings"):
        collect("libero_goal", [BOWL_ON_PLATE], 2, out, seed=1)


def has_official_layout(data: Any, count: int) -> None:
    assert list(data) == [f"demo_{i}" for i in range(count)]
    assert data.attrs["num_demos"] == count
    assert data.attrs["distdiff_observations"] == "before"
    assert json.loads(data.attrs["problem_info"])["language_instruction"] == "put the bowl on the plate"
    steps = [int(demonstration.attrs["num_samples"]) for demonstration in data.values()]
    assert data.attrs["total"] == sum(steps)
    assert not np.array_equal(data["demo_0"].attrs["init_state"], data["demo_1"].attrs["init_state"])
    for demonstration, length in zip(data.values(), steps, strict=True):
        assert demonstration["actions"].shape == (length, 7)
        assert demonstration["robot_states"].shape == (length, 9)
        assert {name: array.shape for name, array in demonstration["obs"].items()} == {
            name: (length, size) for name, size in SHAPES.items()
        }
        assert demonstration["dones"][:].tolist() == [0] * (length - 1) + [1]
        np.testing.assert_array_equal(demonstration.attrs["init_state"], demonstration["states"][0])
        # A row's observation is of the row's state, before its action: joint positions follow the time in a state.
        np.testing.assert_array_equal(demonstration["obs/joint_states"][:], demonstration["states"][:, 1:8])


def die(code: int) -> int:
    if code:
        os._exit(code)
    return code


def test_a_worker_that_dies_is_reported() -> None:
    with Crew(die, 1) as crew:
        crew.start(0)
        assert crew.wait() == [(0, 0)]
        crew.start(9)
        with pytest.raises(FailedRuns, match="died, exit code 9"):
            crew.wait()


def test_unknown_names_and_numbers_are_one_sentence(simulation: LiberoSimulation, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"observation must be one of ee_pos.*got 'smell'"):
        simulation.observe(["smell"])
    with pytest.raises(BadArgument, match="task must be a number from 0 to 9 for libero_goal, got 10"):
        open_suite("libero_goal").make(10)
    with pytest.raises(BadArgument, match="episode must be a number from 0 to 49, got 50"):
        simulation.reset(50)
    with pytest.raises(BadArgument, match="shape of an action"):
        simulation.step(np.zeros(6))
    with pytest.raises(BadArgument, match="task must be"):
        collect("libero_goal", [12], 1, tmp_path / "none")
    assert not (tmp_path / "none").exists()


PICTURE = """
from distdiff.robot import open_suite
simulation = open_suite("libero_goal").make(8, camera_size=32)
simulation.reset(0)
try:
    picture = simulation.observe(["agentview_rgb"])["agentview_rgb"]
except ValueError as error:
    print("no picture:", error)
else:
    print("picture:", picture.shape, picture.dtype, picture.std() > 5)
"""


@pytest.mark.parametrize("platform", ["osmesa", "glx"])
def test_cameras_give_a_picture_or_say_what_to_install(platform: str) -> None:
    environment = {**os.environ, "MUJOCO_GL": platform} | {"DISPLAY": "", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PICTURE], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if run.stdout.startswith("picture:") and platform == "osmesa":
        assert run.stdout.strip() == "picture: (32, 32, 3) uint8 True"
    else:
        said = run.stdout + run.stderr
        assert "apt-get install libosmesa6 and set MUJOCO_GL=osmesa" in said
