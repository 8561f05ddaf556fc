"""The command line: train, sample, posterior, evaluate, collect, rollout, sweep, reproduce, demo.

A bad argument prints one sentence and exits with 2 before anything is written; an interrupted run saves and exits with
130. Settings are typed: `distdiff train mixture2d --help` lists each with its default and what it means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from .._check import BadArgument, FailedRuns, require, require_choice, require_seed
from ..baseline.samplers import SAMPLERS
from ..recipe import RECIPES, ROBOT_STUDIES, SCALES, AutoencoderRun, PointsRun, RobotRun
from ..train import RunFolder
from .arguments import (
    CollectArgs,
    DemoArgs,
    EvaluateArgs,
    PosteriorArgs,
    ReproduceArgs,
    RolloutArgs,
    SampleArgs,
    SweepArgs,
    SweepFiguresArgs,
    TrainArgs,
)

__all__ = ["main"]


HELP = f"""usage: distdiff COMMAND ... (distdiff COMMAND --help says more)

  train RECIPE        train a model into a run folder
  sample RUN          draw samples from a run folder
  posterior RUN IMAGE what a noisy picture could have been: draws, their mean, where they differ
  evaluate RUN        FID and KID (or the fast fd; for points D_rho) against steps, churn and sampler
  collect SUITE       have a scripted expert demonstrate robot tasks
  rollout RUN         let a robot's policy act in simulation: success, speed, films
  sweep RECIPE        train and score all combinations of some settings: tables, heatmaps, curves
  sweep-figures DIR   draw the figures of a sweep again
  reproduce NAME      run one of the paper's experiments: figures, numbers, a report
  reproduce table NAME    compare all methods at each number of steps: Markdown, LaTeX, JSON
  demo                train a few-step model and its classical twin and compare them

recipes: {", ".join(RECIPES)}
"""


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
    if isinstance(args.run, RobotRun):
        return f"Trained. Let it act: distdiff rollout {out} --suite SUITE"
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
        own = {name: getattr(args, name) for name in ("split", "screen", "screen_by", "inception")}
        own |= {"n": _or(args.n, 2048), "batch_size": _or(args.batch_size, 256), "n_reference": args.reference}
        evaluate_images_run(args.run, out, metric=args.metric or "fid", **own, **options)
    return f"Done. Look at {out / 'scores.png'} and {out / 'metrics.json'}"


def _is_points(run: Path) -> bool:
    """Whether a run is of points; a folder without a configuration may be a pipeline of pictures."""
    config = RunFolder(run).read_config() if (run / "config.json").is_file() else None
    robot = isinstance(config, RobotRun)
    require(not robot, "run", str(run), "a run of points or images; a policy is tried by distdiff rollout")
    return isinstance(config, PointsRun)


def collect_command(argv: Sequence[str]) -> str:
    from ..progress import console, reports
    from ..robot.collect import collect

    args = _parse(CollectArgs, argv, "collect")
    out = args.out or Path("demos") / args.suite
    options = {name: getattr(args, name) for name in ("workers", "seed", "cameras", "camera_size", "noise")}
    tasks = None if args.task == "all" else _numbers("task", args.task, int)
    with reports() as report:
        made = collect(args.suite, tasks, args.n, out, progress=report, **options)
    for task in made:
        console.print(f"{task.task}: {task.kept} demonstrations, {task.failed} failed attempts", highlight=False)
    return f"{sum(task.kept for task in made)} demonstrations. Train on them: --data.source {out}"


def rollout_command(argv: Sequence[str]) -> str:
    from ..evaluate.rollout import Setting
    from .rollout import roll_out_and_report

    args = _parse(RolloutArgs, argv, "rollout")
    out = args.out or args.run / f"rollout-{args.suite}"
    tasks = None if args.task == "all" else _numbers("task", args.task, int)
    options = {name: getattr(args, name) for name in ("suite", "episodes", "seed", "workers", "videos", "device")}
    steps, churns = _numbers("steps", args.steps, int), _numbers("churn", args.churn, float)
    samplers = [name.strip() for name in args.sampler.split(",")]
    for name in samplers:
        require_choice("sampler", name, SAMPLERS)
    settings = [
        Setting(count, churn, name)
        for count in steps
        for name in samplers
        for churn in (churns if SAMPLERS[name].churn else [None])
    ]
    roll_out_and_report(args.run, out, tasks=tasks, settings=settings, **options)
    return f"Done. Look at {out / 'rollout.png'}, {out / 'metrics.json'} and {out / 'videos'}"


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
        advice = f"--retry-failed tries again, error.txt of each under {out / 'runs'} says more"
        raise FailedRuns(failed, advice)
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
    tables, robots = names[0].startswith("table "), names[0] in ROBOT_STUDIES
    require(tables or robots or args.seeds is None, "seeds", args.seeds, "left out but for tables and robots")
    require(tables or args.same_time, "same-time", args.same_time, "left out but for tables")
    for option in ("data", "episodes"):
        given = getattr(args, option)
        require(robots or given is None, option, given, "left out but for robots")
    seeds = None if args.seeds is None else _numbers("seeds", args.seeds, int)
    for seed in seeds or ():
        require_seed(seed)
    options: dict[str, Any] = {"seeds": seeds, "same_time": args.same_time} if tables else {}
    options |= {"seeds": seeds, "data": args.data, "episodes": args.episodes} if robots else {}
    reports = [
        str(reproduce(name, args.scale, alone or (args.out or Path("results")) / place, **options))
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
    "collect": collect_command,
    "rollout": rollout_command,
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
