"""The tables of the store, and how a store of an earlier version becomes one of this version."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    update,
)

from mesh.jobs.reading import STORE_VERSION, check_version

metadata = MetaData()
Number = BigInteger().with_variant(Integer, "sqlite")

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", String, nullable=False))
jobs = Table(
    "jobs",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=False),
    Column("seq", Integer, nullable=False),  # events that the row is the fold of
    Column("user", String, nullable=False),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("submitted", Float, nullable=False),
    Column("ended", Float, nullable=False),
    Column("is_deleted", Boolean, nullable=False),
    Column("row", Text, nullable=False),  # JSON of a Row
    Column("body", Text, nullable=False),  # JSON of a Job
    Index("jobs_by_state", "state"),
)
events = Table(
    "events",
    metadata,
    Column("job", Number, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),  # JSON of an event
)
orders = Table(
    "orders",
    metadata,
    Column("job", Number, primary_key=True, autoincrement=False),
    Column("op", Integer, primary_key=True, autoincrement=False),
    Column("kind", String, nullable=False),
    Column("epoch", Integer, nullable=False),  # of the steward that intended it; 0: a command did
    Column("is_open", Boolean, nullable=False),
    Column("body", Text, nullable=False),  # JSON of an order
)
leases = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("holder", String, nullable=False),
    Column("until", Float, nullable=False),  # on the database's clock
)
# The key of a machine is there once, so that no machine has two jobs whatever two stewards decide at the same moment.
holds = Table(
    "holds",
    metadata,
    Column("machine", String, primary_key=True),
    Column("job", Number, nullable=False),
)
usage = Table(
    "usage",
    metadata,
    Column("user", String, primary_key=True),
    Column("pool", String, primary_key=True),
    Column("seconds", Float, nullable=False),  # of hosts, aged to `at`
    Column("at", Float, nullable=False),
)
notices = Table(
    "notices",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("job", Number, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("is_done", Boolean, nullable=False),
    Column("problem", String, nullable=False),
    Column("body", Text, nullable=False),  # JSON of a Notice
    Index("notices_open", "is_done", "id"),
)
# The lock of a task file: whoever changes one of its tasks has locked this row before, and counts `seq` up.
task_files = Table(
    "task_files",
    metadata,
    Column("file", String, primary_key=True),  # its absolute path
    Column("seq", Integer, nullable=False),
    Column("digest", String, nullable=False),  # of the text whose tasks hold
    Column("body", Text, nullable=False),  # JSON of a TaskList
)
tasks = Table(
    "tasks",
    metadata,
    Column("file", String, primary_key=True),
    Column("task", String, primary_key=True),
    Column("body", Text, nullable=False),  # JSON of a TaskRecord
)


def _first(connection: Connection) -> None:
    metadata.create_all(connection)
    store = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(6))
    values = [{"name": "store", "value": store}, {"name": "last_id", "value": "0"}, {"name": "version", "value": "0"}]
    connection.execute(insert(meta), values)


def _with_tasks(connection: Connection) -> None:
    metadata.create_all(connection, tables=[task_files, tasks])


# Each makes a store of the version of its index one version newer. Only appended to: what was released stays.
MIGRATIONS: Sequence[Callable[[Connection], None]] = (_first, _with_tasks)
assert len(MIGRATIONS) == STORE_VERSION


def version_of(connection: Connection) -> int:
    """Return the version of a store; 0 for an empty database."""
    if not inspect(connection).has_table("meta"):
        return 0
    return int(connection.execute(select(meta.c.value).where(meta.c.name == "version")).scalar_one())


def migrate(connection: Connection, name: str) -> None:
    """Bring a store to this version, in the transaction of the connection. Raises MeshError for a newer one."""
    found = version_of(connection)
    check_version(found, name)
    for step in MIGRATIONS[found:]:
        step(connection)
    if found < STORE_VERSION:
        connection.execute(update(meta).where(meta.c.name == "version").values(value=str(STORE_VERSION)))
