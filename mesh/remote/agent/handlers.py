"""Stacks from ranks that have been prepared for it: each Python registers a handler that writes its own stacks.

A directory in front of PYTHONPATH holds a sitecustomize that does so and makes way for one of the user's own. The
handler is faulthandler's: it takes no lock and runs no Python, so that it also answers where the interpreter hangs.
"""

from __future__ import annotations

import fcntl
import os
import re
import time

from .processes import has_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .processes import Process

NAME = "mesh-stacks"  # of the file that a process writes to; it has no place in any directory
SIGNAL = 57  # a real-time signal far from those that C libraries, Java or systemd use
LOOK = 0.005  # seconds between two looks whether all is written
PATIENCE = 1.0  # seconds for a process to do it
ANSWERS = frozenset("RS")  # states in which a signal is heard
# Seconds since its start. A younger one may be a fork that is about to become another program, which has no handler:
# the signal would end it.
OLD_ENOUGH = 0.5

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

# Compiled by who needs them: agents that answer no such question start without it.
THREAD = r"(?:Thread|Current thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):"
FRAME = r'  File "(.*)", line (\d+|\?\?\?) in (.*)'


def source() -> bytes:
    """Of the module that has every Python prepared which finds it as ``sitecustomize``."""
    return SCRIPT.replace("{name}", NAME).replace("{signal}", str(SIGNAL)).encode()


def ask(process: Process) -> str:
    """Have a process write its stacks, and return them; "" if it is not prepared, or cannot be asked now.

    May block for PATIENCE seconds. Raises OSError.
    """
    pid = process.pid
    number = _file_of(pid)
    if number < 0 or process.state not in ANSWERS or process.age() < OLD_ENOUGH:
        return ""
    path = f"/proc/{pid}/fd/{number}"
    with open(path, "r+b", buffering=0) as file:
        if not _has_to_itself(file.fileno()):
            return ""
        head = file.readline()
        asked_by = int(head or "0")
        if not asked_by or not has_signal(str(pid), "SigCgt", asked_by):
            return ""
        deaf = _blocking(pid, asked_by)
        # It may have closed the file, and opened another one under its number.
        if len(deaf) == len(_threads(pid)) or NAME not in os.readlink(path):
            return ""
        before = os.fstat(file.fileno()).st_size
        os.kill(pid, asked_by)
        if not _wait(pid, asked_by, deaf, file.fileno(), before):
            return ""
        written = os.pread(file.fileno(), 1 << 24, before)
        os.ftruncate(file.fileno(), len(head))
    return written.decode("utf-8", "replace")


def _has_to_itself(file: int) -> bool:
    """Wait until nobody else is asking: processes that were forked share a file, and others may ask as well."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK)
        else:
            return True
    return False


def _wait(pid: int, number: int, deaf: set[str], file: int, before: int) -> bool:
    """Wait until it has written everything: its thread is back from the handler, in which the signal is blocked."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(LOOK)
        if os.fstat(file).st_size > before and not _blocking(pid, number) - deaf:
            return True
    return False


def _file_of(pid: int) -> int:
    """The number of the descriptor that a process writes its stacks to; -1 if it has none."""
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
    """The threads that do not hear a signal now."""
    return {thread for thread in _threads(pid) if has_signal(f"{pid}/task/{thread}", "SigBlk", number)}


def read(text: str) -> list[dict[str, Any]]:
    """The threads of what a process has written: "name", "main" and "frames" (function, file, line), innermost first.

    >>> read('Current thread 0x7f (most recent call first):\\n  File "/w/a.py", line 3 in step\\n')
    [{'name': '', 'main': True, 'frames': [('step', '/w/a.py', 3)]}]
    """
    threads: list[dict[str, Any]] = []
    for line in text.split("\n"):
        begins, frame = re.match(THREAD, line), re.match(FRAME, line)
        if begins:
            threads.append({"name": begins.group(1) or "", "main": False, "frames": []})
        elif frame and threads:
            file, number, function = frame.groups()
            threads[-1]["frames"].append((function, file, int(number) if number.isdigit() else 0))
    if threads:  # the interpreter lists the newest first
        threads[-1]["main"] = True
    return threads
