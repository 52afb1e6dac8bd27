"""Records of the allocations that this state directory uses, with the keys of their switchboards."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.core.paths import runs_directory

FILE_MODE = 0o600
HANDED_ON = b"handed on\n"


class AllocationRecord(Struct, frozen=True, kw_only=True):
    """An allocation that was used here. It holds a key: others must not read its file."""

    name: str  # of the file, see ``name_of``
    job: str
    cluster: str
    login: str  # of the login node; "": this machine
    key: str  # of its switchboard: a private key and its certificate, as PEM
    digest: str = ""  # of the request
    nodes: tuple[str, ...] = ()  # their names, in order
    address: str = ""  # HOST:PORT of the switchboard, as the login node reaches it
    since: float = 0.0  # seconds since the epoch
    until: float = 0.0  # before which it stays; 0: `hold` decides
    hold: float = 0.0
    accounts: bool = False  # Slurm keeps accounts
    kill_wait: float = 0.0  # seconds from Slurm's SIGTERM to its SIGKILL; 0: unknown
    is_ours: bool = True  # mesh has asked for it, and may cancel it


def name_of(login: str, job: str) -> str:
    """Return the name of the record of a job.

    >>> name_of("login1.site", "12_3")
    'login1.site-12_3'
    """
    return "".join(one if one.isalnum() or one in "._-" else "-" for one in f"{login or 'here'}-{job}")


class AllocationRecords:
    """The records below XDG_STATE_HOME, one file each."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = runs_directory(environ).parent / "allocations"

    def write(self, record: AllocationRecord) -> None:
        """Write a record in one step. Raises MeshError."""
        place = self._place(record.name)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = place.with_suffix(f".{os.getpid()}")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(record))
            new.replace(place)
        except OSError as error:
            raise MeshError(f"cannot write {place}: {error.strerror}") from error

    def read(self) -> list[AllocationRecord]:
        """Return all records, the newest last."""
        found = [self.get(place.name.removesuffix(".json")) for place in self._directory.glob("*.json")]
        return sorted((one for one in found if one is not None), key=lambda one: one.since)

    def get(self, name: str) -> AllocationRecord | None:
        """Return one record; None if there is none, or that of another version."""
        try:
            return msgspec.json.decode(self._place(name).read_bytes(), type=AllocationRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def remove(self, name: str) -> None:
        """Remove a record; it is no error if there is none, or if it cannot be removed."""
        for place in (self._place(name), self._waits(name)):
            with contextlib.suppress(OSError):
                place.unlink()

    @contextlib.contextmanager
    def alone(self, cluster: str) -> Iterator[None]:
        """Hold the lock of a cluster's name: two commands never ask for two allocations. Raises MeshError."""
        descriptor = self._opened(self._directory / f"{name_of('lock', cluster)}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Count this command among those that wait for a job. name: of its record. Raises MeshError."""
        descriptor = self._opened(self._waits(name))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def is_waited(self, name: str) -> bool:
        """Return True if another command waits for a job. Within ``alone``, or the answer may be old."""
        try:
            descriptor = os.open(self._waits(name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def hand_on(self, name: str) -> None:
        """Note that the command which has asked for a job is gone: the last one that waits for it cancels it."""
        with contextlib.suppress(OSError):
            self._waits(name).write_bytes(HANDED_ON)

    def is_handed_on(self, name: str) -> bool:
        """Return True if the command that has asked for a job has left it to those that wait for it."""
        try:
            return self._waits(name).read_bytes() == HANDED_ON
        except OSError:
            return False

    def _opened(self, place: Path) -> int:
        """Return the descriptor of a lock file. Raises MeshError."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise MeshError(f"cannot write {place}: {error.strerror}") from error

    def _waits(self, name: str) -> Path:
        return self._directory / f"{name}.waits"

    def _place(self, name: str) -> Path:
        return self._directory / f"{name}.json"
