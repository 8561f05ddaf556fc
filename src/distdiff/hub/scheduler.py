"""The library's schedules and transition behind the signatures that every diffusers user knows.

Times are the library's, floats in [0, 1] with 1 being noise. There is no mathematics here: `step` calls
`distdiff.transition`, `add_noise` calls `distdiff.schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import SchedulerMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.utils import BaseOutput
from torch import Tensor

from .._check import require, require_between, require_choice
from ..denoiser import PREDICTIONS, to_x0
from ..random import randn
from ..schedule import GRIDS, SAFETY, Schedule, add_noise, as_time, named_schedule, time_grid
from ..transition import Transition, transition

__all__ = ["DistributionalScheduler", "DistributionalSchedulerOutput"]


@dataclass
class DistributionalSchedulerOutput(BaseOutput):
    prev_sample: Tensor
    """x_s, the input of the next step; the sample itself after the last one."""
    pred_original_sample: Tensor
    """The draw of x_0 that this step used."""


class DistributionalScheduler(SchedulerMixin, ConfigMixin):
    """Few-step sampling with churn.

    Args:
        schedule: flow, cosine or linear-beta.
        prediction_type: what the network predicts: x0, velocity, noise, v or edm.
        safety: the network is asked at times in [safety, 1 - safety].
        churn: 1 for the ancestral step, 0 for the deterministic one; the default of `set_timesteps`.
        grid: uniform, logsnr or edm; likewise.
        timestep_scale, timestep_shift: how a pretrained `UNet2DModel` counts time, scale * t + shift.
        anchored: whether the network makes the posterior mean of no noise, see `distdiff.Denoiser`.
    """

    order = 1

    @register_to_config
    def __init__(
        self,
        schedule: str = "flow",
        prediction_type: str = "x0",
        safety: float = 1e-2,
        churn: float = 1.0,
        grid: str = "uniform",
        timestep_scale: float = 1000.0,
        timestep_shift: float = 0.0,
        anchored: bool = False,
    ) -> None:
        require_choice("prediction_type", prediction_type, PREDICTIONS)
        require_choice("grid", grid, GRIDS)
        require_between("churn", churn, 0, 1)
        self.schedule: Schedule = named_schedule(schedule)
        self.churn = churn
        self.times: list[float] = []
        self.timesteps = torch.empty(0)

    @property
    def init_noise_sigma(self) -> float:
        """Standard deviation of the noise that sampling starts from."""
        start = self.times[0] if self.times else 1 - self.config.safety
        return float(self.schedule(as_time(start))[1])

    def scale_model_input(self, sample: Tensor, timestep: float | Tensor | None = None) -> Tensor:
        return sample

    def set_timesteps(
        self,
        num_inference_steps: int,
        device: str | torch.device | None = None,
        churn: float | None = None,
        grid: str | list[float] | None = None,
    ) -> None:
        """Choose the times of a run; `timesteps` then holds those at which the network is asked."""
        self.churn = self.config.churn if churn is None else churn
        require_between("churn", self.churn, 0, 1)
        spacing = self.config.grid if grid is None else grid
        safety = self.config.safety
        self.times = time_grid(
            self.schedule, num_inference_steps, spacing, t_max=1 - safety, safety=safety or SAFETY
        ).tolist()
        self.num_inference_steps = num_inference_steps
        self.timesteps = torch.tensor(self.times[:-1], device=device)

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> DistributionalSchedulerOutput | tuple[Tensor, Tensor]:
        """From x_t and the network's output there to the next time of the run."""
        require(bool(self.times), "timesteps", self.times, "set with set_timesteps before a step")
        index = min(range(len(self.times) - 1), key=lambda k: abs(self.times[k] - float(timestep)))
        t, s = self.times[index : index + 2]
        require(abs(t - float(timestep)) < 1e-4, "timestep", float(timestep), f"one of {self.times[:-1]}")
        wide = torch.promote_types(sample.dtype, torch.float32)

        def scalar(value: float) -> Tensor:
            return torch.tensor(value, device=sample.device, dtype=wide)

        time = scalar(t).clamp_max(1 - self.config.safety)
        x0 = to_x0(self.config.prediction_type, self.schedule, model_output, sample, time)
        move = Transition(*(scalar(float(value)) for value in transition(self.schedule, t, s, self.churn)))
        z = randn(sample.shape, generator=generator, like=sample) if s > 0 and self.churn > 0 else None
        previous = move(sample, x0, z).to(sample.dtype)
        return DistributionalSchedulerOutput(previous, x0) if return_dict else (previous, x0)

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """x_t for times in [0, 1]."""
        return add_noise(self.schedule, original_samples, timesteps, noise)

    def __len__(self) -> int:
        return len(self.timesteps)
