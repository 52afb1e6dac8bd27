"""Requests on the control socket, which only this user can open: a new channel of the client, or a command."""

from __future__ import annotations

import os
import select

from mesh.agent.base.errors import why
from mesh.agent.base.light import partial
from mesh.agent.control.restarting import RestartRequests
from mesh.agent.control.sockets import ControlSocket, reply
from mesh.agent.run.facts import ClientOver, DetachAsked, StopAsked
from mesh.protocol import control
from mesh.protocol.answers import Attached, NoSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.detached.followers import Followers
    from mesh.agent.link.client import ClientConnection
    from mesh.agent.loop import Loop
    from mesh.agent.port import ControlPort

CHANNEL_DESCRIPTORS = 2


class ControlServer:
    """The control socket of this agent."""

    def __init__(
        self,
        port: ControlPort,
        loop: Loop,
        client: ClientConnection,
        followers: Followers,
        may_detach: bool = True,
    ) -> None:
        """Start without a socket.

        client: gets new channels; followers: get those who read the journal; may_detach: another client may order it
        """
        self._may_detach = may_detach
        self._port, self._loop, self._client, self._followers = port, loop, client, followers
        self._passed: dict[str, dict[int, int]] = {}  # results of signals that were passed on, by the requests' ids
        self._socket: ControlSocket | None = None
        self.restarts = RestartRequests(port)

    def listen(self, run: str, node: int) -> None:
        """Open the socket, unless it is open: from now on a client that has lost its channel can come back."""
        if self._socket is None:
            try:
                opened = self._socket = ControlSocket(run, node)
            except OSError as error:
                self._port.send(NoSocket(why=why(error)))
            else:
                self._loop.watch(opened.fileno(), select.POLLIN, partial(self._receive, opened))

    def close(self) -> None:
        """Remove the socket, and answer all that wait."""
        self.restarts.close()
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _receive(self, socket: ControlSocket, events: int) -> None:
        found = socket.receive()
        if found is None:
            return
        request, descriptors, visitor = found
        if isinstance(request, control.Channel) and len(descriptors) == CHANNEL_DESCRIPTORS:
            incoming, outgoing = descriptors
            self._client.take(incoming, outgoing, visitor, request.have)
            self._port.send_now(Attached(orders=self._port.last_order))
            return
        _close(descriptors)
        if isinstance(request, control.Follow) and self._port.is_detached:
            self._followers.add(visitor, request.client)
        elif isinstance(request, control.Pass):
            reply(visitor, {"ranks": self._pass_on(request)})
        elif isinstance(request, control.Restart):
            self.restarts.take(request, visitor)
        else:
            if isinstance(request, control.Detach):
                if self._may_detach:  # else the answer has the reason
                    self._port.post(DetachAsked())
            elif isinstance(request, control.Over):
                self._port.post(ClientOver())
            elif isinstance(request, control.Stop):
                self._port.post(StopAsked(request.grace))
            reply(visitor, self._port.describe())

    def _pass_on(self, request: control.Pass) -> dict[int, int]:
        """Signal ranks once, though the request may come through each host that is this machine."""
        if request.id not in self._passed:
            self._passed[request.id] = self._port.pass_on(request.signal, request.ranks)
        return self._passed[request.id]


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
