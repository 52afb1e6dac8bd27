"""Ended means gone: whatever a rank leaves behind, and whatever becomes of the client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mesh.agent.control import requests, sockets
from mesh.agent.guardian import SWEPT_STATUS
from mesh.agent.process import processes
from mesh.core.events import Exited, Gone, Lost, Output, PrepareFailed, Stream
from mesh.core.run import PrerunEntry
from mesh.protocol import control
from mesh.protocol.frames import encode
from tests.conftest import REPOSITORY
from tests.firsts import finds, prepare_request
from tests.full import times
from tests.lab import eventually, state_of

from .conftest import Open, Run

FORKED_TWICE = (
    "read pid < <( ( setsid sh -c 'trap \"\" TERM HUP INT; echo $$; exec >/dev/null 2>&1; while :; do sleep 1; done' & "
    ") ); echo $pid"
)
HEADLESS = (
    f"{sys.executable} -c 'import ctypes, threading, time; "
    "threading.Thread(target=time.sleep, args=(4567,)).start(); ctypes.CDLL(None).pthread_exit(None)' & "
    "echo $!; until grep -q '^State:.Z' /proc/$!/status; do sleep 0.02; done"
)
LEASE_S = 6.0  # longer than anything here takes to be sent, on a slow machine
LEAVERS = {
    "a background child": "sleep 4567 & echo $!",
    "a double fork with setsid that ignores SIGTERM": FORKED_TWICE,
    "a child with a cleared environment": "env -i setsid sleep 4567 & echo $!",
    "a stopped child": "sleep 4567 & echo $!; kill -STOP $!",
    "a child with closed files": "setsid sleep 4567 <&- >&- 2>&- & echo $!",
    "a child whose first thread has ended": HEADLESS,
}


def is_running(pid: int) -> bool:
    """Whether any thread of it is."""
    try:
        return any(state_of(thread) not in "ZX" for thread in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False


@pytest.mark.parametrize("script", LEAVERS.values(), ids=LEAVERS)
def test_what_a_rank_leaves_is_gone_when_the_run_is(agent: Run, script: str) -> None:
    agent.prepare()
    agent.start("bash", "-c", script)
    ended = agent.until(Exited)
    assert isinstance(ended, Exited)
    assert not ended.is_last
    pid = int(agent.printed())
    assert agent.finish(grace=0.5).left == ()
    assert not is_running(pid)


ENDED_AS_WELL = (
    "pid=$(sleep 0.01 >/dev/null & echo $!); "
    "while grep -q '^State:.[^ZX]' /proc/$pid/status; do sleep 0.02; done; exit 3"
)


@pytest.mark.parametrize("script", ["true", ENDED_AS_WELL], ids=["nothing", "a child that has ended as well"])
def test_a_rank_is_the_last_of_the_run_where_it_leaves_nothing(agent: Run, script: str) -> None:
    agent.prepare()
    agent.start("bash", "-c", script)
    ended = agent.until(Exited)
    assert isinstance(ended, Exited)
    assert ended.is_last
    assert agent.finish(grace=0.0).left == ()


COMET = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 60
if os.fork() == 0:
    os.setsid()
    while time.monotonic() < end and os.fork() == 0:
        pass
"""


@pytest.mark.parametrize("attempt", range(times(2, full=4)))
def test_a_process_that_forks_and_ends_all_the_time_is_ended(agent: Run, attempt: int) -> None:
    """Whoever looks at one process after the other may miss it."""
    mark = f"comet-{os.getpid()}-{attempt}"
    agent.prepare()
    agent.start(sys.executable, "-c", COMET, mark)
    ended = agent.until(Exited)
    assert isinstance(ended, Exited)
    assert not ended.is_last
    assert agent.finish(grace=0.2).left == ()
    assert not [process for process in processes.all_processes() if mark in process.described()]


LATE = """
import os, time
gate = os.path.join(os.environ["HOLDS"], "gate")
if os.environ["RANK"] == "0":
    if os.fork() == 0:
        time.sleep(0.1)
        os.write(1, b"x\\n")
        time.sleep(0.001)
        os.write(1, b"late\\n")
        open(gate, "w").close()
        os._exit(0)
else:
    while not os.path.exists(gate):
        time.sleep(0.001)
"""


@pytest.mark.parametrize("attempt", range(times(2, full=4)))
def test_what_others_print_into_the_pipe_of_a_rank_that_has_ended(agent: Run, attempt: int, tmp_path: Path) -> None:
    agent.prepare(env={"HOLDS": str(tmp_path)})
    agent.start(sys.executable, "-c", LATE, nproc=2)
    agent.until(Exited)
    last = agent.until(Exited)
    assert isinstance(last, Exited)
    if last.is_last:  # nobody would wait for more
        assert agent.printed() == b"x\nlate\n"
    agent.finish()
    assert agent.printed() == b"x\nlate\n"


def test_of_several_ranks_the_last_one_is(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "[ $RANK = 0 ] || { read line; exit 1; }", nproc=2, stdin=True)
    first = agent.until(Exited)
    agent.session.stdin(1, b"")
    second = agent.until(Exited)
    assert isinstance(first, Exited)
    assert isinstance(second, Exited)
    assert [(ended.rank, ended.is_last) for ended in (first, second)] == [(0, False), (1, True)]
    agent.finish()


def test_whoever_holds_the_lock_waits_until_the_agent_has_let_go_of_it(opener: Open, any_python: str) -> None:
    run = opener(any_python, owner={"run": "r"})
    run.prepare()
    run.start("true")
    assert not run.result().is_last


def test_the_end_on_each_python(opener: Open, python: str) -> None:
    run = opener(python)
    run.prepare(["sleep 4567 &"])
    run.start("bash", "-c", FORKED_TWICE)
    run.until(Exited)
    pid = int(run.printed())
    assert run.finish(grace=0.2).left == ()
    assert not is_running(pid)


def test_a_storm_of_forks_is_ended(agent: Run) -> None:
    agent.prepare()
    agent.start(
        "bash",
        "-c",
        "trap '' TERM; storm() { for n in 1 2 3 4 5 6 7 8; do sleep 0.05 & done; }; while :; do storm; done",
    )
    assert agent.finish(grace=0.3).left == ()


def test_a_signal_reaches_every_process_of_a_rank(agent: Run) -> None:
    agent.prepare()
    child = "bash -c 'trap \"echo child; exit\" INT; echo up; while :; do sleep 0.05; done'"
    agent.start("bash", "-c", f"trap 'echo parent; exit 9' INT; {child} & wait; wait")
    agent.until(Output)
    agent.session.signal(signal.SIGINT, 60.0)
    assert agent.result().status in (9, 130)
    assert b"parent\n" in agent.printed()


def test_grace_and_then_kill(agent: Run) -> None:
    agent.prepare()
    agent.start("bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    agent.until(Output)
    agent.session.signal(signal.SIGTERM, 0.3)
    assert agent.result().signal == signal.SIGKILL


def test_a_kill_does_not_wait_for_grace(agent: Run) -> None:
    agent.prepare()
    agent.start("bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    agent.until(Output)
    agent.session.signal(signal.SIGTERM, 3600.0)
    agent.session.kill()
    assert agent.result().signal == signal.SIGKILL


def test_a_client_that_hangs_up_ends_the_run(opener: Open, any_python: str) -> None:
    run = opener(any_python, grace=0.3)
    run.prepare()
    run.start("bash", "-c", "trap '' TERM HUP; echo $$; while :; do sleep 0.05; done")
    run.until(Output)
    pid = int(run.printed())
    run.session.close()
    assert eventually(lambda: not is_running(pid))


def test_a_client_that_falls_silent_loses_its_lease(opener: Open, any_python: str) -> None:
    run = opener(any_python, lease=LEASE_S)
    run.prepare()
    run.start("sleep", "4567")
    assert run.until(Exited).time > 0
    assert isinstance(run.until(Gone), Gone)
    (failure,) = [event for event in run.events if isinstance(event, PrepareFailed)]
    assert "no sign of the client" in failure.message


def test_the_lease_ends_a_rank_that_is_stopped_in_its_debugger(opener: Open, any_python: str) -> None:
    run, stopped = opener(any_python, lease=LEASE_S, debug=True), threading.Event()

    def beat() -> None:
        while not stopped.wait(0.2):
            run.session.beat()

    run.prepare()
    beats = threading.Thread(target=beat)
    beats.start()
    try:
        run.start(any_python, "-c", "breakpoint()")
        while b"waits in its debugger" not in run.printed(Stream.STDERR):
            run.until(Output)
    finally:
        stopped.set()
        beats.join()
    assert run.until(Exited).time > 0
    assert isinstance(run.until(Gone), Gone)


def test_a_killed_agent_is_lost_and_its_ranks_do_not_go_on(opener: Open, any_python: str) -> None:
    run = opener(any_python)
    run.prepare()
    run.start("sh", "-c", "echo $$ $PPID; exec sleep 4567")
    run.until(Output)
    pid, agent = map(int, run.printed().split())
    os.kill(agent, signal.SIGKILL)
    assert isinstance(run.until(Lost), Lost)
    assert eventually(lambda: not is_running(pid))


def test_an_agent_that_is_asked_to_end_ends_its_ranks_first(opener: Open, any_python: str) -> None:
    run = opener(any_python)
    run.prepare()
    run.start("sh", "-c", "echo $$ $PPID; exec sleep 4567")
    run.until(Output)
    pid, agent = map(int, run.printed().split())
    os.kill(agent, signal.SIGTERM)
    assert isinstance(run.until(PrepareFailed), PrepareFailed)
    assert isinstance(run.until(Gone), Gone)
    assert not is_running(pid)


def test_a_finish_in_the_middle_of_prerun(agent: Run) -> None:
    agent.lock()
    entries = [PrerunEntry(run="echo begun"), PrerunEntry(run="sleep 4567")]
    agent.session.prepare(prepare_request(prerun=entries, given=finds(env={"RANK": "0"})))
    agent.until(Output)
    assert agent.finish(grace=60.0).left == ()


FAILING = """
import os, sys
sys.path.insert(0, sys.argv[1])
from mesh.agent.guardian import guard

def serve(guardian):
    guardian.begin("run-that-fails", 0, "/nowhere", "no-group")
    pid = os.fork()
    if not pid:
        os.setsid()
        os.execvp("sleep", ["sleep", "4567"])
    os.write(1, b"%d\\n" % pid)
    raise TypeError("an error of the agent")

guard(serve)
"""


def test_an_error_of_the_agent_ends_its_processes_and_is_reported(python: str) -> None:
    command = [python, "-I", "-S", "-c", FAILING, str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, last = done.stderr.strip().splitlines()
    reason = "it failed: TypeError: an error of the agent"
    assert last == f"the agent is gone ({reason}); its processes were ended"
    assert done.returncode == SWEPT_STATUS
    assert not is_running(int(done.stdout))


def test_a_control_request_whose_sender_does_not_wait_for_the_answer(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "echo up; read x", stdin=True)
    agent.until(Output)
    path = sockets.socket_path(f"run-{os.getpid()}", 0)
    for request in (control.About(), control.Pass(id="x", ranks=None, signal=signal.SIGUSR1)):
        sockets.send_request(path, request).close()
    assert requests.runs(f"run-{os.getpid()}")  # both have been answered before
    agent.session.stdin(0, b"\n")
    assert agent.result().status == 0


def test_a_long_request_that_is_none_is_refused_in_a_short_line(agent: Run) -> None:
    agent.lock()
    agent.session._sender.send(encode({"type": "x" * 200_000}))
    failed = agent.until(PrepareFailed)
    assert isinstance(failed, PrepareFailed)
    assert failed.message.startswith("its client does not speak our protocol: no message is called 'xxx")
    assert len(failed.message) < 200
    assert isinstance(agent.until(Gone), Gone)
