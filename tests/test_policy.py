"""Windows of demonstrations, the policy's network, and policies that are saved and loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from distdiff import ConditionalLoss, Energy
from distdiff.data.robot import Episodes, Statistics, Windows
from distdiff.data.robot.derive import derive, pusht_corners, rotation_columns
from distdiff.nn.policy import PolicyNetwork
from distdiff.policy import Policy
from distdiff.recipe import ROBOTS, RobotRun
from distdiff.train import RunFolder, build_task, train
from distdiff.train.robot import shifted


def episodes(lengths: tuple[int, ...] = (5, 3), size: int = 3, tasks: tuple[str, ...] = ("push",)) -> Episodes:
    steps = sum(lengths)
    rng = np.random.default_rng(0)
    return Episodes(
        source="made up",
        observations={
            "where": np.arange(2 * steps, dtype=np.float32).reshape(steps, 2),
            "eye": rng.integers(0, 255, (steps, 16, 16, 3), dtype=np.uint8),
        },
        actions=np.arange(size * steps, dtype=np.float32).reshape(steps, size),
        ends=np.cumsum(lengths),
        task=np.arange(len(lengths)) % len(tasks),
        tasks=tasks,
    )


def test_a_chunk_holds_the_actions_from_its_step_on() -> None:
    windows = Windows(episodes(), ["where"], chunk=2)
    actions, _ = windows.batch([1, 5])
    assert actions[:, :, 0].tolist() == [[3, 6], [15, 18]]


def test_a_chunk_never_reaches_into_the_next_episode() -> None:
    actions, _ = Windows(episodes(), ["where"], chunk=4).batch([3])
    assert actions[0, :, 0].tolist() == [9, 12, 12, 12]  # the fifth step is the last


def test_motions_rest_after_the_end_while_the_gripper_is_held() -> None:
    actions, _ = Windows(episodes(), ["where"], chunk=3, hold=(2,)).batch([4])
    assert actions[0].tolist() == [[12, 13, 14], [0, 0, 14], [0, 0, 14]]


def test_history_repeats_the_first_state_of_an_episode_and_not_the_last_of_the_one_before() -> None:
    _, observed = Windows(episodes(), ["where"], history=3).batch([5, 7])
    assert observed["state"][:, :, 0].tolist() == [[10, 10, 10], [10, 12, 14]]


def test_statistics_bring_actions_to_one_and_back_and_leave_constants_alone() -> None:
    actions = np.array([[0, 5, 7], [4, 5, -1]], np.float32)
    statistics = Statistics.of(np.array([[1.0], [3.0]]), actions)
    scaled = statistics.action(torch.from_numpy(actions))
    assert scaled.tolist() == [[-1, 0, 1], [1, 0, -1]]
    assert statistics.restore_action(scaled).tolist() == actions.tolist()
    assert statistics.state(torch.tensor([[1.0], [3.0]])).flatten().tolist() == [-1, 1]


def test_corners_of_the_block_agree_with_the_simulator() -> None:
    from distdiff.robot import open_suite

    simulation = open_suite("pusht").make(0)
    simulation.reset(3)
    state = simulation.observe(["state"])["state"]
    block = simulation._env.block  # type: ignore[attr-defined]
    exact = np.array(sorted(block.local_to_world(v) for shape in block.shapes for v in shape.get_vertices()))
    corners = pusht_corners(state[None])[0]
    np.testing.assert_allclose(corners[:2], state[:2])
    np.testing.assert_allclose(np.array(sorted(corners[2:].reshape(8, 2).tolist())), exact, atol=1e-3)


def test_corners_do_not_jump_at_a_full_turn() -> None:
    near = derive({"state": np.array([[0, 0, 9, 9, 1e-4], [0, 0, 9, 9, 2 * np.pi - 1e-4]])}, "pusht_corners")
    assert np.abs(near[0] - near[1]).max() < 0.05


def test_rotations_do_not_jump_at_half_a_turn_and_agree_with_scipy() -> None:
    from scipy.spatial.transform import Rotation

    turns = np.random.default_rng(0).normal(size=(20, 3))
    exact = Rotation.from_rotvec(turns).as_matrix()
    np.testing.assert_allclose(rotation_columns(turns).reshape(-1, 2, 3), exact[:, :, :2].transpose(0, 2, 1), atol=1e-6)
    down = np.array([[np.pi - 1e-4, 0, 0], [-np.pi + 1e-4, 0, 0], [0, 0, 0]])
    near = rotation_columns(down)
    assert np.abs(near[0] - near[1]).max() < 1e-3
    assert near[2].tolist() == [1, 0, 0, 0, 1, 0]


def network(**options: object) -> PolicyNetwork:
    sizes = {"chunk": 4, "state_size": 5, "history": 2, "width": 32, "depth": 3, "heads": 2}
    made = PolicyNetwork(3, **(sizes | options))  # type: ignore[arg-type]
    with torch.no_grad():  # adaptive norms start at zero, which would hide time and memory
        for part in made.parameters():
            part.add_(0.1 * torch.randn_like(part))
    return made.eval()


@pytest.mark.parametrize("branch_at", [0, 2])
def test_a_population_equals_its_draws_one_by_one(branch_at: int) -> None:
    net = network(branch_at=branch_at)
    xt, t, xi = torch.randn(2, 4, 3), torch.rand(2), torch.randn(2, 5, 4, 2)
    seen = {"state": torch.randn(2, 2, 5)}
    together = net(xt, t, xi, seen)
    alone = torch.cat([net(xt, t, xi[:, k : k + 1], seen) for k in range(5)], 1)
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together[:, 0], together[:, 1])


def test_an_encoded_observation_serves_as_the_observation_itself() -> None:
    net = network(cameras=("eye",), language_size=7, encoder_depth=1, vision="resnet10", vision_width=8)
    seen = {"state": torch.randn(2, 2, 5), "eye": torch.randn(2, 3, 64, 48), "language": torch.randn(2, 7)}
    memory = net.encode(seen)
    assert memory.shape == (2, 2 + 2 * 2 + 1, 32)
    xt, t, xi = torch.randn(2, 4, 3), torch.tensor(0.3), torch.randn(2, 1, 4, 2)
    torch.testing.assert_close(net(xt, t, xi, memory), net(xt, t, xi, seen))
    for name, value in seen.items():
        changed = seen | {name: value + 1}
        assert not torch.allclose(net(xt, t, xi, changed), net(xt, t, xi, seen)), name


def test_the_trunk_before_the_branch_runs_once_for_all_draws() -> None:
    net, shapes = network(branch_at=2), []
    for block in net.blocks:
        block.register_forward_hook(lambda _, inputs, output: shapes.append(output.shape[1]))
    net(torch.randn(2, 4, 3), torch.rand(2), torch.randn(2, 6, 4, 2), {"state": torch.randn(2, 2, 5)})
    assert shapes == [1, 1, 6]


def test_pictures_are_moved_each_on_its_own_and_no_further_than_allowed() -> None:
    ramp = torch.arange(12.0).expand(64, 3, 12, 12)
    moved = shifted(ramp, 2, torch.Generator().manual_seed(0))
    offsets = (moved[:, 0, 5, 5] - 5).tolist()
    assert set(offsets) == {-2, -1, 0, 1, 2}
    assert bool((moved[:, :, 0] == moved[:, :, -1]).all())


def demonstrations(path: Path) -> str:
    """A replay buffer in which one action in two, by chance, is the opposite of the other."""
    rng = np.random.default_rng(1)
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    state = rng.uniform(50, 450, (400, 5)).astype(np.float32)
    action = np.where(rng.random(400)[:, None] < 0.5, 100.0, 400.0) * np.ones((1, 2))
    data, meta = group.create_group("data"), group.create_group("meta")
    data.create_array("state", data=state)
    data.create_array("action", data=np.repeat(action[::8], 8, 0).astype(np.float32))
    meta.create_array("episode_ends", data=np.arange(8, 401, 8))
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> RobotRun:
    small = ROBOTS["pusht"]["smoke"]
    return replace(small, data=replace(small.data, source=demonstrations(tmp_path / "made.zarr")))


def test_a_policy_plans_the_same_after_it_was_saved_and_loaded(run: RobotRun, tmp_path: Path) -> None:
    *_, last = train(run, tmp_path / "run")
    task = build_task(run)
    policy = task.policy(last.denoiser)  # type: ignore[attr-defined]
    loaded = Policy.load(tmp_path / "run", "cpu")
    seen = {"state": np.random.default_rng(0).uniform(0, 500, (3, 2, 5))}
    first, second = (one.plan(seen, steps=2, seeds=[4, 5, 6]) for one in (policy, loaded))
    np.testing.assert_array_equal(first, second)
    alone = loaded.plan({"state": seen["state"][1:2]}, steps=2, seeds=[5])
    np.testing.assert_allclose(alone[0], first[1], rtol=1e-4)
    assert loaded.spec == policy.spec


def test_a_policy_remembers_its_anchor(run: RobotRun, tmp_path: Path) -> None:
    """The classical loss of plans made of no noise: the saved policy then knows that it has a mean."""
    list(train(replace(run, loss=replace(run.loss, anchor=1.0)), tmp_path / "anchored"))
    list(train(run, tmp_path / "plain"))
    anchored, plain = (Policy.load(tmp_path / name, "cpu") for name in ("anchored", "plain"))
    assert (anchored.spec.anchored, anchored.denoiser.has_mean) == (True, True)
    assert (plain.spec.anchored, plain.denoiser.has_mean) == (False, False)
    seen = {"state": np.full((2, 2, 5), 250.0)}
    first, again = (anchored.plan(seen, steps=3, sampler="hybrid", seeds=[1, 2]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).all()


def test_a_resumed_robot_run_ends_with_the_weights_of_an_uninterrupted_one(run: RobotRun, tmp_path: Path) -> None:
    list(train(run, tmp_path / "whole"))
    for progress in train(run, tmp_path / "torn"):
        if progress.step == 2:
            break
    list(train(run, tmp_path / "torn", resume=True))
    whole, torn = (RunFolder(tmp_path / name).policy / "policy.safetensors" for name in ("whole", "torn"))
    assert whole.read_bytes() == torn.read_bytes()


def test_rollouts_on_the_way_pick_the_best_checkpoint(run: RobotRun, tmp_path: Path) -> None:
    looking = replace(run, rollout=replace(run.rollout, every=2, suite="pusht", episodes=1, steps=1))
    list(train(looking, tmp_path / "run"))
    folder = RunFolder(tmp_path / "run")
    scores = {line["step"]: line["score"] for line in folder.logged() if "score" in line}
    assert set(scores) == {2, 4}
    assert folder.best_step() == min(scores, key=lambda step: scores[step])
    with pytest.raises(ValueError, match="suite must be one of"):
        build_task(replace(run, rollout=replace(run.rollout, every=2, suite="nowhere")))


@pytest.mark.slow
def test_one_step_draws_both_modes_where_a_classical_policy_plans_their_mean(run: RobotRun, tmp_path: Path) -> None:
    shares = {}
    for name in ("pusht", "pusht-diffusion"):
        twin = ROBOTS[name]["smoke"]
        longer = replace(
            run,
            network=replace(twin.network, width=32),
            loss=replace(twin.loss, kernel="energy", beta=1.0, m=8) if name == "pusht" else twin.loss,
            steps=300,
            batch_size=64,
            optim=replace(twin.optim, lr=3e-3, ema=0.9),
        )
        list(train(longer, tmp_path / name))
        policy = Policy.load(tmp_path / name, "cpu")
        seen = {"state": np.random.default_rng(0).uniform(50, 450, (64, 2, 5))}
        plans = policy.plan(seen, steps=1, seeds=list(range(64))).mean((1, 2))
        shares[name] = float((np.abs(plans - 250) > 100).mean())
    assert shares["pusht"] > 0.8
    assert shares["pusht-diffusion"] < 0.2


def test_missing_and_misshapen_observations_are_sentences(run: RobotRun, tmp_path: Path) -> None:
    list(train(run, tmp_path / "run"))
    policy = Policy.load(tmp_path / "run", "cpu")
    with pytest.raises(ValueError, match="observations must be with state"):
        policy.plan({"img": np.zeros((1, 96, 96, 3), np.uint8)}, seeds=[0])
    with pytest.raises(ValueError, match=r"of shape \(n, 2, size\)"):
        policy.plan({"state": np.zeros((1, 5))}, seeds=[0])
    with pytest.raises(ValueError, match="5 for pusht_corners"):
        policy.plan({"state": np.zeros((1, 2, 4))}, seeds=[0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cameras": ("front",)}, "front"),
        ({"states": ("keypoints",)}, "keypoints"),
        ({"execute": 9}, "data.execute must be in"),
        ({"hold": (2,)}, "hold must be numbers of the 2 actions"),
        ({"source": "nowhere"}, "nowhere"),
        ({"source": ""}, "where demonstrations lie"),
    ],
)
def test_bad_data_settings_are_sentences(run: RobotRun, change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_task(replace(run, data=replace(run.data, **change)))  # type: ignore[arg-type]


def test_a_task_without_words_is_refused_by_a_policy_that_takes_language(run: RobotRun) -> None:
    with pytest.raises(ValueError, match=r"network.language must be none for .* without words"):
        build_task(replace(run, network=replace(run.network, language="minilm")))


def test_other_losses_than_those_of_policies_are_refused(run: RobotRun) -> None:
    with pytest.raises(ValueError, match=r"loss\.kind must be one of"):
        build_task(
            replace(run, network=replace(run.network, noise_dim=0), loss=replace(run.loss, kind="ot-flow", warmup=0))
        )


def test_instructions_that_mean_the_same_lie_nearer_than_others() -> None:
    from distdiff.nn.language import embed_sentences

    a, b, c = embed_sentences(["put the bowl on the plate", "place the bowl onto the plate", "turn on the stove"])
    assert a.norm() == pytest.approx(1, abs=1e-5)
    assert a @ b > 0.8 > a @ c


def test_an_unknown_language_model_is_a_sentence(tmp_path: Path) -> None:
    from distdiff.nn.language import embed_sentences

    with pytest.raises(ValueError, match="language must be minilm, or the folder or hub name of a BERT"):
        embed_sentences(["go"], str(tmp_path))


def test_gradients_of_the_population_reach_the_encoder() -> None:
    from distdiff import Denoiser

    net = network()
    denoiser = Denoiser(net, noise_shape=(4, 2))
    loss = ConditionalLoss(kernel=Energy(beta=1.0), m=4)
    loss(denoiser, torch.randn(8, 4, 3), {"state": torch.randn(8, 2, 5)}).mean().backward()
    assert all(part.grad is not None and bool(part.grad.abs().sum() > 0) for part in net.state.parameters())  # type: ignore[union-attr]
