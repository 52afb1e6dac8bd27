"""The parts of the agent, each behind a port that records: real files, pipes and processes, without an agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.ask.answering import Answering
from mesh.agent.base.background import KILLED, Background
from mesh.agent.base.directories import Directories
from mesh.agent.base.lock import MachineLock
from mesh.agent.control import sockets
from mesh.agent.control.server import ControlServer
from mesh.agent.detached.detachment import Detachment
from mesh.agent.detached.followers import Followers
from mesh.agent.detached.other_hosts import OtherHosts
from mesh.agent.link.client import ClientConnection
from mesh.agent.link.outbox import Outbox
from mesh.agent.link.spool import Spool
from mesh.agent.loop import Loop, Watches
from mesh.agent.prerun.session import PrerunSession
from mesh.agent.prerun.shell import Prerun
from mesh.agent.process.containers import Containers
from mesh.agent.process.ending import Ending
from mesh.agent.process.processes import all_processes
from mesh.agent.process.spawning import Setting, first_environment
from mesh.agent.run import facts
from mesh.agent.run.environment import Environment
from mesh.agent.run.group import Group
from mesh.agent.run.handlers import HANDLERS
from mesh.agent.run.locking import Locking
from mesh.agent.run.rank import Source
from mesh.agent.run.ranks import Ranks
from mesh.agent.run.requests import Requests
from mesh.agent.run.restarting import Restarts
from mesh.agent.run.sources import Sources
from mesh.agent.sync.requests import SyncRequests
from mesh.protocol import answers, nodes, requests
from mesh.protocol.first import Begin
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.messages import Message
from mesh.protocol.tables import REQUESTS
from tests.conftest import PATIENCE, open_descriptors

Answer = dict[str, object]
RUN = f"parts-{os.getpid()}"
FINDS = requests.Finds(env={"RANK": "0"}, interface="", targets=[])


class Port:
    """A port of all parts that records."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.is_over = self.is_detached = self.stops_ranks = self.has_ranks = False
        self.last_order = 7
        self.sent: list[tuple[Message, bytes]] = []
        self.urgent: list[Message] = []
        self.facts: list[facts.Fact] = []
        self.failures: list[tuple[str, str]] = []
        self.works: list[Callable[[Answer], None]] = []
        self.calls: list[str] = []
        self.passed: list[int] = []
        self.restarted: list[list[int]] = []

    def send(self, message: Message, data: bytes = b"") -> None:
        self.sent.append((message, data))

    def send_now(self, message: Message) -> None:
        self.urgent.append(message)

    def fail(self, step: str, message: str, hint: str = "") -> None:
        self.failures.append((step, message))

    def post(self, fact: facts.Fact) -> None:
        self.facts.append(fact)

    def background(self, work: Callable[[], Answer], then: Callable[[Answer], None]) -> Background:
        self.works.append(then)
        return self._loop.background(work, then)

    def listen(self) -> None:
        self.calls.append("listen")

    def keep_open(self, descriptor: int) -> None:
        self.calls.append("keep open")

    def make_way(self) -> None:
        self.calls.append("make way")

    def hold_output(self) -> None:
        self.calls.append("hold output")

    def flush(self) -> None:
        self.calls.append("flush")

    def suspend_guardian(self) -> None:
        self.calls.append("suspend guardian")

    def may_leave_unasked(self) -> bool:
        return False

    def describe(self) -> dict[str, object]:
        return {"run": RUN, "node": 0, "about": {}, "attached": True, "ranks": []}

    def pass_on(self, number: int, ranks: Sequence[int] | None) -> dict[int, int]:
        self.passed.append(number)
        return {0: 1}

    def restart(self, ranks: Sequence[int], grace: float | None, to: int) -> dict[int, str]:
        self.restarted.append(list(ranks))
        return {rank: "it has ended" if rank == 9 else "" for rank in ranks}

    def printed(self) -> bytes:
        return b"".join(data for message, data in self.sent if isinstance(message, answers.Output))

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message, _ in self.sent if isinstance(message, kind)]


class Lab:
    """The parts that others are made of."""

    def __init__(self, loop: Loop, remote_dir: Path) -> None:
        self.loop, self.port = loop, Port(loop)
        self.begin = begin(remote_dir=str(remote_dir))
        self.state = Directories(str(remote_dir), "project")
        self.state.make()
        self.processes = Ending()
        self.group = Group(RUN, 0, self.state.machine, self.processes)
        self.out = Outbox(Spool(os.path.join(self.state.machine, "spool"), 1 << 20))
        self.out.channel = -1
        self.client = ClientConnection(loop, self.out, Decoder(), self.port.post, lambda request, data: None)
        self.client._incoming = -1
        self.sources = Sources(self.port, loop, self.client)
        self.containers = Containers(str(remote_dir / "bin"), RUN)
        self.environment = Environment(
            self.port, self.state, self.containers, self.group, self.begin, lambda request, setting: None
        )
        self.ranks = Ranks(self.port, loop, self.client, self.sources, self.environment, self.group)
        self.ranks.use(Restarts(self.port, loop, self.containers, self.begin.grace))
        loop.after_turn = [self.sources.settle, self.ranks.report_ends]

    def until(self, done: Callable[[], object]) -> None:
        limit = time.monotonic() + PATIENCE
        self.loop.at("limit", limit, lambda: None)
        self.loop.run_until(lambda: bool(done()) or time.monotonic() > limit)
        assert done()


def begin(**changes: object) -> Begin:
    return Begin(
        marker="m",
        run=RUN,
        node=0,
        remote_dir="~/.mesh",
        project="project",
        about={"cluster": "lab"},
        owner=None,
        lock=False,
        announce=False,
        exclusive=False,
        share=False,
        existing=False,
        workspace_links=False,
        needs_home=True,
        stacks=False,
        devices=[],
        device_patience=5.0,
        lease=60.0,
        return_within=5.0,
        grace=5.0,
        drain=0.0,
        timeout=0.0,
        keep_going=False,
        spool=1 << 20,
        ports=[],
        plan={},
    ).replaced(**changes)


def prepare(**changes: object) -> requests.Prepare:
    return requests.Prepare(finds=FINDS, prerun=[], force=False, claim=False, evict=False, program="").replaced(
        **changes
    )


def start(*argv: str, detach: bool = False, stdin: bool = False) -> requests.Start:
    rank = requests.RankStart(rank=3, env={"RANK": "3"}, stdin=stdin)
    return requests.Start(argv=argv, ranks=[rank], finds=FINDS, detach=detach)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    before = open_descriptors()
    with Loop() as loop:
        made = Lab(loop, tmp_path / "mesh")
        yield made
    for descriptor in open_descriptors() - before:  # parts leave pipes and locks to the end of their process
        os.close(int(descriptor))


# ---- requests


def test_requests_wait_for_work_in_the_background_and_beats_do_not() -> None:
    done: list[str] = []
    queue = Requests(lambda request, data: done.append(request.NAME))
    queue.begin_work()
    queue.receive(requests.Lock(), b"")
    queue.receive(requests.Beat(time=1.0), b"")
    queue.serve()
    assert done == ["beat"]
    queue.end_work()
    queue.serve()
    assert done == ["beat", "lock"]


def test_a_repeated_order_is_carried_out_once() -> None:
    done: list[str] = []
    queue = Requests(lambda request, data: done.append(request.NAME))
    for _ in range(2):
        queue.receive(requests.Kill(n=4), b"")
    assert done == ["kill"]
    assert queue.last_order == 4


def test_every_request_has_a_handler() -> None:
    assert set(REQUESTS) == set(HANDLERS)


def test_descriptors_that_a_part_closes_are_not_taken_from_another_part(lab: Lab) -> None:
    watches, (ours, ours_end) = Watches(lab.loop), os.pipe()
    watches.arm({ours: 1})
    os.close(ours)
    os.close(ours_end)
    theirs, theirs_end = os.pipe()
    assert theirs == ours
    read: list[bytes] = []
    lab.loop.watch(theirs, 1, lambda events: read.append(os.read(theirs, 9)))
    assert watches.take() == set()
    os.write(theirs_end, b"x")
    lab.until(lambda: read)
    lab.loop.unwatch(theirs)
    os.close(theirs)
    os.close(theirs_end)


# ---- ranks


def test_a_rank_that_was_not_prepared_is_refused(lab: Lab) -> None:
    with pytest.raises(FrameError, match="not prepared"):
        lab.ranks.start(start("true").replaced(finds=None))


def test_the_end_of_a_rank_is_reported_behind_its_output(lab: Lab) -> None:
    lab.ranks.start(start("sh", "-c", "echo $RANK; exit 5"))
    lab.until(lambda: lab.port.of(answers.Exited))
    assert lab.port.calls == ["make way"]
    assert lab.port.printed() == b"3\n"
    (ended,) = lab.port.of(answers.Exited)
    assert (ended.rank, ended.code, ended.signal) == (3, 5, None)
    assert [fact for fact in lab.port.facts if fact != facts.Printed()] == [
        facts.RanksStarting(1),
        facts.RankStarted(),
        facts.RankEnded(True),
    ]


def test_output_is_held_before_the_ranks_of_a_run_start_that_detaches(lab: Lab) -> None:
    lab.ranks.start(start("true", detach=True))
    assert lab.port.calls == ["make way", "hold output"]
    lab.until(lambda: lab.port.of(answers.Exited))


def test_a_rank_gets_its_standard_input_and_the_client_a_count(lab: Lab) -> None:
    lab.ranks.start(start("cat", stdin=True))
    lab.ranks.give_stdin(3, b"line\n")
    lab.ranks.give_stdin(3, b"")
    lab.until(lambda: lab.port.of(answers.Exited))
    assert lab.port.printed() == b"line\n"
    assert sum(message.bytes for message in lab.port.of(answers.Taken)) == 5


def test_no_rank_starts_once_the_run_is_over(lab: Lab) -> None:
    lab.port.is_over = True
    lab.ranks.start(start("true"))
    assert not lab.ranks.ranks


def test_the_end_of_a_setup_is_a_fact(lab: Lab) -> None:
    lab.environment.prepare(prepare(), b"")
    command = requests.SetupCommand(run="exit 4", unless="", sudo=False)
    lab.ranks.start_setup(requests.Setup(rank=0, commands=[command], force=False))
    lab.until(lambda: lab.port.of(answers.Exited))
    (ended,) = lab.port.of(answers.Exited)
    assert (ended.code, ended.during) == (4, "exit 4")
    assert facts.SetupEnded() in lab.port.facts


# ---- lock


def test_a_run_without_an_owner_takes_no_lock(lab: Lab) -> None:
    Locking(lab.port, lab.loop, lab.state, lab.group, lab.begin, False).lock()
    assert [type(message) for message, _ in lab.port.sent] == [answers.Locked]
    assert (lab.port.calls, lab.port.facts) == (["listen"], [])
    os.rmdir(lab.group.path or os.mkdir(lab.state.machine + "/x") or lab.state.machine + "/x")


def test_the_second_run_gets_the_owner_of_the_first(lab: Lab, tmp_path: Path) -> None:
    locks = []
    for run in ("first", "second"):
        owned = lab.begin.replaced(run=run, owner={"run": run})
        state = Directories(str(tmp_path / "mesh"), "project")
        group = Group(run, os.getpid(), state.machine, Ending())
        locks.append((Locking(lab.port, lab.loop, state, group, owned, False), group))
        locks[-1][0].lock()
    (busy,) = lab.port.of(answers.Busy)
    assert busy.owner.run == "first"
    assert lab.port.facts == [facts.LockTaken()]
    locks[0][0].unlock()
    locks[1][0].lock()
    assert lab.port.facts == [facts.LockTaken(), facts.LockReleased(), facts.LockTaken()]
    assert lab.port.calls.count("keep open") == 2
    locks[1][0].unlock()
    for _, group in locks:
        if group.path:
            os.rmdir(group.path)


# ---- environment


def test_a_host_without_the_program_is_ready_with_its_status(lab: Lab) -> None:
    lab.environment.prepare(prepare(program="no-such-program"), b"")
    (ready,) = lab.port.of(answers.Ready)
    assert ready.status == 127


def test_a_variable_of_a_rank_gives_way_to_prerun(lab: Lab) -> None:
    lab.environment.prepare(prepare(), b"")
    assert lab.environment.of_rank({"RANK": "3"}).environment[b"RANK"] == b"3"
    lab.environment.setting.environment[b"RANK"] = b"by prerun"
    assert lab.environment.of_rank({"RANK": "3"}).environment[b"RANK"] == b"by prerun"


def test_a_run_that_is_over_reports_no_host_as_ready(lab: Lab) -> None:
    lab.environment.prepare(prepare(), b"")
    lab.port.sent.clear()
    lab.port.is_over = True
    lab.environment.adopt(lab.environment.setting)
    assert not lab.port.sent


# ---- prerun


def prerun(lab: Lab, line: str) -> tuple[PrerunSession, list[Prerun]]:
    held: list[Prerun] = []
    session = PrerunSession(lab.port, lab.loop, lab.state, lab.sources, lab.group, held.append)
    session.start([{"run": line, "inputs": [], "module": ""}], Setting(first_environment(), lab.state.workspace), False)
    lab.until(lambda: held or lab.port.failures)
    return session, held


def test_prerun_leaves_its_setting_behind_its_output(lab: Lab) -> None:
    session, held = prerun(lab, "export COLOUR=red; echo ready")
    assert lab.port.printed() == b"ready\n"
    assert held[0].setting is not None
    assert held[0].setting.environment[b"COLOUR"] == b"red"
    session.release()
    ended: list[int] = []
    lab.loop.on_child_end(held[0].pid, ended.append)
    lab.until(lambda: ended)


def test_an_entry_that_fails_is_named(lab: Lab) -> None:
    prerun(lab, "exit 9")
    assert lab.port.failures == [("prerun", "exit 9 in 'exit 9'")]


# ---- sync


def test_changes_begin_with_the_first_ones(lab: Lab) -> None:
    with pytest.raises(FrameError, match="not the first"):
        SyncRequests(lab.port, lab.state, RUN).take_changes(requests.Changes(), b"")


def test_a_pack_that_cannot_be_fetched_is_reported_with_its_tree(lab: Lab) -> None:
    sync = SyncRequests(lab.port, lab.state, RUN)
    sync.take_changes(requests.Changes(first=True, fresh=False, attempt=2), b"")
    sync.fetch(requests.Fetch(tree=5, address="127.0.0.1", port=1, bytes=1, credentials="none"))
    lab.until(lambda: lab.port.sent or lab.port.failures)
    lab.port.sent.clear()
    lab.port.works[0]({"unfetched": "refused"})
    assert lab.port.sent == [(answers.Unfetched(tree=5, reason="refused"), b"")]
    sync.drop()


def test_a_sync_that_fails_fails_the_run_unless_that_is_over(lab: Lab) -> None:
    sync = SyncRequests(lab.port, lab.state, RUN)
    for is_over in (False, True):
        lab.port.is_over = False
        sync.take_changes(requests.Changes(first=True, fresh=False, attempt=2), b"")
        lab.port.is_over = is_over
        sync._worked({"error": "no room", "hint": ""})
    assert lab.port.failures == [("sync", "no room")]


# ---- control socket


@pytest.fixture
def served(lab: Lab) -> Iterator[Lab]:
    control = ControlServer(lab.port, lab.loop, lab.client, Followers())
    control.listen(RUN, 0)
    yield lab
    control.close()


def ask(lab: Lab, request: dict[str, object], descriptors: Sequence[int] = ()) -> socket.socket:
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    visitor.connect(sockets.socket_path(RUN, 0))
    socket.send_fds(visitor, [json.dumps(request).encode()], list(descriptors))
    lab.loop.at("limit", time.monotonic() + PATIENCE, lambda: None)
    lab.loop.turn()
    visitor.settimeout(PATIENCE)
    return visitor


def test_a_request_of_another_version_changes_nothing(served: Lab) -> None:
    with ask(served, {"type": "riddle"}) as visitor:
        assert visitor.recv(99) == b""
    assert not served.port.facts


@pytest.mark.parametrize("name", ["serve-051dad2f54ee6780.sock", "notes", "-3"])
def test_other_files_beside_the_control_sockets_are_left_alone(served: Lab, name: str) -> None:
    path = os.path.join(os.path.dirname(sockets.socket_path(RUN, 0)), name)
    with open(path, "w"):
        pass
    try:
        assert RUN in sockets.other_runs("")
        assert path not in sockets.socket_paths()
    finally:
        os.unlink(path)


def test_stop_is_a_fact_and_answered_with_the_run(served: Lab) -> None:
    with ask(served, {"type": "stop", "grace": 2.0}) as visitor:
        assert f'"run":"{RUN}"' in visitor.recv(999).decode()
    assert served.port.facts == [facts.StopAsked(2.0)]


def test_a_signal_that_comes_through_two_hosts_of_one_machine_is_passed_on_once(served: Lab) -> None:
    for _ in range(2):
        with ask(served, {"type": "pass", "signal": 10, "ranks": None, "id": "one"}) as visitor:
            assert visitor.recv(99) == b'{"ranks":{"0":1}}'
    assert served.port.passed == [10]


def test_a_restart_that_comes_through_two_hosts_happens_once_and_is_answered_when_it_has(lab: Lab) -> None:
    control = ControlServer(lab.port, lab.loop, lab.client, Followers())
    control.listen(RUN, 0)
    request = {"type": "restart", "ranks": [3, 9], "grace": None, "id": "one"}
    with ask(lab, request) as first, ask(lab, request) as second:
        for visitor in (first, second):
            visitor.setblocking(False)
            with pytest.raises(BlockingIOError):
                visitor.recv(999)
            visitor.settimeout(PATIENCE)
        control.restarts.note(3, 77, "")
        answer = {"ranks": [{"rank": 3, "pid": 77}, {"rank": 9, "why": "it has ended"}], "agents": 1}
        assert [json.loads(visitor.recv(999)) for visitor in (first, second)] == [answer, answer]
    assert lab.port.restarted == [[3, 9]]
    with ask(lab, {**request, "id": "two"}) as third:
        control.close()
        assert "the run has ended" in third.recv(999).decode()


def test_a_rank_is_started_again_when_none_of_its_processes_is_left(lab: Lab) -> None:
    told: list[tuple[int, int, str]] = []
    lab.ranks.on_restart = lambda *new: told.append(new)
    lab.ranks.start(start("sh", "-c", "trap '' TERM; echo up $MESH_ATTEMPT; printf half >&2; sleep 98761 & wait; wait"))
    lab.until(lambda: b"up" in lab.port.printed() and b"half" in lab.port.printed())
    (old,) = lab.ranks.ranks
    assert lab.ranks.ask_restart([3, 4], 0.2) == {3: ""}
    lab.until(lambda: told and lab.port.printed().count(b"up") == 2)
    (new,) = lab.ranks.ranks
    assert (told, new == old) == ([(3, new, "")], False)
    assert not [one for one in all_processes() if one.session == old]
    (coming,), (came,) = lab.port.of(nodes.Restarting), lab.port.of(nodes.Restarted)
    assert (coming.rank, coming.signal, came.attempt, came.pid) == (3, 9, 1, new)
    assert b"half\nmesh: rank 3: started again after signal 9, attempt 1\n" in lab.port.printed()
    assert b"up 1\n" in lab.port.printed()
    assert not lab.port.of(answers.Exited)
    os.killpg(new, signal.SIGKILL)
    lab.until(lambda: lab.port.of(answers.Exited))
    assert lab.ranks.ask_restart([3], None) == {3: "it has ended"}


def test_a_run_that_ends_meanwhile_starts_no_rank_again(lab: Lab) -> None:
    told: list[tuple[int, int, str]] = []
    lab.ranks.on_restart = lambda *new: told.append(new)
    lab.ranks.start(start("sh", "-c", "echo up; exec sleep 98761"))
    lab.until(lambda: b"up" in lab.port.printed())
    began = time.time()
    assert lab.ranks.ask_restart([3], 5.0) == {3: ""}
    lab.port.is_over = True
    lab.until(lambda: lab.port.of(answers.Exited))
    (ended,) = lab.port.of(answers.Exited)
    assert (ended.signal, ended.time >= began) == (15, True)
    assert told[0] == (3, 0, "the run is ending")
    assert lab.ranks.ask_restart([3], None) == {3: "the run is ending"}


def test_a_new_channel_is_taken_and_the_number_of_the_last_order_sent(served: Lab) -> None:
    incoming, outgoing, stderr = os.pipe(), os.pipe(), os.dup(2)
    try:
        with ask(served, {"type": "channel", "have": 0}, [incoming[0], outgoing[1]]) as visitor:
            assert served.port.facts == [facts.ClientBack()]
            assert served.port.urgent == [answers.Attached(orders=7)]
            os.close(incoming[1])
            served.until(lambda: facts.ClientLost() in served.port.facts)
            assert visitor.recv(1) == b""
    finally:
        os.dup2(stderr, 2)  # stderr is the channel's as well
        for descriptor in (incoming[0], *outgoing, stderr):
            os.close(descriptor)


# ---- a run without its client


def test_a_detached_run_has_a_journal_and_describes_itself_so(lab: Lab) -> None:
    detachment = Detachment(lab.port, lab.out, lab.state, lab.group, lab.begin, MachineLock(lab.state.machine))
    detachment.detach()
    assert lab.port.facts == [facts.Detached()]
    assert detachment.about == {"cluster": "lab", "detached": True}
    lab.out.send(answers.Started(rank=0, pid=1, time=1.0))
    assert detachment.write()
    assert not detachment.write()
    lab.out.close()
    detachment.close(is_wanted=True)
    (journal,) = Path(lab.state.machine).glob("tape-*")
    assert b"started" in (journal / "facts").read_bytes()


def test_a_host_without_room_for_a_journal_cannot_keep_the_run(lab: Lab) -> None:
    elsewhere = lab.begin.replaced(remote_dir="/proc/none")
    detachment = Detachment(lab.port, lab.out, lab.state, lab.group, elsewhere, MachineLock(lab.state.machine))
    detachment.detach()
    (failed,) = lab.port.facts
    assert isinstance(failed, facts.DetachFailed)
    assert "detached" not in detachment.about


def test_nothing_is_kept_for_a_client_that_has_everything(lab: Lab) -> None:
    detachment = Detachment(lab.port, lab.out, lab.state, lab.group, lab.begin, MachineLock(lab.state.machine))
    detachment.keep(is_empty=True)
    assert not lab.port.facts
    detachment.keep(is_empty=False)
    assert lab.port.facts == [facts.JournalKept()]


def test_a_journal_is_removed_that_no_client_will_read(lab: Lab) -> None:
    detachment = Detachment(lab.port, lab.out, lab.state, lab.group, lab.begin, MachineLock(lab.state.machine))
    detachment.hold()
    assert list(Path(lab.state.machine).glob("tape-*"))
    detachment.close(is_wanted=False)
    assert not list(Path(lab.state.machine).glob("tape-*"))


# ---- questions


def test_stacks_of_a_process_that_was_killed_are_an_answer(lab: Lab) -> None:
    """A signal for the ranks ends the process that looks at them too."""
    Answering(lab.port, lab.loop, lab.out, lab.state, "~").send_stacks(KILLED)
    (answer,) = lab.port.of(answers.Answer)
    assert answer.answer["notes"] == [[KILLED["error"], KILLED["hint"]]]


# ---- other hosts


def test_agents_without_usable_credentials_stay_strangers_and_the_client_reads_why(lab: Lab) -> None:
    links = OtherHosts(lab.port, lab.loop)
    links.introduce(requests.Introduce(node=0, host_grace=5.0, credentials="none", address="", port=0))
    (introduced,) = lab.port.urgent
    assert isinstance(introduced, answers.Introduced)
    assert introduced.reason
    assert not lab.port.facts
    assert not links.is_needed


def test_output_of_a_closed_pipe_is_no_reason_to_wait(lab: Lab) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    lab.sources.add(Source(ours, 0, "stdout"))
    os.write(theirs, b"last words")
    os.close(theirs)
    lab.until(lambda: lab.port.printed())
    lab.until(lambda: not lab.sources._by)
    assert facts.Printed() in lab.port.facts
    assert not os.path.exists(f"/proc/self/fd/{ours}")
