"""The debugger of a rank whose run began without it: the rank's own Python, 3.14 or later, has the rank load it.

``sys.remote_exec`` needs an interpreter of the version of the process that it reaches, so the rank's own one is run.
Exceptions and breakpoint() stay as they were, because no client waits for a rank of such a run.
"""

from __future__ import annotations

import os
import re
import time

from mesh.agent.ask.spying import SCOPE
from mesh.agent.ask.stacks import PYTHON
from mesh.agent.forward import inside
from mesh.agent.process.processes import has_signal, is_own, variable_of

ORDER = """\
import sys
if not hasattr(sys, "remote_exec"):
    sys.exit("Python %d.%d" % sys.version_info[:2])
sys.remote_exec(int(sys.argv[1]), sys.argv[2])
"""
SCRIPT = """\
import os
os.environ[{variable!r}] = {prefix!r}
debugger = {{"__name__": "mesh_debugger"}}
exec({source!r}, debugger)
debugger["listen"]()
os.unlink({path!r})
"""
LOAD_LIMIT_S = 8.0  # for the rank to load the debugger: it does so between two instructions of Python
LOOK_INTERVAL_S = 0.05
ERROR_CHARACTERS = 200  # of the interpreter's error that are shown
DISABLED = b"PYTHON_DISABLE_REMOTE_DEBUG"


def attach(pid: int, rank: int, place: str, limit_s: float = LOAD_LIMIT_S) -> str:
    """Have a process load the debugger, so that STOP_SIGNAL stops it; return why it cannot, or "".

    place: the directory of the run's sockets, made if need be; limit_s: for all of it. Raises OSError.
    """
    python, failure = interpreter_of(pid)
    return failure or attach_by(python, pid, rank, place, limit_s)


def attach_by(python: str, pid: int, rank: int, place: str, limit_s: float) -> str:
    """Have a process load the debugger, as attach does. python: the interpreter that places the order"""
    os.makedirs(place, 0o700, exist_ok=True)
    path = os.path.join(place, f"{rank}-{pid}.py")
    new = f"{path}.{os.getpid()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(script(os.path.join(place, str(rank)), path))
    os.replace(new, path)  # the rank may still have an earlier order
    deadline = time.monotonic() + limit_s
    error = _order(python, pid, path, limit_s)
    if not error:
        return _await(pid, path, deadline)
    os.unlink(path)
    return reason(error, is_disabled=bool(variable_of(pid, DISABLED)), scope=_scope())


def interpreter_of(pid: int) -> tuple[str, str]:
    """Return the interpreter of a process, or "" and why it cannot be run."""
    if not is_own(pid):
        return "", "it runs as another user"
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return "", "it runs in a container, and began without --debug"
    except OSError as error:
        return "", f"its interpreter cannot be found ({error.strerror})"
    if not re.fullmatch(PYTHON, os.path.basename(path)):
        return "", f"its Python is a part of {path}, and began without --debug"
    if not os.access(path, os.X_OK):
        return "", f"its interpreter is not there any more ({path})"
    return path, ""


def script(prefix: str, path: str) -> str:
    """Return the text that a rank executes: it loads the debugger, and removes its file at last.

    prefix: the path of the rank's sockets without the process id; path: that of the script
    """
    spec = inside.__spec__
    assert spec is not None
    assert spec.origin is not None
    source: bytes = spec.loader.get_data(spec.origin)  # type: ignore[union-attr]
    return SCRIPT.format(variable=inside.VARIABLE, prefix=prefix, source=source.decode(), path=path)


def reason(error: str, *, is_disabled: bool, scope: int) -> str:
    """Return why a rank cannot load the debugger, in one line.

    error: the output of its interpreter; is_disabled: the rank began with the variable that forbids it
    scope: kernel.yama.ptrace_scope, 0 to 3

    >>> reason("Python 3.12", is_disabled=False, scope=0)
    'it runs Python 3.12, which pdb reaches only in a run that began with --debug'
    >>> reason("RuntimeError: Remote debugging is not enabled", is_disabled=True, scope=0)
    'PYTHON_DISABLE_REMOTE_DEBUG is set in it'
    >>> reason("PermissionError: [Errno 1] Operation not permitted", is_disabled=False, scope=1)
    'the kernel forbids it (kernel.yama.ptrace_scope is 1 there)'
    """
    last = (error.strip().splitlines() or [""])[-1][:ERROR_CHARACTERS]
    if re.fullmatch(r"Python \d+\.\d+", last):
        return f"it runs {last}, which pdb reaches only in a run that began with --debug"
    if is_disabled:
        return f"{DISABLED.decode()} is set in it"
    if "PermissionError" in last or "Operation not permitted" in last:
        cause = f"kernel.yama.ptrace_scope is {scope} there" if scope else "it needs the right to trace"
        return f"the kernel forbids it ({cause})"
    return f"its Python refused the debugger ({last})"


def _order(python: str, pid: int, path: str, limit_s: float) -> str:
    """Order a process to execute a script; return the error, or ""."""
    import subprocess

    libraries = variable_of(pid, b"LD_LIBRARY_PATH")
    environ = {b"LD_LIBRARY_PATH": libraries} if libraries else {}
    argv = [python, "-I", "-S", "-c", ORDER, str(pid), path]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environ,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {limit_s:g} s"
    except OSError as error:
        return f"{python}: {error.strerror}"
    if not done.returncode:
        return ""
    return done.stderr.decode("utf-8", "replace") or f"status {done.returncode}"


def _await(pid: int, path: str, deadline: float) -> str:
    """Wait until a process has executed a script; return why it has not, or ""."""
    has_loaded = False
    while time.monotonic() < deadline or has_loaded:
        if has_loaded:  # for a whole interval, so that the signal does not stop it within the script
            is_ready = has_signal(str(pid), "SigCgt", inside.STOP_SIGNAL)
            return "" if is_ready else "it runs no more, or takes no signals of mesh"
        if not os.path.exists(f"/proc/{pid}"):
            return "it does not run"
        has_loaded = not os.path.exists(path)
        time.sleep(LOOK_INTERVAL_S)
    return "it did not load the debugger in time, as code that is no Python keeps it"


def _scope() -> int:
    try:
        with open(SCOPE) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
