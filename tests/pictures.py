"""Pictures of a terminal, from texts that tests compare with what mesh prints: ``python -m tests.pictures``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.pages import DOCS

REPOSITORY = DOCS.parent
PICTURES = DOCS / "pictures"
TUTORIAL = "docs/tutorial.md"
# Each picture: the file with its text and, of a page, the first command of the block.
SOURCES = {
    "first-run": (TUTORIAL, "mesh run local python3 train.py"),
    "check": (TUTORIAL, "mesh check pair"),
    "failure": (TUTORIAL, "mesh run pair python3 train.py 1"),
    "interrupt": (TUTORIAL, "mesh run pair python3 train.py --long"),
    "fold": ("tests/golden/fold.txt", ""),
    "verdict": ("tests/golden/verdict.txt", ""),
}
# As on a terminal: bold, and the colours of labels by rank.
BOLD, RED, GREY, GREEN = "b", "r", "g", "ok"
HUES, HUES_OF_SETS = ("m", "u", "p", "v"), ("c", "y")
STYLE = """\
text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d8dee9}
.b{font-weight:bold;fill:#fff}.r{fill:#ff6b6b;font-weight:bold}.g{fill:#8b949e}.ok{fill:#7ee787}
.m{fill:#d2a8ff}.u{fill:#79c0ff}.p{fill:#ff9bce}.v{fill:#a5b4fc}.c{fill:#56d4dd}.y{fill:#7fe3d4}"""
LINE_PX, COLUMN_PX, EDGE_PX, BAR_PX = 18, 7.9, 16, 34


def text_of(name: str) -> str:
    """Return the text of a picture as the tested file has it."""
    path, command = SOURCES[name]
    text = (REPOSITORY / path).read_text()
    if not command:
        return text.rstrip("\n")
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if block.startswith(f"$ {command}\n"):
            return str(block).rstrip("\n")
    raise KeyError(f"{path} has no block that begins with: $ {command}")


def spans(line: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a line, each with its class.

    >>> list(spans("[0-3] step 1"))
    [('c', '[0-3]'), ('', ' step 1')]
    >>> list(spans("error: lost"))
    [('r', 'error:'), ('', ' lost')]
    """
    if line.startswith("$ "):
        yield from ((GREEN, "$"), (BOLD, line[1:]))
    elif found := re.match(r"\[(\d+)([\d,-]*)\]", line):
        count = _count(found[0][1:-1])
        hues = HUES if count == 1 else HUES_OF_SETS
        yield from ((hues[(int(found[1]) if count == 1 else count) % len(hues)], found[0]), ("", line[found.end() :]))
    elif line.startswith("==>"):
        yield from ((BOLD, "==>"), ("", line[3:]))
    elif line.startswith("error:"):
        yield from ((RED, "error:"), ("", line[6:]))
    elif line in ("...", "^C"):
        yield (GREY, line)
    else:
        yield ("", line)


def _count(ranks: str) -> int:
    """Return how many ranks a label names.

    >>> _count("0-6,8")
    8
    """
    parts = [part.split("-") for part in ranks.split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in parts)


def picture(text: str, title: str) -> str:
    """Return a terminal with this text, as SVG."""
    lines = text.split("\n")
    width = round(max(len(line) for line in lines) * COLUMN_PX) + 2 * EDGE_PX
    height = BAR_PX + len(lines) * LINE_PX + EDGE_PX
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(title, quote=False)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
        *(f'<circle cx="{20 + 18 * at}" cy="17" r="5" fill="#484f58"/>' for at in range(3)),
    ]
    for at, line in enumerate(lines):
        parts = "".join(
            f'<tspan class="{kind}">{escape(part, quote=False)}</tspan>' if kind else escape(part, quote=False)
            for kind, part in spans(line)
        )
        out.append(f'<text xml:space="preserve" x="{EDGE_PX}" y="{BAR_PX + (at + 1) * LINE_PX - 5}">{parts}</text>')
    return "\n".join([*out, "</svg>", ""])


def made(name: str) -> tuple[Path, str]:
    """Return the file of a picture, and its content."""
    text = text_of(name)
    return PICTURES / f"terminal-{name}.svg", picture(text, text.split("\n")[0].removeprefix("$ "))


if __name__ == "__main__":
    for one in SOURCES:
        path, content = made(one)
        path.write_text(content)
