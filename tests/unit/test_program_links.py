"""Links at their worst moments: nodes that are lost, stuck or busy just then."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_BUSY
from mesh.program import ending
from mesh.program.ending import ask_to_stop
from mesh.program.ledger import Ledger, Rules, Stop
from mesh.program.running import Running
from mesh.program.runtime import control
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions, Connection
from mesh.program.runtime.errors import CallTimeout, NodeLost, NotLaunched, RemoteError
from mesh.program.runtime.handles import Handle
from mesh.program.runtime.here import Context, Here
from mesh.program.runtime.links import Link, SocketLink, memory_links
from mesh.program.runtime.serving import Server
from tests.conftest import PATIENCE
from tests.lab import eventually

GREETING: dict[str, object] = {"program": "p", "to": "server", "from": ""}


@pytest.mark.parametrize("is_closed", [False, True], ids=["lost", "closed"])
def test_a_node_that_is_lost_while_its_link_is_made_fails_the_call(is_closed: bool) -> None:
    kept: list[Link] = []

    def connect(label: str) -> Link:
        one, other = memory_links()
        kept.append(other)  # which never answers
        caller.close() if is_closed else caller.lose(label, "its host is lost")
        return one

    caller = Caller(("p", ""), connect, {"server": "h"}, is_trusting=False)
    future = caller.to("server").call(("method", (), {}), CallOptions())
    error = future.exception(PATIENCE)
    assert isinstance(error, NodeLost | NotLaunched)
    caller.close()


def test_a_call_after_the_news_of_a_restart_takes_a_new_link_and_calls_before_have_the_reason() -> None:
    """The end of the old link may be read long after the new process is ready."""
    ends: list[Link] = []

    def connect(label: str) -> Link:
        one, other = memory_links()
        ends.append(other)
        return one

    caller = Caller(("p", ""), connect, {"server": "h"}, is_trusting=False, news_timeout=PATIENCE)
    before = caller.to("server").call(("method", (), {}), CallOptions())
    caller.note_restart("server", "ended by SIGKILL; it is started again")
    caller.find("server")
    after = caller.to("server").call(("method", (), {}), CallOptions())
    assert len(ends) == 2
    assert not before.done()
    ends[0].close()
    assert "ended by SIGKILL" in str(before.exception(PATIENCE))
    assert not after.done()
    caller.close()


def test_the_stop_of_the_program_ends_the_wait_for_reasons() -> None:
    one, other = memory_links()
    caller = Caller(("p", "client"), lambda label: one, {"server": "h"}, is_trusting=True, news_timeout=3600.0)
    context = Context(Here("p", "client", 0, 1, "h"), caller, lambda code, why: None)
    pending = caller.to("server").call(("method", (), {}), CallOptions())
    other.close()
    context.set_stopped("stop")
    assert isinstance(pending.exception(PATIENCE), NodeLost)
    caller.close()


def test_a_node_that_reads_nothing_holds_up_no_timeout_of_other_calls() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    stuck, other = (Connection(SocketLink(ours), GREETING, ("server", "h"), is_trusting=False) for ours, _ in pairs)
    big = ("method", (b"x" * (16 << 20),), {})
    sending = threading.Thread(target=lambda: stuck.call(big, CallOptions(timeout=0.2)), daemon=True)
    sending.start()
    future = other.call(("method", (), {}), CallOptions(timeout=0.5))
    assert isinstance(future.exception(PATIENCE), CallTimeout)
    for _, theirs in pairs:
        theirs.close()
    sending.join(PATIENCE)
    for connection in (stuck, other):
        connection.join(PATIENCE)


# ---- a node


class Odd(Exception):
    @property
    def exceptions(self) -> object:
        raise ValueError("no")


class Served:
    def __init__(self) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.begun.set()
        self.go_on.wait()

    def fail(self) -> None:
        raise Odd("odd")

    def same(self, value: object) -> object:
        return value

    def count(self) -> Iterator[int]:
        yield from range(3)


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def stops() -> list[tuple[int, str]]:
    """The stops of the program that were asked for."""
    return []


@pytest.fixture
def node(served: Served, stops: list[tuple[int, str]]) -> Iterator[Caller]:
    """The client of a node that runs one call at a time."""

    def connect(label: str) -> Link:
        one, other = memory_links()
        server.attach(other)
        return one

    caller = Caller(("p", ""), connect, {"server": "h"}, is_trusting=False)
    context = Context(Here("p", "server", 0, 1, "h"), caller, lambda code, why: stops.append((code, why)))
    server = Server(context, 1, 100, lambda error: None)
    server.open(served)
    yield caller
    served.go_on.set()
    caller.close()
    server.close()


def test_a_busy_node_ends_the_program_at_once(node: Caller, served: Served, stops: list[tuple[int, str]]) -> None:
    node.to("server").call(("wait", (), {}), CallOptions())
    assert served.begun.wait(PATIENCE)
    node.to("server").stop_program(3, "enough", CallOptions()).result(PATIENCE)
    assert stops == [(3, "enough")]


def test_a_node_takes_the_request_to_stop_behind_others_that_are_gone_or_hang(
    node: Caller, stops: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "STOP_TIMEOUT_S", 0.2)
    kept: list[Link] = []

    def connect(label: str) -> Link:
        if label == "gone":
            raise ConnectionError("nobody listens")
        if label == "server":
            return node._connect(label)
        one, other = memory_links()
        kept.append(other)  # which never answers
        return one

    caller = Caller(("p", ""), connect, {"server": "h"}, is_trusting=False)
    assert not ask_to_stop(caller, [], 3, "")
    assert not ask_to_stop(caller, ["hangs", "gone", "hangs-too"], 3, "")
    assert stops == []
    assert ask_to_stop(caller, ["hangs", "gone", "hangs-too", "server"], 3, "enough")
    assert stops == [(3, "enough")]
    caller.close()


def test_an_exception_that_cannot_be_described_ends_no_thread_of_the_node(node: Caller) -> None:
    for _ in range(2):
        error = node.to("server").call(("fail", (), {}), CallOptions()).exception(PATIENCE)
        assert isinstance(error, RemoteError)
        assert "Odd" in str(error)


def test_a_stream_without_a_buffer_has_room_for_one_item(node: Caller) -> None:
    handle: Handle[Served] = Handle("p", "server", caller=node)
    items = handle.options(buffer=0).stream.count()
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.extend(items), daemon=True)  # type: ignore[call-overload]
    reading.start()
    reading.join(PATIENCE)
    assert found == [0, 1, 2]


def test_every_stop_fits_into_a_message_and_has_a_status() -> None:
    message = control.stop_message(True, "\U0001f600" * 100_000)
    assert type(message["stop"]) is int
    assert len(json.dumps(message)) < control.MESSAGE_BYTES


def test_messages_that_were_sent_before_a_signal_are_taken_before_it_counts() -> None:
    """The thread that reads them may stand still; here it has not begun."""
    agent, node = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken: list[dict[str, object]] = []
    own = control.Control(node.detach(), taken.append, lambda: None)
    messages: list[dict[str, object]] = [{"news": "a/0", "state": "ready"}, {"stop": "preemption"}]
    for message in messages:
        agent.send(json.dumps(message).encode())
    own.catch_up(0.0)
    assert taken == messages
    own.start()
    agent.send(b'{"stop": "signal"}')
    assert eventually(lambda: len(taken) == 3)
    agent.close()
    own._thread.join(PATIENCE)
    own.leave()


@pytest.mark.parametrize("reason", ["stop", "preemption"])
def test_the_reason_of_a_signal_may_be_read_after_it(reason: str) -> None:
    caller = Caller(("p", "server"), lambda label: memory_links()[0], {}, is_trusting=True)
    context = Context(Here("p", "server", 0, 1, "h"), caller, lambda code, why: None)
    signalled = threading.Thread(target=context.set_signalled, args=(PATIENCE,), daemon=True)
    signalled.start()
    context.set_stopped(reason)
    signalled.join(PATIENCE)
    assert context.reason == reason
    alone = Context(Here("p", "server", 0, 1, "h"), caller, lambda code, why: None)
    alone.set_signalled(0.0)
    assert alone.reason == "signal"


def test_many_callers_of_one_node_lose_no_call(served: Served) -> None:
    def connect(label: str) -> Link:
        one, other = memory_links()
        server.attach(other)
        return one

    callers = [Caller(("p", str(number)), connect, {"server": "h"}, is_trusting=True) for number in range(256)]
    context = Context(Here("p", "server", 0, 1, "h"), callers[0], lambda code, why: None)
    server = Server(context, 1, 100, lambda error: None)
    server.open(served)
    futures = {
        (number, turn): caller.to("server").call(("same", ((number, turn),), {}), CallOptions())
        for turn in range(4)
        for number, caller in enumerate(callers)
    }
    assert {sent: future.result(PATIENCE) for sent, future in futures.items()} == {sent: sent for sent in futures}
    for caller in callers:
        caller.close()
    server.close(PATIENCE)


# ---- the end


class Detached:
    """Nodes that go on alone."""

    def stop(self, stop: Stop) -> None: ...

    def close(self) -> Stop:
        return Stop(reason="detached")


def test_the_result_of_a_node_that_goes_on_detached_is_not_waited_for() -> None:
    running = Running({"learner": "h"}, Ledger({"learner": Rules(runs=True)}), decides=lambda label, stop: False)
    running.attach(Detached())
    errors: list[Exception] = []

    def wait() -> None:
        try:
            running.result("learner")
        except Exception as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    running.finish()
    waiting.join(PATIENCE)
    (error,) = errors
    assert isinstance(error, MeshError)
    assert "left to its hosts" in str(error)


class Busy:
    """Nodes whose host has another run."""

    def stop(self, stop: Stop) -> None: ...

    def close(self) -> Stop:
        return Stop(reason="failure", code=EXIT_BUSY, why="h is busy")


def test_a_program_that_cannot_start_has_the_exit_status_of_its_run() -> None:
    running = Running({"learner": "h"}, Ledger({"learner": Rules(runs=True)}), decides=lambda label, stop: False)
    running.attach(Busy())
    running.finish()
    with pytest.raises(MeshError, match="learner: not started: h is busy") as refused:
        running.wait_ready(PATIENCE)
    assert refused.value.exit_code == EXIT_BUSY
