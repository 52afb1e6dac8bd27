"""Stacks of unprepared processes by py-spy, a program that reads their memory.

It stops no process (--nonblocking): a py-spy that is killed could leave a process stopped, and one in uninterruptible
sleep would be stopped later. A process that hangs has the same stack all the time anyway.
"""

from __future__ import annotations

import json
import os
import select
import time
import zlib

from mesh.agent.ask.threads import Thread
from mesh.agent.process.spawning import find_program
from mesh.agent.sync.contents import hash_file, hash_of
from mesh.protocol.kinds import COUNT, SIGNED, TEXT, Wrong, as_it_is, listed, nullable
from mesh.protocol.records import Record, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

PROGRAM = "py-spy"
ATTEMPTS_MAX = 3  # for a process that is running: its memory may change meanwhile
PROGRAM_BYTES = 64 << 20
OUTPUT_BYTES = 64 << 20
READ_BYTES = 1 << 16
ERROR_CHARACTERS = 200  # of py-spy's error that are shown
REFUSED = ("permission denied", "operation not permitted")
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


class _Frame(Record):
    """A frame in the output of py-spy."""

    name: str = field(TEXT)
    filename: str = field(TEXT)
    line: int = field(SIGNED)


class _Thread(Record):
    """A thread in the output of py-spy."""

    pid: int = field(COUNT)
    thread_name: str | None = field(nullable(TEXT), default=None)
    os_thread_id: int | None = field(nullable(COUNT), default=None)
    frames: Sequence[_Frame] = field(listed(record(_Frame)))


def forbidden() -> tuple[str, str]:
    """Return why the kernel lets a process read only its own children, and what to do; ("", "") if it does not."""
    try:
        with open(SCOPE) as file:
            scope = int(file.read())
    except (OSError, ValueError):
        return "", ""
    if not scope or (scope < 3 and os.geteuid() == 0):
        return "", ""
    allow = "`sudo sysctl kernel.yama.ptrace_scope=0` on the host allows it"
    return f"py-spy may not trace: kernel.yama.ptrace_scope is {scope}", allow if scope < 3 else ""


def find(places: list[bytes], kept: str, tool: Mapping[str, str]) -> str:
    """Return the path of the program; "" if there is none.

    places: PATHs to look at; kept: the directory of programs that clients have sent
    tool: "hash" and "path" of the client's program; {} for none
    """
    if tool:
        mine = os.path.join(kept, _name(tool["hash"]))
        if os.access(mine, os.X_OK):
            return mine
        if os.access(tool["path"], os.X_OK) and hash_file(tool["path"]) == tool["hash"]:  # this is its machine
            return tool["path"]
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
    """Keep the program that a client has sent, in place of an earlier one. Raises OSError or ValueError."""
    data = zlib.decompressobj().decompress(packed, PROGRAM_BYTES)
    if hash_of(data) != digest:
        raise ValueError("it was damaged on its way")
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
    """Return a file name that differs by kind of machine: several kinds may share a home directory."""
    return f"{PROGRAM}-{os.uname().machine}-{digest}"


def dump(program: str, pids: list[int], deadline: float) -> dict[int, tuple[list[Thread], str]]:
    """Return the threads of each process, and why there are none.

    deadline: monotonic; several processes are read at once. Raises OSError if the program cannot be run.
    """
    waiting = [(pid, 1) for pid in pids]
    running: list[_Dump] = []
    found: dict[int, tuple[list[Thread], str]] = {pid: ([], "there was no time") for pid in pids}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < 2 * (os.cpu_count() or 1):
                running.append(_Dump(program, *waiting.pop(0)))
            _wait(running, deadline)
            for one in [one for one in running if one.is_over]:
                running.remove(one)
                found[one.pid] = one.result()
                # A process that has ended is not worth another attempt.
                if not found[one.pid][0] and one.attempt < ATTEMPTS_MAX and os.path.exists(f"/proc/{one.pid}/exe"):
                    waiting.append((one.pid, one.attempt + 1))
    finally:
        for one in running:
            one.kill()
    return found


class _Dump:
    """A py-spy that reads one process."""

    def __init__(self, program: str, pid: int, attempt: int) -> None:
        import subprocess

        self.pid, self.attempt = pid, attempt
        argv = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.output = {self.process.stdout.fileno(): bytearray(), self.process.stderr.fileno(): bytearray()}
        self.open = set(self.output)

    @property
    def is_over(self) -> bool:
        return not self.open

    def read(self, descriptor: int) -> None:
        data = os.read(descriptor, READ_BYTES)
        self.output[descriptor] += data
        if not data or len(self.output[descriptor]) > OUTPUT_BYTES:
            self.open.discard(descriptor)

    def result(self) -> tuple[list[Thread], str]:
        out, err = (bytes(output) for output in self.output.values())
        self._close()
        self.process.wait()
        if self.process.returncode == 0:
            try:
                return read(json.loads(out)), ""
            except (ValueError, Wrong):
                return [], f"{PROGRAM} has written no list of threads"
        text = " ".join(err.decode("utf-8", "replace").split())
        return [], text or f"{PROGRAM} ended with {self.process.returncode}"

    def kill(self) -> None:
        self.process.kill()
        self._close()
        self.process.wait()

    def _close(self) -> None:
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def _wait(running: list[_Dump], deadline: float) -> None:
    """Wait until one of them writes something, or the time is out, and read it."""
    poll = select.poll()
    writers = {descriptor: one for one in running for descriptor in one.open}
    for descriptor in writers:
        poll.register(descriptor, select.POLLIN)
    for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        writers[descriptor].read(descriptor)


def read(output: object) -> list[Thread]:
    """Return the threads in the output of py-spy. Raises Wrong."""
    threads = [
        Thread(
            thread.thread_name or "",
            is_main=thread.os_thread_id == thread.pid,
            frames=[(frame.name, frame.filename, frame.line) for frame in thread.frames],
        )
        for thread in listed(record(_Thread)).check(output, as_it_is)
    ]
    if threads and not any(thread.is_main for thread in threads):  # forked off by another thread than the first one
        threads[-1].is_main = True
    return [thread for thread in threads if thread.frames or thread.is_main]


def why_not(pid: int, error: str) -> tuple[str, str]:
    """Return why a process could not be read, in words that are alike for all of them, and what to do."""
    tracer = 0
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.partition(":\t")[::2] for line in file)
        tracer = int(fields.get("TracerPid", "0"))
        user = int(fields.get("Uid", "-1").split()[0])
    except (OSError, ValueError):
        return "", ""  # it has ended
    if not any(word in error.lower() for word in REFUSED):
        return f"py-spy cannot read it: {error[:ERROR_CHARACTERS].replace(str(pid), 'PID')}", ""
    if tracer:
        return "py-spy may not trace what another program is tracing", ""
    if os.geteuid() not in (0, user):
        return "py-spy may not trace what belongs to another user", ""
    found = forbidden()
    return found if found[0] else ("py-spy may not trace", "in a container, CAP_SYS_PTRACE allows it")
