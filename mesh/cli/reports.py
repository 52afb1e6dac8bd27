"""What ``mesh check`` found, as a table and as JSON."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from mesh.api import Explanation, HostReport, Leftover, Listed, RunLine
from mesh.sinks.amounts import told_bytes
from mesh.workspace import listing

SHORT = {"ok": "ok", "warning": "warn", "failed": "FAILED", "unknown": "-"}
HOST = "\0"  # stands for a host's own name, so that equal complaints of several hosts are one
MOST_COMMAND = 60  # characters of a command
MOST = 16  # characters of a cell; longer texts stand below the table


def report_as_dict(report: HostReport) -> dict[str, Any]:
    """One host: ``host``, ``ok`` and ``checks``, each with ``name``, ``verdict``, ``told`` and ``hint``."""
    checks = [
        {"name": one.name, "verdict": one.verdict.value, "told": one.told, "hint": one.hint} for one in report.findings
    ]
    return {"host": report.host, "ok": report.ok, "checks": checks}


def table(reports: Sequence[HostReport]) -> Iterator[str]:
    """One row for each host, and below it what is wrong and what to do about it."""
    head = ["host", *(finding.name for finding in reports[0].findings)]
    rows = [head] + [[report.host, *(_cell(one) for one in report.findings)] for report in reports]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for report in reports:
        for one in report.findings:
            if one.verdict.value in ("failed", "warning"):
                key = (one.verdict.value, one.name, one.told.replace(report.host, HOST), one.hint)
                groups.setdefault(key, []).append(report.host)
    for (verdict, name, told, hint), hosts in groups.items():
        yield ""
        who = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
        told = told.replace(HOST, hosts[0] if len(hosts) == 1 else "HOST")
        yield f"{verdict.upper() if verdict == 'failed' else verdict}: {who}: {name}: {told}"
        if hint:
            yield textwrap.indent(hint, "    ")


def runs_table(runs: Sequence[RunLine], now: float) -> Iterator[str]:
    """One row for each run; now: seconds since the epoch."""
    if not runs:
        yield "no run is there"
        return
    rows = [["run", "cluster", "owner", "age", "hosts", "ranks", "state", "devices", "command"]]
    for line in runs:
        state = line.state if line.attached or line.state in ("orphaned", "ended") else f"{line.state}, alone"
        state = f"{line.state}, detached" if line.detached else state
        since = age(now - line.since) if line.since else "-"
        counts = [str(len(line.hosts)), str(line.ranks), state, str(len(line.devices)) if line.devices else "-"]
        rows.append([line.run, line.cluster or "-", line.owner or "-", since, *counts, line.command[:MOST_COMMAND]])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def leftovers(found: Sequence[Leftover], dry_run: bool) -> Iterator[str]:
    """One line for each thing that was left, and what became of it."""
    for item in found:
        size = f" ({told_bytes(item.bytes)})" if item.bytes else ""
        yield f"{item.host}: {item.what}{size}{': could not be removed' if item.stays else ''}"
    done = "would be removed" if dry_run else "removed"
    gone = [item for item in found if not item.stays]
    yield f"{done}: {len(gone)}, {told_bytes(sum(item.bytes for item in gone))}" if found else "nothing is left there"


def listed(files: Sequence[Listed]) -> Iterator[str]:
    """One line for each file, and the total."""
    sizes = [told_bytes(file.size) for file in files]
    total = told_bytes(sum(file.size for file in files))
    width = max(map(len, (*sizes, total)))
    for file, size in zip(files, sizes, strict=True):
        yield f"{size:>{width}}  {_text(file.path)}"
    yield f"{total:>{width}}  {len(files)} file{'s' * (len(files) != 1)} in all"


def explained(path: str, found: Explanation) -> Iterator[str]:
    """Why a path is sent or not, in one line."""
    rule = f"{_text(found.rule)} ({_text(found.place)})"
    if found.belongs:
        yield f"{path} is sent: {rule if found.rule else 'no rule leaves it out'}"
    elif found.obstacle:
        yield f"{path} is not sent: {found.obstacle}"
    else:
        above = f"{_text(found.above)}/ is left out by " if found.above else ""
        yield f"{path} is not sent: {above}{rule}"


def _text(path: str) -> str:
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


def _cell(finding: Any) -> str:
    short = SHORT[finding.verdict.value]
    return finding.told if finding.verdict.value == "ok" and 0 < len(finding.told) <= MOST else short
