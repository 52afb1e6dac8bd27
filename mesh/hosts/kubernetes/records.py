"""Records of the pods that this state directory has made: only those are used and deleted."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.core.paths import runs_directory


class Place(Struct, frozen=True):
    """The place of a root, where at most one of its name is."""

    context: str
    namespace: str
    root: str


class PodsRecord(Struct, frozen=True, kw_only=True):
    """Pods that were made here."""

    uid: str  # of their root
    root: str  # its name
    cluster: str
    context: str
    namespace: str
    pods: int
    since: float  # seconds since the epoch
    until: float = 0.0  # before which they stay; 0: `hold` decides
    hold: float = 0.0
    is_expected: bool = False  # a root is being created; uid is the mark that it will have
    machine: str = ""  # where the command ran; homes may be shared between machines
    server: str = ""  # of the API that has them; "": an earlier version has made them

    @property
    def place(self) -> Place:
        """The place of the root."""
        return Place(self.context, self.namespace, self.root)


class PodsRecords:
    """The records below XDG_STATE_HOME, one file each."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = runs_directory(environ).parent / "pods"

    def write(self, record: PodsRecord) -> None:
        """Write a record in one step. Raises MeshError."""
        place = self._place(record.uid)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = place.with_suffix(f".{os.getpid()}")
            new.write_bytes(msgspec.json.encode(record))
            new.replace(place)
        except OSError as error:
            raise MeshError(f"cannot write {place}: {error.strerror}") from error

    def read(self) -> list[PodsRecord]:
        """Return all records of roots that are there, the newest last."""
        found = []
        for place in self._directory.glob("*.json"):
            try:
                found.append(msgspec.json.decode(place.read_bytes(), type=PodsRecord))
            except (OSError, msgspec.MsgspecError):  # it is removed now, or another version's
                continue
        return sorted((one for one in found if not one.is_expected), key=lambda one: one.since)

    def has(self, uid: str) -> bool:
        """Return True if a root was made or adopted here."""
        return self._place(uid).exists()

    def get(self, uid: str) -> PodsRecord | None:
        """Return the record of a root, or of the mark of one that is being created; None without one."""
        try:
            return msgspec.json.decode(self._place(uid).read_bytes(), type=PodsRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def remove(self, uid: str) -> None:
        """Remove a record; it is no error if there is none."""
        self._place(uid).unlink(missing_ok=True)

    def lock_path(self, place: Place) -> Path:
        """Return the file that is locked while commands make pods in a place, or wait for them."""
        name = hashlib.sha256("\n".join((place.context, place.namespace, place.root)).encode()).hexdigest()[:16]
        return self._directory / f"{name}.waiters"

    def _place(self, uid: str) -> Path:
        return self._directory / f"{''.join(one for one in uid if one.isalnum() or one == '-')}.json"


def machine_here() -> str:
    """Return the name of this machine."""
    return socket.gethostname()
