"""The parts that the launcher gets for one run, and the interface of its decider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct, field

from mesh.core.cluster import Cluster, Placement
from mesh.core.events import Event, Stream
from mesh.core.interfaces import Backend
from mesh.core.masking import Secrets
from mesh.core.module import NO_PREPARATION, Preparation
from mesh.core.nodes import Arrived
from mesh.core.outcome import Outcome
from mesh.core.pull import Destination
from mesh.core.run import RunSpec
from mesh.engine.courier import Luggage
from mesh.engine.orders import Order
from mesh.engine.relaying import Relay
from mesh.protocol.answers import Owner
from mesh.remote.following import Place


class Decider(Protocol):
    """Decides what happens next: the Supervisor of a run, or an Inquiry."""

    @property
    def done(self) -> bool:
        """True once every agent has left, or is not waited for."""

    def locks_at_once(self, node: int) -> bool:
        """Return True if a host takes its lock without waiting for an order. The same at all times, from any thread."""

    @property
    def prepares_at_once(self) -> bool:
        """True if a host is prepared then, without waiting for an order. The same at all times."""

    def handle(self, event: Event) -> list[Order]:
        """Take note of an event; return what is to be done now, in this order."""

    def outcome(self, ended: float) -> Outcome:
        """Return how the run ended, in seconds since the epoch. Valid once ``done``."""


class Local(Struct, frozen=True, kw_only=True):
    """The client's side of a run."""

    owner: dict[str, object]  # for the lock and the agent, which show it to others
    is_dead: Callable[[Owner], bool]  # true if an owner, or the run of an id, has certainly ended
    luggage: Callable[[Callable[[Event], None]], Luggage]  # lists the workspace and posts; MeshError or OSError
    password: Callable[[str], str]  # of a user on the hosts, for sudo; asked for once; "" if there is none
    stdin: int = 0  # the descriptor of our standard input
    terminal: Callable[[], tuple[int, int]] = lambda: (80, 24)  # returns columns and rows of ours
    terminal_kind: str = "dumb"  # as in TERM
    # Asks the user whether to "stop" the run, to "leave" it, or to "go on"; ends once its argument returns True.
    choose: Callable[[Callable[[], bool]], str] = lambda is_over: "leave"
    plan: Mapping[str, object] = field(default_factory=dict)  # of the run, for a client that attaches to it
    have: Place | None = None  # attach to the run, of which there is so much here; None: start it
    arrivals: tuple[Arrived, ...] = ()  # the moves of its ranks so far, where there is a run to attach to
    only_reads: bool = False  # attach, and end nothing there, not even what a lost agent has left
    only_end: bool = False  # attach, and leave the output on the hosts
    secrets: Secrets = Secrets()  # values that decider and sinks never get
    # The last bytes of a rank's stream that an earlier client has written; a value may have begun there.
    before: Callable[[int, Stream], bytes] = lambda rank, stream: b""
    landing: Callable[[int], Destination] | None = None  # for files that are pulled from the host of a rank
    payloads: Mapping[str, bytes] = field(default_factory=dict)  # of nodes, by the hashes that their groups have
    # Called with the relay to the nodes of a program, before the hosts are connected.
    relayed: Callable[[Relay], object] = lambda relay: None


class Run(Struct, frozen=True, kw_only=True):
    """A run with its hosts, the way to them, and its decider."""

    spec: RunSpec
    cluster: Cluster
    placement: Placement
    backend: Backend
    local: Local
    decider: Decider
    preparation: Preparation = NO_PREPARATION
