"""Requests at the control socket to restart ranks. The answer follows once all ranks are restarted, or cannot be."""

from __future__ import annotations

from mesh.agent.control.sockets import reply
from mesh.protocol.records import plain
from mesh.protocol.replies import NewProcess, NewProcesses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.base.light import Socket
    from mesh.agent.port import ControlPort
    from mesh.protocol.control import Restart

RUN_OVER = "the run has ended"


class _Request:
    """A request, and the connections that wait for its answer."""

    def __init__(self) -> None:
        self.left: set[int] = set()  # ranks without their new process
        self.told: list[NewProcess] = []
        self.visitors: list[Socket] = []


class RestartRequests:
    """All requests of a run. A request that arrives several times, by several names of this machine, counts once."""

    def __init__(self, port: ControlPort) -> None:
        """Start without requests."""
        self._port = port
        self._by_id: dict[str, _Request] = {}

    def take(self, request: Restart, visitor: Socket) -> None:
        """Begin a request; the visitor gets the answer once all ranks are restarted, or cannot be."""
        found = self._by_id.get(request.id)
        if found is None:
            found = self._by_id[request.id] = _Request()
            for rank, why in self._port.restart(request.ranks, request.grace, request.to).items():
                if why:
                    found.told.append(NewProcess(rank=rank, why=why))
                else:
                    found.left.add(rank)
        found.visitors.append(visitor)
        self._settle(found)

    def note(self, rank: int, pid: int, why: str) -> None:
        """Note the new process of a rank. pid: 0 if there is none, for the reason in why"""
        for found in self._by_id.values():
            if rank in found.left:
                found.left.discard(rank)
                found.told.append(NewProcess(rank=rank, pid=pid, why=why))
                self._settle(found)

    def close(self) -> None:
        """Answer all waiting requests: no rank is restarted any more."""
        for found in self._by_id.values():
            for rank in list(found.left):
                self.note(rank, 0, RUN_OVER)

    def _settle(self, found: _Request) -> None:
        if found.left:
            return
        visitors, found.visitors = found.visitors, []
        for visitor in visitors:
            answer = plain(NewProcesses(ranks=sorted(found.told, key=lambda one: one.rank), agents=1))
            assert isinstance(answer, dict)
            reply(visitor, answer)
