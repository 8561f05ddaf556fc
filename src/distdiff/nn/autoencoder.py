r"""First stage of the latent experiment: images to latents a quarter their size, after LDM-4 (Rombach et al., 2022).

The networks are diffusers' `AutoencoderKL` and `VQModel`; this module builds them with LDM-4's numbers, holds the loss
they are trained with and moves images to latents and back. With reconstruction :math:`\hat x` of x, patch
discriminator D, and l1 or l2 as :math:`|\cdot|_p`, the autoencoder minimises

.. math:: w_G \big(w_R |x - \hat x|_p + w_P\, \mathrm{LPIPS}(x, \hat x)\big) - w_A\, D(\hat x)
          + \begin{cases} w_K\, \mathrm{KL}(q(z | x) \,\|\, N(0, I)) \\ w_C\, (\text{codebook, commitment}) \end{cases}

and the discriminator the hinge loss :math:`\tfrac12 [\max(0, 1 - D(x)) + \max(0, 1 + D(\hat x))]`.

A diffusion model works on :math:`(z - \text{shift}) \cdot \text{scale}`, where the scale, 1 over the standard deviation
of the latents (`measure_scale`), is kept in the autoencoder's configuration.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from .._check import BadArgument, is_number, require, require_choice, require_count
from ..random import randn
from .perceptual import Perceptual

Autoencoder: TypeAlias = Any  # diffusers' AutoencoderKL or VQModel, which is imported where one is made

__all__ = [
    "AutoencoderLoss",
    "Discriminator",
    "Reconstruction",
    "build_autoencoder",
    "decode",
    "encode",
    "load_autoencoder",
    "measure_scale",
    "reconstruct",
]

_FOLDERS = ("", "vae", "vqvae", "autoencoder")
_CLASSES = ("AutoencoderKL", "VQModel")


def build_autoencoder(
    kind: Literal["kl", "vq"] = "kl",
    *,
    channels: int = 3,
    latent_channels: int = 3,
    width: int = 128,
    multipliers: Sequence[int] = (1, 2, 4),
    blocks: int = 2,
    codebook: int = 8192,
    groups: int = 32,
    attention: bool = True,
    size: int = 256,
) -> Autoencoder:
    """An untrained autoencoder that shrinks images by 2 ** (len(multipliers) - 1), with a scale of 1.

    `blocks` residual blocks a level in the encoder, one more in the decoder, `width` times a multiplier channels wide;
    `attention` in the middle of both. Group normalisation takes as many of `groups` as divide the width. The codebook
    counts only for "vq"; `size`, the images it is meant for, only for diffusers' tiling.
    """
    require_choice("kind", kind, ("kl", "vq"))
    counts = {"channels": channels, "latent_channels": latent_channels, "width": width, "blocks": blocks}
    for name, value in {**counts, "codebook": codebook, "groups": groups, "size": size}.items():
        require_count(name, value)
    require(len(multipliers) > 0, "multipliers", multipliers, "at least one whole number")
    for multiplier in multipliers:
        require_count("every one of multipliers", multiplier)
    settings: dict[str, Any] = {
        "in_channels": channels,
        "out_channels": channels,
        "down_block_types": ("DownEncoderBlock2D",) * len(multipliers),
        "up_block_types": ("UpDecoderBlock2D",) * len(multipliers),
        "block_out_channels": tuple(width * multiplier for multiplier in multipliers),
        "layers_per_block": blocks,
        "latent_channels": latent_channels,
        "norm_num_groups": math.gcd(groups, width),
        "mid_block_add_attention": attention,
        "sample_size": size,
        "scaling_factor": 1.0,
    }
    from diffusers import AutoencoderKL, VQModel

    return AutoencoderKL(**settings) if kind == "kl" else VQModel(**settings, num_vq_embeddings=codebook)


def load_autoencoder(path: str | PathLike[str]) -> Autoencoder:
    """A saved autoencoder: a folder, the vae/, vqvae/ or autoencoder/ in a pipeline's, or the same by its hub name."""
    import diffusers
    from huggingface_hub import snapshot_download

    folder, name = Path(path), str(path)
    local = folder.exists()
    allowed = "a folder with the config.json of an AutoencoderKL or a VQModel (or its vae/, vqvae/ or autoencoder/)"
    if not local:
        allowed += " or the name of such a one on the Hugging Face hub"
        require(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None, "autoencoder", name, allowed)
    try:
        if not local:
            configs = [f"{sub}/config.json".lstrip("/") for sub in _FOLDERS]
            folder = Path(snapshot_download(name, allow_patterns=configs))
        for sub in _FOLDERS:
            config = folder / sub / "config.json"
            if config.is_file() and (kind := _class_name(config)) in _CLASSES:
                source = (config.parent, None) if local else (name, sub or None)
                return getattr(diffusers, str(kind)).from_pretrained(source[0], subfolder=source[1])
    except OSError as error:  # no weights, no such name, no connection
        raise BadArgument(f"autoencoder must be {allowed}, got {name!r}: {error}") from error
    raise BadArgument(f"autoencoder must be {allowed}, got {name!r}")


def _class_name(path: Path) -> Any:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadArgument(f"{str(path)!r} must be JSON: {error}") from error
    return config.get("_class_name") if isinstance(config, dict) else None


def encode(autoencoder: Autoencoder, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Scaled latents of images (n, channels, height, width) in [-1, 1], in the images' dtype.

    KL: a draw from the posterior if a generator is given, else its mean. VQ: what the codebook would quantize.
    """
    latents = _latents(autoencoder, images, generator).to(images.dtype)
    return (latents - _shift(autoencoder)) * autoencoder.config.scaling_factor


def decode(autoencoder: Autoencoder, latents: Tensor) -> Tensor:
    """Images of scaled latents, in the latents' dtype. VQ: the latents are quantized first."""
    latents = latents / autoencoder.config.scaling_factor + _shift(autoencoder)
    raw = latents.to(autoencoder.dtype)
    if _is_vq(autoencoder):
        raw, _ = _quantize(autoencoder, raw)
        return _decode_quantized(autoencoder, raw).to(latents.dtype)
    return autoencoder.decode(raw).sample.to(latents.dtype)


@torch.no_grad()
def measure_scale(
    autoencoder: Autoencoder, batches: Iterable[Tensor], generator: torch.Generator | None = None
) -> float:
    """1 / std of the unscaled latents of batches of images, LDM's rule, over all of their values together.

    To be kept with ``autoencoder.register_to_config(scaling_factor=...)``, which `encode` and `decode` then follow.
    """
    count, total, squares = 0, 0.0, 0.0
    for images in batches:
        latents = _latents(autoencoder, images, generator).double()
        count, total = count + latents.numel(), total + float(latents.sum())
        squares += float(latents.square().sum())
    require(count > 1, "batches", f"{count} latent values", "at least two of them")
    variance = (squares - total**2 / count) / (count - 1)
    require(is_number(variance) and variance > 0, "variance of the latents", variance, "positive and finite")
    return 1 / math.sqrt(variance)


def _is_vq(autoencoder: Autoencoder) -> bool:
    return hasattr(autoencoder, "quantize")


def _shift(autoencoder: Autoencoder) -> float:
    return autoencoder.config.get("shift_factor") or 0.0


def _latents(autoencoder: Autoencoder, images: Tensor, generator: torch.Generator | None) -> Tensor:
    encoded = _encoded(autoencoder, images)
    if _is_vq(autoencoder):
        return encoded.latents
    return encoded.latent_dist.mean if generator is None else _posterior_draw(encoded.latent_dist, generator)


def _encoded(autoencoder: Autoencoder, images: Tensor) -> Any:
    """What diffusers makes of images, after a check of their shape: it would crop silently."""
    config = autoencoder.config
    factor = 2 ** (len(config.block_out_channels) - 1)
    fits = images.ndim == 4 and images.shape[1] == config.in_channels and not any(v % factor for v in images.shape[2:])
    allowed = f"(n, {config.in_channels}, height, width) with multiples of {factor}"
    require(fits, "shape of the images", tuple(images.shape), allowed)
    return autoencoder.encode(images.to(autoencoder.dtype))


def _posterior_draw(posterior: Any, generator: torch.Generator | None) -> Tensor:
    return posterior.mean + posterior.std * randn(posterior.mean.shape, generator=generator, like=posterior.mean)


def _quantize(autoencoder: Autoencoder, latents: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest codes, with gradients straight through, and the codebook loss; in float32 or better.

    `torch.cdist`, which finds the nearest code, does not know the narrow types everywhere.
    """
    wide = torch.promote_types(latents.dtype, torch.float32)
    codes = {"embedding.weight": autoencoder.quantize.embedding.weight.to(wide)}
    with torch.autocast(latents.device.type, enabled=False):
        quantized, loss, _ = functional_call(autoencoder.quantize, codes, (latents.to(wide),))
    return quantized.to(latents.dtype), loss


def _decode_quantized(autoencoder: Autoencoder, quantized: Tensor) -> Tensor:
    spatial = quantized if autoencoder.config.norm_type == "spatial" else None
    return autoencoder.decoder(autoencoder.post_quant_conv(quantized), spatial)


class Reconstruction(NamedTuple):
    """Images as the autoencoder gives them back, and what it pays: nats an image (KL) or the codebook loss (VQ)."""

    images: Tensor
    kl: Tensor | None = None
    codebook: Tensor | None = None


def reconstruct(autoencoder: Autoencoder, x: Tensor, generator: torch.Generator | None = None) -> Reconstruction:
    """The training pass: through a draw from the posterior (KL) or through the codebook (VQ).

    The KL divergence is summed over the latent's values and averaged over the images. The codebook loss is that of
    diffusers' quantizer, which as LDM's weights commitment by 1 and the pull on the codes by 0.25.
    """
    encoded = _encoded(autoencoder, x)
    if _is_vq(autoencoder):
        quantized, codebook = _quantize(autoencoder, encoded.latents)
        return Reconstruction(_decode_quantized(autoencoder, quantized), codebook=codebook)
    posterior = encoded.latent_dist
    mean, logvar = _wide(posterior.mean), _wide(posterior.logvar)
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).flatten(1).sum(1).mean()
    return Reconstruction(autoencoder.decode(_posterior_draw(posterior, generator)).sample, kl=kl)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Discriminator(nn.Module):
    """Judges overlapping patches: images (n, channels, height, width) to a map of logits (n, 1, h, w).

    pix2pix's network, with its initial weights: `levels` convolutions of stride 2, then two of stride 1. The recipe's
    batch normalisation is a group normalisation here. Batches are small, real and reconstructed images come in
    separate ones, and processes see different ones: statistics over a batch would be noisy, tell the two apart by
    themselves, and differ between processes. Those of an image depend on nothing else and need no synchronisation.
    """

    def __init__(self, channels: int = 3, *, width: int = 64, levels: int = 3, groups: int = 32) -> None:
        super().__init__()
        for name, value in {"channels": channels, "width": width, "levels": levels, "groups": groups}.items():
            require_count(name, value)
        self.channels, self.least_size = channels, 3 * 2**levels
        sizes = [width * min(2**level, 8) for level in range(levels + 1)]
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for level in range(1, levels + 1):
            stride = 2 if level < levels else 1
            layers += [
                nn.Conv2d(sizes[level - 1], sizes[level], 4, stride, 1, bias=False),
                nn.GroupNorm(math.gcd(groups, sizes[level]), sizes[level]),
                nn.LeakyReLU(0.2),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(sizes[-1], 1, 4, 1, 1))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)

    def forward(self, images: Tensor) -> Tensor:
        fits = images.ndim == 4 and images.shape[1] == self.channels and min(images.shape[2:]) >= self.least_size
        allowed = f"(n, {self.channels}, height, width) of at least {self.least_size}"
        require(fits, "shape of the images", tuple(images.shape), allowed)
        return self.layers(images)


@dataclass(frozen=True, kw_only=True)
class AutoencoderLoss:
    """What an autoencoder and its discriminator minimise; the defaults are the paper's numbers.

    The paper gives "0.1 on adversarial loss, 100 on generator loss, 100 on codebook" and a beta of 1e-6. We read the
    generator loss as the part of the autoencoder's objective that compares images, reconstruction plus perceptual, as
    opposed to the adversarial part; both are means over pixels. Codebook is the whole VQ-VAE term with its commitment
    (VQ), beta the weight of the KL divergence in nats an image (KL; LDM sets the same 1e-6 against a sum over pixels).
    The weights are fixed: LDM's adaptive one, a ratio of gradient norms, would cancel the 100.

    The paper gives no `adversarial_start`; ours is that of LDM's KL autoencoders.
    """

    reconstruction: Literal["l1", "l2"] = "l1"
    reconstruction_weight: float = 1.0
    perceptual_weight: float = 1.0
    generator_weight: float = 100.0
    adversarial_weight: float = 0.1
    codebook_weight: float = 100.0
    kl_weight: float = 1e-6
    adversarial_start: int = 50_000

    def __post_init__(self) -> None:
        require_choice("reconstruction", self.reconstruction, ("l1", "l2"))
        for part in ("reconstruction", "perceptual", "generator", "adversarial", "codebook", "kl"):
            value = getattr(self, f"{part}_weight")
            require(is_number(value) and value >= 0, f"{part}_weight", value, "a finite number of at least 0")
        require_count("adversarial_start", self.adversarial_start, least=0)

    def adversarial(self, step: int) -> bool:
        """Whether the discriminator plays at this step, counted from 0."""
        require_count("step", step, least=0)
        return self.adversarial_weight > 0 and step >= self.adversarial_start

    def generator(
        self,
        autoencoder: Autoencoder,
        discriminator: nn.Module | None,
        perceptual: Perceptual | None,
        x: Tensor,
        step: int,
        generator: torch.Generator | None = None,
        *,
        made: Reconstruction | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The autoencoder's loss on images x in [-1, 1], and its unweighted terms, detached.

        `made` is the reconstruction of x, where the caller wants it for the discriminator too. Without a discriminator
        or a perceptual distance the terms they give are left out. The discriminator's weights get no gradients.
        """
        adversarial = self.adversarial(step)
        made = reconstruct(autoencoder, x, generator) if made is None else made
        target, images = _wide(x), _wide(made.images)
        error = (images - target).abs() if self.reconstruction == "l1" else (images - target).square()
        terms = {"reconstruction": error.mean()}
        loss = self.reconstruction_weight * terms["reconstruction"]
        if perceptual is not None and self.perceptual_weight:
            terms["perceptual"] = perceptual(images, target).mean()
            loss = loss + self.perceptual_weight * terms["perceptual"]
        loss = self.generator_weight * loss
        if made.kl is not None:
            terms["kl"] = made.kl
            loss = loss + self.kl_weight * made.kl
        if made.codebook is not None:
            terms["codebook"] = made.codebook
            loss = loss + self.codebook_weight * made.codebook
        if discriminator is not None and adversarial:
            terms["adversarial"] = -_wide(_frozen_call(discriminator, images)).mean()
            loss = loss + self.adversarial_weight * terms["adversarial"]
        return loss, {name: term.detach() for name, term in terms.items()}

    def discriminator(
        self, discriminator: nn.Module, x: Tensor, reconstruction: Tensor, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The discriminator's hinge loss on images and their reconstructions, neither of which gets gradients.

        Before `adversarial_start` the loss is zero with zero gradients. A loop may skip the call then: see
        `adversarial`. Terms: the hinge loss as it is, and the mean logits of both.
        """
        playing = self.adversarial(step)
        real = _wide(discriminator(x.detach()))
        fake = _wide(discriminator(reconstruction.detach().to(x.dtype)))
        hinge = 0.5 * (functional.relu(1 - real).mean() + functional.relu(1 + fake).mean())
        terms = {"hinge": hinge, "real": real.mean(), "fake": fake.mean()}
        return hinge * float(playing), {name: term.detach() for name, term in terms.items()}


def _frozen_call(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output with gradients for x alone; past a wrapper that would wait to average the others."""
    module = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
    return functional_call(module, {name: value.detach() for name, value in module.named_parameters()}, (x,))
