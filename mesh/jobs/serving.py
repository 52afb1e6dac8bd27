"""The steward's end of its socket: connections of commands, their requests, and rows for those that watch."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterable

from msgspec import json

from mesh.core.errors import MeshError
from mesh.jobs.coding import encode, read_path
from mesh.jobs.requests import AnyRequest, Reply, Watch
from mesh.jobs.sockets import peer

REQUEST_BYTES = 64 << 20  # of one request: a submit of an array carries a spec for each member
UNREAD_BYTES = 64 << 20  # of answers; a client that leaves more unread is disconnected
READ_BYTES = 1 << 18

_requests: json.Decoder[AnyRequest] = json.Decoder(AnyRequest, dec_hook=read_path)
Handle = Callable[[AnyRequest], Reply]


class Client:
    """A connection of a command."""

    def __init__(self, way: socket.socket) -> None:
        self.way = way
        self.received = bytearray()
        self.unsent = bytearray()
        self.watch: Watch | None = None
        self.is_answered = False


class Server:
    """The listener and its connections. It is used from the steward's thread, which waits on the selector."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, handle: Handle) -> None:
        self._listener, self._selector, self._handle = listener, selector, handle
        self._clients: set[Client] = set()
        selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def watchers(self) -> list[Client]:
        """Clients that want the rows of jobs after each change."""
        return [client for client in self._clients if client.watch]

    def close(self) -> None:
        """Close the listener and all connections."""
        self._selector.unregister(self._listener)
        self._listener.close()
        for client in list(self._clients):
            self._drop(client)

    def send(self, client: Client, reply: Reply) -> None:
        """Send an answer as soon as the client reads it."""
        client.unsent += encode(reply).encode() + b"\n"
        self._flush(client)

    def _accept(self) -> None:
        try:
            way, _ = self._listener.accept()
        except OSError:  # it left, or no descriptor can be had
            return
        if peer(way)[1] != os.geteuid():
            way.close()
            return
        way.setblocking(False)
        client = Client(way)
        self._clients.add(client)
        self._selector.register(way, selectors.EVENT_READ, lambda: self._ready(client))

    def _ready(self, client: Client) -> None:
        if client.unsent:
            self._flush(client)
        if client not in self._clients:
            return
        try:
            data = client.way.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(client.received) > REQUEST_BYTES:
            self._drop(client)
            return
        client.received += data
        if client.is_answered or b"\n" not in data:
            return
        client.is_answered = True
        self._answer(client, bytes(client.received.partition(b"\n")[0]))

    def _answer(self, client: Client, line: bytes) -> None:
        try:
            request: AnyRequest = _requests.decode(line)
            if isinstance(request, Watch):
                client.watch = request
            reply = self._handle(request)
        except MeshError as error:
            reply = Reply(error=str(error), hint=error.hint, exit_code=error.exit_code)
        except ValueError as error:
            reply = Reply(error=f"the steward cannot read this request ({error})", hint="restart it: mesh serve stop")
        self.send(client, reply)

    def _flush(self, client: Client) -> None:
        try:
            while client.unsent:
                del client.unsent[: client.way.send(client.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        if len(client.unsent) > UNREAD_BYTES:
            self._drop(client)
            return
        if not client.unsent and client.is_answered and not client.watch:
            self._drop(client)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        self._selector.modify(client.way, events, lambda: self._ready(client))

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.way)
            client.way.close()


def send_rows(server: Server, clients: Iterable[Client], reply: Callable[[Watch], Reply | None]) -> None:
    """Send each watching client the rows that have changed."""
    for client in clients:
        assert client.watch is not None
        found = reply(client.watch)
        if found is not None:
            server.send(client, found)
