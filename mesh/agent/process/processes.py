"""The table of processes: how processes are found and signalled."""

from __future__ import annotations

import os

from mesh.agent.base.light import call, contents, prctl, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STAT_BYTES = 4096  # more than /proc/PID/stat ever has: 52 numbers and a name of 64 bytes
COMMAND_BYTES = 300  # of a command that is shown

# The beginning of the program of every agent and guardian, after -c: blob.py has the rest of it.
BOOT = "import os,sys;sys.version_info<(3,8)and "
AGENT, GUARDIAN = "mesh-agent", "mesh-guardian"  # the names that they take, at most 15 bytes
ARG_START, ARG_END = 45, 46  # fields of /proc/PID/stat after the process's name, proc(5)


def take_name(name: str) -> None:
    """Give this process a name of its own in ``ps``, ``pkill`` and ``killall``, also in its argv.

    A pattern like "python" in a user's command is meant for the user's processes, and must not match ours. Python
    has copied its argv, so nothing reads the old one any more. Where a kernel forbids to write there, it stays.
    """
    call("prctl", PR_SET_NAME, name.encode() + b"\0", 0, 0, 0)
    try:
        fields = contents("/proc/self/stat").rpartition(")")[2].split()
        start, size = int(fields[ARG_START]), int(fields[ARG_END]) - int(fields[ARG_START])
        memory = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(memory, name.encode()[: max(0, size - 1)].ljust(size, b"\0"), start)
        finally:
            os.close(memory)
    except (OSError, ValueError, IndexError):
        pass


def become_subreaper() -> None:
    """Make this process the parent of every orphan below it, also of those that called setsid."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def parse_environment(block: bytes) -> dict[bytes, bytes]:
    """Return the variables of an environment as the kernel has it.

    >>> parse_environment(b"A=1\\0B=x=y\\0")
    {b'A': b'1', b'B': b'x=y'}
    """
    pairs = (item.partition(b"=") for item in block.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def terminate_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends; send it at once if it has ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


class Process:
    """A process, as /proc shows it."""

    def __init__(
        self, pid: int, parent: int, state: str, name: str, threads: int, start: int, session: int = 0
    ) -> None:
        self.pid, self.parent, self.state, self.name = pid, parent, state, name
        self.session = session  # the pid of its leader, which may have ended
        self.threads = threads
        self.start = start  # clock ticks since boot: with the pid, it names a process once and for all

    @property
    def has_ended(self) -> bool:
        """True for a process that waits for its parent. A zombie with more threads than its first one goes on."""
        return self.state in "ZX" and self.threads < 2

    def age(self) -> float:
        """Return the seconds since it was started."""
        with open("/proc/uptime") as file:
            return float(file.read().split()[0]) - self.start / os.sysconf("SC_CLK_TCK")

    def described(self) -> str:
        """Return pid, user and command, for people."""
        if not self.pid:
            return self.name
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                command = file.read(COMMAND_BYTES).replace(b"\0", b" ").decode("utf-8", "replace").strip()
            user = os.stat(f"/proc/{self.pid}").st_uid
        except OSError:
            command, user = "", -1
        state = ", in uninterruptible sleep" if self.state == "D" else ""
        return f"pid {self.pid} ({command or self.name}), user {user}{state}"


def descendants(root: int) -> list[Process]:
    """Return every process below root that has not ended (zombies have), in no order."""
    return [process for process in families([root])[root] if process.pid != root]


def families(roots: Iterable[int]) -> dict[int, list[Process]]:
    """Return each of these processes with all below it that have not ended; parents come before children."""
    known: dict[int, Process] = {}
    children: dict[int, list[Process]] = {}
    for process in _look_around():
        known[process.pid] = process
        children.setdefault(process.parent, []).append(process)
    found = {}
    for root in roots:
        family = [known[root]] if root in known else []
        for process in family:  # it grows meanwhile; a zombie may still have children
            family += children.get(process.pid, ())
        found[root] = [process for process in family if not process.has_ended]
    return found


def has_children() -> bool:
    """Return True if there is any process below this one, a subreaper: the topmost of them would be its child.

    A child that has ended counts until it is waited for. This takes far less than a look at all processes.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


# A process that is surely there, though no look finds it.
UNSEEN = Process(0, 0, "?", "something that cannot be seen", 0, 0)


def look_at(pids: Iterable[int]) -> list[Process]:
    """Return those of these processes that have not ended."""
    found = (_look_at(str(pid)) for pid in pids)
    return [process for process in found if process is not None and not process.has_ended]


def all_processes() -> list[Process]:
    """Return every process of the machine that has not ended and that this user can see."""
    return [process for process in _look_around() if not process.has_ended]


def below(roots: set[int], every: Sequence[Process]) -> list[Process]:
    """Return these processes and all that descend from them, out of every process of the machine."""
    family = set(roots)
    grows = True
    while grows:
        more = {process.pid for process in every if process.parent in family} - family
        family |= more
        grows = bool(more)
    return [process for process in every if process.pid in family]


def is_own(pid: int) -> bool:
    """Return True for a process of this user."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def variable_of(pid: int, name: bytes) -> bytes:
    """Return a variable that a process was started with; b"" if it has none, or this user may not see it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return parse_environment(file.read()).get(name, b"")
    except OSError:
        return b""


def is_agent(pid: int) -> bool:
    """Return True for an agent and for a guardian. The ranks of an agent stay below it, whatever they do."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(STAT_BYTES)
    except OSError:
        return False
    first = words.partition(b"\0")[0]
    return first in (AGENT.encode(), GUARDIAN.encode()) or b"\0-I\0-S\0-c\0" + BOOT.encode() in words


def run_of(pid: int) -> str:
    """Return the run that a process of this machine was started for; "" for none, and in another container."""
    try:
        if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
            return ""
    except OSError:
        return ""
    return variable_of(pid, b"MESH_RUN_ID").decode("utf-8", "replace")


def _look_around() -> list[Process]:
    found = (_look_at(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def _look_at(pid: str) -> Process | None:
    try:
        # It takes less than half as long as open(), for every process of the machine.
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, STAT_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:  # it has just ended
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(int(pid), int(fields[1]), fields[0], name, int(fields[17]), int(fields[19]), int(fields[3]))


def send_signal(processes: Sequence[Process], number: int) -> list[Process]:
    """Signal processes, and return those of other users. A stopped process is continued, so that it gets the signal."""
    foreign = []
    for process in processes:
        try:
            os.kill(process.pid, number)
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                os.kill(process.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
        except PermissionError:
            foreign.append(process)
    return foreign


# Signals for all processes of a rank. Others go only to processes with a handler, because they would end the rest:
# shells and helpers around a program.
FOR_ALL = frozenset(
    (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGCONT,
    )
)


def pass_on(pid: int, number: int) -> int:
    """Signal a process and those below it, as far as the signal is for them. Return the number of signalled ones."""
    count = 0
    for process in [*look_at([pid]), *descendants(pid)]:
        if number in FOR_ALL or has_signal(str(process.pid), "SigCgt", number):
            try:
                os.kill(process.pid, number)
                count += 1
            except OSError:  # it has just ended, or is another user's
                pass
    return count


def has_signal(whose: str, field: str, number: int) -> bool:
    """Return True if a signal is in a set of /proc/WHOSE/status, as SigCgt: those that it has a handler for."""
    try:
        with open(f"/proc/{whose}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:  # it has ended
        pass
    return False
