"""Programs in threads: calls, futures, errors, streams, batches, the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

import mesh.program
from mesh.core.errors import UsageError
from mesh.program import (
    CallTimeout,
    CannotTravel,
    Command,
    Deferred,
    Group,
    GroupError,
    Handle,
    NodeLost,
    NotLaunched,
    NotServed,
    Opaque,
    Program,
    RemoteError,
    batched,
    cancelled,
    here,
    me,
    peers,
    stop,
    stop_reason,
    wait_for_stop,
)
from tests.conftest import PATIENCE
from tests.pythons import pythons

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class Wrong(Exception):
    """An error of our own."""


@dataclasses.dataclass
class Batch:
    data: numpy.ndarray
    label: str


class Broken:
    def __init__(self) -> None:
        raise KeyError("broken")


AT_THE_GATE = threading.Event()  # for a test whose node has no second thread that it could ask


class Actor:
    def __init__(self, scale: int = 1) -> None:
        self.scale, self.calls, self.gate = scale, 0, threading.Event()
        self.begun = threading.Event()
        self.closed = 0

    def act(self, step: int) -> Batch:
        self.calls += 1
        return Batch(numpy.full(3, step * self.scale), here().label)

    def whoami(self) -> tuple[str, int, int, str, list[str]]:
        place = here()
        return place.label, place.index, place.count, me().label, [one.label for one in peers()]

    def fail(self, text: str) -> None:
        raise Wrong(text)

    def fail_at(self, index: int) -> int:
        if here().index == index:
            raise ValueError(f"index {index}")
        return here().index

    def wait_at_the_gate(self) -> str:
        self.begun.set()
        AT_THE_GATE.set()
        while not self.gate.wait(0.01):
            if cancelled():
                self.closed += 1
                return "cancelled"
        return "through"

    def wait_begun(self) -> bool:
        found = self.begun.wait(PATIENCE)
        self.begun.clear()
        return found

    def open(self) -> None:
        self.gate.set()

    async def double(self, value: int) -> int:
        await asyncio.sleep(0)
        return 2 * value

    async def hang(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(PATIENCE * 10)
        finally:
            self.closed += 1

    def count(self, limit: int) -> Iterator[int]:
        try:
            for number in range(limit):
                self.calls += 1
                yield number
        finally:
            self.closed += 1

    def how_many(self) -> tuple[int, int]:
        return self.calls, self.closed

    def custom(self) -> object:
        return Actor.__new__(Actor).__class__, threading  # a module cannot be sent

    def keep(self, value: object) -> str:
        return type(value).__name__

    def secret(self) -> object:
        return Private()

    @batched(size=4, wait=PATIENCE)
    def total(self, rows: numpy.ndarray) -> numpy.ndarray:
        self.calls += 1
        return rows.sum(axis=1)


class Private:
    """No dataclass: the client gets it as text."""


class Learner:
    def __init__(self, actors: Group[Actor], steps: int) -> None:
        self.actors, self.steps = actors, steps

    def run(self) -> list[str]:
        for step in range(self.steps):
            batches = self.actors.act(step)
        stop(why="learned")
        return [batch.label for batch in batches]  # type: ignore[attr-defined]


def test_a_program_of_actors_and_a_learner() -> None:
    program = Program("impala")
    actors = program.add(Actor, on="tpu-[0-3]", per_host=2)
    program.add(Learner, actors, 5, on="gpu-0")
    assert [(one.label, type(one)) for one in actors][7] == ("actor/7", Handle)
    with pytest.raises(NotLaunched):
        actors.act(1)
    with program.launch("threads") as running:
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.reason, result.why) == (0, "stop", "learned")
    assert running.result("learner") == [f"actor/{index}" for index in range(8)]
    assert {one.label: one.host for one in running.nodes}["actor/5"] == "tpu-2"
    with pytest.raises(NotLaunched):
        actors.act(1)


@pytest.fixture
def actor() -> Iterator[Handle[Actor]]:
    program = Program("one")
    found = program.add(Actor, concurrency=4)
    assert isinstance(found, Handle)
    with program.launch("threads"):
        yield found


@pytest.fixture
def actors() -> Iterator[Group[Actor]]:
    program = Program("three")
    found = program.add(Actor, count=3)
    assert isinstance(found, Group)
    with program.launch("threads"):
        yield found


def test_arguments_and_results_are_copies(actor: Handle[Actor]) -> None:
    data = numpy.zeros(100_000)
    first, second = actor.methods.act(1), actor.methods.act(1)
    assert isinstance(first, Batch)
    assert first.data is not second.data
    first.data += 1  # it can be written
    assert actor.keep(data) == "ndarray"
    assert actor.whoami() == ("actor", 0, 1, "actor", ["actor"])


def test_a_remote_exception_has_its_own_class(actor: Handle[Actor]) -> None:
    with pytest.raises(Wrong, match="no luck") as caught:
        actor.fail("no luck")
    error = caught.value
    assert isinstance(error, RemoteError)
    assert (error.label, error.host) == ("actor", "local")
    assert "in fail" in error.traceback


def test_a_missing_method_names_the_nearest_one(actor: Handle[Actor]) -> None:
    with pytest.raises(NotServed, match="'count'"):
        actor.cuont()
    with pytest.raises(AttributeError):
        actor._private  # noqa: B018
    assert not hasattr(actor, "__len__")


def test_futures_are_awaited_and_wait_together(actor: Handle[Actor]) -> None:
    async def all_at_once() -> list[object]:
        return await asyncio.gather(*[actor.futures.double(number) for number in range(5)])

    assert asyncio.run(all_at_once()) == [0, 2, 4, 6, 8]
    futures = [actor.futures.double(number) for number in range(50)]
    done, waiting = concurrent.futures.wait(futures, timeout=PATIENCE)
    assert not waiting
    assert sum(future.result() for future in done) == 2450


def test_a_call_ends_at_its_timeout_and_the_next_one_works(actor: Handle[Actor]) -> None:
    def has_ended_there() -> object:
        """Call once more: on a slow machine the time of a call may be over before it has begun."""
        with pytest.raises(CallTimeout, match=r"actor on local: no answer within 0\.05 s"):
            actor.options(timeout=0.05).wait_at_the_gate()
        assert actor.options(timeout=PATIENCE).double(2) == 4
        return actor.how_many()[1]  # type: ignore[index]

    assert eventually(has_ended_there)


def test_a_cancelled_call_ends_at_both_ends(actor: Handle[Actor]) -> None:
    for method in ("wait_at_the_gate", "hang"):
        future = getattr(actor.futures, method)()
        assert actor.wait_begun()
        assert future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
    assert eventually(lambda: actor.how_many()[1] == 2)  # type: ignore[index]


def test_a_call_that_was_cancelled_before_its_turn_never_begins() -> None:
    program = Program("one")
    actor = program.add(Actor)
    with program.launch("threads"):
        AT_THE_GATE.clear()
        blocking = actor.futures.wait_at_the_gate()
        assert AT_THE_GATE.wait(PATIENCE)
        waiting = actor.futures.act(1)
        assert waiting.cancel()
        late = actor.options(timeout=0.05).futures.act(1)
        assert isinstance(late.exception(PATIENCE), CallTimeout)
        blocking.cancel()
        assert actor.how_many() == (0, 1)


def test_a_stream_has_credits_and_ends_with_its_loop(actor: Handle[Actor]) -> None:
    assert list(actor.stream.count(100)) == list(range(100))
    for number in actor.options(buffer=4).stream.count(10**9):
        if number == 10:
            break
    del number
    assert eventually(lambda: actor.how_many()[1] == 2)  # type: ignore[index]
    calls, _ = actor.how_many()
    assert calls <= 100 + 10 + 8
    with pytest.raises(Wrong):
        next(iter(actor.stream.fail("at once")))


def test_a_group_calls_all_and_names_those_that_fail(actors: Group[Actor]) -> None:
    assert [one[0] for one in actors.whoami()] == ["actor/0", "actor/1", "actor/2"]
    assert [one.data[0] for one in actors.each.act([1, 2, 3])] == [1, 2, 3]
    with pytest.raises(GroupError, match=r"1 of 3 calls failed \(actor/1\); actor/1 on local: index 1") as caught:
        actors.fail_at(1)
    assert caught.value.results[0] == 0
    assert isinstance(caught.value.errors[1], ValueError)
    assert isinstance(caught.value.__cause__, ValueError)
    assert {handle.label: result for handle, result in actors.stream_done.fail_at(7)} == {
        "actor/0": 0,
        "actor/1": 1,
        "actor/2": 2,
    }
    with pytest.raises(ValueError, match="2 arguments for 3 nodes"):
        actors.each.act([1, 2])


def test_any_takes_a_node_that_is_free(actors: Group[Actor]) -> None:
    blocking = [actors[0].futures.wait_at_the_gate(), actors[2].futures.wait_at_the_gate()]
    assert [actors.any.fail_at(9) for _ in range(3)] == [1, 1, 1]
    for future in blocking:
        future.cancel()


def test_a_call_without_an_answer_fails_its_node() -> None:
    program = Program("one")
    actor = program.add(Actor)
    with program.launch("threads") as running:
        actor.tell.act(1)
        assert eventually(lambda: actor.how_many()[0] == 1)
        actor.tell.fail("unseen")
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.reason, result.label) == (1, "failure", "actor")
    assert isinstance(result.failures["actor"], Wrong)


def test_batches_run_together() -> None:
    program = Program("one")
    actor = program.add(Actor, concurrency=4)
    with program.launch("threads"):
        futures = [actor.futures.total(numpy.full(3, number)) for number in range(4)]
        assert [int(future.result(PATIENCE)) for future in futures] == [0, 3, 6, 9]
        assert actor.how_many()[0] == 1


def test_other_values_come_to_the_client_as_text_and_go_back_whole(actor: Handle[Actor]) -> None:
    found = actor.secret()
    assert isinstance(found, Opaque)
    assert found.type_name.endswith(":Private")
    assert actor.keep(found) == "Private"
    with pytest.raises(CannotTravel):
        actor.keep(threading.Lock())


def returns(value: int) -> int:
    return value + here().index


def raises() -> None:
    raise Wrong("from a function")


def waits() -> str:
    wait_for_stop()
    return stop_reason()


def make_scale(value: int) -> int:
    return value * 2


def test_threads_have_stacks_and_neither_restart_nor_logs_nor_a_life_of_their_own() -> None:
    program = Program("looked-at")
    program.add(waits, count=2)
    with program.launch("threads") as running:
        found = running.stacks("waits/1").groups
        assert {one.program for one in found} == {"waits/1"}
        assert "waits" in [frame.function for one in found for frame in one.frames]
        assert {one.rank for one in running.stacks().groups for one in one.processes} == {0, 1}
        for call in (lambda: running.restart("waits/0"), running.logs, running.detach):
            with pytest.raises(UsageError, match="thread"):
                call()


OPEN = threading.Event()
ORDER: list[str] = []


class First:
    def __init__(self) -> None:
        assert OPEN.wait(PATIENCE)
        ORDER.append("first")


class Second:
    def __init__(self) -> None:
        ORDER.append("second")


def test_a_node_is_made_after_those_that_it_names() -> None:
    OPEN.clear()
    ORDER.clear()
    program = Program("ordered")
    first = program.add(First)
    done = program.add(returns, 1)
    program.add(Second, after=[first, done])
    program.add(waits)
    opening = threading.Timer(0.2, OPEN.set)
    opening.start()
    with program.launch("threads"):
        assert ORDER == ["first", "second"]
    opening.join()


def test_a_node_of_a_group_that_is_not_there_is_refused() -> None:
    program = Program("number")
    program.add(Actor, count=2)
    program.add(Second, after="actor/2")
    with pytest.raises(UsageError, match="after= names actor/2, which is not there"):
        program.launch("threads")


def test_a_node_that_never_is_ready_fails_those_that_wait_for_it() -> None:
    program = Program("never")
    program.add(Second, after=program.add(Broken, label="actor", on_failure="ignore"))
    with pytest.raises(NodeLost, match="actor on local"):
        program.launch("threads")


def test_the_stop_ends_the_wait_for_other_nodes() -> None:
    OPEN.clear()
    program = Program("stopped")
    program.add(Second, after=program.add(First))
    program.add(stop, 3)
    with program.launch("threads") as running:
        OPEN.set()
        assert running.wait(PATIENCE).exit_code == 3


def test_a_call_that_may_be_repeated_is_cancelled_and_times_out_as_a_whole(actor: Handle[Actor]) -> None:
    often = actor.options(retries=3)
    assert often.double(2) == 4
    with pytest.raises(Wrong):
        often.fail("once")
    future = often.futures.wait_at_the_gate()
    assert actor.options(timeout=PATIENCE).whoami is not None
    assert future.cancel()
    with pytest.raises(CallTimeout):
        actor.options(retries=3, timeout=0.1).wait_at_the_gate()
    assert pickle.loads(pickle.dumps(often))._options.retries == 3


def test_a_node_on_the_client_reads_arguments_by_the_plain_codec() -> None:
    program = Program("client")
    actor = program.add(Actor, on="client")
    assert isinstance(actor, Handle)
    with program.launch("threads") as running:
        assert running.nodes[0].host == "client"
        assert actor.double(2) == 4
        assert actor.keep(Opaque("text", "text")) == "Opaque"


def test_functions_have_results_and_the_program_ends_with_the_last() -> None:
    program = Program("functions")
    program.add(returns, 10, count=3)
    program.add(Actor)  # only serves, and is stopped at the end
    with program.launch("threads") as running:
        result = running.wait(PATIENCE)
    assert result.ok
    assert running.result("returns") == [10, 11, 12]
    assert running.result("returns/1") == 11
    with pytest.raises(KeyError):
        running.result("nobody")


def test_a_failure_stops_all_nodes_and_names_the_first() -> None:
    program = Program("failing")
    program.add(waits)
    program.add(raises)
    with program.launch("threads") as running:
        result = running.wait(PATIENCE)
        assert running.result("waits") == "failure"
    assert (result.exit_code, result.reason, result.label) == (1, "failure", "raises")
    assert [node.exit_code for node in running.nodes] == [0, 1]
    assert repr(running).splitlines() == [
        "node    host   state   attempt",
        "waits   local  ended   1",
        "raises  local  failed  1",
    ]
    with pytest.raises(Wrong):
        result.raise_for_failure()
    with pytest.raises(Wrong):
        running.result("raises")


def test_a_failure_that_is_ignored_loses_its_node_only() -> None:
    program = Program("ignoring")
    program.add(raises, on_failure="ignore")
    actor = program.add(Actor)
    program.add(waits)
    with program.launch("threads") as running:
        assert eventually(lambda: running.nodes[0].state.value == "failed")
        assert actor.double(1) == 2
        assert running.stop().ok


def test_calls_to_a_node_that_has_ended_fail_at_once() -> None:
    program = Program("ended")
    short = program.add(returns, 1)
    program.add(waits)
    with program.launch("threads") as running:
        assert running.result("returns", PATIENCE) == 1
        assert eventually(lambda: running.nodes[0].state.value == "ended")
        with pytest.raises(NodeLost, match="returns on local"):
            short.anything()


def test_a_constructor_that_raises_fails_the_launch() -> None:
    program = Program("broken")
    program.add(Broken)
    with pytest.raises(KeyError, match="broken"):
        program.launch("threads")


@pytest.mark.parametrize(("code", "status"), [(0, 0), (None, 0), (7, 7), ("a text", 1)])
def test_a_thread_that_exits_has_the_status_of_a_process(code: object, status: int) -> None:
    program = Program("exits")
    program.add(sys.exit, code)
    with program.launch("threads") as running:
        assert running.wait(PATIENCE).exit_code == status
        assert [node.exit_code for node in running.nodes] == [status]


def test_a_command_in_a_thread_has_its_status() -> None:
    program = Program("command")
    program.add(Command("sh", "-c", "exit 7"))
    with program.launch("threads") as running:
        assert running.wait(PATIENCE).exit_code == 7


def test_a_deferred_argument_is_made_at_the_node(actor: Handle[Actor]) -> None:
    program = Program("deferred")
    found = program.add(Actor, scale=Deferred(make_scale, 4))
    with program.launch("threads"):
        assert found.methods.act(1).data[0] == 8


def test_every_caller_is_served_and_no_call_is_lost() -> None:
    program = Program("many")
    actor = program.add(Actor, concurrency=2, backlog=4)
    with program.launch("threads"), concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda number: actor.double(number), range(500)))
    assert results == [2 * number for number in range(500)]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda program: program.add(Actor, count=0), "at least 1"),
        (lambda program: program.add(Actor, on_failure="explode"), "explode"),
        (lambda program: program.add(Actor, concurrency="many"), "concurrency"),
        (lambda program: program.add(3), "a class, a function or a Command"),
        (lambda program: program.add(Actor, label="a b"), "a node cannot be called"),
        (lambda program: program.add(Actor, per_host=2), "per_host needs on="),
        (lambda program: program.add(Actor, after="nobody"), "after= names nobody"),
        (lambda program: program.add(Actor, after=3), "after= is a handle"),
        (lambda program: program.add(Actor, on="client,a"), "has the client and hosts"),
        (lambda program: program.add(Actor(), on="a"), "a class, a function or a Command, not Actor"),
        (lambda program: program.add(Actor, 1, 2), "actor: too many positional arguments"),
        (lambda program: program.add(Actor, perhost=2), "perhost"),
        (lambda program: program.add(Command("ls"), "-l"), "a Command has its arguments in its own words"),
        (lambda program: program.add(Actor, restarts=3), "belong together"),
        (lambda program: program.add(Actor, env={"A": 1}), "actor: env=: Expected"),
        (lambda program: program.add(Actor, on_failure="restart"), "belong together"),
        (lambda program: program.add(Actor, on="a-[3-1]"), "goes backwards"),
        (lambda program: program.mailbox("box", "stack"), "expected a mailbox of"),
        (lambda program: program.launch("nowhere"), "no nodes"),
    ],
)
def test_wrong_nodes_are_refused_with_a_hint(add: Callable[[Program], object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        add(Program("wrong"))
    assert refused.value.hint


def test_a_label_that_no_node_has_names_the_nearest() -> None:
    program = Program("labels")
    program.add(Actor, label="learner")
    with (
        program.launch("threads") as running,
        pytest.raises(KeyError, match="no node 'lerner'; the nearest is 'learner'"),
    ):
        running.result("lerner")


class Starter:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def stop_from_a_thread(self) -> None:
        def work() -> None:
            stop(3, "from a thread")
            wait_for_stop()

        thread = threading.Thread(target=work)
        thread.start()

    def rank(self) -> int:
        return here().rank


def test_a_thread_that_a_node_has_started_ends_the_program() -> None:
    program = Program("starter")
    starter = program.add(Starter)
    with program.launch("threads") as running:
        starter.tell.stop_from_a_thread()
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.why) == (3, "from a thread")


def test_nodes_that_are_threads_have_the_ranks_of_processes() -> None:
    program = Program("ranks")
    first = program.add(Starter, on="b,a", per_host=2, label="first")
    second = program.add(Starter, on="b", label="second")
    with program.launch("threads"):
        assert (first.rank(), second.rank()) == ([0, 1, 3, 4], 2)


def test_a_call_that_is_open_when_its_node_fails_has_the_reason() -> None:
    program = Program("reasons")
    actor = program.add(Actor, concurrency=2)
    with program.launch("threads") as running:
        pending = actor.futures.wait_at_the_gate()
        actor.tell.fail("told")
        assert "actor on local: it has failed (Wrong: told)" in str(pending.exception(PATIENCE))
        assert running.wait(PATIENCE).label == "actor"


def eventually(condition: Callable[[], object]) -> bool:
    """Ask until it is true. Each question is a call, so that this never sleeps idly for long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_importing_the_names_of_nodes_is_cheap_and_needs_the_standard_library_only() -> None:
    script = "import sys; from mesh.program import stop, here, Handle; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"msgspec", "sqlalchemy", "paramiko", "yaml", "numpy", "fabric"})
    assert "mesh.config" not in done.stdout


def test_a_host_without_the_launching_half_can_import_the_names(tmp_path: Path) -> None:
    shipped = tmp_path / "mesh"
    (shipped / "program").mkdir(parents=True)
    (shipped / "__init__.py").touch()
    source = Path(mesh.program.__file__).parent
    shutil.copy(source / "__init__.py", shipped / "program")
    shutil.copytree(source / "runtime", shipped / "program/runtime")
    script = "from mesh.program import Program, has, stop; Program('x')"
    for python in pythons().values():
        done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stderr.endswith(
            "launched from your machine, not from a node; put the launch under `if __name__ == '__main__':`\n"
        ), done.stderr
