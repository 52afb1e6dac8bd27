"""A rank: its process, its pipes, and its end."""

from __future__ import annotations

import fcntl
import os
import struct

from mesh.agent.base.light import deque
from mesh.agent.process.spawning import Setting, output_pipe, spawn
from mesh.protocol.frames import to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Bytes of output in one frame. The client has less to do with larger ones; but from 128 KiB on, glibc gives back the
# memory of each (mallopt(3), M_MMAP_THRESHOLD), and they grow by the labels of their lines there.
OUTPUT_BYTES = 116 << 10
PIPE_FULL_BYTES = 1 << 16  # in a pipe of the default size


class Source:
    """A pipe that a process prints into."""

    def __init__(self, descriptor: int, rank: int, stream: str) -> None:
        self.descriptor, self.rank, self.stream = descriptor, rank, stream
        self.ends_line = True  # what was read so far ends a line
        self.owed = 0  # bytes that must be relayed before the end of the process is reported

    def read(self) -> bytes | None:
        """Return at most OUTPUT_BYTES bytes; b"" at the end; None if there are none now."""
        try:
            data = os.read(self.descriptor, OUTPUT_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        self.owed = max(0, self.owed - len(data)) if data else 0
        self.ends_line = data.endswith(b"\n") if data else self.ends_line
        return data

    def owe_what_waits(self) -> None:
        """Note how much is in the pipe when the process has ended: all of it was written before."""
        try:
            (self.owed,) = struct.unpack("i", fcntl.ioctl(self.descriptor, _fionread(), b"\0" * 4))
        except (OSError, ValueError):  # closed already
            self.owed = 0


class Rank:
    """The process of one rank. Where stdin is wanted, its end of the pipe is filled without ever blocking."""

    def __init__(self, rank: int, pid: int, sources: list[Source], stdin: int = -1) -> None:
        """stdin: our end of its pipe; -1: it reads nothing."""
        self.rank, self.pid, self.sources, self.stdin = rank, pid, sources, stdin
        self.status = -1  # from waitpid, once it has ended
        self.ended = 0.0  # seconds since the epoch
        self.is_reported = False  # the client was sent how it ended
        self.has_terminal = False  # stdin is our end of it
        self._input: deque[bytes] = deque()
        self._input_ended = False

    def end(self, status: int, now: float) -> None:
        """Note the end of the process. status: from waitpid; now: seconds since the epoch"""
        self.status, self.ended = status, now
        self.close_stdin()
        for source in self.sources:
            source.owe_what_waits()

    def failed_command(self) -> str:
        """Return the command of a setup that has failed; "" for a rank."""
        return ""

    def all_relayed(self) -> bool:
        """True if everything that it wrote before its end has been passed on."""
        return self.status >= 0 and not any(source.owed for source in self.sources)

    def give(self, data: bytes) -> None:
        """Queue bytes for its stdin; b"" ends it."""
        if data:
            self._input.append(data)
        else:
            self._input_ended = True

    @property
    def is_input_ended(self) -> bool:
        """True if no more input comes."""
        return self._input_ended

    @property
    def ends_line(self) -> bool:
        """True if its errors ended with a newline so far."""
        return self.sources[-1].ends_line

    def wants_to_write(self) -> bool:
        return self.stdin >= 0 and (bool(self._input) or self._input_ended)

    def fill(self) -> int:
        """Write what stdin takes now; return how many bytes it took, or will never take."""
        taken = 0
        try:
            while self._input and self.stdin >= 0:
                count = os.write(self.stdin, self._input[0])
                taken += count
                rest = self._input.popleft()[count:]
                if rest:
                    self._input.appendleft(rest)
        except BlockingIOError:
            return taken
        except OSError:  # it closed its stdin or its terminal; the rest is for nobody
            self._input_ended = True
        if self._input_ended:
            self.close_stdin()
        return taken + self.drop_input()

    def drop_input(self) -> int:
        """Forget the rest of the input if stdin is closed; return its size."""
        if self.stdin >= 0:
            return 0
        size = sum(len(data) for data in self._input)
        self._input.clear()
        return size

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal, if it has one; the kernel signals the programs there."""
        if self.has_terminal and self.stdin >= 0:
            set_size(self.stdin, columns, rows)

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1


def start_rank(
    rank: int, argv: Sequence[str], setting: Setting, wants_stdin: bool, keep: Mapping[int, int] | None = None
) -> Rank:
    """Start the process of a rank. keep: further descriptors that it inherits, as in ``spawn``. Raises OSError."""
    if setting.terminal:
        return _start_on_terminal(rank, argv, setting, keep)
    stdin, stdin_end = -1, -1
    out, out_end = output_pipe()
    err, err_end = output_pipe()
    if wants_stdin:
        stdin_end, stdin = os.pipe()
        os.set_blocking(stdin, False)
    else:
        stdin_end = os.open(os.devnull, os.O_RDONLY)
    try:
        pid = spawn([to_bytes(word) for word in argv], setting, stdin_end, out_end, err_end, keep)
    finally:
        for descriptor in (stdin_end, out_end, err_end):
            os.close(descriptor)
    return Rank(rank, pid, [Source(out, rank, "stdout"), Source(err, rank, "stderr")], stdin)


def _start_on_terminal(rank: int, argv: Sequence[str], setting: Setting, keep: Mapping[int, int] | None) -> Rank:
    """Start the process of a rank on a terminal of its own, which all three streams lead to. Raises OSError."""
    ours, theirs = os.openpty()
    typed = -1
    try:
        set_size(ours, *setting.terminal)
        os.set_blocking(ours, False)
        typed = os.dup(ours)
        pid = spawn([to_bytes(word) for word in argv], setting, theirs, theirs, theirs, keep)
    except BaseException:
        for descriptor in (ours, typed):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    finally:
        os.close(theirs)
    found = Rank(rank, pid, [Source(ours, rank, "stdout")], typed)
    found.has_terminal = True
    return found


def set_size(terminal: int, columns: int, rows: int) -> None:
    """Set the size of a terminal."""
    import termios  # few ranks have one

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _fionread() -> int:
    """Return the number of this ioctl: that of asm-generic/ioctls.h where no library is needed for it."""
    if os.uname().machine in ("x86_64", "aarch64"):
        return 0x541B
    import termios

    return termios.FIONREAD


def home_directory() -> str:
    """Return the home directory; a user may have no name here, as in containers."""
    if os.environ.get("HOME"):
        return os.environ["HOME"]
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def extend_path(environment: dict[bytes, bytes], name: bytes, directory: str, first: bool = False) -> None:
    """Add a directory to a variable like PATH, behind all others, or first."""
    ours = os.fsencode(directory)
    before = environment.get(name, b"")
    others = [place for place in before.split(b":") if place != ours] if before else []
    environment[name] = b":".join([ours, *others] if first else [*others, ours])


def rank_environment(base: dict[bytes, bytes], given: dict[bytes, bytes], workspace: str) -> dict[bytes, bytes]:
    """Return the environment that ``ssh HOST command`` would have, with the variables of mesh."""
    environment = dict(base)
    home = environment.setdefault(b"HOME", os.fsencode(home_directory()))
    local = os.path.join(home, b".local/bin")  # where uv and pip put the user's own programs
    path = environment.get(b"PATH", os.defpath.encode())
    environment[b"PATH"] = path if local in path.split(b":") else local + b":" + path
    # Debian's bash takes a non-interactive one under sshd for a login and reads .bashrc, unless it is nested.
    environment[b"SHLVL"] = b"1"
    environment[b"PWD"] = os.fsencode(workspace)
    for name in (b"_", b"OLDPWD"):
        environment.pop(name, None)
    environment.update(given)
    return environment
