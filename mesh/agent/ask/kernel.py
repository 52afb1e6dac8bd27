"""The state of a process as the kernel has it: running or not, its system call, and the file that this waits for."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.process.processes import Process

STATES = {
    "R": "running",
    "D": "in uninterruptible sleep",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
}
# Numbers of the calls that processes wait in: linux/arch/x86/entry/syscalls/syscall_64.tbl.
X86_64 = {
    0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
    23: "select", 26: "msync", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
    46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 76: "truncate",
    128: "rt_sigtimedwait", 130: "rt_sigsuspend", 202: "futex", 208: "io_getevents", 230: "clock_nanosleep",
    232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    295: "preadv", 296: "pwritev", 426: "io_uring_enter", 441: "epoll_pwait2",
}  # fmt: skip
# linux/include/uapi/asm-generic/unistd.h
AARCH64 = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 45: "truncate", 56: "openat", 63: "read", 64: "write",
    65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev", 72: "pselect6", 73: "ppoll",
    82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
    133: "rt_sigsuspend", 137: "rt_sigtimedwait", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
    211: "sendmsg", 212: "recvmsg", 227: "msync", 242: "accept4", 260: "wait4", 426: "io_uring_enter",
    441: "epoll_pwait2",
}  # fmt: skip
CALLS = {"x86_64": X86_64, "aarch64": AARCH64}
# Calls whose first argument is a descriptor.
CALL_OF_FILE = r"(p?(read|write)|send|recv|accept|connect|ioctl|fcntl|flock|fsync|fdatasync)"


def state_of(process: Process) -> str:
    """Return the state of a process in words, as far as this user may see it: "in read of a pipe (pipe_read)"."""
    state = STATES.get(process.state, "")
    if process.state in "RTt":
        return state
    call, waits = _call(process.pid), _read(process.pid, "wchan")
    words = [state, f"in {call}" if call else "" if state else "sleeping"]
    if waits not in ("", "0"):
        words.append(f"({waits})")
    return " ".join(word for word in words if word)


def frames(pid: int) -> list[str]:
    """Return the kernel's stack of a process, innermost first; [] unless this process is root's."""
    lines = _read(pid, "stack").split("\n")
    return [line.partition("] ")[2].partition("+")[0] for line in lines if "+" in line]


def _call(pid: int) -> str:
    """Return the system call of a process and its file; "" if it is in none, or this user may not see it."""
    fields = _read(pid, "syscall").split()
    if len(fields) < 2 or not fields[0].isdigit():
        return ""
    name = CALLS.get(os.uname().machine, {}).get(int(fields[0]), f"system call {fields[0]}")
    if not re.match(CALL_OF_FILE, name):
        return name
    try:
        return f"{name} of {_kind(os.readlink(f'/proc/{pid}/fd/{int(fields[1], 16)}'))}"
    except OSError:
        return name


def _kind(link: str) -> str:
    """Return the kind of an open file, in words that are alike for all ranks.

    >>> _kind("pipe:[123]"), _kind("socket:[7]"), _kind("anon_inode:[eventfd]"), _kind("/data/x")
    ('a pipe', 'a socket', 'eventfd', '/data/x')
    """
    kind, _, rest = link.partition(":")
    if kind in ("pipe", "socket"):
        return f"a {kind}"
    return rest.strip("[]") if kind == "anon_inode" else link


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
