"""The locks of all hosts."""

from __future__ import annotations

import math
import zlib

from mesh.core.events import Busy, Locked, OtherRun, PrepareFailed
from mesh.engine.orders import Lock, Order, Say, Unlock
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.state import State
from mesh.remote.owners import other_line

SYNC_LIMIT_S = 30.0  # to wait for `push --watch`, which syncs whenever a file is saved
RETRY_S = 0.5  # at least, and at most twice that, before a host that was busy is tried again


class Locks:
    """Locks the first host before all others, and waits for a busy host without a lock on any other."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._has_no_home = False  # the first host has no directory for a lock
        self.is_backing_off = False  # a host was busy, and we release the others for a while
        # Two clients that wait for each other's hosts must not try in step.
        self._retry_s = RETRY_S * (1 + zlib.crc32(state.spec.run.encode()) % 100 / 100)
        # Runs of other users, by user and run: since when, and where.
        self._others: dict[tuple[str, str], list[tuple[float, int]]] = {}

    def order(self) -> list[Order]:
        """Lock the first host, then all others. Of two clients that start at once, one gets all hosts."""
        state = self._state
        if self.is_backing_off or (state.cause is not None and not self._has_no_home):
            return []
        # A fault that keeps the first host from having a lock at all may be on the others as well: have them report it.
        if state.phases[0] > Phase.LOCKING or self._has_no_home:
            nodes = state.phases.of(Phase.CONNECTED)
        else:
            nodes = [0] if state.phases[0] is Phase.CONNECTED else []
        state.phases.put(nodes, Phase.LOCKING)
        return [Lock(node=node) for node in nodes]

    def release(self, node: int) -> list[Order]:
        """Unlock a host that was locked while we were backing off."""
        self._state.phases[node] = Phase.CONNECTED
        return [Unlock(node=node), *self._back_off()]

    def fail(self, failure: PrepareFailed) -> None:
        """Note that a host cannot take part."""
        self._has_no_home = self._has_no_home or (failure.node == 0 and failure.step == "home")

    def may_wait(self, event: Busy) -> bool:
        """Return True if a busy host is to be tried again."""
        return self._state.cause is None and self._limit_s(event) > 0 and not self._state.clock.passed("wait")

    def wait(self, event: Busy) -> list[Order]:
        """Release every host and try again later."""
        said: list[Order] = []
        if "wait" not in self._state.clock:
            limit_s = self._limit_s(event)
            self._state.clock.start("wait", limit_s)
            most = f", for {limit_s:g} s at most" if limit_s < math.inf else ""
            text = f"waiting for {self._state.name(event.node)}{most}: it is busy with {event.owner}"
            said = [Say(text=text)]
        self.is_backing_off = True
        self._state.phases[event.node] = Phase.CONNECTED
        return [*said, *self._back_off()]

    def refuse(self, event: Busy) -> PrepareFailed:
        """Stop waiting; return the failure of a host that another run holds."""
        self.is_backing_off = False
        hint = "`mesh ps` lists what runs, `mesh stop RUN` ends it; --wait waits for its end"
        if event.is_other_user:
            hint = "it is another user's run, and only --exclusive refuses that; --wait waits for its end"
        message = f"busy with {event.owner}"
        return PrepareFailed(time=event.time, node=event.node, step="lock", message=message, hint=hint)

    def name_others(self, event: Locked) -> list[Order]:
        """Name the runs of other users on the hosts, once all hosts are locked."""
        if self._state.phases[event.node] >= Phase.LOCKED:
            for other in event.others:
                self._others.setdefault((other.user, other.run), []).append((other.since, event.node))
        if not self._state.phases.have_all(Phase.LOCKED):
            return []
        others, self._others = self._others, {}
        said: list[Order] = []
        for (user, run), found in others.items():
            nodes = {node for _, node in found}
            told = other_line(OtherRun(user=user, run=run, since=min(found)[0]))
            said.append(Say(text=f"{self._state.names(nodes)} {'are' if len(nodes) > 1 else 'is'} also used by {told}"))
        return said

    def look_at_the_clock(self) -> list[Order]:
        if not self._state.clock.passed("again"):
            return []
        self.is_backing_off = False
        return self.order()

    def _limit_s(self, event: Busy) -> float:
        return self._state.spec.wait or (SYNC_LIMIT_S if event.is_brief else 0.0)

    def _back_off(self) -> list[Order]:
        """Release all hosts. The next attempt comes some time after the last answer to this one."""
        phases = self._state.phases
        locked = phases.of(Phase.LOCKED)
        phases.put(locked, Phase.CONNECTED)
        if not phases.of(Phase.LOCKING):
            self._state.clock.restart("again", self._retry_s)
        return [Unlock(node=node) for node in locked]
