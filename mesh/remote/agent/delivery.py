"""The requests that bring the workspace; each names the method of Delivery that obeys it."""

from __future__ import annotations

import zlib

from .errand import hint, why
from .frames import FrameError
from .lean import dumps, partial
from .state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .main import Agent
    from .sync import Sync


class Delivery:
    """One workspace on its way, and perhaps once more, if files have changed meanwhile."""

    def __init__(self, agent: Agent, state: State, run: str) -> None:
        self._agent, self._state, self._run = agent, state, run
        self._sync: Sync | None = None
        self._tree = 0  # which tree of hosts it fetches from
        self._attempt = 0  # which listing of the workspace it is about

    def do_changes(self, header: dict[str, Any], data: bytes) -> None:
        """A piece of the manifest's changes; with the last one the sync can begin, unless a pack follows."""
        if self._agent.is_over():
            return
        if header.get("first"):
            if "fresh" not in header or "attempt" not in header:
                raise FrameError("changes: no fresh, or no attempt")
            from .sync import Sync  # with all that it takes: a third of the agent

            self.drop()
            self._sync = Sync(self._state, self._run, header["fresh"])
            self._attempt = header["attempt"]
        if self._sync is None:
            raise FrameError("changes: not the first ones")
        self._sync.add_changes(data)
        if header.get("last"):
            self._work(self._sync.work, is_little=self._sync.is_little())

    def do_pack(self, header: dict[str, Any], data: bytes) -> None:
        """A piece of a pack of the workspace."""
        if self._agent.is_over() or self._sync is None:
            return
        try:
            self._sync.add(data)
        except OSError as error:
            self._failed(error)
        else:
            if header.get("last"):
                self._work(self._sync.work, is_little=self._sync.is_little())

    def do_serve(self, header: dict[str, Any], data: bytes) -> None:
        """Hand on the next pack to other hosts."""
        if self._agent.is_over() or self._sync is None:
            return
        try:
            port = self._sync.serve(header["bytes"], header["credentials"])
        except Exception as error:  # no ssl in this Python, no socket to be had
            self._agent.out.send({"type": "unfetched", "tree": header["tree"], "reason": str(error)})
        else:
            self._agent.out.send({"type": "serving", "tree": header["tree"], "port": port})

    def do_fetch(self, header: dict[str, Any], data: bytes) -> None:
        """Take the pack from another host."""
        if not self._agent.is_over() and self._sync is not None:
            self._tree = header["tree"]
            given = (header["address"], header["port"], header["bytes"], header["credentials"])
            try:
                self._sync.expect()
            except OSError as error:
                self._failed(error)
            else:
                self._work(partial(self._sync.fetch_and_work, *given))

    def do_settled(self, header: dict[str, Any], data: bytes) -> None:
        """Nobody fetches from us any more."""
        self.drop()

    def has_ended(self, pid: int) -> None:
        """A child of the agent's is no more."""
        if self._sync is not None:
            self._sync.has_ended(pid)

    def drop(self) -> None:
        """Leave nothing of it behind but the workspace."""
        if self._sync is not None:
            self._sync.drop()
            self._sync = None

    def stop(self) -> None:
        """Change no more, should we be at it just now."""
        if self._sync is not None:
            self._sync.stop()

    def _work(self, work: Callable[[], dict[str, Any]], *, is_little: bool = False) -> None:
        # A copy that a run has for itself is removed with it: nobody is to be at work in it then.
        begin = self._agent.begin_chore if is_little and not self._agent.share else self._agent.send_on_errand
        try:
            begin(work, self._worked)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.drop()
        self._agent.fail("sync", why(error), hint(error))

    def _worked(self, answer: dict[str, Any]) -> None:
        """The workspace is in place, or something for it is lacking."""
        send = self._agent.out.send
        if self._agent.is_over() or self._sync is None:
            self.drop()
        elif "error" in answer:
            self.drop()
            self._agent.fail("sync", answer["error"], answer["hint"])
        elif "unfetched" in answer:
            send({"type": "unfetched", "tree": self._tree, "reason": answer["unfetched"]})
        elif "base" in answer:
            send({"type": "other-tree", "tree": answer["base"], "attempt": self._attempt})
        elif "lacks" in answer:
            self._sync.complete()
            told = {"type": "lacks", "attempt": self._attempt}
            send(told, zlib.compress(dumps(answer["lacks"]).encode(), 1))
        else:
            if not self._sync.is_serving:
                self.drop()
            send({"type": "synced", "attempt": self._attempt, **answer})
