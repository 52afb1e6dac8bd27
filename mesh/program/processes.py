"""A program as processes on hosts: the nodes are ranks of a run, and calls of the client go through its agents."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.attaching import detach_found
from mesh.api.hangs import Stacks, stacks_of
from mesh.api.inquiries import FoundRun
from mesh.api.records import find_record
from mesh.api.running import Beside, Listener, run_on
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster, Placement
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Event, Exited, Lost, Output, Started
from mesh.core.nodes import Kept, Moving, NodeResult, ProgramStopped, RankReady, Restarted, Restarting, told_end
from mesh.core.outcome import Cause
from mesh.core.run import NO_DEVICES, Group, RunSpec
from mesh.program.clientside import ClientNodes
from mesh.program.ending import ask_to_stop
from mesh.program.graph import Graph, Node
from mesh.program.ledger import State, Stop
from mesh.program.outputs import LastLines, output_of
from mesh.program.payload import Payload, cloudpickle_source, tie_of
from mesh.program.placing import Place
from mesh.program.results import read_result
from mesh.program.running import Running
from mesh.program.runtime import failures, frames, plain
from mesh.program.runtime.book import role_of
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.errors import CLIENT
from mesh.program.runtime.frames import Frame
from mesh.program.runtime.here import set_client
from mesh.program.runtime.links import Link, SocketLink
from mesh.rundir.results import RunResult

if TYPE_CHECKING:
    from mesh.engine.relaying import Relay

# The first words of a node's command: its own directory must not hide the modules of the runtime.
START = "import sys; sys.path[:1] = []; from mesh.program.runtime.node import main; main()"
REASONS = {
    Cause.COMPLETED: "stop",
    Cause.PROGRAM: "stop",
    Cause.TIMEOUT: "timeout",
    Cause.SIGNAL: "signal",
    Cause.OUTPUT_CLOSED: "signal",
    Cause.DETACHED: "detached",
}


class Setting(Struct, frozen=True, kw_only=True):
    """The run that a program becomes."""

    cluster: Cluster  # only the hosts that have nodes
    spec: RunSpec  # without its groups
    beside: Beside
    is_local: bool  # the hosts have the client's files, at the same paths
    calls_run: bool
    undetachable: str = ""  # why it cannot go on without its client; "": it can


def groups_of(
    program: Graph, payloads: Mapping[str, Payload], setting: Setting
) -> tuple[tuple[Group, ...], dict[str, bytes]]:
    """Return the groups of ranks of a program, and the payloads by their hashes."""
    order = [host.name for host in setting.cluster.hosts]
    groups, packed = [], {}
    works_here = has_work_at_client(program, [one.place for one in payloads.values()], setting.calls_run)
    shared = {one.place.host for one in payloads.values() if one.place.gpus}
    for node in program.nodes:
        members = [one for one in payloads.values() if one.place.group == node.wish.label]
        if any(one.place.host == CLIENT for one in members):
            continue
        counts = [(host, sum(one.place.host == host for one in members)) for host in order]
        counts = [(host, count) for host, count in counts if count]
        data = _packed(program, node, members[0], payloads, setting)
        name = hashlib.sha256(data).hexdigest()
        packed[name] = data
        options = node.options
        devices = tuple(devices_of(one.place, shared) for one in members)
        groups.append(
            Group(
                label=node.wish.label,
                command=(options.python or program.python, "-c", START),
                env={**setting.spec.groups[0].env, **options.env},
                hosts=tuple(host for host, _ in counts),
                counts=tuple(count for _, count in counts),
                sockets=1,
                payloads=(name,) * len(members),
                devices=devices if any(devices) else (),
                ready=True,
                may_fail=options.on_failure == "ignore",
                restarts=options.restarts if options.on_failure == "restart" else 0,
                elsewhere=options.elsewhere,
                ends_run=options.on_exit == "stop",
                # With work on the client, the hosts end nothing by themselves.
                serves=not (node.runs and setting.calls_run) and not works_here,
                alone=members[0].place.label == node.wish.label,
            )
        )
    return tuple(groups), packed


def devices_of(place: Place, shared: Container[str]) -> str:
    """Return the GPUs of a node; "": all of its host.

    shared: hosts with GPUs that belong to some nodes alone, so that no other node there may use any
    """
    if place.gpus:
        return ",".join(map(str, place.gpus))
    return NO_DEVICES if place.host in shared else ""


def untied_hint(setting: Setting) -> str:
    """Return the ``on=`` with which the program could go on without its client."""
    hosts = setting.cluster.hosts
    names = [f"local-{index}" for index in range(len(hosts))] if setting.undetachable else [host.name for host in hosts]
    return f'on="{",".join(names)}"'


def has_work_at_client(program: Graph, places: Sequence[Place], calls_run: bool) -> bool:
    """Return True if a node on the client has something to run."""
    here = {place.group for place in places if place.host == CLIENT}
    return calls_run and any(node.runs and node.wish.label in here for node in program.nodes)


def _packed(program: Graph, node: Node, payload: Payload, payloads: Mapping[str, Payload], setting: Setting) -> bytes:
    """Return the payload of a label as the runtime reads it."""
    bodies = {one.place.group: one.body for one in payloads.values()}.values()
    about: dict[str, object] = {
        "program": program.id,
        "name": program.name,
        "hosts": {label: one.place.host for label, one in payloads.items()},
        "count": payload.place.count,
        "concurrency": payload.concurrency,
        "backlog": payload.backlog,
        "calls_run": setting.calls_run,
        "on_exit": node.options.on_exit,
        "after": list(payload.after),
        **modules_of(setting),
    }
    if any(b"__main__" in bytes(body) for body, _ in bodies):
        about |= main_module(setting)
    if any(b"cloudpickle" in bytes(body) for body, _ in bodies):
        about |= {"byte_code": f"{sys.version_info[0]}.{sys.version_info[1]}", "cloudpickle": cloudpickle_source()}
    head, _ = plain.dumps(about)
    body, buffers = payload.body
    frame = Frame(frames.HELLO, body=head, buffers=[body, *buffers])
    return b"".join(bytes(piece) for piece in frame.pieces())


def modules_of(setting: Setting) -> dict[str, object]:
    """Return how a host finds the modules of this process: by directories of its copy of the workspace."""
    roots = [os.path.abspath(one or ".") for one in sys.path]
    argv = list(sys.argv)
    if setting.is_local:
        return {"argv": argv, "cwd": os.getcwd(), "path": [one for one in roots if os.path.exists(one)]}
    workspace = setting.spec.workspace
    inside = [os.path.relpath(one, workspace) for one in roots if Path(one).is_relative_to(workspace)]
    return {"argv": argv, "cwd": "", "path": inside}


def main_module(setting: Setting) -> dict[str, object]:
    """Return how a host finds the main module of this process. Raises UsageError for a file that it does not have."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", "") or ""
    if spec is not None and spec.name != "__main__":
        return {"main_name": spec.name}
    if not file:  # a notebook or a prompt, whose classes travel by value
        return {}
    path, workspace = os.path.abspath(file), setting.spec.workspace
    if setting.is_local:
        return {"main_file": path}
    if not Path(path).is_relative_to(workspace):
        hint = "start it from the directory of the program, or name that as `workspace:` in mesh.yaml"
        raise UsageError(f"{path}: the program is not in the workspace {workspace}", hint=hint)
    return {"main_file": os.path.relpath(path, workspace)}


class Processes:
    """The nodes of one program as ranks of a run, which is in a thread of its own."""

    def __init__(
        self, program: Graph, payloads: Mapping[str, Payload], running: Running, setting: Setting, showing: Showing
    ) -> None:
        self._program, self._running, self._showing = program, running, showing
        running.run = setting.spec.run
        groups, packed = groups_of(program, payloads, setting)
        self._setting = setting
        self._spec = replace(
            setting.spec,
            groups=groups,
            name=setting.spec.name or program.name,
            program=program.id,
            tied=tie_of(payloads) or setting.undetachable,
        )
        self._placement: Placement = self._spec.placed(setting.cluster.hosts, setting.cluster.slices)
        roles = {role_of(label): label for label, payload in payloads.items() if payload.place.host != CLIENT}
        self._labels = [roles[self._placement.role(rank)] for rank in range(self._placement.world_size)]
        self._beside = replace(setting.beside, payloads=packed, relayed=self._take_relay)
        self._listener = Listener(self._handle)
        self._relay: Relay | None = None
        self._relayed = threading.Event()
        self._pieces: dict[int, list[bytes]] = {}
        self._moving: set[int] = set()  # ranks that are on their way to another host
        self._lines = LastLines()
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._here = ClientNodes(program, payloads, running, (self._connect, self._send_states), setting.calls_run)
        self.client = self._here.client
        self._thread = threading.Thread(target=self._run, name="mesh-program", daemon=True)

    def start(self) -> None:
        """Begin the run."""
        set_client(self._program.id, self.client)
        self._thread.start()
        self._here.start()

    def _run(self) -> None:
        try:
            self._result = run_on(
                self._setting.cluster, self._spec, self._showing, listener=self._listener, beside=self._beside
            )
        except BaseException as error:
            self._error = error
        self._here.finish(REASONS.get(self._result.cause, "failure") if self._result is not None else "failure")
        self._running.finish()

    def _take_relay(self, relay: Relay) -> None:
        self._relay = relay
        self._relayed.set()

    def _connect(self, label: str) -> Link:
        """Return a link through the agent of a node's host. Raises OSError."""
        if self._relay is None:
            raise ConnectionError("its host is not connected yet")
        try:
            return SocketLink(self._relay.connect(role_of(label)))
        except MeshError as error:
            raise ConnectionError(str(error)) from error

    def _send_states(self, states: Mapping[str, State]) -> None:
        """Send the hosts the states of nodes here."""
        if self._relay is not None:
            self._relay.note([(role_of(label), state.value, 0, "") for label, state in states.items()])

    # ---- events of the run, in a thread of their own

    def _handle(self, event: Event) -> None:
        self._program.watch(event)
        match event:
            case Output(rank=rank, data=data):
                self._lines.add(rank, data)
            case RankReady(rank=rank):
                self._inform(lambda caller: caller.find(self._labels[rank]))
                self._running.note(self._labels[rank], State.READY)
            case Restarting(rank=rank, code=code, signal=number):
                reason = f"{told_end(code, number)}; it is started again{self._lines.below(rank)}"
                self._inform(lambda caller: caller.note_restart(self._labels[rank], reason))
                self._running.note(self._labels[rank], State.RESTARTING)
            case Moving(rank=rank, why=why):
                self._moving.add(rank)
                reason = f"{why or 'it moves to another host'}; it is started again{self._lines.below(rank)}"
                self._inform(lambda caller: (caller.cut if why else caller.note_restart)(self._labels[rank], reason))
                self._running.note(self._labels[rank], State.RESTARTING)
            case Kept(rank=rank):
                self._moving.discard(rank)
            case Restarted(node=node, rank=rank, attempt=attempt):
                self._moving.discard(rank)
                self._lines.forget(rank)
                if self._placement.node(rank) != node:
                    self._placement = self._placement.moved([(rank, node)])
                    self._running.note_host(self._labels[rank], self._placement.hosts[node].name)
                self._running.note_attempt(self._labels[rank], attempt + 1)
                self._here.begin(self._labels[rank])
            case Started(rank=rank):
                self._here.begin(self._labels[rank])
            case NodeResult(rank=rank, data=data, is_last=is_last):
                self._pieces.setdefault(rank, []).append(data)
                if is_last:
                    self._take_result(self._labels[rank], b"".join(self._pieces.pop(rank)))
            case ProgramStopped(rank=rank, code=code, why=why):
                self._running.note_stop(Stop(reason="stop", code=code, why=why, label=self._labels[rank]))
                self._here.stop("stop")
            case Exited(rank=rank, code=code, signal=number):
                self._exited(rank, code, number, told_end(code, number, is_oom=event.oom))
            case Lost(node=node, reason=reason):
                for rank in sorted(set(self._placement.ranks(node)) - self._moving):
                    self._lose(self._labels[rank], f"its host is lost: {reason}{self._lines.below(rank)}")
                    self._running.note(self._labels[rank], State.LOST, f"its host is lost: {reason}")

    def _inform(self, act: Callable[[Caller], object]) -> None:
        """Note news of a node for all callers of this process."""
        for caller in self._here.callers:
            act(caller)

    def _lose(self, label: str, reason: str) -> None:
        self._inform(lambda caller: caller.lose(label, reason))

    def _exited(self, rank: int, code: int, number: int, how: str) -> None:
        label = self._labels[rank]
        self._lose(label, how + (self._lines.below(rank) if code or number else ""))
        if (code or number) and self._running.first_stop is None:
            self._running.note(label, State.FAILED, how, code or 128 + number)
        else:
            self._running.note(label, State.ENDED)

    def _take_result(self, label: str, data: bytes) -> None:
        """Keep the value or failure of a node, which the plain codec reads."""
        try:
            kind, value = read_result(data)
            if kind == "failure":
                self._running.keep_failure(label, failures.rebuild(value))
            else:
                self._running.keep_result(label, value)
        except (ValueError, EOFError, OSError) as error:
            self._running.keep_failure(label, MeshError(f"{label}: its result cannot be read: {error}"))

    # ---- for users

    def restart(self, label: str, on: str = "") -> None:
        if label in self._here.labels:
            hint = f'on="{self._setting.cluster.hosts[0].name}" in place of on="client"'
            raise UsageError(f"{label}: a thread cannot be started again", hint=hint)
        if self._relay is None:
            raise MeshError(f"{label}: its host is not connected", hint=f"mesh check {self._setting.cluster.name}")
        if not on:
            self._relay.restart(role_of(label))
            return
        from mesh.api.stopping import restart_found

        restart_found(self._found(), [self._labels.index(label)], on=on)

    def stacks(self, labels: Sequence[str]) -> Stacks:
        ranks = ",".join(str(self._labels.index(label)) for label in labels if label not in self._here.labels)
        return stacks_of(self._found(), ranks)

    def logs(self, labels: Sequence[str], *, only_stderr: bool) -> str:
        ranks = {self._labels.index(label): label for label in labels if label not in self._here.labels}
        return output_of(self._spec.run, ranks, only_stderr=only_stderr)

    def detach(self) -> None:
        if self._spec.tied:
            raise UsageError(f"{self._program.name}: {self._spec.tied}", hint=untied_hint(self._setting))
        detach_found(self._found())
        self._thread.join()

    def _found(self) -> FoundRun:
        """Return the run with its own hosts, as they may have names that no cluster has."""
        record = find_record(self._spec.run, is_exact=True)
        return FoundRun(run=self._spec.run, clusters=(self._setting.cluster,), problems=(), record=record)

    # ---- the end

    def stop(self, stop: Stop) -> None:
        """Ask the nodes to end the program; where none answers, end the run as a signal does."""
        self._here.stop(stop.reason)
        threading.Thread(target=self._stop, args=(stop,), name="mesh-program-stop", daemon=True).start()

    def _stop(self, stop: Stop) -> None:
        may_ask = stop.reason == "stop" or stop.label in self._here.labels
        if not (may_ask and ask_to_stop(self.client, self._labels, stop.code, stop.why)):
            self._listener.end(signal.SIGTERM)

    def close(self) -> Stop | None:
        """Wait for the end of the run. Raises MeshError and UsageError where it could not be tried."""
        self._thread.join()
        set_client(self._program.id, None)
        self._here.close()
        if self._error is not None:
            raise self._error
        result = self._result
        assert result is not None
        reason = REASONS.get(result.cause, "failure")
        first = self._running.first_stop
        why = result.first_failure or "; ".join(result.failures)
        if first is not None and (first.reason == reason or first.label in self._here.labels):
            return replace(first, code=result.exit_code, why=first.why or why)
        return Stop(reason=reason, code=result.exit_code, why=why)
