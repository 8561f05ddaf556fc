"""Robot demonstrations: what the files of each layout hold, in which order, and what is refused or skipped."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import av
import h5py
import huggingface_hub
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import zarr
from PIL import Image

from distdiff._check import BadArgument
from distdiff.data.robot import Column, Episodes, load_episodes
from distdiff.data.robot.read import Lazy, PerProcess

SHUFFLED = np.array([7, 0, 3, 3, 9, 8, 0, 5])
FRAMES = 16


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# ---- LIBERO's HDF5 ----


def write_demo(data: h5py.Group, name: str, seed: int, steps: int, size: int = 7, cameras: Sequence[str] = ()) -> None:
    group = data.create_group(name)
    group["actions"] = numbers(seed, steps, size)
    group["states"] = numbers(seed + 1, steps, 20)
    group["obs/ee_pos"] = numbers(seed + 2, steps, 3)
    for offset, camera in enumerate(cameras):
        group[f"obs/{camera}"] = noise(seed + 3 + offset, steps, 4, 5, 3)


def write_libero(
    path: Path,
    demos: dict[str, tuple[int, int]],
    *,
    words: str | None = "put the bowl on the plate",
    ours: bool = False,
    size: int = 7,
    cameras: Sequence[str] = ("agentview_rgb",),
) -> Path:
    """A file with demonstrations of (seed, steps)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if words is not None:
            data.attrs["problem_info"] = json.dumps({"language_instruction": words})
        if ours:
            data.attrs["distdiff_observations"] = "before"
        for name, (seed, steps) in demos.items():
            write_demo(data, name, seed, steps, size, cameras)
    return path


@pytest.fixture
def libero(tmp_path: Path) -> Path:
    folder = tmp_path / "libero_goal"
    write_libero(folder / "a_demo.hdf5", {"demo_10": (30, 3), "demo_2": (20, 4)}, ours=True)
    write_libero(folder / "b_demo.hdf5", {"demo_0": (50, 5)}, ours=True, words="open the drawer")
    return folder


def test_libero_demonstrations_follow_one_another_by_file_and_by_number(libero: Path) -> None:
    episodes = load_episodes(str(libero))
    assert episodes.ends.tolist() == [4, 7, 12]
    assert episodes.task.tolist() == [0, 0, 1]
    assert episodes.tasks == ("put the bowl on the plate", "open the drawer")
    assert episodes.skipped == ()
    assert episodes.actions.dtype == np.float32
    expected = np.concatenate([numbers(20, 4, 7), numbers(30, 3, 7), numbers(50, 5, 7)])
    np.testing.assert_array_equal(episodes.actions, expected.astype(np.float32))
    expected = np.concatenate([numbers(22, 4, 3), numbers(32, 3, 3), numbers(52, 5, 3)])
    np.testing.assert_array_equal(episodes.observations["ee_pos"][:], expected.astype(np.float32))
    assert list(episodes.observations) == ["agentview_rgb", "ee_pos"]
    assert episodes.cameras == ["agentview_rgb"]


def libero_pictures() -> np.ndarray:
    return np.concatenate([noise(23, 4, 4, 5, 3), noise(33, 3, 4, 5, 3), noise(53, 5, 4, 5, 3)])


def test_a_libero_camera_gives_rows_in_the_order_asked_across_files(libero: Path) -> None:
    camera = load_episodes(str(libero)).observations["agentview_rgb"]
    assert camera.shape == (12, 4, 5, 3)
    assert camera.dtype == np.uint8
    np.testing.assert_array_equal(camera[SHUFFLED], libero_pictures()[SHUFFLED])
    np.testing.assert_array_equal(camera[::-1], libero_pictures()[::-1])
    windows = SHUFFLED.reshape(4, 2)
    np.testing.assert_array_equal(camera[windows], libero_pictures()[windows])


def test_far_apart_rows_of_one_demonstration_are_the_right_ones(tmp_path: Path) -> None:
    file = write_libero(tmp_path / "long.hdf5", {"demo_0": (0, 50)}, ours=True)
    rows = np.array([40, 2, 21, 2])
    np.testing.assert_array_equal(
        load_episodes(str(file)).observations["agentview_rgb"][rows], noise(3, 50, 4, 5, 3)[rows]
    )


def test_official_observations_are_moved_beside_the_action_that_follows_them(tmp_path: Path) -> None:
    file = write_libero(tmp_path / "a_demo.hdf5", {"demo_0": (0, 4), "demo_1": (10, 3)})
    episodes = load_episodes(str(file))
    assert episodes.ends.tolist() == [3, 5]
    actions = np.concatenate([numbers(0, 4, 7)[1:], numbers(10, 3, 7)[1:]])
    np.testing.assert_array_equal(episodes.actions, actions.astype(np.float32))
    seen = np.concatenate([numbers(2, 4, 3)[:-1], numbers(12, 3, 3)[:-1]])
    np.testing.assert_array_equal(episodes.observations["ee_pos"][:], seen.astype(np.float32))
    pictures = np.concatenate([noise(3, 4, 4, 5, 3)[:-1], noise(13, 3, 4, 5, 3)[:-1]])
    np.testing.assert_array_equal(episodes.observations["agentview_rgb"][:], pictures)


def test_only_the_first_demonstrations_of_each_task_are_read_under_a_limit(libero: Path) -> None:
    episodes = load_episodes(str(libero), limit=1)
    assert episodes.ends.tolist() == [4, 9]
    assert episodes.task.tolist() == [0, 1]
    np.testing.assert_array_equal(episodes.observations["agentview_rgb"][4], libero_pictures()[7])


@pytest.mark.parametrize(
    ("file", "told", "words"),
    [
        ("x.hdf5", "turn on the stove", "turn on the stove"),
        ("open_the_top_drawer_demo.hdf5", None, "open the top drawer"),
        ("KITCHEN_SCENE10_close_the_drawer_demo.hdf5", None, "close the drawer"),
        ("recording7.hdf5", None, ""),
        ("open_the_top_drawer_demo.hdf5", "", ""),
    ],
)
def test_the_words_of_a_task_come_from_the_file_or_else_its_name(
    tmp_path: Path, file: str, told: str | None, words: str
) -> None:
    write_libero(tmp_path / file, {"demo_0": (0, 3)}, words=told)
    assert load_episodes(str(tmp_path)).tasks == (words,)


def test_files_without_words_are_different_tasks_and_files_with_the_same_words_one(tmp_path: Path) -> None:
    for name, words in [("a", None), ("b", None), ("c", "lift"), ("d", "lift")]:
        write_libero(tmp_path / f"{name}.hdf5", {"demo_0": (0, 3)}, words=words)
    episodes = load_episodes(str(tmp_path))
    assert episodes.tasks == ("", "", "lift")
    assert episodes.task.tolist() == [0, 1, 2, 2]


def test_a_missing_camera_is_named_with_those_that_are_there(libero: Path) -> None:
    with pytest.raises(
        BadArgument, match=r"names must be observations that .*libero_goal holds \(agentview_rgb, ee_pos\)"
    ) as told:
        load_episodes(str(libero), names=["ee_pos", "front_rgb"])
    assert "got 'front_rgb'" in str(told.value)


def test_observations_are_those_asked_for(libero: Path) -> None:
    assert list(load_episodes(str(libero), names=["ee_pos"]).observations) == ["ee_pos"]


def test_a_demonstration_without_the_camera_asked_for_is_skipped_and_named(libero: Path) -> None:
    write_libero(libero / "c_demo.hdf5", {"demo_0": (60, 3)}, ours=True, cameras=())
    episodes = load_episodes(str(libero), names=["agentview_rgb"])
    assert len(episodes.ends) == 3
    assert episodes.skipped == ("c_demo.hdf5 demo_0: it has no agentview_rgb",)


def test_an_observation_that_not_all_have_is_left_out_and_named(libero: Path) -> None:
    write_libero(libero / "c_demo.hdf5", {"demo_0": (60, 3)}, ours=True, cameras=())
    episodes = load_episodes(str(libero))
    assert len(episodes.ends) == 4
    assert list(episodes.observations) == ["ee_pos"]
    assert episodes.skipped == ("agentview_rgb: only 3 of 4 demonstrations have it",)


def test_an_observation_of_two_shapes_is_left_out_unless_it_is_asked_for(libero: Path) -> None:
    with h5py.File(libero / "b_demo.hdf5", "a") as file:
        del file["data/demo_0/obs/agentview_rgb"]
        file["data/demo_0/obs/agentview_rgb"] = noise(0, 5, 8, 8, 3)
    episodes = load_episodes(str(libero))
    assert list(episodes.observations) == ["ee_pos"]
    assert "(4, 5, 3) in a_demo.hdf5, (8, 8, 3) in b_demo.hdf5" in episodes.skipped[0]
    with pytest.raises(BadArgument, match=r"agentview_rgb of .* must be of one shape in all files"):
        load_episodes(str(libero), names=["agentview_rgb"])


def test_unusable_files_and_demonstrations_among_good_ones_are_skipped_and_named(libero: Path) -> None:
    h5py.File(libero / "c.hdf5", "w").close()
    (libero / "d.hdf5").write_bytes(b"no HDF5 at all")
    with h5py.File(libero / "e.hdf5", "w") as file:
        file["other"] = np.zeros(3)
    with h5py.File(libero / "f.hdf5", "w") as file:
        file.create_group("data")
    with h5py.File(write_libero(libero / "g.hdf5", {f"demo_{n}": (70, 4) for n in range(4)}, ours=True), "a") as file:
        del file["data/demo_0/actions"]
        del file["data/demo_1/obs/ee_pos"]
        file["data/demo_1/obs/ee_pos"] = np.zeros((3, 3))
        del file["data/demo_2/actions"]
        file["data/demo_2/actions"] = np.zeros(4)
    write_libero(libero / "h.hdf5", {"demo_0": (0, 1)})
    episodes = load_episodes(str(libero))
    assert episodes.ends.tolist() == [4, 7, 12, 16]
    assert [line for line in episodes.skipped if not line.startswith("d.hdf5")] == [
        "c.hdf5: the file is empty",
        "e.hdf5: there is no group 'data', only other",
        "f.hdf5: the group 'data' holds no demonstrations (demo_0, demo_1, ...)",
        "g.hdf5 demo_0: it has no actions",
        "g.hdf5 demo_1: ee_pos has 3 steps, its actions have 4",
        "g.hdf5 demo_2: its actions must be of shape (steps, size), not (4,)",
        "h.hdf5 demo_0: 1 steps are too few",
    ]
    assert any(line.startswith("d.hdf5: cannot be read as HDF5 (") for line in episodes.skipped)
    assert "8 skipped" in episodes.describe()


def test_what_a_collection_has_not_finished_is_not_read(libero: Path) -> None:
    (libero / ".parts" / "task").mkdir(parents=True)
    write_libero(libero / ".parts" / "task" / "00000.hdf5", {"demo_0": (0, 4)}, ours=True)
    episodes = load_episodes(str(libero))
    assert episodes.ends.tolist() == [4, 7, 12]
    assert episodes.skipped == ()


def test_an_empty_hdf5_file_alone_is_refused(tmp_path: Path) -> None:
    h5py.File(tmp_path / "empty.hdf5", "w").close()
    with pytest.raises(BadArgument, match=r"without a usable one: empty\.hdf5: the file is empty"):
        load_episodes(str(tmp_path / "empty.hdf5"))


def test_actions_of_two_sizes_are_refused(libero: Path) -> None:
    write_libero(libero / "c.hdf5", {"demo_0": (0, 3)}, size=4)
    with pytest.raises(
        BadArgument, match=r"actions of .* must be of one size in all files, got '7 in .*, 4 in c\.hdf5'"
    ):
        load_episodes(str(libero))


# ---- diffusion-policy's zarr ----


def write_zarr(path: Path, steps: int = 10, **replaced: Any) -> Path:
    arrays = {
        "action": numbers(0, steps, 2).astype(np.float32),
        "state": numbers(1, steps, 5).astype(np.float32),
        "keypoint": numbers(2, steps, 9, 2).astype(np.float32),
        "img": noise(3, steps, 6, 6, 3).astype(np.float32),
        "n_contacts": np.zeros((steps, 1), np.float32),
    }
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    data, meta = group.create_group("data"), group.create_group("meta")
    for name, array in {**arrays, **replaced}.items():
        if name != "episode_ends" and array is not None:
            data.create_array(name, data=array, chunks=(4, *array.shape[1:]))
    ends = replaced.get("episode_ends", np.array([3, 8, steps]))
    if ends is not None:
        meta.create_array("episode_ends", data=ends)
    return path


def zipped(path: Path) -> Path:
    target = path.with_suffix(".zarr.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(path))
    return target


@pytest.mark.parametrize("pack", [lambda path: path, zipped], ids=["folder", "zip"])
def test_a_replay_buffer_is_read_whole_with_pictures_as_bytes(tmp_path: Path, pack: Callable[[Path], Path]) -> None:
    path = pack(write_zarr(tmp_path / "pusht.zarr"))
    episodes = load_episodes(str(path))
    assert episodes.ends.tolist() == [3, 8, 10]
    assert episodes.task.tolist() == [0, 0, 0]
    assert episodes.tasks == ("",)
    np.testing.assert_array_equal(episodes.actions, numbers(0, 10, 2).astype(np.float32))
    assert sorted(episodes.observations) == ["img", "keypoint", "state"]
    np.testing.assert_array_equal(episodes.observations["state"][:], numbers(1, 10, 5).astype(np.float32))
    assert episodes.observations["keypoint"].shape == (10, 9, 2)
    assert episodes.cameras == ["img"]
    np.testing.assert_array_equal(episodes.observations["img"][SHUFFLED], noise(3, 10, 6, 6, 3)[SHUFFLED])


def test_bytes_in_a_replay_buffer_stay_bytes(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "bytes.zarr", img=noise(5, 10, 6, 6, 3))
    np.testing.assert_array_equal(load_episodes(str(path)).observations["img"][2:9], noise(5, 10, 6, 6, 3)[2:9])


def test_a_limit_ends_a_replay_buffer_with_an_episode(tmp_path: Path) -> None:
    episodes = load_episodes(str(write_zarr(tmp_path / "pusht.zarr")), limit=2)
    assert episodes.ends.tolist() == [3, 8]
    assert {len(episodes.actions)} == {column.shape[0] for column in episodes.observations.values()} == {8}
    with pytest.raises(IndexError):
        episodes.observations["img"][np.array([8])]


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        ({"episode_ends": None}, "with data/action and meta/episode_ends"),
        ({"action": None}, "with data/action and meta/episode_ends"),
        ({"episode_ends": np.array([], np.int64)}, "must be those of at least one episode"),
        ({"episode_ends": np.array([5, 3, 10])}, "must be rising to 10"),
        (
            {"state": np.zeros((7, 2))},
            r"must be 10 for each array, where the last episode ends, got \{'state': \(7,\)\}",
        ),
        ({"action": np.zeros(10)}, r"must be of shape \(steps, size\)"),
        ({"img": noise(0, 10, 6, 6, 3) / 255}, "pictures img of .* must be in the range 0 to 255"),
    ],
)
def test_a_replay_buffer_that_does_not_add_up_is_refused(
    tmp_path: Path, replaced: dict[str, Any], sentence: str
) -> None:
    path = write_zarr(tmp_path / "bad.zarr", **replaced)
    with pytest.raises(BadArgument, match=sentence):
        load_episodes(str(path))


def test_a_zip_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.zarr.zip").write_bytes(b"no archive")
    with pytest.raises(BadArgument, match="which zarr cannot open"):
        load_episodes(str(tmp_path / "bad.zarr.zip"))


def test_a_replay_buffer_lists_its_observations_when_one_is_missing(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "pusht.zarr")
    with pytest.raises(BadArgument, match=r"holds \(img, keypoint, state\), got 'wrist'"):
        load_episodes(str(path), names=["state", "wrist"])


# ---- LeRobotDataset v3 ----

LENGTHS = {0: 4, 1: 5, 2: 3}
TASK_OF = {0: 1, 1: 0, 2: 1}
FPS = 10


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path: Path, columns: dict[str, Any], row_group: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=row_group)


def write_video(path: Path, frames: int) -> None:
    """Frame i is grey of 15 i; a key frame in five and frames between that depend on later ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        stream.options = {"g": "5", "bf": "2", "crf": "5"}
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), 15 * index, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_lerobot(root: Path, *, video: bool, version: str = "v3.0", **info: Any) -> Path:
    """Three episodes in two files of steps; pictures in the cells, or all in one video that begins at frame 2."""
    camera = {"dtype": "image", "shape": [6, 8, 3], "names": ["height", "width", "channels"]}
    if video:
        camera = {"dtype": "video", "shape": [3, 16, 32], "names": ["channels", "height", "width"]}
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "observation.gripper": {"dtype": "float32", "shape": [1], "names": None},
        "observation.images.top": camera,
        "observation.note": {"dtype": "string", "shape": [1], "names": None},
        "action": {"dtype": "float32", "shape": [3], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    }
    (root / "meta").mkdir(parents=True)
    video_path = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    settings = {
        "codebase_version": version,
        "fps": FPS,
        "features": features,
        "total_episodes": 3,
        "video_path": video_path,
    }
    (root / "meta" / "info.json").write_text(json.dumps({**settings, **info}))
    tasks = pandas.DataFrame({"task_index": [0, 1]}, index=["push the block", "lift the cube"])
    tasks.to_parquet(root / "meta" / "tasks.parquet")
    begin = 2 / FPS
    places: dict[str, list[Any]] = {
        "episode_index": [],
        **{f"videos/observation.images.top/{k}": [] for k in ("chunk_index", "file_index", "from_timestamp")},
    }
    for episode, length in LENGTHS.items():
        for column, value in zip(places.values(), (episode, 0, 0, begin), strict=True):
            column.append(value)
        begin += length / FPS
    write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", places)
    for number, held in enumerate([(0, 1), (2,)]):
        steps = [(episode, frame) for episode in held for frame in range(LENGTHS[episode])]
        columns: dict[str, Any] = {
            "observation.state": pa.array([lerobot_state(*step).tolist() for step in steps], pa.list_(pa.float32(), 2)),
            "observation.gripper": pa.array([float(frame) for _, frame in steps], pa.float32()),
            "action": pa.array([lerobot_action(*step).tolist() for step in steps], pa.list_(pa.float32())),
            "episode_index": [episode for episode, _ in steps],
            "frame_index": [frame for _, frame in steps],
            "task_index": [TASK_OF[episode] for episode, _ in steps],
            "timestamp": pa.array([frame / FPS for _, frame in steps], pa.float32()),
        }
        if not video:
            columns["observation.images.top"] = [
                {"bytes": png(noise(100 * episode + frame, 6, 8, 3)), "path": None} for episode, frame in steps
            ]
        write_parquet(root / f"data/chunk-000/file-{number:03d}.parquet", columns, row_group=3)
    if video:
        write_video(root / "videos/observation.images.top/chunk-000/file-000.mp4", FRAMES)
    return root


def lerobot_state(episode: int, frame: int) -> np.ndarray:
    return np.array([episode, frame], np.float32)


def lerobot_action(episode: int, frame: int) -> np.ndarray:
    return np.array([episode, -frame, 0.5], np.float32)


STEPS = [(episode, frame) for episode, length in LENGTHS.items() for frame in range(length)]


def lerobot_pictures() -> np.ndarray:
    return np.stack([noise(100 * episode + frame, 6, 8, 3) for episode, frame in STEPS])


def grey_levels(column: Column, rows: Any) -> list[int]:
    """The number of the frame that each picture of the video is."""
    pictures = column[rows].astype(np.float64)
    assert np.ptp(pictures, axis=(1, 2, 3)).max() <= 6
    return np.rint(pictures.mean((1, 2, 3)) / 15).astype(int).tolist()


@pytest.fixture
def with_images(tmp_path: Path) -> Path:
    return write_lerobot(tmp_path / "images", video=False)


@pytest.fixture
def with_video(tmp_path: Path) -> Path:
    return write_lerobot(tmp_path / "video", video=True)


def test_a_lerobot_set_gives_steps_tasks_and_pictures_in_cells(with_images: Path) -> None:
    episodes = load_episodes(str(with_images))
    assert episodes.ends.tolist() == [4, 9, 12]
    assert episodes.tasks == ("push the block", "lift the cube")
    assert episodes.task.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(episodes.actions, np.stack([lerobot_action(*step) for step in STEPS]))
    state = episodes.observations["observation.state"]
    np.testing.assert_array_equal(state[:], np.stack([lerobot_state(*step) for step in STEPS]))
    assert episodes.observations["observation.gripper"].shape == (12, 1)
    camera = episodes.observations["observation.images.top"]
    assert camera.shape == (12, 6, 8, 3)
    np.testing.assert_array_equal(camera[SHUFFLED], lerobot_pictures()[SHUFFLED])
    assert sorted(episodes.observations) == ["observation.gripper", "observation.images.top", "observation.state"]
    assert episodes.skipped == ("observation.note: neither numbers nor pictures in colour",)


def test_steps_of_a_lerobot_set_are_ordered_whatever_the_order_of_its_rows(with_images: Path) -> None:
    file = with_images / "data/chunk-000/file-000.parquet"
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.take(list(reversed(range(len(table))))), file, row_group_size=4)
    episodes = load_episodes(str(with_images))
    np.testing.assert_array_equal(episodes.actions, np.stack([lerobot_action(*step) for step in STEPS]))
    np.testing.assert_array_equal(episodes.observations["observation.images.top"][:], lerobot_pictures())


def test_a_limit_keeps_the_first_lerobot_episodes_of_each_task(with_images: Path) -> None:
    episodes = load_episodes(str(with_images), limit=1)
    assert episodes.task.tolist() == [1, 0]
    assert episodes.ends.tolist() == [4, 9]
    np.testing.assert_array_equal(episodes.observations["observation.images.top"][:], lerobot_pictures()[:9])


def test_frames_of_a_video_are_found_by_time_in_any_order(with_video: Path) -> None:
    camera = load_episodes(str(with_video)).observations["observation.images.top"]
    assert camera.shape == (12, 16, 32, 3)
    assert grey_levels(camera, slice(None)) == list(range(2, 14))
    assert grey_levels(camera, SHUFFLED) == (SHUFFLED + 2).tolist()
    for row in (11, 10, 0, 6, 6, 1):
        assert grey_levels(camera, [row]) == [row + 2]


def test_a_video_without_the_frame_says_which_time_is_missing(with_video: Path) -> None:
    write_video(with_video / "videos/observation.images.top/chunk-000/file-000.mp4", 8)
    camera = load_episodes(str(with_video)).observations["observation.images.top"]
    assert grey_levels(camera, [5]) == [7]
    with pytest.raises(BadArgument, match=r"file-000\.mp4 must hold a frame at 0\.800 s"):
        camera[[6]]
    assert grey_levels(camera, [0]) == [2]


def test_a_broken_or_absent_video_is_named(with_video: Path) -> None:
    video = with_video / "videos/observation.images.top/chunk-000/file-000.mp4"
    video.write_bytes(b"no video")
    with pytest.raises(BadArgument, match=r"file-000\.mp4 must be a video that can be decoded"):
        load_episodes(str(with_video)).observations["observation.images.top"][:1]
    video.unlink()
    with pytest.raises(BadArgument, match=r"videos of .* must be files that exist, got .*file-000\.mp4"):
        load_episodes(str(with_video))
    assert load_episodes(str(with_video), names=["observation.state"]).cameras == []


def test_episodes_whose_data_is_absent_are_counted(with_images: Path) -> None:
    (with_images / "data/chunk-000/file-001.parquet").unlink()
    assert "1 of 3 episodes: not in the data files" in load_episodes(str(with_images)).skipped


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ({"codebase_version": "v2.1"}, "of v2.1; convert it with lerobot's convert_dataset_v21_to_v30"),
        ({"codebase_version": "v4.0"}, "must be a LeRobotDataset of version v3.0, got .* of v4.0$"),
        ({"features": {}}, "must be with one called 'action'"),
        ({"fps": None}, "whose meta/info.json is bad"),
        ({"features": {"action": {"dtype": "float32", "shape": [4]}}}, "must be of size 4 in each row"),
    ],
)
def test_a_lerobot_set_that_cannot_be_used_says_why(tmp_path: Path, info: dict[str, Any], sentence: str) -> None:
    write_lerobot(tmp_path / "bad", video=False, **info)
    with pytest.raises(BadArgument, match=sentence):
        load_episodes(str(tmp_path / "bad"))


def test_a_lerobot_set_without_tasks_has_no_words(with_images: Path) -> None:
    (with_images / "meta/tasks.parquet").unlink()
    assert load_episodes(str(with_images)).tasks == ("", "")


def test_pictures_of_another_size_than_told_are_refused(with_images: Path) -> None:
    info = json.loads((with_images / "meta/info.json").read_text())
    info["features"]["observation.images.top"]["shape"] = [8, 8, 3]
    (with_images / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(BadArgument, match=r"got \(6, 8, 3\)"):
        load_episodes(str(with_images)).observations["observation.images.top"][0:1]


# ---- what all layouts share ----


@pytest.fixture(params=["libero", "zarr", "zip", "images", "video"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Episodes:
    if request.param in ("zarr", "zip"):
        path = write_zarr(tmp_path / "pusht.zarr")
        return load_episodes(str(zipped(path) if request.param == "zip" else path))
    if request.param == "libero":
        return load_episodes(str(request.getfixturevalue("libero")))
    return load_episodes(str(write_lerobot(tmp_path / "set", video=request.param == "video")))


@pytest.fixture(scope="module")
def other_process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def read_shuffled(pickled: bytes) -> tuple[int, np.ndarray]:
    return os.getpid(), pickle.loads(pickled)[SHUFFLED]


def test_a_camera_passes_to_another_process(opened: Episodes, other_process: ProcessPoolExecutor) -> None:
    camera = opened.observations[opened.cameras[0]]
    here = camera[SHUFFLED]
    process, there = other_process.submit(read_shuffled, pickle.dumps(camera)).result()
    assert process != os.getpid()
    np.testing.assert_array_equal(there, here)


def test_a_camera_that_was_read_before_a_fork_is_read_rightly_after_it(opened: Episodes) -> None:
    camera = opened.observations[opened.cameras[0]]
    here = camera[:]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(camera[SHUFFLED]))
    child.start()
    there = queue.get(timeout=20)
    child.join()
    np.testing.assert_array_equal(there, here[SHUFFLED])
    np.testing.assert_array_equal(camera[:], here)


def test_pictures_are_not_kept_in_what_is_pickled(opened: Episodes) -> None:
    camera = opened.observations[opened.cameras[0]]
    before = len(pickle.dumps(camera))
    camera[:]
    assert len(pickle.dumps(camera)) == before


def test_cameras_are_read_when_they_are_asked_and_not_before(opened: Episodes, tmp_path: Path) -> None:
    camera = opened.observations[opened.cameras[0]]
    for child in tmp_path.iterdir():
        shutil.rmtree(child) if child.is_dir() else child.unlink()
    with pytest.raises((OSError, KeyError, BadArgument)):
        camera[:]


class Counting(Lazy):
    def __init__(self) -> None:
        super().__init__((5, 2), np.float32)
        self.asked: list[list[int]] = []

    def read(self, rows: np.ndarray) -> np.ndarray:
        self.asked.append(rows.tolist())
        return np.stack([rows, -rows], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    "rows", [slice(1, 4), slice(None, None, -2), [3, 0, 3], [[4, 4], [0, -1]], 2, -5, [], slice(0, 0)]
)
def test_a_lazy_column_is_indexed_as_an_array_is(rows: Any) -> None:
    column = Counting()
    whole = np.stack([np.arange(5), -np.arange(5)], axis=1).astype(np.float32)
    expected = whole[np.asarray(rows, np.int64)] if isinstance(rows, list) else whole[rows]
    np.testing.assert_array_equal(column[rows], expected)
    assert column[rows].shape == expected.shape
    assert all(asked == sorted(set(asked)) for asked in column.asked)


@pytest.mark.parametrize("rows", [5, [0, 5], [-6]])
def test_a_row_outside_a_lazy_column_is_refused(rows: Any) -> None:
    with pytest.raises(IndexError):
        Counting()[rows]


def test_the_least_used_is_dropped_once_the_budget_is_spent() -> None:
    cache = PerProcess(10)
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    for key in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
        assert cache.get(key, partial(make, key), len) == key
    assert made == ["aaaa", "bbbb", "cccc", "bbbb"]


# ---- what a source may be ----


@pytest.mark.parametrize("source", ["nowhere/at/all", "/no/such/folder", "word"])
def test_a_source_that_is_neither_path_nor_hub_name_says_what_is_accepted(source: str) -> None:
    with pytest.raises(BadArgument, match=r"source must be an existing path: a folder of LIBERO's \.hdf5 files"):
        load_episodes(source)


def test_a_folder_of_something_else_says_what_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    for source in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(BadArgument, match=r"source must be a folder of LIBERO's .* zarr layout.* LeRobotDataset"):
            load_episodes(str(source))


def test_a_hub_name_is_downloaded_as_a_dataset(libero: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, *, repo_type: str) -> str:
        asked.append((name, repo_type))
        return str(libero)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    episodes = load_episodes("someone/libero_goal", names=["ee_pos"])
    assert asked == [("someone/libero_goal", "dataset")]
    assert episodes.source == "someone/libero_goal"
    assert len(episodes.ends) == 3


def test_a_hub_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, *, repo_type: str) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("Name or service not known\nand a long tale")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        BadArgument, match=r"hub did not give it \(Name or service not known\); pass the path of a local"
    ):
        load_episodes("someone/libero_goal")


@pytest.mark.parametrize(
    ("missing", "read"),
    [
        ("h5py", "libero"),
        ("zarr", "zarr"),
        ("av", "video"),
    ],
)
def test_a_missing_package_says_what_to_install(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, read: str
) -> None:
    write = {
        "libero": lambda: request.getfixturevalue("libero"),
        "zarr": lambda: write_zarr(tmp_path / "z.zarr"),
        "video": lambda: request.getfixturevalue("with_video"),
    }
    path = write[read]()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BadArgument, match=rf'package {missing}, .* pip install "distdiff\[robotics\]"'):
        load_episodes(str(path))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"layout": "rlds"}, "layout must be one of auto, libero, zarr, lerobot, got 'rlds'"),
        ({"limit": 0}, "limit must be a whole number of at least 1"),
        ({"names": "ee_pos"}, "names must be a list of observations, got 'ee_pos'"),
    ],
)
def test_bad_settings_are_refused(libero: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadArgument, match=sentence):
        load_episodes(str(libero), **settings)


def test_a_layout_that_the_folder_does_not_have_is_refused(libero: Path, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="diffusion-policy's zarr layout"):
        load_episodes(str(libero), layout="zarr")
    with pytest.raises(BadArgument, match=r"whose meta/info\.json is bad"):
        load_episodes(str(libero), layout="lerobot")
    write_zarr(tmp_path / "z.zarr")
    with pytest.raises(BadArgument, match="one HDF5 file, or a folder that holds some"):
        load_episodes(str(tmp_path / "z.zarr"), layout="libero")
