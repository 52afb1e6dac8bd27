"""How processes are started: with a setting of their own and nothing of the agent."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from mesh.agent.base.light import prctl, signal
from mesh.agent.process import cgroups
from mesh.agent.process.processes import PR_SET_PDEATHSIG, parse_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

F_SETPIPE_SZ = 1031  # linux/fcntl.h; in Python's fcntl since 3.10
PIPE_BYTES = 1 << 20  # the most that an unprivileged user gets: /proc/sys/fs/pipe-max-size
FREE_DESCRIPTOR = 256  # a number above all that a process is given
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit status of a command that could not be started, as a shell has them


def close_inherited() -> None:
    """Keep descriptors that sshd or the login shell left open out of every child process."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2:
            try:
                os.set_inheritable(descriptor, False)
            except OSError:  # the one that listed the directory
                pass


def first_environment() -> dict[bytes, bytes]:
    """Return the environment that this process was started with. Python itself may add LC_CTYPE (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        return parse_environment(file.read())


class Setting:
    """The environment, working directory, umask, limits and control group of a new process."""

    def __init__(
        self,
        environment: dict[bytes, bytes],
        directory: str,
        umask: int | None = None,
        limits: dict[int, tuple[int, int]] | None = None,
        cgroup: str = "",
    ) -> None:
        self.environment = environment
        self.directory = directory
        self.umask = umask  # None: ours
        self.limits = limits or {}  # resource.RLIMIT_* to (soft, hard); {}: ours
        self.cgroup = cgroup  # the directory of its control group; "": ours
        self.terminal: Sequence[int] = ()  # columns and rows of its terminal, whose descriptor is its stdin; (): none
        self.blocked: Sequence[int] = ()  # signals that wait until the process unblocks them


def spawn(
    argv: Sequence[bytes],
    setting: Setting,
    stdin: int,
    stdout: int,
    stderr: int,
    keep: Mapping[int, int] | None = None,
) -> int:
    """Fork and execute argv; return its pid.

    stdin, stdout, stderr: descriptors that become 0, 1 and 2
    keep: more of them, new number to the agent's
    If argv cannot be executed, the child writes the reason to its stderr and exits 126 or 127.
    """
    agent, changed = os.getpid(), changed_signals()
    pid = cgroups.fork(setting.cgroup)
    if pid:
        return pid

    def work() -> None:
        begin_anew(agent, changed, setting.blocked)
        become(argv, setting, {0: stdin, 1: stdout, 2: stderr, **(keep or {})})

    in_child(argv, work)
    return 0  # in no process


def in_child(argv: Sequence[bytes], work: Callable[[], None]) -> None:
    """Do work, which executes argv. Does not return."""
    try:
        work()
    except OSError as error:
        name = os.fsdecode(argv[0]) if argv else ""
        os.write(2, (f"mesh: cannot run {name!r}: {error.strerror or error}\n").encode("utf-8", "replace"))
        os._exit(status_of(error))
    except Exception as error:
        os.write(2, (f"mesh: cannot run the command: {error}\n").encode("utf-8", "replace"))
    finally:  # no code of the agent may go on in the child, whatever happened
        os._exit(NOT_EXECUTABLE)


def changed_signals() -> list[int]:
    """Return the signals that this process handles or ignores.

    The parent looks for the child, because each step of a child touches pages that it must copy first.
    """
    return [number for number in range(1, signal.NSIG) if signal.getsignal(number) not in (signal.SIG_DFL, None)]


def begin_anew(agent: int, changed: Sequence[int], blocked: Sequence[int] = ()) -> None:
    """Begin a session and restore the signals, in a child of the agent. blocked: those that wait"""
    os.setsid()
    for number in changed:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    die_with(agent)


def become(argv: Sequence[bytes], setting: Setting, descriptors: Mapping[int, int]) -> None:
    """Execute argv in a child. descriptors: new number to the agent's. Raises OSError."""
    if descriptors.keys() & set(descriptors.values()):
        # First out of the way of each other: a source may have the number of another one's target.
        descriptors = {
            to: fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, FREE_DESCRIPTOR) for to, ours in descriptors.items()
        }
    for number, ours in descriptors.items():
        os.dup2(ours, number)
    if setting.terminal:
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if setting.limits:
        import resource

        for which, limit in setting.limits.items():
            resource.setrlimit(which, limit)
    if setting.umask is not None:
        os.umask(setting.umask)
    os.chdir(setting.directory)
    os.execve(
        find_program(argv[0], setting.environment.get(b"PATH", os.defpath.encode())), list(argv), setting.environment
    )


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if it has ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(NOT_EXECUTABLE)


def status_of(error: OSError) -> int:
    """Return the exit status of a command that cannot be executed for this reason, as a shell has it."""
    return NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


def check_program(name: bytes, setting: Setting) -> None:
    """Find the program that ``become`` would execute. Raises OSError if there is none, or it cannot be executed."""
    path = setting.environment.get(b"PATH", os.defpath.encode())
    file = find_program(name, path, os.fsencode(setting.directory))
    if not stat.S_ISREG(os.stat(file).st_mode) or not os.access(file, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def find_program(name: bytes, path: bytes, directory: bytes = b"") -> bytes:
    """Return the file that a shell would run: the name if it has a slash, else the first such program on PATH.

    A directory that cannot be read holds no program, as for a shell; execvp(3) would call the command forbidden.
    directory: the working directory of the command; b"": the agent's
    """
    if b"/" in name:
        return os.path.join(directory, name)
    found = b""
    for place in path.split(b":"):
        file = os.path.join(directory, place, name)
        if os.path.isfile(file):
            if os.access(file, os.X_OK):
                return file
            found = found or file
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return found


def output_pipe() -> tuple[int, int]:
    """Return a pipe for the output of a rank: the agent's end, which does not block, and the rank's."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    try:
        fcntl.fcntl(ours, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # the user has too many large pipes already: the default of 64 KiB does
        pass
    return ours, theirs
