"""The runs that this machine has started, as a table and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence

from mesh.api import Record, Removed
from mesh.cli.reports import COMMAND_WIDTH, age
from mesh.core.amounts import told_bytes
from mesh.core.escapes import plain
from mesh.core.outcome import Cause
from mesh.rundir.records import State, size_on_disk


def records_table(records: Sequence[Record], now: float) -> Iterator[str]:
    """Yield a table with a row for each run; now: seconds since the epoch."""
    if not records:
        yield "this machine has started no run yet"
        return
    rows = [["run", "cluster", "began", "took", "status", "size", "command"]]
    for record in records:
        end = now if record.state is State.ON else record.ended
        rows.append(
            [
                record.run,
                record.cluster or "-",
                time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created)),
                age(end - record.created) if end is not None else "-",
                _status(record),
                told_bytes(size_on_disk(record.directory)),
                _command(record),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def record_as_json(record: Record) -> str:
    """Return the content of run.json, with ``state``, ``directory`` and ``size`` (bytes on disk)."""
    more = {"state": record.state.value, "directory": str(record.directory), "size": size_on_disk(record.directory)}
    return json.dumps({"run": record.run, **record.about, **more})


def pruned(removed: Iterable[Removed], dry_run: bool) -> Iterator[str]:
    """Yield a line for each run when it is removed, and then the total."""
    count = size = 0
    for one in removed:
        count, size = count + 1, size + one.bytes
        yield f"{one.run}  {told_bytes(one.bytes)}"
    done = "would be removed" if dry_run else "removed"
    yield f"{done}: {count} run{'s' * (count != 1)}, {told_bytes(size)}"


def _status(record: Record) -> str:
    if record.state is not State.ENDED:
        return "client died" if record.state is State.DIED else record.state.value
    if record.cause in (Cause.COMPLETED.value, Cause.RANK.value):
        return f"exit {record.exit_code}" if record.exit_code else "ok"
    return f"exit {record.exit_code}, {record.cause}"


def _command(record: Record) -> str:
    otherwise = f"mesh {'push' if record.kind == 'sync' else record.kind}" if record.kind else "-"
    text = (record.spec.told or otherwise).encode("utf-8", "backslashreplace").decode()
    return plain(text.replace("\n", " "))[:COMMAND_WIDTH]
