"""The requests that bring the workspace, on the way from the client to the sync."""

from __future__ import annotations

import os
import zlib

from mesh.agent.base.directories import Directories
from mesh.agent.base.errors import NO_ROOM, hint, no_room, why
from mesh.agent.base.light import dumps, partial
from mesh.protocol.answers import Lacks, OtherTree, Serving, Synced, Unfetched
from mesh.protocol.frames import FrameError
from mesh.protocol.messages import read_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.base.background import Answer
    from mesh.agent.port import Port
    from mesh.agent.sync.sync import Sync
    from mesh.protocol.requests import Changes, Fetch, Pack, Serve


class SyncRequests:
    """The sync of one workspace; another one follows if files have changed meanwhile."""

    def __init__(self, port: Port, state: Directories, run: str) -> None:
        """Start without a sync."""
        self._port, self._state, self._run = port, state, run
        self._sync: Sync | None = None
        self._tree = 0  # the tree of hosts that the pack is fetched through
        self._attempt = 0  # the listing of the workspace that the sync is about
        self._lacking = 0  # bytes of the contents that the client was asked for

    def take_changes(self, request: Changes, data: bytes) -> None:
        """Add a piece of the manifest's changes; the last one begins the sync, unless a pack follows."""
        if self._port.is_over:
            return
        if request.first:
            from mesh.agent.sync.sync import Sync  # with all that it takes: a third of the agent

            self.drop()
            self._sync = Sync(self._state, self._run, bool(request.fresh))
            self._attempt, self._lacking = request.attempt or 0, 0
        if self._sync is None:
            raise FrameError("changes: not the first ones")
        self._sync.add_changes(data)
        if request.last:
            self._work(self._sync.work)

    def take_pack(self, request: Pack, data: bytes) -> None:
        """Add a piece of a pack of the workspace."""
        if self._port.is_over or self._sync is None:
            return
        try:
            self._sync.add(data)
        except OSError as error:
            self._fail(error)
        else:
            if request.last:
                self._work(self._sync.work)

    def serve(self, request: Serve) -> None:
        """Hand on the next pack to other hosts."""
        if self._port.is_over or self._sync is None:
            return
        try:
            port = self._sync.serve(request.bytes, request.credentials)
        except Exception as error:  # no ssl in this Python, no socket to be had
            self._port.send(Unfetched(tree=request.tree, reason=str(error)))
        else:
            self._port.send(Serving(tree=request.tree, port=port))

    def fetch(self, request: Fetch) -> None:
        """Take the pack from another host."""
        if self._port.is_over or self._sync is None:
            return
        self._tree = request.tree
        given = (request.address, request.port, request.bytes, request.credentials)
        try:
            self._sync.expect()
        except OSError as error:
            self._fail(error)
        else:
            self._work(partial(self._sync.fetch_and_work, *given))

    def child_ended(self, pid: int) -> None:
        """Note the end of a child, which may have handed packs on."""
        if self._sync is not None:
            self._sync.has_ended(pid)

    def drop(self) -> None:
        """Remove everything of the sync but the workspace."""
        if self._sync is not None:
            self._sync.drop()
            self._sync = None

    def _work(self, work: Callable[[], Answer]) -> None:
        try:
            self._port.background(work, self._worked)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._refuse(why(error), hint(error), error.errno or 0)

    def _refuse(self, reason: str, advice: str, number: int) -> None:
        """Report why the sync failed; number: of the system's error, 0 for any other."""
        self.drop()  # before the free space is looked at
        if number in NO_ROOM:
            place = os.path.dirname(self._state.workspace)
            reason = no_room(number, place, 2 * self._lacking)  # as a pack, and unpacked
        self._port.fail("sync", reason, advice)

    def _worked(self, answer: Answer) -> None:
        """Report that the workspace is in place, or lacks something."""
        send = self._port.send
        if self._port.is_over or self._sync is None:
            self.drop()
        elif "error" in answer:
            number = answer.get("errno", 0)
            self._refuse(str(answer["error"]), str(answer["hint"]), number if isinstance(number, int) else 0)
        elif "unfetched" in answer:
            send(Unfetched(tree=self._tree, reason=str(answer["unfetched"])))
        elif "base" in answer:
            send(OtherTree(tree=str(answer["base"]), attempt=self._attempt))
        elif isinstance(lacks := answer.get("lacks"), list):
            self._sync.complete()
            self._lacking = sum(lack["size"] for lack in lacks)
            send(Lacks(attempt=self._attempt), zlib.compress(dumps(lacks).encode(), 1))
        else:
            if not self._sync.is_serving:
                self.drop()
            send(read_record("synced", Synced, {**answer, "attempt": self._attempt}))
