"""What the scripted expert knows of a LIBERO scene: where things are, how large, how high, what hangs over what.

Everything is read from the simulation when it is asked for. Heights are found by rays from above that pass through
the robot; only shapes that can be touched count.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from .libero import LiberoSimulation

__all__ = ["Scene"]


class Scene:
    """What the expert knows: where things are, how large, how high."""

    def __init__(self, simulation: LiberoSimulation) -> None:
        import mujoco

        self._mujoco: Any = mujoco
        self.env, self.model, self.data = simulation.env, simulation.model, simulation.data
        self._site = self.env.robots[0].eef_site_id
        self._known: dict[int, list[int]] = {}
        self._robot = int(self.model.body_rootid[self.model.site_bodyid[self._site]])

    @property
    def hand(self) -> np.ndarray:
        """The point between the finger tips."""
        return np.array(self.data.site_xpos[self._site])

    @property
    def hand_rotation(self) -> np.ndarray:
        return np.array(self.data.site_xmat[self._site]).reshape(3, 3)

    def position(self, name: str) -> np.ndarray:
        """Of an object or of a region."""
        if name in self.env.obj_body_id:
            return np.array(self.data.xpos[self.env.obj_body_id[name]])
        return np.array(self.data.site(name).xpos)

    def size(self, name: str) -> np.ndarray:
        return np.ptp(self.points(name), 0)

    def points(self, name: str) -> np.ndarray:
        """Corners of everything of an object that can be touched."""
        return self._points(self._geoms(self.env.obj_body_id[name]))

    def height(self, spot: np.ndarray, ignore: str = "") -> float:
        """Of the highest thing at a place (x, y), the robot and an object apart."""
        start, geom = np.array([spot[0], spot[1], 2.0]), np.full(1, -1, np.int32)
        down, touched = np.array([0.0, 0.0, -1.0]), np.array([1, 0, 0, 0, 0, 0], np.uint8)
        own = set(self._geoms(self.env.obj_body_id[ignore])) if ignore else set()
        for _ in range(50):
            far = self._mujoco.mj_ray(self.model, self.data, start, down, touched, 1, -1, geom)
            if far < 0:
                return 0.0
            start[2] -= far
            body = self.model.geom_bodyid[geom[0]]
            if self.model.body_rootid[body] != self._robot and int(geom[0]) not in own:
                break
            start[2] -= 1e-4
        return float(start[2])

    def height_between(self, *spots: np.ndarray, ignore: str, width: float) -> float:
        """The highest thing on the way from spot to spot and within a width of it."""
        ways = [np.linspace(start, end, 16) for start, end in pairwise(spots)]
        rim = width * np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]])
        return max(self.height(spot, ignore) for spot in (np.concatenate(ways)[:, None] + rim).reshape(-1, 2))

    def way_out(self, name: str) -> np.ndarray:
        """The shortest shift (x, y) after which nothing hangs over an object."""
        points = self.points(name)
        top, middle = points[:, 2].max(), (points.min(0) + points.max(0))[:2] / 2
        turns = np.linspace(0, 2 * np.pi, 8, endpoint=False)
        circle = np.stack([np.cos(turns), np.sin(turns)], 1)
        radius = np.ptp(points[:, :2], 0).max() / 2
        for far in np.arange(0, 0.16, 0.02):
            rim = middle + (radius + min(far, 0.03)) * circle
            for shift in far * circle:
                if max(self.height(spot, name) for spot in rim + shift) < top + 0.03:
                    return shift
        return np.zeros(2)

    def support(self, goal: str) -> float:
        """The height on which an object put at a goal comes to stand."""
        position = self.position(goal)
        if "contain_region" in goal or goal in self.env.obj_body_id:
            return float(position[2]) + (0.08 if "basket" in goal else 0.005)
        return float(position[2])

    def drawer_of(self, region: str) -> int | None:
        """The joint of the drawer that a region belongs to."""
        joints = getattr(self.env.object_sites_dict.get(region), "joints", None)
        return int(self.model.joint(joints[0]).id) if joints else None

    def is_open(self, joint: int) -> bool:
        low, high = self.model.jnt_range[joint]
        position = self.data.qpos[self.model.jnt_qposadr[joint]]
        return bool(abs(position) > 0.95 * max(abs(low), abs(high)))

    def handle(self, joint: int) -> tuple[np.ndarray, np.ndarray]:
        """The middle of a drawer's bar, and the direction in which the drawer opens."""
        low, high = self.model.jnt_range[joint]
        outward = self.data.xaxis[joint] * (1 if abs(high) > abs(low) else -1)
        body = self.model.jnt_bodyid[joint]
        centres = [np.array(self.data.geom_xpos[geom]) for geom in self._geoms(body)]
        return max(centres, key=lambda centre: float(centre @ outward)), outward

    def knob(self, stove: str) -> tuple[np.ndarray, float]:
        """Where to take a knob, and the direction along its ridge."""
        joint = self.model.joint(self.env.get_object(stove).joints[0])
        points = self._points(self._geoms(joint.bodyid[0]))
        ridge = points[points[:, 2] > points[:, 2].max() - 0.02]
        spread = ridge[:, :2] - ridge[:, :2].mean(0)
        axis = np.linalg.svd(spread, full_matrices=False)[2][0]
        anchor = self.data.xanchor[joint.id]
        return np.append(anchor[:2], points[:, 2].max() - 0.012), float(np.arctan2(axis[1], axis[0]))

    def _geoms(self, body: int) -> list[int]:
        """Shapes of a body and of what hangs on it that can be touched."""
        if body in self._known:
            return self._known[body]
        bodies = {int(body)}
        for child in range(int(body) + 1, self.model.nbody):
            if int(self.model.body_parentid[child]) in bodies:
                bodies.add(child)
        touchable = (self.model.geom_contype != 0) | (self.model.geom_conaffinity != 0)
        geoms = [geom for geom in np.flatnonzero(touchable).tolist() if int(self.model.geom_bodyid[geom]) in bodies]
        self._known[body] = geoms
        return geoms

    def _points(self, geoms: Iterable[int]) -> np.ndarray:
        kinds = self._mujoco.mjtGeom
        corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        turns = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        circle = np.array([[np.cos(turn), np.sin(turn), z] for turn in turns for z in (-1, 1)])
        found = []
        for geom in geoms:
            kind, size = self.model.geom_type[geom], self.model.geom_size[geom]
            if kind == kinds.mjGEOM_MESH:
                mesh = self.model.mesh(self.model.geom_dataid[geom])
                local = self.model.mesh_vert[mesh.vertadr[0] : mesh.vertadr[0] + mesh.vertnum[0]]
            elif kind in (kinds.mjGEOM_CYLINDER, kinds.mjGEOM_CAPSULE):
                local = circle * [size[0], size[0], size[1]]
            else:
                local = corners * (size if kind == kinds.mjGEOM_BOX else size[0])
            found.append(local @ self.data.geom_xmat[geom].reshape(3, 3).T + self.data.geom_xpos[geom])
        return np.concatenate(found)
