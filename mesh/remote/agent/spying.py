"""Stacks of processes that know nothing of it, by py-spy: a program that reads their memory and never stops them.

It stops nobody (--nonblocking): one that is killed while it has stopped a process could leave that stopped, and a
process in uninterruptible sleep would be stopped later. What hangs has the same stack all the time anyway.
"""

from __future__ import annotations

import json
import os
import select
import time
import zlib

from .spawning import find_program
from .store import hash_file, hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

PROGRAM = "py-spy"
ATTEMPTS = 3  # for a process that is running: what is read may change meanwhile
MOST = 64 << 20  # bytes of the program, or of what it says
REFUSED = ("permission denied", "operation not permitted")
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


def forbidden() -> tuple[str, str]:
    """Why the kernel lets us read no process but our own children, and what to do; ("", "") if it is not like that."""
    try:
        with open(SCOPE) as file:
            scope = int(file.read())
    except (OSError, ValueError):
        return "", ""
    if not scope or (scope < 3 and os.geteuid() == 0):
        return "", ""
    allow = "`sudo sysctl kernel.yama.ptrace_scope=0` on the host allows it"
    return f"py-spy may not trace: kernel.yama.ptrace_scope is {scope}", allow if scope < 3 else ""


def find(places: list[bytes], kept: str, tool: dict[str, Any]) -> str:
    """The path of the program; "" if there is none.

    places: PATHs to look at; kept: where what clients have sent is
    tool: "hash" and "path" of what the client has; {} for none
    """
    if tool:
        mine = os.path.join(kept, _name(tool["hash"]))
        if os.access(mine, os.X_OK):
            return mine
        if os.access(tool["path"], os.X_OK) and hash_file(tool["path"]) == tool["hash"]:  # we are on its machine
            return str(tool["path"])
    for path in places:
        try:
            return os.fsdecode(find_program(PROGRAM.encode(), path))
        except OSError:
            continue
    beginning = _name("")
    try:
        others = sorted(name for name in os.listdir(kept) if name.startswith(beginning)) if not tool else []
    except OSError:
        others = []
    return os.path.join(kept, others[-1]) if others else ""


def keep(kept: str, digest: str, packed: bytes) -> None:
    """Put what a client has sent among what is kept, in the place of an earlier one. Raises OSError or ValueError."""
    data = zlib.decompressobj().decompress(packed, MOST)
    if hash_of(data) != digest:
        raise ValueError("what came is not what was sent")
    os.makedirs(kept, 0o700, exist_ok=True)
    new = os.path.join(kept, f".new-{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(new, os.path.join(kept, _name(digest)))
    except OSError:
        os.unlink(new)
        raise
    for name in os.listdir(kept):
        if name.startswith(_name("")) and name != _name(digest):
            try:
                os.unlink(os.path.join(kept, name))
            except FileNotFoundError:
                pass


def _name(digest: str) -> str:
    """Machines of several kinds may share a home directory."""
    return f"{PROGRAM}-{os.uname().machine}-{digest}"


def dump(program: str, pids: list[int], deadline: float) -> dict[int, tuple[list[dict[str, Any]], str]]:
    """The threads of each process, as ``read`` gives them, and why there are none.

    deadline: monotonic; several processes are read at once. Raises OSError if the program cannot be run.
    """
    waiting = [(pid, 1) for pid in pids]
    running: list[_Dump] = []
    found: dict[int, tuple[list[dict[str, Any]], str]] = {pid: ([], "there was no time") for pid in pids}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < 2 * (os.cpu_count() or 1):
                running.append(_Dump(program, *waiting.pop(0)))
            _wait(running, deadline)
            for one in [one for one in running if one.is_over]:
                running.remove(one)
                found[one.pid] = one.result()
                # A process that has ended is not worth another attempt.
                if not found[one.pid][0] and one.attempt < ATTEMPTS and os.path.exists(f"/proc/{one.pid}/exe"):
                    waiting.append((one.pid, one.attempt + 1))
    finally:
        for one in running:
            one.kill()
    return found


class _Dump:
    """The program at work on one process."""

    def __init__(self, program: str, pid: int, attempt: int) -> None:
        import subprocess

        self.pid, self.attempt = pid, attempt
        argv = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.said = {self.process.stdout.fileno(): bytearray(), self.process.stderr.fileno(): bytearray()}
        self.open = set(self.said)

    @property
    def is_over(self) -> bool:
        return not self.open

    def listen(self, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        self.said[descriptor] += data
        if not data or len(self.said[descriptor]) > MOST:
            self.open.discard(descriptor)

    def result(self) -> tuple[list[dict[str, Any]], str]:
        out, err = (bytes(said) for said in self.said.values())
        self._close()
        self.process.wait()
        if self.process.returncode == 0:
            try:
                return read(json.loads(out)), ""
            except (ValueError, KeyError, TypeError):
                return [], f"{PROGRAM} said what is no list of threads"
        said = " ".join(err.decode("utf-8", "replace").split())
        return [], said or f"{PROGRAM} ended with {self.process.returncode}"

    def kill(self) -> None:
        self.process.kill()
        self._close()
        self.process.wait()

    def _close(self) -> None:
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def _wait(running: list[_Dump], deadline: float) -> None:
    """Listen to what they say until one of them says something, or the time is out."""
    poll = select.poll()
    speakers = {descriptor: one for one in running for descriptor in one.open}
    for descriptor in speakers:
        poll.register(descriptor, select.POLLIN)
    for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        speakers[descriptor].listen(descriptor)


def read(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Threads as the program tells them: "name", "main" and "frames" (function, file, line), innermost first."""
    threads = [
        {
            "name": thread["thread_name"] or "",
            "main": thread["os_thread_id"] == thread["pid"],
            "frames": [(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"]],
        }
        for thread in told
    ]
    if threads and not any(thread["main"] for thread in threads):  # forked off by another thread than the first one
        threads[-1]["main"] = True
    return [thread for thread in threads if thread["frames"] or thread["main"]]


def why_not(pid: int, said: str) -> tuple[str, str]:
    """Why a process could not be read, in words that are alike for all of them, and what to do."""
    tracer = 0
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.partition(":\t")[::2] for line in file)
        tracer = int(fields.get("TracerPid", "0"))
        user = int(fields.get("Uid", "-1").split()[0])
    except (OSError, ValueError):
        return "", ""  # it has ended
    if not any(word in said.lower() for word in REFUSED):
        return f"py-spy cannot read it: {said[:200].replace(str(pid), 'PID')}", ""
    if tracer:
        return "py-spy may not trace what another program is tracing", ""
    if os.geteuid() not in (0, user):
        return "py-spy may not trace what belongs to another user", ""
    told = forbidden()
    return told if told[0] else ("py-spy may not trace", "in a container, CAP_SYS_PTRACE allows it")
