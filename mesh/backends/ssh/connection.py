"""SSH connections: Fabric's Connection with a socket, a login and a host key check of ours."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import fabric
import paramiko
from msgspec import Struct

from mesh.backends.ssh.ahead import Begun
from mesh.backends.ssh.config import SshConfig
from mesh.backends.ssh.hostkeys import Checker
from mesh.backends.ssh.login import Login, Secrets, expanded
from mesh.backends.ssh.proxy import ProxySocket, proxy_command
from mesh.backends.ssh.sockets import GIVEN_UP_POLL_S, GivenUp, connect
from mesh.backends.ssh.transport import QuietTransport, prefer
from mesh.core.cluster import Host
from mesh.core.errors import HostUnreachable

NOWHERE = "host.invalid"  # RFC 6761: there is none of that name
MAX_LOGINS = 8  # at a time at one sshd, which from 10 on turns some away (sshd_config(5), MaxStartups 10:30:100)


class Limits(Struct, frozen=True, kw_only=True):
    """Times for one try to connect, in seconds."""

    connect_s: float  # for TCP, banner, key exchange and login together
    tcp_s: float  # for TCP alone; a host that is silent for so long is not tried again if this is less than connect_s


class SshConnection(fabric.Connection):  # type: ignore[misc]
    """Opens at most once, from any thread; checks the host key; raises HostUnreachable with what was wrong."""

    def __init__(
        self,
        host: Host,
        *,
        shared: Shared,
        gateway: Any = None,
    ):
        self._shared = shared
        self._key_alias = host.key_alias
        self._files = (Path(host.identity_file),) if host.identity_file else ()
        self._proxy: ProxySocket | None = None
        self._opening = threading.Lock()
        address, port, user = host.address or NOWHERE, host.port or None, host.user or None
        super().__init__(address, port=port, user=user, gateway=gateway, config=shared.config)
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
        deadline = time.monotonic() + self._shared.limits.connect_s
        try:
            sock = self._socket(min(deadline, time.monotonic() + self._shared.limits.tcp_s))
        except TimeoutError as error:
            if self._shared.limits.tcp_s < self._shared.limits.connect_s:
                raise HostUnreachable(f"no answer within {self._shared.limits.tcp_s:g} s") from error
            raise
        kinds = self.checker.known_kinds()

        def transport(sock: Any, **options: Any) -> paramiko.Transport:
            made = QuietTransport(sock, **options)
            prefer(made, kinds)
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
                auth_timeout=self._shared.limits.connect_s,
                channel_timeout=self._shared.limits.connect_s,
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
            self._proxy = ProxySocket(proxy_command(self.gateway, self.host, self.port, self.user))
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
        """The check of this host's key."""
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
    """State that the connections of one command share: settings, secrets, jump hosts, and the order to give up."""

    def __init__(
        self,
        *,
        config: SshConfig,
        secrets: Secrets,
        environ: Any,
        strict: bool,
        limits: Limits,
        begun: Begun,
    ) -> None:
        self.config, self.secrets, self.environ = config, secrets, environ
        self.strict, self.limits, self.begun = strict, limits, begun
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
            turns = self._turns.setdefault(place, threading.Semaphore(MAX_LOGINS))
        while not turns.acquire(timeout=GIVEN_UP_POLL_S):
            if self.is_given_up():
                raise GivenUp
        try:
            yield
        finally:
            turns.release()

    def gateway(self, text: str, before: SshConnection | None, with_key: Host | None = None) -> SshConnection:
        """The connection to a jump host, [user@]host[:port], reached through another one or directly.

        with_key: the same host with its key file
        """
        with self._lock:
            key = text, before
            if key not in self.gateways:
                named = fabric.connection.derive_shorthand(text)
                host = Host(name=text, address=named["host"], port=named["port"] or 0, user=named["user"] or "")
                self.gateways[key] = SshConnection(with_key or host, shared=self, gateway=before)
            return self.gateways[key]


class _Policy(paramiko.MissingHostKeyPolicy):
    """Checks every host key: the client holds none itself, so paramiko passes each one to us."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        self._connection.checker.check(key)


def _files(paths: str) -> tuple[Path, ...]:
    return tuple(expanded(path) for path in shlex.split(paths) if path.lower() != "none")
