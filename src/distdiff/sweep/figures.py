"""Figures of a sweep: heatmaps, the best settings against steps, score against steps, kernels side by side.

Every cell is shown at its best churn, and at the best of the settings that a figure does not show. Colours compare a
cell with the best one of the same number of steps: what matters is where the good region lies and how it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..figure import COLORS, canvas, plain_ticks
from .grid import KERNEL_PARAMETERS, show, value_of
from .table import Cell, SweepTable

__all__ = [
    "MASK",
    "NAMES",
    "SYMBOLS",
    "best_figure",
    "curves_figure",
    "draw_figures",
    "heatmap_figures",
    "level",
    "parameter",
]

SYMBOLS = {"loss.lam": "λ", "loss.beta": "β", "loss.c": "c", "loss.gamma": "γ", "loss.kernel": "kernel", "loss.m": "m"}
NAMES = {"mmd": "D", "fd": "fd", "fid": "FID"}
KERNEL_COLORS = {"energy": "#0b7a75", "imq": "#d9822b", "rbf": "#6f6fc8", "exp": "#b4283c"}
MASK = 3.0
"""Cells that are worse than this many times the best of their panel are greyed, unless a threshold is given."""
TIE = 1.05
"""Settings within this factor of the best are shown as its equals."""

Keep = Callable[[Any, str, str], object]
"""Takes a figure, its name and its caption."""


def symbol(axis: str) -> str:
    return SYMBOLS.get(axis, axis)


def level(table: SweepTable, score: float) -> float:
    """A score on a scale of ratios: unbiased ones may fall below 0, and less than the floor's error says nothing."""
    return max(score, table.floor_error or 0.0, 1e-12)


def number(value: float) -> str:
    """A score in as few characters as tell it apart."""
    if value != 0 and not 0.095 <= abs(value) < 9999.5:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def split(table: SweepTable) -> tuple[SweepTable, SweepTable]:
    """The distributional runs, and the classical ones."""
    if "loss.kind" not in table.axes:
        return table, table.select(lambda row: False)
    index = table.axes.index("loss.kind")
    return (
        table.select(lambda row: row.settings[index] != "regression"),
        table.select(lambda row: row.settings[index] == "regression"),
    )


def varying(table: SweepTable) -> list[str]:
    """Axes with more than one value."""
    return [axis for axis in table.axes if len(table.values(axis)) > 1]


def parameter(table: SweepTable, kernel: str | None = None) -> str | None:
    """The axis beside lambda that is shown: the kernel's parameter, or else the first that is none of a kernel."""
    own = KERNEL_PARAMETERS[kernel or value_of(table.sweep.base, "loss.kernel")]
    there = [axis for axis in varying(table) if axis not in ("loss.lam", "loss.kernel")]
    others = [axis for axis in there if axis not in KERNEL_PARAMETERS.values()]
    return own if own in there else others[0] if others else None


def draw_figures(
    table: SweepTable,
    keep: Keep,
    *,
    mask: float | None = None,
    lam: float | None = None,
    classical: float | None = None,
) -> None:
    """All figures that the table has the axes for.

    Args:
        mask: scores above it are greyed in heatmaps; by default those above 3 times the best of their panel.
        lam: lambda at which kernels are compared; the largest by default.
        classical: the classical model's score; by default that of the classical run with most steps, if there is one.
    """
    ours, theirs = split(table)
    if not ours.rows:
        return
    line = (f"classical: {number(classical)}", classical) if classical is not None else classical_line(ours, theirs)
    kernels = ours.values("loss.kernel") if "loss.kernel" in varying(ours) else [None]
    for kernel in kernels:
        part = ours if kernel is None else ours.where("loss.kernel", kernel)
        suffix = "" if kernel is None else f"-{kernel}"
        heatmap_figures(part, keep, f"heatmap{suffix}", mask=mask, kernel=kernel)
    best_figure(ours, keep)
    curves_figure(ours, keep, line)
    if len(kernels) > 1:
        kernels_figure(ours, keep, lam, line)


def classical_line(ours: SweepTable, theirs: SweepTable) -> tuple[str, float] | None:
    """The classical model at its largest number of steps: a run of it, or lambda = 0 and beta = 2, its loss."""
    if theirs.rows:
        cell = min((c for c in theirs.cells() if c.steps == theirs.steps[-1]), key=lambda c: c.score)
        return f"classical model, {cell.steps} steps", cell.score
    if "loss.lam" in ours.axes and "loss.beta" in ours.axes:
        same = [c for (n, lam, beta), c in ours.best_by("loss.lam", "loss.beta").items() if (lam, beta) == (0.0, 2.0)]
        if same:
            cell = max(same, key=lambda c: c.steps)
            return f"λ = 0, β = 2 (the classical loss), {cell.steps} steps", cell.score
    return None


def heatmap_figures(
    table: SweepTable, keep: Keep, name: str = "heatmap", *, mask: float | None = None, kernel: str | None = None
) -> None:
    """A panel for each number of steps: lambda across, the kernel's parameter upwards, scores in the cells."""
    from matplotlib.colors import LogNorm

    across, up = "loss.lam", parameter(table, kernel)
    if "loss.lam" not in varying(table) or up is None:
        return
    cells, columns, rows = table.best_by(across, up), table.values(across), table.values(up)
    steps = table.steps
    per_row = min(len(steps), 5 if len(columns) <= 4 else 3)
    lines = -(-len(steps) // per_row)
    size = (0.72 * len(columns) + 0.75, 0.46 * len(rows) + 0.85)
    with canvas(lines, per_row, size=size, squeeze=False, sharex=True, sharey=True) as (figure, panels):
        norm, colors = LogNorm(1.0, MASK), _colormap()
        for axes in panels.flat[len(steps) :]:
            axes.set_visible(False)
        for axes, count in zip(panels.flat, steps, strict=False):
            here = {key[1:]: cell for key, cell in cells.items() if key[0] == count}
            _panel(axes, table, here, columns, rows, mask, norm, colors)
            axes.set_title(f"{count} step{'s' * (count > 1)}")
        for axes in panels[:, 0]:
            axes.set_ylabel(symbol(up), rotation=0, labelpad=10, fontsize=12)
        for index, axes in enumerate(panels.flat[: len(steps)]):
            if index + per_row >= len(steps):
                axes.set_xlabel(symbol(across), fontsize=12)
                axes.tick_params(labelbottom=True)
        _colorbar(figure, panels, norm, colors)
        title = f"{_score_name(table)} of each run, lower is better" + (f" ({kernel} kernel)" if kernel else "")
        figure.suptitle(title, fontsize=12)
        rule = f"above {number(mask)}" if mask is not None else f"more than {MASK:g} times the best of the panel"
        keep(
            figure,
            name,
            f"{_score_name(table)} against λ and {symbol(up)} at the best churn, a panel for each number of steps. The "
            f"best cell of a panel is framed; grey cells are {rule}"
            + ("; hatched ones have no score." if len(cells) < len(steps) * len(columns) * len(rows) else "."),
        )


def _panel(
    axes: Any,
    table: SweepTable,
    cells: dict[tuple[Any, ...], Cell],
    columns: Sequence[Any],
    rows: Sequence[Any],
    mask: float | None,
    norm: Any,
    colors: Any,
) -> None:
    from matplotlib.patches import Rectangle

    best = min(cells.values(), key=lambda cell: cell.score)
    for i, x in enumerate(columns):
        for j, y in enumerate(rows):
            cell = cells.get((x, y))
            corner = (i - 0.5, j - 0.5)
            if cell is None:
                axes.add_patch(Rectangle(corner, 1, 1, fc="white", ec="#bbbbbb", hatch="////", lw=0))
                continue
            ratio = level(table, cell.score) / level(table, best.score)
            masked = cell.score > mask if mask is not None else ratio > MASK
            shade = (0.88, 0.88, 0.88, 1.0) if masked else colors(norm(min(ratio, MASK)))
            dark = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] < 0.55
            axes.add_patch(Rectangle(corner, 1, 1, fc=shade, ec="white", lw=1.2))
            ink = "#8a8a8a" if masked else "white" if dark else "#222222"
            weight = "bold" if cell is best else "normal"
            axes.text(i, j, number(cell.score), ha="center", va="center", fontsize=8.5, color=ink, weight=weight)
            if cell is best:
                axes.add_patch(Rectangle((i - 0.46, j - 0.44), 0.92, 0.88, fill=False, ec="#d9822b", lw=2.2, zorder=3))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5))
    axes.set_xticks(range(len(columns)), map(show, columns))
    axes.set_yticks(range(len(rows)), map(show, rows))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _colormap() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("good", ["#0b5a57", "#3f9f95", "#a9d6c5", "#f4efdc"])


def _colorbar(figure: Any, panels: Any, norm: Any, colors: Any) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(norm, colors), ax=panels, pad=0.02, aspect=22)
    bar.set_ticks([1, 1.5, 2, 3], labels=["1", "1.5", "2", "3"])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("times the panel's best", fontsize=9)


def _score_name(table: SweepTable) -> str:
    return {"mmd": "D between samples and held-out points"}.get(table.sweep.metric, NAMES[table.sweep.metric])


def best_values(table: SweepTable, axis: str) -> dict[int, tuple[Any, list[Any]]]:
    """For each number of steps the best value of an axis, and all values that come within 5 % of it."""
    cells, found = table.best_by(axis), {}
    for count in table.steps:
        scores = {
            value: level(table, cells[count, value].score) for value in table.values(axis) if (count, value) in cells
        }
        raw = {value: cells[count, value].score for value in scores}
        best = min(raw, key=lambda value: raw[value])
        found[count] = best, [value for value in scores if scores[value] <= TIE * scores[best]]
    return found


def best_figure(table: SweepTable, keep: Keep) -> None:
    """The best value of each axis that varies against the number of steps."""
    kernels = "loss.kernel" in varying(table)
    shown = [
        axis for axis in varying(table) if axis == "loss.lam" or not (kernels and axis in KERNEL_PARAMETERS.values())
    ]
    shown = [axis for axis in shown if len(table.values(axis)) > 1]
    if not shown or len(table.steps) < 2:
        return
    with canvas(1, len(shown), size=(4.4, 3.4), squeeze=False) as (figure, panels):
        for axes, axis in zip(panels[0], shown, strict=True):
            values, found = table.values(axis), best_values(table, axis)
            for position, (_, equal) in enumerate(found.values()):
                places = sorted(values.index(value) for value in equal)
                axes.plot([position] * len(places), places, "o", ms=13, color="#cfe6e2", mec="none", zorder=1)
                axes.plot(
                    [position, position],
                    [places[0], places[-1]],
                    color="#cfe6e2",
                    lw=9,
                    zorder=1,
                    solid_capstyle="round",
                )
            line = [values.index(best) for best, _ in found.values()]
            axes.plot(range(len(line)), line, "o-", color=COLORS["distributional"], ms=7, zorder=2)
            axes.set_xticks(range(len(line)), [str(count) for count in found])
            axes.set_yticks(range(len(values)), map(show, values))
            axes.set(xlabel="denoising steps", ylim=(-0.5, len(values) - 0.5), title=f"best {symbol(axis)}")
        keep(
            figure,
            "best",
            f"The settings with the least {NAMES[table.sweep.metric]} against the number of steps, each at the best of "
            "all others. Shaded: settings within 5 % of the best.",
        )


def curves_figure(table: SweepTable, keep: Keep, line: tuple[str, float] | None) -> None:
    """Score against steps, a curve for each lambda (or for each value of the axis there is)."""
    shown = varying(table)
    axis = "loss.lam" if "loss.lam" in shown else shown[0] if shown else None
    from matplotlib import colormaps

    cells = table.best_by(*([axis] if axis else []))
    values = table.values(axis) if axis else [None]
    shades = colormaps["viridis"]([0.85 * (1 - i / max(len(values) - 1, 1)) for i in range(len(values))])
    with canvas(size=(7.2, 4.0)) as (figure, axes):
        for value, color in zip(values, shades, strict=True):
            key = (lambda n, v=value: (n, v)) if axis else (lambda n: (n,))
            points = [(n, level(table, cells[key(n)].score)) for n in table.steps if key(n) in cells]
            label = f"{symbol(axis)} = {show(value)}" if axis else table.sweep.recipe
            axes.plot(*zip(*points, strict=True), "o-", color=color, label=label)
        _finish_curves(axes, table, line)
        others = [symbol(other) for other in shown if other != axis]
        best = f", each point at its best {' and '.join([*others, 'churn'])}"
        keep(figure, "curves", f"{_score_name(table)} against the number of steps{best}.")


def kernels_figure(table: SweepTable, keep: Keep, lam: float | None, line: tuple[str, float] | None) -> None:
    """Score against steps for each kernel at one lambda, each at its best parameter."""
    at = ""
    if "loss.lam" in table.axes:
        lam = table.values("loss.lam")[-1] if lam is None else lam
        table, at = table.where("loss.lam", lam), f" at λ = {show(lam)}"
    cells = table.best_by("loss.kernel")
    if not cells:
        return
    with canvas(size=(7.2, 4.0)) as (figure, axes):
        for kernel in table.values("loss.kernel"):
            points = [(n, level(table, cells[n, kernel].score)) for n in table.steps if (n, kernel) in cells]
            axes.plot(*zip(*points, strict=True), "o-", color=KERNEL_COLORS[kernel], label=kernel)
        axes.set_title(f"kernels{at}")
        _finish_curves(axes, table, line)
        keep(figure, "kernels", f"Kernels compared{at}, each point at the kernel's best parameter and churn.")


def _finish_curves(axes: Any, table: SweepTable, line: tuple[str, float] | None) -> None:
    if line is not None:
        axes.axhline(level(table, line[1]), color=COLORS["diffusion"], ls=":", lw=1.6, label=line[0])
    if table.floor is not None and table.floor > 0:
        axes.axhline(table.floor, color=COLORS["floor"], ls="--", lw=1.2, label="floor: two real sets")
    if table.floor_error and any(row.score < table.floor_error for row in table.rows):
        axes.axhspan(
            0.5 * table.floor_error, table.floor_error, color="#eeeeee", zorder=0, label="below the floor's error"
        )
    axes.set(
        xscale="log", yscale="log", xlabel="denoising steps", ylabel=f"{NAMES[table.sweep.metric]} (lower is better)"
    )
    if table.sweep.metric == "mmd":
        axes.set_xticks(table.steps, [str(count) for count in table.steps])
        axes.minorticks_off()
    else:
        plain_ticks(axes, table.steps)
    axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))
