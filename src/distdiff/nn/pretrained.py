"""Any diffusers `UNet2DModel` as the network of a denoiser.

`widen` gives its input convolution further channels for the noise xi, with zero weights: the widened network computes
what the pretrained one did, whatever xi is, and learns from there. `PretrainedUNet` calls it as a `Denoiser` calls its
networks, with time counted as it was counted in its training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._check import require

__all__ = ["PretrainedUNet", "widen"]


def widen(unet: Any, channels: int) -> Any:
    """The model with `channels` more input channels, whose weights are 0; what it computes is unchanged."""
    settings = dict(unet.config)
    settings["in_channels"] = unet.config.in_channels + channels
    wide = type(unet).from_config(settings)
    state = unet.state_dict()
    weight = state["conv_in.weight"]
    state["conv_in.weight"] = torch.cat([weight, weight.new_zeros(len(weight), channels, *weight.shape[2:])], dim=1)
    wide.load_state_dict(state)
    return wide if wide.dtype == weight.dtype else wide.to(weight.dtype)


class PretrainedUNet(nn.Module):
    """Images (n, c, h, w) to (n, m, c, h, w); c is the model's number of output channels, the rest of its input is xi.

    Args:
        scale, shift: the model's timestep is scale * t + shift for t in [0, 1].
    """

    def __init__(self, unet: Any, *, scale: float = 1000.0, shift: float = 0.0) -> None:
        super().__init__()
        self.unet, self.scale, self.shift = unet, scale, shift
        self.channels = unet.config.out_channels
        self.noise_channels = unet.config.in_channels - self.channels
        fits = self.noise_channels in (0, self.channels)
        require(fits, "unet.in_channels", unet.config.in_channels, f"{self.channels} or {2 * self.channels}")
        self.classes = unet.config.num_class_embeds or 0
        self.attributes = 0

    def forward(self, xt: Tensor, t: Tensor, xi: Tensor | None = None, cond: Any = None) -> Tensor:
        n, m = len(xt), 1 if xi is None else xi.shape[1]
        require((xi is None) == (self.noise_channels == 0), "xi", xi if xi is None else tuple(xi.shape), "as trained")
        if xi is not None:
            xt = torch.cat([xt[:, None].expand(n, m, *xt.shape[1:]), xi], dim=2).flatten(0, 1)
        time = (self.scale * t + self.shift).reshape(-1).expand(n).repeat_interleave(m)
        label = {"class_labels": cond.repeat_interleave(m)} if self.classes else {}
        return self.unet(xt, time, return_dict=False, **label)[0].unflatten(0, (n, m))
