"""A sync of the workspace: receives changes and packs here, and applies them in a process of its own."""

from __future__ import annotations

import fcntl
import os
import time

from mesh.agent.base.background import fork
from mesh.agent.base.directories import Directories, known_tree
from mesh.agent.base.light import signal
from mesh.agent.sync.apply import Workspace
from mesh.agent.sync.contents import hash_of
from mesh.agent.sync.manifest import OtherBase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.sync.diff import Lack

    Outcome = dict[str, object]


class Sync:
    """A sync: the changes, and as many packs as it takes."""

    def __init__(self, state: Directories, run: str, fresh: bool) -> None:
        """fresh: remove files that the hosts have made themselves"""
        self._state, self._run, self._fresh = state, run, fresh
        self._began = time.monotonic()
        self._changes: list[bytes] = []
        self._paths: list[str] = []  # of the packs
        self._pack = -1  # the one that is being received
        self._servers: list[int] = []  # the processes that send packs to other hosts

    def add_changes(self, data: bytes) -> None:
        self._changes.append(data)

    def expect(self) -> None:
        """Make a file for the next pack. Raises OSError."""
        if self._pack < 0:
            self._paths.append(self._state.pack(len(self._paths)))
            self._pack = os.open(self._paths[-1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def add(self, data: bytes) -> None:
        """Add a piece of a pack. Raises OSError, above all when the disk is full."""
        self.expect()
        view = memoryview(data)
        while view:
            view = view[os.write(self._pack, view) :]

    def complete(self) -> None:
        """Close the file of a pack that is complete; another one may follow."""
        if self._pack >= 0:
            os.close(self._pack)
            self._pack = -1

    def serve(self, size: int, credentials: str) -> int:
        """Send the next pack to other hosts while it arrives; return the port. Raises OSError and ImportError."""
        # Few agents need these. TLS takes some time to import, and two children of this process need it.
        from mesh.agent.link import tls  # noqa: F401
        from mesh.agent.sync import fanout

        self.expect()
        listener = fanout.listen()
        port: int = listener.getsockname()[1]
        server = fork()
        if not server:
            try:
                fanout.serve(listener, self._paths[-1], size, credentials)
            finally:
                os._exit(0)
        self._servers.append(server)
        listener.close()
        return port

    def fetch_and_work(self, address: str, port: int, size: int, credentials: str) -> Outcome:
        """Fetch the pack from another host, and ``work``. Takes long. May return "unfetched", the reason."""
        from mesh.agent.sync import fanout

        try:
            fanout.fetch(address, port, self._paths[-1], size, credentials)
        except fanout.Unreachable as error:
            return {"unfetched": str(error)}
        return self.work()

    def work(self) -> Outcome:
        """Apply the changes as far as their contents are here. Takes long.

        Returns "lacks"; or "tree", "files" and "seconds"; or "base", the tree here where the changes begin at another.
        Hosts of a run that share the workspace's file system apply the changes once.
        """
        changes = b"".join(self._changes)
        wanted = [self._run.encode(), hash_of(changes).encode()]  # a run may sync twice, because files change meanwhile
        with open(self._state.beside("sync"), "a+b") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            mark.seek(0)
            done = mark.read().split()
            if len(done) == 4 and done[:2] == wanted and done[3].decode() == known_tree(self._record):
                files, tree = int(done[2]), done[3].decode()
            else:
                workspace = Workspace(self._state.workspace, self._record, self._state.store)
                try:
                    lacks: Sequence[Lack] = workspace.plan(changes)
                except OtherBase:  # the record was damaged, or another run was faster: the client begins anew
                    return {"base": known_tree(self._record)}
                if not lacks or self._paths:
                    if self._fresh:
                        self._state.forget_prerun()
                    applied = workspace.apply(self._paths, self._fresh)
                    lacks = applied.lacks
                if lacks:
                    return {"lacks": lacks}
                files, tree = applied.files, applied.tree
                mark.truncate(0)
                mark.write(b" ".join([*wanted, b"%d" % files, tree.encode()]))
        return {"tree": tree, "files": files, "seconds": round(time.monotonic() - self._began, 4)}

    def drop(self) -> None:
        """Remove the packs, and stop sending them to other hosts."""
        for server in self._servers:
            try:
                os.kill(server, signal.SIGKILL)
            except ProcessLookupError:  # a zombie would be found: it was waited for elsewhere
                pass
        self._servers = []
        if self._pack >= 0:
            os.close(self._pack)
            self._pack = -1
        for path in self._paths:
            try:
                os.truncate(path, 0)  # frees the space now: a process that sends the pack may take a moment to end
                os.unlink(path)
            except FileNotFoundError:
                pass

    def has_ended(self, pid: int) -> None:
        """Forget a child that has ended: another process may get its number."""
        if pid in self._servers:
            self._servers.remove(pid)

    @property
    def is_serving(self) -> bool:
        return bool(self._servers)

    @property
    def _record(self) -> str:
        return self._state.beside("record")
