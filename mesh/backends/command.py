"""Hosts that a command reaches, such as ``docker exec -i NAME``: an agent behind any argv."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mesh.core.cluster import Host
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.events import Event
from mesh.core.interfaces import CLIENT_RETURN_S, Farewell, NoAgent, Opened
from mesh.core.text import last_line

CHUNK_BYTES = 116 << 10  # that receive() returns at most: as many as an agent has in a frame
STDERR_BYTES = 65536  # that are kept
STATUS_TIMEOUT_S = 2.0  # for the exit status, once the channel has ended
TERM_TIMEOUT_S = 2.0  # for a command to end after its channel; an agent of this machine has its own grace
KILL_TIMEOUT_S = 15.0  # as a last resort
SWEEP_TIMEOUT_S = 5.0  # for a guardian to end the ranks of an agent that was killed


class CommandChannel:
    """The standard streams of a command that runs here, and with it those of an agent."""

    def __init__(self, argv: Sequence[str], is_agent: bool) -> None:
        """is_agent: the command is the agent itself. Raises OSError if it cannot be started."""
        self._is_agent = is_agent
        self.is_left = False  # the agent goes on
        # A single socket for both, as sshd has it: shutdown wakes a blocked send and receive.
        self._socket, theirs = socket.socketpair()
        # A file, as no thread reads a pipe for stderr while the agent runs.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,  # a Ctrl-C of the terminal is for mesh alone
            )
        except BaseException:
            self._socket.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> bytes:
        try:
            return self._socket.recv(CHUNK_BYTES)
        except OSError:
            return b""

    def farewell(self) -> Farewell:
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(STATUS_TIMEOUT_S)
        try:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - STDERR_BYTES))
            last = self._stderr.read()
        except ValueError:  # another thread has closed the channel
            last = b""
        return Farewell(status=status, stderr=last, is_agents=self._is_agent)

    def close(self, *, leave: bool = False) -> None:
        self.is_left = self.is_left or leave
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def reap(self, closed: float) -> None:
        """Wait for the command, and end it where it does not end. closed: when its channel was, monotonic"""
        if self.is_left and self.process.poll() is None:
            self.process.returncode = 0  # it is init's child once mesh has ended; Popen would complain
        if self._is_agent:
            limits = [(KILL_TIMEOUT_S, self._kill_agent), (KILL_TIMEOUT_S + SWEEP_TIMEOUT_S, self.process.kill)]
        else:  # a command that is an agent after all takes SIGTERM as the end of its run
            limits = [(TERM_TIMEOUT_S, self.process.terminate), (KILL_TIMEOUT_S, self.process.kill)]
        for limit, end in limits:
            try:
                self.process.wait(max(0.0, closed + limit - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                end()
        self.process.wait()
        self._socket.close()
        self._stderr.close()

    def _kill_agent(self) -> None:
        """Kill the child of the process that was started, which is the guardian: it ends the ranks then."""
        with contextlib.suppress(OSError, ValueError):
            pid = self.process.pid
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)


class CommandBackend:
    """Opens channels through a command for each host; with no command, to agents on this machine."""

    client_return = CLIENT_RETURN_S

    def __init__(self, prefix: Callable[[Host], Sequence[str]] = lambda host: ()) -> None:
        """prefix: returns the words that reach a host; the agent's argv is appended."""
        self._prefix = prefix
        self._hosts: Sequence[Host] = ()
        self._channels: list[CommandChannel] = []
        self._is_closed = False

    def listen(self, post: Callable[[Event], None]) -> None:
        pass  # a command has nothing to add to its exit

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        self._hosts = hosts
        for node, host in enumerate(hosts):
            try:
                yield Opened(node=node, result=self.reopen(node, argv), address=host.internal_ip or host.address)
            except HostUnreachable as error:
                yield Opened(node=node, result=error)

    def reopen(self, node: int, argv: Sequence[str]) -> CommandChannel:
        prefix = self._prefix(self._hosts[node])
        if not prefix and not sys.platform.startswith("linux"):
            raise HostUnreachable("the built-in cluster needs Linux: an agent reads /proc", is_final=True)
        program = prefix[0] if prefix else argv[0]
        try:
            channel = CommandChannel([*prefix, *argv], is_agent=not prefix)
        except OSError as error:
            key = "command:" if prefix else "python:"
            hint = f"check {key} in cluster.yaml: its program must exist on this machine"
            raise HostUnreachable(f"cannot start {program!r} here: {error.strerror or error}", hint=hint) from error
        self._channels.append(channel)
        if self._is_closed:  # ``close`` came before this channel
            self.close()
        return channel

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        command = shlex.join(self._prefix(self._hosts[node])) or "the command"
        last = last_line(end.stderr or end.banner)
        if end.limit:
            message = f"`{command}` did not start mesh's agent within {end.limit:g} s"
            hint = f"try `{command} true`; where it needs longer: --connect-timeout SECONDS"
        else:
            status = "" if end.status is None else f" (exit {end.status})"
            message = f"`{command}` ended before mesh's agent started{status}"
            hint = f"try `{command} python3 --version`; it must pass words and standard streams on unchanged"
        return HostUnreachable(message + f": {last}" * bool(last), hint=hint)

    def why(self, node: int) -> str:
        return ""

    def user(self, node: int) -> str:
        return self._hosts[node].user or getpass.getuser()

    def close(self) -> None:
        self._is_closed = True
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()
        closed = time.monotonic()
        for channel in channels:
            channel.reap(closed)
