"""The workspace as it arrives: changes and packs are received here; the rest is an errand, or, if little, a chore."""

from __future__ import annotations

import fcntl
import os
import time
import zlib

from .errand import end_like_others
from .lean import loads, signal
from .manifest import SIZE, OtherBase
from .state import State, known_tree
from .store import hash_of
from .workspace import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# What is soon done: bytes of the record (of 8,000 files) or of what is put in place, and how many paths.
LITTLE, FEW = 1 << 20, 256


class Stopped(Exception):
    """The run is to end."""


class Sync:
    """One sync: the changes, and as many packs as it takes."""

    def __init__(self, state: State, run: str, fresh: bool) -> None:
        """fresh: what the hosts have made themselves is removed."""
        self._state, self._run, self._fresh = state, run, fresh
        self._began = time.monotonic()
        self._changes: list[bytes] = []
        self._paths: list[str] = []  # of the packs
        self._stopped = False
        self._pack = -1  # the one that is being received
        self._servers: list[int] = []  # the processes that hand packs on

    def add_changes(self, data: bytes) -> None:
        self._changes.append(data)

    def expect(self) -> None:
        """Have a file for the next pack. Raises OSError."""
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
        """The pack has come, from wherever; another one may follow."""
        if self._pack >= 0:
            os.close(self._pack)
            self._pack = -1

    def serve(self, size: int, credentials: str) -> int:
        """Hand on the pack that comes next, while it comes; returns the port. Raises OSError and ImportError."""
        import ssl  # noqa: F401  (takes some time, and two processes of ours need it: this one's children)

        from . import fanout  # few agents need it

        self.expect()
        listener = fanout.listen()
        port: int = listener.getsockname()[1]
        server = os.fork()
        if not server:
            try:
                end_like_others()
                fanout.serve(listener, self._paths[-1], size, credentials)
            finally:
                os._exit(0)
        self._servers.append(server)
        listener.close()
        return port

    def fetch_and_work(self, address: str, port: int, size: int, credentials: str) -> dict[str, Any]:
        """The pack comes from another host. Takes long; see ``work``, or returns "unfetched", the reason."""
        from . import fanout

        try:
            fanout.fetch(address, port, self._paths[-1], size, credentials)
        except fanout.Unreachable as error:
            return {"unfetched": str(error)}
        return self.work()

    def is_little(self) -> bool:
        """Whether ``work`` is soon done, for all that can be said beforehand."""
        try:
            if self._fresh or os.stat(self._record).st_size > LITTLE:
                return False
            unpacker = zlib.decompressobj()
            change = loads(unpacker.decompress(b"".join(self._changes), LITTLE))
            put, drop = change["put"], change["drop"]
            return len(put) + len(drop) <= FEW and sum(entry[SIZE] for entry in put) <= LITTLE
        except Exception:  # of what breaks the rules, ``work`` tells
            return False

    def stop(self) -> None:
        """Have ``work``, in another thread, change nothing any more: it raises Stopped instead."""
        self._stopped = True

    def work(self) -> dict[str, Any]:
        """Do with what has come all that can be done. Takes long.

        Returns "lacks"; or "tree", "files" and "seconds"; or "base", the tree that is here and not what was said.

        Only once where several hosts of a run share the workspace's file system.
        """
        changes = b"".join(self._changes)
        wanted = [self._run.encode(), hash_of(changes).encode()]  # a run may sync twice, as files change meanwhile
        with open(self._state.beside("sync"), "a+b") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            mark.seek(0)
            done = mark.read().split()
            if len(done) == 4 and done[:2] == wanted and done[3].decode() == known_tree(self._record):
                files, tree = int(done[2]), done[3].decode()
            else:
                workspace = Workspace(self._state.workspace, self._record, self._state.store)
                try:
                    answer = workspace.plan(changes)
                except OtherBase:  # the record was damaged, or another run was faster: the client is to begin anew
                    return {"base": known_tree(self._record)}
                if not answer["lacks"] or self._paths:
                    if self._fresh:
                        self._state.forget_prerun()
                    answer = workspace.apply(self._paths, self._fresh, self._step)
                if answer.get("lacks"):
                    return {"lacks": answer["lacks"]}
                files, tree = answer["files"], answer["tree"]
                mark.truncate(0)
                mark.write(b"%s %s %d %s" % (*wanted, files, tree.encode()))
        return {"tree": tree, "files": files, "seconds": round(time.monotonic() - self._began, 4)}

    def _step(self, what: str) -> None:
        if self._stopped:
            raise Stopped

    def drop(self) -> None:
        """Leave nothing of it behind, and stop handing it on."""
        for server in self._servers:
            try:
                os.kill(server, signal.SIGKILL)
            except ProcessLookupError:  # a zombie would be found: somebody else has waited for it
                pass
        self._servers = []
        if self._pack >= 0:
            os.close(self._pack)
            self._pack = -1
        for path in self._paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def has_ended(self, pid: int) -> None:
        """A child is no more: its number may be another process's."""
        if pid in self._servers:
            self._servers.remove(pid)

    @property
    def is_serving(self) -> bool:
        return bool(self._servers)

    @property
    def _record(self) -> str:
        return self._state.beside("record")
