"""The command line: train, sample, posterior, evaluate, sweep, reproduce, demo.

A bad argument prints one sentence and exits with 2 before anything is written; an interrupted run saves and exits with
130. Settings are typed: `distdiff train mixture2d --help` lists each with its default and what it means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from .._check import BadArgument, require, require_choice
from ..baseline.samplers import SAMPLERS
from ..recipe import RECIPES, SCALES, AutoencoderRun, PointsRun, RunConfig
from ..sweep import FailedRuns
from ..train import RunFolder

__all__ = ["main"]

Scale = Literal["paper", "small", "smoke"]
SAMPLER_HELP = f"Any of {', '.join(SAMPLERS)}, with commas; only the first has churn, only it is for models with noise."

HELP = f"""usage: distdiff COMMAND ... (distdiff COMMAND --help says more)

  train RECIPE        train a model into a run folder
  sample RUN          draw samples from a run folder
  posterior RUN IMAGE what a noisy picture could have been: draws, their mean, where they differ
  evaluate RUN        FID and KID (or the fast fd; for points D_rho) against steps, churn and sampler
  sweep RECIPE        train and score all combinations of some settings: tables, heatmaps, curves
  sweep-figures DIR   draw the figures of a sweep again
  reproduce NAME      run one of the paper's experiments: figures, numbers, a report
  reproduce table NAME    compare all methods at each number of steps: Markdown, LaTeX, JSON
  demo                train a few-step model and its classical twin and compare them

recipes: {", ".join(RECIPES)}
"""


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
    churn: float = 1.0
    """Of the distributional sampler: 1 for the ancestral step, 0 for the deterministic one."""
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
    """With fid and several settings: choose one at each number of steps by fd and compute FID for that one only."""
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
    """gaussian, snr, mixture2d, checkerboard, digits, fashion-mnist, cifar10, complexity, heatmap-NAME, or: table NAME,
    with one name or more of checkerboard, mixture2d, digits, fashion-mnist, cifar10, celeba, lsun, celebahq-latent."""
    scale: Scale = "small"
    """The paper's settings, minutes on two cores, or seconds for a test."""
    out: Path | None = None
    """Folder for the result; results/NAME-SCALE by default. Several tables lie in folders of their own below it."""


@dataclass(frozen=True)
class DemoArgs:
    """Train a few-step model of digits and its classical twin, compare them at 1, 2, 4 and 8 steps."""

    out: Path = Path("demo")
    """Folder for the figure and the table."""


def train_command(argv: Sequence[str]) -> str:
    from ..progress import training

    recipe = _recipe(argv)
    scale = _option(argv, "--scale") or "small"
    require_choice("scale", scale, SCALES)
    default = TrainArgs(run=RECIPES[recipe][scale], scale=scale)  # type: ignore[arg-type]
    args = _parse(TrainArgs, argv[1:], f"train {recipe}", default)
    require(not (args.resume and args.overwrite), "resume, overwrite", "both", "one or the other")
    out = args.out or Path("runs") / f"{recipe}-{args.scale}"
    training(args.run, out, label=recipe, resume=args.resume or False, overwrite=args.overwrite)
    if isinstance(args.run, AutoencoderRun):
        return f"Trained. Look at {out}/previews; a latent model: distdiff train image --latent {out}"
    return f"Trained. Look at {out} or draw from it: distdiff sample {out}"


def sample_command(argv: Sequence[str]) -> str:
    from .sample import draw_images, draw_points

    args = _parse(SampleArgs, argv, "sample")
    shared = ("steps", "sampler", "churn", "grid", "seed", "batch_size", "device")
    options = {name: getattr(args, name) for name in shared}
    if _is_points(args.run):
        require(args.label is None, "label", args.label, "left out for points")
        require(not args.trajectory, "trajectory", args.trajectory, "left out for points")
        n, out = _or(args.n, 4096), args.out or args.run / "samples"
        draw_points(args.run, out, n=n, **options)
        return f"{n} samples in {args.steps} steps. Look at {out / 'samples.png'}"
    n, out = _or(args.n, 64), args.out or _beside(args.run, "samples")
    draw_images(args.run, out, n=n, label=args.label, trajectory=args.trajectory, **options)
    return f"{n} pictures in {args.steps} steps. Look at {out / 'grid.png'}"


def posterior_command(argv: Sequence[str]) -> str:
    from .posterior import show_posterior

    args = _parse(PosteriorArgs, argv, "posterior")
    out = args.out or _beside(args.run, "posterior")
    options = {name: getattr(args, name) for name in ("t", "draws", "seed", "label", "noisy", "device")}
    found = show_posterior(args.run, args.image, out, **options)
    return f"Mean std of a pixel at t = {args.t:g}: {found['mean_std']:.4f}. Look at {out / 'posterior.png'}"


def evaluate_command(argv: Sequence[str]) -> str:
    from .evaluate import evaluate_images_run, evaluate_points_run

    args = _parse(EvaluateArgs, argv, "evaluate")
    out = args.out or args.run / "evaluation"
    options: dict[str, Any] = {name: getattr(args, name) for name in ("device", "seed", "grid")}
    options |= {
        "steps": _numbers("steps", args.steps, int),
        "churns": _numbers("churn", args.churn, float),
        "samplers": [name.strip() for name in args.sampler.split(",")],
    }
    if _is_points(args.run):
        for name, given in {"metric": args.metric, "reference": args.reference, "inception": args.inception}.items():
            require(given is None, name, given, "left out for points")
        require(args.split == "auto", "split", args.split, "left out for points")
        own = {"n": _or(args.n, 4096), "repeats": _or(args.repeats, 4), "batch_size": args.batch_size}
        evaluate_points_run(args.run, out, **own, **options)
    else:
        require(args.repeats is None, "repeats", args.repeats, "left out for pictures")
        own = {name: getattr(args, name) for name in ("split", "screen", "inception")}
        own |= {"n": _or(args.n, 2048), "batch_size": _or(args.batch_size, 256), "n_reference": args.reference}
        evaluate_images_run(args.run, out, metric=args.metric or "fid", **own, **options)
    return f"Done. Look at {out / 'scores.png'} and {out / 'metrics.json'}"


def _is_points(run: Path) -> bool:
    """Whether a run is of points; a folder without a configuration may be a pipeline of pictures."""
    return (run / "config.json").is_file() and isinstance(RunFolder(run).read_config(), PointsRun)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def sweep_command(argv: Sequence[str]) -> str:
    from ..sweep import plan, run_sweep
    from ..sweep.report import write_report

    args = _parse(SweepArgs, argv, "sweep")
    sweep = plan(
        args.recipe,
        args.scale,
        grid=args.grid,
        settings=args.set,
        seeds=None if args.seeds is None else [int(seed) for seed in _numbers("seeds", args.seeds, int)],
        steps=[int(count) for count in _numbers("steps", args.steps, int)],
        churns=_numbers("churn", args.churn, float),
        metric=args.metric,
        n=args.n,
        classical=args.classical,
    )
    out = args.out or Path("sweeps") / f"{args.recipe}-{args.scale}"
    failed = run_sweep(sweep, out, workers=args.workers, engine=args.engine, retry_failed=args.retry_failed)
    write_report(out, mask=args.mask)
    if failed:
        raise FailedRuns(failed, out)
    return f"Done. Look at {out / 'report.md'}"


def sweep_figures_command(argv: Sequence[str]) -> str:
    from ..sweep.report import write_report

    args = _parse(SweepFiguresArgs, argv, "sweep-figures")
    write_report(args.sweep, mask=args.mask, lam=args.lam, classical=args.classical)
    return f"Done. Look at {args.sweep / 'report.md'}"


def _numbers(name: str, text: str, kind: type) -> list[Any]:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise BadArgument(f"{name} must be numbers separated by commas, got {text!r}") from None


def _beside(run: Path, name: str) -> Path:
    """Results lie in the run folder; those of a pipeline folder or a hub name in the working folder."""
    return run / name if (run / "config.json").is_file() else Path(name)


def reproduce_command(argv: Sequence[str]) -> str:
    from ..reproduce import EXPERIMENTS, reproduce

    args = _parse(ReproduceArgs, argv, "reproduce")
    first, *more = args.name or ("",)
    names = [f"table {name}" for name in more] if first == "table" and more else [" ".join(args.name)]
    for name in names:
        require_choice("experiment", name, EXPERIMENTS)
    places = {name: f"{name.replace(' ', '-')}-{args.scale}" for name in names}
    alone = args.out if len(names) == 1 else None
    reports = [
        str(reproduce(name, args.scale, alone or (args.out or Path("results")) / place))
        for name, place in places.items()
    ]
    return f"Done. Look at {', '.join(reports)}"


def demo_command(argv: Sequence[str]) -> str:
    from .demo import run

    args = _parse(DemoArgs, argv, "demo")
    return f"Done. Look at {run(args.out)}"


COMMANDS: dict[str, Callable[[Sequence[str]], str]] = {
    "train": train_command,
    "sample": sample_command,
    "posterior": posterior_command,
    "evaluate": evaluate_command,
    "sweep": sweep_command,
    "sweep-figures": sweep_figures_command,
    "reproduce": reproduce_command,
    "demo": demo_command,
}


def _parse(kind: type, argv: Sequence[str], name: str, default: Any = tyro.MISSING) -> Any:
    options = {} if default is tyro.MISSING else {"default": default}
    return tyro.cli(kind, args=list(argv), prog=f"distdiff {name}", description=kind.__doc__, **options)


def _recipe(argv: Sequence[str]) -> str:
    """The recipe comes first, since the defaults of all other settings hang on it."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: distdiff train RECIPE [--scale {{{','.join(SCALES)}}}] [settings]\n")
        print(f"recipes: {', '.join(RECIPES)}\n\nTheir settings: distdiff train RECIPE --help")
        raise SystemExit(0 if argv else 2)
    require_choice("recipe", argv[0], RECIPES)
    return argv[0]


def _option(argv: Sequence[str], name: str) -> str | None:
    for index, word in enumerate(argv):
        if word == name and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
    return None


def main(argv: Sequence[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        raise SystemExit(0 if argv else 2)
    if argv[0] == "--version":
        from .. import __version__

        print(f"distdiff {__version__}")
        return
    try:
        require_choice("command", argv[0], COMMANDS)
        said = COMMANDS[argv[0]](argv[1:])
        if int(os.environ.get("RANK", "0")) == 0:
            print(said)
    except BadArgument as error:
        _leave(str(error), 2)
    except (FloatingPointError, FailedRuns) as error:
        _leave(str(error), 1)
    except KeyboardInterrupt as error:
        default = "interrupted; a run folder that was being trained holds a checkpoint for --resume latest"
        _leave(str(error) or default, 130)


def _leave(sentence: str, code: int) -> None:
    print(f"distdiff: {sentence}", file=sys.stderr)
    raise SystemExit(code)
