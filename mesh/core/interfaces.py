"""The seams: how hosts are reached, and who looks at events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from mesh.core.cluster import Host
from mesh.core.errors import HostUnreachable
from mesh.core.events import Event


class Farewell(Struct, frozen=True, kw_only=True):
    """What a channel says after its end."""

    status: int | None  # exit status of the remote argv; None if it was not told
    stderr: bytes  # the last of what came on its standard error, at most 64 KiB


class Channel(Protocol):
    """A byte pipe each way to one agent. Closed without a good-bye, it starts the agent's clock."""

    address: str
    """By which the other hosts reach this one, as far as the backend knows: an IP address or a name."""

    def send(self, data: bytes) -> None:
        """Send all of data. Blocks while the other end does not read. Raises ChannelClosed."""

    def pace(self, round_trip: float) -> None:
        """What is sent next is much, and is answered after so many seconds at best: have no more on its way than that
        takes."""

    def receive(self) -> bytes:
        """Block until there are bytes; at most 128 KiB; b"" once the other end is gone."""

    def farewell(self) -> Farewell:
        """After receive() returned b"": how the other end ended. Waits at most 2 seconds for the status."""

    def let_go(self) -> None:
        """The other end goes on without us: nobody is to wait for it, or to end it, after close()."""

    def close(self) -> None:
        """End it at once, from any thread: a blocked send or receive returns or raises. May be called twice."""


class Opened(Struct, frozen=True, kw_only=True):
    """The end of one host's opening."""

    node: int  # index in the hosts that were given
    result: Channel | HostUnreachable


class Backend(Protocol):
    """A way to reach hosts: it differs from the others in how it opens a Channel, and in nothing else."""

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        """Start argv on every host, several at a time, and yield each one as it comes, in any order.

        argv holds no secret. Exactly one Opened comes per host; a failure is a HostUnreachable with a hint.
        """

    def reopen(self, node: int, argv: Sequence[str]) -> Channel:
        """Start argv on a host that was opened before, through a new connection; one try. Raises HostUnreachable."""

    def user(self, node: int) -> str:
        """Return the name that the login on a host used, as the client knows it."""

    def close(self) -> None:
        """Give up what is still opening, end every channel and connection. From any thread; may be called twice."""


class Sink(Protocol):
    """A reader of events. Called from one thread, in order."""

    def handle(self, event: Event) -> None:
        """Take note of it. May block; may raise OutputClosed."""

    def idle(self) -> None:
        """Called some 20 times a second while no event comes, and then 5 times. May raise OutputClosed."""

    def close(self) -> None:
        """Called once, after the last event."""
