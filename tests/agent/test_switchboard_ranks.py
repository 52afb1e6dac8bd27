"""A signal for the ranks of the agents below one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from mesh.agent.switchboard.ranks import signal_ranks

# A process with the name of an agent, with a rank and another child. It prints the rank's status.
AGENT = """\
import os, subprocess, sys
with open("/proc/self/comm", "w") as file:
    file.write("mesh-agent")
marked = {**os.environ, "RANK": "0", "MESH_RUN_ID": "x"}
rank = subprocess.Popen(["sleep", "60"], env=marked)
other = subprocess.Popen(["sleep", "60"])
print(flush=True)
print(rank.wait(), other.poll(), flush=True)
other.kill()
other.wait()
"""


def test_only_ranks_below_the_process_get_the_signal() -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    agent.stdout.readline()
    assert signal_ranks(signal.SIGUSR1, agent.pid + (1 << 22)) == 0  # no process has that number
    assert signal_ranks(signal.SIGUSR1, os.getpid()) == 1
    assert agent.communicate()[0] == f"{-signal.SIGUSR1} None\n"
