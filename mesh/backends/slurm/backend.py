"""The backend of an allocation: its switchboard, reached from the login node, and Slurm's words about nodes."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from mesh.backends.slurm import commands
from mesh.backends.slurm.login import Login, NoForwarding, SshLogin, login_of
from mesh.backends.slurm.records import AllocationRecord, AllocationRecords
from mesh.backends.switchboard.backend import Advice, SwitchboardBackend
from mesh.backends.switchboard.ways import SocketChannel, bridge_argv, channel_of
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import HostUnreachable, MeshError
from mesh.core.events import Event, Notice
from mesh.core.interfaces import Channel, NoAgent

SCHEDULE, SWITCHBOARD, PYTHON = "schedule", "switchboard", "python"  # steps of core.events.SLURM_STEPS
WHY_TIMEOUT_S = 1.8  # for Slurm to answer why a node is gone
GONE_STATES = ("DOWN", "FAIL", "FAILING", "DRAINED", "NOT_RESPONDING", "POWERED_DOWN", "REBOOT")
ANNOUNCED = "the allocation is being ended"  # begins the holder's notice
NEAR_S = 2.0  # before the end of the allocation, from when on every end of a rank may be by Slurm
ASK_INTERVAL_S = 2.0  # between two questions whether the job is being ended
NOTICE_S = 600.0  # before the end, when a client is shown it at its start
AT_HOME = 'cd && exec "$@"'  # the working directory of the login node may not be there
MINUTES_S = 120.0  # from which on a time is shown in minutes


class SlurmAdvice(Advice):
    """Slurm's words about the nodes of an allocation."""

    def __init__(self, login: Login, job: str, names: Sequence[str], python: str) -> None:
        self._login, self._job, self._names, self._python = login, job, names, python
        self._end = ""  # why the job has ended

    def why(self, node: int) -> str:
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(self._ask(self._names[node])), daemon=True)
        asking.start()
        asking.join(WHY_TIMEOUT_S)
        return found[0] if found else ""

    def gone(self, node: int) -> str:
        return self.why(node) and self._end

    def absent(self, node: int, name: str, limit: float) -> HostUnreachable:
        if why := self.why(node):
            return HostUnreachable(f"{name}: {why}", step=SCHEDULE, is_final=bool(self._end))
        hint = f"its nodes must reach the batch host by TCP: srun --jobid={self._job} --overlap -w {name} hostname"
        return HostUnreachable(
            f"{name}: not connected to the switchboard within {limit:g} s", hint=hint, step=SWITCHBOARD
        )

    def explain(self, node: int, name: str, end: NoAgent) -> HostUnreachable:
        if why := self.why(node):
            return HostUnreachable(f"{name}: {why}", step=SCHEDULE, is_final=bool(self._end))
        return super().explain(node, name, end)

    def _ask(self, name: str) -> str:
        """Return why a node is gone, from its own state and that of the job; "" if Slurm sees neither."""
        try:
            self._end = commands.end_of(commands.about(self._login, "job", self._job))
            fields = commands.about(self._login, "node", name)
        except MeshError:
            return ""
        state, reason = fields.get("State", ""), fields.get("Reason", "")
        trouble = ""
        if state.endswith("*") or any(one in state.upper() for one in GONE_STATES):
            trouble = f"node {name} is {state.lower()}" + f" ({reason})" * bool(reason)
        ended = f"allocation {self._job}: {self._end}" if self._end else ""
        return "; ".join(one for one in (trouble, ended) if one)


class SlurmBackend(SwitchboardBackend):
    """Opens channels to agents on the nodes of one allocation."""

    def __init__(self, cluster: Cluster, environ: Mapping[str, str] = os.environ) -> None:
        """Make a backend that has not connected yet. Raises MeshError if there is no record of the allocation."""
        record = record_of(cluster, environ)
        names = [host.name for host in cluster.hosts]
        self._login = login_of(cluster, environ)
        self._job, self._record, self._python = cluster.allocation.job, record, cluster.python
        advice = SlurmAdvice(self._login, self._job, names, cluster.python)
        self._is_announced = False  # the holder has sent that Slurm ends the allocation
        super().__init__(self._dial, record.key, names, advice)
        self.term_limit = record.kill_wait
        self._asking = threading.Lock()
        self._asked_at = -ASK_INTERVAL_S
        self._ending = ""
        self._end = cluster.allocation.end

    def listen(self, post: Callable[[Event], None]) -> None:
        super().listen(post)
        left = self._end - time.time()
        if self._end and left < NOTICE_S:  # the holder's own notice may have come before this client
            told = f"{left / 60:.0f} min" if left >= MINUTES_S else f"{max(0.0, left):.0f} s"
            post(Notice(time=time.time(), text=f"the allocation ends in {told}"))

    def ending(self, node: int, *, is_clear: bool) -> str:
        is_near = self._is_announced or bool(self._end and time.time() > self._end - NEAR_S)
        if not (is_clear or is_near):
            return ""
        with self._asking:
            if not self._ending and time.monotonic() > self._asked_at + ASK_INTERVAL_S:
                with contextlib.suppress(MeshError):
                    self._ending = commands.end_of(commands.about(self._login, "job", self._job))
                self._asked_at = time.monotonic()
            return f"allocation {self._job}: {self._ending}" if self._ending else ""

    def _notice(self, text: str) -> None:
        self._is_announced = self._is_announced or text.startswith(ANNOUNCED)
        super()._notice(text)

    def close(self) -> None:
        super().close()
        self._login.close()

    def _dial(self) -> Channel:
        """Return a connection to the port of the switchboard. Raises HostUnreachable."""
        host, _, port = self._record.address.rpartition(":")
        if self._line is not None:  # it has ended, by a dead connection to the login node as a rule
            self._login.drop()
        try:
            return connected(self._login, host, int(port), self._python)
        except HostUnreachable:
            raise
        except (OSError, EOFError, MeshError) as error:
            raise self._refused(host, port, str(error)) from error

    def _refused(self, host: str, port: str, why: str) -> HostUnreachable:
        """Return the error for a switchboard that is not reached: the job may have ended."""
        try:
            found = commands.jobs(self._login, job=self._job)
        except MeshError as error:
            return HostUnreachable(f"{why}; {error}", hint=error.hint, step=SCHEDULE)
        if not found or not found[-1].is_living:
            end = ""
            with contextlib.suppress(MeshError):
                end = commands.end_of(commands.about(self._login, "job", self._job))
            text = f"allocation {self._job} is gone" + f": {end}" * bool(end)
            return HostUnreachable(text, hint=f"scontrol show job {self._job}", step=SCHEDULE, is_final=True)
        text = f"the switchboard at {host} port {port} of allocation {self._job}: {why}"
        return HostUnreachable(text, hint=f"squeue --jobs={self._job} --format='%i %T %k'", step=SWITCHBOARD)


def connected(login: Login, host: str, port: int, python: str) -> Channel:
    """Return a connection from the login node, or by a program there if it forwards none.

    Raises OSError, EOFError and MeshError.
    """
    try:
        own = login.dial(host, port)
    except NoForwarding:
        if not isinstance(login, SshLogin):
            raise
        return SocketChannel(login.start(_in_one_line(bridge_argv(host, port, python))))
    if isinstance(own, socket.socket):
        return channel_of(own)
    own.settimeout(None)
    return SocketChannel(own)


def _in_one_line(argv: Sequence[str]) -> list[str]:
    """Return the argv of a Python program, `-c TEXT` and words, with a text in one line."""
    *before, text, host, port = argv
    packed = base64.b64encode(text.encode()).decode()
    return [*before, f'import base64; exec(base64.b64decode("{packed}"))', host, port]


def record_of(cluster: Cluster, environ: Mapping[str, str]) -> AllocationRecord:
    """Return the record of the allocation of a cluster. Raises MeshError if it was removed."""
    record = AllocationRecords(environ).get(cluster.allocation.record)
    if record is None:
        job = cluster.allocation.job
        raise MeshError(f"{cluster.name}: allocation {job} was given up meanwhile", hint=f"mesh up {cluster.name}")
    return record


def described(cluster: Cluster, host: Host) -> str:
    """Return how a node is reached, for people."""
    place = cluster.allocation
    by = f" by {place.login.name}" if place.login is not None else ""
    return f"job {place.job}{by}"


def shell_argv(cluster: Cluster, host: Host, words: Sequence[str]) -> list[str]:
    """Return the argv of a terminal on a node of an allocation. words: a command; (): a login shell"""
    options = [f"--jobid={cluster.allocation.job}", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--chdir=/"]
    options += [f"--nodelist={host.name}", *([] if words else ["--pty"])]
    return login_of(cluster).terminal(["srun", *options, "sh", "-c", AT_HOME, "sh", *(words or ("bash", "-l"))])
