"""The keeper: a process of the user's that holds connections, and on each host an agent that waits for a command.

It begins after a run or a sync on a cluster with ``keep:``, holds no password, knows no run, and ends when nothing
waits any more. A command that is killed ends through it as it would by itself: its socket's end is that of the agent's
channel. Beside it stands a process that has imported mesh, and does the commands that are handed to it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import glob
import hashlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from mesh.backends import ssh
from mesh.backends.ssh import kept
from mesh.backends.ssh.kept import ANSWER, END, PACKET, TOGETHER, ask, key_of, receive, send_all
from mesh.config.private import AT_START, private_directory
from mesh.core.cluster import Cluster, Host, HostKeys
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.remote.blob import opening, start_command

if TYPE_CHECKING:
    from mesh.backends.ssh.backend import SshBackend, SshChannel

LOOK = 1.0  # seconds between two looks at the clock
LEAVING = 1.0  # seconds for a command to leave; a program may go on
UNUSED = 5.0  # seconds that it stays while nothing waits
PING = 1.0  # seconds for a host to answer before its agent is handed out
FRESH = 2.0  # seconds after a question in which an answer to it is as good as a new one
REQUEST = 1 << 17  # bytes of one
LONGEST = 256  # characters of a word that may name a cluster
LOCK = ".lock"  # beside the socket of a keeper, who has it
FORK_SERVER = "mesh.cli.forkserver"  # a program of a higher layer: it is run beside us, and not imported
# What a login by key may need, and where clusters are; a password in a variable is nothing for a process that stays.
VARIABLES = frozenset(
    ["HOME", "PATH", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "MESH_CLUSTERS", *ssh.VARIABLES]
)


@dataclass
class Batch:
    """Hosts that were reached together, and may have a gateway in common."""

    backend: SshBackend
    users: int = 1  # hosts that are still connected, and whoever is connecting them


@dataclass
class Waiting:
    """An agent that waits on one host. It serves one command, as it would without us: logins are not shared."""

    key: str
    cluster: str  # its name
    channel: SshChannel
    way: socket.socket  # to the agent: whoever has it is its client, and its end is that of the channel
    batch: Batch
    until: float  # by ``now``
    asked: float = -math.inf  # when its host was asked for a sign of life, by ``now``
    is_lent: bool = False

    def ask(self) -> None:
        """Ask, unless that was done just now."""
        if now() > self.asked + FRESH:
            self.channel.ask()
            self.asked = now()

    def answers(self, deadline: float) -> bool:
        """Whether it may be lent, as its host has answered by then. deadline: monotonic"""
        return now() < self.until and self.channel.answers(max(0.0, deadline - time.monotonic()))


def now() -> float:
    """Seconds; they pass while a laptop sleeps as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Keeper:
    """Serves one socket. Each visitor has a thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = threading.Condition()  # guards all below
        self._waiting: dict[str, Waiting] = {}  # by key_of
        self._batches: list[Batch] = []
        self._wanted = 0  # requests that are being filled
        self._refused: set[str] = set()  # keys of hosts where we cannot log in without a question
        self._at_work = 0  # agents that were handed out
        self._asked = now()  # when somebody last wanted something
        self._is_over = False
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._filling = threading.Lock()  # one after the other, so that a host or gateway gets few logins at a time

    def serve(self) -> None:
        """Until nothing waits, somebody says so, or the socket is somebody else's; agents at work are waited for."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self._path)
        listener.listen(256)
        listener.settimeout(LOOK)
        mine = _inode(self._path)
        try:
            while not self._is_over and _inode(self._path) == mine:
                try:
                    visitor, _ = listener.accept()
                    threading.Thread(target=self._answer, args=(visitor,), daemon=True).start()
                except TimeoutError:
                    pass
                except (OSError, RuntimeError):  # no descriptor or no thread is to be had
                    time.sleep(LOOK)
                self._look_at_the_clock()
        finally:
            if _inode(self._path) == mine:
                os.unlink(self._path)
            listener.close()
            if self._fork_server and self._fork_server.stdin:
                self._fork_server.stdin.close()
            self._let_go(list(self._waiting))
            with self._changed:
                self._changed.wait_for(lambda: not self._at_work)
            for batch in list(self._batches):
                batch.backend.close()

    def end(self) -> None:
        """Leave now, or when the agents at work are done."""
        self._is_over = True
        with contextlib.suppress(OSError):  # somebody who comes has ``serve`` look
            ask(self._path, {"do": "about"}).close()

    def obey(self, request: Mapping[str, Any], visitor: socket.socket | None = None) -> None:
        """Do what needs no answer. visitor: who asks for it, until it leaves"""
        if request["do"] == "fill":
            self._fill(request, visitor)
        elif request["do"] == "stop":
            self.end()

    def _answer(self, visitor: socket.socket) -> None:
        with visitor, contextlib.suppress(OSError):
            request = json.loads(visitor.recv(REQUEST))
            if request["do"] == "about":
                visitor.send(json.dumps(self._about()).encode())
            elif request["do"] == "take":
                self._lend(visitor, request["keys"])
            elif request["do"] == "expect":
                self._expect(request["words"])
            else:
                self.obey(request, visitor)

    def _about(self) -> dict[str, Any]:
        with self._changed:
            left = max([waiting.until - now() for waiting in self._waiting.values()], default=0.0)
            waits = {"waiting": len(self._waiting), "at_work": self._at_work, "seconds": left}
            return {"pid": os.getpid(), "prepared": self._prepared(), **waits}

    def _look_at_the_clock(self) -> None:
        with self._changed:
            old = [key for key, waiting in self._waiting.items() if now() > waiting.until]
            is_used = self._waiting or self._wanted or self._at_work
            self._is_over = self._is_over or (not is_used and now() - self._asked > UNUSED)
        if old:
            self._let_go(old)

    # ---- agents that wait

    def _fill(self, request: Mapping[str, Any], visitor: socket.socket | None) -> None:
        """Have an agent wait on each host; one that cannot be reached without a question has none."""
        given = request["cluster"]
        hosts = {key: Host(**host) for key, host in given["hosts"].items()}
        with self._changed:
            self._wanted += 1
        try:
            if visitor:  # its last work is not to wait for our logins
                visitor.settimeout(LEAVING)
                with contextlib.suppress(OSError):
                    visitor.recv(1)
            with self._filling:
                with self._changed:
                    new = {k: host for k, host in hosts.items() if k not in self._waiting and k not in self._refused}
                    self._asked = now()
                if new and not self._is_over:
                    rest = {**given, "hosts": tuple(new.values()), "host_keys": HostKeys(given["host_keys"])}
                    self._connect(list(new), Cluster(**rest), request["keep"])
                self._have_fork_server()
        finally:
            with self._changed:
                self._wanted -= 1
                self._asked = now()

    def _connect(self, keys: list[str], cluster: Cluster, keep: float) -> None:
        from mesh.backends.ssh.backend import SshBackend, SshChannel, remote_line
        from mesh.backends.ssh.passwords import Passwords

        nobody = Passwords("", {}, ask=lambda prompt: "")
        argv = start_command(cluster.python)
        batch = Batch(SshBackend(cluster, environ=os.environ, passwords=nobody, tries=1))
        with self._changed:
            self._batches.append(batch)
        try:
            for opened in batch.backend.open(cluster.hosts, argv):
                key, channel = keys[opened.node], opened.result
                if isinstance(channel, HostUnreachable) and channel.step == "login":
                    self._refused.add(key)
                if not isinstance(channel, SshChannel):
                    continue
                if key_of(channel.way, remote_line(argv)) != key:  # ssh_config says something else here
                    self._refused.add(key)
                    channel.close()
                    continue
                try:
                    channel.send(opening())
                    way, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    waiting = Waiting(key, cluster.name, channel, way, batch, until=now() + keep)
                    with self._changed:
                        if self._is_over:  # what waited was let go already
                            raise ChannelClosed("the keeper ends")
                        threading.Thread(target=self._attend, args=(waiting, other), daemon=True).start()
                        batch.users += 1
                        self._waiting[key] = waiting
                except (ChannelClosed, OSError, RuntimeError):  # no descriptor or no thread is to be had
                    channel.close()
        finally:
            self._release(batch)

    def _have_fork_server(self) -> None:
        """Have one beside us, which ends with us."""
        if self._is_over or (self._fork_server and self._fork_server.poll() is None):
            return
        pipe, argv = subprocess.PIPE, [sys.executable, "-m", FORK_SERVER]
        with contextlib.suppress(OSError):  # no process is to be had
            self._fork_server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def _prepared(self) -> list[int]:
        """The fork server's process, if it is ready."""
        server = self._fork_server
        if server is None or server.stdout is None or server.poll() is not None:
            return []
        return [server.pid] if select.select([server.stdout], [], [], 0)[0] else []

    def _let_go(self, keys: Iterable[str]) -> None:
        """These agents wait no longer."""
        with self._changed:
            left = [self._waiting.pop(key) for key in keys if key in self._waiting]
        for waiting in left:
            waiting.way.close()

    def _release(self, batch: Batch) -> None:
        """One user less."""
        with self._changed:
            batch.users -= 1
            if batch.users:
                return
            self._batches.remove(batch)
        batch.backend.close()

    # ---- agents at work

    def _expect(self, words: list[str]) -> None:
        """A command with these words begins: see which hosts answer before it wants their agents."""
        with self._changed:
            expected = [waiting for waiting in self._waiting.values() if waiting.cluster in words]
        for waiting in expected:
            waiting.ask()

    def _lend(self, visitor: socket.socket, keys: list[str]) -> None:
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
                waiting.ask()
            deadline = time.monotonic() + PING
            for one in found:
                if one and one.answers(deadline):
                    socket.send_fds(visitor, [one.channel.address.encode()], [one.way.fileno()])
                    one.way.close()
                else:
                    visitor.send(END)

    def _attend(self, waiting: Waiting, way: socket.socket) -> None:
        """To an agent, until it, its client or whoever had it wait is gone. way: the other end of its own"""
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
    """Both ways, until one of the ends is gone."""
    back = threading.Thread(target=_bring_back, args=(visitor, channel), daemon=True)
    back.start()
    with contextlib.suppress(ChannelClosed):  # the way back tells why
        while packet := receive(visitor):
            channel.send(packet[1:])
        channel.close()
    back.join()


def _bring_back(visitor: socket.socket, channel: SshChannel) -> None:
    with contextlib.suppress(OSError):
        while data := channel.receive():
            send_all(visitor, data)
        farewell = channel.farewell()
        stderr = base64.b64encode(farewell.stderr[-PACKET // 2 :]).decode()
        visitor.send(END + json.dumps({"status": farewell.status, "stderr": stderr}).encode())
        visitor.shutdown(socket.SHUT_RDWR)
    channel.close()  # if it was the visitor who has gone: whoever sends to the host stops waiting for it


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


# ---- for commands


def socket_of(environ: Mapping[str, str]) -> str:
    """Where the keeper of this version of mesh listens, for this home and this agent of keys; "": there can be none."""
    beginning = _beginning(environ)
    read = [environ.get(name, "") for name in ssh.VARIABLES]
    digest = hashlib.blake2b(json.dumps(read).encode() + _code(), digest_size=6).hexdigest()
    return f"{beginning}{digest}" if beginning else ""


def _beginning(environ: Mapping[str, str]) -> str:
    """Return the path that the sockets of all keepers of this home begin with; "": there can be none."""
    directory = private_directory(environ)
    home = hashlib.blake2b(os.fsencode(environ.get("HOME", "")), digest_size=4).hexdigest()
    return f"{directory}/.mesh-keeper-{home}-" if directory else ""


@cache
def _code() -> bytes:
    """What a keeper and its commands must have in common."""
    return opening() + b"".join(Path(str(file)).read_bytes() for file in (__file__, kept.__file__))


def expect(words: list[str], environ: Mapping[str, str]) -> None:
    """Tell the keeper that a command with these words begins, and may want agents. Waits for nothing."""
    first = [word for word in words[:TOGETHER] if len(word) < LONGEST]  # the cluster's name comes before the command
    with contextlib.suppress(OSError):
        ask(socket_of(environ), {"do": "expect", "words": first}).close()


_asking: list[socket.socket] = []  # they end with this process, and then the keeper does what it was asked for


def fill(cluster: Cluster, keys: Mapping[int, str], environ: Mapping[str, str]) -> None:
    """Have an agent wait on these hosts (by node), for as long as the cluster says. Begins a keeper if there is none.

    Waits for nothing; where there can be no keeper, there is none.
    """
    if not environ.get("XDG_RUNTIME_DIR"):
        with contextlib.suppress(OSError):
            os.mkdir(f"/tmp/mesh-{os.geteuid()}", 0o700)
    path = socket_of(environ)
    nodes = list(keys)
    if not path or not nodes:
        return
    rest = {"gateway": cluster.gateway, "python": cluster.python, "host_keys": cluster.host_keys.value}
    requests = []
    for place in range(0, len(nodes), TOGETHER):
        hosts = {keys[node]: asdict(replace(cluster.hosts[node], hints={})) for node in nodes[place : place + TOGETHER]}
        requests.append({"do": "fill", "keep": cluster.keep, "cluster": {"name": cluster.name, "hosts": hosts, **rest}})
    while _asking:
        _asking.pop().close()
    try:
        for request in requests:
            _asking.append(ask(path, request))
    except OSError:
        with contextlib.suppress(OSError):  # no process is to be had
            _begin(path, requests, environ)


def _begin(path: str, requests: list[dict[str, Any]], environ: Mapping[str, str]) -> None:
    """Start the process; no terminal and no working directory of ours, so that it is in nobody's way."""
    known = {name: environ[name] for name in environ if name in VARIABLES or name.startswith(AT_START)}
    here = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [environ.get("PYTHONPATH")])])
    quiet = subprocess.DEVNULL
    with _lock_file(path) as only:
        # Its own from the beginning, so that who stops keepers knows of one that does not listen yet.
        locks = [only.fileno()] if _has_lock(only) else []
        keeper = subprocess.Popen(
            [sys.executable, "-m", "mesh.keeper.server", path, *map(str, locks)],
            cwd="/",
            env={**known, "PYTHONPATH": here},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            pass_fds=locks,
        )
    assert keeper.stdin is not None
    with keeper.stdin:
        keeper.stdin.write(json.dumps(requests).encode())
    threading.Thread(target=keeper.wait, name="mesh-keeper", daemon=True).start()  # a program may live longer than it


def about_keepers() -> list[dict[str, Any]]:
    """What each keeper of this home tells of itself.

    "pid"; "prepared", a list of the pid of the process that has imported mesh, if there is one; on how many hosts an
    agent is "waiting", for how many "seconds" at most; how many are "at_work" for a command
    """
    found = []
    for path in _sockets():
        with contextlib.suppress(OSError, ValueError), ask(path, {"do": "about"}) as way:
            way.settimeout(ANSWER)
            found.append(json.loads(way.recv(REQUEST)))
    return found


def stop_keepers() -> int:
    """End all keepers of this home, those too that do not listen yet, and the agents that wait; return how many.

    A command that is at work through one goes on, and the keeper leaves after it.
    """
    asked = []
    deadline = time.monotonic() + ANSWER
    for path in {path.removesuffix(LOCK) for path in _files()}:
        while path not in asked:
            try:
                ask(path, {"do": "stop"}).close()
                asked.append(path)
            except OSError:
                if not _begins(path) or time.monotonic() > deadline:
                    break
                time.sleep(0.02)
    while any(map(os.path.exists, asked)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(asked)


def _sockets() -> list[str]:
    return [path for path in _files() if not path.endswith(LOCK)]


def _files() -> list[str]:
    """Sockets of this home's keepers, also of other versions of mesh and other ssh-agents, and their locks."""
    beginning = _beginning(os.environ)
    return glob.glob(f"{glob.escape(beginning)}*") if beginning else []


def _begins(path: str) -> bool:
    """Whether there is a keeper that will listen there."""
    with contextlib.suppress(FileNotFoundError), open(path + LOCK, "rb") as only:
        return not _has_lock(only)
    return False


def _lock_file(path: str) -> IO[bytes]:
    return open(os.open(path + LOCK, os.O_WRONLY | os.O_CREAT, 0o600), "wb")


def _has_lock(only: IO[bytes]) -> bool:
    try:
        fcntl.flock(only, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(path: str, lock: str = "") -> None:
    """The process. stdin has what it is asked first. lock: the descriptor of its lock, if it has that already"""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    requests = json.load(sys.stdin)
    with open(int(lock), "wb") if lock else _lock_file(path) as only:
        if _has_lock(only):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            keeper = Keeper(path)
            signal.signal(signal.SIGTERM, lambda number, frame: keeper.end())
            for request in requests:
                threading.Thread(target=keeper.obey, args=(request,), daemon=True).start()
            keeper.serve()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + LOCK)
        else:  # another one has begun just now
            with contextlib.suppress(OSError):
                for request in requests:
                    ask(path, request).close()


if __name__ == "__main__":
    main(*sys.argv[1:])
