"""What a sweep says in words and files: table.csv, figures and report.md in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..figure import save
from .figures import NAMES, best_values, draw_figures, number, split, symbol, varying
from .grid import show
from .table import SweepTable, load_sweep

__all__ = ["best_table", "failures", "findings", "lambda_falls", "write_report"]


def lambda_falls(table: SweepTable) -> bool:
    """Whether the best lambda never rises with the number of steps, and ends below where it began."""
    best = [value for value, _ in best_values(split(table)[0], "loss.lam").values()]
    return all(later <= before for before, later in pairwise(best)) and best[-1] < best[0]


def findings(table: SweepTable) -> list[str]:
    """Sentences on the best lambda against the number of steps, and on the best score."""
    ours, theirs = split(table)
    sentences = []
    metric = NAMES[table.sweep.metric]
    if "loss.lam" in varying(ours) and len(ours.steps) > 1:
        found = best_values(ours, "loss.lam")
        best = {count: value for count, (value, _) in found.items()}
        first, last = ours.steps[0], ours.steps[-1]
        listed = ", ".join(f"{show(value)} at {count}" for count, value in best.items())
        span = f"from {show(best[first])} at {_steps(first)} to {show(best[last])} at {last}"
        if lambda_falls(table):
            verdict = f"falls {span}, as in the paper"
        elif best[last] < best[first]:
            verdict = f"falls {span}, though not at every number of steps between"
        else:
            verdict = f"does not fall: {span}"
        sentences.append(f"The best λ {verdict}. By number of steps: {listed}.")
        ties = [
            f"{_steps(count)}: {', '.join(show(v) for v in equal)}"
            for count, (_, equal) in found.items()
            if len(equal) > 1
        ]
        if ties:
            sentences.append("Values of λ within 5 % of the best: " + "; ".join(ties) + ".")
    if ours.rows:
        cell = min(ours.cells(), key=lambda c: c.score)
        where = ", ".join(f"{symbol(axis)} = {show(cell.settings[ours.axes.index(axis)])}" for axis in varying(ours))
        churn = "" if cell.churn is None else f", churn {cell.churn:g}"
        sentences.append(
            f"Best {metric}: {number(cell.score)} at {_steps(cell.steps)}"
            + (f" with {where}{churn}." if where else ".")
        )
    if theirs.rows:
        cell = min(theirs.cells(), key=lambda c: c.score)
        sentences.append(f"The classical model's best: {number(cell.score)} at {_steps(cell.steps)}.")
    return sentences


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count > 1)}"


def best_table(table: SweepTable) -> str:
    """Markdown: for each number of steps the best settings, beside the floor."""
    from ..reproduce.record import table as markdown

    ours, theirs = split(table)
    axes = varying(ours)
    classical = theirs.best_by()
    header = ["steps", f"best {NAMES[table.sweep.metric]}", *map(symbol, axes), "churn"]
    header += ["classical"] if theirs.rows else []
    rows = []
    for (count,), cell in sorted(ours.best_by().items()):
        settings = [show(cell.settings[ours.axes.index(axis)]) for axis in axes]
        score = number(cell.score) + (f" ± {number(cell.std)}" if cell.std is not None else "")
        row = [str(count), score, *settings, show(cell.churn)]
        rows.append(row + ([number(classical[(count,)].score)] if (count,) in classical else [""] * bool(theirs.rows)))
    if table.floor is not None:
        rows.append(["floor", number(table.floor), *[""] * (len(header) - 2)])
    return markdown(header, rows)


def failures(pairs: Sequence[tuple[str, str]]) -> str:
    """Runs that failed, a line each."""
    return "\n".join(f"- `{name}`: {error}" for name, error in pairs)


def write_report(path: str | Path, **options: Any) -> SweepTable:
    """Write table.csv, the figures and report.md into a sweep's folder; see `draw_figures` for the options."""
    folder, table = Path(path), load_sweep(path)
    (folder / "table.csv").write_text(table.csv())
    pictures: list[str] = []

    def keep(figure: Any, name: str, caption: str) -> None:
        save(figure, folder, name)
        pictures.append(f"![{caption}]({name}.png)\n\n*{caption}*")

    draw_figures(table, keep, **options)
    sweep = table.sweep
    settings = "".join(f", {name} = {show(value)}" for name, value in sweep.settings.items())
    page = [f"# Sweep of {sweep.recipe}"]
    page.append(
        f"Recipe {sweep.recipe}, scale {sweep.scale}{settings}; {sweep.metric} on {sweep.n} samples against held-out "
        f"data, at churns {', '.join(f'{churn:g}' for churn in sweep.churns)}. All rows are in `table.csv`."
    )
    page.append("\n".join(f"- {sentence}" for sentence in findings(table)))
    page += [best_table(table), *pictures] if table.rows else []
    page += [f"## Failed\n\n{failures(table.failed)}"] if table.failed else []
    page += ["## Unfinished\n\n" + "\n".join(f"- `{name}`" for name in table.unfinished)] if table.unfinished else []
    (folder / "report.md").write_text("\n\n".join(part for part in page if part) + "\n")
    return table
