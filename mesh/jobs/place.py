"""Where a store is: its directory, its address, and whether its file system can hold it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from mesh.core.errors import UsageError
from mesh.core.paths import runs_directory

STORE_FILE = "store.db"
STORE_VARIABLE = "MESH_STORE"
# File systems without the locks that SQLite needs, by their names in /proc/self/mountinfo.
REMOTE_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ceph",
    "lustre",
    "9p",
    "fuse.sshfs",
    "fuse.gcsfuse",
)


class StorePlace(Struct, frozen=True, kw_only=True):
    """The place of a store and of its jobs' directories."""

    directory: Path  # of the jobs, on this machine
    url: str = ""  # of a database for a team; "": the file in the directory

    @property
    def file(self) -> Path:
        """The database file of a store without a URL."""
        return self.directory / STORE_FILE

    @property
    def name(self) -> str:
        """The store as messages name it, without a password.

        >>> StorePlace(directory=Path("/x"), url="postgresql://me:secret@db/mesh").name
        'postgresql://me@db/mesh'
        """
        if not self.url:
            return str(self.file)
        scheme, _, rest = self.url.partition("://")
        login, at, where = rest.rpartition("@")
        return f"{scheme}://{login.partition(':')[0]}{at}{where}"

    def of_job(self, job: int) -> Path:
        """Return the directory of a job."""
        return self.directory / str(job)


def store_place(environ: Mapping[str, str]) -> StorePlace:
    """Return the place of this user's store. Raises UsageError for an address of an unknown kind."""
    url = environ.get(STORE_VARIABLE, "")
    directory = runs_directory(environ).parent / "jobs"
    if url.startswith("/"):
        return StorePlace(directory=Path(url))
    if url and not url.startswith(("postgresql://", "postgres://")):
        hint = "a directory, or an address such as postgresql://me@db.example/mesh"
        raise UsageError(f"{STORE_VARIABLE}: expected a directory or a postgresql:// address", hint=hint)
    return StorePlace(directory=directory, url=url)


def file_system_of(path: Path, mountinfo: str) -> str:
    """Return the type of the file system that holds a path. mountinfo: as in proc(5)

    >>> info = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\\n2 1 0:30 / /home rw shared:1 - nfs4 server:/home rw"
    >>> file_system_of(Path("/home/me"), info), file_system_of(Path("/homes"), info)
    ('nfs4', 'ext4')
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, _, source = line.partition(" - ")
        words = fields.split()
        if len(words) < 5 or not source:
            continue
        point = words[4].replace("\\040", " ")
        if len(point) > best and path.is_relative_to(point):
            best, kind = len(point), source.split()[0]
    return kind


def refuse_remote(directory: Path) -> None:
    """Raise UsageError if a directory is on a file system over a network, where SQLite's locks do not hold."""
    try:
        with open("/proc/self/mountinfo") as file:
            kind = file_system_of(Path(os.path.realpath(directory)), file.read())
    except OSError:  # macOS
        return
    if kind in REMOTE_FILE_SYSTEMS:
        hint = f"set {STORE_VARIABLE} to a local directory, or to a postgresql:// address for a team"
        raise UsageError(f"{directory}: the store of jobs cannot be on {kind}", hint=hint)
