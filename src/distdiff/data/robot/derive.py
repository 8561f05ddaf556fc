"""Observations that are computed from others, alike in training and in a simulation.

A name of `DERIVED` may stand wherever the name of an observation may: demonstrations and simulations that have what it
is made of have it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._check import require

__all__ = ["DERIVED", "Derived", "derive", "sources"]


class Derived(NamedTuple):
    source: str
    """The observation it is made of."""
    compute: Callable[[np.ndarray], np.ndarray]
    """(rows, *source shape) to (rows, size)."""


_TEE = np.array([(-60, 30), (60, 30), (60, 0), (-60, 0), (-15, 30), (-15, 120), (15, 120), (15, 30)], dtype=np.float32)
"""Corners of PushT's block, in its own frame."""


def pusht_corners(state: np.ndarray) -> np.ndarray:
    """PushT's state (agent x, y, block x, y, angle) as agent position and the eight corners of the block: (rows, 18).

    An angle jumps at a full turn, corners do not.
    """
    require(state.shape[-1] == 5, "size of state", state.shape[-1], "5 for pusht_corners: agent, block, angle")
    agent, block, angle = state[:, :2], state[:, 2:4], state[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    corners = block[:, None] + np.einsum("nij,kj->nki", turn, _TEE)
    return np.concatenate([agent, corners.reshape(len(state), -1)], -1).astype(np.float32)


def rotation_columns(axis_angle: np.ndarray) -> np.ndarray:
    """Rotations as axis times angle, (rows, 3), to the first two columns of their matrices, (rows, 6).

    A hand that points down is turned by half a circle, where axis times angle jumps; the matrix does not.
    """
    require(axis_angle.shape[-1] == 3, "size of ee_ori", axis_angle.shape[-1], "3 for ee_rotation: axis times angle")
    wide = axis_angle.astype(np.float64)
    angle = np.linalg.norm(wide, axis=-1)[:, None, None]
    x, y, z = (wide / np.maximum(angle[..., 0], 1e-12)).T
    none = np.zeros_like(x)
    cross = np.stack([none, -z, y, z, none, -x, -y, x, none], -1).reshape(-1, 3, 3)
    matrix = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return matrix[:, :, :2].transpose(0, 2, 1).reshape(-1, 6).astype(np.float32)


DERIVED: dict[str, Derived] = {
    "pusht_corners": Derived("state", pusht_corners),
    "ee_rotation": Derived("ee_ori", rotation_columns),
}


def sources(names: tuple[str, ...], present: Any) -> list[str]:
    """What has to be read for some observations: themselves, or what they are derived from."""
    return list(dict.fromkeys(DERIVED[n].source if n in DERIVED and n not in present else n for n in names))


def derive(observations: Mapping[str, Any], name: str) -> np.ndarray:
    """An observation by name, (rows, *shape), computed where it is not among those given."""
    if name in observations or name not in DERIVED:
        return observations[name]
    return DERIVED[name].compute(np.asarray(observations[DERIVED[name].source]))
