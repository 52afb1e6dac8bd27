"""The programs that a node starts for clients, agents as a rule: one socket for stdin and stdout, a pipe for stderr."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time

from mesh.agent.switchboard import frames
from mesh.agent.switchboard.flow import Credit, Taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

NO_PROGRAM, NO_START = 127, 126  # exit status of a program that could not be started, as a shell has them
READ_BYTES = 64 << 10
STATUS_TIMEOUT_S = 1.5  # for a program to end after it has closed its stdout; less than the client waits
FLUSH_TIMEOUT_S = 5.0  # for a program to read the rest, once its client has closed the stream


class Child:
    """A program that was started. It may outlive its stream: an agent waits for its client to come back."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start it in a session of its own. Raises OSError."""
        self.socket, theirs = socket.socketpair()
        self.stderr, stderr_end = os.pipe()
        self.stderr_tail = b""
        self.status: int | None = None
        self._has_sigterm = False
        try:
            self.process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr_end, start_new_session=True
            )
        except BaseException:
            self.socket.close()
            os.close(self.stderr)
            raise
        finally:
            theirs.close()
            os.close(stderr_end)
        self.socket.setblocking(False)
        os.set_blocking(self.stderr, False)

    def read_stderr(self) -> None:
        """Keep the last of what has come."""
        while self.stderr >= 0:
            try:
                chunk = os.read(self.stderr, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                os.close(self.stderr)
                self.stderr = -1
            self.stderr_tail = (self.stderr_tail + chunk)[-frames.STDERR_BYTES :]

    def end(self, wait_status: int) -> None:
        """Note its end. wait_status: as waitpid(2) returns it"""
        is_signal = os.WIFSIGNALED(wait_status)
        self.status = -os.WTERMSIG(wait_status) if is_signal else os.WEXITSTATUS(wait_status)
        self.process.returncode = self.status  # Popen must not wait for it
        self.read_stderr()

    def forget(self) -> None:
        """Close the descriptors that are left."""
        self.socket.close()
        if self.stderr >= 0:
            os.close(self.stderr)
            self.stderr = -1

    def terminate(self) -> None:
        """Send SIGTERM once, if it has not ended: an agent ends its run then."""
        if self.status is None and not self._has_sigterm:
            self._has_sigterm = True
            try:
                os.kill(self.process.pid, signal.SIGTERM)
            except OSError:
                pass


class Stream:
    """The stream of a client to one program."""

    def __init__(self, number: int, child: Child, window: int) -> None:
        """window: bytes, for each direction"""
        self.number, self.child = number, child
        self.credit, self.taken = Credit(window), Taken(window)
        self.waiting = bytearray()  # for the program's stdin
        self.is_read = False  # its stdout has ended
        self.until = float("inf")  # monotonic: then the stream ends in any case
        self.is_closing = False  # the client has closed it

    def write(self) -> int:
        """Write what the program takes now; return the bytes to report to the client as taken."""
        count = 0
        try:
            while self.waiting:
                sent = self.child.socket.send(self.waiting)
                del self.waiting[:sent]
                count += sent
        except BlockingIOError:
            pass
        except OSError:  # it reads no more: the client may send on until it notices the end
            count += len(self.waiting)
            self.waiting.clear()
        return self.taken.add(count) if count else 0

    def read(self) -> bytes:
        """Return what the program has written, as far as the client takes it; b"" if there is nothing now."""
        try:
            data = self.child.socket.recv(min(READ_BYTES, self.credit.left))
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.is_read = True
            self.until = time.monotonic() + STATUS_TIMEOUT_S
        self.credit.take(len(data))
        return data

    def close_later(self) -> None:
        """Close it once the program has read what waits for it, or some time later."""
        self.is_closing = True
        self.until = time.monotonic() + FLUSH_TIMEOUT_S

    def close(self) -> None:
        """End stdin and stdout of the program, which goes on."""
        try:
            self.child.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.child.socket.close()


def failed_start(error: OSError, program: str) -> tuple[int, str]:
    """Return the exit status and the words for a program that could not be started."""
    status = NO_PROGRAM if error.errno == errno.ENOENT else NO_START
    return status, f"{program}: {error.strerror or error}"
