"""The connection to the client: requests come in, frames of the outbox go out, through one channel after the other."""

from __future__ import annotations

import os
import select
import time

from mesh.agent.run.facts import ClientBack, ClientHeard, ClientLost, ClientRefused
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.tables import REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.base.light import Socket
    from mesh.agent.link.outbox import Outbox
    from mesh.agent.loop import Loop
    from mesh.agent.run.facts import Fact
    from mesh.protocol.requests import Request

READ_BYTES = 1 << 18


class ClientConnection:
    """The channel of the client, and its decoder. The outbox outlives the channel."""

    def __init__(
        self,
        loop: Loop,
        out: Outbox,
        decoder: Decoder,
        post: Callable[[Fact], None],
        receive: Callable[[Request, bytes], None],
    ) -> None:
        """Use stdin and the channel of the outbox, once ``open`` is called.

        decoder: may hold the beginning of a request; receive: gets each request
        """
        self._loop, self._out, self._decoder, self._post, self._receive = loop, out, decoder, post, receive
        self._incoming = 0  # the descriptor of requests; -1: there is no channel
        self._outgoing = -1  # the descriptor that is watched for writing
        self._visitor: Socket | None = None  # of the process that brought the channel, and waits until it is closed
        self._is_refused = False  # the client broke the protocol: nothing more of it is read
        self._gather_until = 0.0  # monotonic: frames may wait until then for others that go along

    @property
    def is_behind(self) -> bool:
        """True if what is sent now will wait."""
        return self._out.is_behind

    def open(self) -> None:
        """Begin to read."""
        for descriptor in (self._incoming, self._out.channel):
            os.set_blocking(descriptor, False)
        self._loop.watch(self._incoming, select.POLLIN, self._read)

    def arm(self) -> None:
        """Wait until the channel takes more, if there is more to send. Called before each poll."""
        out = self._out
        if self._outgoing >= 0:
            self._loop.unwatch(self._outgoing)
            self._outgoing = -1
        if not out:
            return
        if time.monotonic() < self._gather_until:
            self._loop.at("gather", self._gather_until, _do_nothing)
        else:
            self._outgoing = out.channel
            self._loop.watch(self._outgoing, select.POLLOUT, lambda events: self.flush())

    def flush(self) -> None:
        """Send what the channel takes now."""
        if not self._out.flush():
            self.drop()

    def gather(self, until: float) -> None:
        """Let frames wait for others until a monotonic time."""
        self._gather_until = until

    def gather_less(self, until: float) -> None:
        """Send what has gathered at a monotonic time at the latest, and at once if that has passed."""
        self._gather_until = min(self._gather_until, until)
        if time.monotonic() >= self._gather_until:
            self.flush()

    def drop(self) -> None:
        """Close the channel in both directions, so that the client notices as well."""
        out = self._out
        if self._incoming >= 0:
            self._loop.unwatch(self._incoming)
            release(self._incoming)
            self._incoming = -1
            self._let_go()
            self._post(ClientLost())
        release(2)  # sshd reports the end of a channel only when stderr is closed as well
        if out.channel >= 0:
            self._loop.unwatch(out.channel)
            release(out.channel)
            out.channel = self._outgoing = -1

    def disconnect(self) -> None:
        """Close the channel of a client that a detached run does without; the next client may send requests again."""
        self.drop()
        self._is_refused = False

    def take(self, incoming: int, outgoing: int, visitor: Socket, place: int) -> None:
        """Go on through another channel.

        visitor: of the process that brought it, closed with the channel; place: up to which the client has the stream
        """
        self.drop()
        self._visitor, self._incoming = visitor, incoming
        self._decoder = Decoder(REQUESTS.sizes)
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)
        self._loop.watch(incoming, select.POLLIN, self._read)
        self._out.go_on(outgoing, place)
        self._post(ClientBack())

    def refuse(self, error: FrameError) -> None:
        """Read nothing more of a client that breaks the protocol."""
        self._is_refused = True
        self._post(ClientRefused(str(error)))

    def _read(self, events: int) -> None:
        try:
            chunk = os.read(self._incoming, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.drop()
            return
        if self._is_refused:
            return
        self._post(ClientHeard())
        try:
            for header, data in self._decoder.feed(chunk):
                self._receive(REQUESTS.read(header), data)
                if self._is_refused:
                    return
        except FrameError as error:
            self.refuse(error)

    def _let_go(self) -> None:
        if self._visitor is not None:
            self._visitor.close()
            self._visitor = None


def release(descriptor: int) -> None:
    """Close an end of a channel. The numbers 0 to 2 stay taken, so that no other file gets them."""
    if descriptor > 2:
        os.close(descriptor)
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.close(null)


def _do_nothing() -> None:
    """Let a turn of the loop begin."""
