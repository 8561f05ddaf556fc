"""The paper's complexity table: what a training step costs in time and memory, against the population.

Steps of all alternatives are timed in turns, so that noise hits them alike; ratios are to the diffusion step of the
same network. Peak memory is that of a step, measured in a process of its own on a CPU. Also measured: the share of the
loss (the score of the draws, without the network) in a step, and what the sampler adds to bare forward passes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..denoiser import Denoiser
from ..hub.unet import DistributionalUNet, settings_of
from ..loss import ConditionalLoss, Loss, RegressionLoss
from ..progress import bar
from ..recipe import COMPLEXITY, ComplexityStudy, ImageRun
from ..sample import sample
from ..schedule import named_schedule
from ..score import score_loss
from ..train.build import build_loss, pick_device
from .record import Record, table

__all__ = ["run"]

PAPER = {"A100": {0: 9.05, 2: 6.78, 4: 4.6, 8: 2.77}, "H100": {0: 14.3, 2: 7.85, 4: 4.15, 8: 2.06}}
"""Steps a second that the paper reports for its network, m = 0 being diffusion."""


def case(config: ImageRun, m: int, branch_at: int) -> tuple[Denoiser, Loss, Tensor, Tensor]:
    """Network, loss, pictures and labels of one alternative; m = 0 is classical diffusion."""
    data = config.data
    size, channels = data.size or 32, data.channels or 3
    branch_at = branch_at if m else 0
    levels = config.network.noise_levels if branch_at else 0
    network = replace(config.network, noise=m > 0, branch_at=branch_at, noise_levels=levels)
    settings = settings_of(network, size=size, channels=channels, classes=10, attributes=0)
    unet = DistributionalUNet(**settings).network
    device = pick_device(config.device)
    denoiser = Denoiser(
        unet,
        schedule=named_schedule(network.schedule),
        prediction=network.prediction if m else "velocity",
        noise_shape=(channels, size, size) if m else None,
        safety=network.safety,
    ).to(device)
    lam = config.loss.lam if m > 1 else 0.0
    loss = build_loss(replace(config.loss, m=m, lam=lam), torch.eye(2)) if m else RegressionLoss()
    assert isinstance(loss, Loss)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(config.batch_size, channels, size, size, generator=generator) * 2 - 1
    if config.channels_last:
        denoiser.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    return denoiser, loss, x.to(device), torch.randint(10, (len(x),), generator=generator).to(device)


def stepper(config: ImageRun, m: int, branch_at: int) -> Callable[[], None]:
    """A training step of one alternative."""
    denoiser, loss, x, label = case(config, m, branch_at)
    optimizer = torch.optim.Adam(denoiser.parameters(), 1e-4, fused=x.device.type != "mps")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(denoiser, x, label).mean().backward()
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
        optimizer.step()
        _wait(x)

    return step


def _wait(x: Tensor) -> None:
    if x.device.type == "cuda":
        torch.cuda.synchronize()


def in_turns(
    runs: dict[str, Callable[[], None]],
    rounds: int,
    advance: Callable[..., None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each in each round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if index:
                times[name].append(clock() - start)
            advance()
    return times


def peak_memory(scale: str, m: int, branch_at: int) -> float:
    """MiB that a step takes at its peak beyond what the network takes, in a fresh process (or of the GPU)."""
    code = f"from distdiff.reproduce.complexity import measure_memory; measure_memory({scale!r}, {m}, {branch_at})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def measure_memory(scale: str, m: int, branch_at: int) -> None:
    """Print the peak memory of a step in MiB; called in a process of its own."""
    step = stepper(_sized(COMPLEXITY[scale]), m, branch_at)
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        step()
        print(torch.cuda.max_memory_allocated() / 2**20 - before)
        return
    before = _peak(reset=True)
    step()
    print(max(_peak() - before, 1.0))


def _peak(*, reset: bool = False) -> float:
    """The most memory this process has held, in MiB; since now, if the system can forget what was before."""
    status = Path("/proc/self/status")
    if not status.exists():
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**10


def _sized(study: ComplexityStudy) -> ImageRun:
    return replace(study.run, batch_size=study.batch_size)


def loss_share(config: ImageRun, m: int, step_seconds: float, rounds: int) -> float:
    """Seconds of the score and its gradient by draws, over those of a step."""
    _, loss, x, _ = case(config, m, 0)
    assert isinstance(loss, ConditionalLoss)
    draws = torch.randn(len(x), m, *x.shape[1:], device=x.device, requires_grad=True)

    def score() -> None:
        score_loss(loss.kernel, draws, x, loss.lam).mean().backward()
        _wait(x)

    return statistics.median(in_turns({"loss": score}, max(rounds, 5))["loss"]) / step_seconds


def sampler_overhead(config: ImageRun, branch_at: int, rounds: int, steps: int = 4) -> float:
    """What the sampler takes beyond its bare forward passes, as a fraction of them: the median over many rounds.

    A round takes bare passes before and after, for the speed of a machine drifts by more than what is to be seen. On a
    CPU it is the processor time of one thread, for the same reason: that threads wait for each other, or for other
    programs, is not the sampler's doing.
    """
    denoiser, _, x, label = case(config, 2, branch_at)
    denoiser.eval()
    xi = torch.randn(len(x), 1, *x.shape[1:], device=x.device)
    t = torch.tensor(0.5, device=x.device)

    @torch.no_grad()
    def bare() -> None:
        for _ in range(steps):
            denoiser(x, t, xi, label)
        _wait(x)

    def whole() -> None:
        sample(denoiser, x.shape, steps, cond=label)
        _wait(x)

    runs = {"before": bare, "whole": whole, "after": bare}
    if x.device.type == "cpu":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        times = in_turns(runs, 6 * rounds, clock=time.process_time)
        torch.set_num_threads(threads)
    else:
        times = in_turns(runs, 6 * rounds)
    return statistics.median(2 * b / (a + c) for a, b, c in zip(*times.values(), strict=True)) - 1


def _papers(hardware: str, m: int, branch_at: int) -> str:
    """The paper's time of a step over that of its diffusion step, where it has one."""
    rates = PAPER[hardware]
    return f"{rates[0] / rates[m]:.2f}" if m in rates and branch_at == 0 else ""


def run(scale: str, out: Path) -> None:
    study = COMPLEXITY[scale]
    config = _sized(study)
    record = Record("complexity", scale, study, out)
    cases = {"diffusion": (0, 0)} | {
        f"m = {m}, branch_at = {branch}": (m, branch) for branch in study.branches for m in study.populations
    }
    with bar("timing", len(cases) * (study.rounds + 1)) as advance:
        times = in_turns({name: stepper(config, *what) for name, what in cases.items()}, study.rounds, advance)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    with bar("memory", len(cases)) as advance:
        memory = {}
        for name, what in cases.items():
            memory[name] = peak_memory(scale, *what)
            advance()
    m = 4 if 4 in study.populations else study.populations[-1]
    share = loss_share(config, m, seconds[f"m = {m}, branch_at = 0"], study.rounds)
    overhead = {branch: sampler_overhead(config, branch, study.rounds) for branch in study.branches}
    base = seconds["diffusion"]
    record.results |= {"seconds": seconds, "memory_mib": memory, "loss_share": share, "sampler_overhead": overhead}
    rows = [
        [
            name,
            f"{1 / seconds[name]:.2f}",
            f"{seconds[name] / base:.2f}",
            *(_papers(hardware, *what) for hardware in PAPER),
            f"{memory[name]:.0f}",
            f"{memory[name] / memory['diffusion']:.2f}",
        ]
        for name, what in cases.items()
    ]
    papers = [f"the paper's, {hardware}" for hardware in PAPER]
    record.text.append(table(["step", "steps/s", "times diffusion", *papers, "peak MiB", "times diffusion"], rows))
    record.text.append(
        f"Batch {config.batch_size}, {config.data.size}x{config.data.size}x{config.data.channels} pictures, the U-Net "
        "of the cifar10 recipe. Times are medians taken in turns."
    )
    late = study.branches[-1]
    record.write(
        "Cost of a step against the population",
        [
            f"m = {m}: {seconds[f'm = {m}, branch_at = 0'] / base:.2f} times a diffusion step, "
            f"{seconds[f'm = {m}, branch_at = {late}'] / base:.2f} times with branch_at = {late}.",
            f"The loss takes {share:.2%} of a step at m = {m}.",
            "The sampler adds "
            + ", ".join(f"{value:+.1%} at branch_at = {branch}" for branch, value in overhead.items())
            + " to bare forward passes.",
        ],
    )
