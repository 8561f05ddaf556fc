"""The command line: train, sample, reproduce, demo.

A bad argument prints one sentence and exits with 2 before anything is written; an interrupted run saves and exits with
130. Settings are typed: `distdiff train mixture2d --help` lists each with its default and what it means.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from .._check import BadArgument, require, require_choice
from ..recipe import RECIPES, SCALES, RunConfig

__all__ = ["main"]

Scale = Literal["paper", "small", "smoke"]

HELP = f"""usage: distdiff COMMAND ... (distdiff COMMAND --help says more)

  train RECIPE        train a model into a run folder
  sample RUN          draw samples from a run folder
  reproduce NAME      run one of the paper's experiments: figures, numbers, a report
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
    resume: bool = False
    """Go on from the folder's last checkpoint."""
    overwrite: bool = False
    """Replace an earlier run in the folder."""


@dataclass(frozen=True)
class SampleArgs:
    """Draw samples from a trained run: samples.npy, a picture and the settings."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    steps: int = 4
    """Denoising steps."""
    n: int = 4096
    """Samples."""
    churn: float = 1.0
    """1 for the ancestral step, 0 for the deterministic one."""
    grid: Literal["uniform", "logsnr", "edm"] = "uniform"
    """Spacing of the times."""
    seed: int = 0
    """Sample i uses seed + i."""
    batch_size: int | None = None
    """Samples drawn at once; all by default."""
    device: str = "auto"
    """auto, cpu, cuda, mps, ..."""
    out: Path | None = None
    """Folder for the result; RUN/samples by default."""


@dataclass(frozen=True)
class ReproduceArgs:
    """Run one of the paper's experiments: figures as PNG and PDF, results.json, report.md."""

    name: tyro.conf.Positional[str]
    """gaussian, snr, mixture2d or checkerboard."""
    scale: Scale = "small"
    """The paper's settings, minutes on two cores, or seconds for a test."""
    out: Path | None = None
    """Folder for the result; results/NAME-SCALE by default."""


@dataclass(frozen=True)
class DemoArgs:
    """Train a few-step model and its classical twin, compare them at 2, 4 and 8 steps."""

    out: Path = Path("demo")
    """Folder for the figure and the table."""


def train_command(argv: Sequence[str]) -> str:
    from ..progress import training
    from ..train.build import check

    recipe = _recipe(argv)
    scale = _option(argv, "--scale") or "small"
    require_choice("scale", scale, SCALES)
    default = TrainArgs(run=RECIPES[recipe][scale], scale=scale)  # type: ignore[arg-type]
    args = _parse(TrainArgs, argv[1:], f"train {recipe}", default)
    check(args.run)
    require(not (args.resume and args.overwrite), "resume, overwrite", "both", "one or the other")
    out = args.out or Path("runs") / f"{recipe}-{args.scale}"
    training(args.run, out, label=recipe, resume=args.resume, overwrite=args.overwrite)
    return f"Trained. Look at {out} or draw from it: distdiff sample {out}"


def sample_command(argv: Sequence[str]) -> str:
    from .sample import draw_points

    args = _parse(SampleArgs, argv, "sample")
    out = args.out or args.run / "samples"
    draw_points(
        args.run,
        out,
        steps=args.steps,
        n=args.n,
        churn=args.churn,
        grid=args.grid,
        seed=args.seed,
        batch_size=args.batch_size,
        device=args.device,
    )
    return f"{args.n} samples in {args.steps} steps. Look at {out / 'samples.png'}"


def reproduce_command(argv: Sequence[str]) -> str:
    from ..reproduce import EXPERIMENTS, reproduce

    args = _parse(ReproduceArgs, argv, "reproduce")
    require_choice("experiment", args.name, EXPERIMENTS)
    out = args.out or Path("results") / f"{args.name}-{args.scale}"
    return f"Done. Look at {reproduce(args.name, args.scale, out)}"


def demo_command(argv: Sequence[str]) -> str:
    from .demo import run

    args = _parse(DemoArgs, argv, "demo")
    return f"Done. Look at {run(args.out)}"


COMMANDS: dict[str, Callable[[Sequence[str]], str]] = {
    "train": train_command,
    "sample": sample_command,
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
        print(COMMANDS[argv[0]](argv[1:]))
    except BadArgument as error:
        _leave(str(error), 2)
    except FloatingPointError as error:
        _leave(str(error), 1)
    except KeyboardInterrupt:
        _leave("interrupted; a run folder that was being trained holds a checkpoint for --resume", 130)


def _leave(sentence: str, code: int) -> None:
    print(f"distdiff: {sentence}", file=sys.stderr)
    raise SystemExit(code)
