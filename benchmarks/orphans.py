"""What is left on the hosts when the client ends: mesh beside other tools.

Every tool starts four processes on each of four hosts; they sleep for ever. Then its client is ended, or its network;
after WAIT seconds the processes that are left are counted from outside.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.figures import table
from benchmarks.peers import peers
from benchmarks.rows import Chosen
from benchmarks.stage import BenchmarkError, Contestant, Stage
from tests.lab import Lab, eventually

HOSTS, EACH = 4, 4
SLEEP = "sleep 98765"
REMOTE = f"for i in 1 2 3 4; do {SLEEP} & done; wait"
GRACE, LEASE = 2, 10  # seconds; mesh's --grace and --lease here
# What mesh may take at most: the lease, grace, the agent's leave, and something for two busy cores.
WAIT = LEASE + GRACE + 2 + 5
OTHERS = ("pdsh", "clush", "pssh", "parallel-ssh", "ssh, one per host", "bare Fabric")
PAUSE = 3.0  # seconds that the cable is out, where it comes back


@dataclass(frozen=True)
class End:
    """A way for the client to end."""

    name: str
    happen: Callable[[subprocess.Popen[bytes], Lab], None]


def ctrl_c(process: subprocess.Popen[bytes], lab: Lab) -> None:
    """To the whole group, as a terminal does; pdsh wants it twice within a second."""
    for _ in range(2):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
            return


def cut_for_a_while(process: subprocess.Popen[bytes], lab: Lab) -> None:
    for host in lab.hosts:
        host.cut()
    time.sleep(PAUSE)
    for host in lab.hosts:
        host.mend()


def power_off(process: subprocess.Popen[bytes], lab: Lab) -> None:
    """The client's machine is gone: no byte of it will ever come again."""
    for host in lab.hosts:
        host.cut()
    os.killpg(process.pid, signal.SIGKILL)


ENDS = (
    End("Ctrl-C", ctrl_c),
    End("SIGTERM", lambda process, lab: process.terminate()),
    End("SIGKILL", lambda process, lab: process.kill()),
    End("the client's machine loses power", power_off),
)
STAYS = End(f"links cut for {PAUSE:g} s (all must go on)", cut_for_a_while)


def contestants(stage: Stage) -> list[Contestant]:
    options = ["--nproc", str(EACH), "--grace", str(GRACE), "--lease", str(LEASE)]
    return [
        Contestant(name="mesh run", argv=stage.user.mesh("run", *options, "pod", *SLEEP.split()), user=stage.user),
        *(one for one in peers(stage, REMOTE) if one.name in OTHERS),
    ]


@contextlib.contextmanager
def client(stage: Stage, one: Contestant) -> Iterator[subprocess.Popen[bytes]]:
    """The tool, once all its remote processes are there; afterwards nothing of it is."""
    with stage.started(one) as process:
        try:
            if not eventually(lambda: stage.ranks(SLEEP) == HOSTS * EACH, 30.0):
                raise BenchmarkError(f"{one.name}: {stage.ranks(SLEEP)} of {HOSTS * EACH} processes started")
            yield process
        finally:
            stage.lab.reset()


def count(stage: Stage, one: Contestant, end: End) -> int:
    with client(stage, one) as process:
        end.happen(process, stage.lab)
        if end is STAYS:
            time.sleep(WAIT)
        else:
            eventually(lambda: not stage.ranks(SLEEP), WAIT)
        return stage.ranks(SLEEP)


def orphans(chosen: Chosen) -> str:
    ends = (*ENDS, STAYS)
    rows = []
    with Stage(HOSTS) as stage:
        for one in contestants(stage):
            missing = [f"not installed here ({one.missing})"] * len(ends)
            rows.append([one.name, *([str(count(stage, one, end)) for end in ends] if one.argv else missing)])
    return f"""\
## Beside other tools

Every tool starts {EACH} processes that sleep for ever on each of {HOSTS} hosts; then its client ends. Told is how many
of the {HOSTS * EACH} processes are left after {WAIT} s, counted from outside. Ctrl-C goes to all processes of the
client, as from a terminal, and twice if once is not enough. SIGTERM and SIGKILL go to the client only. In the last
column nothing ends: the links are out for {PAUSE:g} s, and all {HOSTS * EACH} have to be there afterwards. mesh runs
with `--grace {GRACE} --lease {LEASE}`.

{table(["", *(end.name for end in ends)], rows)}
"""
