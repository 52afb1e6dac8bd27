"""Debuggers of ranks on our terminal, one after the other."""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from mesh.app.forwarder import Forwarder
from mesh.core.cluster import Placement
from mesh.core.escapes import Cleaner
from mesh.protocol.forwarding import Waiting

POLL_S = 0.2  # between two looks whether the run is over
READ_BYTES = 1 << 16
READER, WRITER = 0, 2  # descriptors of our terminal; stdout has the output of ranks alone
LEFT, ENDED = "left", "ended"  # by the user; by the rank


class Consoles:
    """Shows the debugger of each rank that stops. Call ``serve`` in a thread of its own."""

    def __init__(
        self,
        forwarder: Forwarder,
        placement: Placement,
        run: str,
        quiet: Callable[[], Sequence[AbstractContextManager[None]]],
    ) -> None:
        """quiet: returns contexts within which nothing else writes to the terminal"""
        self._forwarder, self._placement, self._run, self._quiet = forwarder, placement, run, quiet
        self._stopped: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._waiting: dict[int, set[int]] = {}
        self._left: set[int] = set()  # ranks that the user has left; `mesh debug` comes back to them
        self._over = threading.Event()

    def note(self, node: int, waiting: Waiting) -> None:
        """Queue the ranks of a host that have stopped since the last call. From the thread of the forwarder."""
        for rank in sorted({*waiting.ranks} - self._waiting.get(node, set()) - self._left):
            self._stopped.put((node, rank))
        self._waiting[node] = {*waiting.ranks}

    def serve(self) -> None:
        """Show debuggers until ``end`` is called."""
        while not self._over.is_set():
            try:
                node, rank = self._stopped.get(timeout=POLL_S)
            except queue.Empty:
                continue
            host = self._placement.hosts[node].name
            with ExitStack() as held:
                for context in self._quiet():
                    held.enter_context(context)
                show(f"\n==> rank {rank} on {host} has stopped: c goes on, q ends it, Ctrl-D leaves it stopped\n")
                with self._forwarder.attach(node, rank) as program:
                    if talk(program, self._over.is_set) == LEFT:
                        self._left.add(rank)
                        show(f"\n==> rank {rank} stays stopped; mesh debug {self._run[-6:]} --rank {rank}\n")

    def end(self) -> None:
        """End ``serve``. From any thread."""
        self._over.set()


def talk(program: socket.socket, is_over: Callable[[], bool]) -> str:
    """Pass lines between our terminal and a debugger, whose text is cleaned; return ENDED or LEFT."""
    cleaner = Cleaner()
    while not is_over():
        ready, _, _ = select.select([READER, program.fileno()], [], [], POLL_S)
        try:
            if program.fileno() in ready:
                data = program.recv(READ_BYTES)
                if not data:
                    return ENDED
                show(cleaner.feed(data))
            if READER in ready:
                typed = os.read(READER, READ_BYTES)
                if not typed:
                    return LEFT
                program.sendall(typed)
        except OSError:  # the rank or the terminal is gone
            return ENDED
    return ENDED


def show(text: str) -> None:
    """Write a text to our terminal."""
    os.write(WRITER, text.encode("utf-8", "replace"))
