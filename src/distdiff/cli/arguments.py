"""What each command takes: typed settings with their defaults, from which tyro makes flags and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..baseline.samplers import SAMPLERS
from ..recipe import RunConfig

__all__ = [
    "CollectArgs",
    "DemoArgs",
    "EvaluateArgs",
    "PosteriorArgs",
    "ReproduceArgs",
    "RolloutArgs",
    "SampleArgs",
    "SweepArgs",
    "SweepFiguresArgs",
    "TrainArgs",
]

Scale = Literal["paper", "small", "smoke"]
SAMPLER_HELP = f"Any of {', '.join(SAMPLERS)}, with commas; distributional, hybrid and settle have churn."


@dataclass(frozen=True)
class TrainArgs:
    """Train a model into a run folder: config, metrics, weights, checkpoint."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    scale: Scale = "small"
    """Sizes and lengths: the paper's, minutes on two cores, or seconds for a test. Other settings override it."""
    out: Path | None = None
    """Run folder; runs/RECIPE-SCALE by default."""
    resume: str | None = None
    """Go on from a checkpoint of the folder: latest, best, or the number of a step."""
    overwrite: bool = False
    """Replace an earlier run in the folder."""


@dataclass(frozen=True)
class SampleArgs:
    """Draw samples from a trained run.

    Points: samples.npy, a picture and the settings. Images: PNG files, a grid and the settings.
    """

    run: tyro.conf.Positional[Path]
    """Run folder; for images also a pipeline folder or a hub name."""
    steps: int = 4
    """Denoising steps."""
    n: int | None = None
    """Samples; 4096 points or 64 pictures by default."""
    sampler: Annotated[str, tyro.conf.arg(help=f"One of {', '.join(SAMPLERS)}.")] = "distributional"
    churn: float | None = None
    """1 for the ancestral step, 0 for the deterministic one; by default 1, or 0 for hybrid."""
    grid: Literal["uniform", "logsnr", "edm"] = "uniform"
    """Spacing of the times."""
    seed: int = 0
    """Sample i uses seed + i."""
    label: str | None = None
    """Class (name or number) or attributes, separated by commas; all classes in turn by default."""
    trajectory: bool = False
    """Also write the draws on the way as an animated picture."""
    batch_size: int | None = None
    """Samples drawn at once; all points, or 64 pictures by default."""
    device: str = "auto"
    """auto, cpu, cuda, mps, ..."""
    out: Path | None = None
    """Folder for the result; RUN/samples by default."""


@dataclass(frozen=True)
class PosteriorArgs:
    """Noise a picture and show what the model believes it could have been: draws, their mean, their spread."""

    run: tyro.conf.Positional[Path]
    """Run folder of an image model."""
    image: tyro.conf.Positional[str]
    """A picture, a .npy array (c, h, w) in [-1, 1], or the number of a held-out picture of the run's data."""
    t: float = 0.6
    """How noisy: 0 is the picture, 1 pure noise."""
    draws: int = 16
    """Draws from the posterior."""
    seed: int = 0
    """Seed of the noise and of the draws."""
    label: str | None = None
    """Class or attributes of the picture, for a conditional model."""
    noisy: bool = False
    """The picture is x_t already: add no noise."""
    device: str = "auto"
    """auto, cpu, cuda, mps, ..."""
    out: Path | None = None
    """Folder for the result; RUN/posterior by default."""


@dataclass(frozen=True)
class EvaluateArgs:
    """Score a run: metrics.json, a table and a plot against the number of steps.

    Pictures are scored by FID and KID or the fast fd, points in the plane by D_rho; the floor stands beside the scores.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    steps: str = "1,2,4,8,16,50"
    """Numbers of denoising steps."""
    churn: str = "0,0.5,1"
    """Churns of the distributional sampler."""
    sampler: Annotated[str, tyro.conf.arg(help=SAMPLER_HELP)] = "distributional"
    metric: Literal["fid", "fd"] | None = None
    """Pictures: FID on the 2015 Inception features (the default), or the fast fd on those of a small classifier."""
    n: int | None = None
    """Samples a score; 2048 pictures or 4096 points by default."""
    repeats: int | None = None
    """Points: sets of n samples scored, for a mean and its standard error; 4 by default."""
    reference: int | None = None
    """Real pictures compared with; all of the split by default."""
    split: str = "auto"
    """Split compared with: test, then validation, then the one trained on, by default."""
    screen: bool = True
    """With fid and several settings: choose one at each number of steps by a cheaper metric, and compute FID for that
    one only."""
    screen_by: Literal["fd", "kid"] = "fd"
    """The cheaper metric: fd, which takes seconds, or the KID of 512 samples, which sees what FID sees."""
    inception: str | None = None
    """File of FID's network, or torch-fidelity; the installed package's by default."""
    grid: Literal["uniform", "logsnr", "edm"] = "uniform"
    """Spacing of the times."""
    seed: int = 0
    """Sample i uses seed + i."""
    batch_size: int | None = None
    """Samples drawn at once; 256 pictures or a set of points by default."""
    device: str = "auto"
    """auto, cpu, cuda, mps, ..."""
    out: Path | None = None
    """Folder for the result; RUN/evaluation by default."""


@dataclass(frozen=True)
class CollectArgs:
    """Have a scripted expert demonstrate tasks of a suite: files in LIBERO's HDF5 layout.

    The same command goes on where it was stopped or killed.
    """

    suite: tyro.conf.Positional[str]
    """libero_goal, libero_object, libero_spatial, libero_10 or libero_90."""
    task: str = "all"
    """Numbers of tasks, with commas; all by default."""
    n: int = 50
    """Successful demonstrations a task."""
    cameras: bool = False
    """Also record two cameras, which takes several times as long."""
    camera_size: int = 128
    """Side of their pictures."""
    noise: float = 0.1
    """Of the executed motions, so that demonstrations show how to recover; the intended ones are recorded."""
    seed: int = 0
    """Of start states and of the expert's choices."""
    workers: int = 1
    """Processes."""
    out: Path | None = None
    """Folder of the files; demos/SUITE by default."""


@dataclass(frozen=True)
class RolloutArgs:
    """Let a policy act in simulation: success a task with intervals, time a plan takes, films.

    The same command goes on where it was stopped or killed.
    """

    run: tyro.conf.Positional[Path]
    """Run folder of a robot run, or a policy folder."""
    suite: str = "pusht"
    """pusht, or one of LIBERO's: libero_goal, libero_object, libero_spatial, libero_10, libero_90."""
    task: str = "all"
    """Numbers of tasks, with commas; all by default."""
    steps: str = "2,16,50"
    """Numbers of denoising steps a plan."""
    episodes: int = 50
    """Episodes a task: the benchmark's initial states, or seeds."""
    churn: str = "1"
    """Churns of the distributional sampler."""
    sampler: Annotated[str, tyro.conf.arg(help=SAMPLER_HELP)] = "distributional"
    seed: int = 0
    """Of the policy's noise."""
    workers: int = 1
    """Processes, one thread each."""
    videos: int = 1
    """Films of the first successes, and of the first failures, at each number of steps."""
    device: str = "cpu"
    """Of the policy in each worker: cpu, cuda, mps, auto."""
    out: Path | None = None
    """Folder for the result; RUN/rollout-SUITE by default."""


@dataclass(frozen=True)
class SweepArgs:
    """Train and score every combination of some settings: a run folder each, a table, heatmaps and curves.

    The same command goes on where it was stopped or killed; other values, steps and seeds add runs. Settings are
    written as name=value: `distdiff train RECIPE --help` lists the names, a tuple is written as 4+7, no value as none.
    """

    recipe: tyro.conf.Positional[str]
    """What all runs have in common; `distdiff --help` lists the recipes."""
    grid: tuple[str, ...] = ()
    """Settings to vary and their values: loss.lam=0,0.5,1 loss.beta=0.1,1,2"""
    set: tuple[str, ...] = ()
    """Settings to change for all runs: steps=500 batch_size=16"""
    scale: Scale = "small"
    """Sizes and lengths: the paper's, minutes on two cores, or seconds for a test."""
    seeds: str | None = None
    """Seeds of the runs, separated by commas; the recipe's by default."""
    steps: str = "2,4,8,10,30,50,100"
    """Numbers of denoising steps at which runs are scored."""
    churn: str = "0,0.5,1"
    """Churns at which they are scored; figures show the best."""
    metric: Literal["mmd", "fd", "fid"] | None = None
    """mmd for points; for images the fast fd, by default, or fid."""
    n: int | None = None
    """Samples a score; 16384 points or 2048 pictures by default."""
    classical: bool = False
    """Also train the recipe's classical twin, for the figures' line."""
    workers: int | None = None
    """Runs at once; one by default, with Ray as many as the cluster has room for."""
    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or Ray Tune on the cluster of RAY_ADDRESS, whose machines must all see the folder."""
    retry_failed: bool = False
    """Try runs again that failed earlier."""
    mask: float | None = None
    """Grey heatmap cells above this score; by default above 3 times the best of their panel."""
    out: Path | None = None
    """Folder of the sweep; sweeps/RECIPE-SCALE by default."""


@dataclass(frozen=True)
class SweepFiguresArgs:
    """Write the table, figures and report of a sweep again, finished or not."""

    sweep: tyro.conf.Positional[Path]
    """Folder of a sweep."""
    mask: float | None = None
    """Grey heatmap cells above this score; by default above 3 times the best of their panel."""
    lam: float | None = None
    """Lambda at which kernels are compared; the largest by default."""
    classical: float | None = None
    """The classical model's score, for a line; by default that of a classical run of the sweep."""


@dataclass(frozen=True)
class ReproduceArgs:
    """Run one of the paper's experiments: figures as PNG and PDF, results.json, report.md."""

    name: tyro.conf.Positional[tuple[str, ...]]
    """gaussian, snr, mixture2d, checkerboard, digits, fashion-mnist, cifar10, complexity, heatmap-NAME, pusht,
    libero-goal, libero-goal-beta2, libero-goal-m, libero-goal-vision, or: table NAME,
    with one name or more of checkerboard, mixture2d, digits, fashion-mnist, cifar10, celeba, lsun, celebahq-latent."""
    scale: Scale = "small"
    """The paper's settings, minutes on two cores, or seconds for a test."""
    out: Path | None = None
    """Folder for the result; results/NAME-SCALE by default. Several tables lie in folders of their own below it."""
    seeds: str | None = None
    """Tables and robots: training seeds, with commas."""
    episodes: int | None = None
    """Robots: episodes a task; the study's by default. More can be added later."""
    data: str | None = None
    """Robots: where demonstrations lie; those of LIBERO are collected first by default."""
    same_time: bool = True
    """Tables: also train the peers for the wall time of the distributional model."""


@dataclass(frozen=True)
class DemoArgs:
    """Train a few-step model of digits and its classical twin, compare them at 1, 2, 4 and 8 steps."""

    out: Path = Path("demo")
    """Folder for the figure and the table."""
