"""The quick reader of a SQLite store, for commands that only look. It imports no SQLAlchemy, and never writes.

`rows` of 10,000 jobs takes some 20 ms. Each row of the table holds its JSON, so that nothing is formatted here.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct, json

from mesh.core.errors import MeshError
from mesh.jobs.coding import decode_events, decode_job
from mesh.jobs.events import AnyEvent
from mesh.jobs.values import Job, Row

STORE_VERSION = 2  # of the tables; a store of a higher one is refused
READ_TIMEOUT_S = 10.0
FINAL = ("succeeded", "failed", "stopped")


class Selection(Struct, frozen=True, kw_only=True):
    """The jobs that a list shows."""

    ids: tuple[int, ...] = ()  # (): any
    states: tuple[str, ...] = ()  # (): any
    user: str = ""  # "": any
    since: float = 0.0  # submitted at or after
    active_only: bool = False
    deleted: bool = False  # deleted ones too

    @property
    def where(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its values."""
        parts: list[str] = [] if self.deleted else ["NOT is_deleted"]
        values: list[object] = []
        for column, listed in (("id", self.ids), ("state", self.states)):
            if listed:
                parts.append(f"{column} IN ({','.join('?' * len(listed))})")
                values += listed
        if self.active_only:
            parts.append(f"state NOT IN ({','.join('?' * len(FINAL))})")
            values += FINAL
        if self.user:
            parts.append("user = ?")
            values.append(self.user)
        if self.since:
            parts.append("submitted >= ?")
            values.append(self.since)
        return " AND ".join(parts) or "1", values


ALL_JOBS = Selection()


def json_rows(file: Path, selection: Selection = ALL_JOBS) -> list[str]:
    """Return the rows of jobs as JSON objects, by id. Raises MeshError for a store that cannot be read."""
    condition, values = selection.where
    with _reading(file) as connection:
        if connection is None:
            return []
        found = connection.execute(f"SELECT row FROM jobs WHERE {condition} ORDER BY id", values)
        return [text for (text,) in found]


def rows(file: Path, selection: Selection = ALL_JOBS) -> list[Row]:
    """Return the rows of jobs, by id. Raises MeshError for a store that cannot be read."""
    return json.decode(f"[{','.join(json_rows(file, selection))}]", type=list[Row])


def read_job(file: Path, job: int) -> Job | None:
    """Return a job; None if there is none with this id. Raises MeshError for a store that cannot be read."""
    with _reading(file) as connection:
        if connection is None:
            return None
        found = connection.execute("SELECT body FROM jobs WHERE id = ?", [job]).fetchone()
        return decode_job(found[0]) if found else None


def read_jobs(file: Path) -> list[Job]:
    """Return all jobs, by id, also deleted ones. Raises MeshError for a store that cannot be read."""
    with _reading(file) as connection:
        if connection is None:
            return []
        return [decode_job(text) for (text,) in connection.execute("SELECT body FROM jobs ORDER BY id")]


def read_id(file: Path) -> str:
    """Return the id of a store; "" where there is none yet. Raises MeshError for a store that cannot be read."""
    with _reading(file) as connection:
        if connection is None:
            return ""
        found = connection.execute("SELECT value FROM meta WHERE name = 'store'").fetchone()
        return str(found[0]) if found else ""


def read_events(file: Path, job: int, after: int = 0) -> list[AnyEvent]:
    """Return the events of a job, oldest first. after: only those behind so many. Raises MeshError."""
    with _reading(file) as connection:
        if connection is None:
            return []
        query = "SELECT body FROM events WHERE job = ? AND seq > ? ORDER BY seq"
        return decode_events([text for (text,) in connection.execute(query, [job, after])])


def check_version(found: int, name: str) -> None:
    """Raise MeshError for a store that a newer mesh has made."""
    if found > STORE_VERSION:
        message = f"{name}: a newer mesh made this store (version {found}; this mesh reads up to {STORE_VERSION})"
        raise MeshError(message, hint="install the newer mesh again; nothing was changed")


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection | None]:
    """Open a store for reading; None where there is none yet."""
    if not file.exists():
        yield None
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=READ_TIMEOUT_S)
    except sqlite3.Error as error:
        raise MeshError(f"{file}: cannot be read ({error})") from error
    try:
        found = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
        check_version(int(found[0]), str(file))
        yield connection
    except sqlite3.Error as error:
        if "no such table: meta" in str(error):  # it is being made
            yield None
            return
        raise MeshError(f"{file}: cannot be read ({error})") from error
    finally:
        connection.close()
