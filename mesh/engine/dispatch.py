"""Carries out the decider's orders: each becomes a request to the agent of its host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from mesh.core.events import Connected, Event, Locked, Ready, Stream
from mesh.core.nodes import Adopted
from mesh.engine import orders
from mesh.engine.courier import Courier
from mesh.engine.credentials import make_credentials
from mesh.engine.environment import Rendezvous, host_environment, ports_wanted, rank_environment
from mesh.engine.programs import address_book, node_of, payloads_of
from mesh.engine.requests import library_of, prepare_request
from mesh.engine.run import Run
from mesh.engine.threads import Threads
from mesh.engine.wrapping import host_command, rank_command
from mesh.protocol.requests import Finds, RankStart
from mesh.remote.asked import RANK_STREAMS
from mesh.remote.session import Session

NO_COMMAND = ("true",)  # of a host without ranks, where nothing starts
OLDEST_RUN_DAYS = 3650  # that a run may go on without us


class Facts:
    """Answers of the hosts that requests to them, and to other hosts, are made of."""

    def __init__(self, run: Run) -> None:
        self._hosts = run.placement.hosts
        self.connected: dict[int, Connected] = {}
        self.locked: dict[int, Locked] = {}
        self.interfaces: dict[int, Mapping[str, str]] = {}  # variables of NCCL and gloo
        self.adopted: dict[int, Adopted] = {}  # nodes that have moved, by rank
        self.ports: tuple[int, ...] = ()  # that are kept for the ranks on the first host

    def note(self, event: Event) -> None:
        """Keep an answer, if it is one of these."""
        if isinstance(event, Connected):
            self.connected[event.node] = event
        elif isinstance(event, Locked):
            self.locked[event.node] = event
            self.ports = event.ports or self.ports
        elif isinstance(event, Adopted):
            self.adopted[event.rank] = event
        elif isinstance(event, Ready):
            self.interfaces[event.node] = event.interfaces

    def address_of(self, node: int) -> str:
        """Return a host's address for the other hosts; that of cluster.yaml if the host was not reached."""
        host, connected = self._hosts[node], self.connected.get(node)
        return host.internal_ip or (connected.address if connected else host.address)


class Dispatcher:
    """Sends orders to hosts."""

    def __init__(
        self, run: Run, facts: Facts, sessions: Mapping[int, Session], courier: Courier, threads: Threads
    ) -> None:
        self._run, self._facts, self._sessions = run, facts, sessions
        self._courier, self._threads = courier, threads
        self._rendezvous: Rendezvous | None = None  # None: not all hosts have answered
        self._credentials = ""  # by which the agents of a detached run recognise each other

    def carry_out(self, order: orders.HostOrder) -> None:
        """Send the requests that an order means."""
        session, spec = self._sessions[order.node], self._run.spec
        match order:
            case orders.Lock():
                session.lock()
            case orders.Unlock():
                session.unlock()
            case orders.Sync(node=node):
                session.beat()  # how far it is decides how the workspace is packed
                locked = self._facts.locked[node]
                self._courier.begin(node, session, locked.tree, is_bare=locked.is_bare)
            case orders.Apply(node=node, steps=steps, undo=undo):
                session.apply(self._finds(node), steps, undo=undo, force=spec.force)
            case orders.Prepare(node=node):
                self._prepare(node, session)
            case orders.Start(node=node) if spec.commands:
                session.setup(self._run.placement.first(node), spec.commands, spec.force)
            case orders.Start(node=node):
                self._start(node, session)
            case orders.Ask(question=question, enclosed=enclosed) if enclosed:
                self._threads.start(f"mesh-ask-{order.node}", partial(session.ask_with, question, enclosed))
            case orders.Ask(question=question, lasting=lasting):
                session.ask(question, lasting=lasting)
            case orders.Release(rank=rank, grace=grace):
                session.release(rank, grace)
            case orders.Adopt(rank=rank):
                session.adopt(node_of(self._run, rank))
            case orders.Take():
                self._take(order, session)
            case orders.Moved(rank=rank, pid=pid, why=why):
                session.moved(rank, pid, why)
            case orders.Detach():
                session.detach()
            case orders.Introduce(port=port):
                self._introduce(session, port)
            case orders.Signal(number=number, grace=grace, why=cause):
                session.signal(number, grace, cause)
            case orders.Change(states=states):
                session.change(states)
            case orders.Kill():
                session.kill()
            case orders.Finish(number=number, grace=grace):
                session.finish(number, grace)

    def ranks(self, node: int) -> list[RankStart]:
        """Return the ranks of a host, as its agent starts them."""
        spec, ranks = self._run.spec, []
        for rank in self._run.placement.ranks(node):
            env = rank_environment(spec, self._run.placement, rank)
            stdin = spec.rules.stdin == "all" or (spec.rules.stdin == "rank0" and rank == 0)
            argv = rank_command(spec, self._run.placement, rank)
            terminal: Sequence[int] = ()
            if spec.rules.pty and rank == 0:
                terminal, env = self._run.local.terminal(), {**env, "TERM": self._run.local.terminal_kind}
            ranks.append(RankStart(rank=rank, env=env, stdin=stdin, argv=argv, terminal=terminal))
        return ranks

    def _prepare(self, node: int, session: Session) -> None:
        """Have a host prepare itself; the files of its nodes come before, in a thread, as they may be large."""
        run = self._run
        request, library = prepare_request(run, node, self._finds(node)), library_of(run)
        if not run.spec.is_program:
            session.prepare(request, library)
            return
        credentials, book = self._secret(), address_book(run, self._facts.locked, self._facts.address_of)
        payloads = payloads_of(run, node)

        def bring() -> None:
            session.bring_program(book, credentials, payloads)
            session.prepare(request, library)

        self._threads.start(f"mesh-program-{node}", bring)

    def _secret(self) -> str:
        """Return the key by which agents and nodes of this run recognise each other."""
        self._credentials = self._credentials or make_credentials(OLDEST_RUN_DAYS)
        return self._credentials

    def _take(self, order: orders.Take, session: Session) -> None:
        """Have a host start a rank that comes from another one, as it was started there, with its own address."""
        run, spec, facts, rank = self._run, self._run.spec, self._facts, order.rank
        home = run.placement.node(rank)
        if rank in facts.adopted:
            book = address_book(run, facts.locked, facts.address_of, facts.adopted)
            for other in list(self._sessions.values()):
                other.readdress(book)
        rendezvous = self._meeting()
        addresses = [*rendezvous.addresses]
        addresses[home] = facts.address_of(order.node)
        env = host_environment(spec, run.placement, replace(rendezvous, addresses=addresses), home)
        env |= {**(self._courier.env if spec.sync else {}), **facts.interfaces.get(order.node, {})}
        env |= {**rank_environment(spec, run.placement, rank), "MESH_ATTEMPT": str(order.attempt)}
        if rank in facts.adopted:
            env["MESH_HOST"] = run.placement.hosts[order.node].name
        words = rank_command(spec, run.placement, rank) or host_command(spec, run.placement, home, env)
        argv = list(run.preparation.wrapped(words, sorted(env), spec.run))
        start = RankStart(rank=rank, env=env, stdin=False, argv=argv)
        session.take(start, order.attempt, order.after, self._printed(rank))

    def _printed(self, rank: int) -> dict[Stream, int]:
        """Return how much of each stream of a rank has come; the host that had the rank last has counted all of it."""
        counts = [session.printed for session in list(self._sessions.values())]
        return {stream: max(count.get((rank, stream), 0) for count in counts) for stream in RANK_STREAMS}

    def _start(self, node: int, session: Session) -> None:
        spec, facts = self._run.spec, self._facts
        if not self._run.placement.ranks(node):  # a spare host: a rank may move there
            session.start(NO_COMMAND, [], detach=False)
            return
        env = {**self._environment(node), **facts.interfaces[node]}
        ranks = self.ranks(node)
        names = sorted(set(env).union(*(rank.env for rank in ranks)))
        wrapped = self._run.preparation.wrapped
        command = wrapped(host_command(spec, self._run.placement, node, env), names, spec.run)
        ranks = [rank.replaced(argv=list(wrapped(rank.argv, names, spec.run))) if rank.argv else rank for rank in ranks]
        finds = self._finds(node) if facts.connected[node].is_preparing else None
        session.start(command, ranks, finds=finds, detach=spec.detach)

    def _introduce(self, session: Session, port: int) -> None:
        self._secret()
        place = (self._facts.address_of(0), port) if port else ()
        session.introduce(self._run.spec.rules.host_grace, self._credentials, *place)

    def _finds(self, node: int) -> Finds:
        """Return what the first rank of a host does, once all hosts have answered."""
        env = self._environment(node)
        if not self._run.spec.has_command:
            return Finds(env=env, interface="", targets=[])
        # The first host's own name may mean loopback there; then the way to another host shows the interface.
        second = [self._facts.address_of(1)] if not node and len(self._run.placement.hosts) > 1 else []
        return Finds(env=env, interface=self._run.cluster.interface, targets=[env["MASTER_ADDR"], *second])

    def _environment(self, node: int) -> dict[str, str]:
        spec = self._run.spec
        found = host_environment(spec, self._run.placement, self._meeting(), node)
        return {**self._courier.env, **found} if spec.sync else found

    def _meeting(self) -> Rendezvous:
        """Return where the ranks meet, once all hosts have answered."""
        spec, placement = self._run.spec, self._run.placement
        if self._rendezvous is None:  # once for all hosts
            addresses = [self._facts.address_of(node) for node in range(len(placement.hosts))]
            # The first host keeps none where the run goes on without it.
            ports = self._facts.ports or ports_wanted(spec, placement)
            self._rendezvous = Rendezvous(addresses=addresses, ports=ports)
        return self._rendezvous
