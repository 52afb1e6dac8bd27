"""What the supervisor may order; the launcher carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mesh.core.events import EndOrdered, Event


class Say(Struct, frozen=True, kw_only=True):
    """Tell the user a line."""

    text: str


class Tell(Struct, frozen=True, kw_only=True):
    """Show an event that no host has told."""

    event: Event


class HostOrder(Struct, frozen=True, kw_only=True):
    """Something to do on one host."""

    node: int  # 0 .. number of hosts - 1


class Lock(HostOrder, frozen=True, kw_only=True):
    """Take the host's lock, if the run takes any."""


class Unlock(HostOrder, frozen=True, kw_only=True):
    """Let go of the host's lock."""


class Sync(HostOrder, frozen=True, kw_only=True):
    """Send the workspace."""


class Prepare(HostOrder, frozen=True, kw_only=True):
    """Run prerun."""


class Start(HostOrder, frozen=True, kw_only=True):
    """Start the ranks of this host, or its setup."""


class Ask(HostOrder, frozen=True, kw_only=True):
    """Ask the agent something."""

    question: Mapping[str, Any]
    lasting: bool = False  # the answer takes its time: a connection that ends meanwhile is made again
    enclosed: bytes = b""  # many bytes that the question comes with


class Detach(HostOrder, frozen=True, kw_only=True):
    """Keep the run without us."""


class Introduce(HostOrder, frozen=True, kw_only=True):
    """Have the host's agent meet those of the other hosts, so that they end the run together without us."""

    port: int  # of the first host's agent, whom all others meet; 0: it is that one


class Signal(HostOrder, frozen=True, kw_only=True):
    """Signal every process of the run there; what is left after grace seconds is killed."""

    number: int
    grace: float
    why: EndOrdered | None = None  # for those who come back to a run that goes on by itself


class Kill(HostOrder, frozen=True, kw_only=True):
    """Kill every process of the run there, now."""


class Finish(HostOrder, frozen=True, kw_only=True):
    """End what is left, look that it is gone, and let the agent leave."""

    number: int
    grace: float


class AskUser(Struct, frozen=True, kw_only=True):
    """Ask whether to stop the run or to leave it; Chosen is the answer."""


Order = Say | Tell | HostOrder | AskUser
