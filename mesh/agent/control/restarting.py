"""Requests at the control socket to start ranks again, each answered once all of its ranks are."""

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
    """A request, and those who wait for its answer."""

    def __init__(self) -> None:
        self.left: set[int] = set()  # ranks whose new process is not there
        self.told: list[NewProcess] = []
        self.visitors: list[Socket] = []


class RestartRequests:
    """All requests of a run. The same one may come through each host that is this machine: it counts once."""

    def __init__(self, port: ControlPort) -> None:
        """Start without any."""
        self._port = port
        self._by_id: dict[str, _Request] = {}

    def take(self, request: Restart, visitor: Socket) -> None:
        """Have ranks started again; the visitor gets the answer when all of them are, or cannot be."""
        found = self._by_id.get(request.id)
        if found is None:
            found = self._by_id[request.id] = _Request()
            for rank, why in self._port.restart(request.ranks, request.grace).items():
                if why:
                    found.told.append(NewProcess(rank=rank, why=why))
                else:
                    found.left.add(rank)
        found.visitors.append(visitor)
        self._settle(found)

    def note(self, rank: int, pid: int, why: str) -> None:
        """Note the new process of a rank, or (pid 0) why there is none."""
        for found in self._by_id.values():
            if rank in found.left:
                found.left.discard(rank)
                found.told.append(NewProcess(rank=rank, pid=pid, why=why))
                self._settle(found)

    def close(self) -> None:
        """Answer all that wait: no rank is started again any more."""
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
