"""Stacks from ranks that have been prepared for it: each Python registers a handler that writes its own stacks.

A directory in front of PYTHONPATH holds a sitecustomize that does so and makes way for one of the user's own. The
handler is faulthandler's: it takes no lock and runs no Python, so that it also answers where the interpreter hangs.
"""

from __future__ import annotations

import fcntl
import os
import re
import time

from mesh.agent.ask.threads import Thread
from mesh.agent.process.processes import has_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.process.processes import Process

NAME = "mesh-stacks"  # of the file that a process writes to; it has no place in any directory
STACKS_SIGNAL = 57  # a real-time signal far from those that C libraries, Java or systemd use
LOOK_INTERVAL_S = 0.005  # between two looks whether all is written
STACKS_BYTES = 1 << 24  # of one process
WRITE_LIMIT_S = 1.0  # for a process to write its stacks
ANSWERS = frozenset("RS")  # states in which a process takes a signal
# A younger process may be a fork that is about to become another program. The signal would end that.
AGE_MIN_S = 0.5

SCRIPT = r"""# Written by `mesh run --stacks`: lets `mesh stacks` ask this process for its stacks.
import sys


def _mesh_prepare():
    import os

    place = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != place]
    try:
        import faulthandler, fcntl

        try:
            file = os.memfd_create("{name}")
        except (AttributeError, OSError):
            path = "/dev/shm/{name}-%d" % os.getpid()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(path)
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 100)
        os.close(file)
        fcntl.fcntl(high, fcntl.F_SETFL, os.O_APPEND)
        os.write(high, b"{signal}\n")
        faulthandler.register({signal}, high, all_threads=True)
    except Exception:
        pass


_mesh_prepare()
del _mesh_prepare
_mesh_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as _mesh_error:
    if _mesh_error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _mesh_ours)
"""

THREAD = r"(?:Thread|Current thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):"
FRAME = r'  File "(.*)", line (\d+|\?\?\?) in (.*)'


def source() -> bytes:
    """Return the source of the module that prepares every Python which finds it as ``sitecustomize``."""
    return SCRIPT.replace("{name}", NAME).replace("{signal}", str(STACKS_SIGNAL)).encode()


def ask(process: Process) -> str:
    """Have a process write its stacks, and return them; "" if it is not prepared, or cannot do that now.

    May block for some seconds. Raises OSError.
    """
    pid = process.pid
    number = _file_of(pid)
    if number < 0 or process.state not in ANSWERS or process.age() < AGE_MIN_S:
        return ""
    path = f"/proc/{pid}/fd/{number}"
    with open(path, "r+b", buffering=0) as file:
        if not _lock(file.fileno()):
            return ""
        head = file.readline()
        number = int(head or "0")
        if not number or not has_signal(str(pid), "SigCgt", number):
            return ""
        blocking = _blocking(pid, number)
        # It may have closed the file, and opened another one under its number.
        if len(blocking) == len(_threads(pid)) or NAME not in os.readlink(path):
            return ""
        before = os.fstat(file.fileno()).st_size
        os.kill(pid, number)
        if not _wait(pid, number, blocking, file.fileno(), before):
            return ""
        written = os.pread(file.fileno(), STACKS_BYTES, before)
        os.ftruncate(file.fileno(), len(head))
    return written.decode("utf-8", "replace")


def _lock(file: int) -> bool:
    """Lock the file, which forked processes share. False if another agent has it for too long."""
    deadline = time.monotonic() + WRITE_LIMIT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_INTERVAL_S)
        else:
            return True
    return False


def _wait(pid: int, number: int, blocking: set[str], file: int, before: int) -> bool:
    """Wait until all is written and the thread is back from the handler, in which the signal is blocked."""
    deadline = time.monotonic() + WRITE_LIMIT_S
    while time.monotonic() < deadline:
        time.sleep(LOOK_INTERVAL_S)
        if os.fstat(file).st_size > before and not _blocking(pid, number) - blocking:
            return True
    return False


def _file_of(pid: int) -> int:
    """Return the descriptor that a process writes its stacks to; -1 if it has none."""
    place = f"/proc/{pid}/fd"
    for name in os.listdir(place):
        try:
            if NAME in os.path.basename(os.readlink(os.path.join(place, name))):
                return int(name)
        except OSError:
            continue
    return -1


def _threads(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")


def _blocking(pid: int, number: int) -> set[str]:
    """Return the threads that block a signal now."""
    return {thread for thread in _threads(pid) if has_signal(f"{pid}/task/{thread}", "SigBlk", number)}


def read(text: str) -> list[Thread]:
    """Return the threads in a text that a process has written.

    >>> read('Current thread 0x7f (most recent call first):\\n  File "/w/a.py", line 3 in step\\n')[0].frames
    [('step', '/w/a.py', 3)]
    """
    threads: list[Thread] = []
    for line in text.split("\n"):
        begins, frame = re.match(THREAD, line), re.match(FRAME, line)
        if begins:
            threads.append(Thread(begins.group(1) or "", is_main=False))
        elif frame and threads:
            file, number, function = frame.groups()
            threads[-1].frames.append((function, file, int(number) if number.isdigit() else 0))
    if threads:  # the interpreter lists the newest first
        threads[-1].is_main = True
    return threads
