"""The seams: how hosts are reached, and who looks at events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from mesh.core.cluster import Host
from mesh.core.errors import HostUnreachable
from mesh.core.events import Event

CLIENT_RETURN_S = 5.0  # for a client to open another channel; backends whose channels end without a cause have more


class Farewell(Struct, frozen=True, kw_only=True):
    """The end of a channel, as its backend sees it."""

    status: int | None  # exit status of the remote argv; None if the backend has none
    stderr: bytes  # the last of what came on its standard error, at most 64 KiB
    is_agents: bool = True  # False: the status may be that of a program in between


class NoAgent(Struct, frozen=True, kw_only=True):
    """The end of a channel before the agent sent its greeting."""

    status: int | None  # as in Farewell
    stderr: bytes  # as in Farewell
    banner: bytes  # what came instead of the greeting
    limit: float = 0.0  # seconds that the start had, if it took longer; 0: it ended by itself


class Channel(Protocol):
    """A byte pipe each way to one agent. Closed without a good-bye, it starts the agent's clock."""

    def send(self, data: bytes) -> None:
        """Send all of data. Blocks while the other end does not read. Raises ChannelClosed."""

    def receive(self) -> bytes:
        """Block until there are bytes; at most 128 KiB; b"" once the other end is gone."""

    def farewell(self) -> Farewell:
        """Return how the other end ended, after receive() returned b"". Waits at most 2 seconds for the status."""

    def close(self, *, leave: bool = False) -> None:
        """End the channel at once, from any thread: a blocked send or receive returns or raises. May be called twice.

        leave: the agent goes on; the backend does not wait for its end, and does not end it
        """


@runtime_checkable
class Paced(Protocol):
    """A channel that can limit how much is under way."""

    def pace(self, round_trip: float) -> None:
        """Have no more under way than the other end takes in this many seconds. Called before much is sent."""


class Opened(Struct, frozen=True, kw_only=True):
    """The end of one host's opening."""

    node: int  # index in the hosts that were given
    result: Channel | HostUnreachable
    address: str = ""  # by which the other hosts reach this one: an IP address or a name; "": that of cluster.yaml


class Backend(Protocol):
    """A way to reach hosts: it differs from the others in how it opens a Channel, and in nothing else."""

    @property
    def client_return(self) -> float:
        """Seconds after the silent end of a channel in which a client that lives opens another one."""

    def listen(self, post: Callable[[Event], None]) -> None:
        """Keep a function that takes Notice, HostNotice and Progress, from any thread. Called once, before ``open``."""

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        """Start argv on every host, several at a time, and yield each one as it comes, in any order.

        argv holds no secret. Exactly one Opened comes per host; a failure is a HostUnreachable with a hint.
        """

    def reopen(self, node: int, argv: Sequence[str]) -> Channel:
        """Start argv on a host that was opened before, through a new connection; one try. Raises HostUnreachable.

        The launcher tries again until the host counts as lost, unless the error ``is_final``.
        """

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        """Return why no agent has started on a host that was opened, and a hint for this way to reach it."""

    def why(self, node: int) -> str:
        """Return why a host is gone, if that is recorded outside of it; else "". Blocks at most 2 seconds."""

    def user(self, node: int) -> str:
        """Return the name of the user who is logged in on a host, as the client has it."""

    def close(self) -> None:
        """Give up what is still opening, end every channel and connection. From any thread; may be called twice."""


@runtime_checkable
class Announces(Protocol):
    """A backend whose scheduler may end hosts, and has the reason."""

    term_limit: float  # seconds from the scheduler's SIGTERM to its SIGKILL; 0: unknown

    def ending(self, node: int, *, is_clear: bool) -> str:
        """Return why the scheduler is ending a host; "" if it is not. Blocks at most some seconds.

        is_clear: something was ended by SIGTERM; else the scheduler is only asked where an end is near
        """


class Sink(Protocol):
    """A reader of events. Called from one thread, in order."""

    def handle(self, event: Event) -> None:
        """Take note of it. May block; may raise OutputClosed."""

    def idle(self) -> None:
        """Called some 20 times a second while no event comes, and then 5 times. May raise OutputClosed."""

    def close(self) -> None:
        """Called once, after the last event."""
