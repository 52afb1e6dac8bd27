"""A run as one HTML file that opens offline: verdict, ranks, folded output, stacks, timeline and versions."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator

from msgspec import Struct

from mesh import __version__
from mesh.core.naming import RUN_ID
from mesh.core.ranks import counted
from mesh.pages.board import DONE, FAILED, LOST, STOPPED, Board
from mesh.pages.differences import tree_words, trees
from mesh.pages.events import Recorded, all_events
from mesh.pages.fields import Fields, count, inner, number, objects, text
from mesh.pages.lines import FoldedOutput
from mesh.pages.markup import Markup, Mask
from mesh.pages.stackgroups import merged
from mesh.pages.style import SHEET
from mesh.pages.timeline import PHASES, Timeline
from mesh.pages.verdicts import verdict_lines
from mesh.rundir.listing import status
from mesh.rundir.records import Record

LINES_MAX = 10_000  # of the output, half of them from its beginning
TEXT_BYTES_MAX = 1_500_000  # of the lines of the output in the file
SLICE_S = 1.0  # of folding at a time
WINDOW_LINES = 1000
# The timeline, in units of its picture.
WIDTH, ROW_HEIGHT, NAME_WIDTH, TICKS = 1000, 18, 150, 5
HOSTS_DRAWN = 128
SHAPES = {FAILED: "✗", LOST: "⌀", STOPPED: "■", DONE: "✓"}  # of ranks, beside their colours


class _Content(Struct, frozen=True):
    """The recorded facts of a run."""

    record: Record
    events: list[Recorded]
    timeline: Timeline
    board: Board
    output: FoldedOutput

    @property
    def about(self) -> Fields:
        return self.record.about


def report_html(record: Record, mask: Mask) -> Iterator[str]:
    """Yield the file in pieces. It runs no script, and its policy allows no request.

    mask: removes the values of secrets from a text. Raises OSError if the logs cannot be read.
    """
    board = Board(record.placement)
    output = FoldedOutput(record, seen=board.output)
    try:
        while output.advance(SLICE_S):
            pass
        timeline = Timeline(record.hosts, record.created)
        events = all_events(record.directory)
        for one in events:
            board.note(one.fields)
            timeline.note(one.fields)
        if record.ended is not None:
            board.end(record.about)
        board.find_steps()
        yield from _page(_Content(record, events, timeline, board, output), Markup(mask))
    finally:
        output.close()


def _page(found: _Content, markup: Markup) -> Iterator[str]:
    digest = base64.b64encode(hashlib.sha256(SHEET.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    record = found.record
    title = f"{record.named.name or record.run}: {status(record)}"
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{markup.text(title)}</title><style>{SHEET}</style></head><body><main>\n"
    )
    yield markup.tag("h1", title) + "\n"
    if lines := verdict_lines(found.about):
        shown = f'<pre id="verdict" tabindex="0">{_joined(markup, lines)}</pre>'
        yield f'<section class="bad"><h2>Verdict</h2>{shown}</section>\n'
    yield f"<h2>Run</h2>{markup.rows(_facts(found))}\n"
    yield f'<h2>Ranks</h2><div class="grid">{"".join(_cells(found.board, markup))}</div>\n'
    yield f"<h2>Timeline</h2>{''.join(_drawing(found, markup))}\n"
    yield from _stacks(found, markup)
    yield from _output(found, markup)
    yield f"<h2>Events</h2><details><summary>{counted(len(found.events), 'event')}</summary><table>"
    for mark in found.timeline.marks:
        who = f"rank {mark.rank}" if mark.rank >= 0 else mark.host
        cells = (_moment(mark.time), mark.name, who, mark.text)
        yield f"<tr>{''.join(markup.tag('td', cell) for cell in cells)}</tr>"
    yield "</table></details></main></body></html>\n"


def _joined(markup: Markup, lines: list[str]) -> str:
    return "\n".join(map(markup.text, lines))


def _facts(found: _Content) -> Iterator[tuple[str, str]]:
    record, about = found.record, found.about
    yield "run", record.run if RUN_ID.fullmatch(record.run) else ""
    yield "command", record.spec.told
    yield "cluster", f"{record.cluster}: {counted(len(record.hosts), 'host')}"
    yield "began", _moment(record.created)
    if record.ended is not None:
        yield "took", f"{max(0.0, record.ended - record.created):.1f} s"
        yield "exit", f"{record.exit_code} ({record.cause})"
    git = inner(about, "git")
    yield "git", f"{text(git, 'branch')} {text(git, 'commit')}".strip()
    yield "tree", tree_words(trees(record.directory))
    yield "workspace", text(about, "workspace")
    yield "variables", ", ".join(sorted(name for group in record.spec.groups for name in group.env))
    yield "versions", f"report by mesh {__version__}, run directory of version {count(about, 'version')}"


def _cells(board: Board, markup: Markup) -> Iterator[str]:
    for cell in board.cells:
        step = f" {cell.unit} {cell.step}" if cell.step >= 0 else ""
        about = f"rank {cell.rank} on {cell.host}: {cell.state} {cell.how}{step}"
        name = markup.text(f"{SHAPES.get(cell.state, '')} {cell.role or cell.rank}{step}")
        yield f'<span class="{cell.state}" title="{markup.text(about)}">{name}</span>'


def _drawing(found: _Content, markup: Markup) -> Iterator[str]:
    """Yield the timeline as SVG."""
    record = found.record
    end = record.ended or max((mark.time for mark in found.timeline.marks), default=record.created)
    bars = found.timeline.bars(end)
    begin = min((bar.begin for bar in bars), default=record.created)
    hosts = record.hosts[:HOSTS_DRAWN]
    scale = (WIDTH - NAME_WIDTH) / max(end - begin, 0.001)
    height = (len(hosts) + 1) * ROW_HEIGHT + 4
    yield '<div class="wide" tabindex="0">'
    yield f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    yield markup.tag("title", f"Phases of hosts: {', '.join(PHASES)}")
    rows = {host: number for number, host in enumerate(hosts)}
    for host, row in rows.items():
        yield f'<text x="0" y="{row * ROW_HEIGHT + 13}">{markup.text(host[:20])}{markup.tag("title", host)}</text>'
    for bar in bars:
        if bar.host in rows:
            inset = 5 if bar.phase == "silent" else 2
            title = markup.tag("title", f"{bar.phase}: {bar.end - bar.begin:.1f} s")
            yield (
                f'<rect class="{bar.phase}" x="{NAME_WIDTH + (bar.begin - begin) * scale:.1f}" '
                f'y="{rows[bar.host] * ROW_HEIGHT + inset}" width="{max(1.0, (bar.end - bar.begin) * scale):.1f}" '
                f'height="{ROW_HEIGHT - 2 * inset}">{title}</rect>'
            )
    if (at := number(inner(found.about, "first"), "time")) is not None:
        x = NAME_WIDTH + (at - begin) * scale
        yield f'<line class="first" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{len(hosts) * ROW_HEIGHT}"/>'
    for tick in range(TICKS):
        seconds = (end - begin) * tick / TICKS
        yield f'<text x="{NAME_WIDTH + seconds * scale:.1f}" y="{height - 4}">{seconds:.1f} s</text>'
    yield "</svg></div>"
    if len(record.hosts) > len(hosts):
        yield markup.tag("p", f"and {len(record.hosts) - len(hosts)} hosts more", "muted")


def _stacks(found: _Content, markup: Markup) -> Iterator[str]:
    """Yield the stacks that were taken while the run was on."""
    groups = [
        group
        for one in found.events
        if text(one.fields, "event") == "stacks"
        for group in objects(one.fields, "groups")
    ]
    if groups:
        yield "<h2>Stacks</h2>"
    for group in merged(groups):
        calls = _joined(markup, list(group.calls))
        yield f'<details><summary>{markup.text(group.head)}</summary><pre tabindex="0">{calls}</pre></details>\n'


def _output(found: _Content, markup: Markup) -> Iterator[str]:
    """Yield the folded lines: all, or the first and the last ones."""
    output = found.output
    total = len(output)
    half = LINES_MAX // 2
    yield f'<h2>Output</h2><p class="muted">{counted(total, "line")}, folded</p><pre id="output" tabindex="0">'
    if total <= LINES_MAX:
        yield from _lines(output, range(total), TEXT_BYTES_MAX, markup)
    else:
        yield from _lines(output, range(half), TEXT_BYTES_MAX // 2, markup)
        yield f"<i>[mesh: {total - 2 * half} lines left out here]</i>\n"
        yield from _lines(output, range(total - half, total), TEXT_BYTES_MAX // 2, markup)
    yield "</pre>\n"


def _lines(output: FoldedOutput, chosen: range, room: int, markup: Markup) -> Iterator[str]:
    for first in range(chosen.start, chosen.stop, WINDOW_LINES):
        for line in output.window(first, min(WINDOW_LINES, chosen.stop - first)):
            shown = f"<i>{markup.text(line.label)}</i> {markup.line(line.text)}\n"
            room -= len(shown.encode())
            if room < 0:
                left = chosen.stop - line.number
                yield f"<i>[mesh: {left} lines left out here: the file would be too large]</i>\n"
                return
            yield shown


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if 0 < seconds < 1e11 else ""
