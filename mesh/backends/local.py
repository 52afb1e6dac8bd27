"""The built-in cluster: agents as subprocesses on this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from mesh.core.cluster import Host
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.interfaces import Farewell, Opened

CHUNK = 116 << 10  # bytes that receive() returns at most: as many as an agent has in a frame
STDERR_KEPT = 65536  # bytes
LEAVING = 15.0  # seconds for an agent whose channel is closed; it has its own grace, and is killed as a last resort


class LocalChannel:
    """The pipes of one agent that runs here."""

    address = "127.0.0.1"

    def __init__(self, argv: Sequence[str]) -> None:
        # A file, as nobody reads a pipe for stderr while the agent runs.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C of the terminal is ours to pass on
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._is_let_go = False

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._stdin.fileno(), view) :]
        except (OSError, ValueError) as error:  # ValueError: closed by us
            raise ChannelClosed(str(error)) from error

    def receive(self) -> bytes:
        try:
            return os.read(self._stdout.fileno(), CHUNK)
        except (OSError, ValueError):
            return b""

    def farewell(self) -> Farewell:
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(2.0)
        try:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - STDERR_KEPT))
            return Farewell(status=status, stderr=self._stderr.read())
        except ValueError:  # closed by us
            return Farewell(status=status, stderr=b"")

    def pace(self, round_trip: float) -> None:
        pass  # a pipe holds little

    def let_go(self) -> None:
        self._is_let_go = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def reap(self) -> None:
        """Wait for the agent, whose channel is closed, and leave nothing open."""
        if self._is_let_go and self._process.poll() is None:
            self._process.returncode = 0  # it is init's once we have ended; Popen would complain
        try:
            self._process.wait(LEAVING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._stderr.close()


class LocalBackend:
    """Opens channels to agents on this machine."""

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []
        self._is_closed = False

    def reopen(self, node: int, argv: Sequence[str]) -> LocalChannel:
        try:
            return self._start(argv)
        except OSError as error:
            raise HostUnreachable(f"cannot start an agent here: {error}") from error

    def user(self, node: int) -> str:
        return getpass.getuser()

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        for node, _ in enumerate(hosts):
            if not sys.platform.startswith("linux"):
                here = HostUnreachable("the built-in cluster needs Linux: an agent reads /proc")
                yield Opened(node=node, result=here)
                continue
            try:
                channel = self._start(argv)
            except OSError as error:
                failure = HostUnreachable(
                    f"cannot start an agent here: {error}",
                    hint="is it a Python of this machine that python: of cluster.yaml names?",
                )
                yield Opened(node=node, result=failure)
            else:
                yield Opened(node=node, result=channel)

    def _start(self, argv: Sequence[str]) -> LocalChannel:
        """Start an agent. Raises OSError."""
        channel = LocalChannel(argv)
        self._channels.append(channel)
        if self._is_closed:  # ``close`` may have come before it
            self.close()
        return channel

    def close(self) -> None:
        self._is_closed = True
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()
        for channel in channels:
            channel.reap()
