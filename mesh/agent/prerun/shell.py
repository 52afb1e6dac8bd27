"""Prerun: one bash session whose environment, directory, umask and limits the ranks start with."""

from __future__ import annotations

import os

from mesh.agent.base.light import quote
from mesh.agent.process.processes import parse_environment
from mesh.agent.process.spawning import Setting, output_pipe, spawn
from mesh.protocol.frames import to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    class Entry(TypedDict):
        """An entry of prerun, as the client sends it."""

        run: str  # shell text
        inputs: Sequence[str]  # paths
        module: str  # whose environment it enters; "": it is the user's own


# High numbers, as users' own lines like to take 3 to 9 and 200 (flock).
STATUS, HOLD, SCRIPT = 190, 191, 192

# The session stays until the run ends, and with it its locks, traps and background jobs.
# A freshly executed child shows in /proc what a command would inherit from the session. /bin/sh reads no start-up
# file when it is not interactive, which bash would do if the session had set BASH_ENV.
HOLDER = f"""/bin/sh -c 'echo "held $$" >&8; read -r _ <&9' 8>&{STATUS} 9<&{HOLD}"""
# The same before an entry with inputs: it waits for the answer, and any but "skip" runs the entry.
ASKER = f"""/bin/sh -c 'echo "asks $$" >&8; read -r answer <&9; [ "$answer" = skip ]' 8>&{STATUS} 9<&{HOLD}"""

ASKS, DONE, HELD = "asks", "done", "held"  # from a session, which then waits
SKIP, RUN, GO_ON = b"skip\n", b"run\n", b"go on\n"  # the answers


def script(entries: Sequence[Entry]) -> str:
    """Return the text that bash runs: each entry by eval, so that a syntax error in one is that entry's failure.

    No ``||`` around eval, and no ``if`` that depends on it, which would switch off a ``set -e`` of the user.
    """
    parts = []
    for number, entry in enumerate(entries):
        parts.append(f"echo 'step {number}' >&{STATUS}")
        if entry["inputs"]:
            parts.append(f"if {ASKER}; then :; else")
        parts.append(f"eval {quote(entry['run'])}")
        parts.append('__mesh_status=$?; [ "$__mesh_status" -eq 0 ] || exit "$__mesh_status"')
        if entry["inputs"]:
            parts.append(f"echo '{DONE} ' >&{STATUS}; read -r __mesh_status <&{HOLD}; fi")
    parts.append("unset __mesh_status")
    parts.append(HOLDER)
    return "\n".join(parts) + "\n"


class Prerun:
    """A session that is running its entries, or has run them and holds its state."""

    def __init__(self, entries: Sequence[Entry], setting: Setting) -> None:
        """Start it. Raises OSError if there is no way to."""
        self.entries = entries
        self.step = 0  # the entry that it has come to
        self._received = b""
        self.found = setting  # the setting for the entry that it asks about
        self.holder = 0  # the pid of the child that only waits, once it does
        self.setting: Setting | None = None  # for the ranks, once every entry has run
        text = os.memfd_create("mesh-prerun")
        os.write(text, to_bytes(script(entries)))
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

    def receive(self) -> str:
        """Read the session's messages; return the one after which it waits, or "".

        ASKS: if the entry ``step`` must run, which would find ``found``; DONE: that entry has succeeded; HELD: its
        state is held, and in ``setting``. ``answer`` lets it continue after the first two.
        """
        try:
            chunk = os.read(self.status, 65536)
        except BlockingIOError:
            return ""
        *words, self._received = (self._received + chunk).split(b"\n")
        last = ""
        for word in words:
            last, _, number = word.decode("ascii", "replace").partition(" ")
            if last == "step":
                self.step = int(number)
            elif last in (ASKS, HELD):
                try:
                    setting = _setting_of(int(number))
                except OSError:  # it has been killed since; waitpid reports that
                    return ""
                if last == ASKS:
                    self.found = setting
                else:
                    self.holder, self.setting = int(number), setting
        return last if last in (ASKS, DONE, HELD) else ""

    def answer(self, word: bytes) -> None:
        """Let it continue: SKIP or RUN after ASKS, GO_ON after DONE."""
        try:
            os.write(self._hold, word)
        except BrokenPipeError:  # it was killed; waitpid reports that
            pass

    def failure(self, status: int) -> str:
        """Return the reason why the session ended early. status: from waitpid"""
        if os.WIFSIGNALED(status):
            how = f"killed by signal {os.WTERMSIG(status)}"
        else:
            code = os.WEXITSTATUS(status)
            how = f"exit {code}" if code else "the session was left (exit 0)"
        entry = self.entries[self.step]
        if entry["module"]:  # its text may hold values of variables
            return f"{entry['module']}: the environment could not be entered ({how})"
        return f"{how} in {entry['run']!r}"

    def release(self) -> None:
        """Let the session run its EXIT trap and end."""
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


def _setting_of(pid: int) -> Setting:
    """Return the environment, directory, umask and limits of a waiting descendant, from /proc."""
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
            except (OSError, ValueError):  # this kernel does not have it
                continue
            if limit != resource.getrlimit(which):
                limits[which] = limit
    return Setting(environment, os.readlink(f"/proc/{pid}/cwd"), umask, limits)
