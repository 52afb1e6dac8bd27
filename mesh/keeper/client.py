"""The commands' end of the keeper: take agents that wait, have others wait, ask about keepers and stop them.

While all agents of a command waited, neither Fabric nor paramiko is imported.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mesh.backends import ssh
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import HostUnreachable
from mesh.core.events import Event
from mesh.core.interfaces import CLIENT_RETURN_S, Channel, NoAgent, Opened
from mesh.keeper.channel import KeptChannel
from mesh.keeper.keys import LOGIN_NAMES, keys_of
from mesh.keeper.packets import (
    ANSWER_TIMEOUT_S,
    HOSTS_PER_REQUEST,
    PACKET_BYTES,
    REQUEST_BYTES,
    About,
    AskAbout,
    Fill,
    Stop,
    Take,
    ask,
)
from mesh.keeper.places import LOCK_SUFFIX, files, has_lock, lock_file, socket_of
from mesh.remote.blob import opening

if TYPE_CHECKING:
    from mesh.backends.ssh.backend import SshBackend
    from mesh.backends.ssh.passwords import Passwords

STOP_POLL_S = 0.02
# All that a login by key may need. A process that stays gets no password in a variable.
VARIABLES = frozenset(["HOME", "PATH", "LANG", "XDG_RUNTIME_DIR", *ssh.VARIABLES, *LOGIN_NAMES])
# How the names of variables begin that Python and the loader read when a process starts.
START_PREFIXES = ("GLIBC_", "LD_", "MALLOC_", "OPENSSL_", "PYTHON")
_asking: list[socket.socket] = []  # they end with this process, and only then the keeper logs in again


def can_keep(cluster: Cluster) -> bool:
    """True if agents may wait on a cluster's hosts: it has ``keep:``, and its logins need no password of ours."""
    return bool(cluster.keep) and not (cluster.password_env or cluster.ask_password)


class KeptBackend:
    """A backend for a cluster whose agents may wait: it takes those, and opens connections to the other hosts."""

    client_return = CLIENT_RETURN_S

    def __init__(self, cluster: Cluster, passwords: Passwords, reach: float, environ: Mapping[str, str]) -> None:
        """reach: as SshBackend has it"""
        self._cluster, self._passwords, self._reach, self._environ = cluster, passwords, reach, environ
        self._path = socket_of(environ)
        self._keys: dict[int, str] = {}  # by node, of hosts where an agent may wait
        self._kept: dict[int, KeptChannel] = {}  # by node
        self._asked: socket.socket | None = None
        self._is_closed = False
        self._making = threading.RLock()
        self._ssh: SshBackend | None = None

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        with contextlib.suppress(Exception):  # ssh_config is at fault, and the SSH backend gives each host the reason
            self._keys = keys_of(self._cluster, argv, self._environ, self._ways)
        for node, kept in self._take():
            self._kept[node] = kept
            if self._is_closed:  # ``close`` may have come before this channel
                kept.close()
                return
            yield Opened(node=node, result=kept, address=kept.address)
        if len(self._kept) < len(hosts) and not self._is_closed:
            yield from self._direct().open(hosts, argv, without=self._kept)

    def listen(self, post: Callable[[Event], None]) -> None:
        pass  # there are no notices

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        return self._direct().explain(node, end)

    def why(self, node: int) -> str:
        return ""

    def reopen(self, node: int, argv: Sequence[str]) -> Channel:
        if self._is_closed:
            raise HostUnreachable("given up")
        with self._making:
            ssh = self._prepared()
        return ssh.reopen(node, argv)

    def user(self, node: int) -> str:
        with self._making:
            return self._prepared().user(node)

    def close(self) -> None:
        self._is_closed = True
        if self._asked is not None:
            with contextlib.suppress(OSError):
                self._asked.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for an answer
        for kept in list(self._kept.values()):
            kept.close()
        with self._making:
            if self._ssh:
                self._ssh.close()

    def fill(self) -> None:
        """Have an agent wait on every host again, and start a keeper if there is none. Return at once.

        Where no keeper can be had, no agent waits.
        """
        if not self._environ.get("XDG_RUNTIME_DIR"):
            with contextlib.suppress(OSError):
                os.mkdir(f"/tmp/mesh-{os.geteuid()}", 0o700)
        path = socket_of(self._environ)
        if not path or not self._keys:
            return
        requests = [self._request(nodes) for nodes in self._portions()]
        while _asking:
            _asking.pop().close()
        try:
            _asking.extend(ask(path, request) for request in requests)
        except OSError:
            with contextlib.suppress(OSError):  # no process can be had
                _start_keeper(path, requests, self._environ)

    def _request(self, nodes: Sequence[int]) -> Fill:
        given = self._cluster
        cluster = Cluster(
            name=given.name,
            hosts=tuple(msgspec.structs.replace(given.hosts[node], hints={}) for node in nodes),
            gateway=given.gateway,
            python=given.python,
            host_keys=given.host_keys,
            keep=given.keep,
        )
        return Fill(keys=tuple(self._keys[node] for node in nodes), cluster=cluster)

    def _portions(self) -> Iterator[list[int]]:
        nodes = list(self._keys)
        for place in range(0, len(nodes), HOSTS_PER_REQUEST):
            yield nodes[place : place + HOSTS_PER_REQUEST]

    def _take(self) -> Iterator[tuple[int, KeptChannel]]:
        """Yield channels to agents that wait, by node, until the keeper is gone or this is closed."""
        with contextlib.suppress(OSError):
            for nodes in self._portions():
                if self._is_closed:
                    return
                with ask(self._path, Take(keys=tuple(self._keys[node] for node in nodes))) as self._asked:
                    if self._is_closed:  # before there was a socket to shut down
                        return
                    for node in nodes:
                        address, ways, _, _ = socket.recv_fds(self._asked, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                        for way in ways:
                            yield node, KeptChannel(socket.socket(fileno=way), address.decode(), opening())
                        if not address:
                            return

    def _ways(self) -> list[str]:
        with self._making:
            return self._prepared().ways()

    def _prepared(self) -> SshBackend:
        """Return the SSH backend with a closed connection to each host. Raises as SshBackend.prepare."""
        ssh = self._direct()
        ssh.prepare(self._cluster.hosts)
        return ssh

    def _direct(self) -> SshBackend:
        from mesh.backends.ssh.backend import SshBackend  # it brings Fabric and paramiko

        with self._making:
            if self._ssh is None:
                cluster, passwords, reach = self._cluster, self._passwords, self._reach
                self._ssh = SshBackend(cluster, environ=self._environ, passwords=passwords, reach=reach)
                if self._is_closed:
                    self._ssh.close()
            return self._ssh


def _start_keeper(path: str, requests: Sequence[Fill], environ: Mapping[str, str]) -> None:
    """Start the keeper without a terminal, and in a directory that nobody wants to unmount. Raises OSError."""
    given = {name: environ[name] for name in environ if name in VARIABLES or name.startswith(START_PREFIXES)}
    here = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [environ.get("PYTHONPATH")])])
    package = __name__.rpartition(".")[0]
    with lock_file(path) as lock:
        # Its own from the beginning, so that whoever stops keepers finds one that does not listen yet.
        locks = [lock.fileno()] if has_lock(lock) else []
        keeper = subprocess.Popen(
            [sys.executable, "-m", package, path, *map(str, locks)],
            cwd="/",
            env={**given, "PYTHONPATH": here},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=locks,
        )
    assert keeper.stdin is not None
    with keeper.stdin:
        keeper.stdin.write(msgspec.json.encode(requests))
    threading.Thread(target=keeper.wait, name="mesh-keeper", daemon=True).start()  # a program may outlive the keeper


def about_keepers() -> list[About]:
    """Ask each keeper of this home, also those of other versions of mesh, for what it holds."""
    found = []
    for path in files(os.environ):
        if path.endswith(LOCK_SUFFIX):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError), ask(path, AskAbout()) as way:
            way.settimeout(ANSWER_TIMEOUT_S)
            found.append(msgspec.json.decode(way.recv(REQUEST_BYTES), type=About))
    return found


def stop_keepers() -> int:
    """Stop all keepers of this home, also those that do not listen yet, and the agents that wait; return how many.

    A keeper with an agent at work for a command waits for the end of that command.
    """
    asked: list[str] = []
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    for path in {path.removesuffix(LOCK_SUFFIX) for path in files(os.environ)}:
        while path not in asked:
            try:
                ask(path, Stop()).close()
                asked.append(path)
            except OSError:
                if not _starts(path) or time.monotonic() > deadline:
                    break
                time.sleep(STOP_POLL_S)
    while any(map(os.path.exists, asked)) and time.monotonic() < deadline:
        time.sleep(STOP_POLL_S)
    return len(asked)


def _starts(path: str) -> bool:
    """True if a keeper is there that will listen at a path."""
    with contextlib.suppress(FileNotFoundError), open(path + LOCK_SUFFIX, "rb") as lock:
        return not has_lock(lock)
    return False
