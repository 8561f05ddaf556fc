"""`docs/results.md`: what the committed results say, put together from their files and never typed.

`python -m distdiff.reproduce.page [results] [docs/results.md]` writes it: for every folder of results its command, its
findings, its tables and its figures, in the order of the folders' names, tables first.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

__all__ = ["page"]

HEADER = """# Results

Everything on this page was measured by the command above it and copied here by
`python -m distdiff.reproduce.page`; do not edit it. Training seeds, samples and settings are in each `results.json`.
"""


def page(results: Path, target: Path) -> str:
    """The text of the page for a folder of results, with links that hold from the page's place."""
    parts = [HEADER]
    for folder in sorted(results.iterdir(), key=lambda path: (not path.name.startswith("table"), path.name)):
        report, numbers = folder / "report.md", folder / "results.json"
        if report.is_file() and numbers.is_file():
            parts.append(_section(report.read_text(), json.loads(numbers.read_text()), folder, target))
    return "\n".join(parts)


def _section(report: str, numbers: dict[str, object], folder: Path, target: Path) -> str:
    """A report one level down, its pictures found from the page."""
    place = Path(*[".."] * (len(target.parts) - 1)) / folder.parent.name / folder.name
    lowered = re.sub(r"^#", "##", report, flags=re.MULTILINE)
    linked = re.sub(r"\]\(([^)/]+\.png)\)", lambda found: f"]({(place / found[1]).as_posix()})", lowered)
    versions = numbers.get("versions")
    assert isinstance(versions, dict)
    note = f"Files: [{folder.name}]({place.as_posix()}), distdiff {versions['distdiff']}."
    return f"{linked}\n{note}\n"


def main() -> None:
    given = [Path(word) for word in sys.argv[1:]]
    results, target = [*given, *[Path("results"), Path("docs/results.md")][len(given) :]]
    target.write_text(page(results, target))
    print(f"Wrote {target}")


if __name__ == "__main__":
    main()
