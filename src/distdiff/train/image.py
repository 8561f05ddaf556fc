"""Image runs: pictures, in pixels or in the latents of an autoencoder, and a U-Net.

Besides training, the task shows what the model does: a grid of the data when a run starts, grids of samples on the way,
and a score on a subset by which the best checkpoint is kept, as in the paper (every 10,000 steps, 2048 pictures).
Its artefact is a diffusers folder, RUN/pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._check import BadArgument, require, require_between, require_count
from ..data.image import ImageSet, load_images, to_float, to_uint8
from ..denoiser import Denoiser
from ..picture import grid
from ..posterior import EmpiricalPosterior
from ..random import rand, stream
from ..recipe.config import ImageData, ImageRun
from ..sample import sample
from .build import POPULATION_LOSSES, build_loss, check_fit, check_run
from .features import build_features, learn_features
from .folder import RunFolder
from .loader import read_ahead
from .pretrained import build_network
from .task import Phase, Task, denoiser_modules, denoiser_phases, seeded

__all__ = ["ImageTask", "PictureTask", "held_out", "image_config", "read_images"]


def read_images(data: ImageData, split: str | None = None) -> ImageSet:
    """The pictures a configuration names, with a bar while they are read."""
    from ..progress import bar

    require_count("data.workers", data.workers, least=0)
    with bar("reading", 1, transient=True) as advance:
        return load_images(
            data.source,
            split=split or data.split,
            path=data.path,
            size=data.size,
            channels=data.channels,
            image_column=data.image_column,
            label_column=data.label_column,
            limit=data.limit if split in (None, data.split) else None,
            progress=lambda done, total: advance(to=done, total=total),
        )


def image_config(run: Path) -> ImageRun:
    """The configuration of an image run."""
    config = RunFolder(run).read_config()
    require(isinstance(config, ImageRun), "run", str(run), "an image run")
    assert isinstance(config, ImageRun)
    return config


def held_out(config: ImageRun, split: str) -> ImageSet:
    """The pictures of a split; with auto, the first there is of test, validation and the split trained on."""
    if split != "auto":
        return read_images(config.data, split)
    for name in ("test", "validation"):
        try:
            return read_images(config.data, name)
        except BadArgument as error:
            if not str(error).startswith("split"):
                raise
    return read_images(config.data)


class PictureTask(Task):
    """What all tasks on pictures share: the set, the loader, flips, and the grid of the data."""

    data: ImageData
    images: ImageSet
    channels_last: bool

    def open(self, data: ImageData, channels_last: bool) -> None:
        self.data, self.images, self.channels_last = data, read_images(data), channels_last
        self.length = len(self.images)

    def load(self, rows: list[int]) -> tuple[Tensor, Tensor | None]:
        return self.images.batch(rows)

    def batches(self, rows: Iterable[list[int]]) -> Iterator[Any]:
        if not self.data.workers:
            return super().batches(rows)
        return read_ahead(self.images, rows, self.data.workers)

    def prepare(
        self, batch: tuple[Tensor, Tensor | None], device: torch.device, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        pixels, cond = batch
        x = to_float(pixels.to(device, non_blocking=True))
        if self.data.flip:
            mirrored = rand((len(x),), generator=generator, like=x) < 0.5
            x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, None if cond is None else cond.to(device, non_blocking=True)

    def describe(self) -> str:
        return self.images.describe()

    def some(self, count: int, purpose: str, seed: int) -> tuple[Tensor, Tensor | None]:
        """Some pictures of the set, always the same ones for the same purpose."""
        generator = torch.Generator().manual_seed(stream(seed, purpose))
        return self.images.batch(torch.randperm(self.length, generator=generator)[:count].tolist())

    def begin(self, folder: RunFolder) -> None:
        grid(self.some(64, "data grid", 0)[0]).save(folder.path / "data.png")


class ImageTask(PictureTask):
    def __init__(self, config: ImageRun) -> None:
        check_run(config)
        build_loss(config.loss, torch.eye(2))
        check_fit(config)
        pixels = not config.loss.features or config.latent is None
        require(pixels, "loss.features", config.loss.features, "0 in the latents of an autoencoder")
        for name, look in (("preview", config.preview), ("evaluation", config.evaluation)):
            require_count(f"{name}.every", look.every, least=0)
            require_count(f"{name}.n", look.n, least=2)
            require_count(f"{name}.steps", look.steps)
            require_between(f"{name}.churn", look.churn, 0, 1)
        if config.evaluation.every and config.evaluation.metric == "fid":
            from ..evaluate.inception import load_inception

            self.extractor: Any = load_inception()
        self.config: ImageRun = config
        self.vae = self._load_autoencoder(config.latent)
        self.open(config.data, config.channels_last)
        self.shape = tuple(self.encode(to_float(self.images.batch([0])[0])).shape[1:])
        for side in config.loss.patches:
            require_between("loss.patches", side, 1, self.shape[-1])
        with seeded(config.seed, "weights"):
            self.built = build_network(config, self.shape, self.images)
        self.model: Denoiser = self.built.denoiser
        weights = config.loss.perceptual_weights
        self.features = build_features(self.images, config.seed, weights) if config.loss.features else None
        known = self._posterior() if config.loss.targets > 1 else None
        self.loss = build_loss(config.loss, self._for_median(), self.features, known)
        self.modules = denoiser_modules(self.model, self.loss)
        if self.features is not None:
            self.modules["features"] = self.features
        self.reference: Any = None

    @staticmethod
    def _load_autoencoder(path: str | None) -> Any:
        if path is None:
            return None
        from ..nn.autoencoder import load_autoencoder

        found = RunFolder(path).autoencoder
        return load_autoencoder(found if found.is_dir() else path).eval().requires_grad_(False)

    @torch.no_grad()
    def encode(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Pictures in [-1, 1] to what the network denoises."""
        if self.vae is None:
            return x
        from ..nn.autoencoder import encode

        self.vae.to(x.device)
        return encode(self.vae, x, generator)

    def learn(self) -> None:
        if self.features is None:
            return
        from ..evaluate.classifier import training_steps
        from ..progress import bar

        with bar("learning features", training_steps(self.images), transient=True) as advance:
            self.seconds = learn_features(
                self.features, self.images, self.config.seed, callback=lambda done: advance(to=done)
            )

    def _for_median(self) -> Tensor:
        """Data for the kernels that take their width from it, as the paper: up to 100 batches of 512."""
        if self.config.loss.kernel not in ("rbf", "exp") or self.config.loss.kind not in POPULATION_LOSSES:
            return torch.eye(2)
        pixels = self.some(100 * 512, "median", self.config.seed)[0]
        return torch.cat([self.encode(to_float(part)) for part in pixels.split(512)])

    def _posterior(self) -> EmpiricalPosterior:
        """That of the training pictures, with the mirrored ones where they are trained on."""
        pictures, cond = self.images.batch(range(self.length))
        x = to_float(pictures)
        if self.data.flip:
            x, cond = torch.cat([x, x.flip(-1)]), None if cond is None else torch.cat([cond, cond])
        return EmpiricalPosterior(x, cond, schedule=self.model.schedule)

    def phases(self) -> list[Phase]:
        return denoiser_phases(self.modules, self.loss, self.config.loss.warmup)

    def prepare(self, batch: Any, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        x, cond = super().prepare(batch, device, generator)
        return self.encode(x, generator), cond

    def export(self, folder: RunFolder, model: nn.Module) -> None:
        pipe = self.built.pipeline(model, self.images, self.vae)  # type: ignore[arg-type]
        folder.replace_folder(folder.pipeline, lambda path: pipe.save_pretrained(path, safe_serialization=True))

    def observe(self, step: int, model: nn.Module, folder: RunFolder) -> dict[str, float]:
        look, evaluation, last = self.config.preview, self.config.evaluation, step == self.config.steps
        if look.every and (step % look.every == 0 or last):
            (folder.path / "previews").mkdir(exist_ok=True)
            grid(self.draw(model, look.n, look.steps, look.churn)).save(folder.path / "previews" / f"{step:08d}.png")
        if evaluation.every and (step % evaluation.every == 0 or last):
            score = self.score(model)
            return {evaluation.metric: score, "score": score}
        return {}

    @torch.no_grad()
    def draw(self, model: Any, count: int, steps: int, churn: float) -> Tensor:
        """uint8 samples, with labels as frequent as in the data."""
        cond = self.some(count, "labels", self.config.seed)[1]
        device = next(model.parameters()).device
        cond = None if cond is None else cond.to(device)
        seeds = torch.arange(count)
        if cond is not None and len(cond) < count:
            cond = cond[seeds % len(cond)]
        made = []
        for part in seeds.split(256):
            some = None if cond is None else cond[part[0] : part[-1] + 1]
            x = sample(model, (len(part), *self.shape), steps, churn, seed=part, cond=some)
            made.append(to_uint8(self._decode(x)).cpu())
        return torch.cat(made)

    def _decode(self, x: Tensor) -> Tensor:
        if self.vae is None:
            return x
        from ..nn.autoencoder import decode

        return decode(self.vae, x)

    def score(self, model: Any) -> float:
        """The Frechet distance of samples to a subset of the training set."""
        from ..evaluate.classifier import load_classifier
        from ..evaluate.frechet import Reference

        evaluation = self.config.evaluation
        if self.reference is None:
            device = next(model.parameters()).device
            if evaluation.metric == "fd":
                self.extractor = load_classifier(self.images, device=device)
            self.extractor.to(device)
            self.reference = Reference(self.extractor, self.images, n=min(evaluation.n, self.length))
        return self.reference.score(self.draw(model, evaluation.n, evaluation.steps, evaluation.churn)).frechet
