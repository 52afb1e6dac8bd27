"""What the supervisor may order; the launcher carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh.core.events import EndOrdered, Event
from mesh.core.frozen import frozen


@frozen
class Say:
    """Tell the user a line."""

    text: str


@frozen
class Tell:
    """Show an event that no host has told."""

    event: Event


@frozen
class HostOrder:
    """Something to do on one host."""

    node: int  # 0 .. number of hosts - 1


@frozen
class Lock(HostOrder):
    """Take the host's lock, if the run takes any."""


@frozen
class Unlock(HostOrder):
    """Let go of the host's lock."""


@frozen
class Sync(HostOrder):
    """Send the workspace."""


@frozen
class Prepare(HostOrder):
    """Run prerun."""


@frozen
class Start(HostOrder):
    """Start the ranks of this host, or its setup."""


@frozen
class Ask(HostOrder):
    """Ask the agent something."""

    question: Mapping[str, Any]
    lasting: bool = False  # the answer takes its time: a connection that ends meanwhile is made again
    enclosed: bytes = b""  # many bytes that the question comes with


@frozen
class Detach(HostOrder):
    """Keep the run without us."""


@frozen
class Introduce(HostOrder):
    """Have the host's agent meet those of the other hosts, so that they end the run together without us."""

    port: int  # of the first host's agent, whom all others meet; 0: it is that one


@frozen
class Signal(HostOrder):
    """Signal every process of the run there; what is left after grace seconds is killed."""

    number: int
    grace: float
    why: EndOrdered | None = None  # for those who come back to a run that goes on by itself


@frozen
class Kill(HostOrder):
    """Kill every process of the run there, now."""


@frozen
class Finish(HostOrder):
    """End what is left, look that it is gone, and let the agent leave."""

    number: int
    grace: float


@frozen
class AskUser:
    """Ask whether to stop the run or to leave it; Chosen is the answer."""


Order = Say | Tell | HostOrder | AskUser
