"""Plots of the tables in docs/: ``python -m benchmarks.plots`` writes them into docs/pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tests.pages import DOCS

PICTURES = DOCS / "pictures"
# Colours that are readable on the plot's own white ground.
STYLE = """\
text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-weight:bold;font-size:13px}.v{fill:#57606a}
.mesh{fill:#0969da}.other{fill:#afb8c1}"""
WIDTH_PX, LABEL_PX, VALUE_PX, ROW_PX, TOP_PX = 720, 260, 70, 22, 40


@dataclass(frozen=True)
class Plot:
    """Bars of one column of one table."""

    title: str
    page: str
    section: str  # the heading above the table
    column: str  # how the column's name begins
    unit: str


PLOTS = {
    "launch": Plot(
        "A command on 32 hosts, round trip 30 ms: seconds until the last line",
        "performance.md",
        "32 hosts, round trip 30 ms",
        "every host's line",
        "s",
    ),
    "loop": Plot(
        "From a saved file to the first line of 32 hosts, round trip 30 ms: seconds",
        "performance.md",
        "32 hosts, round trip 30 ms",
        "every host's line",
        "s",
    ),
    "sync": Plot(
        "20 MB to 8 hosts over 100 Mbit/s: seconds",
        "sync-performance.md",
        "8 hosts: cold, 20 MB over 100 Mbit/s (the bytes of one copy take 1.6 s)",
        "until its end",
        "s",
    ),
    "logs": Plot("Output of 32 hosts: MB/s, more is better", "logs-performance.md", "32 hosts", "MB/s", "MB/s"),
    "left": Plot(
        "Processes left of 16 after SIGKILL of the client", "reliability.md", "Beside other tools", "SIGKILL", ""
    ),
}
# Where a page has several sections with the same heading: the mark above it.
MARKS = {"loop": "loop", "launch": "launch"}


def table(text: str, section: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the first table below a heading. Raises ValueError if there is none.

    >>> table("## 8 hosts" + chr(10) + "| | s |" + chr(10) + "| --- | --- |" + chr(10) + "| mesh | 1 |", "8 hosts")
    (['', 's'], [['mesh', '1']])
    """
    found = re.search(rf"^#+ {re.escape(section)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in found[1].split("\n") if line.startswith("| ")] if found else []
    if len(lines) < 3:
        raise ValueError(f"no table below the heading {section!r}")
    head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return head, rows


def bars(name: str) -> list[tuple[str, float]]:
    """Return the names and values of a plot, as its page has them."""
    plot = PLOTS[name]
    text = (DOCS / plot.page).read_text()
    if name in MARKS:
        text = text.partition(f"<!-- {MARKS[name]} -->")[2].partition("<!-- ")[0]
    head, rows = table(text, plot.section)
    at = next(at for at, column in enumerate(head) if column.startswith(plot.column))
    return [(row[0], float(row[at].split()[0])) for row in rows if not row[0].startswith("floor:")]


def drawn(title: str, values: Sequence[tuple[str, float]], unit: str) -> str:
    """Return the bars as SVG."""
    height = TOP_PX + ROW_PX * len(values) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" width="{WIDTH_PX}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH_PX}" height="{height}" rx="8" fill="#fff"/>',
        f'<text class="t" x="12" y="24">{escape(title)}</text>',
    ]
    return "\n".join([*lines, *_rows(values, unit), "</svg>", ""])


def _rows(values: Sequence[tuple[str, float]], unit: str) -> Iterator[str]:
    scale = (WIDTH_PX - LABEL_PX - VALUE_PX) / (max(value for _, value in values) or 1.0)
    for at, (name, value) in enumerate(values):
        y, length = TOP_PX + ROW_PX * at, max(value * scale, 1.0)
        kind = "mesh" if name.startswith("mesh") else "other"
        yield f'<text x="{LABEL_PX - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
        yield f'<rect class="{kind}" x="{LABEL_PX}" y="{y + 3}" width="{length:.1f}" height="15"/>'
        yield f'<text class="v" x="{LABEL_PX + length + 6:.1f}" y="{y + 14}">{value:g} {unit}</text>'.replace(
            " </", "</"
        )


def made(name: str) -> tuple[Path, str]:
    """Return the file of a plot, and its content."""
    return PICTURES / f"plot-{name}.svg", drawn(PLOTS[name].title, bars(name), PLOTS[name].unit)


def write_plots() -> None:
    """Write all plots anew."""
    for name in PLOTS:
        path, content = made(name)
        path.write_text(content)


if __name__ == "__main__":
    write_plots()
