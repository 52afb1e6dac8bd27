"""Brings the workspace to every host, by as few copies over our own link as it can.

A host is told what has changed, and answers what it lacks. Hosts that lack the same get the same pack: from us, or, if
it is large and there are several of them, one from us and the others from each other, along a binary tree. A host
that cannot be reached by its parent gets it from us.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from mesh.core.errors import MeshError
from mesh.core.events import Event, Lacks, OtherTree, Serving, Synced, Unfetched
from mesh.remote.session import Session

Want = Mapping[str, Any]  # a content that a host lacks, as docs/sync.md has it

FORESEEN = 256 << 10  # bytes of contents that are sent along without being asked for
AHEAD = 256 << 20  # bytes that are packed for a host without a tree before it asks; it may have them elsewhere
HANDED_ON = 1 << 20  # bytes of a pack from which on hosts hand it on
LOOK = 0.1  # seconds
TRIES = 3  # for files that change between being listed and being packed
NEAR = 0.002  # seconds for a round trip in a local network
FEW = 3  # hosts; with fewer of them handing on saves nothing worth the trouble


class Luggage(Protocol):
    """The workspace as it is to be on every host."""

    tree: str
    """Its tree hash."""

    env: Mapping[str, str]
    """What the ranks are to know of it."""

    lacks_bytes: int
    """Bytes of the longest list of what a host may lack of it."""

    def changes(self, base: str) -> bytes:
        """What has changed since another tree; everything, if we do not know that one."""

    def foreseen(self, base: str) -> Sequence[Want]:
        """What a host that has that tree ("": none) will lack, as far as we can tell; () if we cannot."""

    def asked(self, wants: Sequence[Want]) -> None:
        """A host asks for these."""

    def pack(self, wants: Sequence[Want], *, compress: bool) -> int:
        """Make a pack; returns the descriptor of its file. Raises MeshError and OSError."""

    def has_changed(self, error: Exception) -> bool:
        """Whether an error of ``pack`` says that a file is another one now. Then ``renew`` lists it anew."""

    def renew(self) -> None:
        """List the workspace again; ``tree`` is another one then. Raises MeshError."""

    def sent(self) -> None:
        """A host has it now."""

    def stop(self) -> None:
        """No pack is needed any more: one that is being made fails with a MeshError. From any thread."""


@dataclass
class _Foreseen:
    """What a host with a certain tree will lack, as far as we can tell."""

    wants: Sequence[Want]
    key: str
    pack: int  # that goes along with the changes, or -1


@dataclass
class _Tree:
    """Hosts that hand one pack on among themselves: the one at place i has its parent at (i - 1) // 2."""

    number: int
    pack: int  # descriptor
    size: int
    count: int  # hosts that it may come to have
    nodes: list[int] = field(default_factory=list)  # as they came
    places: dict[int, int] = field(default_factory=dict)  # of the nodes
    ports: dict[int, int] = field(default_factory=dict)  # of those that are serving, by node
    barren: set[int] = field(default_factory=set)  # that cannot hand it on
    waiting: set[int] = field(default_factory=set)  # that have not been told where to fetch
    given: set[int] = field(default_factory=set)  # that get it from us

    def add(self, node: int) -> None:
        """One more, at the last place."""
        self.places[node] = len(self.nodes)
        self.nodes.append(node)

    def parent(self, node: int) -> int:
        """Where a node fetches; -1: nowhere, it is the first."""
        place = self.places[node]
        return self.nodes[(place - 1) // 2] if place else -1

    def has_children(self, node: int) -> bool:
        """Whether one may come to fetch from a node."""
        return 2 * self.places[node] + 1 < self.count

    def is_ready(self, node: int) -> bool:
        """Whether a node may fetch: it listens, if it is to."""
        return node in self.ports or not self.has_children(node)

    def children(self, node: int) -> list[int]:
        """Who fetches from a node, as far as they have come."""
        first = 2 * self.places[node] + 1
        return self.nodes[first : first + 2]


class Courier:
    """Owns the sync of all hosts: one thread takes what happens in its order, others send."""

    def __init__(
        self,
        luggage: Future[Luggage],
        address_of: Callable[[int], str],
        spawn: Callable[[str, Callable[[], None]], object],
        failed: Callable[[Exception], None],
        *,
        count: int,
        fresh: bool,
        fan_out: bool,
    ) -> None:
        """address_of: a node's address for the other hosts; spawn: starts a thread by name and function.

        count: how many hosts there are
        failed: called with a MeshError or an OSError if the workspace cannot be packed
        """
        self._luggage, self._address_of, self._spawn, self._failed = luggage, address_of, spawn, failed
        self._count, self._fresh, self._fan_out = count, fresh, fan_out
        self._happened: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._sessions: dict[int, Session] = {}
        self._had: dict[int, str] = {}  # tree hashes of what they had before, by node
        self._bare: set[int] = set()  # hosts that lack everything, and need not say so
        self._told_again: set[int] = set()  # hosts that had another tree than they had told
        self._synced_nodes: set[int] = set()
        self._lock = threading.Lock()
        self._attempt = 0  # how often the workspace was listed again
        self._is_final = False  # a host that has the tree was accepted
        self._packs: dict[str, Future[int]] = {}  # by what they hold
        self._foreseen: dict[str, _Foreseen] = {}  # by the tree that a host has
        self._trees: dict[str, _Tree] = {}  # by what they hand on
        self._planted = 0  # trees, ever
        self._credentials = ""
        self._planned = 0  # bytes that are to leave for all hosts, as far as is known

    def start(self) -> None:
        self._spawn("mesh-courier", self._work)

    def stop(self) -> None:
        self._stopped.set()
        self._happened.put(None)
        if self._luggage.done() and not self._luggage.exception():
            self._luggage.result().stop()

    def begin(self, node: int, session: Session, tree: str, *, is_bare: bool = False) -> None:
        """Sync a host that has this tree. From any thread, as the next one.

        is_bare: nothing is there, of which contents could be taken
        """
        if is_bare:
            self._bare.add(node)
        self._happened.put(partial(self._begin, node, session, tree))

    def accepts(self, event: Synced) -> bool:
        """Whether a host has the tree as it was listed last; from now on that is the tree."""
        with self._lock:
            self._is_final = self._is_final or event.attempt == self._attempt
            return event.attempt == self._attempt

    def sending(self) -> tuple[int, int] | None:
        """Bytes that have left for all hosts, and that are to; None while no sync is on. From any thread."""
        sessions = list(self._sessions.values())
        if not sessions or len(self._synced_nodes) == self._count:
            return None
        sent = sum(session.sent for session in sessions)
        return sent, max(sent, self._planned)

    def handle(self, event: Event) -> None:
        """Take note of what a host tells."""
        match event:
            case Lacks(node=node):
                self._happened.put(partial(self._lacks, node, event))
            case OtherTree(node=node):
                self._happened.put(partial(self._other_tree, node, event))
            case Serving(node=node, tree=tree, port=port):
                self._happened.put(partial(self._serving, node, tree, port))
            case Unfetched(node=node, tree=tree):
                self._happened.put(partial(self._unfetched, node, tree))
            case Synced(node=node):
                self._happened.put(partial(self._synced, node))

    # ---- the courier's thread

    def _work(self) -> None:
        try:
            while (happened := self._happened.get()) is not None and self._is_listed():
                try:
                    happened()
                except MeshError as error:
                    self._begin_again(error)
        except (MeshError, OSError) as error:
            self._failed(error)

    def _is_listed(self) -> bool:
        """Wait for the workspace; False if it cannot be listed (whoever does it tells why), or we are to stop."""
        while not self._stopped.is_set():
            with contextlib.suppress(futures.TimeoutError):
                return self._luggage.exception(timeout=LOOK) is None
        return False

    def _begin(self, node: int, session: Session, tree: str) -> None:
        luggage = self._luggage.result()
        self._sessions[node], self._had[node] = session, tree
        session.attempt = self._attempt  # what is still being sent of an earlier one is broken off
        if tree not in self._foreseen:
            self._foreseen[tree] = self._foresee(tree)
        foreseen, changes = self._foreseen[tree], luggage.changes(tree)
        pack, attempt = foreseen.pack, self._attempt
        is_supplied = node in self._bare and bool(foreseen.wants) and pack < 0
        self._planned += len(changes) + (os.fstat(pack).st_size if pack >= 0 else 0)

        def send() -> None:
            how = {"attempt": attempt, "pack": pack, "lacks_bytes": luggage.lacks_bytes}
            session.send_changes(changes, **how, fresh=self._fresh, asks=not is_supplied)
            if is_supplied:
                self._happened.put(partial(self._supply, node, attempt, foreseen.wants, foreseen.key))

        self._send(node, send)

    def _foresee(self, tree: str) -> _Foreseen:
        """What a host with this tree will lack, packed already if it is small. Raises MeshError and OSError."""
        wants = self._luggage.result().foreseen(tree)
        foreseen = _Foreseen(wants, _key(wants), -1)
        size = sum(want["size"] for want in wants)
        if 0 < size <= FORESEEN:
            foreseen.pack = self._pack(wants, foreseen.key)
        elif not tree and FORESEEN < size <= AHEAD:  # one that has a tree may ask for parts of files
            self._pack_ahead(wants, foreseen.key)
        return foreseen

    def _begin_again(self, error: MeshError) -> None:
        """A file is another one than it was when the workspace was listed. Raises the error if that is too late."""
        luggage = self._luggage.result()
        while True:
            with self._lock:
                if not luggage.has_changed(error) or self._attempt == TRIES or self._is_final:
                    raise error
                self._attempt += 1
            luggage.renew()
            self._packs, self._foreseen, self._trees, self._bare = {}, {}, {}, set()
            self._planned = sum(session.sent for session in self._sessions.values())
            try:
                for node, session in list(self._sessions.items()):
                    self._begin(node, session, self._had[node])
            except MeshError as another:
                error = another
            else:
                return

    def _lacks(self, node: int, lacks: Lacks) -> None:
        self._supply(node, lacks.attempt, lacks.wants, _key(lacks.wants))

    def _supply(self, node: int, attempt: int, wants: Sequence[Want], key: str) -> None:
        """Have a host get what it lacks, from us or from hosts that lack the same and were faster."""
        if attempt != self._attempt:
            return
        self._luggage.result().asked(wants)
        pack = self._pack(wants, key)
        size = os.fstat(pack).st_size
        if self._fan_out and self._count >= FEW and size >= HANDED_ON:
            if key not in self._trees:
                self._planted += 1
                self._trees[key] = _Tree(self._planted, pack, size, self._count)
            self._plant(node, self._trees[key])
        else:
            self._send_pack(node, pack)

    def _other_tree(self, node: int, other: OtherTree) -> None:
        """Tell a host again what has changed, since the tree that it really has. Raises MeshError the second time."""
        if other.attempt != self._attempt:
            return
        if node in self._told_again:
            raise MeshError("a host does not know which tree it has", hint="is another program changing ~/.mesh there?")
        self._told_again.add(node)
        self._begin(node, self._sessions[node], other.tree)

    def _pack(self, wants: Sequence[Want], key: str) -> int:
        """The pack of these contents; waits for it. Raises MeshError and OSError."""
        if key not in self._packs:
            self._packs[key] = Future()
            self._make_pack(wants, self._packs[key])
        return self._packs[key].result()

    def _pack_ahead(self, wants: Sequence[Want], key: str) -> None:
        """Begin with a pack that a host will probably ask for."""
        pack = self._packs[key] = Future()
        self._spawn("mesh-pack-ahead", partial(self._make_pack_ahead, wants, pack))

    def _make_pack_ahead(self, wants: Sequence[Want], pack: Future[int]) -> None:
        while self._round_trip() == float("inf") and not self._stopped.wait(LOOK / 10):
            pass  # the first beat is on its way
        self._make_pack(wants, pack)

    def _round_trip(self) -> float:
        """Seconds to the nearest host and back; infinite until one of them has answered."""
        return min(session.round_trip for session in list(self._sessions.values()))

    def _make_pack(self, wants: Sequence[Want], pack: Future[int]) -> None:
        # Where answers are back in no time, the link is faster than any compressor.
        near = self._round_trip() < NEAR
        try:
            pack.set_result(self._luggage.result().pack(wants, compress=not near))
        except Exception as error:  # for whoever asks for it
            pack.set_exception(error)

    def _send_pack(self, node: int, pack: int) -> None:
        self._planned += os.fstat(pack).st_size
        self._send(node, partial(self._sessions[node].send_pack, pack, attempt=self._attempt))

    def _send(self, node: int, function: Callable[[], None]) -> None:
        self._spawn(f"mesh-sync-{node}", function)

    # ---- handing on

    def _plant(self, node: int, tree: _Tree) -> None:
        """Put a host into a tree, as the last one. The first one gets the pack from us."""
        self._credentials = self._credentials or make_credentials()
        tree.add(node)
        if tree.has_children(node):
            self._sessions[node].serve(tree.number, tree.size, self._credentials)
        if tree.parent(node) < 0:
            self._give(node, tree)
        else:
            tree.waiting.add(node)
            self._tell_where(tree, [node])

    def _serving(self, node: int, number: int, port: int) -> None:
        for tree in self._trees.values():
            if tree.number == number:
                tree.ports[node] = port
                self._tell_where(tree, [node, *tree.children(node)])

    def _tell_where(self, tree: _Tree, nodes: Sequence[int]) -> None:
        """Of these, send those to their parents that can go there now."""
        for node in nodes:
            parent = tree.parent(node)
            if node in tree.waiting and tree.is_ready(node) and parent in tree.ports:
                tree.waiting.discard(node)
                given = (self._address_of(parent), tree.ports[parent], tree.size, self._credentials)
                self._sessions[node].fetch(tree.number, *given)
            elif node in tree.waiting and parent in tree.barren:
                self._give(node, tree)

    def _give(self, node: int, tree: _Tree) -> None:
        """Send the pack from here, once."""
        tree.waiting.discard(node)
        if node not in tree.given:
            tree.given.add(node)
            self._send_pack(node, tree.pack)

    def _unfetched(self, node: int, number: int) -> None:
        """It gets the pack from us, and those that should have got it from it as well, if it does not hand it on."""
        for tree in self._trees.values():
            if tree.number == number:
                self._give(node, tree)
                if node not in tree.ports:
                    tree.barren.add(node)
                self._tell_where(tree, tree.children(node))

    def _synced(self, node: int) -> None:
        if not self._synced_nodes:
            self._luggage.result().sent()
        self._synced_nodes.add(node)
        if len(self._synced_nodes) == self._count:  # nobody fetches any more
            self._luggage.result().stop()
            for tree in self._trees.values():
                for server in tree.ports:
                    self._sessions[server].settle()


def _key(wants: Sequence[Want]) -> str:
    return json.dumps(wants)


def make_credentials(days: int = 2) -> str:
    """A new private key and a certificate for it, as PEM, for one sync or one run of at most so many days."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mesh")])
    now = datetime.datetime.now(datetime.timezone.utc)
    # A host's clock may be off by a day; nobody has the key for longer than the sync or the run.
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (secret + certificate.public_bytes(serialization.Encoding.PEM)).decode()
