"""A run of this machine in a list: its status in words, and all of it as JSON."""

from __future__ import annotations

import json
import signal

from mesh.core.outcome import Cause
from mesh.rundir.records import Record, State, size_on_disk

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


def record_as_json(record: Record) -> str:
    """Return the content of run.json, with ``state``, ``verb``, ``directory`` and ``size`` (bytes on disk)."""
    more = {"state": record.state.value, "verb": record.verb, "directory": str(record.directory)}
    return json.dumps({"run": record.run, **record.about, **more, "size": size_on_disk(record.directory)})


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
