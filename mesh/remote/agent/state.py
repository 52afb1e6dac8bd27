"""What mesh keeps on a host: where it is, and the lock that one run at a time holds."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import zlib

from .errand import LinkRefused
from .lean import contents, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLEAN, DIRTY = "clean", "dirty"  # of a record of a sync, see manifest.py
LOOKS, BETWEEN = 3, 0.02  # at a lock, and seconds between two of them
LOCK_PATIENCE = 1.0  # seconds; taking the lock and writing the owner are two steps, far shorter than this


def machine_id() -> str:
    """Which machine this is, readable and unique: several machines may share one home directory."""
    name = os.uname().nodename
    if name not in _machine_ids:
        try:
            number = contents("/etc/machine-id")
        except OSError:
            number = ""
        # Machines made from one image may have one machine-id, so the name counts as well.
        digest = zlib.crc32((name + "\n" + number).encode("utf-8", "replace"))
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name[:40])
        _machine_ids[name] = f"{safe}-{digest:08x}"
    return _machine_ids[name]


_machine_ids: dict[str, str] = {}  # of a name that this machine has had


def boot_id() -> str:
    """Changes with each start of the machine; "" where it is not told."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def known_tree(record_path: str) -> str:
    """The tree hash of the last complete sync; "" if there is none, or one was interrupted. Quick."""
    try:
        with open(record_path, "rb") as file:
            tree, mark = file.readline(100).decode("ascii").split()
    except (OSError, ValueError):
        return ""
    return tree if mark == CLEAN and tree.isalnum() else ""


class Busy(Exception):
    """Another run has the lock; ``owner`` is what it wrote there, a dict."""

    def __init__(self, owner: dict[str, Any]) -> None:
        Exception.__init__(self, "busy")
        self.owner = owner


def machine_directory(remote_dir: str) -> str:
    """Where this machine's own things are below remote_dir: its lock, its spools."""
    return os.path.join(os.path.expanduser(remote_dir), "machines", machine_id())


def stand_in(remote_dir: str = "~") -> str:
    """Return the path in /tmp that stands for one below HOME where HOME is read-only."""
    return f"/tmp/mesh-home-{os.geteuid()}" + remote_dir[1:]


def is_home_read_only(remote_dir: str) -> bool:
    """True if remote_dir is below HOME, on a file system that is mounted read-only."""
    place = os.path.expanduser(remote_dir)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        return remote_dir[:2] in ("~", "~/") and bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def places_of(remote_dir: str) -> list[str]:
    """Return remote_dir, and with it what stands for it in /tmp if that is there."""
    has_stand_in = remote_dir[:2] in ("~", "~/") and _is_private(stand_in())
    return [remote_dir, stand_in(remote_dir)] if has_stand_in else [remote_dir]


def _is_private(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()  # a directory, for nobody else


class State:
    """The directories below remote_dir, and the lock of the machine."""

    def __init__(self, remote_dir: str, project: str, share: str = "", links: bool = False) -> None:
        """Take a place and a project.

        share: the name of the copy that a run has for itself; "": the workspace that all runs of the project use
        links: the workspace may be a symbolic link, as cluster.yaml allows
        """
        root = os.path.expanduser(remote_dir)
        self.machine = machine_directory(remote_dir)
        self.workspaces = os.path.join(self.machine, share) if share else os.path.join(root, "workspaces")
        self.store = os.path.join(root, "store")
        self.project = project
        self._root = root
        self._links = links
        self._lock = -1

    def make(self) -> None:
        """Make the directories. Raises OSError where they cannot be made or written, and LinkRefused."""
        if self._root.startswith(stand_in() + "/"):
            try:
                os.mkdir(stand_in(), 0o700)
            except FileExistsError:  # another user may have made it
                if not _is_private(stand_in()):
                    raise PermissionError(errno.EPERM, "not a directory of this user alone", stand_in()) from None
        places = {"the directory of workspaces": self.workspaces, "the workspace": self.workspace}
        for what, path in places.items() if not self._links else ():
            if os.path.islink(path):
                hint = "remove the link there, or write under the cluster in cluster.yaml: workspace_links: true"
                raise LinkRefused(what + " is a symbolic link", path, hint)
        os.makedirs(self._root, 0o700, exist_ok=True)
        if not os.path.isdir(self.workspace):
            self.forget_prerun()
        for directory in (self.machine, self.workspace):
            os.makedirs(directory, exist_ok=True)
        if not os.access(self.workspaces, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.workspaces)

    @property
    def workspace(self) -> str:
        return os.path.join(self.workspaces, self.project)

    def is_bare(self) -> bool:
        """Whether nothing is here that a sync could use."""
        try:
            if os.path.exists(self.beside("record")) or os.listdir(self.workspace):
                return False
            return not os.path.exists(self.store) or not os.listdir(self.store)
        except OSError:
            return False

    def beside(self, what: str) -> str:
        """A file of ours that belongs to the workspace: the record of the last sync, the mark of who syncs."""
        return os.path.join(self.workspaces, f".{self.project}.{what}")

    def forget_prerun(self) -> None:
        """What prerun entries have made in the workspace is there no more. Raises OSError."""
        try:
            os.truncate(self.beside("prerun"), 0)
        except FileNotFoundError:
            pass

    def library(self, module: str, source: bytes) -> str:
        """The directory where Python finds this source as a module so named, made if need be. Raises OSError."""
        directory = os.path.abspath(os.path.join(self.machine, f"python-{zlib.crc32(source):08x}"))
        path = os.path.join(directory, module + ".py")
        if not os.path.exists(path):
            os.makedirs(directory, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "wb") as file:
                file.write(source)
            os.replace(f"{path}.{os.getpid()}", path)  # other runs may be reading it
        return directory

    def pack(self, number: int) -> str:
        """A file for a pack of the workspace as it comes; what killed agents have left of theirs is removed."""
        for name in os.listdir(self.machine):
            kind, _, pid = name.partition(".")[0].rpartition("-")
            if kind == "pack" and not os.path.exists("/proc/" + pid):
                os.unlink(os.path.join(self.machine, name))
        return os.path.join(self.machine, f"pack-{os.getpid()}.{number}")

    def lock(self, owner: dict[str, Any]) -> int:
        """Take the machine's lock until ``unlock`` or the end of this process; owner is a dict with "run". Raises Busy.

        Returns its descriptor, always the same: whoever holds a copy of it holds the lock.

        Agents of the same run share it: a cluster may name one machine twice. The kernel drops the lock with the
        last of them, however it ends, so there is no stale one to judge.
        """
        if self._lock < 0:
            self._lock = os.open(os.path.join(self.machine, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_PATIENCE
        while not self._try_lock(owner):
            if time.monotonic() > deadline:
                raise Busy(self._owner())
            time.sleep(0.01)
        return self._lock

    def tell(self, owner: dict[str, Any]) -> None:
        """Have the lock that we hold tell something else of its owner. Raises OSError."""
        if self._lock >= 0:
            text = dumps(owner).encode()
            # One write: there is always something to be read, and what is longer stands behind spaces.
            size = os.fstat(self._lock).st_size
            os.pwrite(self._lock, text.ljust(size), 0)

    def unlock(self) -> None:
        """Let go of the lock: whoever holds a copy of its descriptor has it no longer."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _try_lock(self, owner: dict[str, Any]) -> bool:
        """One attempt; False if somebody is just now changing the lock or its owner."""
        if self._flock(fcntl.LOCK_EX):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, dumps(owner).encode(), 0)
            return self._flock(fcntl.LOCK_SH)
        if not self._flock(fcntl.LOCK_SH):
            return False
        holder = self._owner()
        if holder.get("run") == owner["run"]:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        if holder:
            raise Busy(holder)
        return False

    def _flock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner(self) -> dict[str, Any]:
        return _owner_in(self._lock)


def lock_owner(remote_dir: str) -> dict[str, Any] | None:
    """What the run that has the machine's lock wrote there; None if no run has it.

    Nobody is kept from it: we have it for an instant, which whoever wants it waits for, and so do others who look.
    """
    try:
        lock = os.open(os.path.join(machine_directory(remote_dir), "lock"), os.O_RDWR)
    except OSError:  # there has been no run
        return None
    try:
        for look in range(LOOKS):
            time.sleep(BETWEEN if look else 0.0)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return None
        return _owner_in(lock)
    finally:
        os.close(lock)


def _owner_in(lock: int) -> dict[str, Any]:
    try:
        owner = loads(os.pread(lock, 1 << 20, 0).strip())
    except ValueError:
        owner = {}
    return owner if isinstance(owner, dict) else {}
