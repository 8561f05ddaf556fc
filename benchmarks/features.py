"""What features, the refinement and an early fork bring on Fashion-MNIST, by KID after equally short trainings.

    python benchmarks/features.py --steps 1000 --out runs/features

Trains the recipe at `small` as it is, with learned features instead of a perceptual network's, with none, without
refinement, with a late fork, and its classical twin, for so many steps, and prints KID and FID at four sampling steps
at the best sampler of each: churn 0, churn 1 or hybrid (the classical model: DPM-Solver++). A score of 384 pictures is
rough: FID is far above what more would give, KID is unbiased. Ten to twenty minutes a model on one core. Runs are
resumed, and scores kept, if it is stopped.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from distdiff.evaluate.image import evaluate
from distdiff.evaluate.kept import KeptScores
from distdiff.hub import load_pipeline
from distdiff.progress import reports
from distdiff.recipe import RECIPES, ImageRun
from distdiff.reproduce.runs import train_runs
from distdiff.train.image import held_out, read_images


def variants(steps: int) -> dict[str, ImageRun]:
    base = replace(RECIPES["fashion-mnist"]["small"], steps=steps, tracker="none")
    learned = replace(base.loss, perceptual_weights=None)
    return {
        "perceptual features": base,
        "learned features": replace(base, loss=learned),
        "no features": replace(base, loss=replace(learned, features=0.0)),
        "no refinement": replace(base, network=replace(base.network, refine=0)),
        "late fork": replace(base, network=replace(base.network, branch_at=5, noise_levels=3)),
        "classical": replace(RECIPES["fashion-mnist-diffusion"]["small"], steps=steps, tracker="none"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--n", type=int, default=384)
    parser.add_argument("--reference", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    models = variants(args.steps)
    runs, seconds, _ = train_runs(models, args.out)
    data = models["classical"].data
    train, test = read_images(data), held_out(models["classical"], "auto")
    for name, path in runs.items():
        classical = name == "classical"
        with reports() as report:
            found = evaluate(
                load_pipeline(path),
                train,
                test,
                steps=[4],
                churns=[0.0, 1.0],
                samplers=["dpm++"] if classical else ["distributional", "hybrid"],
                metric="fid",
                n=args.n,
                n_reference=args.reference,
                screen=False,
                kept=KeptScores(path / "scores.json"),
                report=report,
            )
        best = min(found.entries, key=lambda entry: entry.score.kid)
        score = f"KID {best.score.kid:.4f}, FID {best.score.frechet:.1f}"
        print(f"{name}: {score} ({best.name}), trained in {seconds[name]:.0f} s", flush=True)


if __name__ == "__main__":
    main()
