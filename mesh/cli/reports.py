"""The findings of ``mesh check``, and other lists, as tables and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mesh.core.amounts import told_bytes

if TYPE_CHECKING:
    from mesh.api import ClusterLine, Explanation, HostReport, Leftover, Listed, RunLine, Stacks
    from mesh.core.look import Paint
    from mesh.keeper.packets import About

UNKNOWN_PRICE = "?"
SHORT = {"ok": "ok", "warning": "warn", "failed": "FAILED", "unknown": "-"}
COMMAND_WIDTH = 60  # characters of a command
HEALTHY_ROWS = 8  # healthy hosts that a long table shows
RUN_COLUMNS = ("run", "cluster", "owner", "age", "hosts", "ranks", "state", "devices", "command")
RUN_DROPPED = ("devices", "owner", "ranks", "hosts", "cluster", "age")  # in a narrow terminal, the first one first
WORKSPACES = "workspaces"  # the finding about their sizes; no column either
MODULES = "modules"  # the finding about what modules have left on hosts; no column of its own
CELL_WIDTH = 16  # characters of a cell; longer texts stand below the table


def amount(known: float, unknown: float) -> str:
    """Return a sum of money whose parts may be unknown.

    >>> amount(1.5, 0), amount(0, 2.0), amount(1.5, 2.0)
    ('1.50', '?', '1.50 + ?')
    """
    if not unknown:
        return f"{known:.2f}"
    return f"{known:.2f} + {UNKNOWN_PRICE}" if known else UNKNOWN_PRICE


def report_as_dict(report: HostReport) -> dict[str, Any]:
    """Return a host's findings as ``mesh check --json`` prints them."""
    checks = [
        {"name": one.name, "verdict": one.verdict.value, "detail": one.told, "hint": one.hint}
        for one in report.findings
    ]
    return {"host": report.host, "ok": report.ok, "checks": checks}


def table(reports: Sequence[HostReport], width: int = 0, paint: Paint | None = None) -> Iterator[str]:
    """A row for each host, of many only for those that are not as they should be; below, what is wrong and what to do.

    A column where there is nothing to see is only named.
    width: of a row, 0: unlimited; where that is too little, columns stand below each other; paint: None: no colours
    """
    from mesh.core.ranks import few

    findings = [
        finding for report in reports for finding in report.findings if finding.name not in (MODULES, WORKSPACES)
    ]
    names = list(dict.fromkeys(finding.name for finding in findings))
    cells = {report.host: {name: _cell(report, name) for name in names} for report in reports}
    hidden = any(cell == SHORT["unknown"] for row in cells.values() for cell in row.values())
    looked_at = [name for name in names if any(row[name] != SHORT["unknown"] for row in cells.values())]
    dull = [name for name in looked_at if all(row[name] in (SHORT["ok"], SHORT["unknown"]) for row in cells.values())]
    seen = [name for name in looked_at if name not in dull]
    rows = [report for report in reports if len(reports) <= HEALTHY_ROWS or _troubles(report)]
    if rows:
        table = [["host", *seen], *([one.host, *(cells[one.host][name] for name in seen)] for one in rows)]
        for part in _parts(table, width):
            yield from aligned([[_painted(cell, paint) for cell in row] for row in part] if paint else part)
    if len(rows) < len(reports):
        yield f"{'and ' if rows else ''}{len(reports) - len(rows)} host{'s' * (len(reports) - len(rows) != 1)} all ok"
    if dull:
        where = " elsewhere" if hidden else " everywhere" if len(reports) > 1 else ""
        yield f"ok{where}: {', '.join(dull)}"
    yield from _set_up(reports)
    for told, hosts in _hosts_by_text(reports, WORKSPACES).items():
        yield f"workspaces on {few(hosts)}: {told}"
    from mesh.core.findings import explain

    yield from _not_tried(reports)
    for lines in explain({report.host: report.findings for report in reports}):
        yield from ("", *lines)


def _not_tried(reports: Sequence[HostReport]) -> Iterator[str]:
    """Yield a line for each property that could not be checked, where its source has the reason."""
    findings = [one for report in reports for one in report.findings if one.verdict.value == "unknown" and one.told]
    for name, told in dict.fromkeys((one.name, one.told) for one in findings):
        yield f"not checked: {name}: {told}"


def _set_up(reports: Sequence[HostReport]) -> Iterator[str]:
    """Yield a line for each thing that modules have left on hosts on purpose."""
    from mesh.core.ranks import few

    for told, names in _hosts_by_text(reports, MODULES).items():
        yield f"set up by modules on {few(names)}: {told} (`mesh setup --undo` removes it)"


def _hosts_by_text(reports: Sequence[HostReport], name: str) -> dict[str, list[str]]:
    """Return the hosts by the texts of their findings of a name."""
    hosts: dict[str, list[str]] = {}
    for report in reports:
        for finding in report.findings:
            if finding.name == name and finding.told:
                hosts.setdefault(finding.told, []).append(report.host)
    return hosts


def _parts(rows: Sequence[Sequence[str]], width: int) -> Iterator[list[list[str]]]:
    """Split a table into tables that fit a width, each with the first column: no column of a check is dropped."""
    from mesh.core.width import GAP

    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    chosen: list[int] = []
    for column in range(1, len(widths)):
        taken = sum(widths[one] + len(GAP) for one in (0, *chosen))
        if width and chosen and taken + widths[column] > width:
            yield [[row[one] for one in (0, *chosen)] for row in rows]
            chosen = []
        chosen.append(column)
    yield [[row[one] for one in (0, *chosen)] for row in rows]


def _painted(cell: str, paint: Paint) -> str:
    if cell.startswith(SHORT["failed"]):
        return paint.bad(cell)
    if cell.startswith(SHORT["warning"]):
        return paint.warning(cell)
    return paint.good(cell) if cell == SHORT["ok"] else cell


def _troubles(report: HostReport) -> list[Any]:
    return [finding for finding in report.findings if finding.verdict.value in ("failed", "warning")]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of a table, without the blanks at their ends."""
    from mesh.core.width import Table

    yield from Table(rows[0]).lines(rows[1:])


def cluster_lines(found: Sequence[ClusterLine], width: int, paint: Paint) -> Iterator[str]:
    """Yield a line for each cluster; a problem may have several. width: of a line, 0: unlimited"""
    from mesh.core.width import GAP, fitted

    name_width = max(len(line.name) for line in found)
    for line in found:
        count = len(line.hosts)
        about = paint.bad(line.problem) if line.problem else line.note or f"{count} host{'s' * (count != 1)}"
        for number, text in enumerate(about.split("\n")):
            name = "" if number else line.name
            whole = f"{name:<{name_width}}{GAP}{text}"
            yield whole if line.problem or not width else fitted(whole, width)


def stack_lines(found: Stacks, *, full: bool) -> Iterator[str]:
    """Where the ranks are; full: with every call of every thread."""
    from mesh.core import stacks

    return (stacks.full if full else stacks.short)(found.groups, found.ended, found.ended_names)


def stacks_as_dict(found: Stacks) -> dict[str, Any]:
    """``run``, ``groups``, ``ended``, ``notes`` and ``failures``."""
    from mesh.core import stacks

    return {
        "run": found.run,
        "groups": [stacks.as_dict(group) for group in found.groups],
        "ended": list(found.ended),
        "notes": list(found.notes),
        "failures": list(found.failures),
    }


class RunsTable:
    """A table of runs whose rows are written as they come; a column grows with its widest cell."""

    def __init__(self, width: int, paint: Paint) -> None:
        """width: of a row, 0: unlimited"""
        from mesh.core.width import Table

        self._table, self._paint = Table(RUN_COLUMNS, width=width, dropped=RUN_DROPPED), paint

    def rows(self, runs: Sequence[RunLine], now: float) -> Iterator[str]:
        """Return a row for each run, the first time below a head; now: seconds since the epoch."""
        yield from self._table.lines([_run_row(line, now, self._paint) for line in runs])

    def end(self, *, is_complete: bool = True) -> Iterator[str]:
        """Yield the line for no run. is_complete: all hosts have answered"""
        if self._table.is_empty:
            yield "no run is there" if is_complete else "no run is on the hosts that answer"


def _run_row(line: RunLine, now: float, paint: Paint) -> list[str]:
    states = _in_groups(line) or line.state
    state = states if line.attached or line.state in ("orphaned", "ended") else f"{states}, alone"
    state = f"{states}, detached" if line.detached else state
    state = paint.warning(state) if line.state == "orphaned" else state
    since = age(now - line.since) if line.since else "-"
    counts = [str(len(line.hosts)), str(line.ranks), state, str(len(line.devices)) if line.devices else "-"]
    command = " ".join(line.command.split())[:COMMAND_WIDTH]  # a text may have several lines
    command = f"{line.name}: {command}" if line.name else command
    return [line.run, line.cluster or "-", line.owner or "-", since, *counts, command]


def _in_groups(line: RunLine) -> str:
    """Return the states of hosts by group of pods, as "actor 8 running; learner 1 ended"; "" without groups."""
    counted = (f"{group} {_counts(states)}" for group, states in line.groups.items())
    return "; ".join(counted)


def _counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())


def keeper_lines(keepers: Sequence[About]) -> list[str]:
    """Return a line for each keeper: on how many hosts an agent waits, for how long, and how it is stopped."""
    lines = []
    for keeper in keepers:
        hosts = f"{keeper.waiting} host{'s' * (keeper.waiting != 1)}"
        now = "a command is at work" if keeper.at_work else f"for {keeper.seconds:.0f} s more"
        more = f"process {keeper.pid}, {now}; `mesh keep stop` ends it"
        lines.append(f"kept for the next command: an agent on {hosts} ({more})")
    return lines


def leftovers(found: Sequence[Leftover], dry_run: bool) -> Iterator[str]:
    """Yield a line for each thing that was left and if it was removed, and then the total."""
    for item in found:
        size = f" ({told_bytes(item.bytes)})" if item.bytes else ""
        yield f"{item.host}: {item.what}{size}{': could not be removed' if item.stays else ''}"
    done = "would be removed" if dry_run else "removed"
    gone = [item for item in found if not item.stays]
    yield f"{done}: {len(gone)}, {told_bytes(sum(item.bytes for item in gone))}" if found else "nothing is left there"


def listed(files: Sequence[Listed]) -> Iterator[str]:
    """Yield a line for each file, and then the total."""
    sizes = [told_bytes(file.size) for file in files]
    total = told_bytes(sum(file.size for file in files))
    width = max(map(len, (*sizes, total)))
    for file, size in zip(files, sizes, strict=True):
        yield f"{size:>{width}}  {_text(file.path)}"
    yield f"{total:>{width}}  {len(files)} file{'s' * (len(files) != 1)} in all"


def explained(path: str, found: Explanation) -> Iterator[str]:
    """Why a path is sent or not, in one line."""
    rule = f"{_text(found.rule)} ({_text(found.place)})"
    unasked = f"; unknown if git tracks it ({_text(found.git_problem)})" if found.git_problem else ""
    if found.emptied:
        yield f"{path} is sent as an empty directory: all that is in it is left out, by {rule}{unasked}"
    elif found.belongs and found.tracked:
        yield f"{path} is sent: git tracks {found.tracked}, which overrules {rule}"
    elif found.belongs:
        yield f"{path} is sent: {rule if found.rule else 'no rule leaves it out'}"
    elif found.obstacle:
        yield f"{path} is not sent: {found.obstacle}"
    else:
        above = f"{_text(found.above)}/ is left out by " if found.above else ""
        yield f"{path} is not sent: {above}{rule}{unasked}"


def _text(path: str) -> str:
    from mesh.workspace import listing

    return listing.told(os.fsencode(path))


def age(seconds: float) -> str:
    """
    >>> age(59.9), age(3725), age(200000)
    ('59s', '1h02m', '2d07h')
    """
    whole = max(0, int(seconds))
    if whole >= 86400:
        return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def _cell(report: HostReport, name: str) -> str:
    """Return the text of a cell: the worst verdict of a column, and what was found if that is short."""
    found = [finding for finding in report.findings if finding.name == name]
    worst = next((v for v in ("failed", "warning", "unknown") if any(one.verdict.value == v for one in found)), "ok")
    told = found[0].told if len(found) == 1 and worst != "unknown" else ""
    if not 0 < len(told) <= CELL_WIDTH:
        return SHORT[worst]
    return told if worst == "ok" else f"{SHORT[worst]}: {told}"
