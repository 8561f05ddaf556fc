"""`distdiff.nn.UNet` as a diffusers model: its settings in config.json, its weights as safetensors."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.unets.unet_2d import UNet2DOutput
from torch import Tensor

from .._check import require
from ..nn.unet import UNet
from ..random import randn

__all__ = ["DistributionalUNet"]


class DistributionalUNet(ModelMixin, ConfigMixin):
    """The network of a distributional (or, with `noise_channels` 0, a classical) diffusion model on images."""

    @register_to_config
    def __init__(
        self,
        sample_size: int = 32,
        channels: int = 3,
        width: int = 256,
        multipliers: tuple[int, ...] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: tuple[int, ...] = (1,),
        heads: int = 8,
        dropout: float = 0.0,
        classes: int = 0,
        attributes: int = 0,
        noise_channels: int = 0,
        branch_at: int = 0,
        noise_levels: int = 0,
        patch: int = 1,
        refine: int = 0,
        spans: bool = False,
    ) -> None:
        super().__init__()
        self.network = UNet(
            channels,
            width=width,
            multipliers=multipliers,
            blocks=blocks,
            attention=attention,
            heads=heads,
            dropout=dropout,
            classes=classes,
            attributes=attributes,
            noise_channels=noise_channels,
            branch_at=branch_at,
            noise_levels=noise_levels,
            patch=patch,
            refine=refine,
            spans=spans,
        )

    def forward(
        self,
        sample: Tensor,
        timestep: float | Tensor,
        noise: Tensor | None = None,
        class_labels: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
        span: float | Tensor | None = None,
    ) -> UNet2DOutput | tuple[Tensor]:
        """One draw a sample (n, c, h, w) at times in [0, 1]. Noise (n, c, h, w) is drawn where it is not given.

        A network with spans predicts the average over [timestep - span, timestep].
        """
        channels = self.network.noise_channels
        if channels and noise is None:
            noise = randn((len(sample), channels, *sample.shape[2:]), generator=generator, like=sample)
        require(bool(channels) or noise is None, "noise", "given", "None for a classical network")
        wide = torch.promote_types(sample.dtype, torch.float32)
        time, span = (
            None if value is None else torch.as_tensor(value, device=sample.device, dtype=wide)
            for value in (timestep, span)
        )
        output = self.network(sample, time, None if noise is None else noise[:, None], class_labels, span)[:, 0]
        return UNet2DOutput(sample=output) if return_dict else (output,)


def settings_of(config: Any, *, size: int, channels: int, classes: int, attributes: int) -> dict[str, Any]:
    """The arguments of a `DistributionalUNet` for the network section of a run's configuration."""
    shared = ("width", "multipliers", "blocks", "attention", "heads", "dropout", "patch", "refine", "spans")
    return {name: getattr(config, name) for name in (*shared, "branch_at", "noise_levels")} | {
        "sample_size": size,
        "channels": channels,
        "classes": classes,
        "attributes": attributes,
        "noise_channels": channels if config.noise else 0,
    }
