"""Jobs as tables and lines for people."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import json

from mesh.api.jobs import JobRow
from mesh.cli.reports import age, amount
from mesh.core.errors import UsageError
from mesh.core.escapes import plain
from mesh.core.look import Paint
from mesh.core.width import Table
from mesh.jobs.cleaning import leftovers, undo_command

HOSTS_SHOWN = 2  # names of hosts in a row
SILENCE_SHOWN_S = 60.0  # hosts that do not answer for so long are named in a row
HEAD = ("id", "name", "state", "for", "attempt", "machines", "cost", "why")
MORE = ("user", "queue", "priority", "exit", "submitted", "cluster", "array", "run")  # columns on request
DROPPED = ("machines", "attempt", "cost", "for")  # in a narrow terminal, the first one first
PLAIN = Paint(False)
APIS = {"tpu": "the TPU API", "kubernetes": "the API of Kubernetes", "slurm": "Slurm"}  # by makers of machines


def columns_of_list(text: str) -> tuple[str, ...]:
    """Return the columns of a list. Raises UsageError."""
    names = tuple(text.lower().split(",")) if text else HEAD
    for name in names:
        if name not in (*HEAD, *MORE):
            raise UsageError(f"--columns: expected some of {', '.join((*HEAD, *MORE))}, found {name!r}")
    return names


def job_table(
    rows: Sequence[JobRow], names: Sequence[str] = HEAD, width: int = 0, paint: Paint = PLAIN
) -> Iterator[str]:
    """Yield a table with a row for each job; names: of its columns; width: of a row, 0: unlimited"""
    if not rows:
        yield "there is no job: mesh job submit FILE"
        return
    now = time.time()
    costs = Costs(rows, now) if "cost" in names else None
    cells = [
        [costs.cell(row) if costs and name == "cost" else _cell(row, name, now, paint) for name in names]
        for row in rows
    ]
    dropped = [name for name in DROPPED if name in names and name != names[-1]]
    yield from Table(list(names), width=width, dropped=dropped).lines(cells)
    if hosts := sum(len(row.machines) for row in rows):
        waiting = sum(row.state == "queued" for row in rows)
        yield f"{hosts} host{'s' * (hosts != 1)} in use, {waiting} job{'s' * (waiting != 1)} waiting"


class Costs:
    """Estimates of what jobs have cost. The prices are read only if a job has or had machines that were made for it."""

    def __init__(self, rows: Sequence[JobRow], now: float) -> None:
        from mesh.api import jobs

        self._now = now
        self._prices = jobs.prices_for_lists() if any(row.is_made for row in rows) else None

    def cell(self, row: JobRow) -> str:
        """Return the cost of a job, with its limit behind it; "-" on hosts that are there."""
        from mesh.api import jobs

        found = jobs.cost_of(row, self._prices, self._now) if self._prices is not None else None
        if found is None:
            return "-"
        return f"{amount(*found)}{f' of {row.cost_limit:g}' if row.cost_limit else ''}"

    def told(self, row: JobRow) -> str:
        """Return the cost with its currency, for `mesh job show`; "" on hosts that are there."""
        cell = self.cell(row)
        return "" if cell == "-" or self._prices is None else f"{cell} {self._prices.currency}".rstrip()


def _cell(row: JobRow, name: str, now: float, paint: Paint) -> str:
    match name:
        case "id":
            return str(row.id)
        case "state":
            return _painted(row, paint)
        case "for":
            return age(now - row.since) if row.since else "-"
        case "attempt":
            return f"{row.attempt} ({row.preemptions} p)" if row.preemptions else str(row.attempt)
        case "machines":
            return machines(row)
        case "why":
            return plain(why(row, now)).replace("\n", "; ")
        case "exit":
            return "-" if row.exit_code is None else str(row.exit_code)
        case "submitted":
            return moment(row.submitted)
        case "array":
            return "-" if row.array is None else f"{row.array}[{row.index}]"
        case "run":
            return row.runs[-1] if row.runs else "-"
    return plain(str(getattr(row, name)))


def machines(row: JobRow) -> str:
    """Return the hosts that a job has, for a row."""
    if not row.machines:
        return "-"
    if len(row.machines) <= HOSTS_SHOWN:
        return ",".join(row.machines)
    return f"{row.cluster}: {len(row.machines)} hosts"


def why(row: JobRow, now: float) -> str:
    """Return the reason of a job's state, or its progress."""
    if row.silent_since and now - row.silent_since > SILENCE_SHOWN_S:
        return f"hosts have not answered for {age(now - row.silent_since)}{_cause(row.silence)}"
    if row.api_silent_since and now - row.api_silent_since > SILENCE_SHOWN_S:
        since = age(now - row.api_silent_since)
        return f"{APIS.get(row.maker, row.maker)} has not answered for {since}{_cause(row.api_silence)}"
    if row.overdue_since:
        return f"its machines are not gone after {age(now - row.overdue_since)}; the deletion is repeated"
    if row.kept_until and row.state == "running":
        return f"{row.reason}, until {time.strftime('%H:%M', time.localtime(row.kept_until))}"
    return row.progress if row.state == "running" and row.progress else row.reason


def _cause(silence: str) -> str:
    """Return why there is no answer, behind the sentence that there is none."""
    return f": {plain(silence)}" if silence else ""


def _painted(row: JobRow, paint: Paint) -> str:
    if row.state in ("failed", "held"):
        return paint.bad(row.state)
    return paint.good(row.state) if row.state == "succeeded" else row.state


def moment(seconds: float | None) -> str:
    """Return a time as a local date and time."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def as_json(row: JobRow) -> str:
    """Return a job as JSON in one line."""
    return json.encode(row).decode()


def job_lines(row: JobRow) -> Iterator[str]:
    """Yield all that a job has, a fact a line."""
    state = f"{row.state}{f': {plain(row.reason)}' if row.reason else ''}"
    facts = {
        "job": f"{row.id} {row.name}",
        "state": state,
        "try": row.hint,
        "since": moment(row.since),
        "user": row.user,
        "queue": f"{row.queue}, priority {row.priority}",
        "array": "" if row.array is None else f"member {row.index} of the array that begins with job {row.array}",
        "cluster": row.cluster,
        "machines": ", ".join(row.machines),
        "given as": row.given,
        "cost": Costs([row], time.time()).told(row),
        "no owner": f"{', '.join(row.strays)}: see `mesh job audit`" if row.strays else "",
        "attempt": f"{row.attempt}, {row.failures} failed, {row.preemptions} preempted",
        "task": row.task,
        "progress": row.progress,
        "submitted": moment(row.submitted),
        "started": moment(row.started) if row.started else "",
        "ended": moment(row.ended) if row.ended else "",
        "exit": "" if row.exit_code is None else f"{row.exit_code} ({row.cause})",
        "silent": f"hosts, since {moment(row.silent_since)}{_cause(row.silence)}" if row.silent_since else "",
        "api": f"silent since {moment(row.api_silent_since)}{_cause(row.api_silence)}" if row.api_silent_since else "",
        "undo": f"{leftovers(row.left_on)}: {undo_command(row.id)}" if row.left_on else "",
        "directory": row.directory,
    }
    for name, text in facts.items():
        if text:
            yield f"{name:<10} {text}"
    from mesh.api.jobruns import numbered_runs

    for number, run in numbered_runs(row):
        yield f"{'run':<10} {run} (attempt {number})"


def event_line(event: object) -> str:
    """Return an event of a job in one line."""
    fields = json.decode(event_json(event))
    time_, name = fields.pop("time", 0.0), fields.pop("event", "?")
    fields.pop("spec", None)
    texts = [f"{key}={_short(value)}" for key, value in fields.items() if value not in ("", 0, None, [], {})]
    return f"{moment(time_)}  {name:<16}  {' '.join(texts)}".rstrip()


def event_json(event: object) -> bytes:
    """Return an event of a job as JSON."""
    return json.encode(event, enc_hook=str)


def _short(value: object) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key}: {_short(one)}" for key, one in value.items() if one not in ("", 0, None, [], {}))
        return f"({inner})"
    if isinstance(value, list):
        return ",".join(map(_short, value))
    return plain(str(value)).replace("\n", " ")[:200]
