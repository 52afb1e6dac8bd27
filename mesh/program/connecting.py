"""The nodes of a running program for a process that has not launched it."""

from __future__ import annotations

import contextlib
import socket

from msgspec.structs import replace

from mesh.api.choosing import choose_cluster
from mesh.api.detached import with_hosts
from mesh.api.reaching import answer_of, reach
from mesh.api.records import find_record
from mesh.config.settings import Options
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.naming import LAST
from mesh.hosts.interfaces import Purpose
from mesh.program.description import Description, read_description
from mesh.program.results import read_result
from mesh.program.runtime import failures
from mesh.program.runtime.book import role_of
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions
from mesh.program.runtime.handles import Group, Handle
from mesh.program.runtime.here import current_caller, set_client
from mesh.program.runtime.links import Link, SocketLink
from mesh.rundir.records import Record

STOP_TIMEOUT_S = 5.0  # for a node to take the request
ANSWER_TIMEOUT_S = 60.0  # for a host to connect to its node
RESULT_BYTES_MAX = 1 << 27
RESULT_TIMEOUT_MIN_S = 0.001  # a socket with a timeout of 0 does not wait, and raises another error


class Connected:
    """A program that another process has launched. As a context manager it ends its own connections only."""

    def __init__(self, record: Record, description: Description, cluster: Cluster, *, trust_hosts: bool) -> None:
        """Prepare without a connection: the first call to each node makes it."""
        self.run = record.run
        self._cluster, self._program, self._labels = cluster, description.program, description.labels
        placement = record.placement
        ranks = {placement.role(rank): rank for rank in range(placement.world_size)}
        self._ranks = {label: ranks[role_of(label)] for label in self._labels}
        self._nodes = {label: placement.node(rank) for label, rank in self._ranks.items()}
        hosts = {label: placement.hosts[node].name for label, node in self._nodes.items()}
        self._caller = Caller((self._program, ""), self._connect, hosts, trust_hosts)
        self._is_registered = current_caller(self._program) is None
        if self._is_registered:
            set_client(self._program, self._caller)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all nodes, by rank."""
        return self._labels

    def handle(self, label: str) -> Handle[object] | Group[object]:
        """Return the handle of a node, or of a group. Raises KeyError for an unknown label."""
        found = self._chosen(label)
        handles: list[Handle[object]] = [Handle(self._program, one, caller=self._caller) for one in found]
        return handles[0] if label in self._labels else Group(handles)

    def result(self, label: str, timeout: float | None = None) -> object:
        """Wait for the value of a function or ``run()``, which its host keeps; for the label of a group a list of them.

        The host of a program that was left to its hosts has it also after the end, as long as its output.
        timeout: seconds, after which TimeoutError is raised
        Raises the exception of a node that failed, KeyError, and MeshError if the host has no result.
        """
        found = self._chosen(label)
        values = [self._result(one, timeout) for one in found]
        return values[0] if label in self._labels else values

    def stop(self, code: int = 0, why: str = "") -> None:
        """End the program with a status. Raises MeshError if no node takes the request."""
        for label in self._labels:
            options = CallOptions(timeout=STOP_TIMEOUT_S)
            with contextlib.suppress(Exception):  # it has ended, or hangs: the next one may answer
                self._caller.to(label).stop_program(code, why, options).result(STOP_TIMEOUT_S)
                return
        raise MeshError(f"run {self.run}: no node takes the request to stop", hint=f"mesh stop {self.run}")

    def close(self) -> None:
        """End the connections of this process; the program goes on."""
        if self._is_registered:
            set_client(self._program, None)
        self._caller.close()

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _chosen(self, label: str) -> list[str]:
        found = [one for one in self._labels if label in (one, one.partition("/")[0])]
        if not found:
            raise KeyError(label)
        return found

    def _connect(self, label: str) -> Link:
        """Return a link to a node. Raises OSError."""
        try:
            connection = self._reach(label, "calls")
        except MeshError as error:
            raise ConnectionError(str(error)) from error
        try:
            connection.settimeout(ANSWER_TIMEOUT_S)
            if reason := answer_of(connection):
                raise ConnectionError(reason)
            connection.settimeout(None)
        except BaseException:
            connection.close()  # ends the process on the host
            raise
        return SocketLink(connection)

    def _reach(self, label: str, wants: str) -> socket.socket:
        return reach(self._cluster, self.run, self._nodes[label], self._ranks[label], wants=wants)

    def _result(self, label: str, timeout: float | None) -> object:
        with self._reach(label, "result") as connection:
            connection.settimeout(None if timeout is None else max(RESULT_TIMEOUT_MIN_S, timeout))
            try:
                if reason := answer_of(connection):
                    raise MeshError(f"{label}: {reason}")
                data = b""
                while piece := connection.recv(1 << 20):
                    data += piece
                    if len(data) > RESULT_BYTES_MAX:
                        raise MeshError(f"{label}: its host sends more than any result has")
            except TimeoutError:
                raise TimeoutError(f"{label} has no result after {timeout:g} s") from None
        try:
            kind, value = read_result(data)
        except (ValueError, EOFError, OSError) as error:
            raise MeshError(f"{label}: its result cannot be read: {error}") from error
        if kind == "failure":
            raise failures.rebuild(value)
        return value


def connect(run: str = LAST, *, trust_hosts: bool = False) -> Connected:
    """Return the nodes of a program that this user has launched from this machine, in any process.

    run: an id, a name or tag, a part of an id or name, or "last"
    trust_hosts: as with Program
    Raises UsageError if there is no such program.
    """
    record = find_record(run)
    if record is None:
        raise UsageError(f"no run {run!r} was started on this machine", hint="mesh runs")
    return Connected(record, read_description(record.run), _cluster_of(record), trust_hosts=trust_hosts)


def _cluster_of(record: Record) -> Cluster:
    """Return the hosts of a run; those of this machine have the names that the program gave them."""
    cluster = choose_cluster(record.cluster, Options(), "", purpose=Purpose.ASK)
    if cluster.backend == "local" and len(cluster.hosts) == len(record.hosts):
        pairs = zip(cluster.hosts, record.hosts, strict=True)
        return replace(cluster, hosts=tuple(replace(host, name=name) for host, name in pairs))
    return with_hosts(cluster, record.hosts)
