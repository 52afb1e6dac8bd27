"""Leases: the right of one steward to write about its jobs, by epochs and the database's clock.

A steward that was frozen while another one took over has an old epoch, so that its writes are refused.
"""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, insert, select, update

from mesh.core.errors import MeshError
from mesh.jobs import tables
from mesh.jobs.database import Database

LEASE_S = 30.0


class LeaseLost(MeshError):
    """Another steward has the lease, so that nothing was written."""


class Lease(Struct, frozen=True, kw_only=True):
    """The right of one steward to write: it has the epoch that the store has."""

    name: str
    epoch: int


def check(connection: Connection, lease: Lease) -> None:
    """Raise LeaseLost unless the store has the epoch of a lease. It stays so until the transaction ends."""
    table = tables.leases
    mine = (table.c.name == lease.name) & (table.c.epoch == lease.epoch)
    if connection.execute(select(table.c.epoch).where(mine).with_for_update(read=True)).scalar() is None:
        raise LeaseLost("another steward looks after these jobs now")


class Leases:
    """The leases of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, name: str, holder: str, seconds: float = LEASE_S, *, force: bool = False) -> Lease | None:
        """Take a lease that is over, with a new epoch; None while another holder has it. force: it is ours to take"""
        table = tables.leases
        with self._database.writing() as connection:
            now = self._database.now(connection)
            found = connection.execute(select(table).where(table.c.name == name).with_for_update()).one_or_none()
            values = {"holder": holder, "until": now + seconds}
            if found is None:
                connection.execute(insert(table).values(name=name, epoch=1, **values))
                return Lease(name=name, epoch=1)
            if found.until > now and found.holder and not force:
                return None
            epoch = int(found.epoch) + 1
            connection.execute(update(table).where(table.c.name == name).values(epoch=epoch, **values))
            return Lease(name=name, epoch=epoch)

    def renew(self, lease: Lease, seconds: float = LEASE_S) -> bool:
        """Extend a lease; False if another steward has it now."""
        table = tables.leases
        with self._database.writing() as connection:
            until = self._database.now(connection) + seconds
            changed = update(table).where(table.c.name == lease.name, table.c.epoch == lease.epoch).values(until=until)
            return connection.execute(changed).rowcount == 1

    def give_back(self, lease: Lease) -> None:
        """Let another steward take a lease at once."""
        table = tables.leases
        with self._database.writing() as connection:
            mine = (table.c.name == lease.name) & (table.c.epoch == lease.epoch)
            connection.execute(update(table).where(mine).values(holder="", until=0.0))

    def holder(self, name: str) -> str:
        """Return who has a lease, "" if nobody has."""
        table = tables.leases
        with self._database.reading() as connection:
            now = self._database.now(connection)
            query = select(table.c.holder).where(table.c.name == name, table.c.until > now)
            return str(connection.execute(query).scalar() or "")
