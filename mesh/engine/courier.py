"""Brings the workspace to every host, by as few copies over our own link as it can.

A host gets the list of changes, and answers with the contents that it lacks. Hosts that lack the same get the same
pack from us. If the pack is large and there are several hosts, only the first gets it from us, and the others from each
other along a binary tree. A host that cannot be reached by its parent gets it from us.
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
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mesh.core.errors import MeshError
from mesh.core.events import Event, Lacks, OtherTree, Serving, Synced, Unfetched
from mesh.core.run import RunSpec
from mesh.core.wants import Want
from mesh.engine.credentials import make_credentials
from mesh.engine.fanout import Tree
from mesh.remote.session import Session

FORESEEN_BYTES = 256 << 10  # of contents that are sent along before a host asks for them
AHEAD_BYTES = 256 << 20  # that are packed for a host without a tree before it asks; it may have them elsewhere
FANOUT_BYTES = 1 << 20  # of a pack from which on hosts hand it on
LISTING_POLL_S = 0.1
LISTING_TRIES = 3  # for files that change between being listed and being packed
NEAR_S = 0.002  # a round trip in a local network
FANOUT_HOSTS = 3  # with fewer of them handing on saves too little


class Luggage(Protocol):
    """The workspace as it is to be on every host."""

    tree: str
    """Its tree hash."""

    env: Mapping[str, str]
    """Variables about it for the ranks."""

    lacks_bytes: int
    """Bytes of the longest list of what a host may lack of it."""

    def changes(self, base: str) -> bytes:
        """Return the changes since another tree; all of it, if that tree is not recorded here."""

    def foreseen(self, base: str) -> Sequence[Want]:
        """Return the contents that a host with that tree ("": none) will probably lack; () if that is unknown."""

    def asked(self, wants: Sequence[Want]) -> None:
        """Take note that a host asks for these."""

    def pack(self, wants: Sequence[Want], *, compress: bool) -> int:
        """Make a pack; returns the descriptor of its file. Raises MeshError and OSError."""

    def has_changed(self, error: Exception) -> bool:
        """Return True if ``pack`` failed because a file has changed. Then ``renew`` lists it anew."""

    def renew(self) -> None:
        """List the workspace again; ``tree`` is another one then. Raises MeshError."""

    def sent(self) -> None:
        """Take note that a host has it now."""

    def stop(self) -> None:
        """Have a pack that is being made fail with a MeshError, as no pack is needed any more. From any thread."""


@dataclass
class _Foreseen:
    """The contents that hosts with a certain tree will probably lack."""

    wants: Sequence[Want]
    key: str
    pack: int  # that goes along with the changes, or -1


class Courier:
    """Owns the sync of all hosts: one thread takes what happens in its order, others send."""

    def __init__(
        self,
        spec: RunSpec,
        count: int,
        luggage: Future[Luggage],
        address_of: Callable[[int], str],
        spawn: Callable[[str, Callable[[], None]], object],
        failed: Callable[[Exception], None],
    ) -> None:
        """address_of: a node's address for the other hosts; spawn: starts a thread by name and function.

        count: of hosts
        failed: called with a MeshError or an OSError if the workspace cannot be packed
        """
        self._luggage, self._address_of, self._spawn, self._failed = luggage, address_of, spawn, failed
        self._count, self._fresh, self._fan_out = count, spec.fresh, spec.fan_out
        self._happened: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._sessions: dict[int, Session] = {}
        self._had: dict[int, str] = {}  # tree hashes of what they had before, by node
        self._bare: set[int] = set()  # hosts that lack everything, and need not answer that
        self._told_again: set[int] = set()  # hosts that had another tree than they had reported
        self._synced_nodes: set[int] = set()
        self._lock = threading.Lock()
        self._attempt = 0  # how often the workspace was listed again
        self._is_final = False  # a host that has the tree was accepted
        self._packs: dict[str, Future[int]] = {}  # by what they hold
        self._foreseen: dict[str, _Foreseen] = {}  # by the tree that a host has
        self._trees: dict[str, Tree] = {}  # by what they hand on
        self._planted = 0  # trees, ever
        self._credentials = ""
        self._planned = 0  # bytes that are to leave for all hosts, as far as they are counted

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
        """Return True if a host has the tree as it was listed last; from now on that is the tree."""
        with self._lock:
            self._is_final = self._is_final or event.attempt == self._attempt
            return event.attempt == self._attempt

    @property
    def tree(self) -> str:
        """The tree hash of the workspace. Valid once a host is synced."""
        return self._luggage.result().tree

    @property
    def env(self) -> Mapping[str, str]:
        """Variables about the workspace for the ranks. Valid once a host is synced."""
        return self._luggage.result().env

    def sending(self) -> tuple[int, int] | None:
        """Return the bytes that have left for all hosts, and that are to; None while no sync is on. From any thread."""
        sessions = list(self._sessions.values())
        if not sessions or len(self._synced_nodes) == self._count:
            return None
        sent = sum(session.sent for session in sessions)
        return sent, max(sent, self._planned)

    def handle(self, event: Event) -> None:
        """Queue an event of a host for the courier's thread."""
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
        """Wait for the workspace; return False if it cannot be listed, or once stopped."""
        while not self._stopped.is_set():
            with contextlib.suppress(futures.TimeoutError):
                return self._luggage.exception(timeout=LISTING_POLL_S) is None
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
        """Return the contents that a host with this tree will lack, packed if small. Raises MeshError and OSError."""
        wants = self._luggage.result().foreseen(tree)
        foreseen = _Foreseen(wants, _key(wants), -1)
        size = sum(want["size"] for want in wants)
        if 0 < size <= FORESEEN_BYTES:
            foreseen.pack = self._pack(wants, foreseen.key)
        elif not tree and FORESEEN_BYTES < size <= AHEAD_BYTES:  # one that has a tree may ask for parts of files
            self._pack_ahead(wants, foreseen.key)
        return foreseen

    def _begin_again(self, error: MeshError) -> None:
        """A file is another one than it was when the workspace was listed. Raises the error if that is too late."""
        luggage = self._luggage.result()
        while True:
            with self._lock:
                if not luggage.has_changed(error) or self._attempt == LISTING_TRIES or self._is_final:
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
        if self._fan_out and self._count >= FANOUT_HOSTS and size >= FANOUT_BYTES:
            if key not in self._trees:
                self._planted += 1
                self._trees[key] = Tree(self._planted, pack, size, self._count)
            self._plant(node, self._trees[key])
        else:
            self._send_pack(node, pack)

    def _other_tree(self, node: int, other: OtherTree) -> None:
        """Send a host the changes since the tree that it really has. Raises MeshError the second time."""
        if other.attempt != self._attempt:
            return
        if node in self._told_again:
            raise MeshError(
                "a host has reported a wrong tree twice", hint="another program may be changing ~/.mesh there"
            )
        self._told_again.add(node)
        self._begin(node, self._sessions[node], other.tree)

    def _pack(self, wants: Sequence[Want], key: str) -> int:
        """Return the pack of these contents; wait for it. Raises MeshError and OSError."""
        if key not in self._packs:
            self._packs[key] = Future()
            self._make_pack(wants, self._packs[key])
        return self._packs[key].result()

    def _pack_ahead(self, wants: Sequence[Want], key: str) -> None:
        """Begin with a pack that a host will probably ask for."""
        pack = self._packs[key] = Future()
        self._spawn("mesh-pack-ahead", partial(self._make_pack_ahead, wants, pack))

    def _make_pack_ahead(self, wants: Sequence[Want], pack: Future[int]) -> None:
        while self._round_trip() == float("inf") and not self._stopped.wait(LISTING_POLL_S / 10):
            pass  # the first beat is on its way
        self._make_pack(wants, pack)

    def _round_trip(self) -> float:
        """Seconds to the nearest host and back; infinite until one of them has answered."""
        return min(session.round_trip for session in list(self._sessions.values()))

    def _make_pack(self, wants: Sequence[Want], pack: Future[int]) -> None:
        # Where answers are back in no time, the link is faster than any compressor.
        near = self._round_trip() < NEAR_S
        try:
            pack.set_result(self._luggage.result().pack(wants, compress=not near))
        except Exception as error:  # for the thread that waits for the pack
            pack.set_exception(error)

    def _send_pack(self, node: int, pack: int) -> None:
        self._planned += os.fstat(pack).st_size
        self._send(node, partial(self._sessions[node].send_pack, pack, attempt=self._attempt))

    def _send(self, node: int, function: Callable[[], None]) -> None:
        self._spawn(f"mesh-sync-{node}", function)

    # ---- handing on

    def _plant(self, node: int, tree: Tree) -> None:
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

    def _tell_where(self, tree: Tree, nodes: Sequence[int]) -> None:
        """Send those of these hosts to their parents that can fetch there now."""
        for node in nodes:
            parent = tree.parent(node)
            if node in tree.waiting and tree.is_ready(node) and parent in tree.ports:
                tree.waiting.discard(node)
                given = (self._address_of(parent), tree.ports[parent], tree.size, self._credentials)
                self._sessions[node].fetch(tree.number, *given)
            elif node in tree.waiting and parent in tree.barren:
                self._give(node, tree)

    def _give(self, node: int, tree: Tree) -> None:
        """Send the pack from here, once."""
        tree.waiting.discard(node)
        if node not in tree.given:
            tree.given.add(node)
            self._send_pack(node, tree.pack)

    def _unfetched(self, node: int, number: int) -> None:
        """Send the pack from here to a host, and to its children too if it does not hand the pack on."""
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
        if len(self._synced_nodes) == self._count:  # no host fetches any more
            self._luggage.result().stop()
            for tree in self._trees.values():
                for server in tree.ports:
                    self._sessions[server].settle()


def _key(wants: Sequence[Want]) -> str:
    return json.dumps(wants)
