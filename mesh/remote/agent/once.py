"""Prerun entries that need not run again: what is known of those that have succeeded in a workspace.

One file beside the workspace holds a row for each entry with inputs, in their order. Before an entry runs, its row and
all after it are forgotten, as with the layers of a Dockerfile: what it makes may be what the others have built on.
While it runs the file is locked, so that hosts which share the workspace run it one after the other.
"""

from __future__ import annotations

import errno
import fcntl
import os

from .errand import why
from .inputs import contents, surroundings
from .lean import dumps, loads
from .state import machine_id
from .store import hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .shell import Entry
    from .spawning import Setting
    from .state import State

    Row = dict[str, Any]  # "text" and "found", hashes; "inputs", hashes by path; "machines", where it has succeeded

UNKNOWN = "it has not succeeded here yet"
MOST_MACHINES = 4096  # that are remembered of one entry
MOST = 1 << 26  # bytes of the file


class Once:
    """The entries of one prerun, on one host."""

    def __init__(self, state: State, entries: Sequence[Entry], force: bool) -> None:
        """force: every entry is to run."""
        self._state, self._entries, self._force = state, entries, force
        self._file = -1  # while an entry is decided about, or runs
        self.has_run = False  # one of them has, in this session

    def open(self) -> None:
        """Before ``decide``. Raises OSError."""
        self.close()
        self._file = os.open(self._state.beside("prerun"), os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Let others run the entry."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def decide(self, number: int, setting: Setting, wait: bool) -> dict[str, Any]:
        """Whether an entry must run, which would be run with this setting. Takes long; raises OSError.

        wait: for other hosts that run it just now; otherwise, "busy" may be all of the answer
        Returns "why" it must run ("": it need not), its "row" ({}: there is none to ``keep``), and which inputs are
        "missing". If it must, the file is locked, and what was known of the entry is forgotten.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if wait or error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return {"busy": True}
        rows, place = self._read(), self._place(number)
        old = rows[place] if place < len(rows) else {}
        try:
            row = self._row(number, setting)
            reason = "--prerun" if self._force else _difference(old, row)
        except OSError as error:
            row, reason = {}, f"its inputs cannot be read: {why(error)}"
        if reason == UNKNOWN and self.has_run:
            reason = "one before it has run"
        missing = [path for path, found in row["inputs"].items() if not found] if row else []
        if reason:
            self._write(rows[:place])
            same = row and all(old.get(key) == row[key] for key in ("text", "inputs", "found"))
            others = [machine for machine in old["machines"] if machine != machine_id()] if same else []
            row["machines"] = [*others, machine_id()][-MOST_MACHINES:]
        recordable = "inputs" in row and place <= len(rows)
        return {"why": reason, "row": row if recordable else {}, "missing": missing}

    def keep(self, number: int, setting: Setting, row: Row) -> dict[str, Any]:
        """An entry has succeeded. Takes long; raises OSError."""
        row["found"] = surroundings(setting.environment, setting.directory)  # as the entry has left it
        self._write([*self._read()[: self._place(number)], row])
        return {}

    def _place(self, number: int) -> int:
        """The row of an entry."""
        return sum(bool(entry["inputs"]) for entry in self._entries[:number])

    def _row(self, number: int, setting: Setting) -> Row:
        """What the entry is now. What stands before it counts: it may set what the entry reads."""
        text = [[entry["run"], entry["inputs"]] for entry in self._entries[: number + 1]]
        workspace, record = self._state.workspace, self._state.beside("record")
        return {
            "text": hash_of(dumps(text).encode()),
            "inputs": contents(workspace, record, self._entries[number]["inputs"]),
            "found": surroundings(setting.environment, setting.directory),
        }

    def _read(self) -> list[Row]:
        """The rows; none if the file was half written."""
        try:
            rows = loads(os.pread(self._file, MOST, 0))
        except ValueError:
            return []
        known = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        fit = known and all(
            isinstance(row.get("machines"), list) and isinstance(row.get("inputs"), dict) for row in rows
        )
        return rows if fit else []

    def _write(self, rows: Sequence[Row]) -> None:
        """In place, as the lock is on this file: whoever reads half of it knows nothing, and runs the entry."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, dumps(rows).encode(), 0)


def _difference(old: Row, new: Row) -> str:
    """Why an entry must run again; "" if it need not."""
    if not old:
        return UNKNOWN
    if old.get("text") != new["text"]:
        return "its text has changed, or that of one before it"
    changed = [path for path, found in new["inputs"].items() if old["inputs"].get(path) != found]
    if changed:
        return f"{', '.join(changed)} changed"
    if old.get("found") != new["found"]:
        return "another Python, or other packages, are there now"
    return "" if machine_id() in old["machines"] else "it has not succeeded on this machine"
