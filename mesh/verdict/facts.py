"""Known causes of failures, found by a rank's end and last lines, and advice for each."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from msgspec import Struct

from mesh.core.events import Exited

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as sh returns them
LINES_SEARCHED = 40
FILE_MISSING = "a file is missing"


class Fact(Struct, frozen=True, kw_only=True):
    """A cause that has a name."""

    name: str
    advice: str  # what to try


def fact_of(event: Exited, lines: Sequence[str]) -> Fact | None:
    """Return the cause of a rank's end, if it is in this table.

    lines: its last lines, without escape sequences
    """
    if event.oom:
        return _OUT_OF_MEMORY
    text = "\n".join(lines[-LINES_SEARCHED:])
    return (
        _found(_OF_PROGRAMS, text)
        or _BY_STATUS.get(event.code)
        or _found(_OTHERS, text)
        or _BY_SIGNAL.get(event.signal)
    )


def advice_on(status: int) -> str:
    """Return what to try after the exit status NOT_FOUND or NOT_EXECUTABLE."""
    return _BY_STATUS[status].advice


def points_elsewhere(said: Sequence[str]) -> bool:
    """Return True if these last lines report another rank's end rather than a failure of their own."""
    return bool(_OF_OTHERS.search("\n".join(said[-LINES_SEARCHED:])))


def missing_path(lines: Sequence[str]) -> str:
    """Return the path that last lines name as missing, "" if none is found; relative if it lies in a workspace.

    >>> missing_path(["FileNotFoundError: [Errno 2] No such file or directory: 'data/x.txt'"])
    'data/x.txt'
    >>> missing_path(["python3: can't open file '/root/.mesh/workspaces/p-1f/a.py': [Errno 2] No such file"])
    'a.py'
    >>> missing_path(["cat: data/x: No such file or directory"])
    'data/x'
    >>> missing_path(["ls: cannot access '/a b': No such file or directory"])
    '/a b'
    """
    for line in reversed(lines[-LINES_SEARCHED:]):
        for pattern in _MISSING_PATHS:
            if found := pattern.search(line):
                return _IN_WORKSPACE.sub("", found.group(1))
    return ""


def _found(patterns: Sequence[tuple[re.Pattern[str], Fact]], text: str) -> Fact | None:
    return next((fact for pattern, fact in patterns if pattern.search(text)), None)


def _fact(name: str, advice: str) -> Fact:
    return Fact(name=name, advice=advice)


_OUT_OF_MEMORY = _fact(
    "out of memory on the host", "a smaller batch, fewer data loader workers, or a host with more memory"
)
_FAULTHANDLER = "mesh run --env PYTHONFAULTHANDLER=1 shows the Python line"
_WRONG_PYTHON = "give the path of the right Python, or activate an environment with a prerun: line"

# Texts of CPython (Python/errors.c, Objects/exceptions.c), of strerror(3), and of the libraries that are named.
_OF_PROGRAMS = [
    (re.compile(pattern), fact)
    for pattern, fact in (
        (r"(?:bad interpreter|/usr/bin/env: .*): No such file or directory", _fact("wrong interpreter", _WRONG_PYTHON)),
        (
            r"Exec format error|cannot execute binary file",
            _fact("wrong kind of program for the host", "built for another processor, or a script without a #! line"),
        ),
        (
            r"version `GLIBC\w*_[\d.]+' not found",
            _fact("wrong system libraries on the host", "build it on the oldest of the hosts"),
        ),
        (
            r"error while loading shared libraries|cannot open shared object file",
            _fact("a shared library is missing", "a prerun: line may set LD_LIBRARY_PATH or load a module"),
        ),
    )
]
_OTHERS = [
    (re.compile(pattern), fact)
    for pattern, fact in (
        # torch/csrc: OutOfMemoryError; XLA: RESOURCE_EXHAUSTED
        (
            r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED",
            _fact("out of memory on the device", "a smaller batch, or parts of the model on more devices"),
        ),
        (r"MemoryError\b|std::bad_alloc|[Cc]annot allocate memory|\[Errno 12\]", _OUT_OF_MEMORY),
        (
            r"No space left on device|Disk quota exceeded",
            _fact(
                "disk full on the host",
                "mesh exec CLUSTER df -h shows which one; mesh clean CLUSTER finds what mesh keeps",
            ),
        ),
        # libtpu; the CUDA driver; EBUSY
        (
            r"TPU is already in use|libtpu_lockfile|devices? (?:are|is) busy or unavailable|Device or resource busy",
            _fact("device busy", "mesh ps CLUSTER shows whose it is; --evict ends what an earlier run has left"),
        ),
        (
            r"[Aa]ddress already in use|EADDRINUSE",
            _fact("port taken on the host", "take MASTER_PORT from the environment: it was free"),
        ),
        (r"ModuleNotFoundError: |ImportError: No module named", _fact("a module is missing", _WRONG_PYTHON)),
        (
            r"Too many open files|\[Errno 24\]",
            _fact("too many open files", "prerun: ulimit -n 65536, or fewer data loader workers"),
        ),
        (
            r"can't start new thread|Cannot fork|fork: .*Resource temporarily unavailable",
            _fact("too many processes or threads", "prerun: ulimit -u unlimited, or fewer workers"),
        ),
        (
            r"Name or service not known|Temporary failure in name resolution",
            _fact("a name cannot be resolved on the host", "mesh exec CLUSTER getent hosts NAME shows where"),
        ),
        (
            r"unable to (?:open|mmap) shared memory|insufficient shared memory|out of shared memory",
            _fact("shared memory is full", "mesh exec CLUSTER df -h /dev/shm; fewer data loader workers"),
        ),
        (
            r"CUDA driver version is insufficient|forward compatibility was attempted",
            _fact("the driver does not fit the CUDA of the program", "mesh exec CLUSTER nvidia-smi shows the drivers"),
        ),
        (
            r"No CUDA GPUs are available|no CUDA-capable device|Torch not compiled with CUDA",
            _fact("no GPU found", "mesh exec CLUSTER nvidia-smi shows its GPUs; CUDA_VISIBLE_DEVICES may hide them"),
        ),
        (
            r"Permission denied|\[Errno 13\]",
            _fact("permission denied", "check the file's owner and mode on the host"),
        ),
        (
            r"No such file or directory",
            _fact(FILE_MISSING, "mesh push --explain PATH shows if it is sent"),
        ),
    )
]
_BY_SIGNAL: dict[int, Fact] = {
    signal.SIGKILL: _fact("killed from outside", "not by mesh: another user, a limit, or a system out of memory"),
    signal.SIGTERM: _fact("ended from outside", "not by mesh: the host may be going down, or preempted"),
    signal.SIGBUS: _fact("memory that is gone", "often a full /dev/shm (mesh exec CLUSTER df -h /dev/shm)"),
    signal.SIGILL: _fact("wrong kind of program for the host", "it may be built for another processor"),
    signal.SIGXCPU: _fact("CPU time limit reached", "prerun: ulimit -t unlimited"),
    signal.SIGXFSZ: _fact("file size limit reached", "prerun: ulimit -f unlimited"),
    signal.SIGSEGV: _fact("crash in native code", _FAULTHANDLER),
    signal.SIGABRT: _fact("crash in native code", _FAULTHANDLER),
}
_BY_STATUS = {
    NOT_FOUND: _fact(
        "command not found", "give its path, or set PATH with a prerun: line; options of mesh stand before the cluster"
    ),
    NOT_EXECUTABLE: _fact("not executable", "chmod +x, or name its interpreter: mesh run CLUSTER python3 FILE"),
}

# CPython; coreutils and bash.
_MISSING_PATHS = (
    re.compile(r"No such file or directory: b?'([^']+)'"),
    re.compile(r"can't open file '([^']+)'"),
    re.compile(r"cannot \w+ '([^']+)': No such file or directory"),
    re.compile(r"^[\w./+-]+: (?:line \d+: )?([^:'\s][^:']*): No such file or directory$"),
)
_IN_WORKSPACE = re.compile(r"^/.*/\.mesh/(?:local/\d+/)?(?:machines/[^/]+/)?workspaces/[^/]+/")

# Gloo, NCCL, c10d's TCPStore, JAX's coordination service, gRPC, MPI and mesh.program when another process has gone.
_OF_OTHERS = re.compile(
    r"Connection (?:closed by|reset by) peer|Socket closed|ncclRemoteError|remote process exited|"
    r"NCCL communicator was aborted|Watchdog caught collective operation timeout|"
    r"Connection was likely closed|recvValue failed|failed to recv, got 0 bytes|"
    r"tasks are unhealthy|missing heartbeats|[Cc]oordination service|coordinator detected|leader was lost|"
    r"[Bb]arrier (?:timed out|failed)|PeerFailed|Broken pipe|errno: 104|MPI_ABORT was invoked|"
    r"\bNodeLost: "
)
