"""Hosts reached over SSH: Fabric connections, opened several at a time."""

from __future__ import annotations

import logging
import math
import queue
import shlex
import socket
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TypeVar

import fabric
import paramiko

from mesh.backends.ssh.advice import advice, no_agent, reason, target
from mesh.backends.ssh.ahead import PARALLEL_CONNECTIONS, Begun
from mesh.backends.ssh.config import load_ssh_config
from mesh.backends.ssh.connection import Limits, Shared, SshConnection
from mesh.backends.ssh.login import Secrets
from mesh.backends.ssh.passwords import Passwords
from mesh.backends.ssh.sockets import GivenUp
from mesh.backends.ssh.transport import start_within
from mesh.core.cluster import Cluster, Host, HostKeys
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.events import Event
from mesh.core.interfaces import CLIENT_RETURN_S, Farewell, NoAgent, Opened

T = TypeVar("T")
CONNECT_TIMEOUT_S = 10.0  # for one try: TCP, banner, key exchange and login; then as much for the start of the command
CONNECT_TRIES = 3
PAUSES = (0.3, 1.0)  # seconds between tries, and up to as much again, so that hosts behind one gateway spread out
RECEIVE_BYTES = 116 << 10  # bytes that receive() returns at most: as many as an agent has in a frame
STDERR_KEPT = 65536  # bytes
WINDOW_MIN_BYTES = 1 << 18  # bytes on their way to one host at least
LINK_BYTES_PER_S = 125e6  # bytes a second, a gigabit
WINDOW_GRANT_TIMEOUT_S = 1.0  # seconds without a grant, after which nothing is withheld any more

# Errors reach us as exceptions; paramiko's threads would print tracebacks of their own.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class SshChannel:
    """The pipes of one agent at the other end of a connection."""

    def __init__(self, connection: SshConnection, channel: paramiko.Channel) -> None:
        self._connection, self._channel = connection, channel
        self._withheld = 0  # bytes of the window that is granted

    def send(self, data: bytes) -> None:
        try:
            while data:
                if self._withheld:
                    self._wait_for_window()
                sent = self._channel.send(data)
                if not sent:
                    raise OSError("the channel is closed")
                data = data[sent:]
        except (OSError, EOFError) as error:
            raise ChannelClosed(str(error) or "the connection ended") from error

    def pace(self, round_trip: float) -> None:
        """Use no more of the window than a gigabit link needs.

        OpenSSH grants 2 MB, and makes its buffer anew for each packet that the agent has not taken by then: a pack that
        comes faster than it is written costs it several times the CPU of one that does not. Whatever it has handed on,
        it grants anew after 96 KB; others do after a half of all.
        """
        if "OpenSSH" not in self._channel.get_transport().remote_version:
            return
        with self._channel.lock:
            most = min(self._channel.out_window_size, max(WINDOW_MIN_BYTES, round_trip * LINK_BYTES_PER_S))
            self._withheld += self._channel.out_window_size - int(most)
            self._channel.out_window_size = int(most)

    def _wait_for_window(self) -> None:
        """Until something may be sent; the whole window is used where that takes long."""
        channel = self._channel
        with channel.lock:
            while not (channel.out_window_size or channel.closed or channel.out_buffer_cv.wait(WINDOW_GRANT_TIMEOUT_S)):
                # More may have been granted since the time was up.
                channel.out_window_size, self._withheld = channel.out_window_size + self._withheld, 0

    def receive(self) -> bytes:
        try:
            return self._channel.recv(RECEIVE_BYTES)
        except (OSError, EOFError):
            return b""

    def farewell(self) -> Farewell:
        status: int | None = None
        if self._channel.status_event.wait(2.0) and self._channel.exit_status >= 0:
            status = self._channel.exit_status
        said = b""
        while self._channel.recv_stderr_ready() and len(said) < STDERR_KEPT:
            said += self._channel.recv_stderr(RECEIVE_BYTES)
        return Farewell(status=status, stderr=said[-STDERR_KEPT:])

    def ask(self) -> None:
        """Ask the host for a sign of life, and do not wait for it."""
        self._connection.transport.ask()

    def answers(self, seconds: float) -> bool:
        """Return True if the other end is there, and its host answers within this time."""
        # The end of a channel, for example during a laptop's sleep, arrives before the answer.
        answered = self._connection.transport.answers(seconds)
        return answered and not (self._channel.closed or self._channel.eof_received)

    @property
    def address(self) -> str:
        """Return the address at which its host was reached."""
        return str(self._connection.host)

    def close(self, *, leave: bool = False) -> None:
        # Not the channel first: paramiko would send its close behind the data that is stuck in a dead connection.
        self._connection.close()


class ConnectionGroup(fabric.ThreadingGroup):  # type: ignore[misc]
    """A ThreadingGroup that opens its connections a bounded number at a time, and yields each as it comes."""

    def open_each(
        self, parallel: int, open_one: Callable[[int], Opened], is_given_up: Callable[[], bool]
    ) -> Iterator[Opened]:
        """Call open_one with every connection's index, in at most ``parallel`` threads; yield what it returns."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[Opened | BaseException] = queue.SimpleQueue()
        for index in range(len(self)):
            waiting.put(index)

        def work() -> None:
            while not is_given_up():
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put(open_one(index))
                except BaseException as error:
                    done.put(error)

        for number in range(min(parallel, len(self))):
            threading.Thread(target=work, name=f"mesh-open-{number}", daemon=True).start()
        left = len(self)
        while left and not is_given_up():
            try:
                result = done.get(timeout=0.1)
            except queue.Empty:
                continue
            left -= 1
            if isinstance(result, GivenUp):
                return
            if isinstance(result, BaseException):
                raise result
            yield result


class SshBackend:
    """Opens channels over SSH. Settings of a cluster win over those of ssh_config."""

    client_return = CLIENT_RETURN_S

    def __init__(
        self,
        cluster: Cluster,
        *,
        environ: Mapping[str, str],
        passwords: Passwords,
        tries: int = CONNECT_TRIES,
        reach: float = math.inf,
        begun: Begun | None = None,
    ) -> None:
        """tries: how often to connect to each host

        reach: seconds for TCP alone, as tcp_s of Limits
        begun: connections that are on their way already
        """
        self._begun: Begun = {} if begun is None else begun
        self._cluster, self._environ, self._tries = cluster, environ, tries
        self._limits = Limits(connect_s=cluster.connect_timeout or CONNECT_TIMEOUT_S, tcp_s=reach)
        self._secrets = Secrets(passwords)
        self._connections: list[SshConnection] = []
        self._shared: Shared | None = None
        self._gateway: SshConnection | None = None
        self._hosts: Sequence[Host] = ()
        self._given_up = threading.Event()

    def listen(self, post: Callable[[Event], None]) -> None:
        pass  # there are no notices

    def prepare(self, hosts: Sequence[Host]) -> None:
        """Read ssh_config and make a connection for each host, and open none. ``open`` does it where nobody did.

        Raises OSError, ConfigParseError, and the error of any program that a Match runs.
        """
        if self._shared is not None:
            return
        shared = Shared(
            config=load_ssh_config(),
            secrets=self._secrets,
            environ=self._environ,
            strict=self._cluster.host_keys is HostKeys.STRICT,
            limits=self._limits,
            begun=self._begun,
        )
        shared.given_up = self._given_up
        jump, login = self._cluster.gateway, self._cluster.allocation.login
        self._gateway = shared.gateway(jump, None, login) if jump else None
        self._hosts = hosts
        self._connections = [self._connection(host, shared) for host in hosts]
        self._shared = shared

    def ways(self) -> list[str]:
        """Return how each host that ``prepare`` got is reached, as text; "" by a ProxyCommand."""
        return [connection.way for connection in self._connections]

    def open(self, hosts: Sequence[Host], argv: Sequence[str], without: Container[int] = ()) -> Iterator[Opened]:
        """Open channels as the interface requires, except to the nodes in ``without``, which may be reopened later."""
        command = remote_line(argv)
        rest = [node for node in range(len(hosts)) if node not in without]
        try:
            self.prepare(hosts)
        except Exception as error:  # each host gets the reason
            for node in rest:
                failure = HostUnreachable(f"ssh_config cannot be read: {error}", hint="`ssh -G HOST` reads it as well")
                yield Opened(node=node, result=failure)
            return
        group = ConnectionGroup.from_connections([self._connections[node] for node in rest])

        def open_one(index: int) -> Opened:
            node = rest[index]
            try:
                channel = self._open(hosts[node], self._connections[node], command, self._tries)
                return Opened(node=node, result=channel, address=channel.address)
            except HostUnreachable as error:
                return Opened(node=node, result=error)

        yield from group.open_each(PARALLEL_CONNECTIONS, open_one, self._given_up.is_set)

    def reopen(self, node: int, argv: Sequence[str]) -> SshChannel:
        assert self._shared is not None  # as it was opened before
        self._connections[node].close()
        self._connections[node] = self._connection(self._hosts[node], self._shared)
        if self._given_up.is_set():
            raise HostUnreachable("given up")
        try:
            return self._open(self._hosts[node], self._connections[node], remote_line(argv), tries=1)
        except GivenUp as error:
            raise HostUnreachable("given up") from error

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        return no_agent(end)

    def why(self, node: int) -> str:
        return ""

    def user(self, node: int) -> str:
        return str(self._connections[node].user)

    def close(self) -> None:
        self._given_up.set()
        self.drop()

    def _connection(self, host: Host, shared: Shared) -> SshConnection:
        return SshConnection(host, shared=shared, gateway=host.proxy_command or self._gateway)

    def use(self, node: int, begin: Callable[[SshConnection], T]) -> T:
        """Connect to a host, if that was not done, and return what a function makes of the connection.

        begin: may be called several times. Raises HostUnreachable.
        """
        try:
            return self._use(self._hosts[node], self._connections[node], begin, self._tries)
        except GivenUp as error:
            raise HostUnreachable("given up") from error

    def drop(self) -> None:
        """End all connections, which may be dead without a sign of it. ``use`` opens new ones."""
        for connection in [*self._connections, *(self._shared.gateways.values() if self._shared else ())]:
            connection.close()

    def _open(self, host: Host, connection: SshConnection, command: str, tries: int) -> SshChannel:
        """Connect, as often as it takes, and start the command. Raises HostUnreachable and GivenUp."""

        def begin(connection: SshConnection) -> SshChannel:
            channel = connection.transport.open_session(timeout=self._limits.connect_s)
            start_within(channel, command, self._limits.connect_s)
            return SshChannel(connection, channel)

        return self._use(host, connection, begin, tries)

    def _use(self, host: Host, connection: SshConnection, begin: Callable[[SshConnection], T], tries: int) -> T:
        """Connect, as often as it takes, and begin something there. Raises HostUnreachable and GivenUp."""
        if not host.address:  # a run has had it once
            hint = "the host of the run must stand there under the name that it had"
            raise HostUnreachable(f"cluster {self._cluster.name!r} has no such host", hint=hint)
        began = time.monotonic()
        problem = ""
        for attempt in range(tries):
            if attempt:
                from random import random  # few tries fail

                pause = PAUSES[min(attempt, len(PAUSES)) - 1]
                if self._given_up.wait(pause * (1 + random())):
                    raise GivenUp
            try:
                connection.open()
                begun = begin(connection)
                if self._given_up.is_set():  # ``close`` may have come before it
                    connection.close()
                    raise GivenUp
                return begun
            except HostUnreachable as error:
                text = f"cannot connect to {target(connection)}: {error}"
                raise HostUnreachable(
                    text, hint=error.hint or advice(self._cluster, host, error.step), step=error.step
                ) from error
            except socket.gaierror as error:
                text = f"cannot connect to {target(connection)}: {error.strerror}"
                raise HostUnreachable(
                    text, hint="check the name in cluster.yaml, and in ssh_config, which may have it as well"
                ) from error
            except (OSError, EOFError, paramiko.SSHException) as error:
                if self._given_up.is_set():
                    connection.close()
                    raise GivenUp from error
                problem = reason(error)
                connection.close()
        tried = f"{tries} tries in {time.monotonic() - began:.0f} s"
        text = f"cannot connect to {target(connection)}: {problem} ({tried})"
        raise HostUnreachable(text, hint=advice(self._cluster, host, "reach"))


def remote_line(argv: Sequence[str]) -> str:
    """Return a line that every login shell reads alike: sh, bash, zsh, csh, tcsh and fish.

    >>> remote_line(["sh", "-c", "echo $1", "sh", "a b"])
    "exec sh -c 'echo $1' sh 'a b'"
    """
    if any(character in word for word in argv for character in "'!\\\n"):
        raise ValueError(f"not all shells read this alike: {argv!r}")
    return "exec " + shlex.join(argv)
