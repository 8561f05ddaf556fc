from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from distdiff import (
    DistributionalPipeline,
    DistributionalScheduler,
    DistributionalUNet,
    FlowMatching,
    add_noise,
    sample,
)
from distdiff.hub import load_pipeline
from distdiff.nn.pretrained import PretrainedUNet, widen
from distdiff.recipe import RECIPES
from distdiff.train import train

SETTINGS = {"sample_size": 8, "channels": 1, "width": 8, "multipliers": (1, 2), "blocks": 1, "heads": 2}


def pipeline(labels=None, prediction="x0", **settings) -> DistributionalPipeline:
    torch.manual_seed(0)
    unet = DistributionalUNet(**SETTINGS, **{"noise_channels": 1, **settings})
    with torch.no_grad():
        for parameter in unet.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    pipe = DistributionalPipeline(unet, DistributionalScheduler("flow", prediction), labels=labels)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("prediction", ["x0", "velocity", "edm"])
@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("grid", ["uniform", "edm"])
def test_the_pipeline_is_the_librarys_sampler(prediction, churn, grid):
    pipe = pipeline(prediction=prediction, classes=3)
    labels = torch.tensor([0, 1, 2, 1])
    expected = sample(pipe.denoiser, (4, 1, 8, 8), 3, churn, grid, 7, cond=labels)
    made = pipe(4, labels, 3, churn, grid, seeded(7), output_type="latent").images
    assert torch.equal(made, expected)


def test_scheduler_steps_are_the_librarys_transition():
    scheduler = DistributionalScheduler()
    scheduler.set_timesteps(4, churn=0.0)
    assert scheduler.timesteps.tolist() == pytest.approx([0.99, 0.7425, 0.495, 0.2475])
    assert scheduler.init_noise_sigma == pytest.approx(0.99)
    x0, z = torch.randn(2, 3, 1, 4, 4)
    xt = add_noise(FlowMatching(), x0, 0.495, z)
    out = scheduler.step(x0, scheduler.timesteps[2], xt)
    torch.testing.assert_close(out.prev_sample, add_noise(FlowMatching(), x0, 0.2475, z), atol=1e-5, rtol=1e-5)
    assert torch.equal(out.pred_original_sample, x0)
    last, _ = scheduler.step(x0, scheduler.timesteps[3], xt, return_dict=False)
    torch.testing.assert_close(last, x0)
    torch.testing.assert_close(scheduler.add_noise(x0, z, torch.tensor([0.495] * 3)), xt)
    with pytest.raises(ValueError, match="timestep must be one of"):
        scheduler.step(x0, 0.6, xt)
    with pytest.raises(ValueError, match="set with set_timesteps before a step"):
        DistributionalScheduler().step(x0, 0.6, xt)


def test_a_generator_behaves_as_in_diffusers():
    pipe = pipeline()
    generator = seeded(3)
    first = pipe(2, generator=generator, output_type="np").images
    again = pipe(2, generator=generator, output_type="np").images
    assert not np.array_equal(first, again)
    assert np.array_equal(first, pipe(2, generator=seeded(3), output_type="np").images)
    listed = pipe(2, generator=[seeded(3), seeded(9)], output_type="np").images
    np.testing.assert_allclose(listed[0], first[0], atol=1e-6)
    assert not np.allclose(listed[1], first[1], atol=1e-3)
    torch.manual_seed(0)
    assert not np.array_equal(pipe(2, output_type="np").images, pipe(2, output_type="np").images)


def test_outputs():
    pipe = pipeline()
    picture = pipe(1, generator=seeded(0)).images[0]
    assert isinstance(picture, Image.Image)
    assert picture.size == (8, 8)
    array = pipe(1, generator=seeded(0), output_type="np").images
    assert array.shape == (1, 8, 8, 1)
    np.testing.assert_allclose(np.asarray(picture), array[0, ..., 0] * 255, atol=0.5001)
    assert pipe(3, generator=seeded(0), output_type="pt", return_dict=False)[0].shape == (3, 1, 8, 8)
    with pytest.raises(ValueError, match="output_type must be one of"):
        pipe(1, output_type="jpeg")


def test_labels_by_name_number_and_default():
    pipe = pipeline(labels=["cat", "dog", "owl"], classes=3)
    assert pipe.condition("dog", 2).tolist() == [1, 1]
    assert pipe.condition(2, 1).tolist() == [2]
    assert pipe.condition(["owl", 0], 2).tolist() == [2, 0]
    assert pipe.condition(None, 5).tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(ValueError, match="label must be one of cat, dog, owl, got 'cow'"):
        pipe.condition("cow", 1)
    with pytest.raises(ValueError, match="a number from 0 to 2"):
        pipe.condition(3, 1)
    with pytest.raises(ValueError, match="class_labels must be one, or 3 of them"):
        pipe.condition([0, 1], 3)
    with pytest.raises(ValueError, match="left out for an unconditional model"):
        pipeline().condition("cat", 1)


def test_attributes_by_name():
    pipe = pipeline(labels=["Bald", "Smiling"], attributes=2)
    assert pipe.condition("Smiling", 2).tolist() == [[0, 1], [0, 1]]
    assert pipe.condition(torch.tensor([[1.0, 0.0]]), 1).tolist() == [[1, 0]]
    with pytest.raises(ValueError, match="attributes among Bald, Smiling"):
        pipe.condition("Tall", 1)


def test_saving_writes_safetensors_and_loading_gives_the_same_pictures(tmp_path):
    pipe = pipeline(labels=["a", "b"], classes=2, branch_at=2)
    pipe.save_pretrained(tmp_path / "pipe")
    files = {str(p.relative_to(tmp_path / "pipe")) for p in (tmp_path / "pipe").rglob("*") if p.is_file()}
    assert files == {
        "model_index.json",
        "scheduler/scheduler_config.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
    }
    again = DistributionalPipeline.from_pretrained(tmp_path / "pipe")
    again.set_progress_bar_config(disable=True)
    assert again.config.labels == ["a", "b"]
    expected = pipe(3, "b", generator=seeded(1), output_type="pt").images
    made = again(3, "b", generator=seeded(1), output_type="pt").images
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_fresh_process_loads_a_run_and_draws_what_the_command_line_draws(tmp_path):
    config = replace(RECIPES["digits"]["smoke"], steps=2)
    for _ in train(config, tmp_path / "run"):
        pass
    words = ["sample", "run", "--steps", "3", "--n", "6", "--seed", "5", "--label", "7", "--out", "cli"]
    subprocess.run([sys.executable, "-m", "distdiff", *words], cwd=tmp_path, check=True, capture_output=True)
    code = """
import torch
from distdiff import DistributionalPipeline
pipe = DistributionalPipeline.from_pretrained("run/pipeline")
images = pipe(batch_size=6, class_labels="7", num_inference_steps=3, generator=torch.Generator().manual_seed(5)).images
for index, image in enumerate(images):
    image.save(f"plain-{index}.png")
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    for index in range(6):
        ours = np.asarray(Image.open(tmp_path / "cli" / f"{index:06d}.png"))
        assert np.array_equal(ours, np.asarray(Image.open(tmp_path / f"plain-{index}.png")))
    assert len({Image.open(tmp_path / "cli" / f"{k:06d}.png").tobytes() for k in range(6)}) == 6


def test_pushing_to_the_hub_hands_over_the_folder(monkeypatch, tmp_path):
    """The real code up to the upload itself, which is recorded."""
    sent = {}

    def upload(self, folder, repo_id, **options):
        sent[repo_id] = {str(file.relative_to(folder)) for file in Path(folder).rglob("*") if file.is_file()}

    module = "diffusers.pipelines.pipeline_utils"
    monkeypatch.setattr(f"{module}.create_repo", lambda name, **options: SimpleNamespace(repo_id=name))
    monkeypatch.setattr(f"{module}.load_or_create_model_card", lambda *args, **options: None)
    card = SimpleNamespace(save=lambda path: Path(path).write_text("# a model\n"))
    monkeypatch.setattr(f"{module}.populate_model_card", lambda *args, **options: card)
    monkeypatch.setattr(DistributionalPipeline, "_upload_folder", upload)
    pipeline().save_pretrained(str(tmp_path / "pipe"), push_to_hub=True, repo_id="someone/model")
    assert {"unet/diffusion_pytorch_model.safetensors", "model_index.json", "README.md"} <= sent["someone/model"]


def test_a_repository_of_the_hub_is_fetched_and_loaded(monkeypatch, tmp_path):
    pipeline(labels=["a", "b"], classes=2).save_pretrained(tmp_path / "pipe")
    asked = {}

    def snapshot(name, **options):
        asked[name] = options
        return str(tmp_path / "pipe")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    pipe = load_pipeline("someone/model", "cpu")
    assert pipe.config.labels == ["a", "b"]
    assert list(asked) == ["someone/model"]


def test_the_pipeline_calls_its_network_so_that_hooks_and_compilers_see_it():
    pipe = pipeline()
    calls = []
    pipe.unet.register_forward_hook(lambda *args: calls.append(1))
    pipe(2, num_inference_steps=3, output_type="np")
    assert len(calls) == 3


def test_a_callback_may_replace_the_latents():
    pipe = pipeline()

    def blank(_, index, time, tensors):
        assert set(tensors) == {"latents"}
        return {"latents": torch.zeros_like(tensors["latents"])} if index == 2 else None

    made = pipe(1, num_inference_steps=3, output_type="latent", callback_on_step_end=blank).images
    assert torch.equal(made, torch.zeros(1, 1, 8, 8))


def test_a_pipeline_of_another_kind_is_refused(tmp_path):
    from diffusers import DDPMPipeline, DDPMScheduler

    DDPMPipeline(foreign(), DDPMScheduler()).save_pretrained(tmp_path / "ddpm")
    with pytest.raises(
        ValueError, match="run must be a distdiff pipeline; other diffusion models start a run with --init"
    ):
        load_pipeline(tmp_path / "ddpm", "cpu")


def test_a_pretrained_network_learns_the_size_of_the_pictures(tmp_path):
    from distdiff.train import build_task

    foreign(sample_size=None).save_pretrained(tmp_path / "unet")
    smoke = RECIPES["image"]["smoke"]
    data = replace(smoke.data, label_column="none", limit=16, size=16)
    task = build_task(replace(smoke, init=str(tmp_path / "unet"), data=data))
    assert task.built.pipeline(task.model, task.images).sample_shape == (1, 16, 16)


def test_a_widened_unet_computes_what_the_pretrained_one_did():
    unet = foreign()
    wide = widen(unet, 1)
    x, xi = torch.randn(3, 1, 8, 8), torch.randn(3, 2, 1, 8, 8)
    t = torch.tensor([0.1, 0.5, 0.9])
    before = PretrainedUNet(unet)(x, t)
    after = PretrainedUNet(wide)(x, t, xi)
    for j in range(2):
        torch.testing.assert_close(after[:, j], before[:, 0], atol=1e-5, rtol=1e-4)


def foreign(**settings):
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(
        **{
            "sample_size": 8,
            "in_channels": 1,
            "out_channels": 1,
            "block_out_channels": (8, 16),
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            **settings,
        }
    )


@pytest.mark.slow
def test_training_starts_from_a_diffusers_checkpoint_and_ends_in_a_pipeline(tmp_path):
    from diffusers import DDPMPipeline, DDPMScheduler

    unet = foreign()
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(tmp_path / "ddpm")
    smoke = RECIPES["image"]["smoke"]
    config = replace(
        smoke, steps=2, init=str(tmp_path / "ddpm"), data=replace(smoke.data, label_column="none", limit=64)
    )
    from distdiff.train import build_task

    task = build_task(config)
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([0.3, 0.7])
    drawn = task.model.draw(x, t, 2)
    alpha_bar = DDPMScheduler().alphas_cumprod[[299, 699]][:, None, None, None]
    noise = unet(x, torch.tensor([299, 699])).sample
    expected = (x - (1 - alpha_bar).sqrt() * noise) / alpha_bar.sqrt()
    torch.testing.assert_close(drawn[:, 0], expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(drawn[:, 1], expected, atol=1e-3, rtol=1e-3)
    for _ in train(config, tmp_path / "run"):
        pass
    pipe = load_pipeline(tmp_path / "run", "cpu")
    assert pipe.unet.config.in_channels == 2
    assert pipe(2, num_inference_steps=2, output_type="np").images.shape == (2, 8, 8, 1)


@pytest.mark.parametrize(("branch_at", "noise_levels", "refine"), [(0, 0, 0), (2, 0, 0), (2, 1, 3), (0, 0, 3)])
@pytest.mark.slow
def test_training_starts_from_a_classical_run_of_our_own(tmp_path, branch_at, noise_levels, refine):
    from distdiff.train import build_task

    classical = replace(RECIPES["digits-diffusion"]["smoke"], steps=2)
    classical = replace(classical, network=replace(classical.network, refine=refine))
    for _ in train(classical, tmp_path / "teacher"):
        pass
    teacher = load_pipeline(tmp_path / "teacher", "cpu").denoiser
    smoke = RECIPES["digits"]["smoke"]
    network = replace(smoke.network, branch_at=branch_at, noise_levels=noise_levels)
    config = replace(smoke, init=str(tmp_path / "teacher"), network=network)
    student = build_task(config).model.eval()
    x, t, label = torch.randn(3, 1, 8, 8), torch.tensor([0.2, 0.5, 0.9]), torch.tensor([1, 2, 3])
    expected = teacher.draw(x, t, 2, label)
    torch.testing.assert_close(student.draw(x, t, 2, label), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.mkdir(), "run must be a run folder with a pipeline"),
        (lambda path: None, "run must be a run folder with a pipeline"),
    ],
)
def test_what_is_no_pipeline(tmp_path, make, says):
    make(tmp_path / "x")
    with pytest.raises(ValueError, match=says):
        load_pipeline(tmp_path / "x", "cpu")


def test_a_cut_off_pipeline(tmp_path):
    pipeline().save_pretrained(tmp_path / "pipe")
    weights = tmp_path / "pipe/unet/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(ValueError, match="run must be a whole pipeline folder or a hub name"):
        load_pipeline(tmp_path / "pipe", "cpu")


def test_init_from_something_else(tmp_path):
    from distdiff.train import build_task

    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    smoke = RECIPES["image"]["smoke"]
    with pytest.raises(ValueError, match="init must hold a UNet2DModel or a distdiff network, got a AutoencoderKL"):
        build_task(replace(smoke, init=str(tmp_path / "odd")))
    with pytest.raises(ValueError, match="init must be a distdiff run, a folder with a UNet2DModel"):
        build_task(replace(smoke, init=str(tmp_path / "nowhere")))
