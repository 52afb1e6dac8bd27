"""The channels to all hosts: a thread opens them, a thread per host reads its own and opens another when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from mesh.core.cluster import allocation_mark
from mesh.core.errors import HostUnreachable
from mesh.core.events import AsksPassword, Cleared, Ended, Event, PrepareFailed, Stopped, WantsPassword
from mesh.core.interfaces import Announces, Channel
from mesh.core.nodes import ProgramStopped
from mesh.core.text import one_line
from mesh.engine.announced import with_reasons
from mesh.engine.courier import NEAR_S
from mesh.engine.inbox import Inbox
from mesh.engine.receiver import Receiver
from mesh.engine.relaying import Relay
from mesh.engine.requests import begin_request, early_finds, library_of, prepare_request
from mesh.engine.run import Run
from mesh.engine.threads import Threads
from mesh.remote.blob import start_command
from mesh.remote.callbacks import Callbacks
from mesh.remote.following import Following
from mesh.remote.handover import Handovers
from mesh.remote.session import Session

RECONNECT_INTERVAL_S = 1.0
LEAVE_LIMIT_S = 0.5  # for the message to each host that we leave


class Channels:
    """The session with the agent of each host."""

    def __init__(
        self, run: Run, inbox: Inbox, threads: Threads, over: threading.Event, taken: Callable[[int, int], None]
    ) -> None:
        """over: set once no host is to be reached again; taken: called with (rank, bytes) when a rank has read stdin"""
        self._run, self._inbox, self._threads, self._over, self._taken = run, inbox, threads, over, taken
        self._argv = start_command(run.cluster.python, allocation_mark(run.cluster))
        self.sessions: dict[int, Session] = {}  # by node; a host that cannot be reached has none
        self.relay = Relay(run.placement, self.sessions, threads.start)
        self._handovers = Handovers(run.placement, run.local.arrivals, run.local.have or {})

    def open(self) -> None:
        """Begin to open a channel to every host."""
        self._run.local.relayed(self.relay)
        self._run.backend.listen(self._inbox.post)
        self._threads.start("mesh-connect", self._connect)

    def close(self) -> None:
        """Leave every agent and close every channel."""
        self.relay.close()
        self._handovers.close()
        # In a thread, as a dead connection may block a sender: where an agent has not left yet.
        self._threads.start("mesh-bye", self._leave).join(LEAVE_LIMIT_S)
        for session in list(self.sessions.values()):
            session.close()
        self._run.backend.close()

    def expect_password(self, event: WantsPassword) -> None:
        """Ask the user for the password that a host will want."""

        def expect() -> None:
            self._password(event.node)

        self._threads.start(f"mesh-password-{event.node}", expect)

    def give_password(self, event: AsksPassword) -> None:
        """Send a host the password that it waits for."""

        def give() -> None:
            self.sessions[event.node].password(event.step, self._password(event.node))

        self._threads.start(f"mesh-password-{event.node}", give)

    def _password(self, node: int) -> str:
        """Return the password of the user whom we logged in as, whatever the host calls that user."""
        return self._run.local.password(self._run.backend.user(node))

    def _leave(self) -> None:
        for session in list(self.sessions.values()):
            session.leave()

    def _connect(self) -> None:
        for opened in self._run.backend.open(self._run.placement.hosts, self._argv):
            if isinstance(opened.result, HostUnreachable):
                error = opened.result
                message = one_line(str(error))  # the server may have written some of it
                failed = PrepareFailed(
                    time=time.time(), node=opened.node, step=error.step, message=message, hint=error.hint
                )
                self._inbox.post(failed)
                self._handovers.end(opened.node)
            else:
                self._begin(opened.node, opened.result, opened.address)

    def _begin(self, node: int, channel: Channel, address: str) -> None:
        run = self._run
        session = (Session if run.local.have is None else Following)(
            node,
            run.placement.first(node),
            channel,
            Callbacks(
                taken=self._taken,
                reopen=lambda: self._reopen(node, session),
                is_dead=run.local.is_dead,
                receive=lambda data: receiver.take(data) if receiver else (),
                relay=self.relay.take,
                explain=partial(run.backend.explain, node),
                why=lambda: "" if self._over.is_set() else run.backend.why(node),
            ),
            address or run.placement.hosts[node].address,
        )
        receiver = self._receiver(node, session)
        self.sessions[node] = session
        self._threads.start(f"mesh-host-{run.placement.hosts[node].name}", lambda: self._serve(session, receiver))

    def _serve(self, session: Session, receiver: Receiver | None) -> None:
        """Send the first request; post all that the host sends, until its agent has left or is lost."""
        run, local = self._run, self._run.local
        begin = begin_request(run, session.node)
        if isinstance(session, Following):
            ranks, handovers = {*run.placement.ranks(session.node)}, self._handovers
            ranks |= handovers.ranks(session.node)
            reads, ends = local.only_reads, local.only_end
            session.follow(begin, ranks, local.have or {}, handovers, only_reads=reads, only_end=ends)
        elif run.decider.prepares_at_once:
            prepare = prepare_request(run, session.node, early_finds(run, session.node))
            session.begin(begin, prepare, library_of(run))
        else:
            session.begin(begin)
        try:
            for event in self._events(session):
                if isinstance(event, Ended | Cleared | Stopped | ProgramStopped):
                    self._inbox.post_urgent(event)
                else:
                    self._inbox.post(event, session, session.place)
        finally:
            self._handovers.end(session.node)
            if receiver:
                receiver.close()

    def _events(self, session: Session) -> Iterable[Event]:
        """Return the events of a host, with the reasons of its scheduler if it has one."""
        backend = self._run.backend
        if isinstance(backend, Announces):
            return with_reasons(session.events(), partial(backend.ending, session.node))
        return session.events()

    def _receiver(self, node: int, session: Session) -> Receiver | None:
        """Return the receiver of files that are pulled from a host, or None if none are."""
        if self._run.local.landing is None:
            return None
        landing = self._run.local.landing(self._run.placement.first(node))
        return Receiver(node, landing, session.reply, lambda: session.round_trip < NEAR_S)

    def _reopen(self, node: int, session: Session) -> Channel | None:
        """Open another channel to a host whose agent goes on; return None once the host is lost.

        Raises HostUnreachable if that is final.
        """
        while time.monotonic() < session.active_at + self._run.spec.rules.host_grace:
            if self._over.wait(RECONNECT_INTERVAL_S if session.opened > session.active_at else 0.0):
                return None
            try:
                session.opened = time.monotonic()
                return self._run.backend.reopen(node, self._argv)
            except HostUnreachable as error:
                if error.is_final:
                    raise
                session.absence.miss(error)
        return None
