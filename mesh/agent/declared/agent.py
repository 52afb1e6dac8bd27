"""The agent of a pod in a run that no client has begun, as its client there has it: requests out, answers in."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.messages import encode
from mesh.protocol.requests import Ack, Beat, Bye

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh.protocol.frames import Header
    from mesh.protocol.messages import Message

BEAT_INTERVAL_S = 5.0
READ_BYTES = 1 << 16


class Agent:
    """The agent of this pod, which is started here."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], opening: bytes, program: bytes) -> None:
        """Start it. opening, program: the text that it reads first, and its modules. Raises OSError."""
        self._program = program
        self._lock = threading.Lock()
        self._number = 0
        self._left = threading.Event()
        self.process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environ), start_new_session=True
        )
        self.send(opening)

    def begin(self, begin: Header, take: Callable[[Header], object], fail: Callable[[str], object]) -> None:
        """Send the first request; then call a function with each message, and the other one once it has ended."""
        self.send(_frame(begin))
        marker = b"\n%s\n" % str(begin["marker"]).encode()
        threading.Thread(target=self._read, args=(marker, take, fail), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send bytes; that its reader ends shows that they have not arrived."""
        assert self.process.stdin is not None
        try:
            with self._lock:
                self.process.stdin.write(data)
                self.process.stdin.flush()
        except (OSError, ValueError):
            pass

    def ask(self, header: Header, data: bytes = b"") -> None:
        """Send a request that is no order."""
        self.send(_frame(header, data))

    def order(self, header: Header) -> None:
        """Send an order: a request with a number."""
        self._number += 1
        self.send(_frame({**header, "n": self._number}))

    def terminate(self) -> None:
        """Send it SIGTERM, if it has not ended: it ends its ranks then."""
        if self.process.returncode is None:
            try:
                os.kill(self.process.pid, signal.SIGTERM)
            except OSError:
                pass

    def leave(self) -> None:
        """Take leave. An agent that is not detached ends the run."""
        self._left.set()
        self._say(Bye())
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def _say(self, message: Message) -> None:
        self.send(encode(message))

    def _beat(self) -> None:
        while not self._left.wait(BEAT_INTERVAL_S):
            self._say(Beat(time=time.time()))

    def _read(self, marker: bytes, take: Callable[[Header], object], fail: Callable[[str], object]) -> None:
        """Read messages until the end. Before the marker comes only the wish for the program, if the pod lacks it."""
        assert self.process.stdout is not None
        descriptor, before, is_greeted, decoder = self.process.stdout.fileno(), b"", False, Decoder()
        why = "its agent has ended"
        try:
            while True:
                data = os.read(descriptor, READ_BYTES)
                if not data:
                    break
                if not is_greeted:
                    before += data
                    if self._program and b"\nlacks " in before:
                        self.ask({"type": "agent"}, self._program)
                        self._program = b""
                    _, found, data = before.partition(marker)
                    is_greeted = bool(found)
                for header, _ in decoder.feed(data) if is_greeted else ():
                    take(header)
                if is_greeted:
                    self._say(Ack(place=decoder.consumed))
        except (OSError, FrameError) as error:
            why = f"its agent does not speak our protocol ({error})"
        fail(why)


def _frame(header: Header, data: bytes = b"") -> bytes:
    from mesh.protocol.frames import encode as encode_frame

    return encode_frame(header, data)
