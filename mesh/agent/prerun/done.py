"""The list of prerun entries that have succeeded in a workspace, and need not run again.

A file beside the workspace holds a row for each entry with inputs, in their order. Before an entry runs, its row and
all after it are deleted, as with the layers of a Dockerfile: the later entries may depend on its files.
While it runs the file is locked, so that hosts which share the workspace run it one after the other.
"""

from __future__ import annotations

import errno
import fcntl
import os

from mesh.agent.base.directories import machine_id
from mesh.agent.base.errors import why
from mesh.agent.base.light import dumps, loads
from mesh.agent.prerun.inputs import contents, surroundings
from mesh.agent.sync.contents import hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypedDict

    from mesh.agent.base.directories import Directories
    from mesh.agent.prerun.shell import Entry
    from mesh.agent.process.spawning import Setting

    class Row(TypedDict, total=False):
        """An entry that has succeeded."""

        text: str  # a hash
        found: str  # a hash
        inputs: dict[str, str]  # hashes by path
        machines: list[str]  # where it has succeeded


UNKNOWN = "it has not succeeded here yet"
MACHINES_MAX = 4096  # that are recorded for one entry
FILE_BYTES = 1 << 26  # of the list


class DoneEntries:
    """The entries of one prerun, on one host."""

    def __init__(self, state: Directories, entries: Sequence[Entry], force: bool) -> None:
        """force: every entry must run"""
        self._state, self._entries, self._force = state, entries, force
        self._file = -1  # open from ``decide`` until the entry has ended
        self.has_run = False  # an entry has run in this session

    def open(self) -> None:
        """Open the list, before ``decide``. Raises OSError."""
        self.close()
        self._file = os.open(self._state.beside("prerun"), os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Release the list, so that other hosts can run the entry."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def decide(self, number: int, setting: Setting, wait: bool) -> dict[str, object]:
        """Decide if an entry must run with this setting. Takes long; raises OSError.

        wait: for other hosts that run it just now; otherwise, "busy" may be all of the answer
        Returns "why" it must run ("": it need not), its "row" ({}: there is none to ``keep``), and which inputs are
        "missing". If it must, the list is locked, and the entry's row is deleted.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if wait or error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return {"busy": True}
        rows, place = self._read(), self._place(number)
        old: Row = rows[place] if place < len(rows) else {}
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
            row["machines"] = [*others, machine_id()][-MACHINES_MAX:]
        recordable = "inputs" in row and place <= len(rows)
        return {"why": reason, "row": row if recordable else {}, "missing": missing}

    def keep(self, number: int, setting: Setting, row: Mapping[str, object]) -> dict[str, object]:
        """Record an entry that has succeeded. Takes long; raises OSError."""
        found = surroundings(setting.environment, setting.directory)  # as the entry has left it
        self._write([*self._read()[: self._place(number)], {**row, "found": found}])
        return {}

    def _place(self, number: int) -> int:
        """Return the index of an entry's row."""
        return sum(bool(entry["inputs"]) for entry in self._entries[:number])

    def _row(self, number: int, setting: Setting) -> Row:
        """Return the row of an entry as it is now. Entries before it count, because they may set its variables."""
        text = [[entry["run"], entry["inputs"]] for entry in self._entries[: number + 1]]
        workspace, record = self._state.workspace, self._state.beside("record")
        return {
            "text": hash_of(dumps(text).encode()),
            "inputs": contents(workspace, record, self._entries[number]["inputs"]),
            "found": surroundings(setting.environment, setting.directory),
        }

    def _read(self) -> list[Row]:
        """Return the rows; none if the file was half written."""
        try:
            rows = loads(os.pread(self._file, FILE_BYTES, 0))
        except ValueError:
            return []
        known = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        fit = known and all(
            isinstance(row.get("machines"), list) and isinstance(row.get("inputs"), dict) for row in rows
        )
        return rows if fit else []

    def _write(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write in place, because the lock is on this file. A reader of half a list runs the entry."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, dumps(rows).encode(), 0)


def _difference(old: Row, new: Row) -> str:
    """Return the reason why an entry must run again; "" if it need not."""
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
