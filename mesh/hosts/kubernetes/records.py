"""Records of the pods that this state directory has made: only those are used and deleted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.core.paths import runs_directory


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

    def remove(self, uid: str) -> None:
        """Remove a record; it is no error if there is none."""
        self._place(uid).unlink(missing_ok=True)

    def _place(self, uid: str) -> Path:
        return self._directory / f"{''.join(one for one in uid if one.isalnum() or one == '-')}.json"
