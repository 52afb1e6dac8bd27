"""Who comes to the agent's door: its client with another channel, and whoever asks about the run, or ends it."""

from __future__ import annotations

import os
import time

from .doors import Door
from .errand import why
from .frames import FrameError
from .lean import dumps, signal
from .messages import at_door
from .processes import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .lean import Socket
    from .main import Agent


class Visits:
    """Everybody who may knock is our own user."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._passed: dict[str, dict[int, int]] = {}  # what came of signals that were passed on, by the requests' ids
        self.door: Door | None = None

    def close(self) -> None:
        """Nobody can come any more."""
        if self.door is not None:
            self.door.close()

    def make_door(self) -> None:
        """From now on a client that has lost its channel may come back."""
        if self.door is None:
            try:
                self.door = Door(self._agent.begin["run"], self._agent.begin["node"])
            except OSError as error:
                self._agent.out.send({"type": "no-door", "why": why(error)})

    def receive(self, door: Door) -> None:
        """Somebody comes: the client with another channel, or a question."""
        found = door.answer()
        if found is None:
            return
        agent = self._agent
        request, descriptors, visitor = found
        try:
            request = at_door(request)
        except FrameError:  # of another version of mesh, or none of ours
            visitor.close()
            for descriptor in descriptors:
                os.close(descriptor)
            return
        if request["type"] == "channel" and len(descriptors) == 2:
            incoming, outgoing = descriptors
            agent.lose_channel()
            agent.client.take_channel(incoming, visitor)
            os.set_blocking(outgoing, False)
            agent.out.go_on(outgoing, request["have"])
            agent.out.send_urgently({"type": "attached", "orders": agent.obeyed})
            agent.flush()
            return
        for descriptor in descriptors:
            os.close(descriptor)
        if request["type"] == "follow" and agent.client.is_detached:
            agent.detachment.follow(visitor, request["client"])
            return
        if request["type"] == "detach":
            agent.detachment.detach()
        if request["type"] == "pass":
            _reply(visitor, {"ranks": self._pass_on(request)})
            return
        if request["type"] == "over":
            agent.abandon()
        if request["type"] == "stop":
            grace = request["grace"]
            agent.out.send_urgently({"type": "stopped", "time": time.time()})
            agent.detachment.note_end("signal", signal.SIGTERM, {})
            agent.finish(signal.SIGTERM, agent.begin["grace"] if grace is None else grace)
            if grace is not None:
                agent.ending.kill_by(grace)  # it may have been ending already, with more time
        _reply(visitor, self.about())

    def about(self) -> dict[str, Any]:
        """What others may know of this run."""
        agent = self._agent
        pids = {process.pid for process in agent.ending.family()}
        ranks = agent.work.ranks.values()
        held = _held(agent.begin["devices"])
        return {
            "run": agent.begin["run"],
            "node": agent.begin["node"],
            "about": agent.begin["about"],
            "grace": agent.begin["grace"],
            "workspace": agent.state.workspace,
            "began": agent.began,
            "attached": not agent.client.is_silent() or len(agent.detachment.followers) > 0,
            "detached": agent.client.is_detached,
            "state": self._state(),
            "processes": len(pids),
            "ranks": [{"rank": rank.rank, "pid": rank.pid, "ended": rank.status >= 0} for rank in ranks],
            "devices": sorted({path for pid in pids for path in held.get(pid, ())}),
        }

    def _state(self) -> str:
        """How far the run is here, in a word."""
        agent = self._agent
        if agent.is_clear:
            return "ended"
        if agent.is_over():
            return "ending"
        if agent.work.ranks:
            return "running"
        if agent.pull is not None:
            return "pulling"
        return "preparing" if agent.locking.is_held else "waiting"

    def _pass_on(self, request: dict[str, Any]) -> dict[int, int]:
        """Signal ranks as a user would; return to how many processes of each of them it went.

        "id" of the request: it may come once through each host that is this machine
        """
        if request["id"] not in self._passed:
            ranks = self._agent.work.ranks.values()
            wanted = [rank for rank in ranks if request["ranks"] is None or rank.rank in request["ranks"]]
            told = {rank.rank: pass_on(rank.pid, request["signal"]) for rank in wanted if rank.status < 0}
            self._passed[request["id"]] = told
        return self._passed[request["id"]]


def _held(patterns: Sequence[str]) -> dict[int, list[str]]:
    """The devices of these patterns, by the processes that hold them; a question ends no run, whatever happens."""
    try:
        from . import devices

        return devices.holders(devices.find(patterns))
    except Exception:  # Python's own modules may have been removed since the run began
        return {}


def _reply(visitor: Socket, told: dict[str, Any]) -> None:
    """Answer somebody at the door, who may have gone."""
    with visitor:
        try:
            visitor.send(dumps(told).encode())
        except OSError:
            pass
