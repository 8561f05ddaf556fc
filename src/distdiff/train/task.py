"""What a run trains: the parts of a run that hang on its kind, behind one interface that the loop sees.

A task holds the data and the modules. Its phases are the losses minimised in each step, one after the other; a denoiser
has one, a distilled denoiser and an autoencoder with a discriminator two. The loop asks for batches by row, and now and
then has the task look at its averaged model (`observe`) and write it where users find it (`export`).
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._check import require, require_choice, require_count, require_seed
from ..baseline.distill import MomentMatching
from ..data.toy import TOYS
from ..denoiser import Denoiser
from ..loss import ConditionalLoss, Loss
from ..nn import MLP
from ..random import stream
from ..recipe.config import MLPConfig, PointData, PointsRun, RunConfig
from ..schedule import named_schedule
from .build import build_loss, check_fit, check_run, pick_device
from .folder import RunFolder, from_dict, load_weights

__all__ = [
    "DenoiserObjective",
    "Phase",
    "PointsTask",
    "Task",
    "build_data",
    "build_denoiser",
    "denoiser_modules",
    "denoiser_phases",
    "load_denoiser",
    "seeded",
]


class Phase(NamedTuple):
    name: str
    objective: nn.Module
    """Called with (data, cond, generator, step); returns one loss a row. Its gradients are shared by all processes."""
    parameters: list[nn.Parameter]
    """What this phase trains."""


class Task(ABC):
    """The data and modules of a run.

    `model` is averaged; `modules` is all that checkpoints hold: what is trained, `model` among it, a teacher, and
    the features of a loss.
    """

    config: RunConfig
    length: int
    """Rows of data."""
    model: nn.Module
    modules: dict[str, nn.Module]
    seconds: float = 0.0
    """Spent on learning before the first step."""

    @abstractmethod
    def phases(self) -> list[Phase]: ...

    @abstractmethod
    def load(self, rows: list[int]) -> Any:
        """The data of some rows, not yet on the device."""

    def batches(self, rows: Iterable[list[int]]) -> Iterator[Any]:
        """What `load` gives for each list of rows, read ahead where that helps."""
        return (self.load(some) for some in rows)

    @abstractmethod
    def prepare(self, batch: Any, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Any]:
        """A batch as the objectives take it: data and conditioning, on the device."""

    @abstractmethod
    def export(self, folder: RunFolder, model: nn.Module) -> None:
        """Write the averaged model where users load it from."""

    def describe(self) -> str:
        """One line on the data, for the start of a run."""
        return f"{self.length:,} rows"

    def learn(self) -> None:  # noqa: B027  most tasks learn nothing else
        """What has to be learned before the first step of a new run; checkpoints hold it."""

    def begin(self, folder: RunFolder) -> None:  # noqa: B027  nothing to do unless a task has something to show
        """Called once when a run folder is new."""

    def observe(self, step: int, model: nn.Module, folder: RunFolder) -> dict[str, float]:
        """Look at the averaged model after a step; what was measured. `score`, if there, picks the best checkpoint."""
        return {}


class DenoiserObjective(nn.Module):
    """A denoiser and its loss as one module, so that its forward pass is what processes share gradients of."""

    def __init__(self, denoiser: Denoiser, loss: Loss, warmup: int = 0) -> None:
        super().__init__()
        self.denoiser, self.loss, self.warmup = denoiser, loss, warmup
        self.first = loss.start if isinstance(loss, ConditionalLoss) else loss

    def forward(self, x0: Tensor, cond: Any, generator: torch.Generator, step: int) -> Tensor:
        return (self.first if step < self.warmup else self.loss)(self.denoiser, x0, cond, generator)


class DistillationObjective(nn.Module):
    """One of the losses of a distillation; the networks it does not train are held without being part of the module."""

    def __init__(self, trained: str, loss: Callable[..., Tensor], networks: dict[str, nn.Module]) -> None:
        super().__init__()
        self.trained, self.loss, self.networks = networks[trained], loss, networks

    def forward(self, x0: Tensor, cond: Any, generator: torch.Generator, step: int) -> Tensor:
        networks = self.networks
        return self.loss(networks["teacher"], networks["model"], networks["auxiliary"], x0, cond, generator)


def denoiser_modules(model: Denoiser, loss: Loss | MomentMatching) -> dict[str, nn.Module]:
    """The modules of a run that trains a denoiser; in a distillation all three networks start as the teacher.

    There they are without dropout: what is distilled, and measured by the auxiliary, is the model that will sample.
    """
    if isinstance(loss, Loss):
        return {"model": model}
    require(model.noise_shape is None, "init", f"with noise {model.noise_shape}", "a classical model without noise")
    model.eval()
    return {"model": model, "auxiliary": copy.deepcopy(model), "teacher": copy.deepcopy(model).requires_grad_(False)}


def denoiser_phases(modules: dict[str, nn.Module], loss: Loss | MomentMatching, warmup: int) -> list[Phase]:
    """What a run that trains a denoiser minimises in each step; in the first `warmup` ones with a single draw."""
    if isinstance(loss, Loss):
        model = modules["model"]
        assert isinstance(model, Denoiser)
        return [Phase("loss", DenoiserObjective(model, loss, warmup), list(model.parameters()))]
    phases = (("auxiliary", loss.auxiliary, "auxiliary"), ("student", loss.student, "model"))
    return [
        Phase(name, DistillationObjective(trained, values, modules), list(modules[trained].parameters()))
        for name, values, trained in phases
    ]


class seeded:
    """Within it torch's global generator follows a seed; afterwards it is as before."""

    def __init__(self, seed: int, purpose: str) -> None:
        self.seed, self.fork = stream(seed, purpose), torch.random.fork_rng(devices=[])

    def __enter__(self) -> None:
        self.fork.__enter__()
        torch.manual_seed(self.seed)

    def __exit__(self, *error: Any) -> None:
        self.fork.__exit__(*error)


class PointsTask(Task):
    """Points in the plane, all in memory."""

    def __init__(self, config: PointsRun) -> None:
        check_run(config)
        require_seed(config.data.seed)
        require_choice("data.name", config.data.name, TOYS)
        require_count("data.points", config.data.points, least=2)
        build_loss(config.loss, torch.eye(2))
        with seeded(config.seed, "weights"):
            self.network, self.model = start_denoiser(config)
        check_fit(config)
        self.config: PointsRun = config
        self.data = build_data(config.data)
        self.length = len(self.data)
        self.loss = build_loss(config.loss, self.data[: 100 * 512])
        self.modules = denoiser_modules(self.model, self.loss)

    def phases(self) -> list[Phase]:
        return denoiser_phases(self.modules, self.loss, self.config.loss.warmup)

    def load(self, rows: list[int]) -> Tensor:
        return self.data[rows]

    def prepare(self, batch: Tensor, device: torch.device, generator: torch.Generator) -> tuple[Tensor, None]:
        return batch.to(device), None

    def export(self, folder: RunFolder, model: nn.Module) -> None:
        folder.save(folder.weights, model.state_dict(), {"network": json.dumps(asdict(self.network))})


def build_data(data: PointData) -> Tensor:
    """The training points, (points, 2)."""
    return TOYS[data.name].sample(data.points, torch.Generator().manual_seed(stream(data.seed, "data")))


def build_denoiser(config: MLPConfig) -> Denoiser:
    network = MLP(
        2,
        noise_dim=config.noise_dim,
        width=config.width,
        depth=config.depth,
        time_width=config.time_width,
        spans=config.spans,
    )
    return Denoiser(
        network,
        schedule=named_schedule(config.schedule),
        prediction=config.prediction,
        noise_shape=(config.noise_dim,) if config.noise_dim else None,
        safety=config.safety,
    )


def start_denoiser(config: PointsRun) -> tuple[MLPConfig, Denoiser]:
    """The network of a new run and its settings: the run's own, or with --init the teacher's, widened by noise.

    Noise that the teacher does not have enters through weights that are zero at first, so that training begins with the
    teacher's function.
    """
    if config.init is None:
        return config.network, build_denoiser(config.network)
    require(RunFolder(config.init).config.is_file(), "init", config.init, "a run folder with a config.json")
    teacher, taught = load_denoiser(config.init, "cpu")
    wanted, given = config.network.noise_dim, taught.network.noise_dim
    require(given in (0, wanted), "network.noise_dim", wanted, f"{given}, as the run of --init has")
    settings = replace(taught.network, noise_dim=wanted)
    denoiser, state = build_denoiser(settings), teacher.state_dict()
    if wanted and not given:
        state["network.noise.weight"] = torch.zeros_like(denoiser.state_dict()["network.noise.weight"])
        for key in ("network.output.weight", "network.output.bias"):  # the first half of the output is dropped
            state[key] = torch.cat([torch.zeros_like(state[key]), state[key]])
    denoiser.load_state_dict(state)
    return settings, denoiser


def load_denoiser(path: str | Path, device: str = "auto") -> tuple[Denoiser, PointsRun]:
    """The trained model of a points run, ready to draw, and its configuration with the network as it was trained."""
    folder = RunFolder(path)
    config = folder.read_config()
    require(isinstance(config, PointsRun), "run", str(path), "a points run")
    assert isinstance(config, PointsRun)
    tensors, metadata = folder.load(folder.weights)
    if config.init is not None and "network" in metadata:  # the network is that of the run it started from
        settings = from_dict(MLPConfig, json.loads(metadata["network"]), f"network of {folder.weights}")
        config = replace(config, network=settings)
    denoiser = build_denoiser(config.network)
    load_weights(denoiser, tensors, folder.weights)
    denoiser.anchored = config.loss.anchor > 0
    return denoiser.to(pick_device(device)).eval().requires_grad_(False), config


def rows_in_order(length: int, seed: int, start: int, batch: int, offset: int, stride: int) -> Iterator[list[int]]:
    """Rows of batches without end. Positions run through one permutation of the data after another.

    Batch k of this process covers the positions start + offset + k * stride and the `batch` that follow.
    """
    orders: dict[int, Sequence[int]] = {}

    def order(epoch: int) -> Sequence[int]:
        if epoch not in orders:
            if len(orders) > 1:
                orders.pop(min(orders))
            generator = torch.Generator().manual_seed(stream(seed, f"order of epoch {epoch}"))
            orders[epoch] = torch.randperm(length, generator=generator).tolist()
        return orders[epoch]

    first = start + offset
    while True:
        yield [order(position // length)[position % length] for position in range(first, first + batch)]
        first += stride
