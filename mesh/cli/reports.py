"""What ``mesh check`` found, as a table and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from mesh.api import HostReport

SHORT = {"ok": "ok", "warning": "warn", "failed": "FAILED", "unknown": "-"}
HOST = "\0"  # stands for a host's own name, so that equal complaints of several hosts are one
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


def _cell(finding: Any) -> str:
    short = SHORT[finding.verdict.value]
    return finding.told if finding.verdict.value == "ok" and 0 < len(finding.told) <= MOST else short
