"""Agents that keep a run without their client, and what a client finds that comes back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mesh.backends.command import CommandBackend
from mesh.core.cluster import Host, place_ranks
from mesh.core.events import (
    CaughtUp,
    Detached,
    EndOrdered,
    Exited,
    Gone,
    HostNotice,
    LeftOut,
    Lost,
    Output,
    PrepareFailed,
    Reconnected,
    Started,
    StaysAttached,
    Stream,
)
from mesh.core.interfaces import Channel
from mesh.protocol.first import Begin
from mesh.protocol.requests import RankStart
from mesh.remote.blob import start_command
from mesh.remote.callbacks import Callbacks
from mesh.remote.following import Following
from mesh.remote.handover import Handovers
from tests.agent.conftest import HOST, OUTERMOST, Open, Run
from tests.agent.test_ending import is_running
from tests.firsts import first_request
from tests.lab import eventually, state_of

RUN = f"run-{os.getpid()}"

NO_MOVES = Handovers(place_ranks([Host(name="a", address="a")], (4,)), [], {})


class Look(Run):
    """A client that looks on."""

    def __init__(
        self,
        channel: Channel,
        begin: Begin,
        have: Mapping[tuple[int, Stream], int],
        reopen: Callable[[], Channel | None],
        only_reads: bool,
    ) -> None:
        self.session = Following(0, 0, channel, Callbacks(taken=self.take, reopen=reopen))
        self.events, self.taken = [], []
        self.session.follow(begin, range(4), have, NO_MOVES, only_reads=only_reads)
        self._coming = self.session.events()


Come = Callable[..., Look]


@pytest.fixture
def come(remote_dir: Path, any_python: str) -> Iterator[Come]:
    backend = CommandBackend()
    channels: list[Channel] = []

    def start(
        have: Mapping[tuple[int, Stream], int] | None = None, python: str = any_python, only_reads: bool = False
    ) -> Look:
        (opened,) = backend.open([HOST], start_command(python))
        assert not isinstance(opened.result, Exception)
        channels.append(opened.result)
        again = lambda: backend.reopen(0, start_command(python))  # noqa: E731
        begin = first_request(run=RUN, remote_dir=str(remote_dir))
        return Look(opened.result, begin, have or {}, again, only_reads)

    yield start
    for channel in channels:
        channel.close()
    backend.close()


def leave(run: Run) -> None:
    """Detach, and hang up."""
    run.session.detach()
    run.until(Detached)
    run.session.close()


def tape(remote_dir: Path) -> Path:
    (place,) = remote_dir.glob("machines/*/tape-*")
    return place


SCRIPT = "printf before; read line; printf after; exit 3"


@pytest.mark.parametrize("version", OUTERMOST)
def test_a_run_goes_on_without_its_client_and_tells_all_to_those_that_come_back(
    opener: Open, come: Come, version: str
) -> None:
    run = opener(OUTERMOST[version])
    run.prepare()
    run.start("sh", "-c", SCRIPT, stdin=True)
    run.until(Output)
    run.session.stdin(0, b"go on\n")
    leave(run)
    first = come(python=OUTERMOST[version])
    ended = first.until(Exited)
    assert isinstance(ended, Exited)
    first.until(Gone)
    assert (ended.code, first.printed()) == (3, b"beforeafter")
    late = come({(0, Stream.STDOUT): len("before")}, python=OUTERMOST[version])
    late.until(Gone)
    assert late.printed() == b"after"
    kinds = [type(event) for event in late.events if isinstance(event, Started | Exited | Gone)]
    assert kinds == [Started, Exited, Gone]


def test_what_a_rank_printed_that_had_ended_when_its_client_left(agent: Run, come: Come) -> None:
    agent.prepare()
    agent.start("sh", "-c", "echo all; exit 3")
    agent.until(Exited)
    leave(agent)
    look = come()
    look.until(Gone)
    assert look.printed() == b"all\n"
    assert not [event for event in look.events if isinstance(event, LeftOut)]


def test_a_client_that_is_killed_after_it_has_left_ends_nothing(agent: Run, come: Come) -> None:
    agent.prepare()
    agent.start("sh", "-c", "trap 'echo told; exit 5' USR1; echo up; while :; do sleep 0.05; done")
    agent.until(Output)
    leave(agent)
    look = come()
    look.until(CaughtUp)
    look.session.signal(signal.SIGUSR1, 60.0)
    ended = look.until(Exited)
    assert isinstance(ended, Exited)
    assert ended.code == 5
    (why,) = [event for event in look.events if isinstance(event, EndOrdered)]
    assert (why.cause, why.signal) == ("signal", signal.SIGUSR1)
    look.until(Gone)


def test_a_client_that_loses_its_connections_has_every_byte_once(agent: Run, come: Come) -> None:
    agent.prepare()
    agent.start("sh", "-c", "read line; head -c 9000000 /dev/zero; printf end; read line", stdin=True)
    leave_it_to = agent.session
    leave_it_to.detach()
    agent.until(Detached)
    leave_it_to.stdin(0, b"go on\n")
    leave_it_to.close()  # an agent waits for a client that stays
    look = come()
    for _ in range(3):
        look.until(Output)
        look.session.try_another("cut")
        look.until(Reconnected)
    while sum(len(event.data) for event in look.events if isinstance(event, Output)) < 9_000_000 + len("end"):
        look.until(Output)
    look.session.signal(signal.SIGTERM, 60.0)
    look.until(Gone)
    assert look.printed() == b"\0" * 9_000_000 + b"end"
    assert len([event for event in look.events if isinstance(event, Exited)]) == 1


def test_of_two_clients_that_signal_one_is_enough(agent: Run, come: Come, tmp_path: Path) -> None:
    agent.prepare()
    script = f"trap 'echo -n told' INT; echo -n up; while ! [ -e {tmp_path}/enough ]; do sleep 0.05; done"
    agent.start("bash", "-c", script)
    agent.until(Output)
    leave(agent)
    looks = [come(), come()]
    for look in looks:
        look.until(CaughtUp)
        look.session.signal(signal.SIGINT, 60.0)
    looks[0].until(Output)
    (tmp_path / "enough").touch()
    for look in looks:
        look.until(Gone)
        assert look.printed() == b"uptold"


@pytest.mark.parametrize("is_anew", [False, True], ids=["killed", "started anew"])
def test_an_agent_that_is_gone_without_a_word_is_lost_after_all_that_it_has_kept(
    agent: Run, come: Come, remote_dir: Path, is_anew: bool
) -> None:
    agent.prepare()
    agent.start("sh", "-c", "echo up >&2; echo $PPID; exec sleep 1000")
    printed = agent.until(Output, where=lambda event: isinstance(event, Output) and event.stream is Stream.STDOUT)
    assert isinstance(printed, Output)
    leave(agent)
    os.kill(int(printed.data), signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{int(printed.data)}").exists())
    if is_anew:
        path = tape(remote_dir) / "about.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
    look = come()
    lost = look.until(Lost)
    assert isinstance(lost, Lost)
    assert (lost.is_known, lost.is_clear) == (True, True)
    assert ("anew" in lost.reason) == is_anew
    assert look.printed(Stream.STDERR) == b"up\n"


def test_who_only_reads_leaves_alone_what_a_killed_agent_has_left(agent: Run, come: Come) -> None:
    agent.prepare(env={"MESH_RUN_ID": RUN})
    agent.start("sh", "-c", "sleep 1000 & echo $PPID $!; wait")
    printed = agent.until(Output)
    assert isinstance(printed, Output)
    pid, rank = (int(word) for word in printed.data.split())
    guardian = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    leave(agent)
    os.kill(guardian, signal.SIGSTOP)  # so that it does not end what the agent leaves
    os.kill(pid, signal.SIGKILL)
    os.kill(guardian, signal.SIGKILL)
    look = come(only_reads=True)
    assert isinstance(look.until(Lost), Lost)
    assert look.printed() == printed.data
    assert state_of(Path(f"/proc/{rank}")) != "Z"
    come().until(Lost)
    assert eventually(lambda: not Path(f"/proc/{rank}").exists() or state_of(Path(f"/proc/{rank}")) == "Z")


def go_on_alone(run: Run, come: Come, script: str) -> None:
    """A script whose client has left before it prints anything, until it has ended."""
    run.prepare()
    run.start("sh", "-c", f"read line; {script}", stdin=True)
    run.session.detach()
    run.until(Detached)
    run.session.stdin(0, b"\n")
    run.session.close()  # an agent waits for a client that stays
    come().until(Gone)


def test_output_beyond_the_spools_limit_is_left_out_of_the_middle(opener: Open, come: Come, any_python: str) -> None:
    run = opener(any_python, spool=3_000_000)
    go_on_alone(run, come, "printf begin; head -c 20000000 /dev/zero; printf end")
    look = come()  # to what is left
    look.until(Gone)
    left_out = sum(event.bytes for event in look.events if isinstance(event, LeftOut))
    printed = look.printed()
    assert left_out > 15_000_000
    assert left_out + len(printed) == 20_000_000 + len("begin" + "end")
    assert (printed[:5], printed[-3:]) == (b"begin", b"end")


def test_output_that_is_missing_at_the_end_is_counted(
    opener: Open, come: Come, any_python: str, remote_dir: Path
) -> None:
    """As on a full disk: how the rank ended is there, and what it printed last is not."""
    go_on_alone(opener(any_python), come, "printf begin; printf error >&2")
    for piece in tape(remote_dir).glob("[0-9]*"):
        piece.unlink()
    look = come({(0, Stream.STDOUT): 2})
    look.until(Gone)
    left_out = {event.stream: event.bytes for event in look.events if isinstance(event, LeftOut)}
    assert left_out == {Stream.STDOUT: 3, Stream.STDERR: 5}
    assert look.printed() == b""
    (exited,) = [event for event in look.events if isinstance(event, Exited)]
    assert exited.code == 0


def test_a_run_that_has_a_client_and_one_that_nobody_knows_are_told_apart(agent: Run, come: Come) -> None:
    unknown = come().until(PrepareFailed, Lost)
    assert isinstance(unknown, PrepareFailed)
    assert "nothing is kept" in unknown.message
    agent.prepare()
    agent.start("sleep", "1000")
    refused = come().until(PrepareFailed, Lost)
    assert isinstance(refused, PrepareFailed)
    assert "mesh detach" in refused.hint
    agent.finish(0.0)


def begin_to_leave(run: Run, script: str) -> None:
    """Start a script whose client is about to leave; so long, what it prints is held back."""
    run.prepare()
    run.session.start(["sh", "-c", script], [RankStart(rank=0, env={"RANK": "0"}, stdin=False)], detach=True)
    run.until(Started)


def test_what_waits_for_a_client_that_is_about_to_leave_is_there_for_those_who_come(agent: Run, come: Come) -> None:
    begin_to_leave(agent, "printf all; printf error >&2; exit 3")
    leave(agent)
    look = come()
    ended = look.until(Exited)
    assert isinstance(ended, Exited)
    look.until(Gone)
    assert (ended.code, look.printed(), look.printed(Stream.STDERR)) == (3, b"all", b"error")
    assert not [event for event in agent.events if isinstance(event, Output)]


def test_why_the_ranks_are_ended_is_not_for_the_client_that_leaves(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "read line; exit 3", stdin=True)
    agent.session.detach()
    agent.until(Detached)
    agent.session.signal(signal.SIGTERM, 60.0)
    assert isinstance(agent.until(Gone, Lost), Gone)
    agent.session.close()


def test_who_comes_before_the_client_has_left_ends_nothing(agent: Run, come: Come) -> None:
    begin_to_leave(agent, "exec sleep 1000")
    refused = come().until(PrepareFailed, Lost)
    assert isinstance(refused, PrepareFailed)
    assert "mesh detach" in refused.hint
    leave(agent)
    look = come()
    look.until(CaughtUp)
    assert not [event for event in look.events if isinstance(event, Exited)]
    look.session.signal(signal.SIGKILL, 5.0)
    look.until(Gone)


@pytest.mark.parametrize("number", [signal.SIGTERM, 0])
def test_a_client_that_does_not_leave_after_all_has_everything(agent: Run, remote_dir: Path, number: int) -> None:
    """number: with which the run is ended; 0: it is told to finish at once"""
    begin_to_leave(
        agent,
        f"trap 'printf last; exit 3' TERM; head -c 3000000 /dev/zero; touch '{remote_dir}/up'; "
        "while :; do sleep 0.02; done",
    )
    assert eventually(lambda: (remote_dir / "up").exists())
    if number:
        agent.session.signal(number, 60.0)
    else:
        agent.session.finish(signal.SIGTERM, 60.0)
    ended = agent.until(Exited)
    assert isinstance(ended, Exited)
    printed = agent.printed()
    assert (ended.code, printed) == (3, b"\0" * 3_000_000 + b"last")
    if number:
        agent.session.finish(signal.SIGTERM, 5.0)
    agent.until(Gone)
    agent.session.close()
    assert eventually(lambda: not list(remote_dir.glob("machines/*/tape-*")))


def has_printed_all(rank: int) -> bool:
    """Return True once a rank has ended, or executes what its script ends with."""
    return not is_running(rank) or Path(f"/proc/{rank}/cmdline").read_bytes().startswith(b"sleep")


@pytest.mark.parametrize(
    ("script", "status", "causes"),
    [("printf all; exit 3", 3, []), ("printf all; exec sleep 1000", 128 + signal.SIGTERM, ["signal"])],
    ids=["ended by itself", "was ended"],
)
def test_a_run_whose_client_was_killed_before_it_left_keeps_how_it_ended(
    opener: Open, come: Come, any_python: str, remote_dir: Path, script: str, status: int, causes: list[str]
) -> None:
    run = opener(any_python, return_within=1.0)
    begin_to_leave(run, script)
    (started,) = [event for event in run.events if isinstance(event, Started)]
    assert eventually(lambda: has_printed_all(started.pid))
    run.session.try_another("the test ends the channel")  # without a good-bye, as the end of a killed client
    assert eventually(lambda: b'"gone"' in (tape(remote_dir) / "facts").read_bytes())
    look = come()
    ended = look.until(Exited)
    assert isinstance(ended, Exited)
    look.until(Gone)
    assert (ended.status, look.printed()) == (status, b"all")
    assert [event.cause for event in look.events if isinstance(event, EndOrdered)] == causes
    assert not [event for event in look.events if isinstance(event, PrepareFailed)]


def test_a_host_that_cannot_keep_a_run_says_so(agent: Run, remote_dir: Path) -> None:
    agent.prepare()
    agent.start("sh", "-c", f"while ! [ -e '{remote_dir}/up' ]; do sleep 0.02; done; printf all; exit 3")
    (machine,) = remote_dir.glob("machines/*")
    (machine / f"tape-{RUN}-0").touch()
    agent.session.detach()
    agent.until(StaysAttached)
    (told,) = [event.text for event in agent.events if isinstance(event, HostNotice)]
    assert told.startswith("cannot go on by itself: ")
    (remote_dir / "up").touch()
    ended = agent.until(Exited)
    assert isinstance(ended, Exited)
    assert (ended.code, agent.printed()) == (3, b"all")


def test_what_is_not_running_is_not_detached(agent: Run, remote_dir: Path) -> None:
    agent.prepare()
    agent.session.detach()
    agent.start("true")
    agent.result()
    assert not list(remote_dir.glob("machines/*/tape-*"))


def test_a_journal_of_a_newer_mesh_is_refused_with_the_next_step(
    opener: Open, come: Come, remote_dir: Path, any_python: str
) -> None:
    run = opener(any_python)
    run.prepare()
    run.start("sh", "-c", SCRIPT, stdin=True)
    run.until(Output)
    run.session.stdin(0, b"go on\n")
    leave(run)
    about = tape(remote_dir) / "about.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "journal": 9}))
    failed = come().until(PrepareFailed)
    assert isinstance(failed, PrepareFailed)
    assert "has format 9" in failed.message
    assert "pipx install --force ." in failed.hint
