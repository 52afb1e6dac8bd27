"""The pipes that ranks and prerun print into, and the way of their output to the client."""

from __future__ import annotations

import os
import select
import time

from mesh.agent.base.light import partial
from mesh.agent.run.facts import Printed
from mesh.agent.run.rank import PIPE_FULL_BYTES
from mesh.protocol.answers import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.link.client import ClientConnection
    from mesh.agent.loop import Loop
    from mesh.agent.port import Port
    from mesh.agent.run.rank import Source

GATHER_S = 0.004  # small writes of a rank are gathered so long, so that a line is no frame of its own


class Sources:
    """All open pipes of processes here, by descriptor."""

    def __init__(self, port: Port, loop: Loop, client: ClientConnection) -> None:
        """Start without any."""
        self._port, self._loop, self._client = port, loop, client
        self._by: dict[int, Source] = {}
        self._longest = 0  # bytes of the longest piece in this turn of the loop
        self._is_paused = False  # small writes gather in the pipes

    def add(self, source: Source) -> None:
        """Pass on output from there until its end."""
        self._by[source.descriptor] = source
        if not self._is_paused:
            self._watch(source.descriptor)

    def settle(self) -> None:
        """Send the output of this turn, and pause if it was small. Called after each turn of the loop."""
        if not self._longest:
            return
        again = time.monotonic()
        if self._longest < PIPE_FULL_BYTES:
            again += GATHER_S
            self._is_paused = True
            for descriptor in self._by:
                self._loop.unwatch(descriptor)
            self._loop.at("read again", again, self._resume)
        self._longest = 0
        self._client.gather_less(again)

    def relay_all(self, descriptor: int) -> None:
        """Pass on what a source holds now, before a message that comes after it."""
        source = self._by.get(descriptor)
        if source is not None:
            source.owe_what_waits()
            while source.owed:
                data = source.read()
                if not data:
                    break
                self._port.send(Output(rank=source.rank, stream=source.stream), data)

    def relay_rest(self) -> None:
        """Pass on what all sources hold now."""
        for descriptor in list(self._by):
            self.relay_all(descriptor)

    def ends_line(self, descriptor: int) -> bool:
        """True if the output from there ended with a newline so far."""
        source = self._by.get(descriptor)
        return source is None or source.ends_line

    def _watch(self, descriptor: int) -> None:
        self._loop.watch(descriptor, select.POLLIN, partial(self._read, descriptor))

    def _resume(self) -> None:
        self._is_paused = False
        for descriptor in self._by:
            self._watch(descriptor)

    def _read(self, descriptor: int, events: int) -> None:
        source = self._by[descriptor]
        data = source.read()
        if data:
            self._port.send(Output(rank=source.rank, stream=source.stream), data)
            self._longest = max(self._longest, len(data))
            self._port.post(Printed())
        elif data is not None:
            del self._by[descriptor]
            self._loop.unwatch(descriptor)
            os.close(descriptor)
