"""Machines of this store without an owner, as the steward's last audit has found them, in a file beside the store."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import MsgspecError, Struct, json

FILE = "strays.json"


class Stray(Struct, frozen=True, kw_only=True):
    """A machine, or a request for some, that this store has made and that no job has."""

    name: str
    kind: str  # "node" or "request"
    zone: str
    project: str
    job: int | None = None  # that had it; None: the store has no such job
    per_hour: float | None = None  # None: its price is unknown

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The fields by which two audits show the same one."""
        return self.kind, self.project, self.zone, self.name


class Strays(Struct, frozen=True, kw_only=True):
    """The findings of an audit."""

    time: float = 0.0  # seconds since the epoch; 0: there was none yet
    found: tuple[Stray, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()  # projects and zones without a complete answer

    def beside(self, before: Strays) -> Strays:
        """Return these findings, and the former ones of zones that gave no complete answer now."""
        kept = tuple(one for one in before.found if (one.project, one.zone) in self.silent)
        known = {one.identity for one in self.found}
        found = (*self.found, *(one for one in kept if one.identity not in known))
        return Strays(time=self.time, found=found, silent=self.silent)

    def by_job(self) -> dict[int, tuple[str, ...]]:
        """Return the names of machines without an owner, by the job that had them."""
        found: dict[int, tuple[str, ...]] = {}
        for one in self.found:
            if one.job is not None and one.name not in found.get(one.job, ()):
                found[one.job] = (*found.get(one.job, ()), one.name)
        return found


def read_strays(directory: Path) -> Strays:
    """Return the findings of the last audit of a store's steward; none if there was none."""
    try:
        return json.decode((directory / FILE).read_bytes(), type=Strays)
    except (OSError, MsgspecError):
        return Strays()


def write_strays(directory: Path, found: Strays) -> None:
    """Write the findings of an audit, in one step."""
    new = directory / f"{FILE}.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(json.encode(found))
    new.replace(directory / FILE)
