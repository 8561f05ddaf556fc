"""The network of an image run: new, or started from a trained diffusion model.

`--init` takes a distdiff run (or its pipeline), a diffusers folder with a `UNet2DModel` (a pipeline or the model
alone), or a hub name. The pretrained weights are kept and the noise enters through weights that are zero at first, so
that training begins with the pretrained denoiser: same schedule, same prediction, same way of counting time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._check import BadArgument, require
from ..data.image import ImageSet
from ..denoiser import Denoiser
from ..hub.pipeline import DistributionalPipeline
from ..hub.scheduler import DistributionalScheduler
from ..hub.unet import DistributionalUNet, settings_of
from ..nn.pretrained import widen
from ..nn.unet import UNet
from ..recipe.config import FLOWS, ImageRun
from .folder import RunFolder

__all__ = ["Built", "build_network"]

PREDICTION = {"epsilon": "noise", "sample": "x0", "v_prediction": "v"}


@dataclass
class Built:
    """A denoiser in training, and what is needed to save it."""

    denoiser: Denoiser
    unet: Any
    """The diffusers model that holds its settings."""
    scheduler: DistributionalScheduler

    def pipeline(self, model: Denoiser, images: ImageSet, vae: Any = None) -> DistributionalPipeline:
        """A pipeline with the weights of `model`, a copy of the denoiser."""
        if isinstance(self.unet, DistributionalUNet):
            unet: Any = DistributionalUNet.from_config(self.unet.config)
            unet.network.load_state_dict(model.network.state_dict())
        else:
            unet = type(self.unet).from_config(self.unet.config)
            unet.load_state_dict(model.network.unet.state_dict())  # type: ignore[union-attr]
        labels = images.classes or images.attributes
        return DistributionalPipeline(unet, self.scheduler, vae, labels=labels, examples=_attribute_examples(images))


def build_network(config: ImageRun, shape: Sequence[int], images: ImageSet) -> Built:
    """The denoiser of a run on data of a shape (c, h, w)."""
    if config.init is None:
        unet, scheduler = _new(config, shape, images), _scheduler(config)
    else:
        unet, scheduler = _pretrained(config, shape, images)
    scheduler.register_to_config(anchored=config.loss.anchor > 0)
    pipe = DistributionalPipeline(unet, scheduler)
    denoiser = pipe.denoiser.train()
    return Built(denoiser, unet, scheduler)


def _scheduler(config: ImageRun) -> DistributionalScheduler:
    network = config.network
    churn = 0.0 if config.loss.kind in FLOWS else 1.0
    return DistributionalScheduler(network.schedule, network.prediction, network.safety, churn)


def _new(config: ImageRun, shape: Sequence[int], images: ImageSet) -> DistributionalUNet:
    require(shape[-1] % config.network.patch == 0, "network.patch", config.network.patch, f"a divisor of {shape[-1]}")
    settings = settings_of(
        config.network,
        size=shape[-1],
        channels=shape[0],
        classes=len(images.classes or ()),
        attributes=len(images.attributes or ()),
    )
    return DistributionalUNet(**settings)


def _pretrained(config: ImageRun, shape: Sequence[int], images: ImageSet) -> tuple[Any, DistributionalScheduler]:
    assert config.init is not None
    path = str(_pipeline_path(Path(config.init)))
    index = _read(path, "model_index.json")
    is_ours = index is not None and index.get("_class_name") == "DistributionalPipeline"
    if is_ours:
        pipe = DistributionalPipeline.from_pretrained(path)
        unet, scheduler = pipe.unet, pipe.scheduler
    else:
        unet = _load_unet(path)
        scheduler = _convert_scheduler(config, _read(path, "scheduler/scheduler_config.json"))
    channels = unet.network.channels if isinstance(unet, DistributionalUNet) else unet.config.out_channels
    require(channels == shape[0], "data.channels", shape[0], f"{channels}, as the pretrained network has")
    classes = unet.network.classes if isinstance(unet, DistributionalUNet) else unet.config.num_class_embeds
    if classes:
        _require_labels(images, classes)
    attributes = unet.config.get("attributes", 0)
    if attributes:
        found = len(images.attributes or ())
        require(found == attributes, "attributes of the data", found, f"{attributes}, as the pretrained network has")
    unet = _with_noise(unet, config.network.branch_at, config.network.noise_levels) if config.network.noise else unet
    unet.register_to_config(sample_size=shape[-1])
    return unet, scheduler


def _with_noise(unet: Any, branch_at: int, noise_levels: int) -> Any:
    """The same function with an input for xi that has no effect yet."""
    wanted = {"branch_at": branch_at, "noise_levels": noise_levels}
    if not isinstance(unet, DistributionalUNet):
        for name, value in wanted.items():
            require(value == 0, f"network.{name}", value, "0 for a diffusers UNet2DModel")
        return (
            unet if unet.config.in_channels == 2 * unet.config.out_channels else widen(unet, unet.config.out_channels)
        )
    if unet.network.noise_channels:
        for name, value in wanted.items():
            has = getattr(unet.network, name)
            require(has == value, f"network.{name}", value, f"{has}, as the pretrained network has")
        return unet
    noisy: Any = DistributionalUNet.from_config(dict(unet.config) | {"noise_channels": unet.network.channels} | wanted)
    _copy_into(noisy.network, unet.network)
    return noisy


@torch.no_grad()
def _copy_into(noisy: UNet, plain: UNet) -> None:
    state, old = noisy.state_dict(), plain.state_dict()
    for key, value in state.items():
        if noisy.halved and key in old and value.shape != old[key].shape:  # outputs that are dropped come first
            rows = zip(value.shape, old[key].shape, strict=True)
            value.zero_()
            value[tuple(slice(new - was, None) for new, was in rows)] = old[key]
        elif key in old:
            value.copy_(old[key])
    assert noisy.noise is not None
    nn.init.zeros_(noisy.noise.weight)
    if noisy.noise_embed is not None:
        for parameter in noisy.noise_embed[-1].parameters():
            nn.init.zeros_(parameter)


def _load_unet(path: str) -> Any:
    from diffusers import UNet2DModel

    options = {"subfolder": "unet"} if _read(path, "unet/config.json") is not None else {}
    config = _read(path, "unet/config.json") or _read(path, "config.json")
    if config is not None and config.get("_class_name") not in (None, "UNet2DModel"):
        raise BadArgument(f"init must hold a UNet2DModel or a distdiff network, got a {config['_class_name']}")
    try:
        return UNet2DModel.from_pretrained(path, **options)
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadArgument(
            f"init must be a distdiff run, a folder with a UNet2DModel or a hub name, got {path!r} ({first})"
        ) from None


def _read(path: str, name: str) -> dict[str, Any] | None:
    """A JSON file of a folder, or of a hub repository; None if there is none."""
    file = Path(path) / name
    if not file.is_file() and not Path(path).exists():
        from huggingface_hub import hf_hub_download

        try:
            file = Path(hf_hub_download(path, name))
        except Exception:  # a name that is no repository, a file that is not in it, no connection: no file either way
            return None
    try:
        return json.loads(file.read_text()) if file.is_file() else None
    except json.JSONDecodeError as error:
        raise BadArgument(f"{file} must be JSON, got {error}") from None


def _convert_scheduler(config: ImageRun, old: dict[str, Any] | None) -> DistributionalScheduler:
    """The schedule that a diffusers scheduler stands for; the run's own settings where there is none."""
    if old is None:
        return _scheduler(config)
    prediction, spacing = old.get("prediction_type", "epsilon"), old.get("beta_schedule", "linear")
    known = prediction in PREDICTION and spacing == "linear" and old.get("trained_betas") is None
    betas = (old.get("beta_start", 1e-4), old.get("beta_end", 0.02), old.get("num_train_timesteps", 1000))
    require(
        known and betas == (1e-4, 0.02, 1000),
        "init's scheduler",
        f"{old.get('_class_name')} with {prediction}, {spacing} betas {betas}",
        f"one of {', '.join(PREDICTION)} with linear betas (0.0001, 0.02, 1000)",
    )
    return DistributionalScheduler(
        "linear-beta",
        PREDICTION[prediction],
        config.network.safety,
        timestep_scale=1000.0,
        timestep_shift=-1.0,
    )


def _attribute_examples(images: ImageSet, count: int = 64) -> Sequence[Sequence[int]] | None:
    """Attribute vectors of some pictures, to be saved with a pipeline."""
    if images.attributes is None:
        return None
    cond = images.batch(list(range(min(count, len(images)))))[1]
    assert cond is not None
    return cond.int().tolist()


def _pipeline_path(path: Path) -> Path:
    """The pipeline of a run folder, or the folder itself."""
    inner = RunFolder(path).pipeline
    return inner if inner.is_dir() else path


def _require_labels(images: ImageSet, classes: int) -> None:
    """A pretrained class-conditional network needs data with as many classes."""
    found = len(images.classes or ())
    require(found == classes, "classes of the data", found, f"{classes}, as the pretrained network has")
