"""The runs that this machine has started, as a table and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from mesh.api import Record, Removed
from mesh.cli.reports import COMMAND_WIDTH, age
from mesh.core.amounts import told_bytes
from mesh.core.escapes import plain
from mesh.core.look import Paint
from mesh.core.width import Table
from mesh.rundir.listing import record_as_json as record_as_json
from mesh.rundir.listing import status
from mesh.rundir.records import State, size_on_disk

# Columns that a narrow terminal lacks, the first one first.
DROPPED = ("size", "began", "took", "cluster", "kind")
PLAIN = Paint(False)


def records_table(records: Sequence[Record], now: float, width: int = 0, paint: Paint = PLAIN) -> Iterator[str]:
    """Yield a table with a row for each run; now: seconds since the epoch; width: of a row, 0: unlimited"""
    if not records:
        yield "this machine has started no run yet"
        return
    head = ["run", "name", "cluster", "began", "took", "status", "size", "kind", "command"]
    rows = [_row(record, now, paint) for record in records]
    if not any(record.named.name for record in records):
        head, rows = [head[0], *head[2:]], [[run, *rest] for run, _, *rest in rows]
    yield from Table(head, width=width, dropped=DROPPED).lines(rows)


def _row(record: Record, now: float, paint: Paint) -> list[str]:
    end = now if record.state is State.ON else record.ended
    return [
        record.run,
        record.named.name,
        record.cluster or "-",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created)),
        age(end - record.created) if end is not None else "-",
        _painted(record, paint),
        told_bytes(size_on_disk(record.directory)),
        record.verb or "-",
        _command(record),
    ]


def headline(record: Record) -> str:
    """Return the line above the output of one run among several."""
    return f"==> {record.run}{f' {record.named.name}' if record.named.name else ''}: {_command(record)}"


def pruned(removed: Iterable[Removed], dry_run: bool) -> Iterator[str]:
    """Yield a line for each run when it is removed, and then the total."""
    count = size = 0
    for one in removed:
        count, size = count + 1, size + one.bytes
        yield f"{one.run}  {told_bytes(one.bytes)}"
    done = "would be removed" if dry_run else "removed"
    yield f"{done}: {count} run{'s' * (count != 1)}, {told_bytes(size)}"


def _painted(record: Record, paint: Paint) -> str:
    """Return the status: a success in green, a failure in red, what goes on as it is."""
    if record.state is State.DIED or (record.state is State.ENDED and record.exit_code):
        return paint.bad(status(record))
    return paint.good(status(record)) if record.state is State.ENDED else status(record)


def _command(record: Record) -> str:
    otherwise = f"mesh {'push' if record.kind == 'sync' else record.kind}" if record.kind else "-"
    text = (record.spec.told or otherwise).encode("utf-8", "backslashreplace").decode()
    return plain(text.replace("\n", " "))[:COMMAND_WIDTH]
