"""The login node of a Slurm cluster, where its commands are: this machine, or one that is reached over SSH."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.cluster import Cluster
from mesh.core.errors import HostUnreachable, MeshError
from mesh.core.text import last_line

if TYPE_CHECKING:
    import paramiko

    from mesh.backends.ssh.backend import SshBackend
    from mesh.backends.ssh.connection import SshConnection

COMMAND_TIMEOUT_S = 60.0  # for one command of Slurm; they wait for the controller themselves
DIAL_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0  # for a login shell to come to its command
READ_BYTES = 1 << 16
NOT_FOUND_STATUS = 127
BEGIN = b"mesh begins here\n"
# Prints BEGIN behind all that the login shell may have printed. Reads one line, which is the command, and leaves the
# rest of the standard input to that command.
SHELL = ("sh", "-c", 'echo mesh begins here; echo mesh begins here >&2; IFS= read -r line; eval "exec $line"')
NOISE_BYTES = 1 << 20
PROHIBITED_CODE = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254)


class Done(Struct, frozen=True, kw_only=True):
    """The end of a command on the login node."""

    status: int
    out: str
    error: str


class NoForwarding(MeshError):
    """The login node does not forward connections."""


class Login(Protocol):
    """A login node. Methods may be called from any thread."""

    name: str  # for messages
    is_here: bool

    def run(self, argv: Sequence[str], data: bytes = b"", timeout: float = COMMAND_TIMEOUT_S) -> Done:
        """Run a command there and return its end. data: for its standard input. Raises MeshError."""

    def dial(self, host: str, port: int) -> socket.socket | paramiko.Channel:
        """Return a connection from there. Raises OSError, NoForwarding and MeshError."""

    def terminal(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command there on this terminal."""

    def drop(self) -> None:
        """End a connection to it that may be dead without a sign of it. The next call makes another one."""

    def close(self) -> None:
        """End the connection to it."""


class LocalLogin:
    """This machine as the login node."""

    name, is_here = "this machine", True

    def run(self, argv: Sequence[str], data: bytes = b"", timeout: float = COMMAND_TIMEOUT_S) -> Done:
        try:
            done = subprocess.run(argv, input=data, capture_output=True, timeout=timeout, check=False)
        except FileNotFoundError:
            return Done(status=NOT_FOUND_STATUS, out="", error=f"{argv[0]}: not found")
        except subprocess.TimeoutExpired as error:
            raise MeshError(f"{argv[0]}: no answer within {timeout:g} s", hint="scontrol ping") from error
        except OSError as error:
            raise MeshError(f"cannot start {argv[0]}: {error.strerror}") from error
        return Done(status=done.returncode, out=_text(done.stdout), error=_text(done.stderr))

    def dial(self, host: str, port: int) -> socket.socket:
        return socket.create_connection((host, port), DIAL_TIMEOUT_S)

    def terminal(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def drop(self) -> None:
        pass

    def close(self) -> None:
        pass


class SshLogin:
    """A login node that is reached over SSH, by one connection."""

    is_here = False

    def __init__(self, cluster: Cluster, environ: Mapping[str, str]) -> None:
        """Open no connection yet. cluster: of the login node alone"""
        self._cluster, self._environ = cluster, environ
        self.name = cluster.hosts[0].name
        self._backend: SshBackend | None = None
        self._lock = threading.Lock()

    def run(self, argv: Sequence[str], data: bytes = b"", timeout: float = COMMAND_TIMEOUT_S) -> Done:
        channel = self._session()
        try:
            return _finished(channel, argv, data, timeout)
        except TimeoutError as error:
            raise MeshError(f"{argv[0]}: no answer within {timeout:g} s", hint="scontrol ping") from error
        except OSError as error:
            raise MeshError(f"{self.name}: {argv[0]}: the connection has ended ({error})") from error
        finally:
            channel.close()

    def dial(self, host: str, port: int) -> paramiko.Channel:
        import paramiko

        def begin(connection: SshConnection) -> paramiko.Channel | paramiko.ChannelException:
            try:
                place = ("direct-tcpip", (host, port), ("", 0))
                channel: paramiko.Channel = connection.transport.open_channel(*place, timeout=DIAL_TIMEOUT_S)
                return channel
            except paramiko.ChannelException as error:
                return error

        found = self._connected().use(0, begin)
        if isinstance(found, paramiko.ChannelException):
            if found.code == PROHIBITED_CODE:
                raise NoForwarding(f"{self.name}: its sshd forwards no connection")
            raise ConnectionRefusedError(found.args[1])
        return found

    def terminal(self, argv: Sequence[str]) -> list[str]:
        from mesh.backends.ssh.command_line import shell_argv

        words = shell_argv(self._cluster, self._cluster.hosts[0], ())
        return [words[0], "-t", *words[1:], shlex.join(argv)]

    def start(self, argv: Sequence[str]) -> paramiko.Channel:
        """Start a command there, and return the channel of its standard streams. Raises OSError and MeshError."""
        channel, noise = self._session(), b""
        channel.settimeout(START_TIMEOUT_S)
        while not noise.endswith(BEGIN):  # nothing follows before the command has its line
            chunk = channel.recv(READ_BYTES)
            noise += chunk
            if not chunk or len(noise) > NOISE_BYTES:
                raise EOFError(f"the login shell of {self.name} started no command")
        channel.settimeout(None)
        channel.sendall(shlex.join(argv).encode() + b"\n")
        return channel

    def _session(self) -> paramiko.Channel:
        """Return the channel of a shell that waits for the line of its command. Raises MeshError."""
        from mesh.backends.ssh.backend import CONNECT_TIMEOUT_S, remote_line
        from mesh.backends.ssh.transport import start_within

        def begin(connection: SshConnection) -> paramiko.Channel:
            channel: paramiko.Channel = connection.transport.open_session(timeout=CONNECT_TIMEOUT_S)
            start_within(channel, remote_line(SHELL), CONNECT_TIMEOUT_S)
            return channel

        return self._connected().use(0, begin)

    def drop(self) -> None:
        with self._lock:
            backend = self._backend
        if backend is not None:
            backend.drop()

    def close(self) -> None:
        with self._lock:
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _connected(self) -> SshBackend:
        from mesh.backends.ssh.backend import SshBackend
        from mesh.backends.ssh.passwords import Passwords

        with self._lock:
            if self._backend is None:
                passwords = Passwords(self._cluster.password_env, self._environ)
                self._backend = SshBackend(self._cluster, environ=self._environ, passwords=passwords)
                try:
                    self._backend.prepare(self._cluster.hosts)
                except Exception as error:  # as SshBackend.open
                    self._backend = None
                    raise HostUnreachable(f"ssh_config cannot be read: {error}", hint="ssh -G HOST") from error
            return self._backend


def login_of(cluster: Cluster, environ: Mapping[str, str] = os.environ) -> Login:
    """Return the login node of a cluster with ``allocation``, without a connection to it yet."""
    host = cluster.allocation.login
    if host is None:
        return LocalLogin()
    alone = replace(cluster, hosts=(host,), gateway="", backend="ssh", source=None, slices=(), keep=0.0)
    return SshLogin(alone, environ)


def _finished(channel: paramiko.Channel, argv: Sequence[str], data: bytes, timeout: float) -> Done:
    """Give a command its input, and return its end. Raises OSError and MeshError."""
    deadline = time.monotonic() + timeout
    channel.settimeout(timeout)
    channel.sendall(shlex.join(argv).encode() + b"\n" + data)
    channel.shutdown_write()
    out, error = b"", b""
    while True:
        channel.settimeout(max(0.1, deadline - time.monotonic()))
        chunk = channel.recv(READ_BYTES)
        if not chunk:
            break
        out += chunk
    while chunk := channel.recv_stderr(READ_BYTES):
        error += chunk
    if not channel.status_event.wait(max(0.1, deadline - time.monotonic())):
        raise MeshError(f"{argv[0]}: no answer within {timeout:g} s", hint="scontrol ping")
    return done_of(argv[0], channel.exit_status, out, error)


def done_of(program: str, status: int, out: bytes, error: bytes) -> Done:
    """Return the end of a command without what the login shell has printed before it.

    Raises MeshError if that shell has ended before.

    >>> done_of("squeue", 0, b"Welcome!\\n" + BEGIN + b"7\\n", b"no tty\\n" + BEGIN)
    Done(status=0, out='7\\n', error='')
    """
    noise, begin, answer = out.partition(BEGIN)
    if not begin:
        last = last_line(error or noise)
        raise MeshError(f"{program}: the login shell ended before it" + f": {last}" * bool(last), hint="ssh HOST true")
    return Done(status=status, out=_text(answer), error=_text(error.rpartition(BEGIN)[2]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
