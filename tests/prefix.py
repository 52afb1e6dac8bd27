"""A carrier in one module: an agent behind any words, with notices, reasons and limits as a scheduler has them."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from mesh.core.cluster import Host
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.events import Event, HostNotice
from mesh.core.interfaces import Farewell, NoAgent, Opened


class PrefixChannel:
    def __init__(self, argv: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, start_new_session=True
            )

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except OSError:  # the other end is gone, and has not read all of ours
            return b""

    def farewell(self) -> Farewell:
        return Farewell(status=self.process.wait(2.0), stderr=b"", is_agents=False)

    def close(self, *, leave: bool = False) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)


class PrefixBackend:
    client_return = 1.0  # seconds

    def __init__(self, prefix: Sequence[str], reason: str = "") -> None:
        self._prefix, self._reason, self.channels = prefix, reason, list[PrefixChannel]()

    def listen(self, post: Callable[[Event], None]) -> None:
        self._post = post

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        for node, host in enumerate(hosts):
            self._post(HostNotice(time=time.time(), node=node, text="its time ends at noon"))
            self.channels.append(PrefixChannel([*self._prefix, *argv]))
            yield Opened(node=node, result=self.channels[-1], address=host.address)

    def reopen(self, node: int, argv: Sequence[str]) -> PrefixChannel:
        raise HostUnreachable("the host was deleted", is_final=True)

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        return HostUnreachable(f"the prefix ended (exit {end.status})", step="python")

    def why(self, node: int) -> str:
        return self._reason

    def user(self, node: int) -> str:
        return "me"

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
            channel.process.wait(20.0)
            channel._socket.close()
