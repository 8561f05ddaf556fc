"""A scripted expert for LIBERO that knows the whole state of the simulation.

It picks and places, drags plates, pulls drawers and turns the stove's knob. Each expert draws its own way of doing a
task: the side at which it grasps, how the hand is turned, which way round it goes, how high, how fast. So
demonstrations of one task differ as those of people do, and a policy that predicts their mean is wrong.

A task is a script, a generator that yields one action a step and looks at the simulation between two of them:
`act` answers the state that it finds, so that noise on the executed action is corrected by the next. Distances are in
metres, angles in radians; a hand of yaw 0 and tilt 0 points down and closes its fingers along y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from .libero import LiberoSimulation
from .scene import Scene

__all__ = ["Expert", "Grasp"]

Script = Iterator[np.ndarray]
OPENED, CLOSED = -1.0, 1.0
POINTS_DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
APERTURE = 0.072
"""The widest thing that fits between the fingers."""
LEAN = 0.4
"""Of a hand that reaches under something."""
ATTEMPTS = 3
"""To do the task, and within it to grasp an object."""


@dataclass(frozen=True)
class Grasp:
    """Where and how to take an object, relative to its body."""

    offset: np.ndarray
    yaw: float
    side: float
    """The angle of the rim's point about the middle; the yaw again for things that fit between the fingers."""
    lean: float = 0.0
    """How far the hand leans outward, to reach under something that hangs over the object."""

    @property
    def rotation(self) -> np.ndarray:
        inward = np.cos(self.side - self.yaw - np.pi / 2)
        return _rotation(self.yaw, -np.sign(inward) * self.lean)


class Expert:
    """One way of doing the task of a simulation that has just been reset.

    `act` gives the next action, or None when it has given up. `choices` says what was drawn, by name.
    """

    def __init__(self, simulation: LiberoSimulation, rng: np.random.Generator) -> None:
        self.simulation = simulation
        self.scene = Scene(simulation)
        self.rng = rng
        self.speed = float(rng.uniform(0.75, 1.0))
        self.detour = float(rng.choice([-1, 1]) * rng.uniform(0.03, 0.08))
        self.clearance = float(rng.uniform(0.06, 0.11))
        self.choices = {"speed": self.speed, "detour": self.detour, "clearance": self.clearance}
        self._script = self._task()

    def act(self) -> np.ndarray | None:
        return next(self._script, None)

    def _task(self) -> Script:
        env = self.simulation.env
        for _ in range(ATTEMPTS):
            for predicate, *names in env.parsed_problem["goal_state"]:
                if env._eval_predicate([predicate, *names]):
                    continue
                match predicate.lower():
                    case "open":
                        yield from self._open(names[0])
                    case "turnon":
                        yield from self._turn_knob(names[0])
                    case "in" | "on":
                        yield from self._put(*names)
                    case _:
                        return
            yield from self._rest(4, OPENED)

    # Motions

    def _action(self, position: np.ndarray, rotation: np.ndarray, fingers: float, speed: float) -> np.ndarray:
        shift = (position - self.scene.hand) / 0.05
        shift *= speed / max(speed, np.abs(shift).max())
        turn = Rotation.from_matrix(rotation @ self.scene.hand_rotation.T).as_rotvec() / 0.5
        turn *= 0.6 / max(0.6, np.abs(turn).max())
        return np.concatenate([shift, turn, [fingers]])

    def _go(
        self,
        position: np.ndarray | Callable[[], np.ndarray],
        rotation: np.ndarray,
        fingers: float,
        *,
        tolerance: float = 0.01,
        limit: int = 60,
        speed: float = 1.0,
        until: Callable[[], bool] = lambda: False,
    ) -> Script:
        """Move until the hand is there, `until` holds or the limit of steps is reached."""
        for _ in range(limit):
            target = position() if callable(position) else position
            turn = Rotation.from_matrix(rotation @ self.scene.hand_rotation.T).magnitude()
            turned = turn < 0.12 or tolerance >= 0.03
            if until() or (np.linalg.norm(target - self.scene.hand) < tolerance and turned):
                return
            yield self._action(target, rotation, fingers, self.speed * speed)

    def _rest(self, steps: int, fingers: float, rotation: np.ndarray | None = None) -> Script:
        here = self.scene.hand
        turned = self.scene.hand_rotation if rotation is None else rotation
        for _ in range(steps):
            yield self._action(here, turned, fingers, self.speed)

    def _via(self, goal: np.ndarray) -> np.ndarray:
        """A place (x, y) beside the middle of the way to a goal, on this expert's side."""
        way = goal[:2] - self.scene.hand[:2]
        length = float(np.linalg.norm(way))
        across = np.array([-way[1], way[0]]) / max(length, 1e-6)
        return self.scene.hand[:2] + way / 2 + across * np.clip(self.detour, -length / 2, length / 2)

    # Picking and placing

    def _put(self, name: str, goal: str) -> Script:
        drawer = self.scene.drawer_of(goal)
        if drawer is not None and not self.scene.is_open(drawer):
            yield from self._open(goal)
        wide_and_flat = self.scene.size(name)[2] < 0.03 and self.scene.size(name)[:2].min() > APERTURE
        flat = wide_and_flat and goal not in self.simulation.env.obj_body_id
        for _ in range(ATTEMPTS):
            overhang = self.scene.way_out(name)
            way = (self.scene.position(goal) - self.scene.position(name))[:2] if flat else overhang
            grasp = self._choose_grasp(name, way)
            if grasp is None:
                return
            if overhang.any():
                grasp = replace(grasp, lean=LEAN)
            yield from self._pick(name, grasp, overhang, lift=0.012 if flat else 0.08)
            if flat:
                yield from self._drag(name, goal, grasp.rotation)
            elif self._holds(name):
                yield from self._place(name, goal, grasp.rotation)
            if self.simulation.holds():
                return
            yield from self._go(self.scene.hand + _up(0.08), grasp.rotation, OPENED, tolerance=0.03)

    def _choose_grasp(self, name: str, way: np.ndarray) -> Grasp | None:
        """One of the grasps with room for the arm, or else for the fingers alone; None if there is none.

        With a way (x, y) that the object has to go first: on the side where it goes.
        """
        straight, slanted = self._grasps(name)
        ahead = [grasp for grasp in straight + slanted if np.cos(grasp.side - np.arctan2(way[1], way[0])) > 0.8]
        wishes: list[tuple[list[Grasp], bool | None]] = [(straight, True), (slanted, True), (straight + slanted, False)]
        if way.any() and slanted:
            wishes = [(ahead, True), (ahead, False), (ahead, None)]
        for grasps, arm in wishes:
            free = [grasp for grasp in grasps if arm is None or self._has_room(name, grasp, arm)]
            if free:
                grasp = free[self.rng.integers(len(free))]
                self.choices |= {"side": grasp.side, "yaw": grasp.yaw}
                return grasp
        return None

    def _grasps(self, name: str) -> tuple[list[Grasp], list[Grasp]]:
        """Ways to take an object from above: across it if it is narrow; else at four sides of its rim, and between."""
        points, origin = self.scene.points(name), self.scene.position(name)
        low, high = points.min(0), points.max(0)
        middle, height = (low + high) / 2, high[2] - low[2]
        yaws = np.deg2rad(np.arange(-75, 90, 15))
        widths = np.array([np.ptp(points[:, :2] @ [-np.sin(yaw), np.cos(yaw)]) for yaw in yaws])
        if widths.min() < APERTURE:
            depth = max(low[2] + 0.015, high[2] - 0.035) if height > 0.05 else low[2] + max(0.012, 0.45 * height)
            offset = np.append(middle[:2], depth) - origin
            fitting = yaws[widths < min(APERTURE, widths.min() + 0.006)]
            return [Grasp(offset, float(yaw), float(yaw)) for yaw in fitting], []
        grasps = []
        for side in np.deg2rad([0, 90, 180, 270, 45, 135, 225, 315]).repeat(3) + self.rng.uniform(-0.25, 0.25, 24):
            outward = np.array([np.cos(side), np.sin(side)])
            radius = np.quantile((points[:, :2] - middle[:2]) @ outward, 0.995)
            depth = max(high[2] - 0.025, low[2] + 0.002)
            offset = np.append(middle[:2] + outward * (radius - 0.012), depth) - origin
            grasps.append(Grasp(offset, float(side % np.pi - np.pi / 2), float(side)))
        return grasps[:12], grasps[12:]

    def _has_room(self, name: str, grasp: Grasp, arm: bool) -> bool:
        """Whether the open fingers, and the hand and the wrist, come down without touching anything else."""
        centre = self.scene.position(name) + grasp.offset
        along = np.array([-np.sin(grasp.yaw), np.cos(grasp.yaw)])
        across = np.array([along[1], -along[0]])

        def highest(places: Iterable[float], width: float, ignore: str = "") -> float:
            spots = [centre[:2] + along * far + across * side for far in places for side in (-width, width)]
            return max(self.scene.height(spot, ignore) for spot in spots)

        free = max(centre[2] - 0.004, self.scene.points(name)[:, 2].min() + 0.011)
        if highest((-0.048, 0.048), 0.01) > free:
            return False
        if not arm:
            return True
        hand = highest((-0.1, -0.05, 0.0, 0.05, 0.1), 0.03, name) < centre[2] + 0.03
        return hand and highest((-0.06, 0.0, 0.06), 0.06, name) < centre[2] + 0.08

    def _pick(self, name: str, grasp: Grasp, aside: np.ndarray, lift: float) -> Script:
        rotation = grasp.rotation
        back = -rotation[:, 2]

        def spot(away: float = 0.0) -> np.ndarray:
            return self.scene.position(name) + grasp.offset + back * away

        via = self._via(spot())
        top = self.scene.height_between(self.scene.hand[:2], via, spot()[:2], ignore=name, width=0.1)
        height = min(max(spot()[2] + self.clearance, top + 0.025), 1.3)
        away = (height - spot()[2]) / back[2]
        yield from self._go(np.append(via, height), rotation, OPENED, tolerance=0.035, limit=30)
        yield from self._go(lambda: spot(away), rotation, OPENED, tolerance=0.015)
        yield from self._go(spot, rotation, OPENED, tolerance=0.008, limit=30, speed=0.7)
        yield from self._rest(11, CLOSED, rotation)
        self._held = self.scene.position(name) - self.scene.hand
        if aside.any():
            start = self.scene.hand + _up(0.02)
            yield from self._go(start, rotation, CLOSED, limit=8)
            yield from self._go(start + np.append(aside, 0), rotation, CLOSED, tolerance=0.02, limit=30)
        yield from self._go(self.scene.hand + _up(lift), rotation, CLOSED, tolerance=lift / 4, limit=30)

    def _holds(self, name: str, slip: float = 0.04) -> bool:
        return float(np.linalg.norm(self.scene.position(name) - self.scene.hand - self._held)) < slip

    def _drag(self, name: str, goal: str, rotation: np.ndarray) -> Script:
        """Pull something flat over the table, round a corner if something stands in the way."""
        height, start, end = self.scene.hand[2], self.scene.position(name)[:2], self.scene.position(goal)[:2]
        corners = [end, np.array([start[0], end[1]]), np.array([end[0], start[1]])]
        width = self.scene.size(name)[0] / 2
        heights = [self.scene.height_between(start, corner, end, ignore=name, width=width) for corner in corners]
        for corner in (corners[int(np.argmin(heights))], end):

            def ahead(corner: np.ndarray = corner) -> np.ndarray:
                return np.append(self.scene.hand[:2] + corner - self.scene.position(name)[:2], height)

            yield from self._go(
                ahead, rotation, CLOSED, tolerance=0.02, limit=60, until=lambda: not self._holds(name, 0.1)
            )
        yield from self._rest(8, OPENED, rotation)

    def _place(self, name: str, goal: str, rotation: np.ndarray) -> Script:
        held = self.scene.position(name) - self.scene.hand
        below = self.scene.position(name)[2] - self.scene.points(name)[:, 2].min()
        spot = self.scene.position(goal) + np.append(self.rng.uniform(-0.008, 0.008, 2), 0)
        support = self.scene.support(goal)
        put = np.append(spot[:2], support + below + 0.012) - held
        via = self._via(put)
        top = self.scene.height_between(self.scene.hand[:2], via, put[:2], ignore=name, width=0.05)
        height = max(self.scene.hand[2], top + below - held[2] + 0.05)

        def lost() -> bool:
            return not self._holds(name)

        for target, tolerance, limit, speed in (
            (np.append(self.scene.hand[:2], height), 0.03, 30, 1.0),
            (np.append(via, height), 0.05, 40, 1.0),
            (np.append(put[:2], height), 0.015, 60, 1.0),
            (put, 0.012, 30, 0.8),
        ):
            yield from self._go(target, rotation, CLOSED, tolerance=tolerance, limit=limit, speed=speed, until=lost)
        yield from self._rest(8, OPENED, rotation)
        yield from self._go(self.scene.hand + _up(0.1), rotation, OPENED, tolerance=0.03, limit=30)

    # Drawers and knobs

    def _open(self, region: str) -> Script:
        """Take the bar of a drawer's handle from the front, one finger above and one below, and pull."""
        drawer = self.scene.drawer_of(region)
        if drawer is None:
            return
        bar, outward = self.scene.handle(drawer)
        tilt = float(self.rng.uniform(*np.deg2rad([70, 85])))
        along = np.array([outward[1], -outward[0], 0.0]) * self.rng.uniform(-0.015, 0.015)
        self.choices["tilt"] = tilt
        rotation = _rotation(np.arctan2(outward[1], outward[0]) - np.pi / 2, -tilt)
        spot = bar + along + outward * 0.005
        yield from self._go(spot + outward * 0.16 + _up(0.12), rotation, OPENED, tolerance=0.04)
        yield from self._go(spot + outward * 0.09, rotation, OPENED, tolerance=0.012)
        yield from self._go(spot, rotation, OPENED, tolerance=0.008, limit=40, speed=0.7)
        yield from self._rest(11, CLOSED, rotation)

        def opened() -> bool:
            return self.scene.is_open(drawer)

        pull = self.scene.hand + outward * 0.2
        yield from self._go(pull, rotation, CLOSED, limit=60, until=opened)
        yield from self._rest(6, OPENED, rotation)
        yield from self._go(self.scene.hand + outward * 0.06, rotation, OPENED, tolerance=0.03)
        yield from self._go(self.scene.hand + _up(0.1), POINTS_DOWN, OPENED, tolerance=0.04)

    def _turn_knob(self, stove: str) -> Script:
        """Take the ridge of the knob between the fingers and turn the hand."""
        centre, ridge = self.scene.knob(stove)
        yaw = (ridge + np.pi / 2) % np.pi - np.pi / 2
        rotation = _rotation(yaw)
        yield from self._go(np.append(self._via(centre), centre[2] + 0.1), rotation, OPENED, tolerance=0.035, limit=30)
        yield from self._go(centre + _up(0.08), rotation, OPENED, tolerance=0.012)
        yield from self._go(centre, rotation, OPENED, tolerance=0.008, limit=40, speed=0.7)
        yield from self._rest(11, CLOSED, rotation)
        for angle in np.linspace(0.1, 1.1, 12):
            yield from self._go(centre, _rotation(yaw + angle), CLOSED, limit=3)
        yield from self._rest(4, OPENED)
        yield from self._go(self.scene.hand + _up(0.1), self.scene.hand_rotation, OPENED, tolerance=0.03)


def _rotation(yaw: float, tilt: float = 0.0) -> np.ndarray:
    """Of a hand that is first tilted about x, then turned about the vertical."""
    return Rotation.from_euler("xz", [tilt, yaw]).as_matrix() @ POINTS_DOWN


def _up(height: float) -> np.ndarray:
    return np.array([0.0, 0.0, height])
