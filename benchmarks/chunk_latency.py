"""How long a robot waits for a chunk of actions: 2 steps beside 50, in passes of the denoiser.

    python benchmarks/chunk_latency.py [RUN]

Without a run, an untrained policy of the `libero-goal-vision` recipe at `small` is timed (two 64 px cameras, language),
since time does not depend on training. One observation at a time, as on a robot, on one thread. Passes, encodings and
plans are timed in turns by the processor's clock, so that a machine's moods touch all alike. A plan of k steps should
cost k passes and one encoding.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from timing import milliseconds

from distdiff.data.robot import Statistics
from distdiff.policy import Policy, PolicySpec, build_policy_denoiser
from distdiff.recipe import ROBOTS


def untrained() -> Policy:
    run = ROBOTS["libero-goal-vision"]["small"]
    states = dict(zip(run.data.states, (3, 6, 2), strict=True))
    words = ("put the bowl on the plate",)
    spec = PolicySpec(7, 8, 8, 1, states, run.data.cameras, (64, 64), 384, words, run.network)
    statistics = Statistics(torch.zeros(11), torch.ones(11), torch.zeros(7), torch.ones(7))
    return Policy(spec, build_policy_denoiser(spec).eval(), statistics, torch.randn(1, 384))


def main() -> None:
    policy = Policy.load(sys.argv[1], "cpu") if len(sys.argv) > 1 else untrained()
    spec = policy.spec
    torch.set_num_threads(1)
    shape = (1,) if spec.history == 1 else (1, spec.history)
    raw = {"pusht_corners": ("state", 5), "ee_rotation": ("ee_ori", 3)}
    sizes = dict(raw.get(name, (name, size)) for name, size in spec.states.items())
    seen = {name: np.ones((*shape, size), np.float32) for name, size in sizes.items()}
    seen |= {name: np.zeros((1, *(spec.camera_size or ()), 3), np.uint8) for name in spec.cameras}
    words = [spec.words[0]] if spec.words else None
    xt = torch.randn(1, spec.chunk, spec.action_size)
    memory = policy.encode(seen, words)
    xi = torch.randn(1, 1, *policy.denoiser.noise_shape) if policy.denoiser.noise_shape else None
    t = torch.tensor(0.5)

    @torch.inference_mode()
    def forward() -> object:
        return policy.denoiser(xt, t, xi, memory)

    jobs = {
        "encoding": lambda: policy.encode(seen, words),
        "pass of the denoiser": forward,
        "plan, 2 steps": lambda: policy.plan(seen, words, steps=2, seeds=[0]),
        "plan, 50 steps": lambda: policy.plan(seen, words, steps=50, seeds=[0]),
    }
    middle = milliseconds(jobs, rounds=60, clock=time.process_time)
    for name, spent in middle.items():
        print(f"{name:22} {spent:8.2f} ms")
    one, encoding = middle["pass of the denoiser"], middle["encoding"]
    for steps in (2, 50):
        plan = middle[f"plan, {steps} steps"]
        print(f"{steps} steps: one encoding and {(plan - encoding) / one:.2f} passes")
    print(f"50 steps cost {middle['plan, 50 steps'] / middle['plan, 2 steps']:.1f} times 2 steps")


if __name__ == "__main__":
    main()
