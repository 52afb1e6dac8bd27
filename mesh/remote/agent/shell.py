"""Prerun: one bash session whose environment, directory, umask and limits the ranks start with."""

from __future__ import annotations

import os

from .frames import to_bytes
from .processes import Setting, output_pipe, parse_environment, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# High numbers, as users' own lines like to take 3 to 9 and 200 (flock).
STATUS, HOLD, SCRIPT = 190, 191, 192

# The session stays until the run ends: what it holds (locks, traps, background jobs) holds as long as the command.
# A child that is freshly executed shows in /proc what the session would hand to a command. /bin/sh reads no start-up
# file when it is not interactive, which bash would do if the session had set BASH_ENV.
HOLDER = f"""/bin/sh -c 'echo "held $$" >&8; read -r _ <&9' 8>&{STATUS} 9<&{HOLD}"""


def script(lines: Sequence[str]) -> str:
    """The text that bash runs: each line by eval, so that a syntax error in one is that line's failure.

    No ``||`` and no ``if`` around eval, which would switch off a ``set -e`` of the user.
    """
    import shlex  # few agents need it

    parts = []
    for number, line in enumerate(lines):
        parts.append(f"echo 'step {number}' >&{STATUS}")
        parts.append(f"eval {shlex.quote(line)}")
        parts.append('__mesh_status=$?; [ "$__mesh_status" -eq 0 ] || exit "$__mesh_status"')
    parts.append("unset __mesh_status")
    parts.append(HOLDER)
    return "\n".join(parts) + "\n"


class Prerun:
    """A session that is running its lines, or has run them and holds its state."""

    def __init__(self, lines: Sequence[str], setting: Setting) -> None:
        """Start it. Raises OSError if there is no way to."""
        self._lines = lines
        self._step = 0
        self._heard = b""
        self.holder = 0  # the pid of the child that only waits, once it does
        self.setting: Setting | None = None  # a Setting, once every line has run
        text = os.memfd_create("mesh-prerun")
        os.write(text, to_bytes(script(lines)))
        self.status, status_end = os.pipe()
        hold_end, self._hold = os.pipe()
        self.output, output_end = output_pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            argv = [b"bash", b"--norc", b"--noprofile", b"/proc/self/fd/%d" % SCRIPT]
            keep = {STATUS: status_end, HOLD: hold_end, SCRIPT: text}
            self.pid = spawn(argv, setting, null, output_end, output_end, keep)
        finally:
            for descriptor in (text, status_end, hold_end, output_end, null):
                os.close(descriptor)
        os.set_blocking(self.status, False)

    def heard(self) -> bool:
        """Read the session's own words; True once its state is held, and in ``setting``."""
        try:
            chunk = os.read(self.status, 65536)
        except BlockingIOError:
            return False
        *words, self._heard = (self._heard + chunk).split(b"\n")
        for word in words:
            what, _, number = word.partition(b" ")
            if what == b"step":
                self._step = int(number)
            elif what == b"held":
                self.holder = int(number)
                self.setting = _setting_of(self.holder)
        return self.setting is not None

    def failure(self, status: int) -> str:
        """Why the session ended before its time, in words; status is from waitpid."""
        if os.WIFSIGNALED(status):
            how = f"killed by signal {os.WTERMSIG(status)}"
        else:
            code = os.WEXITSTATUS(status)
            how = f"exit {code}" if code else "the session was left (exit 0)"
        return f"{how} in {self._lines[self._step]!r}"

    def release(self) -> None:
        """Let the session end: it runs its EXIT trap and is gone."""
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


def _setting_of(pid: int) -> Setting:
    """What a process was started with and has now, from /proc; it is our descendant and does nothing."""
    import resource

    with open(f"/proc/{pid}/environ", "rb") as file:
        environment = parse_environment(file.read())
    environment.pop(b"_", None)
    with open(f"/proc/{pid}/status") as file:
        umask = next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), None)
    limits = {}
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            which = getattr(resource, name)
            try:
                limit = resource.prlimit(pid, which)
            except (OSError, ValueError):  # this kernel does not know it
                continue
            if limit != resource.getrlimit(which):
                limits[which] = limit
    return Setting(environment, os.readlink(f"/proc/{pid}/cwd"), umask, limits)
