"""One SSH connection: a Fabric Connection with a socket, a login and a host key check of ours."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import fabric
import paramiko

from mesh.backends.ssh.ahead import Begun
from mesh.backends.ssh.config import SshConfig
from mesh.backends.ssh.hostkeys import Checker
from mesh.backends.ssh.login import Login, Secrets, expanded
from mesh.core.errors import HostUnreachable

LOOK = 0.1  # seconds between two looks whether we are to give up
AHEAD = 1 << 16  # bytes that are read at once
LOGINS = 8  # at a time at one sshd, which from 10 on turns some away (sshd_config(5), MaxStartups 10:30:100)
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # half the CPU time of ctr with a separate MAC
# sshd has OpenSSL compute on this curve; on Curve25519 it does that itself, and takes 4 ms more for it.
FAST_KEX = "ecdh-sha2-nistp256"
# Not in Python's socket module on every system.
TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", 0)


class QuickSocket(socket.socket):
    """A TCP socket that neither gathers small packets nor delays its acknowledgements.

    Nagle's algorithm and the delayed ACK together cost 40 ms in every round trip of a login. The kernel forgets
    TCP_QUICKACK, so that it is set again after each receive. Closing it wakes who waits for it to be readable.

    It reads ahead: paramiko asks for the first 16 bytes of each packet and then for the rest, and each call lets go of
    the interpreter, which with many hosts takes longer to get back than all that is done with the packet.
    """

    _ahead = memoryview(b"")  # what came and was not asked for yet

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self._ahead:
            self._ahead = memoryview(super().recv(max(size, AHEAD), flags))
            if TCP_QUICKACK:
                with contextlib.suppress(OSError):
                    self.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return bytes(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        super().close()


class QuietTransport(paramiko.Transport):
    """Its thread looks once a second whether it is to end, not ten times: closing the socket wakes it.

    Nor is there another one that waits for the end of the key exchange's time.
    """

    _active_check_timeout = 1.0
    _send_user_message: Callable[[paramiko.Message], None]

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, **options)
        self._exchange_by = math.inf  # monotonic
        self._answered = threading.Event()
        packetizer: Any = self.packetizer
        packetizer.start_handshake = self._start_exchange
        packetizer.handshake_timed_out = lambda: time.monotonic() > self._exchange_by
        packetizer.complete_handshake = self._complete_exchange

    def _start_exchange(self, seconds: float) -> None:
        self._exchange_by = time.monotonic() + seconds

    def _complete_exchange(self) -> None:
        self._exchange_by = math.inf

    def ask(self) -> None:
        """Ask the other end for a sign of life, as OpenSSH does, and do not wait for it."""
        self._answered = self.completion_event = threading.Event()  # paramiko sets it, also at the connection's end
        request = paramiko.Message()
        request.add_byte(paramiko.common.cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        if self.clear_to_send.is_set():  # else this would wait for the end of a key exchange
            with contextlib.suppress(Exception):  # whatever paramiko says of a connection that ends just now
                self._send_user_message(request)

    def answers(self, seconds: float) -> bool:
        """Whether the other end has answered the last question within this time from now."""
        return bool(self.is_active() and self._answered.wait(seconds) and self.is_active())


class GivenUp(Exception):
    """The backend is being closed while a connection is opened."""


class SshConnection(fabric.Connection):  # type: ignore[misc]
    """Opens at most once, from any thread; checks the host key; raises HostUnreachable with what was wrong."""

    def __init__(
        self,
        host: str,
        *,
        port: int = 0,
        user: str = "",
        shared: Shared,
        files: tuple[Path, ...] = (),
        gateway: Any = None,
        key_alias: str = "",
    ):
        """port, user: 0 and "" leave them to ssh_config; files: private keys that the cluster names.

        key_alias: the name of its host key in known_hosts; "": as ssh_config says
        """
        self._shared = shared
        self._key_alias = key_alias
        self._files = files
        self._proxy: ProxySocket | None = None
        self._opening = threading.Lock()
        super().__init__(host, port=port or None, user=user or None, gateway=gateway, config=shared.config)
        self.client.set_missing_host_key_policy(_Policy(self))

    # Invoke's looks through all that dir() finds first, as a setting may be meant: half of what making one takes.
    __setattr__ = object.__setattr__

    def get_gateway(self) -> Any:
        """The jump hosts of ssh_config as connections of our own kind, each opened once for all hosts."""
        if "proxyjump" not in self.ssh_config:
            command = self.ssh_config.get("proxycommand", "none")
            return None if command.lower() == "none" else command
        if self.ssh_config["proxyjump"].lower() == "none":
            return None
        gateway = None
        for hop in self.ssh_config["proxyjump"].split(","):
            if self.derive_shorthand(hop.strip())["host"] in (self.original_host, self.host):
                return None  # a pattern that catches its own jump host
            gateway = self._shared.gateway(hop.strip(), gateway)
        return gateway

    @property
    def way(self) -> str:
        """How its host is reached and logged in to, as text; "" through a ProxyCommand, which nobody else may use."""
        if isinstance(self.gateway, str):
            return ""
        before = self.gateway.way if self.gateway else "directly"
        files, strict = [str(path) for path in self._files], self._shared.strict
        said = [before, self.host, self.port, self.user, self._key_alias, files, strict, dict(self.ssh_config)]
        return before and json.dumps(said, sort_keys=True, default=str)

    def open(self) -> None:
        """Connect and log in, if that has not been done. Raises GivenUp, HostUnreachable, OSError and SSHException."""
        with self._opening:
            if not self.is_connected:
                # Hosts with one ProxyCommand are, as a rule, behind one gateway, and each logs in there.
                with self._shared.turn(self.gateway if isinstance(self.gateway, str) else (self.host, self.port)):
                    self._open()

    def close(self) -> None:
        """End it; what it went through may have ended already."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            super().close()
        if self._proxy:
            self._proxy.drop()

    def _open(self) -> None:
        deadline = time.monotonic() + self._shared.connect_timeout
        try:
            sock = self._socket(min(deadline, time.monotonic() + self._shared.reach))
        except TimeoutError as error:
            if self._shared.reach < self._shared.connect_timeout:
                raise HostUnreachable(f"no answer within {self._shared.reach:g} s") from error
            raise
        kinds = self.checker.known_kinds()

        def transport(sock: Any, **options: Any) -> paramiko.Transport:
            made = QuietTransport(sock, **options)
            _prefer(made, kinds)
            return made

        left = max(0.1, deadline - time.monotonic())
        named = [*self._files, *(expanded(path) for path in self.ssh_config.get("identityfile", []))]
        only = self.ssh_config.get("identitiesonly", "no").lower() == "yes"
        login = Login(
            self.user,
            self._shared.secrets,
            named,
            # paramiko keeps one value of it, as text.
            certificates=[expanded(path) for path in [self.ssh_config.get("certificatefile", "")] if path],
            only_files=only,
            environ=self._shared.environ,
        )
        try:
            self.client.connect(
                hostname=self.host,
                port=self.port,
                username=self.user,
                sock=sock,
                timeout=left,
                banner_timeout=left,
                auth_timeout=self._shared.connect_timeout,
                channel_timeout=self._shared.connect_timeout,
                transport_factory=transport,
                auth_strategy=login,
            )
        except BaseException as error:
            self.client.close()
            sock.close()
            why = self._proxy.complaint() if self._proxy and not isinstance(error, HostUnreachable) else ""
            if why:
                raise paramiko.SSHException(why) from error
            raise
        self.transport = self.client.get_transport()

    def _socket(self, deadline: float) -> Any:
        """A way to the host: our own socket, a proxy command, or a channel through the gateway."""
        if isinstance(self.gateway, str):
            if self._proxy:
                self._proxy.drop()
            self._proxy = ProxySocket(_proxy_command(self.gateway, self.host, self.port, self.user))
            return self._proxy
        if self.gateway:
            try:
                self.gateway.open()
                return self.gateway.transport.open_channel(
                    "direct-tcpip", (self.host, self.port), ("", 0), timeout=max(0.1, deadline - time.monotonic())
                )
            except HostUnreachable as error:
                raise HostUnreachable(f"its gateway {self.gateway.host}: {error}", hint=error.hint) from error
            except paramiko.ChannelException as error:
                raise HostUnreachable(f"the gateway {self.gateway.host} cannot reach it: {error.args[1]}") from error
        return connect(self.host, self.port, deadline, self._shared.is_given_up, self._shared.begun)

    @cached_property
    def checker(self) -> Checker:
        """Of its host's key."""
        option = self.ssh_config
        users = option.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
        system = option.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
        alias = self._key_alias or option.get("hostkeyalias", "")
        return Checker(
            host=alias or self.host,
            port=22 if alias else self.port,
            files=_files(users),
            more_files=_files(system),
            strict=self._shared.strict or option.get("stricthostkeychecking", "").lower() == "yes",
            hashed=option.get("hashknownhosts", "").lower() == "yes",
        )


class Shared:
    """What the connections of one command share: settings, secrets, jump hosts, and whether to give up."""

    def __init__(
        self,
        *,
        config: SshConfig,
        secrets: Secrets,
        environ: Any,
        strict: bool,
        connect_timeout: float,
        reach: float,
        begun: Begun,
    ) -> None:
        self.config, self.secrets, self.environ = config, secrets, environ
        self.strict, self.connect_timeout, self.reach, self.begun = strict, connect_timeout, reach, begun
        self.given_up = threading.Event()
        self.gateways: dict[tuple[str, object], SshConnection] = {}
        self._lock = threading.RLock()
        self._turns: dict[object, threading.Semaphore] = {}

    def is_given_up(self) -> bool:
        return self.given_up.is_set()

    @contextlib.contextmanager
    def turn(self, place: object) -> Iterator[None]:
        """Within: one of the few who may log in at a place just now. Raises GivenUp."""
        with self._lock:
            turns = self._turns.setdefault(place, threading.Semaphore(LOGINS))
        while not turns.acquire(timeout=LOOK):
            if self.is_given_up():
                raise GivenUp
        try:
            yield
        finally:
            turns.release()

    def gateway(self, text: str, before: SshConnection | None) -> SshConnection:
        """The connection to a jump host, [user@]host[:port], reached through another one or directly."""
        with self._lock:
            key = text, before
            if key not in self.gateways:
                named = fabric.connection.derive_shorthand(text)
                self.gateways[key] = SshConnection(
                    named["host"], port=named["port"] or 0, user=named["user"] or "", shared=self, gateway=before
                )
            return self.gateways[key]


class _Policy(paramiko.MissingHostKeyPolicy):
    """The client knows no keys, so that paramiko asks us about every one."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        self._connection.checker.check(key)


def _prefer(transport: paramiko.Transport, kinds: list[str]) -> None:
    """Put a fast key exchange, fast ciphers and the kinds of key that we know of the host first in the offer."""
    options = transport.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda name: name not in FAST_CIPHERS)
    options.kex = sorted(options.kex, key=lambda name: name != FAST_KEX)
    # One RSA key goes by three names, of which the signature's hash is the difference.
    known = {name for kind in kinds for name in (("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,))}
    options.key_types = sorted(options.key_types, key=lambda name: name not in known)


def _files(paths: str) -> tuple[Path, ...]:
    return tuple(expanded(path) for path in shlex.split(paths) if path.lower() != "none")


def connect(host: str, port: int, deadline: float, is_given_up: Callable[[], bool], begun: Begun) -> QuickSocket:
    """Connect to the first address of a name that answers. Raises OSError or GivenUp.

    begun: connections that may be on their way already, each to be used once
    """
    problem: OSError = OSError(errno.EHOSTUNREACH, "no address")
    # For text Python loads what international names need, 10 ms for all who wait for the first connection.
    name = host.encode() if host.isascii() else host
    for family, kind, number, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        ahead = begun.pop((host, port), None)
        sock = QuickSocket(family, kind, number, ahead.detach() if ahead else None)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            _finish_connecting(sock, address, deadline, is_given_up)
            sock.setblocking(True)
            return sock
        except OSError as error:
            sock.close()
            problem = error
        except GivenUp:
            sock.close()
            raise
    raise problem


def _finish_connecting(sock: socket.socket, address: Any, deadline: float, is_given_up: Callable[[], bool]) -> None:
    code = sock.connect_ex(address)
    if code == errno.EISCONN:  # it was begun before
        return
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while code in (errno.EINPROGRESS, errno.EALREADY):
        if is_given_up():
            raise GivenUp
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        if poll.poll(LOOK * 1000):
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


class ProxySocket:
    """A ProxyCommand's pipes as a socket. It has a session of its own: a Ctrl-C of the terminal is not for it."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        import tempfile  # few have a ProxyCommand

        # A file, as nobody reads a pipe for it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            # By the shell, as ssh_config has it; exec, so that there is one process to end.
            argv = ["/bin/sh", "-c", f"exec {command}"]
            self._process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._stderr, start_new_session=True
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def complaint(self) -> str:
        """Why it ended, with the last line that it said; "" if it has not."""
        try:
            status = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return ""
        if status < 0:  # by us
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read(1 << 16).decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()][-1:]
        return f"its ProxyCommand ended (exit {status})" + "".join(f": {line[:300]}" for line in said)

    def drop(self) -> None:
        """Close it, and forget what it said."""
        self.close()
        self._stderr.close()

    def close(self) -> None:
        """End it; paramiko's thread may be faster than we, who want to know what it said."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _proxy_command(command: str, host: str, port: int, user: str) -> str:
    for token, value in (("%h", host), ("%p", str(port)), ("%r", user), ("%%", "%")):
        command = command.replace(token, value)
    return command
