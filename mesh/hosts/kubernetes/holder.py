"""The first process of a pod that mesh makes. It ends the pod once no agent has been there for a time.

``python3 -I -S -c TEXT HOLD START UNTIL``: seconds without an agent, seconds for the first agent to come, and a time
since the epoch before which the pod stays (0: none). It needs Python 3.8 and the standard library. A fourth word is the
program of a switchboard, whose node it runs ("": none). Four more are those of a declared job: the program that begins
its run, the file of its plan, the directory of its Secret, and the message where that is missing. The pod then ends
with the status of the run, as far as that is here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

LOOK_INTERVAL_S = 1.0
JOB_WORD = 5  # the first one of a declared job
NOT_BEGUN = 125  # as in mesh/agent/declared/main.py
AGENTS = (b"mesh-agent", b"mesh-guardian")
GUARDIAN = AGENTS[1]
PRIVATE_PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # as in mesh/agent/base/directories.py


def mounts(pid: str) -> str:
    """Return the name of a process's view of files, which the processes of one container share; "": unknown."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def agents() -> list[int]:
    """Return the ids of the agents' processes, guardians first; an agent that starts has no name yet.

    The container's own processes alone count. Where it is not alone with them (`hostPID: true`), /proc has others.
    """
    found = []
    ours = "" if os.getpid() == 1 else mounts("self")
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or (ours and mounts(name) != ours):
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat", "rb") as file:  # a name may be cut within a character
                comm, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read()
            if rest.split()[0] not in (b"Z", b"X") and (
                comm in AGENTS or words.startswith(b"mesh-") or b"-I\0-S\0-c" in words
            ):
                found.append((comm != GUARDIAN, int(name)))
    return [pid for _, pid in sorted(found)]


def last_trace() -> float:
    """Return when an agent has begun or ended last, in seconds since the epoch; an agent may live for a moment only."""
    newest = 0.0
    for place in PRIVATE_PLACES:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith("mesh-"):  # holds the control sockets of agents
                    newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def reap() -> dict[int, int]:
    """Collect every child that has ended; return the exit status of each, as a shell has it."""
    found: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found[pid] = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return found


def end(number: int, frame: object) -> None:
    """Have every agent end its ranks, and leave once all have gone: the pod is being ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sent: set[int] = set()
    while True:
        living = agents()
        for pid in living:
            if pid not in sent:
                sent.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
        reap()
        if not living:
            raise SystemExit(128 + number if len(sys.argv) > JOB_WORD else 0)  # an ended job has not succeeded
        time.sleep(0.1)


def started(node: int, program: str) -> int:
    """Return the process of the switchboard's node, started if it is not there; 0: there is none."""
    if not os.path.exists(program) or (node and os.path.exists(f"/proc/{node}")):
        return node
    return os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", program, "pods-node"], os.environ)


def begin(program: str, plan: str, files: str, missing: str) -> int:
    """Begin the run of a declared job; return the process that does. Ends the pod without its Secret."""
    if not os.path.exists(program):
        sys.stderr.write(missing + "\n")
        raise SystemExit(NOT_BEGUN)
    return os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", program, plan, files], os.environ)


def hold(idle: float, start: float, until: float, program: str = "", job: int = 0) -> int:
    """Wait until no agent has been there for a time; return the exit status of the job, 0 without one.

    program: of a switchboard; "": none; job: the process that begins the run of a declared job; 0: none
    """
    began, seen, trace, node, status = time.monotonic(), 0.0, last_trace(), 0, 0
    while True:
        ended = reap()
        if job in ended:
            job, status = 0, ended[job]
            seen = time.monotonic()
            if status == NOT_BEGUN:
                return status
        node = started(node, program)
        now, before, trace = time.monotonic(), trace, last_trace()
        if agents() or trace != before:
            seen = now
        if not job and time.time() >= until and now >= (seen + idle if seen else began + start):
            return status
        time.sleep(LOOK_INTERVAL_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    begun = begin(*sys.argv[JOB_WORD : JOB_WORD + 4]) if len(sys.argv) > JOB_WORD else 0
    raise SystemExit(hold(float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), "".join(sys.argv[4:5]), begun))
