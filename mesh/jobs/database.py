"""The database under a store: opening it, transactions, and its errors as messages."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping

from sqlalchemy import Connection, Engine, create_engine, event, literal_column, select, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError

from mesh.core.errors import MeshError
from mesh.core.installing import extra_line
from mesh.jobs import tables
from mesh.jobs.place import StorePlace, refuse_remote
from mesh.jobs.reading import STORE_VERSION

BUSY_TIMEOUT_S = 60.0
IDLE_TRANSACTION_LIMIT_S = 10.0  # of a connection to PostgreSQL that waits for its own client
SQLITE_CLOCK = "(julianday('now') - 2440587.5) * 86400.0"  # seconds since the epoch
POSTGRES_CLOCK = "extract(epoch from clock_timestamp())"
POSTGRES_LOCK_NUMBER = 6374968  # of the advisory lock under which one process makes the tables


class StoreFailed(MeshError):
    """The store could not be read or written. Nothing was changed."""


class Database:
    """A store's connections. It may be used from one thread; each process and thread opens its own."""

    def __init__(self, place: StorePlace, engine: Engine) -> None:
        self.place = place
        self.engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection whose transaction ends with the block. Raises StoreFailed."""
        with told(self.place.name), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection to look with. Raises StoreFailed."""
        with told(self.place.name), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def now(self, connection: Connection) -> float:
        """Return the time on the database's clock, which all stewards of a store share."""
        clock = SQLITE_CLOCK if self.is_sqlite else POSTGRES_CLOCK
        return float(connection.execute(select(literal_column(clock))).scalar_one())

    def change_count(self) -> int:
        """Return a number that is another one after a change by another connection; only compare it."""
        if not self.is_sqlite:
            return -1
        with self.reading() as connection:  # the only one, so that its own changes do not count
            return int(connection.exec_driver_sql("PRAGMA data_version").scalar_one())


def open_database(place: StorePlace) -> Database:
    """Open the database of a place; make it, or bring it to this version, where that is needed.

    Raises MeshError: it cannot be had, is of a newer version, or its file system cannot hold it.
    """
    if place.url:
        url = place.url.replace("postgres://", "postgresql://", 1).replace("postgresql://", "postgresql+psycopg://", 1)
        engine = _told_call(place.name, lambda: create_engine(url, pool_pre_ping=True))
        event.listen(engine, "connect", _limit_idle_transactions)
        # Many rows are one statement: psycopg sends several as a pipeline, and the server's limit for idle transactions
        # does not hold in a pipeline whose client is frozen.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        with told(place.name), engine.begin() as connection:
            connection.execute(
                text(f"SELECT pg_advisory_xact_lock({POSTGRES_LOCK_NUMBER})")
            )  # one process makes the tables
            tables.migrate(connection, place.name)
        return Database(place, engine)
    refuse_remote(place.directory)
    try:
        os.makedirs(place.directory, mode=0o700, exist_ok=True)
        lock = os.open(place.directory / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not place.file.exists():
            os.close(os.open(place.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreFailed(f"{place.name}: cannot be made ({error.strerror})", hint=_hint(str(error))) from error
    engine = _sqlite_engine(place)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the change to WAL waits for nobody, so that one process makes it
        with told(place.name):
            _make_sqlite(engine, place)
        return Database(place, engine)
    except BaseException:
        engine.dispose()
        raise
    finally:
        os.close(lock)


def _make_sqlite(engine: Engine, place: StorePlace) -> None:
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        if raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            raw.execute("PRAGMA journal_mode = WAL")
        found = tables.version_of(connection.execution_options(isolation_level="AUTOCOMMIT"))
    if found != STORE_VERSION:
        with engine.begin() as connection:
            tables.migrate(connection, place.name)


def _limit_idle_transactions(raw: DBAPIConnection, record: object) -> None:
    """Have the server end the transaction of a frozen process, because others wait for the rows that it locks."""
    cursor = raw.cursor()
    cursor.execute(f"SET idle_in_transaction_session_timeout = {int(IDLE_TRANSACTION_LIMIT_S * 1000)}")
    cursor.close()
    raw.commit()


def _sqlite_engine(place: StorePlace) -> Engine:
    arguments = {"timeout": BUSY_TIMEOUT_S}
    engine = create_engine(f"sqlite:///{place.file}", connect_args=arguments, pool_size=1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def _connected(raw: sqlite3.Connection, record: object) -> None:
        raw.isolation_level = None  # only `_begun` begins transactions
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # A transaction that reads first and writes later would be refused if another one wrote in between.
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Raise StoreFailed for errors of the database."""
    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig).strip() or type(error.orig).__name__
        raise StoreFailed(f"{name}: {reason}", hint=_hint(reason)) from error
    except sqlite3.Error as error:
        raise StoreFailed(f"{name}: {error}", hint=_hint(str(error))) from error


def _told_call(name: str, make: Callable[[], Engine]) -> Engine:
    try:
        return make()
    except ImportError as error:
        raise StoreFailed(f"{name}: {error}", hint=extra_line("team")) from error


def _hint(reason: str) -> str:
    """Return what to try after an error of a database."""
    hints: Mapping[str, str] = {
        "full": "free some space on its disk; runs that are on go on",
        "No space left": "free some space on its disk; runs that are on go on",
        "readonly": "make the store writable for you; runs that are on go on",
        "Read-only": "make the store writable for you, or name another directory by MESH_STORE",
        "Permission denied": "make the store writable for you, or name another directory by MESH_STORE",
        "malformed": "keep the file for a look at it, and name another directory by MESH_STORE",
    }
    return next((hint for word, hint in hints.items() if word in reason), "")
