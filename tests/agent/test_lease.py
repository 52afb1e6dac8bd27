"""The guardian watches the lease: an agent that is stuck does not extend it."""

from __future__ import annotations

import os
import signal
import threading
import time

from mesh.agent.guardian import ANSWER_LIMIT_S
from mesh.core.events import Answered, Connected, Exited, Lost, Output
from mesh.protocol.questions import Stop
from mesh.protocol.replies import Stopped
from tests.lab import eventually

from .conftest import Open
from .test_ending import is_running

LEASE_S = 6.0  # longer than anything here takes to be sent, on a slow machine
STUBBORN = "trap '' TERM; (trap '' TERM; exec setsid sleep 4569) & echo $! $$ $PPID; while :; do sleep 1; done"


def test_a_stopped_agent_does_not_extend_its_lease(opener: Open, python: str) -> None:
    run = opener(python, lease=LEASE_S, grace=60.0)
    run.prepare()
    run.start("bash", "-c", STUBBORN)
    run.until(Output)
    escapee, rank, agent = map(int, run.printed().split())
    os.kill(agent, signal.SIGSTOP)
    lost = run.until(Lost)
    assert isinstance(lost, Lost)
    assert lost.is_clear
    assert "it did not answer after the end of its lease" in lost.reason
    assert eventually(lambda: not any(map(is_running, (escapee, rank, agent))))


def test_beats_extend_the_lease_for_the_agent_and_for_its_guardian(opener: Open, any_python: str) -> None:
    run = opener(any_python, lease=LEASE_S)
    run.prepare()
    run.start("sleep", str(LEASE_S + ANSWER_LIMIT_S + 2.0))
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.5):
            run.session.beat()

    beats = threading.Thread(target=beat)
    beats.start()
    try:
        exited = run.until(Exited, Lost)
    finally:
        over.set()
        beats.join()
    assert isinstance(exited, Exited)
    assert exited.code == 0
    run.finish()


def test_the_backend_decides_when_a_silent_client_is_dead(opener: Open, any_python: str) -> None:
    run = opener(any_python, return_within=6.0, grace=0.5)
    run.prepare()
    run.start("sh", "-c", "echo $$; exec sleep 4570")
    run.until(Output)
    rank, closed = int(run.printed()), time.monotonic()
    run.session.try_another("the test ends the channel")
    assert eventually(lambda: not is_running(rank))
    assert time.monotonic() - closed >= 6.0  # the default is 5 s


def test_a_question_may_take_longer_than_the_lease(opener: Open, any_python: str) -> None:
    run = opener(any_python, grace=LEASE_S + 3.0)
    run.prepare()
    run.start("bash", "-c", STUBBORN)
    run.until(Output)
    asking = opener(any_python, node=1, lease=LEASE_S)
    asking.until(Connected)
    asking.session.ask(Stop(run=f"run-{os.getpid()}", grace=None))
    answered = asking.until(Answered)
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, Stopped)
    assert answered.answer.left == []
    assert [one.run for one in answered.answer.stopped] == [f"run-{os.getpid()}"]
