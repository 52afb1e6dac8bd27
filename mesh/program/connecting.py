"""Access to the nodes of a running program from a process that has not launched it, on any machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.api.checking import TCP_TIMEOUT_S
from mesh.api.choosing import choose_cluster
from mesh.api.detached import DetachedRun, find_detached, known, planned, with_hosts
from mesh.api.inquiries import ask, runs_on
from mesh.api.reaching import answer_of, reach
from mesh.api.records import find_record
from mesh.config.settings import Options
from mesh.core.cluster import Cluster, Placement
from mesh.core.errors import MeshError, UsageError
from mesh.core.naming import LAST, RUN_ID, NamedRun, the_one
from mesh.core.paths import runs_directory
from mesh.core.run import RunSpec
from mesh.core.text import one_line
from mesh.engine.question import Question
from mesh.hosts.interfaces import Purpose
from mesh.program.choosing import chosen
from mesh.program.ending import ask_to_stop
from mesh.program.results import read_result
from mesh.program.runtime import failures
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.handles import Group, Handle
from mesh.program.runtime.here import current_caller, set_client
from mesh.program.runtime.links import Link, SocketLink
from mesh.protocol.frames import FrameError
from mesh.protocol.messages import read_record as read_reply
from mesh.protocol.questions import AskRuns
from mesh.protocol.replies import Plan, Runs
from mesh.rundir.noderesults import result_path
from mesh.rundir.records import moves_of, read_about, read_spec

ANSWER_TIMEOUT_S = 60.0  # for a host to connect to its node
RESULT_BYTES_MAX = 1 << 27
PLAN_BYTES_MAX = 1 << 26
RESULT_TIMEOUT_MIN_S = 0.001  # a socket with a timeout of 0 does not wait, and raises another error
READ_BYTES = 1 << 20


class Connected:
    """A program that another process has launched. As a context manager it ends its own connections only."""

    def __init__(
        self,
        run: str,
        spec: RunSpec,
        cluster: Cluster,
        moves: Sequence[tuple[int, int]] = (),
        *,
        trust_hosts: bool,
    ) -> None:
        """Prepare without a connection: the first call to each node makes it.

        cluster: the hosts of the run alone; moves: ranks that have moved, each with the index of its host
        """
        self.run = run
        self._cluster, self._program, self._moves = cluster, spec.program, moves
        self._placement = spec.placed(cluster.hosts)
        self._labels = labels_of(spec, self._placement)
        self._ranks = {label: rank for rank, label in enumerate(self._labels)}
        nodes = {label: self._placement.node(rank) for label, rank in self._ranks.items()}
        self._hosts = {label: cluster.hosts[node].name for label, node in nodes.items()}
        self._caller = Caller((self._program, ""), self._connect, self._hosts, trust_hosts)
        self._is_registered = current_caller(self._program) is None
        if self._is_registered:
            set_client(self._program, self._caller)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all nodes, by rank."""
        return self._labels

    def handle(self, label: str) -> Handle[object] | Group[object]:
        """Return the handle of a node, or of a group. Raises KeyError for an unknown label."""
        found = chosen(label, self._labels)
        handles: list[Handle[object]] = [Handle(self._program, one, caller=self._caller) for one in found]
        return handles[0] if label in self._labels else Group(handles)

    def result(self, label: str, timeout: float | None = None) -> object:
        """Wait for the value of a function or ``run()``, which its host keeps; for the label of a group a list of them.

        The host of a program that was left to its hosts has it also after the end, as long as its output. With
        ``launch(keep_results=True)`` the run directory has it as well.
        timeout: seconds, after which TimeoutError is raised
        Raises the exception of a node that failed, KeyError, and MeshError if the host has no result.
        """
        found = chosen(label, self._labels)
        values = [self._result(one, timeout) for one in found]
        return values[0] if label in self._labels else values

    def stop(self, code: int = 0, why: str = "") -> None:
        """End the program with a status. Raises MeshError if no node takes the request."""
        if not ask_to_stop(self._caller, self._labels, code, why):
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
        rank = self._ranks[label]
        node = self._node(rank)
        self._hosts[label] = self._cluster.hosts[node].name
        return reach(self._cluster, self.run, node, rank, wants=wants)

    def _node(self, rank: int) -> int:
        """Return the index of a node's present host: by the run directory, or on another machine by the hosts."""
        about = read_about(Path(runs_directory(os.environ)) / self.run)
        if about:
            return self._placement.moved(moves_of(about, _names(self._cluster))).node(rank)
        home = self._placement.moved(self._moves).node(rank)
        return self._reported(rank, home) if self._placement.spares else home

    def _reported(self, rank: int, home: int) -> int:
        """Ask all hosts which of them has a rank. home: the answer if none reports it"""
        inquiry = ask(self._cluster, Question(message=AskRuns()), reach=TCP_TIMEOUT_S, quiet=True)
        for node, answer in inquiry.replies(Runs).items():
            if any(one.rank == rank for found in answer.runs if found.run == self.run for one in found.ranks):
                return node
        return home

    def _result(self, label: str, timeout: float | None) -> object:
        place = f"{label} on {self._hosts[label]}"
        try:
            kind, value = read_result(self._kept(label) or self._fetched(label, timeout))
        except (ValueError, EOFError) as error:
            raise MeshError(f"{place}: its result cannot be read: {error}", hint=f"mesh logs {self.run}") from error
        if kind == "failure":
            raise failures.rebuild(value)
        return value

    def _kept(self, label: str) -> bytes:
        """Return a result that the run directory has; b"": it has none."""
        role = self._placement.role(self._ranks[label])
        with contextlib.suppress(OSError):
            return result_path(Path(runs_directory(os.environ)) / self.run, role).read_bytes()
        return b""

    def _fetched(self, label: str, timeout: float | None) -> bytes:
        """Return the result that the host of a node has. Raises MeshError and TimeoutError."""
        with self._reach(label, "result") as connection:
            place = f"{label} on {self._hosts[label]}"
            connection.settimeout(None if timeout is None else max(RESULT_TIMEOUT_MIN_S, timeout))
            try:
                if reason := answer_of(connection):
                    raise MeshError(f"{place}: {reason}", hint=f"mesh logs {self.run}")
                return _read(connection, place, RESULT_BYTES_MAX)
            except TimeoutError:
                raise TimeoutError(f"{place} has no result after {timeout:g} s") from None
            except OSError as error:
                raise MeshError(f"{place}: its result cannot be read: {error}", hint="connect again") from error


def labels_of(spec: RunSpec, placement: Placement) -> tuple[str, ...]:
    """Return the labels of all nodes of a program by rank, as its own code calls them."""

    def label(rank: int) -> str:
        group = spec.groups[placement.table[rank].group]
        return group.label if group.alone else placement.role(rank)

    return tuple(label(rank) for rank in range(placement.world_size))


def connect(run: str = LAST, *, cluster: str = "", trust_hosts: bool = False) -> Connected:
    """Return the nodes of a program that this user has launched, in any process.

    run: an id, a name or tag, a part of an id or name, or "last"
    cluster: for a program that another machine has launched: a selector of hosts that it has, as cluster.yaml of this
    machine calls them. Nothing else of the other machine is needed.
    trust_hosts: as with Program
    Raises UsageError if there is no such program, and MeshError if a host cannot be asked.
    """
    record = None if cluster and run == LAST else find_record(run)
    if record is not None:
        found = known(record)
    elif cluster:
        found = _found_on(cluster, run)
    else:
        hint = f"connect({run!r}, cluster=CLUSTER) for one of another machine; `mesh runs` lists those of this one"
        raise UsageError(f"no run {run!r} was started on this machine", hint=hint)
    spec = read_spec(found.about, found.run)
    if not spec.program:
        raise UsageError(f"run {found.run} is no program", hint="mesh runs")
    cluster_found = _cluster_of(found)
    moves = moves_of(found.about, _names(cluster_found))
    return Connected(found.run, spec, cluster_found, moves, trust_hosts=trust_hosts)


def _names(cluster: Cluster) -> list[str]:
    return [host.name for host in cluster.hosts]


def _cluster_of(found: DetachedRun) -> Cluster:
    """Return the hosts of a run; those of this machine have the names that the program gave them."""
    names: Sequence[str] = found.about.get("hosts") or ()
    cluster = choose_cluster(found.cluster, Options(), "", purpose=Purpose.ASK)
    if cluster.backend == "local" and len(cluster.hosts) == len(names):
        pairs = zip(cluster.hosts, names, strict=True)
        return replace(cluster, hosts=tuple(replace(host, name=name) for host, name in pairs))
    return with_hosts(cluster, names)


def _found_on(cluster: str, run: str) -> DetachedRun:
    """Return a program that another machine has launched. Raises UsageError if the hosts have none of this name."""
    asked = choose_cluster(cluster, Options(), "", purpose=Purpose.ASK)
    lines = [line for line in runs_on(asked).runs if RUN_ID.fullmatch(line.run) and not line.detached]
    runs = [NamedRun(run=line.run, name=line.name, tags=line.tags, command=line.command) for line in lines]
    meant = max(runs, key=lambda one: one.run, default=None) if run == LAST else the_one(run, runs)
    if meant is None:  # the hosts keep the plan of a detached one, also after its end
        return find_detached(run, cluster, "")
    names = next(line.hosts for line in lines if line.run == meant.run)
    troubles = []
    for node, host in enumerate(asked.hosts):
        if host.name in names:
            try:
                return planned(meant.run, _plan(asked, meant.run, node), asked)
            except MeshError as error:
                troubles.append(str(error))
    raise UsageError("\n".join(troubles), hint=f"mesh ps {cluster}")


def _plan(cluster: Cluster, run: str, node: int) -> Plan:
    """Return the plan of a run that one of its hosts has. Raises MeshError."""
    host = cluster.hosts[node].name
    with reach(cluster, run, node, 0, wants="plan") as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        try:
            if reason := answer_of(connection):
                raise MeshError(f"{host}: {reason}", hint=f"mesh ps {cluster.name}")
            written: Mapping[str, object] = json.loads(_read(connection, host, PLAN_BYTES_MAX))
            return read_reply("plan", Plan, written, one_line)
        except (OSError, ValueError, FrameError) as error:
            what = f"its plan of run {run} cannot be read: {error}"
            raise MeshError(f"{host}: {what}", hint=f"mesh check {cluster.name}") from error


def _read(connection: socket.socket, place: str, limit: int) -> bytes:
    """Read to the end of the connection. Raises MeshError beyond the limit, and OSError. place: the sender"""

    def pieces() -> Iterator[bytes]:
        size = 0
        while piece := connection.recv(READ_BYTES):
            size += len(piece)
            if size > limit:
                raise MeshError(f"{place}: sends more than {limit >> 20} MB", hint="mesh check CLUSTER")
            yield piece

    return b"".join(pieces())
