"""A trained image model as a diffusers pipeline: `from_pretrained`, a call, pictures.

    pipe = DistributionalPipeline.from_pretrained("runs/fashion-mnist-small/pipeline")
    images = pipe(batch_size=8, num_inference_steps=4, generator=torch.Generator().manual_seed(0)).images

Sample i of a fresh generator with seed k is the picture that `distdiff sample --seed k` numbers i (it depends on seed
k + i alone; see `distdiff.random`). A generator that has been used gives new pictures at each call, as everywhere in
diffusers, and a list of generators one picture each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils import logging
from torch import Tensor

from .._check import BadArgument, is_whole, require, require_choice, require_count
from ..data.image import to_uint8
from ..denoiser import Denoiser
from ..nn.pretrained import PretrainedUNet
from ..random import SampleGenerator, randn
from .scheduler import DistributionalScheduler

__all__ = ["DistributionalPipeline", "load_pipeline"]


class DistributionalPipeline(DiffusionPipeline):
    """Images in a few steps from a distributional (or classical) diffusion model.

    Args:
        unet: a `DistributionalUNet`, or a diffusers `UNet2DModel` (with twice the channels if it takes noise).
        vae: the autoencoder of a latent model.
        labels: names of the classes, or of the attributes.
        examples: attribute vectors of some training pictures, used where a caller gives none.
    """

    model_cpu_offload_seq = "unet->vae"
    _optional_components = ["vae"]

    def __init__(
        self,
        unet: Any,
        scheduler: DistributionalScheduler,
        vae: Any = None,
        labels: Sequence[str] | None = None,
        examples: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler, vae=vae)
        self.register_to_config(labels=None if labels is None else list(labels), examples=examples)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> DistributionalPipeline:
        """Load a folder, or a repository of the hub, which is fetched as a whole first.

        diffusers' own way of fetching looks for code in the repository where a class is not one of diffusers'.
        """
        path = str(pretrained_model_name_or_path)
        if not Path(path).is_dir():
            from huggingface_hub import snapshot_download

            known = ("cache_dir", "revision", "token", "local_files_only", "force_download")
            fetch = {name: options.pop(name) for name in known if name in options}
            path = snapshot_download(path, allow_patterns=["*.json", "*.safetensors"], **fetch)
        return super().from_pretrained(path, **options)

    @property
    def ours(self) -> bool:
        """Whether the network is a `DistributionalUNet`, compiled or not."""
        return "noise_channels" in self.unet.config

    @property
    def denoiser(self) -> Denoiser:
        """The model behind the library's door: `draw`, `sample` and the losses take it."""
        config = self.scheduler.config
        inner: Any = getattr(self.unet, "_orig_mod", self.unet)  # torch.compile wraps a model
        network = inner.network if self.ours else self._adapted()
        denoiser = Denoiser(
            network,
            schedule=self.scheduler.schedule,
            prediction=config.prediction_type,
            noise_shape=self.sample_shape if network.noise_channels else None,
            safety=config.safety,
            anchored=config.anchored,
        )
        return denoiser.eval()

    def _adapted(self) -> PretrainedUNet:
        config = self.scheduler.config
        return PretrainedUNet(self.unet, scale=config.timestep_scale, shift=config.timestep_shift)

    def _predict(self, x: Tensor, t: float, s: float, cond: Tensor | None, noise: SampleGenerator) -> Tensor:
        """The network's output for the step from t to s, through its own forward pass."""
        safety, wide = self.scheduler.config.safety, torch.promote_types(x.dtype, torch.float32)
        time = torch.tensor(t, device=x.device, dtype=wide).clamp(safety, 1 - safety)
        takes_noise = self.unet.config.noise_channels if self.ours else self._adapted().noise_channels
        xi = randn((len(x), 1, *self.sample_shape), generator=noise, like=x) if takes_noise else None
        if not self.ours:
            return self._adapted()(x, time, xi, cond)[:, 0]
        xi = None if xi is None else xi[:, 0]
        span = {"span": t - s} if self.unet.config.get("spans") and self.scheduler.churn == 0 else {}
        return self.unet(x, time, noise=xi, class_labels=cond, return_dict=False, **span)[0]

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what the network denoises: pixels, or latents."""
        config = self.unet.config
        channels, size = config.get("channels", config.get("out_channels")), config.sample_size
        height, width = (size, size) if is_whole(size) else size
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of classes; 0 without."""
        return self.unet.config.get("classes", self.unet.config.get("num_class_embeds")) or 0

    @property
    def attributes(self) -> int:
        """Number of attributes; 0 without."""
        return self.unet.config.get("attributes", 0)

    def condition(self, labels: Any, count: int) -> Tensor | None:
        """The conditioning of `count` pictures, from names or numbers of classes, or from attributes.

        None gives all classes in turn; for attributes, those of training pictures. Names of attributes are separated by
        commas.
        """
        if not self.classes and not self.attributes:
            require(labels is None, "class_labels", labels, "left out for an unconditional model")
            return None
        if isinstance(labels, Tensor) and labels.ndim == (1 if self.classes else 2):
            labels = list(labels)
        if labels is None:
            found = self._default_labels(count)
        else:
            several = isinstance(labels, (list, tuple))
            rows = [self._label(one) for one in (labels if several else [labels])]
            require(len(rows) in (1, count), "class_labels", f"{len(rows)} labels", f"one, or {count} of them")
            found = torch.stack(rows * (count // len(rows)))
        return found.to(self._execution_device)

    def _default_labels(self, count: int) -> Tensor:
        if self.classes:
            return torch.arange(count) % self.classes
        examples = torch.tensor(self.config.examples or [[0] * self.attributes], dtype=torch.float32)
        return examples[torch.arange(count) % len(examples)]

    def _label(self, label: Any) -> Tensor:
        names: list[str] = self.config.labels or []
        if self.classes:
            known = list(names) or [str(k) for k in range(self.classes)]
            if isinstance(label, str):
                require(label in known or label.isdigit(), "label", label, "one of " + ", ".join(known))
                label = known.index(label) if label in known else int(label)
            label = int(label)
            require(0 <= label < self.classes, "label", label, f"a number from 0 to {self.classes - 1}")
            return torch.tensor(label)
        if isinstance(label, str):
            chosen = [name.strip() for name in label.split(",") if name.strip()]
            unknown = [name for name in chosen if name not in names]
            require(not unknown, "label", unknown, "attributes among " + ", ".join(names))
            return torch.tensor([float(name in chosen) for name in names])
        vector = torch.as_tensor(label, dtype=torch.float32)
        require(vector.shape == (self.attributes,), "label", tuple(vector.shape), f"{self.attributes} numbers")
        return vector

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int = 1,
        class_labels: Any = None,
        num_inference_steps: int = 4,
        churn: float | None = None,
        grid: str | list[float] | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[[Any, int, float, dict[str, Tensor]], dict[str, Tensor] | None] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> ImagePipelineOutput | tuple[Any]:
        """Draw pictures.

        Args:
            batch_size: how many.
            class_labels: a name or number, or one for each picture; all classes in turn by default.
            num_inference_steps: calls of the network.
            churn: 1 for the ancestral step, 0 for the deterministic one; the scheduler's by default.
            grid: spacing of the times; the scheduler's by default.
            generator: source of all noise; see above.
            output_type: pil, np (n, h, w, c in [0, 1]), pt (n, c, h, w in [0, 1]) or latent (what the network made).
            callback_on_step_end: called as callback(pipe, step, time, tensors); it may return other "latents".
            callback_on_step_end_tensor_inputs: what it is given: "latents", "pred_original_sample".
        """
        require_count("batch_size", batch_size)
        require_choice("output_type", output_type, ("pil", "np", "pt", "latent"))
        cond = self.condition(class_labels, batch_size)
        device, dtype = self._execution_device, self.unet.dtype
        self.scheduler.set_timesteps(num_inference_steps, device=device, churn=churn, grid=grid)
        noise = SampleGenerator(_seeds(generator, batch_size), device)
        like = torch.empty(0, device=device, dtype=dtype)
        x = self.scheduler.init_noise_sigma * randn((batch_size, *self.sample_shape), generator=noise, like=like)
        self.unet.eval()
        for index, t in enumerate(self.progress_bar(self.scheduler.times[:-1])):
            output = self._predict(x, t, self.scheduler.times[index + 1], cond, noise)
            x, x0 = self.scheduler.step(output, t, x, generator=noise, return_dict=False)
            if callback_on_step_end is not None:
                known = {"latents": x, "pred_original_sample": x0}
                given = {name: known[name] for name in callback_on_step_end_tensor_inputs}
                x = (callback_on_step_end(self, index, t, given) or {}).get("latents", x)
        images = x if output_type == "latent" else _output(self.decode(x), output_type)
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def decode(self, x: Tensor) -> Tensor:
        """What the network denoises to pictures in [-1, 1]: latents through the autoencoder, pixels as they are."""
        if self.vae is None:
            return x
        from ..nn.autoencoder import decode

        return decode(self.vae, x)

    def encode(self, images: Tensor) -> Tensor:
        """Pictures in [-1, 1] to what the network denoises."""
        if self.vae is None:
            return images
        from ..nn.autoencoder import encode

        return encode(self.vae, images)


def _seeds(generator: Any, count: int) -> list[int]:
    """A seed a picture. A fresh generator stands for its seed and those that follow; a used one for what it draws."""
    if isinstance(generator, (list, tuple)):
        require(len(generator) == count, "generator", f"a list of {len(generator)}", f"one, or {count} of them")
        return [_seed(one) for one in generator]
    first = _seed(generator)
    return list(range(first, first + count))


def _seed(generator: torch.Generator | None) -> int:
    if generator is not None:
        fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
        used = not torch.equal(fresh.get_state(), generator.get_state())
        drawn = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))  # moves it on
        return drawn if used else generator.initial_seed()
    return int(torch.randint(2**62, (1,)))


def _output(images: Tensor, kind: str) -> Any:
    if kind == "pt":
        return images.float().clamp(-1, 1).add(1).div(2)
    if kind == "np":
        return _output(images, "pt").permute(0, 2, 3, 1).cpu().numpy()
    from PIL import Image

    pixels = to_uint8(images).permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(np.ascontiguousarray(one[..., 0] if one.shape[-1] == 1 else one)) for one in pixels]


def load_pipeline(path: str | Path, device: str = "auto") -> DistributionalPipeline:
    """The pipeline of a run folder, of a pipeline folder, or of that name on the hub."""
    from ..train.build import pick_device

    source = Path(path)
    if (source / "pipeline" / "model_index.json").is_file():
        source = source / "pipeline"
    local = (source / "model_index.json").is_file()
    if not local and (source.exists() or str(path).count("/") != 1 or str(path).startswith((".", "/", "~"))):
        raise BadArgument(
            f"run must be a run folder with a pipeline (has it been trained?) or a hub name, got {str(path)!r}"
        )
    target = pick_device(device)
    logging.disable_progress_bar()
    try:
        pipe = DistributionalPipeline.from_pretrained(str(source) if local else str(path))
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadArgument(f"run must be a whole pipeline folder or a hub name, got {str(path)!r} ({first})") from None
    finally:
        logging.enable_progress_bar()
    fits = isinstance(pipe.scheduler, DistributionalScheduler)
    require(fits, "run", str(path), "a distdiff pipeline; other diffusion models start a run with --init")
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(target)
