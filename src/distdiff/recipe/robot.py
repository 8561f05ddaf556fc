"""The paper's robot experiments: LIBERO's four suites, and PushT, which is not in the paper.

`paper` holds its settings: chunks of 8 actions, noise of size 2 beside each, population 16, beta = 1, batches of 32;
250,000 steps on LIBERO-Long (about 50 epochs) and as many epochs on the others; a ResNet a camera, a frozen BERT, and a
cross-attention transformer, whose sizes the paper does not give. At `small`, `libero-goal` learns from the poses of all
objects instead of pictures, `libero-goal-vision` from two small cameras; PushT learns from the corners of the block. A
recipe's name is its distributional model, the suffix `-diffusion` its classical twin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .config import SCALES, LossConfig, OptimConfig, PolicyConfig, RobotData, RobotRun, RolloutConfig

__all__ = ["ROBOTS", "ROBOT_STUDIES", "RobotStudy"]

GRIPPER = 6
PROPRIOCEPTION = ("ee_pos", "ee_rotation", "gripper_states")
CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")

PAPER = RobotRun(
    steps=250_000,
    batch_size=32,
    tracker="tensorboard",
    save_every=5_000,
    data=RobotData(states=PROPRIOCEPTION, cameras=CAMERAS, hold=(GRIPPER,), shift=4, workers=4),
    network=PolicyConfig(),
    loss=LossConfig(beta=1.0, lam=0.5, m=16, weighting="sigmoid"),
    optim=OptimConfig(lr=1e-4, ema=0.999, warmup=1000, decay="cosine"),
)
SMALL = RobotRun(
    steps=4_000,
    batch_size=128,
    save_every=500,
    network=PolicyConfig(width=64, depth=4, heads=4, encoder_depth=0, branch_at=2, vision="resnet10", vision_width=16),
    loss=LossConfig(beta=1.0, lam=0.5, m=4, weighting="none", warmup=2_000),
    optim=OptimConfig(lr=1e-3, decay="cosine", ema=0.999, warmup=200),
)
SMOKE_NETWORK = replace(SMALL.network, width=16, depth=2, heads=2, branch_at=1, vision_width=8)


def _smoke(run: RobotRun) -> RobotRun:
    network = replace(SMOKE_NETWORK, language=run.network.language)
    loss = replace(run.loss, warmup=min(run.loss.warmup, 2))
    return replace(run, loss=loss, steps=4, batch_size=8, log_every=2, save_every=2, network=network)


def _classical(run: RobotRun) -> RobotRun:
    """The same network without noise, trained with squared error."""
    loss = LossConfig(kind="regression", weighting=run.loss.weighting)
    return replace(run, network=replace(run.network, noise_dim=0, branch_at=0), loss=loss)


def _scales(paper: RobotRun, small: RobotRun) -> dict[str, RobotRun]:
    return {"paper": paper, "small": small, "smoke": _smoke(small)}


PUSHT_DATA = RobotData(states=("pusht_corners",), history=2)
PUSHT = _scales(
    replace(
        PAPER,
        batch_size=256,
        data=replace(PUSHT_DATA, chunk=16),
        network=replace(PAPER.network, width=256, encoder_depth=0, language=None),
        rollout=RolloutConfig(every=25_000, suite="pusht", episodes=50),
    ),
    replace(
        SMALL,
        steps=10_500,
        data=PUSHT_DATA,
        network=replace(SMALL.network, language=None),
        loss=replace(SMALL.loss, warmup=9_000),
    ),
)
PUSHT_CLASSICAL_STEPS = 11_500
"""At `small`: as many as take the time of the distributional policy's, whose later steps draw four times."""


def _libero(suite: str, steps: int) -> dict[str, RobotRun]:
    """A suite of LIBERO; `small` learns from poses."""
    rollout = RolloutConfig(every=steps // 10, suite=suite, episodes=50)
    poses = RobotData(states=(*PROPRIOCEPTION, "object_poses"), hold=(GRIPPER,))
    return _scales(replace(PAPER, steps=steps, rollout=rollout), replace(SMALL, data=poses))


VISION = RobotData(states=PROPRIOCEPTION, cameras=CAMERAS, hold=(GRIPPER,), shift=3)
LIBERO: dict[str, dict[str, RobotRun]] = {
    "libero-long": _libero("libero_10", 250_000),
    "libero-goal": _libero("libero_goal", 80_000),
    "libero-object": _libero("libero_object", 105_000),
    "libero-spatial": _libero("libero_spatial", 82_000),
}
LIBERO["libero-goal-vision"] = _scales(LIBERO["libero-goal"]["paper"], replace(SMALL, batch_size=64, data=VISION))

ROBOTS: dict[str, dict[str, RobotRun]] = {
    name + suffix: {scale: twin(run) for scale, run in scales.items()}
    for name, scales in ({"pusht": PUSHT} | LIBERO).items()
    for suffix, twin in (("", lambda run: run), ("-diffusion", _classical))
}
ROBOTS["pusht-diffusion"]["small"] = replace(ROBOTS["pusht-diffusion"]["small"], steps=PUSHT_CLASSICAL_STEPS)


CLASSICAL = (("sde", None), ("ddim", None), ("dpm++", None))
OURS = (("distributional", 1.0),)


@dataclass(frozen=True)
class RobotStudy:
    """What one `distdiff reproduce` of a robot experiment trains and measures."""

    title: str
    suite: str
    models: dict[str, RobotRun]
    samplers: dict[str, tuple[tuple[str, float | None], ...]]
    """Samplers and churns of each model; at each number of steps the best one is shown."""
    steps: tuple[int, ...]
    """Denoising steps a plan."""
    episodes: int
    """Episodes a task."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds."""
    tasks: tuple[int, ...] | None = None
    demonstrations: int | None = None
    """Demonstrations a task that are collected, unless others are given; none if they cannot be."""
    cameras: int | None = None
    """Side of the pictures in these; none without pictures."""
    workers: int = 2
    """Runs at once, with a thread each."""


def _versus(name: str, scale: str, **options: Any) -> RobotStudy:
    """The distributional policy beside the classical one."""
    models = {"distributional": ROBOTS[name][scale], "diffusion": ROBOTS[f"{name}-diffusion"][scale]}
    return RobotStudy(models=models, samplers={"distributional": OURS, "diffusion": CLASSICAL}, **options)


def _varied(scale: str, settings: dict[str, dict[str, Any]], **options: Any) -> RobotStudy:
    """LIBERO-Goal with changed settings of the loss."""
    run = ROBOTS["libero-goal"][scale]
    models = {label: replace(run, loss=replace(run.loss, **some)) for label, some in settings.items()}
    more: dict[str, Any] = {"suite": "libero_goal", "steps": (2, 16, 50), "demonstrations": 40, "seeds": (0,)}
    sizes: dict[str, dict[str, Any]] = {
        "paper": {"seeds": (0, 1, 2), "episodes": 50, "cameras": 128, "workers": 1},
        "small": {"episodes": 20},
        "smoke": {"episodes": 1, "demonstrations": 1, "steps": (1, 2), "tasks": (8,)},
    }
    more |= sizes[scale]
    return RobotStudy(models=models, samplers=dict.fromkeys(models, OURS), **(more | options))


_LAMBDAS = {f"λ = {lam:g}": {"lam": lam} for lam in (0.0, 0.1, 0.5, 1.0)}
_GOAL = "LIBERO-Goal: success against λ and the number of steps"
ROBOT_STUDIES: dict[str, dict[str, RobotStudy]] = {
    "pusht": {
        scale: _versus("pusht", scale, title="PushT: few-step policies from human demonstrations", suite="pusht", **own)
        for scale, own in {
            "paper": {"steps": (1, 2, 4, 16, 50), "episodes": 100, "workers": 1},
            "small": {"steps": (1, 2, 4, 16, 50), "episodes": 100},
            "smoke": {"steps": (1, 2), "episodes": 2, "seeds": (0,), "workers": 1},
        }.items()
    },
    "libero-goal": {scale: _varied(scale, _LAMBDAS, title=_GOAL) for scale in SCALES},
    "libero-goal-beta2": {
        scale: _varied(
            scale,
            {label: own | {"beta": 2.0} for label, own in _LAMBDAS.items() if own["lam"] < 1},
            title=f"{_GOAL}, β = 2",
        )
        for scale in SCALES
    },
    "libero-goal-m": {
        scale: _varied(
            scale,
            {f"m = {m}": {"m": m, "lam": 0.5} for m in (2, 4, 8, 16, 32, 64)},
            title="LIBERO-Goal: success against the population",
            **({} if scale == "smoke" else {"steps": (2,)}),
        )
        for scale in SCALES
    },
    "libero-goal-vision": {
        scale: _versus("libero-goal-vision", scale, title="LIBERO-Goal from pictures", suite="libero_goal", **own)
        for scale, own in {
            "paper": {"steps": (2, 16, 50), "episodes": 50, "demonstrations": 50, "cameras": 128, "workers": 1},
            "small": {
                "steps": (1, 2, 16),
                "episodes": 10,
                "seeds": (0,),
                "tasks": (1, 4, 8),
                "demonstrations": 20,
                "cameras": 64,
            },
            "smoke": {"steps": (1,), "episodes": 1, "seeds": (0,), "tasks": (8,), "demonstrations": 1, "cameras": 64},
        }.items()
    },
}
"""Studies by name and scale."""
