"""LIBERO's five suites of household tasks, simulated by robosuite on MuJoCo.

An action moves the gripper: three numbers for its position (1 is 5 cm), three for its rotation (1 is half a radian),
one for the fingers (-1 opens, 1 closes), all in [-1, 1], twenty times a second. Observations have the names of the
official demonstrations. `object_poses` is our own: for every object and fixture, sorted by name, its position (3), its
position relative to the gripper (3) and the first two columns of its rotation matrix (6); then the positions of all
drawers, doors and knobs.

Episode e begins in the e-th official initial state, after ten steps of rest. Fixtures are no part of these states:
LIBERO places them anew at each reset, by chance, and so do we, with e as the seed. The model is built once; a reset
does not compile it again. Camera pictures are upside down, as in the official files; `frame` is upright.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._check import BadArgument, is_whole, require, require_choice, require_count
from .suite import TaskSpec

__all__ = ["HORIZONS", "OPEN", "Libero", "LiberoSimulation"]

HORIZONS = {"libero_goal": 300, "libero_object": 280, "libero_spatial": 220, "libero_10": 520, "libero_90": 400}
"""Steps after which an episode has failed, as the field counts them."""
OPEN = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
"""The action that rests with open fingers."""
CAMERAS = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "robot0_eye_in_hand"}
SETTLING = 10
PLACEMENTS = 100
"""Trials to place objects without overlap."""
NO_PICTURE = (
    "cannot draw pictures of the simulation ({error}); without a GPU: apt-get install libosmesa6 and set "
    "MUJOCO_GL=osmesa; with one: apt-get install libegl1 and set MUJOCO_GL=egl; before Python starts"
)


class Libero:
    """One of LIBERO's suites; `benchmark` is LIBERO's own object."""

    action_size = 7

    def __init__(self, name: str) -> None:
        require_choice("suite", name, HORIZONS)
        self.name = name
        with _quiet():
            self.benchmark = _import_benchmark().get_benchmark(name)(0)
        self.tasks = tuple(TaskSpec(task.name, task.language, HORIZONS[name]) for task in self.benchmark.tasks)
        self.episodes = 50

    def bddl_file(self, task: int) -> Path:
        """The file that defines a task."""
        self._require_task(task)
        return Path(self.benchmark.get_task_bddl_file_path(task)).resolve()

    def make(self, task: int, camera_size: int = 128) -> LiberoSimulation:
        self._require_task(task)
        require_count("camera_size", camera_size)
        states = np.asarray(self.benchmark.get_task_init_states(task))
        return LiberoSimulation(self.tasks[task], self.bddl_file(task), states, camera_size)

    def _require_task(self, task: int) -> None:
        known = is_whole(task) and 0 <= task < len(self.tasks)
        require(known, "task", task, f"a number from 0 to {len(self.tasks) - 1} for {self.name}")


class LiberoSimulation:
    """One task; `env` is robosuite's environment, for those that may know everything (the scripted expert)."""

    def __init__(self, task: TaskSpec, bddl_file: Path, initial_states: np.ndarray, camera_size: int) -> None:
        self.task = task
        self.initial_states = initial_states
        self.camera_size = camera_size
        self.success = self.done = False
        self.score = 0.0
        self.steps = 0
        self._renderers: dict[int, Any] = {}
        with _quiet(), _numpy_seed(0):
            from libero.libero.envs.env_wrapper import ControlEnv

            wrapper = ControlEnv(
                bddl_file_name=str(bddl_file),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                ignore_done=True,
                hard_reset=False,
                initialization_noise="default",
            )
        self.env = wrapper.env
        self.env._observables.clear()  # robosuite would compute them at every substep
        self.bodies = sorted(self.env.obj_body_id)
        self._body_ids = [self.env.obj_body_id[name] for name in self.bodies]
        self._joint_addresses = self._articulation()
        self._observers = self._make_observers()

    @property
    def model(self) -> Any:
        """MuJoCo's model."""
        return self.env.sim.model._model

    @property
    def data(self) -> Any:
        """MuJoCo's data."""
        return self.env.sim.data._data

    @property
    def state(self) -> np.ndarray:
        """Time, positions and velocities, as the official files store them."""
        return self.env.sim.get_state().flatten()

    def reset(self, episode: int) -> None:
        count = len(self.initial_states)
        require(is_whole(episode) and 0 <= episode < count, "episode", episode, f"a number from 0 to {count - 1}")
        self._begin(int(episode), self.initial_states[episode])

    def reset_anew(self, seed: int) -> None:
        """Begin in a state that LIBERO samples with a seed: one for demonstrations, not for evaluation."""
        self._begin(seed, None)

    def observe(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        for name in names:
            require_choice("observation", name, self._observers)
        return {name: self._observers[name]() for name in names}

    def step(self, action: np.ndarray) -> None:
        action = np.asarray(action, dtype=np.float64)
        require(action.shape == (Libero.action_size,), "shape of an action", action.shape, f"({Libero.action_size},)")
        self.env.step(np.clip(action, -1, 1))
        self.steps += 1
        self._judge(self.success or self.holds())

    def holds(self) -> bool:
        """Whether the goal holds in this very state."""
        return bool(self.env._check_success())

    def frame(self) -> np.ndarray:
        return self._picture("agentview", 256)[::-1].copy()

    def close(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        self.env.close()

    def _begin(self, seed: int, state: np.ndarray | None) -> None:
        from robosuite.utils.errors import RandomizationError

        gripper = self.env.robots[0].gripper
        gripper.current_action = np.zeros(gripper.dof)  # robosuite carries it over from the last episode
        with _numpy_seed(seed):
            for trial in range(PLACEMENTS):
                try:
                    self.env.reset()
                    break
                except RandomizationError:
                    if trial == PLACEMENTS - 1:
                        raise
        if state is not None:
            self.env.sim.set_state_from_flattened(state)
        self.env.sim.forward()
        self.env._post_process()
        for _ in range(SETTLING):
            self.env.step(OPEN)
        self.steps = 0
        self._judge(self.holds())

    def _judge(self, success: bool) -> None:
        self.success, self.score = success, float(success)
        self.done = success or self.steps >= self.task.max_steps

    def _articulation(self) -> list[int]:
        """Where the positions of hinges and slides of the scene's objects lie."""
        import mujoco

        single = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
        joints = [self.model.joint(joint) for name in self.bodies for joint in self.env.get_object(name).joints]
        return [int(joint.qposadr[0]) for joint in joints if int(joint.type[0]) in single]

    def _make_observers(self) -> dict[str, Callable[[], np.ndarray]]:
        observers: dict[str, Callable[[], np.ndarray]] = {
            "ee_pos": lambda: self.gripper_position,
            "ee_ori": self._gripper_axis_angle,
            "ee_states": lambda: np.concatenate([self.gripper_position, self._gripper_axis_angle()]),
            "gripper_states": lambda: self._positions(self.env.robots[0]._ref_gripper_joint_pos_indexes),
            "joint_states": lambda: self._positions(self.env.robots[0]._ref_joint_pos_indexes),
            "object_poses": self._object_poses,
        }
        for name, camera in CAMERAS.items():
            observers[name] = partial(self._picture, camera, self.camera_size)
        return observers

    @property
    def gripper_position(self) -> np.ndarray:
        return np.array(self.data.site_xpos[self.env.robots[0].eef_site_id])

    @property
    def gripper_quaternion(self) -> np.ndarray:
        """Of the hand, (x, y, z, w)."""
        return np.array(self.data.body(self.env.robots[0].robot_model.eef_name).xquat)[[1, 2, 3, 0]]

    def _gripper_axis_angle(self) -> np.ndarray:
        from robosuite.utils.transform_utils import quat2axisangle

        return np.array(quat2axisangle(self.gripper_quaternion))

    def _positions(self, addresses: Sequence[int]) -> np.ndarray:
        return np.array(self.data.qpos[addresses])

    def _object_poses(self) -> np.ndarray:
        position = self.data.xpos[self._body_ids]
        columns = self.data.xmat[self._body_ids].reshape(-1, 3, 3)[:, :, :2].transpose(0, 2, 1).reshape(-1, 6)
        poses = np.concatenate([position, position - self.gripper_position, columns], 1)
        return np.concatenate([poses.ravel(), self.data.qpos[self._joint_addresses]])

    def _picture(self, camera: str, size: int) -> np.ndarray:
        """Raw: the first row is the bottom."""
        import mujoco

        options = mujoco.MjvOption()
        options.geomgroup[0] = 0  # collision shapes
        try:
            if size not in self._renderers:
                self._renderers[size] = mujoco.Renderer(self.model, size, size)
            renderer = self._renderers[size]
            renderer.update_scene(self.data, camera, options)
            return renderer.render()[::-1].copy()
        except Exception as error:  # each platform of OpenGL has its own errors
            raise BadArgument(NO_PICTURE.format(error=f"{type(error).__name__}: {error}")) from error


def _import_benchmark() -> Any:
    """LIBERO's catalogue. Says what to install; never asks a question."""
    if "MUJOCO_GL" not in os.environ and sys.platform == "linux":
        gpu = Path("/dev/nvidia0").exists() or Path("/dev/dri").exists()
        if gpu and find_library("EGL"):
            os.environ["MUJOCO_GL"] = "egl"
        else:  # glx can be imported without any library of OpenGL, so that states can be simulated without cameras
            os.environ["MUJOCO_GL"] = "osmesa" if find_library("OSMesa") else "glx"
    stdin, sys.stdin = sys.stdin, io.StringIO("n\n" * 9)
    try:
        import mujoco  # noqa: F401
        import robosuite  # noqa: F401
        from libero.libero import benchmark
    except ModuleNotFoundError as error:
        raise BadArgument(f'LIBERO needs {error.name}: pip install "distdiff[libero]"') from error
    except Exception as error:  # a library of OpenGL that is missing ends the import in many ways
        raise BadArgument(NO_PICTURE.format(error=f"{type(error).__name__}: {error}")) from error
    finally:
        sys.stdin = stdin
    return benchmark


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """LIBERO samples from NumPy's global generator; leave it as it was."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
