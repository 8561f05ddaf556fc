"""`distdiff posterior`: what a model believes a noisy picture could have been.

A classical diffusion model knows the mean of p(x_0 | x_t) and nothing else. A distributional one draws from it: the
draws, their mean and the standard deviation of each pixel show what the noise has left open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._check import BadArgument, require, require_between, require_count, require_seed
from ..data.image import load_images, to_float, to_uint8
from ..figure import canvas, save
from ..hub import DistributionalPipeline, load_pipeline
from ..picture import as_image, grid
from ..random import SampleGenerator, randn
from ..schedule import add_noise
from ..train.folder import make_folder
from ..train.image import held_out, image_config

__all__ = ["show_posterior"]


def show_posterior(
    run: Path,
    image: str,
    out: Path,
    *,
    t: float = 0.6,
    draws: int = 16,
    seed: int = 0,
    label: str | None = None,
    noisy: bool = False,
    device: str = "auto",
) -> dict[str, float]:
    """Draw from p(x_0 | x_t) and write posterior.png (and .pdf), draws.png, mean.png, std.png, posterior.json."""
    require_between("t", t, 0, 1, open_low=True)
    require_count("draws", draws, least=2)
    require_seed(seed)
    pipe = load_pipeline(run, device)
    x, own_label = _picture(pipe, run, image)
    if label is None and own_label is not None:
        label = own_label
    needs = bool(pipe.classes or pipe.attributes)
    names = ", ".join(pipe.config.labels or [])
    require(label is not None or not needs, "label", label, f"given, for a picture without one: {names}")
    cond = pipe.condition(label, 1)
    make_folder(out)
    generator = SampleGenerator([seed], pipe.device)
    with torch.no_grad():
        x0 = pipe.encode(x.to(pipe.device))
        xt = x0 if noisy else add_noise(pipe.scheduler.schedule, x0, t, randn(x0.shape, generator=generator, like=x0))
        drawn = pipe.denoiser.draw(xt, t, draws, cond, generator)[0]
        pictures = pipe.decode(drawn).clamp(-1, 1).cpu()
        seen = pipe.decode(xt).cpu()
    mean, std = pictures.mean(0), pictures.std(0).mean(0)
    _figure(out, None if noisy else x[0].cpu(), seen[0], pictures, mean, std, t)
    grid(to_uint8(pictures)).save(out / "draws.png")
    as_image(to_uint8(mean)).save(out / "mean.png")
    as_image((std / std.max().clamp_min(1e-12) * 255).round().to(torch.uint8)[None]).save(out / "std.png")
    found = {"t": t, "draws": draws, "seed": seed, "mean_std": float(std.mean()), "max_std": float(std.max())}
    (out / "posterior.json").write_text(json.dumps({"run": str(run), "image": image, "label": label} | found, indent=2))
    return found


def _picture(pipe: DistributionalPipeline, run: Path, image: str) -> tuple[Tensor, str | None]:
    """A picture (1, c, h, w) in [-1, 1], and its label where it is known."""
    channels = pipe.vae.config.in_channels if pipe.vae is not None else pipe.sample_shape[0]
    factor = 2 ** (len(pipe.vae.config.block_out_channels) - 1) if pipe.vae is not None else 1
    size = pipe.sample_shape[1] * factor
    if image.isdigit():
        images = held_out(image_config(run), "auto")
        require(int(image) < len(images), "image", image, f"a file, or a number below {len(images)}")
        pixels, cond = images.batch([int(image)])
        return to_float(pixels), None if cond is None else _name(images, cond[0])
    path = Path(image)
    require(path.is_file(), "image", image, "a picture, a .npy array (c, h, w) or the number of a held-out picture")
    if path.suffix == ".npy":
        try:
            array = torch.as_tensor(np.load(path, allow_pickle=False), dtype=torch.float32)
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise BadArgument(f"image must be an array of numbers, got {str(path)!r} ({error})") from None
        fits = array.shape == (channels, size, size) and bool(array.isfinite().all())
        require(fits, "image", tuple(array.shape), f"a finite array of shape {(channels, size, size)}")
        return array[None], None
    return to_float(_decode(path, size, channels)), None


def _name(images: Any, cond: Tensor) -> str:
    if images.classes is not None:
        return images.classes[int(cond)]
    return ",".join(name for name, value in zip(images.attributes, cond.tolist(), strict=True) if value)


def _decode(path: Path, size: int, channels: int) -> Tensor:
    """One file, resized and cropped as training data is."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(path.read_bytes())
        try:
            return load_images(folder, size=size, channels=channels, label_column="none").batch([0])[0]
        except BadArgument:
            raise BadArgument(f"image must be a picture that can be decoded, got {str(path)!r}") from None


def _shown(picture: Tensor) -> Any:
    array = picture.clamp(-1, 1).add(1).div(2).permute(1, 2, 0).numpy()
    return array[..., 0] if array.shape[-1] == 1 else array


def _figure(
    out: Path, clean: Tensor | None, noisy: Tensor, pictures: Tensor, mean: Tensor, std: Tensor, t: float
) -> None:
    """Two rows: what went in and what comes out, and below it the draws."""
    panels: list[tuple[str, Any, str]] = [] if clean is None else [("picture", _shown(clean), "gray")]
    panels += [(f"with noise, t = {t:g}", _shown(noisy), "gray")]
    panels += [("mean of the draws", _shown(mean), "gray"), ("std of each pixel", std.numpy(), "magma")]
    columns = 8
    rows = -(-len(pictures) // columns)
    with canvas(1, 1, size=(9.6, 2.9 + 1.25 * rows)) as (figure, axes):
        axes.remove()
        top, bottom = figure.subfigures(2, 1, height_ratios=[2.5, 1.25 * rows])
        for panel, (title, array, colors) in zip(top.subplots(1, len(panels)), panels, strict=True):
            limits = {"vmin": 0, "vmax": 1} if colors == "gray" else {"vmin": 0}
            shown = panel.imshow(array, cmap=colors, **limits)
            panel.set_title(title)
            panel.set_axis_off()
            if colors != "gray":
                top.colorbar(shown, ax=panel, fraction=0.046, pad=0.03)
        bottom.suptitle(
            f"{len(pictures)} draws from the model's posterior: what the picture could have been", fontsize=11
        )
        for index, panel in enumerate(bottom.subplots(rows, columns, squeeze=False).flat):
            panel.set_axis_off()
            if index < len(pictures):
                panel.imshow(_shown(pictures[index]), cmap="gray", vmin=0, vmax=1)
        save(figure, out, "posterior")
