"""The directories of mesh on a host, and the id of the machine."""

from __future__ import annotations

import errno
import os
import zlib

from mesh.agent.base.errors import LinkRefused
from mesh.agent.base.light import contents

CLEAN, DIRTY = "clean", "dirty"  # of a record of a sync, see sync/manifest.py
ZIP_START = b"PK"
PRIVATE_PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # the first one that can be written has the private directory


def machine_id() -> str:
    """Return the machine's name, readable and unique: several machines may share one home directory."""
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
    """Return the id of this start of the machine; "" where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def known_tree(record_path: str) -> str:
    """Return the tree hash of the last complete sync; "" if there is none, or one was interrupted. Quick."""
    try:
        with open(record_path, "rb") as file:
            tree, mark = file.readline(100).decode("ascii").split()
    except (OSError, ValueError):
        return ""
    return tree if mark == CLEAN and tree.isalnum() else ""


def machine_directory(remote_dir: str) -> str:
    """Return the directory of this machine's own things below remote_dir: its lock, its spools."""
    return os.path.join(os.path.expanduser(remote_dir), "machines", machine_id())


def cut_short(machine: str) -> list[str]:
    """Return the files in a machine's directory that steps of modules were writing when they were killed."""
    directory, found = os.path.join(machine, "modules"), []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        kind, _, pid = name.rpartition("-")
        is_ours = kind == "incoming" or kind.endswith("-output")
        if is_ours and pid.isdigit() and not os.path.exists("/proc/" + pid):
            found.append(os.path.join(directory, name))
    return found


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
    """Return True for a directory that is this user's alone."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()


def private_directory() -> str:
    """Return the directory of this user's control sockets, made if need be. Raises OSError where none can be written.

    It is not below the home directory, which may be on a file system without sockets. Its path may also be too long
    for a socket (107 bytes).
    """
    problem: OSError | None = None
    for place in PRIVATE_PLACES:
        path = f"{place}/mesh-{os.geteuid()}"
        try:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
            if _is_private(path) and os.access(path, os.W_OK):
                return path
            raise PermissionError(1, "is not this user's alone, or cannot be written", path)
        except OSError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def private_directories() -> list[str]:
    """Return the directories in which control sockets of this user's agents may be."""
    return [path for path in (f"{place}/mesh-{os.geteuid()}" for place in PRIVATE_PLACES) if _is_private(path)]


def node_directory(run: str, node: int) -> str:
    """Return the directory of a program's files on this host. Raises OSError where none can be written."""
    return os.path.join(private_directory(), f"{run}-{node}.nodes")


def remove_nodes(run: str, node: int) -> None:
    """Remove the files of a program whose agent was killed."""
    for place in private_directories():
        remove_tree(os.path.join(place, f"{run}-{node}.nodes"))


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, as far as that is possible; follow no links."""
    try:
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        pass


class Directories:
    """The directories below remote_dir."""

    def __init__(self, remote_dir: str, project: str, share: str = "", links: bool = False) -> None:
        """project: the name of the workspace's directory

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

    def make(self) -> None:
        """Make the directories. Raises OSError where they cannot be made or written, and LinkRefused."""
        if self._root.startswith(stand_in() + "/"):
            try:
                os.mkdir(stand_in(), 0o700)
            except FileExistsError:  # another user may have made it
                if not _is_private(stand_in()):
                    raise PermissionError(errno.EPERM, "not a directory of this user alone", stand_in()) from None
        places = {"the directory of workspaces": self.workspaces, "the workspace": self.workspace}
        for name, path in places.items() if not self._links else ():
            if os.path.islink(path):
                hint = "remove the link there, or write under the cluster in cluster.yaml: workspace_links: true"
                raise LinkRefused(name + " is a symbolic link", path, hint)
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
        """Return True if nothing is here that a sync could use."""
        try:
            if os.path.exists(self.beside("record")) or os.listdir(self.workspace):
                return False
            return not os.path.exists(self.store) or not os.listdir(self.store)
        except OSError:
            return False

    def beside(self, name: str) -> str:
        """Return the path of a file that belongs to the workspace, as the record of the last sync."""
        return os.path.join(self.workspaces, f".{self.project}.{name}")

    def forget_prerun(self) -> None:
        """Empty the list of prerun entries that are done, for a new workspace. Raises OSError."""
        try:
            os.truncate(self.beside("prerun"), 0)
        except FileNotFoundError:
            pass

    def library(self, module: str, source: bytes) -> str:
        """Return a place on the path of Python that has this source as a module, made if need be. Raises OSError.

        source: a zip of modules, which is a place itself, or the source of one module
        """
        is_zip = source.startswith(ZIP_START)
        directory = os.path.abspath(os.path.join(self.machine, f"python-{zlib.crc32(source):08x}"))
        path = os.path.join(directory, module + (".zip" if is_zip else ".py"))
        if not os.path.exists(path):
            os.makedirs(directory, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "wb") as file:
                file.write(source)
            os.replace(f"{path}.{os.getpid()}", path)  # other runs may be reading it
        return path if is_zip else directory

    def pack(self, number: int) -> str:
        """Return the path of a file for a pack that arrives. Remove the packs of killed agents."""
        for name in os.listdir(self.machine):
            kind, _, pid = name.partition(".")[0].rpartition("-")
            if kind == "pack" and not os.path.exists("/proc/" + pid):
                os.unlink(os.path.join(self.machine, name))
        return os.path.join(self.machine, f"pack-{os.getpid()}.{number}")
