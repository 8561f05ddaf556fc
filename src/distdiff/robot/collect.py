"""Demonstrations of LIBERO by the scripted expert, in the layout of the official HDF5 files: one file a task.

The expert's action is executed with noise and recorded without, so that demonstrations show how to come back to the
way. They begin in fresh initial states, not in the official ones, which are for evaluation.

Each step holds what was observed before its action: what a policy sees when it has to choose. The official files are
one step late: beside an action they store the observation after it. The attribute `distdiff_observations`
of the group `data`, which is "before" in ours, tells the files apart.

Attempt k at a task depends on (seed, task, k) alone; the first n attempts that succeed are kept, whatever the number of
worker processes. Every attempt is a file of its own in OUT/.parts until its task is finished, so that a second
start goes on where the first was stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from .._check import BadArgument, FailedRuns, require, require_between, require_count, require_seed
from .crew import Crew
from .expert import Expert
from .libero import CAMERAS, Libero, LiberoSimulation

__all__ = ["Collected", "collect"]

STATES = ("ee_ori", "ee_pos", "ee_states", "gripper_states", "joint_states", "object_poses")
IDLE = 5
"""Steps of rest after success."""
TRIES = 3
"""Attempts for each demonstration that is asked for."""
TURN_NOISE = 0.2
"""Noise of the rotation, as a part of that of the position."""
NOTE = "observations are from before the action of the same step; in official files they are from after it"


@dataclass(frozen=True)
class Collected:
    """What has come of one task."""

    task: str
    file: Path
    kept: int
    failed: int


@dataclass(frozen=True)
class Attempt:
    """One attempt of the expert, and the file it goes to."""

    suite: str
    task: int
    number: int
    seed: int
    noise: float
    camera_size: int | None
    folder: Path

    @property
    def demonstration(self) -> Path:
        return self.folder / f"{self.number:05d}.hdf5"

    @property
    def failure(self) -> Path:
        return self.folder / f"{self.number:05d}.failed"


def collect(
    suite_name: str,
    tasks: Sequence[int] | None,
    n: int,
    out: Path,
    *,
    workers: int = 1,
    seed: int = 0,
    cameras: bool = False,
    camera_size: int = 128,
    noise: float = 0.1,
    progress: Callable[[str, int], Callable[[int], object]] | None = None,
) -> list[Collected]:
    """Write n demonstrations of each task (all tasks if None) to OUT/TASK_demo.hdf5; files that are whole are left.

    At most 3 n attempts are made at a task. Tasks without any success are an error, after the others were written.
    """
    suite = Libero(suite_name)
    chosen = list(range(len(suite.tasks))) if tasks is None else list(dict.fromkeys(tasks))
    require(bool(chosen), "task", tasks, "at least one number")
    for task in chosen:
        suite.bddl_file(task)
    require_count("n", n)
    require_count("workers", workers)
    require_count("camera_size", camera_size, 8)
    require_between("noise", noise, 0, 1)
    require_seed(seed)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    done: list[Collected] = []
    try:
        with FileLock(out / ".lock", timeout=0), Crew(_perform, workers) as crew:
            for task in chosen:
                settings = Attempt(
                    suite_name,
                    task,
                    0,
                    seed,
                    float(noise),
                    camera_size if cameras else None,
                    out / ".parts" / suite.tasks[task].name,
                )
                report = progress(suite.tasks[task].name, n) if progress else lambda kept: None
                done.append(_collect_task(suite, settings, n, out, crew, report))
            if not any((out / ".parts").glob("*")):
                shutil.rmtree(out / ".parts", ignore_errors=True)
    except Timeout as error:
        raise BadArgument(f"out must be a folder that no other process collects to, got {str(out)!r}") from error
    empty = {result.task: f"none of {result.failed} attempts succeeded" for result in done if not result.kept}
    if empty:
        raise FailedRuns(empty, "the other tasks were written")
    return done


def _collect_task(
    suite: Libero, settings: Attempt, n: int, out: Path, crew: Crew[Attempt, bool], report: Callable[[int], object]
) -> Collected:
    name = suite.tasks[settings.task].name
    file = out / f"{name}_demo.hdf5"
    kept, failed = _already(file, settings)
    report(len(kept))
    number = 0
    while True:
        # An attempt begins only if it is needed even when all that are under way succeed: so which ones are made
        # does not depend on how many there are at once.
        while len(kept) + crew.busy < n and number < TRIES * n and crew.idle:
            if number not in kept | failed:
                settings.folder.mkdir(parents=True, exist_ok=True)
                (settings.folder / "settings.json").write_text(_settings(settings))
                crew.start(replace(settings, number=number))
            number += 1
        if not crew.busy:
            break
        for attempt, success in crew.wait():
            (kept if success else failed).add(attempt.number)
        report(len(kept))
    if kept and settings.folder.exists():
        _merge(suite, settings, file, failed)
        shutil.rmtree(settings.folder)
    return Collected(name, file, len(kept), len(failed))


_simulations: dict[tuple[str, int, int | None], tuple[Libero, LiberoSimulation]] = {}


def _perform(attempt: Attempt) -> bool:
    """Make one attempt in a worker process and write what came of it."""
    key = (attempt.suite, attempt.task, attempt.camera_size)
    if key not in _simulations:
        for _, simulation in _simulations.values():
            simulation.close()
        _simulations.clear()
        suite = Libero(attempt.suite)
        _simulations[key] = (suite, suite.make(attempt.task, attempt.camera_size or 128))
    simulation = _simulations[key][1]
    rng = np.random.default_rng([attempt.seed, attempt.task, attempt.number])
    arrays, choices = _demonstrate(simulation, rng, attempt.noise, attempt.camera_size is not None)
    if arrays is None:
        attempt.failure.touch()
        return False
    import h5py

    aside = attempt.demonstration.with_suffix(f".{os.getpid()}.writing")  # an orphan of a killed start may write too
    with h5py.File(aside, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        file.attrs["num_samples"] = len(arrays["actions"])
        file.attrs["init_state"] = arrays["states"][0]
        file.attrs["attempt"] = attempt.number
        file.attrs["choices"] = json.dumps(choices)
    aside.replace(attempt.demonstration)
    return True


def _demonstrate(
    simulation: LiberoSimulation, rng: np.random.Generator, noise: float, cameras: bool
) -> tuple[dict[str, np.ndarray] | None, dict[str, float]]:
    """The arrays of a demonstration, None if it failed, and what the expert chose."""
    simulation.reset_anew(int(rng.integers(2**32)))
    expert = Expert(simulation, rng)
    names = [*STATES, *(CAMERAS if cameras else ())]
    rows: dict[str, list[Any]] = {}
    spread = noise * np.array([1, 1, 1, TURN_NOISE, TURN_NOISE, TURN_NOISE, 0])

    def record(action: np.ndarray) -> None:
        gripper = simulation.observe(["gripper_states"])["gripper_states"]
        row = {
            "actions": action,
            "states": simulation.state,
            "robot_states": np.concatenate([gripper, simulation.gripper_position, simulation.gripper_quaternion]),
            **{f"obs/{name}": value for name, value in simulation.observe(names).items()},
        }
        for name, value in row.items():
            rows.setdefault(name, []).append(value)

    action = None
    while not simulation.done:
        action = expert.act()
        if action is None:
            return None, expert.choices
        record(action)
        simulation.step(action + spread * rng.standard_normal(7))
    if not simulation.success or action is None:
        return None, expert.choices
    rest = np.append(np.zeros(6), action[6])
    for _ in range(IDLE):
        record(rest)
        simulation.step(rest)
    if not simulation.holds():
        return None, expert.choices
    arrays = {name: np.stack(values) for name, values in rows.items()}
    last = np.zeros(len(arrays["actions"]), np.uint8)
    last[-1] = 1
    return arrays | {"rewards": last, "dones": last}, expert.choices


def _settings(attempt: Attempt) -> str:
    """What demonstrations of one file have in common."""
    values = {"suite": attempt.suite, "task": attempt.task, "seed": attempt.seed, "noise": attempt.noise}
    return json.dumps(values | {"camera_size": attempt.camera_size})


def _already(file: Path, settings: Attempt) -> tuple[set[int], set[int]]:
    """Attempts of earlier starts that succeeded, and that failed; a `BadArgument` if they had other settings."""
    import h5py

    note = settings.folder / "settings.json"
    earlier = note.read_text() if note.exists() else None
    kept: set[int] = set()
    failed: set[int] = set()
    if file.exists():
        with h5py.File(file) as store:
            data = store["data"]
            earlier = data.attrs.get("collected_with", "by others")
            if earlier == _settings(settings):
                kept = {int(demonstration.attrs["attempt"]) for demonstration in data.values()}
                failed = set(map(int, data.attrs["failed_attempts"]))
    same = earlier is None or earlier == _settings(settings)
    require(same, "out", str(file), f"without demonstrations of other settings ({earlier})")
    kept |= {int(path.stem) for path in settings.folder.glob("*.hdf5")}
    failed |= {int(path.stem) for path in settings.folder.glob("*.failed")}
    return kept, failed


def _merge(suite: Libero, settings: Attempt, file: Path, failed: set[int]) -> None:
    """Put what the file has and the parts together, in the order of the attempts."""
    import h5py

    aside = file.with_suffix(".writing")
    with h5py.File(aside, "w") as store:
        data = store.create_group("data")
        sources = [h5py.File(path) for path in sorted(settings.folder.glob("*.hdf5"))]
        groups: dict[int, Any] = {int(source.attrs["attempt"]): source for source in sources}
        if file.exists():
            sources.append(h5py.File(file))
            groups |= {int(group.attrs["attempt"]): group for group in sources[-1]["data"].values()}
        total = 0
        for number, attempt in enumerate(sorted(groups)):
            group = groups[attempt]
            demonstration = data.create_group(f"demo_{number}")
            for name in group:
                group.copy(name, demonstration)
            demonstration.attrs.update(group.attrs)
            total += int(group.attrs["num_samples"])
        for source in sources:
            source.close()
        data.attrs.update(_attributes(suite, settings))
        data.attrs["num_demos"] = len(data)
        data.attrs["total"] = total
        data.attrs["failed_attempts"] = np.array(sorted(failed), dtype=np.int64)
    aside.replace(file)


def _attributes(suite: Libero, settings: Attempt) -> dict[str, Any]:
    """What the official files say of a task, and what ours add."""
    bddl = suite.bddl_file(settings.task)
    words = suite.tasks[settings.task].words
    problem = next(line.split()[2].rstrip(")") for line in bddl.read_text().splitlines() if "(problem" in line)
    size = settings.camera_size or 128
    kwargs = {
        "robots": ["Panda"],
        "controller": "OSC_POSE",
        "control_freq": 20,
        "camera_heights": size,
        "camera_widths": size,
        "camera_names": list(CAMERAS.values()) if settings.camera_size else [],
    }
    environment = {"type": 1, "env_name": problem, "problem_name": problem.lower(), "bddl_file": bddl.name}
    return {
        "env_name": problem,
        "problem_info": json.dumps(
            {"problem_name": problem.lower(), "domain_name": "robosuite", "language_instruction": words}
        ),
        "bddl_file_name": f"{settings.suite}/{bddl.name}",
        "bddl_file_content": bddl.read_text(),
        "env_args": json.dumps(environment | {"env_kwargs": kwargs}),
        "tag": "libero-v1",
        "macros_image_convention": "opengl",
        "distdiff_observations": "before",
        "note": NOTE,
        "collected_with": _settings(settings),
    }
