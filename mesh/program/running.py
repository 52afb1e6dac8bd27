"""A program that runs: its nodes, results and end, wherever they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from mesh.core.errors import MeshError
from mesh.program.choosing import Chosen, chosen
from mesh.program.ledger import OVER, Ledger, State, Stop
from mesh.program.runtime.book import role_of

if TYPE_CHECKING:
    from mesh.api.hangs import Stacks


RESTART_TIMEOUT_S = 300.0


class NodeState(Struct, frozen=True, kw_only=True):
    """A node of a running program."""

    label: str
    host: str
    state: State
    attempt: int = 1
    exit_code: int | None = None  # of its process, as a shell has it, and likewise of its thread; None: none


class ProgramResult(Struct, frozen=True, kw_only=True):
    """The end of a program."""

    exit_code: int
    reason: str  # "stop", "failure", "signal", "preemption", "timeout", "detached" where the hosts go on alone
    why: str = ""
    label: str = ""  # of the node that ended it
    failures: Mapping[str, BaseException] = field(default_factory=dict)  # of nodes, by label

    @property
    def ok(self) -> bool:
        """True if the program ended with status 0."""
        return self.exit_code == 0

    def raise_for_failure(self) -> None:
        """Raise the exception of the node that ended the program, if one did."""
        if self.label in self.failures:
            raise self.failures[self.label]
        if not self.ok:
            raise MeshError(f"{self.label or 'the program'}: {self.why or f'exit {self.exit_code}'}")


Decides = Callable[[str, Stop], bool]


def always(label: str, stop: Stop) -> bool:
    """Return True: this process ends the program."""
    return True


class Places(Protocol):
    """The part of a running program that depends on where its nodes are."""

    def stop(self, stop: Stop) -> None:
        """Have all nodes stop. Called once."""

    def restart(self, label: str, on: str = "") -> None:
        """Have the process of a node end, and the node start again at once. Raises MeshError and UsageError.

        on: name of another host, on which it starts; "": its own
        """

    def stacks(self, labels: Sequence[str]) -> Stacks:
        """Return where some nodes are. Raises MeshError and UsageError."""

    def logs(self, labels: Sequence[str], *, only_stderr: bool) -> str:
        """Return the output of some nodes up to now. Raises MeshError and UsageError."""

    def detach(self) -> None:
        """Have the hosts keep the program without this process. Raises MeshError and UsageError."""

    def close(self) -> Stop | None:
        """Wait until no node is left, and return how the program has ended; None: as it was stopped."""


class Running:
    """A launched program. As a context manager it stops the program at the end of the block."""

    def __init__(self, hosts: Mapping[str, str], ledger: Ledger, *, decides: Decides = always) -> None:
        """hosts: the name of each node's host, by label

        decides: gets a label and the end that follows from its node; False where the run's hosts end the program
        """
        self._hosts, self._ledger, self._decides = dict(hosts), ledger, decides
        self.run = ""  # the id by which `mesh logs` and all others find it; "": it is no run
        self._changed = threading.Condition()
        self._results: dict[str, object] = {}
        self._failures: dict[str, BaseException] = {}
        self._attempts = dict.fromkeys(hosts, 1)
        self._exits: dict[str, int] = {}
        self._places: Places | None = None
        self._stopping, self._has_finished = False, False
        self._end: ProgramResult | None = None
        self._closing = threading.Lock()

    # ---- for the threads or processes of the nodes

    def attach(self, places: Places) -> None:
        """Set the threads or processes that the nodes are in."""
        self._places = places

    def note(self, label: str, state: State, why: str = "", code: int = 1) -> None:
        """Note the state of a node, and stop the program if that follows."""
        with self._changed:
            match state:
                case State.READY:
                    self._ledger.ready(label)
                    stop = None
                case State.ENDED:
                    self._exits[label] = 0
                    stop = self._ledger.ended(label)
                case State.FAILED | State.LOST:
                    if state is State.FAILED:
                        self._exits[label] = code
                    stop = self._ledger.failed(label, why, state=state, code=code)
                case _:
                    self._ledger.states[label] = state
                    stop = None
            self._changed.notify_all()
        if stop is not None and self._decides(label, stop):
            self._carry_out(stop)

    def note_host(self, label: str, host: str) -> None:
        """Note that a node is on another host from now on."""
        with self._changed:
            self._hosts[label] = host

    def note_attempt(self, label: str, attempt: int) -> None:
        """Note that a node was started again. attempt: 2 for the second start"""
        with self._changed:
            self._attempts[label] = attempt
            self._failures.pop(label, None)  # of the attempt before
            self._changed.notify_all()

    def note_stop(self, stop: Stop) -> None:
        """Note that a node has ended the program."""
        with self._changed:
            self._ledger.stop(stop)
            self._changed.notify_all()

    def finish(self) -> None:
        """Note that nothing of the program is left."""
        with self._changed:
            self._stopping = self._has_finished = True
            self._changed.notify_all()

    @property
    def has_ended(self) -> bool:
        """True once nothing of the program is left."""
        return self._has_finished

    @property
    def first_stop(self) -> Stop | None:
        """The first reason for the end of the program that has reached this process; None: none yet."""
        return self._ledger.stopped

    def keep_result(self, label: str, value: object) -> None:
        """Keep the value of a node."""
        with self._changed:
            self._results[label] = value
            self._changed.notify_all()

    def keep_failure(self, label: str, error: BaseException) -> None:
        """Keep the exception of a node."""
        with self._changed:
            self._failures[label] = error

    def end(self, stop: Stop) -> None:
        """Stop the program for a reason; the first one counts."""
        with self._changed:
            first = self._ledger.stop(stop)
            self._changed.notify_all()
            is_over = self._has_finished
        if first is not None and not is_over:
            self._carry_out(first)

    def _carry_out(self, stop: Stop) -> None:
        assert self._places is not None
        self._places.stop(stop)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait_ready(self, timeout: float) -> None:
        """Wait until every node is ready. Raises the exception of one that fails before, MeshError if one is late.

        A program that ends before all of its nodes are ready has no more to wait for.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (self._ledger.is_ready or self._ledger.stopped is not None or self._stopping):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            late = [label for label, state in self._ledger.states.items() if state is State.STARTING]
            stop = self._ledger.stopped
        if stop is not None and stop.reason == "failure" and stop.label not in self._ledger.were_ready:
            result = self.wait()
            if result.label in result.failures:
                raise result.failures[result.label]
            raise MeshError(f"{self._place(result.label)}: {result.why}", hint=self._logs_hint(result.label))
        if stop is None and self._stopping and late:
            result = self.wait()
            if result.reason == "detached":
                return
            error = MeshError(f"{', '.join(late)}: not started: {result.why or result.reason}", hint=self._logs_hint())
            error.exit_code = result.exit_code or error.exit_code  # as `mesh run` exits: 75 if a host is busy
            raise error
        if stop is None and late:
            self.end(Stop(reason="timeout", code=125, why=f"not ready within {timeout:g} s: {', '.join(late)}"))
            self.wait()
            places = ", ".join(map(self._place, late))
            raise MeshError(f"not ready within {timeout:g} s: {places}", hint=self._logs_hint(late[0]))

    # ---- for users

    @property
    def nodes(self) -> list[NodeState]:
        """All nodes with host and state."""
        with self._changed:
            states = dict(self._ledger.states)
            attempts, exits = dict(self._attempts), dict(self._exits)
        return [
            NodeState(
                label=label,
                host=self._hosts[label],
                state=state,
                attempt=attempts[label],
                exit_code=exits.get(label),
            )
            for label, state in states.items()
        ]

    def __repr__(self) -> str:
        """Return a table of all nodes, for prompts and notebooks."""
        rows = [("node", "host", "state", "attempt")]
        rows += [(one.label, one.host, one.state.value, str(one.attempt)) for one in self.nodes]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def wait(self, timeout: float | None = None) -> ProgramResult:
        """Wait for the end of the program, until nothing of it is left. Raises TimeoutError after so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not (self._stopping or (self._ledger.is_over and self._ledger.stopped is not None)):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"the program still runs after {timeout:g} s")
                self._changed.wait(left)
        return self._closed()

    def _closed(self) -> ProgramResult:
        with self._closing:
            if self._end is None:
                assert self._places is not None
                stop = self._places.close() or self._ledger.stopped or Stop(reason="stop")
                self._end = ProgramResult(
                    exit_code=stop.code,
                    reason=stop.reason,
                    why=stop.why,
                    label=stop.label,
                    failures=dict(self._failures),
                )
            return self._end

    def result(self, label: str, timeout: float | None = None) -> object:
        """Wait for the value of a function or ``run()``; for the label of a group a list of them.

        Raises the exception of a node that failed, TimeoutError, KeyError for an unknown label, and MeshError for a
        node that has ended without a value, or that goes on detached: ``connect`` fetches its result.
        """
        members = chosen(label, list(self._hosts))
        if label not in self._hosts:
            return [self.result(one, timeout) for one in members]
        with self._changed:
            self._changed.wait_for(lambda: self._has_end(label), timeout)
            is_left = self._has_finished and self._end is None
        if is_left:
            self._closed()
        with self._changed:
            if label in self._failures:
                raise self._failures[label]
            if label in self._results:
                return self._results[label]
            if not self._has_end(label):
                raise TimeoutError(f"{self._place(label)}: still runs after {timeout:g} s")
            if self._end is not None and self._end.reason == "detached":
                hint = f"connect({self.run!r}).result({label!r}) fetches it"
                raise MeshError(f"{label}: has no result here (the program was left to its hosts)", hint=hint)
        hint = "a function and run() of a class return one; the methods of a node answer calls only"
        raise MeshError(f"{self._place(label)}: ended without a result", hint=hint)

    def _has_end(self, label: str) -> bool:
        is_over = self._has_finished or self._end is not None  # detached nodes go on, and their ends are not seen
        return is_over or label in self._results or self._ledger.states[label] in OVER

    @property
    def results(self) -> dict[str, object]:
        """The values of nodes that have ended, by label."""
        with self._changed:
            return dict(self._results)

    def stop(self, code: int = 0, why: str = "") -> ProgramResult:
        """Stop all nodes and wait until nothing of them is left."""
        self.end(Stop(reason="stop", code=code, why=why))
        return self.wait()

    def restart(self, node: Chosen, timeout: float = RESTART_TIMEOUT_S, *, on: str = "") -> None:
        """End the process of a node, start it again at once, and wait until it is ready for calls.

        node: its label or handle; a group is started again as a whole. The calls that the old process had fail with
        NodeLost, and handles go on working. The restart does not count as a failure.
        on: a spare host of the cluster, on which it starts; "": its own host
        timeout: seconds, after which TimeoutError is raised
        Raises KeyError for an unknown label, UsageError for nodes that are threads, and MeshError for a node that has
        ended for good.
        """
        labels = chosen(node, list(self._hosts))
        with self._changed:
            over = [label for label in labels if self._has_finished or self._ledger.states[label] in OVER]
            before = {label: self._attempts[label] for label in labels}
        if over:
            raise MeshError(f"{', '.join(over)}: cannot be started again (it has ended)", hint="program.launch() again")
        for label in labels:
            self._where.restart(label, on)
        with self._changed:
            self._changed.wait_for(lambda: all(self._is_back(label, before[label]) for label in labels), timeout)
            states = {label: self._ledger.states[label] for label in labels}
            late = [label for label in labels if not self._is_back(label, before[label])]
        if late:
            raise TimeoutError(f"{', '.join(late)}: not ready {timeout:g} s after the restart")
        if failed := [label for label, state in states.items() if state is not State.READY]:
            places = ", ".join(map(self._place, failed))
            raise MeshError(f"{places}: not ready after the restart (it has ended)", hint=self._logs_hint(failed[0]))

    def _is_back(self, label: str, attempt: int) -> bool:
        """Return True for a node that is ready again, or has ended for good. attempt: before the restart"""
        state = self._ledger.states[label]
        return self._has_finished or state in OVER or (state is State.READY and self._attempts[label] > attempt)

    def stacks(self, node: Chosen | None = None) -> Stacks:
        """Return where each process of the program is: its Python stacks. node: a label, handle or group; None: all

        Raises KeyError for an unknown label, UsageError if none of the nodes runs.
        """
        return self._where.stacks(chosen(node, list(self._hosts)))

    def logs(self, node: Chosen | None = None, *, stderr: bool = False) -> str:
        """Return the output of the program up to now, in order of arrival.

        node: a label, handle or group; None: all. With several nodes each line begins with its label.
        stderr: only what went there
        Raises KeyError for an unknown label, UsageError for nodes that are threads: they print with this process.
        """
        return self._where.logs(chosen(node, list(self._hosts)), only_stderr=stderr)

    def detach(self) -> ProgramResult:
        """Leave the program to its hosts, and return once they run it without this process.

        Handles end with it; ``mesh attach RUN`` comes back. Raises UsageError for nodes that are threads, MeshError if
        a host does not keep it.
        """
        self._where.detach()
        return self.wait()

    @property
    def _where(self) -> Places:
        assert self._places is not None
        return self._places

    def _place(self, label: str) -> str:
        """Return a node with its host, for people."""
        host = self._hosts.get(label, "")
        return f"{label} on {host}" if host else label

    def _logs_hint(self, label: str = "") -> str:
        """Return the command that shows what a node has printed. label: "" for all"""
        role = role_of(label) if label else ""
        return f"mesh logs {self.run}{f' --rank {role}' if role else ''}" if self.run else ""

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
