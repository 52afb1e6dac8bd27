"""Programs whose start and end the row ``programs`` measures: a file of a project, which is run as one of its user.

    python3 program_lives.py whole|ended HOSTS

HOSTS: their names as JSON. It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from mesh.program import Program, stop, wait_for_stop

STEPS, END_TIMEOUT_S = 100, 30.0


class Actor:
    """Answers calls."""

    def act(self, step: int) -> int:
        return step

    def stop_all(self) -> None:
        stop(why="asked to")


class Learner:
    """Calls all actors in each step, and stops the program."""

    def __init__(self, actors: Any) -> None:
        self.actors = actors

    def run(self) -> int:
        found = sum(sum(self.actors.act(step)) for step in range(STEPS))
        stop()
        return found


def whole(hosts: Sequence[str]) -> object:
    """Run actors on all hosts but the last, and a learner there, to the end; return the learner's value."""
    program = Program("whole", cluster="pod")
    actors = program.add(Actor, on=list(hosts[:-1]), per_host=2)
    program.add(Learner, actors, on=hosts[-1])
    with program.launch() as running:
        running.wait()
        return running.result("learner")


def ended(hosts: Sequence[str]) -> object:
    """Return the seconds from ``stop`` in a node to the end of the last one; two nodes on each host wait for it."""
    program = Program("ended", cluster="pod")
    actors: Any = program.add(Actor, on=list(hosts), per_host=1)
    program.add(wait_for_stop, on=list(hosts), per_host=1, label="waits")
    with program.launch() as running:
        begun = time.monotonic()
        actors[0].tell.stop_all()
        while any(node.state.value in ("starting", "ready") for node in running.nodes):
            if time.monotonic() - begun > END_TIMEOUT_S:
                raise TimeoutError(f"not ended after {END_TIMEOUT_S:g} s")
            time.sleep(0.002)
        return time.monotonic() - begun


RUNS = {"whole": whole, "ended": ended}

if __name__ == "__main__":
    print("FOUND", json.dumps(RUNS[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
