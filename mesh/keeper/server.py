"""The keeper: a process of the user's that holds connections, and on each host an agent that waits for a command.

It starts after a run or a sync on a cluster with ``keep:``, holds no password, has no run, and ends when no agent
waits any more. A command that is killed ends through it as it would by itself: the end of its socket is that of the
agent's channel.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from mesh.backends.ssh.backend import SshBackend, SshChannel
from mesh.backends.ssh.passwords import Passwords
from mesh.core.cluster import Cluster
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.keeper.keys import keys_of
from mesh.keeper.packets import (
    END,
    PACKET_BYTES,
    REQUEST_BYTES,
    About,
    AskAbout,
    Fill,
    Request,
    Stop,
    Take,
    ask,
    receive,
    send_all,
)
from mesh.remote.blob import opening, start_command

CLOCK_POLL_S = 1.0
CLIENT_EXIT_TIMEOUT_S = 1.0  # for a command to end before its hosts are logged in to again; a program may go on
UNUSED_TIMEOUT_S = 5.0  # for which the keeper stays while no agent waits
HOST_ANSWER_TIMEOUT_S = 1.0  # for a host to answer before its agent is lent


@dataclass
class Batch:
    """Hosts that were reached together, and may have a gateway in common."""

    backend: SshBackend
    users: int = 1  # hosts that are still connected, and the thread that connects them


@dataclass
class Waiting:
    """An agent that waits on one host. It serves one command, as it would without a keeper: logins are not shared."""

    key: str
    channel: SshChannel
    way: socket.socket  # to the agent: its holder is the agent's client, and its end is that of the channel
    batch: Batch
    until: float  # by ``now``
    is_lent: bool = False

    def answers(self, deadline: float) -> bool:
        """True if the agent may be lent, because its host has answered by then. deadline: monotonic"""
        return now() < self.until and self.channel.answers(max(0.0, deadline - time.monotonic()))


def now() -> float:
    """Return seconds that pass while a laptop sleeps as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Keeper:
    """The server of one socket, with a thread for each visitor."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = threading.Condition()  # guards all below
        self._waiting: dict[str, Waiting] = {}  # by key
        self._batches: list[Batch] = []
        self._wanted = 0  # requests that are being filled
        self._refused: set[str] = set()  # keys of hosts that cannot be logged in to without a question
        self._at_work = 0  # agents that are lent
        self._asked = now()  # when a command last wanted something
        self._is_over = False
        self._filling = threading.Lock()  # one request at a time, so that a host or gateway gets few logins at a time

    def serve(self) -> None:
        """Serve until nothing waits, a command stops us, or the socket is replaced; then wait for lent agents."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self._path)
        listener.listen(256)
        listener.settimeout(CLOCK_POLL_S)
        mine = _inode(self._path)
        try:
            while not self._is_over and _inode(self._path) == mine:
                try:
                    visitor, _ = listener.accept()
                    threading.Thread(target=self._answer, args=(visitor,), daemon=True).start()
                except TimeoutError:
                    pass
                except (OSError, RuntimeError):  # no descriptor or no thread can be had
                    time.sleep(CLOCK_POLL_S)
                self._look_at_the_clock()
        finally:
            if _inode(self._path) == mine:
                os.unlink(self._path)
            listener.close()
            self._let_go(list(self._waiting))
            with self._changed:
                self._changed.wait_for(lambda: not self._at_work)
            for batch in list(self._batches):
                batch.backend.close()

    def end(self) -> None:
        """Leave now, or when the lent agents are done."""
        self._is_over = True
        with contextlib.suppress(OSError):  # a visitor wakes ``serve``
            ask(self._path, AskAbout()).close()

    def fill(self, request: Fill, visitor: socket.socket | None = None) -> None:
        """Have an agent wait on each host that can be logged in to without a question. visitor: the client that asks"""
        with self._changed:
            self._wanted += 1
        try:
            if visitor:  # the end of the command must not wait for our logins
                visitor.settimeout(CLIENT_EXIT_TIMEOUT_S)
                with contextlib.suppress(OSError):
                    visitor.recv(1)
            with self._filling:
                hosts = zip(request.keys, request.cluster.hosts, strict=True)
                with self._changed:
                    new = {k: host for k, host in hosts if k not in self._waiting and k not in self._refused}
                    self._asked = now()
                if new and not self._is_over:
                    self._connect(list(new), msgspec.structs.replace(request.cluster, hosts=tuple(new.values())))
        finally:
            with self._changed:
                self._wanted -= 1
                self._asked = now()

    def _answer(self, visitor: socket.socket) -> None:
        with visitor, contextlib.suppress(OSError):
            request: Request = msgspec.json.decode(visitor.recv(REQUEST_BYTES), type=Request)
            match request:
                case AskAbout():
                    visitor.send(msgspec.json.encode(self._about()))
                case Take(keys=keys):
                    self._lend(visitor, keys)
                case Fill():
                    self.fill(request, visitor)
                case Stop():
                    self.end()

    def _about(self) -> About:
        with self._changed:
            left = max([waiting.until - now() for waiting in self._waiting.values()], default=0.0)
            return About(pid=os.getpid(), waiting=len(self._waiting), at_work=self._at_work, seconds=left)

    def _look_at_the_clock(self) -> None:
        with self._changed:
            old = [key for key, waiting in self._waiting.items() if now() > waiting.until]
            is_used = self._waiting or self._wanted or self._at_work
            self._is_over = self._is_over or (not is_used and now() - self._asked > UNUSED_TIMEOUT_S)
        if old:
            self._let_go(old)

    # ---- agents that wait

    def _connect(self, keys: Sequence[str], cluster: Cluster) -> None:
        passwords = Passwords("", {}, ask=lambda prompt: "")
        argv = start_command(cluster.python)
        batch = Batch(SshBackend(cluster, environ=os.environ, passwords=passwords, tries=1))
        with self._changed:
            self._batches.append(batch)
        try:
            refused = self._unlike(keys, batch.backend, cluster, argv)
            self._refused.update(keys[node] for node in refused)
            for opened in batch.backend.open(cluster.hosts, argv, without=refused):
                if isinstance(opened.result, HostUnreachable) and opened.result.step == "login":
                    self._refused.add(keys[opened.node])
                if isinstance(opened.result, SshChannel):
                    self._have_wait(keys[opened.node], opened.result, batch, cluster.keep)
        finally:
            self._release(batch)

    def _unlike(self, keys: Sequence[str], backend: SshBackend, cluster: Cluster, argv: Sequence[str]) -> set[int]:
        """Return the nodes that are reached otherwise from here than by their client, or by a ProxyCommand."""
        try:
            backend.prepare(cluster.hosts)
            ways = backend.ways()
            ours = keys_of(cluster, argv, os.environ, lambda: ways)
        except Exception:  # ssh_config is at fault
            return set(range(len(keys)))
        return {node for node, key in enumerate(keys) if not ways[node] or ours.get(node) != key}

    def _have_wait(self, key: str, channel: SshChannel, batch: Batch, keep: float) -> None:
        """Start an agent through a channel, and keep both for the next command."""
        try:
            channel.send(opening())
            way, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            waiting = Waiting(key, channel, way, batch, until=now() + keep)
            with self._changed:
                if self._is_over:  # all that waited was let go already
                    raise ChannelClosed("the keeper ends")
                threading.Thread(target=self._attend, args=(waiting, other), daemon=True).start()
                batch.users += 1
                self._waiting[key] = waiting
        except (ChannelClosed, OSError, RuntimeError):  # no descriptor or no thread can be had
            channel.close()

    def _let_go(self, keys: Iterable[str]) -> None:
        """End agents that wait."""
        with self._changed:
            left = [self._waiting.pop(key) for key in keys if key in self._waiting]
        for waiting in left:
            waiting.way.close()

    def _release(self, batch: Batch) -> None:
        """Count a user of a batch less, and close its backend after the last of them."""
        with self._changed:
            batch.users -= 1
            if batch.users:
                return
            self._batches.remove(batch)
        batch.backend.close()

    # ---- agents at work

    def _lend(self, visitor: socket.socket, keys: Sequence[str]) -> None:
        """Answer for each key in turn with the way to its agent, or END."""
        with self._changed:
            self._asked = now()
            found = [self._waiting.pop(key, None) for key in keys]
            lent = [waiting for waiting in found if waiting]
            self._at_work += len(lent)
            for waiting in lent:
                waiting.is_lent = True
        with contextlib.ExitStack() as ways:
            for waiting in lent:
                ways.enter_context(waiting.way)
                waiting.channel.ask()
            deadline = time.monotonic() + HOST_ANSWER_TIMEOUT_S
            for one in found:
                if one and one.answers(deadline):
                    socket.send_fds(visitor, [one.channel.address.encode()], [one.way.fileno()])
                    one.way.close()
                else:
                    visitor.send(END)

    def _attend(self, waiting: Waiting, way: socket.socket) -> None:
        """Hand on all that agent and client send, until either is gone. way: the keeper's end of the socket pair"""
        try:
            with way:
                _relay(way, waiting.channel)
        finally:
            waiting.channel.close()
            self._release(waiting.batch)
            with self._changed:
                if self._waiting.get(waiting.key) is waiting:
                    del self._waiting[waiting.key]
                if waiting.is_lent:
                    self._at_work -= 1
                    self._asked = now()
                self._changed.notify_all()


def _relay(visitor: socket.socket, channel: SshChannel) -> None:
    """Hand on bytes in both directions until one of the ends is gone."""
    back = threading.Thread(target=_bring_back, args=(visitor, channel), daemon=True)
    back.start()
    with contextlib.suppress(ChannelClosed):  # the other direction brings the reason
        while packet := receive(visitor):
            channel.send(packet[1:])
        channel.close()
    back.join()


def _bring_back(visitor: socket.socket, channel: SshChannel) -> None:
    with contextlib.suppress(OSError):
        while data := channel.receive():
            send_all(visitor, data)
        farewell = channel.farewell()
        farewell = msgspec.structs.replace(farewell, stderr=farewell.stderr[-PACKET_BYTES // 2 :])
        visitor.send(END + msgspec.json.encode(farewell))
        visitor.shutdown(socket.SHUT_RDWR)
    channel.close()  # if the visitor is gone, a thread that sends to the host stops waiting for it


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
