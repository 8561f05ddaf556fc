"""A trained policy: what a robot sees and is told in, a chunk of actions out.

A `Policy` holds a denoiser of action chunks, the statistics that its states and actions were scaled with, and the
instructions it was trained on with their embeddings, so that it can be used without the demonstrations and, for those
instructions, without the language model. `plan` encodes the observations once and then draws chunks in a few steps.

A policy is saved as a folder: policy.json (what it observes, its network) and policy.safetensors.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ._check import BadArgument, require, require_count
from .baseline.samplers import sample_with
from .data.robot.derive import derive, sources
from .data.robot.windows import Statistics
from .denoiser import Denoiser
from .nn.policy import PolicyNetwork
from .recipe.config import PolicyConfig
from .schedule import named_schedule

__all__ = ["Policy", "PolicySpec", "build_policy_denoiser", "pictures"]


@dataclass(frozen=True)
class PolicySpec:
    """What a policy observes, what it plans, and how its network is made."""

    action_size: int
    chunk: int
    execute: int
    history: int
    states: dict[str, int]
    """Sizes of the observations that are joined into the state, by name and in their order."""
    cameras: tuple[str, ...]
    camera_size: tuple[int, int] | None
    """Height and width of the pictures it was trained on."""
    language_size: int
    words: tuple[str, ...]
    """Instructions it was trained on."""
    network: PolicyConfig
    anchored: bool = False
    """Whether its network makes the mean of no noise, see `distdiff.Denoiser`."""

    @property
    def state_size(self) -> int:
        return sum(self.states.values())

    @property
    def observed(self) -> list[str]:
        """Names to ask a simulation or a robot for."""
        return [*self.states, *self.cameras]


def build_policy_denoiser(spec: PolicySpec) -> Denoiser:
    own = spec.network
    network = PolicyNetwork(
        spec.action_size,
        chunk=spec.chunk,
        state_size=spec.state_size,
        history=spec.history,
        cameras=spec.cameras,
        language_size=spec.language_size,
        noise_size=own.noise_dim,
        width=own.width,
        depth=own.depth,
        heads=own.heads,
        encoder_depth=own.encoder_depth,
        dropout=own.dropout,
        branch_at=own.branch_at,
        vision=own.vision,
        vision_width=own.vision_width,
    )
    return Denoiser(
        network,
        schedule=named_schedule(own.schedule),
        prediction=own.prediction,
        noise_shape=(spec.chunk, own.noise_dim) if own.noise_dim else None,
        safety=own.safety,
        anchored=spec.anchored,
    )


def pictures(frames: Tensor) -> Tensor:
    """uint8 (n, height, width, 3) to floats (n, 3, height, width) in [-1, 1]."""
    return frames.movedim(-1, 1).float().mul_(2 / 255).sub_(1)


class Policy:
    """Plans chunks of actions. `language` is (instructions, size), in the order of `spec.words`."""

    def __init__(self, spec: PolicySpec, denoiser: Denoiser, statistics: Statistics, language: Tensor | None) -> None:
        self.spec, self.denoiser, self.statistics = spec, denoiser, statistics
        rows = [] if language is None else list(language)
        self._language = dict(zip(spec.words, rows, strict=False))

    @property
    def device(self) -> torch.device:
        return next(self.denoiser.parameters()).device

    @torch.inference_mode()
    def encode(self, observations: Mapping[str, Any], words: Sequence[str] | None = None) -> Tensor:
        """The memory of some observations, (n, tokens, width), for `plan_from`.

        Args:
            observations: by name; vectors (n, size) or (n, history, size), oldest first, pictures uint8 (n, h, w, 3).
            words: an instruction for each of them, for a policy that takes language.
        """
        spec, given = self.spec, {name: np.asarray(value) for name, value in observations.items()}
        missing = [name for name in sources(tuple(spec.observed), given) if name not in given]
        require(not missing, "observations", sorted(given), f"with {', '.join(missing)}")
        inputs: dict[str, Tensor] = {}
        if spec.states:
            parts = [self._history(given, name, size) for name, size in spec.states.items()]
            inputs["state"] = self.statistics.state(torch.cat(parts, -1).to(self.device))
        for name in spec.cameras:
            allowed = f"uint8 of shape (n, {', '.join(map(str, spec.camera_size or ()))}, 3)"
            fits = given[name].dtype == np.uint8 and given[name].shape[1:] == (*(spec.camera_size or ()), 3)
            require(fits, f"camera {name}", f"{given[name].dtype} {given[name].shape}", allowed)
            inputs[name] = pictures(torch.from_numpy(given[name]).to(self.device))
        if spec.language_size:
            inputs["language"] = self._told(words).to(self.device)
        return self._network.encode(inputs)

    @property
    def _network(self) -> PolicyNetwork:
        network = self.denoiser.network
        assert isinstance(network, PolicyNetwork)
        return network

    def _history(self, given: Mapping[str, np.ndarray], name: str, size: int) -> Tensor:
        """One observation over the history, (n, history, size)."""
        source = sources((name,), given)[0]
        raw = given[source]
        single = self.spec.history == 1 and (raw.ndim < 3 or raw.shape[1] != 1)
        series = raw[:, None] if single else raw
        fits = series.ndim >= 2 and series.shape[1] == self.spec.history
        require(fits, f"observation {source}", raw.shape, f"of shape (n, {self.spec.history}, size)")
        value = derive({source: series.reshape(-1, *series.shape[2:])}, name)
        value = np.asarray(value, np.float32).reshape(*series.shape[:2], -1)
        require(value.shape[2] == size, f"observation {name}", raw.shape, f"of size {size}, as it was in training")
        return torch.from_numpy(value)

    def _told(self, words: Sequence[str] | None) -> Tensor:
        require(words is not None, "words", words, "an instruction for each observation: the policy takes language")
        assert words is not None
        require(all(words), "words", list(words), "instructions that are not empty: the policy takes language")
        unknown = sorted({text for text in words if text not in self._language})
        if unknown:
            from .nn.language import embed_sentences

            assert self.spec.network.language is not None
            self._language |= dict(zip(unknown, embed_sentences(unknown, self.spec.network.language), strict=True))
        return torch.stack([self._language[text] for text in words])

    @torch.inference_mode()
    def plan_from(
        self,
        memory: Tensor,
        *,
        steps: int = 2,
        churn: float | None = None,
        sampler: str = "distributional",
        seeds: Sequence[int],
    ) -> np.ndarray:
        """Chunks (n, chunk, action_size) for a memory; row i depends on its own seed alone."""
        shape = (len(memory), self.spec.chunk, self.spec.action_size)
        drawn = sample_with(self.denoiser, shape, steps, sampler, churn, seed=list(seeds), cond=memory)
        return self.statistics.restore_action(drawn.float()).cpu().numpy()

    def plan(
        self, observations: Mapping[str, Any], words: Sequence[str] | None = None, *, steps: int = 2, **options: Any
    ) -> np.ndarray:
        """Chunks (n, chunk, action_size) for observations; options as in `plan_from`."""
        require_count("steps", steps)
        return self.plan_from(self.encode(observations, words), steps=steps, **options)

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "policy.json").write_text(json.dumps(dataclasses.asdict(self.spec), indent=2) + "\n")
        tensors = {f"denoiser.{key}": value for key, value in self.denoiser.state_dict().items()}
        tensors |= {f"statistics.{key}": value for key, value in self.statistics.tensors().items()}
        if self.spec.language_size:
            tensors["language"] = torch.stack([self._language[text] for text in self.spec.words])
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path / "policy.safetensors"
        )

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Policy:
        """The policy of a run folder, or of a policy folder."""
        from .train.build import pick_device
        from .train.folder import from_dict, load_weights

        folder = Path(path)
        folder = folder / "policy" if (folder / "policy").is_dir() else folder
        file = folder / "policy.safetensors"
        whole = (folder / "policy.json").is_file() and file.is_file()
        require(whole, "policy", str(path), "the folder of a trained robot run, with policy/policy.json")
        try:
            with safe_open(file, framework="pt") as reader:
                tensors = {key: reader.get_tensor(key) for key in reader.keys()}  # noqa: SIM118  no mapping
            values = json.loads((folder / "policy.json").read_text())
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise BadArgument(f"{folder} must hold a whole policy, got a corrupt one ({error})") from None
        spec = from_dict(PolicySpec, values, "policy")
        groups: dict[str, dict[str, Tensor]] = {"denoiser": {}, "statistics": {}}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            if name:
                groups.setdefault(group, {})[name] = value
        denoiser = build_policy_denoiser(spec)
        load_weights(denoiser, groups["denoiser"], file)
        known = set(groups["statistics"]) == {field.name for field in dataclasses.fields(Statistics)}
        require(known, f"statistics of {file}", sorted(groups["statistics"]), "those of states and actions")
        denoiser = denoiser.to(pick_device(device)).eval().requires_grad_(False)
        return cls(spec, denoiser, Statistics(**groups["statistics"]), tensors.get("language"))
