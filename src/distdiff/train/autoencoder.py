"""Autoencoder runs: the first stage of a latent model.

Two phases a step: the autoencoder (reconstruction, perceptual and adversarial terms, KL or codebook), then the
discriminator. When training ends or a checkpoint is written, the scale of the latents is measured and stored in the
exported configuration, so that a second stage sees latents of unit variance.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .._check import require
from ..data.image import to_float, to_uint8
from ..nn.autoencoder import (
    AutoencoderLoss,
    Discriminator,
    build_autoencoder,
    measure_scale,
    reconstruct,
)
from ..nn.perceptual import Perceptual
from ..picture import grid
from ..recipe.config import AutoencoderRun
from .build import check_run
from .folder import RunFolder
from .image import PictureTask
from .task import Phase, seeded

__all__ = ["AutoencoderTask"]


class _Objective(nn.Module):
    """The autoencoder's loss; the other networks are held without being part of the module that is trained."""

    def __init__(self, autoencoder: nn.Module, loss: AutoencoderLoss, others: dict[str, Any]) -> None:
        super().__init__()
        self.autoencoder, self.loss, self.others = autoencoder, loss, others

    def forward(self, x: Tensor, cond: Any, generator: torch.Generator, step: int) -> Tensor:
        made = reconstruct(self.autoencoder, x, generator)
        self.others["made"] = made.images.detach()
        discriminator, perceptual = self.others["discriminator"], self.others["perceptual"]
        return self.loss.generator(self.autoencoder, discriminator, perceptual, x, step, made=made)[0]


class _DiscriminatorObjective(nn.Module):
    def __init__(self, discriminator: nn.Module, loss: AutoencoderLoss, others: dict[str, Any]) -> None:
        super().__init__()
        self.discriminator, self.loss, self.others = discriminator, loss, others

    def forward(self, x: Tensor, cond: Any, generator: torch.Generator, step: int) -> Tensor:
        return self.loss.discriminator(self.discriminator, x, self.others["made"], step)[0]


class AutoencoderTask(PictureTask):
    def __init__(self, config: AutoencoderRun) -> None:
        check_run(config)
        require(config.accumulate == 1, "accumulate", config.accumulate, "1 for an autoencoder")
        require(not config.compile, "compile", config.compile, "left out for an autoencoder")
        self.config: AutoencoderRun = config
        network, loss = config.network, config.loss
        self.loss = AutoencoderLoss(
            reconstruction=loss.reconstruction,
            perceptual_weight=loss.perceptual,
            generator_weight=loss.generator,
            adversarial_weight=loss.adversarial,
            adversarial_start=loss.adversarial_start,
            codebook_weight=loss.codebook,
            kl_weight=loss.kl,
        )
        perceptual = None if loss.perceptual_weights is None else Perceptual.load(loss.perceptual_weights)
        self.open(config.data, config.channels_last)
        factor = 2 ** (len(network.multipliers) - 1)
        fits = self.images.size % factor == 0 and self.images.size >= 24
        require(fits, "data.size", self.images.size, f"a multiple of {factor}, of at least 24")
        with seeded(config.seed, "weights"):
            self.model: Any = build_autoencoder(
                network.kind,
                channels=self.images.channels,
                latent_channels=network.latent_channels,
                width=network.width,
                multipliers=network.multipliers,
                blocks=network.blocks,
                codebook=network.codebook,
                size=self.images.size,
            )
            self.discriminator = Discriminator(self.images.channels, width=min(64, network.width))
        self.modules = {"model": self.model, "discriminator": self.discriminator}
        self.others: dict[str, Any] = {"discriminator": self.discriminator, "perceptual": perceptual, "made": None}

    def prepare(self, batch: Any, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        if self.others["perceptual"] is not None:
            self.others["perceptual"].to(device)
        return super().prepare(batch, device, generator)

    def phases(self) -> list[Phase]:
        first = _Objective(self.model, self.loss, self.others)
        second = _DiscriminatorObjective(self.discriminator, self.loss, self.others)
        return [
            Phase("generator", first, list(self.model.parameters())),
            Phase("discriminator", second, list(self.discriminator.parameters())),
        ]

    @torch.no_grad()
    def export(self, folder: RunFolder, model: nn.Module) -> None:
        pixels = self.some(256, "scale", self.config.seed)[0]
        device = next(model.parameters()).device
        saved: Any = copy.deepcopy(model)
        saved.register_to_config(scaling_factor=1.0)
        noise = torch.Generator(device).manual_seed(0)
        scale = measure_scale(saved, [to_float(part.to(device)) for part in pixels.split(16)], noise)
        saved.register_to_config(scaling_factor=scale)
        folder.replace_folder(folder.autoencoder, lambda path: saved.save_pretrained(path, safe_serialization=True))

    @torch.no_grad()
    def observe(self, step: int, model: nn.Module, folder: RunFolder) -> dict[str, float]:
        look = self.config.preview
        if not look.every or not (step % look.every == 0 or step == self.config.steps):
            return {}
        device = next(model.parameters()).device
        pixels = self.some(min(look.n, 16), "reconstructions", self.config.seed)[0].to(device)
        made = reconstruct(model, to_float(pixels), torch.Generator(device).manual_seed(0)).images
        error = float((made - to_float(pixels)).abs().mean())
        (folder.path / "previews").mkdir(exist_ok=True)
        pairs = torch.stack([pixels, to_uint8(made)], dim=1).flatten(0, 1)
        grid(pairs, columns=8).save(folder.path / "previews" / f"{step:08d}.png")
        return {"reconstruction_error": error}
