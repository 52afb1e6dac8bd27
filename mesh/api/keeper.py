"""The keeper: a process of the user's that holds connections, and on each host an agent that waits for a command.

It begins after a command on a cluster with ``keep:``, holds no password, knows no run, and ends when nobody has wanted
anything for so long. A command that is killed ends through it as it would by itself: its socket's end is that of the
agent's channel.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from mesh.backends.kept import ANSWER, DATA, END, MOST, PACKET, ask, is_private, key_of, read, told
from mesh.core.errors import ChannelClosed
from mesh.remote.blob import opening, start_command

if TYPE_CHECKING:
    from mesh.backends.ssh import SshBackend, SshChannel
    from mesh.core.cluster import Cluster

LOOK = 1.0  # seconds between two looks whether it is to end
PING = 1.0  # seconds for a host to answer before its agent is handed out
TOGETHER = 64  # hosts in one request
VARIABLES = ("HOME", "SSH_AUTH_SOCK")  # that decide how hosts are reached


@dataclass
class Batch:
    """Hosts that were reached together, and may have a gateway in common."""

    backend: SshBackend
    hosts: int = 0  # how many of them are still connected


@dataclass(frozen=True)
class Waiting:
    """An agent that waits on one host. It serves one command, as it would without us: logins are not shared."""

    channel: SshChannel
    batch: Batch
    since: float  # monotonic


class Keeper:
    """Serves one socket. Each visitor has a thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._waiting: dict[str, Waiting] = {}  # by key_of
        self._batches: list[Batch] = []
        self._filling: set[str] = set()  # the same
        self._at_work = 0  # agents that were handed out
        self._keep = 60.0  # seconds, until somebody says
        self._asked = time.monotonic()  # when somebody last wanted something
        self._is_over = False

    def serve(self) -> None:
        """Until nobody has asked for as long as the last one said, or the socket is somebody else's."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self._path)
        listener.listen(256)
        listener.settimeout(LOOK)
        mine = os.stat(self._path).st_ino
        try:
            while not self._is_over and _inode(self._path) == mine:
                with contextlib.suppress(TimeoutError):
                    visitor, _ = listener.accept()
                    threading.Thread(target=self._answer, args=(visitor,), daemon=True).start()
                self._look_at_the_clock()
        finally:
            if _inode(self._path) == mine:
                os.unlink(self._path)
            for batch in list(self._batches):
                batch.backend.close()

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        with self._lock:
            old = [key for key, waiting in self._waiting.items() if now - waiting.since > self._keep]
            left = [self._waiting.pop(key) for key in old]
            is_used = self._waiting or self._filling or self._at_work
            self._is_over = self._is_over or (not is_used and now - self._asked > self._keep)
        for waiting in left:
            waiting.channel.close()
            self._release(waiting.batch)

    def _answer(self, visitor: socket.socket) -> None:
        with visitor, contextlib.suppress(OSError):
            request = json.loads(visitor.recv(MOST))
            if request["do"] == "about":
                visitor.send(json.dumps(self._about()).encode())
            elif request["do"] == "take":
                self._asked = time.monotonic()
                self._hand_out(visitor, request["key"])
            else:
                self.obey(request)

    def obey(self, request: Mapping[str, Any]) -> None:
        """Do what needs no answer."""
        self._asked = time.monotonic()
        if request["do"] == "fill":
            self._keep = request["keep"]
            self._fill(read(request["cluster"]))
        elif request["do"] == "stop":
            self.end()

    def end(self) -> None:
        """Leave now."""
        self._is_over = True
        with contextlib.suppress(OSError):  # somebody who comes has ``serve`` look
            ask(self._path, {"do": "about"}).close()

    def _about(self) -> dict[str, Any]:
        with self._lock:
            idle = 0.0 if self._at_work else time.monotonic() - self._asked
            told = {"pid": os.getpid(), "waiting": len(self._waiting), "at_work": self._at_work}
            return {**told, "idle": idle, "keep": self._keep}

    # ---- agents that wait

    def _fill(self, cluster: Cluster) -> None:
        """Have an agent wait on each host; one that cannot be reached without a question has none."""
        wanted = {key_of(cluster, host): host for host in cluster.hosts}
        with self._lock:
            keys = [key for key in wanted if key not in self._waiting and key not in self._filling]
            self._filling.update(keys)
        try:
            if keys:
                self._connect(keys, replace(cluster, hosts=tuple(wanted[key] for key in keys)))
        finally:
            with self._lock:
                self._filling.difference_update(keys)

    def _connect(self, keys: list[str], cluster: Cluster) -> None:
        from mesh.backends.passwords import Passwords
        from mesh.backends.ssh import SshBackend, SshChannel

        nobody = Passwords("", {}, ask=lambda prompt: "")
        batch = Batch(SshBackend(cluster, environ=os.environ, passwords=nobody, tries=1), hosts=1)
        self._batches.append(batch)
        for opened in batch.backend.open(cluster.hosts, start_command(cluster.python)):
            if isinstance(opened.result, SshChannel):
                with contextlib.suppress(ChannelClosed):
                    opened.result.send(opening())
                    with self._lock:
                        batch.hosts += 1
                        self._waiting[keys[opened.node]] = Waiting(opened.result, batch, time.monotonic())
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        """One host less."""
        with self._lock:
            batch.hosts -= 1
            if batch.hosts:
                return
            self._batches.remove(batch)
        batch.backend.close()

    # ---- agents at work

    def _hand_out(self, visitor: socket.socket, key: str) -> None:
        with self._lock:
            waiting = self._waiting.pop(key, None)
            self._at_work += waiting is not None
        if waiting is None:
            visitor.send(END)
            return
        try:
            if waiting.channel.answers(PING):
                visitor.send(DATA)
                self._relay(visitor, waiting.channel)
            else:
                visitor.send(END)
        finally:
            waiting.channel.close()
            self._release(waiting.batch)
            with self._lock:
                self._at_work -= 1
            self._asked = time.monotonic()

    def _relay(self, visitor: socket.socket, channel: SshChannel) -> None:
        """Both ways, until one of the ends is gone."""
        back = threading.Thread(target=_bring_back, args=(visitor, channel), daemon=True)
        back.start()
        with contextlib.suppress(ChannelClosed):  # the way back tells why
            while packet := visitor.recv(PACKET):
                channel.send(packet[1:])
            channel.close()
        back.join()


def _bring_back(visitor: socket.socket, channel: SshChannel) -> None:
    with contextlib.suppress(OSError):
        while data := channel.receive():
            for place in range(0, len(data), PACKET - 1):
                visitor.send(DATA + data[place : place + PACKET - 1])
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


def socket_of(environ: Mapping[str, str], *, make: bool = False) -> str:
    """Where the keeper of this version of mesh listens; "" where there can be none: off Linux, or for want of a place.

    make: the directory, if it is missing
    """
    directory = environ.get("XDG_RUNTIME_DIR") or f"/tmp/mesh-{os.geteuid()}"
    if make:
        with contextlib.suppress(OSError):
            os.mkdir(directory, 0o700)
    if not is_private(directory) or sys.platform != "linux":  # others have no SOCK_SEQPACKET
        return ""
    known = [environ.get(name, "") for name in VARIABLES]
    digest = hashlib.blake2b(json.dumps(known).encode() + opening(), digest_size=8).hexdigest()
    return f"{directory}/.mesh-keeper-{digest}"


def fill(cluster: Cluster, environ: Mapping[str, str]) -> None:
    """Have an agent wait on every host, for as long as the cluster says. Begins a keeper if there is none.

    Waits for nothing; where there can be no keeper, there is none.
    """
    path = socket_of(environ, make=True)
    if not path:
        return
    parts = [cluster.hosts[place : place + TOGETHER] for place in range(0, len(cluster.hosts), TOGETHER)]
    requests = [{"do": "fill", "keep": cluster.keep, "cluster": told(cluster, part)} for part in parts]
    try:
        for request in requests:
            ask(path, request).close()
    except OSError:
        # No terminal and no working directory of ours: it is to be in nobody's way.
        begin = [sys.executable, "-m", "mesh.api.keeper", path]
        quiet = subprocess.DEVNULL
        keeper = subprocess.Popen(
            begin, cwd="/", start_new_session=True, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet
        )
        assert keeper.stdin is not None
        with contextlib.suppress(OSError), keeper.stdin:
            keeper.stdin.write(json.dumps(requests).encode())
        keeper.returncode = 0  # nobody waits for it


def about_keeper() -> dict[str, Any]:
    """What the keeper tells of itself; {} if there is none.

    "pid"; on how many hosts an agent is "waiting", and "at_work" for a command; for how long it has been "idle", and
    how long it may be ("keep"), in seconds
    """
    try:
        with ask(socket_of(os.environ), {"do": "about"}) as way:
            way.settimeout(ANSWER)
            found: dict[str, Any] = json.loads(way.recv(MOST))
            return found
    except (OSError, ValueError):
        return {}


def stop_keeper() -> bool:
    """End the keeper, its connections and the agents that wait; False if there is none. Returns when it is gone."""
    path = socket_of(os.environ)
    try:
        ask(path, {"do": "stop"}).close()
    except OSError:
        return False
    with _locked(path) as only:
        deadline = time.monotonic() + ANSWER
        while not _is_alone(only) and time.monotonic() < deadline:
            time.sleep(0.02)
    return True


def _locked(path: str) -> IO[bytes]:
    """The file that the keeper of a socket has locked as long as it lives."""
    return open(os.open(path + ".lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb")


def _is_alone(only: IO[bytes]) -> bool:
    try:
        fcntl.flock(only, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(path: str) -> None:
    """The process. stdin has what it is asked first."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    requests = json.load(sys.stdin)
    with _locked(path) as only:
        if _is_alone(only):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            keeper = Keeper(path)
            signal.signal(signal.SIGTERM, lambda number, frame: keeper.end())
            for request in requests:
                threading.Thread(target=keeper.obey, args=(request,), daemon=True).start()
            keeper.serve()
        else:  # another one has begun just now
            with contextlib.suppress(OSError):
                for request in requests:
                    ask(path, request).close()


if __name__ == "__main__":
    main(sys.argv[1])
