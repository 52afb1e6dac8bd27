"""A program in threads of this process. Arguments and results pass the codec, so that what cannot travel fails here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from mesh.api.hangs import Stacks
from mesh.core.errors import MeshError, UsageError
from mesh.program.graph import Graph
from mesh.program.ledger import State, Stop
from mesh.program.looking import stacks_of_threads
from mesh.program.payload import Payload
from mesh.program.placing import ranks_of
from mesh.program.running import Running
from mesh.program.runtime import codec, failures, plain
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.errors import CLIENT, ENDED, NodeLost
from mesh.program.runtime.here import CURRENT, Context, Here, set_client, set_threaded
from mesh.program.runtime.links import Link, memory_links
from mesh.program.runtime.member import FAILURE_STATUS, Member, exit_status
from mesh.program.runtime.retrying import wait_for_others
from mesh.program.runtime.serving import Server

STOP_TIMEOUT_S = 10.0  # for threads to return once the program is stopped
ANSWERS_TIMEOUT_S = 2.0  # for the last answers of a node to be read


class Threads:
    """The nodes of one program as threads."""

    def __init__(self, program: Graph, payloads: Mapping[str, Payload], running: Running, calls_run: bool) -> None:
        self._program, self._running = program, running
        self._hosts = {label: payload.place.host for label, payload in payloads.items()}
        self.client = Caller((program.id, ""), self._connect, self._hosts, program.trust_hosts)
        nowhere = Here(program.name, "", 0, 1, "")
        self._threaded = Context(nowhere, self.client, self._stop_from(""))
        places = [payload.place for payload in payloads.values()]
        named = [name for node in program.nodes for name in node.wish.hosts]
        ranks = ranks_of(places, [*named, *(place.host for place in places)])
        self._nodes = {label: self._node(payload, calls_run, ranks[label]) for label, payload in payloads.items()}

    def start(self) -> None:
        """Start all threads."""
        set_client(self._program.id, self.client)
        set_threaded(self._program.id, self._threaded)
        for node in self._nodes.values():
            node.thread.start()

    def _node(self, payload: Payload, calls_run: bool, rank: int) -> NodeThread:
        place = payload.place
        here = Here(self._program.name, place.label, place.index, place.count, place.host, rank)
        caller = Caller((self._program.id, place.label), self._connect, self._hosts, is_trusting=True)
        context = Context(here, caller, self._stop_from(place.label))
        node = NodeThread(payload, context, self._running, calls_run)
        node.on_ending, node.on_end = self._explain_end, self._note_end
        return node

    def _explain_end(self, label: str, reason: str) -> None:
        """Note why the links to a node will end, for all callers."""
        self.client.note_restart(label, reason)
        for other, node in self._nodes.items():
            if other != label:
                node.context.caller.note_restart(label, reason)

    def _note_end(self, label: str, reason: str) -> None:
        """Fail the calls of the client and of all other nodes to a node that has ended, behind its last answers."""
        deadline = time.monotonic() + ANSWERS_TIMEOUT_S
        others = [node.context.caller for other, node in self._nodes.items() if other != label]
        for caller in (self.client, *others):
            caller.settle(label, max(0.0, deadline - time.monotonic()))
            caller.lose(label, reason)

    def _stop_from(self, label: str) -> _StopFrom:
        return _StopFrom(self._running, label)

    def _connect(self, label: str) -> Link:
        """Return a link to a node. Raises NodeLost once it has ended."""
        node = self._nodes.get(label)
        if node is None or node.has_ended:
            reason = "there is no such node" if node is None else "it has failed" if node.has_failed else ENDED
            raise NodeLost(label, self._hosts.get(label, ""), reason)
        one, other = memory_links()
        node.server.attach(other)
        return one

    def stop(self, stop: Stop) -> None:
        for node in self._nodes.values():
            node.context.set_stopped(stop.reason)
        self._threaded.set_stopped(stop.reason)

    def restart(self, label: str, on: str = "") -> None:
        """Raise UsageError, because a thread cannot be ended from outside."""
        raise UsageError(f"{label}: a thread cannot be started again", hint='program.launch("local")')

    def stacks(self, labels: Sequence[str]) -> Stacks:
        """Return where the threads of some nodes are."""
        return stacks_of_threads(self._program.name, self._hosts, labels)

    def logs(self, labels: Sequence[str], *, only_stderr: bool) -> str:
        """Raise UsageError, because the nodes print with this process."""
        hint = 'program.launch("local") keeps the output of each node'
        raise UsageError(f"{self._program.name}: its nodes are threads, and print with this process", hint=hint)

    def detach(self) -> None:
        """Raise UsageError, because the nodes end with this process."""
        hint = 'program.launch() on hosts, or launch("local")'
        raise UsageError(f"{self._program.name}: its nodes are threads, and end with this process", hint=hint)

    def close(self) -> None:
        """Wait for all threads. Raises MeshError for nodes that do not stop."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in self._nodes.values():
            if node.thread is not threading.current_thread():
                node.thread.join(max(0.0, deadline - time.monotonic()))
        set_client(self._program.id, None)
        set_threaded(self._program.id, None)
        self.client.close()
        for node in self._nodes.values():
            node.end()
        late = [label for label, node in self._nodes.items() if node.thread.is_alive()]
        if late:
            hint = "a run() ends by itself once wait_for_stop() returns; threads cannot be killed"
            raise MeshError(f"{', '.join(late)}: still running {STOP_TIMEOUT_S:g} s after the stop", hint=hint)


class _StopFrom:
    """The ``stop()`` of one node."""

    def __init__(self, running: Running, label: str) -> None:
        self._running, self._label = running, label

    def __call__(self, code: int, why: str) -> None:
        self._running.end(Stop(reason="stop", code=code, why=why, label=self._label))


class NodeThread:
    """A node and its thread."""

    def __init__(self, payload: Payload, context: Context, running: Running, calls_run: bool) -> None:
        self._payload, self.context, self._running = payload, context, running
        loads = plain.loads if context.here.host == CLIENT else codec.loads
        self.server = Server(context, payload.concurrency, payload.backlog, self._fail, loads)
        self._member = Member(context, self.server, calls_run)
        self.has_ended = self.has_failed = False
        # Called with the reason for its loss: before its links end, behind its last answers, and afterwards.
        self.on_ending: Callable[[str, str], None] = lambda label, reason: None
        self.on_end: Callable[[str, str], None] = lambda label, reason: None
        self._ending = threading.Lock()
        self.thread = threading.Thread(target=self._work, name=f"mesh-{context.here.label}", daemon=True)

    def _work(self) -> None:
        label = self.context.here.label
        CURRENT.context = self.context
        try:
            wait_for_others(self.context, self._payload.after)
            self._member.construct(*self._payload.body)
            self._running.note(label, State.READY)
            if not self._member.runs:
                self.context.stopped.wait()
                self._finish(State.ENDED)
                return
            value = self._member.run()
            body, buffers = plain.dumps(value)
            self._running.keep_result(label, plain.loads(body, buffers))
        except SystemExit as error:
            self._exit(exit_status(error))
            return
        except BaseException as error:
            if self.context.stopped.is_set():  # calls and waits break as the other nodes stop
                self._finish(State.ENDED)
            else:
                self._fail(error)
            return
        self._finish(State.ENDED)

    def _exit(self, status: int) -> None:
        """End as a process does by ``sys.exit``: well with status 0."""
        if self.context.stopped.is_set() or not status:
            self._finish(State.ENDED)
        else:
            self._finish(State.FAILED, f"exit {status}", status)

    def _fail(self, error: BaseException) -> None:
        here = self.context.here
        failures.print_failure(error, here.label)
        self._running.keep_failure(here.label, failures.rebuild(failures.describe(error, here.label, here.host)))
        self._finish(State.FAILED, f"{type(error).__name__}: {error}", exit_status(error) or FAILURE_STATUS)

    def _finish(self, state: State, why: str = "", code: int = 1) -> None:
        """Report the end of the node; callers get NodeLost from now on."""
        with self._ending:
            if self.has_ended:
                return
            self.has_failed = state is State.FAILED
            self.has_ended = True
        label, reason = self.context.here.label, f"it has failed ({why})" if self.has_failed else ENDED
        self._running.note(label, state, why, code)
        self.on_ending(label, reason)
        self.end()
        self.on_end(label, reason)

    def end(self) -> None:
        """End the links of the node."""
        self.has_ended = True
        self.server.close()
        self.context.caller.close()
