"""The links to the agents on the other hosts of a detached run, and the reports that they carry."""

from __future__ import annotations

from mesh.agent.base.errors import why
from mesh.agent.loop import Watches
from mesh.agent.run.facts import PeerNews, PeersMet, PeersReady
from mesh.protocol.answers import Introduced
from mesh.protocol.control import News

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh.agent.detached.peers import Hub, Member
    from mesh.agent.loop import Loop
    from mesh.agent.port import Port
    from mesh.protocol.nodes import NodeState
    from mesh.protocol.requests import Introduce


class OtherHosts:
    """The hub of the run's agents, or this agent's link to it, once the client has introduced them."""

    def __init__(self, port: Port, loop: Loop) -> None:
        """Start without links."""
        self._port, self._loop = port, loop
        self.on_changes: Callable[[Sequence[NodeState]], None] = _ignore  # of nodes on other hosts
        self._states: dict[str, NodeState] = {}  # of the nodes here, for agents that are met later
        self._watches = Watches(loop)
        self._peers: Hub | Member | None = None
        self._is_introduced = False  # the client has been sent what came of it
        self._has_met = False  # another agent
        self._has_news = False  # the first report, from here or elsewhere, has been passed on

    def introduce(self, request: Introduce) -> None:
        """Become the hub, or connect to it."""
        if self._peers is not None:
            return
        try:
            # Few runs need what these import.
            from mesh.agent.ask.reach import listen_quietly
            from mesh.agent.detached.peers import Hub, Member
            from mesh.agent.link.tls import tls_context

            context = tls_context(request.credentials, not request.address)
            if request.address:
                self._peers = Member(request.node, request.host_grace, context, request.address, request.port)
            else:
                listener = listen_quietly()
                self._peers = Hub(request.node, request.host_grace, context, listener)
                self._report_introduction(listener.getsockname()[1], "")
        except OSError as error:
            self._report_introduction(0, why(error))
        except ValueError as error:
            self._report_introduction(0, f"the credentials cannot be read: {error}")
        except (ImportError, AttributeError) as error:
            self._report_introduction(0, f"its Python lacks a part: {error}")
        if self._peers is not None:
            self._peers.change(list(self._states.values()))
            self._port.post(PeersReady(request.node))

    @property
    def is_needed(self) -> bool:
        """True if an agent elsewhere waits for this one, or its ranks are still at work."""
        return self._peers is not None and self._peers.is_needed

    def send(self, news: PeerNews) -> None:
        """Send a report to the other hosts."""
        if self._peers is not None:
            self._has_news = self._has_news or self._peers.news is None
            self._peers.report(_news_of(news))

    def change(self, states: Sequence[NodeState]) -> None:
        """Pass changes of nodes on this host on to the other hosts."""
        self._states.update((state.label, state) for state in states)
        if self._peers is not None:
            self._peers.change(states)

    def report_done(self) -> None:
        """Report that no rank is left here, or that it was named."""
        if self._peers is not None:
            self._peers.done()

    def arm(self) -> None:
        """Wait for what the links wait for. Called before each poll."""
        if self._peers is not None:
            self._watches.arm(self._peers.events())
            self._loop.at("peers", self._peers.next(), _do_nothing)

    def serve(self) -> None:
        """Receive reports, and post the first one. Called after each turn of the loop."""
        peers = self._peers
        if peers is None:
            return
        peers.serve(self._watches.take())
        if not self._is_introduced and peers.verdict is not None:
            self._report_introduction(0, peers.verdict)
        if peers.is_met and not self._has_met:
            self._has_met = True
            self._port.post(PeersMet())
        if peers.changes:
            changes, peers.changes = peers.changes, []
            self.on_changes(changes)
        if peers.news is not None and not self._has_news:
            self._has_news = True
            self._port.post(_fact_of(peers.news))

    def close(self) -> None:
        """Close all links."""
        self._watches.take()
        if self._peers is not None:
            self._peers.close()

    def _report_introduction(self, port: int, reason: str) -> None:
        self._is_introduced = True
        self._port.send_now(Introduced(port=port, reason=reason))


def _news_of(news: PeerNews) -> News:
    """Return a report as links carry it: with the fields that its cause has."""
    if news.cause == "signal":
        return News(cause=news.cause, signal=news.signal)
    if news.cause == "lost":
        return News(cause=news.cause, lost=news.lost, reason=news.reason)
    if news.cause == "program":
        return News(cause=news.cause, code=news.code, reason=news.reason)
    return News(cause=news.cause)


def _fact_of(news: News) -> PeerNews:
    lost = -1 if news.lost is None else news.lost
    return PeerNews(news.cause, signal=news.signal or 0, lost=lost, reason=news.reason or "", code=news.code or 0)


def _ignore(states: Sequence[NodeState]) -> None:
    """Drop changes of nodes: the run has none here."""


def _do_nothing() -> None:
    """Let a turn of the loop begin, in which the links are served."""
