"""The fixture ``run_program``."""

from __future__ import annotations

import os
import threading

import pytest

from mesh.program import Program, wait_for_stop
from mesh.program.testing import Launches, RunProgram, run_program

__all__ = ["run_program"]  # pytest finds the fixture here


class Broken:
    def __init__(self) -> None:
        raise KeyError("broken")


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def run(self) -> None:
        while not wait_for_stop(0.01):
            self.count += 1

    def step(self) -> int:
        self.count += 1
        return self.count

    def fail(self) -> None:
        raise KeyError("planted")


def test_a_test_steps_nodes_by_their_handles(run_program: RunProgram) -> None:
    program = Program("stepped")
    counter = program.add(Counter)
    run_program(program, run=False)
    assert [counter.step() for _ in range(3)] == [1, 2, 3]


def test_a_failure_that_no_caller_sees_fails_the_test() -> None:
    launches = Launches()
    program = Program("failing")
    counter = program.add(Counter)
    running = launches(program)
    counter.tell.fail()
    assert running.wait(30).reason == "failure"
    with pytest.raises(KeyError, match="planted"):
        launches.close()


def test_remains_fail_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.program.testing.LEFT_TIMEOUT_S", 0.1)
    launches = Launches()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(AssertionError, match=r"thread forgotten, descriptor \d+ /dev/null"):
            launches.close()
    finally:
        os.close(descriptor)
        end.set()
        thread.join()
    launches.close()


def test_a_program_whose_launch_fails_leaves_nothing(run_program: RunProgram) -> None:
    program = Program("broken")
    program.add(Broken)
    with pytest.raises(KeyError, match="broken"):
        run_program(program)
