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
from mesh.core.events import Event, Lacks, Serving, Synced, Unfetched
from mesh.remote.session import Session

Want = Mapping[str, Any]  # a content that a host lacks, as docs/sync.md has it

FORESEEN = 256 << 10  # bytes of contents that are sent along without being asked for
HANDED_ON = 1 << 20  # bytes of a pack from which on hosts hand it on
LOOK = 0.1  # seconds
NEAR = 0.002  # seconds for a round trip in a local network
FEW = 3  # hosts; with fewer of them handing on saves nothing worth the trouble


class Luggage(Protocol):
    """The workspace as it is to be on every host."""

    tree: str
    """Its tree hash."""

    def changes(self, base: str) -> bytes:
        """What has changed since another tree; everything, if we do not know that one."""

    def foreseen(self, base: str) -> Sequence[Want]:
        """What a host that has that tree will lack, as far as we can tell; () if we cannot."""

    def pack(self, wants: Sequence[Want], *, compress: bool) -> int:
        """Make a pack; returns the descriptor of its file. Raises MeshError and OSError."""


@dataclass
class _Group:
    """Hosts that lack the same."""

    wants: Sequence[Want]
    nodes: list[int] = field(default_factory=list)  # that have not been served yet


@dataclass
class _Tree:
    """Hosts that hand one pack on among themselves: the one at place i has its parent at (i - 1) // 2."""

    pack: int  # descriptor
    size: int
    nodes: list[int]
    ports: dict[int, int] = field(default_factory=dict)  # of those that are serving, by node
    waiting: set[int] = field(default_factory=set)  # that have not been told where to fetch
    open: set[int] = field(default_factory=set)  # that have not got it


class Courier:
    """Owns the sync of all hosts: one thread takes what happens in its order, others send."""

    def __init__(
        self,
        luggage: Future[Luggage],
        address_of: Callable[[int], str],
        spawn: Callable[[str, Callable[[], None]], object],
        failed: Callable[[Exception], None],
        *,
        fresh: bool,
        fan_out: bool,
    ) -> None:
        """address_of: a node's address for the other hosts; spawn: starts a thread by name and function.

        failed: called with a MeshError or an OSError if the workspace cannot be packed
        """
        self._luggage, self._address_of, self._spawn, self._failed = luggage, address_of, spawn, failed
        self._fresh, self._fan_out = fresh, fan_out
        self._happened: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._sessions: dict[int, Session] = {}
        self._unanswered: set[int] = set()  # nodes that have not said what they lack
        self._groups: dict[str, _Group] = {}
        self._packs: dict[str, int] = {}  # by what they hold
        self._trees: list[_Tree] = []
        self._credentials = ""

    def start(self) -> None:
        self._spawn("mesh-courier", self._work)

    def stop(self) -> None:
        self._stopped.set()
        self._happened.put(None)

    def begin(self, node: int, session: Session, tree: str) -> None:
        """Sync a host that has this tree. From any thread, as the next one."""
        self._happened.put(partial(self._begin, node, session, tree))

    def handle(self, event: Event) -> None:
        """Take note of what a host tells."""
        match event:
            case Lacks(node=node, wants=wants):
                self._happened.put(partial(self._lacks, node, wants))
            case Serving(node=node, port=port):
                self._happened.put(partial(self._serving, node, port))
            case Unfetched(node=node):
                self._happened.put(partial(self._unfetched, node))
            case Synced(node=node):
                self._happened.put(partial(self._synced, node))

    # ---- the courier's thread

    def _work(self) -> None:
        try:
            while (happened := self._happened.get()) is not None and self._is_listed():
                happened()
                self._dispatch()
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
        self._sessions[node] = session
        self._unanswered.add(node)
        foreseen = luggage.foreseen(tree)
        pack = self._pack(foreseen) if 0 < sum(want["size"] for want in foreseen) <= FORESEEN else -1
        changes = luggage.changes(tree)
        self._send(node, partial(session.send_changes, changes, fresh=self._fresh, pack=pack))

    def _lacks(self, node: int, wants: Sequence[Want]) -> None:
        self._unanswered.discard(node)
        self._groups.setdefault(_key(wants), _Group(wants)).nodes.append(node)

    def _dispatch(self) -> None:
        """Serve those that lack something, as soon as it is known how many of them lack the same."""
        for group in self._groups.values():
            small = sum(want["size"] for want in group.wants) < HANDED_ON
            if group.nodes and (small or not self._fan_out or not self._unanswered):
                nodes, group.nodes = group.nodes, []
                pack = self._pack(group.wants)
                size = os.fstat(pack).st_size
                if self._fan_out and len(nodes) >= FEW and size >= HANDED_ON:
                    self._plant(_Tree(pack, size, nodes))
                else:
                    for node in nodes:
                        self._send(node, partial(self._sessions[node].send_pack, pack))

    def _pack(self, wants: Sequence[Want]) -> int:
        key = _key(wants)
        if key not in self._packs:
            # Where answers are back in no time, the link is faster than any compressor.
            near = min(session.round_trip for session in self._sessions.values()) < NEAR
            self._packs[key] = self._luggage.result().pack(wants, compress=not near)
        return self._packs[key]

    def _send(self, node: int, function: Callable[[], None]) -> None:
        self._spawn(f"mesh-sync-{node}", function)

    # ---- handing on

    def _plant(self, tree: _Tree) -> None:
        self._trees.append(tree)
        self._credentials = self._credentials or make_credentials()
        tree.open = set(tree.nodes)
        tree.waiting = set(tree.nodes[1:])
        for node in tree.nodes:
            self._sessions[node].serve(tree.size, self._credentials)

    def _serving(self, node: int, port: int) -> None:
        for tree in self._trees:
            if node in tree.open:
                tree.ports[node] = port
                if node == tree.nodes[0]:
                    self._send(node, partial(self._sessions[node].send_pack, tree.pack))
                self._tell_where(tree)

    def _tell_where(self, tree: _Tree) -> None:
        for place, node in enumerate(tree.nodes):
            parent = tree.nodes[(place - 1) // 2] if place else -1
            if node in tree.waiting and node in tree.ports and parent in tree.ports:
                tree.waiting.discard(node)
                given = (self._address_of(parent), tree.ports[parent], tree.size, self._credentials)
                self._sessions[node].fetch(*given)

    def _unfetched(self, node: int) -> None:
        """It gets the pack from us; its own children have been told where it serves, or are told by another failure."""
        for tree in self._trees:
            if node in tree.open:
                tree.waiting.discard(node)
                self._send(node, partial(self._sessions[node].send_pack, tree.pack))
                if node not in tree.ports:  # it cannot hand it on at all
                    place = tree.nodes.index(node)
                    for child in tree.nodes[2 * place + 1 : 2 * place + 3]:
                        if child in tree.waiting:
                            self._unfetched(child)

    def _synced(self, node: int) -> None:
        self._unanswered.discard(node)
        for tree in self._trees:
            tree.open.discard(node)
            if not tree.open and tree.ports:
                for server in tree.ports:
                    self._sessions[server].settle()
                tree.ports = {}


def _key(wants: Sequence[Want]) -> str:
    return json.dumps(wants)


def make_credentials() -> str:
    """A new private key and a certificate for it, as PEM, for one sync."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mesh")])
    now = datetime.datetime.now(datetime.timezone.utc)
    # A host's clock may be off by a day; nobody has the key for longer than the sync.
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (secret + certificate.public_bytes(serialization.Encoding.PEM)).decode()
