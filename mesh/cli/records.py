"""The runs that this machine has started, as a table and as JSON."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Iterator, Sequence

from mesh.api import Record, Removed
from mesh.cli.reports import COMMAND_WIDTH, age
from mesh.core.amounts import told_bytes
from mesh.core.escapes import plain
from mesh.core.look import Paint
from mesh.core.outcome import Cause
from mesh.core.width import Table
from mesh.rundir.records import State, size_on_disk

STATES = {State.ON: "running", State.DETACHED: "detached", State.DIED: "client died"}
# The words for causes that need no exit status; the status is in run.json.
ENDS = {
    Cause.LOST.value: "host lost",
    Cause.PREPARE.value: "not started",
    Cause.BUSY.value: "hosts busy",
    Cause.TIMEOUT.value: "timed out",
    Cause.OUTPUT_CLOSED.value: "output closed",
}
SIGNALS = {129: "terminal closed", 130: "Ctrl-C", 143: "stopped"}
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


def record_as_json(record: Record) -> str:
    """Return the content of run.json, with ``state``, ``verb``, ``directory`` and ``size`` (bytes on disk)."""
    more = {"state": record.state.value, "verb": record.verb, "directory": str(record.directory)}
    return json.dumps({"run": record.run, **record.about, **more, "size": size_on_disk(record.directory)})


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


def status(record: Record) -> str:
    """Return how a run goes, or how it ended, in words."""
    if record.state is not State.ENDED:
        return STATES[record.state]
    code = record.exit_code or 0
    if record.cause == Cause.SIGNAL.value:
        return SIGNALS.get(code, "stopped")
    if record.cause == Cause.RANK.value and (name := _signal(record)):
        return f"killed by {name}"
    if record.cause in ENDS:
        return ENDS[record.cause]
    return f"failed, exit {code}" if code else "done"


def _signal(record: Record) -> str:
    """Return the name of the signal that has killed the rank which failed first; "" if none has."""
    first = record.about.get("first")
    number = first.get("signal") if isinstance(first, dict) else None
    try:
        return signal.Signals(number).name if number else ""
    except ValueError:  # run.json may be damaged
        return ""


def _command(record: Record) -> str:
    otherwise = f"mesh {'push' if record.kind == 'sync' else record.kind}" if record.kind else "-"
    text = (record.spec.told or otherwise).encode("utf-8", "backslashreplace").decode()
    return plain(text.replace("\n", " "))[:COMMAND_WIDTH]
