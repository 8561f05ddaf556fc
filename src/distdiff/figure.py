"""How the project's figures look, and where they are saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["COLORS", "LABELS", "canvas", "plain_ticks", "save"]

COLORS = {
    "distributional": "#0b7a75",
    "twin": "#d9822b",
    "diffusion": "#b4283c",
    "exact": "#6f9fd8",
    "floor": "#8a8a8a",
}
LABELS = {
    "distributional": "distributional (β=0.1, λ=1)",
    "twin": "same network, β=2, λ=0",
    "diffusion": "diffusion",
    "exact": "exact posterior",
    "floor": "floor: two real sets",
}

_STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "savefig.bbox": "tight",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@contextmanager
def canvas(rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (5.0, 3.6), **options: Any) -> Iterator[Any]:
    """A figure and its axes, drawn without a display and closed afterwards; `size` is that of one panel in inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, **options)


def save(figure: Any, folder: Path, name: str) -> list[str]:
    """Write NAME.png and NAME.pdf into a folder; their names."""
    names = [f"{name}.png", f"{name}.pdf"]
    for file in names:
        figure.savefig(folder / file)
    return names


def plain_ticks(axes: Any, values: Iterable[int]) -> None:
    """Label a logarithmic x axis at these values, and both axes without powers of ten."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    ticks = sorted(set(values))
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
