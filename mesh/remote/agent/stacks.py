"""Where the ranks of a run are: the Python stacks of all their processes, or what the kernel tells of them.

Asked in this order: py-spy, which reads their memory; the handler of a rank that was prepared; the kernel. A process is
told by the first that has an answer.
"""

from __future__ import annotations

import os
import re
import time

from . import handlers, kernel, spying
from .doors import NOT_ANSWERING
from .processes import families, look_at, variable_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .processes import Process

PATIENCE = 4.0  # seconds for all of it
PYTHON = r"(python|pypy)[0-9.]*[a-z]*( \(deleted\))?"
EMBEDDED = b"/libpython"
MOST_FRAMES = 200  # of one stack, the innermost ones
MOST_THREADS = 300  # of one process
# Processes of Python's own that only wait for their parents; by a word of their command.
HELPERS = {b"multiprocessing.resource_tracker": "resource tracker", b"multiprocessing.forkserver": "fork server"}
SPARE = 1.0  # seconds more for asking those that py-spy has not told
SPAWNED = (b"multiprocessing.spawn", b"--multiprocessing-fork")
ABSENT = "py-spy is not on the host"
GET_IT = "on the host: pip install --user py-spy; or start the run with --stacks"


class Target:
    """One process that is told."""

    def __init__(self, rank: int, process: Process, is_python: bool) -> None:
        self.rank, self.process, self.is_python = rank, process, is_python
        self.role = ""  # what it is for in its rank; "": it is the rank's own program
        self.words = _words(process.pid)


def tell(runs: list[dict[str, Any]], remote_dir: str, tool: dict[str, Any], packed: bytes) -> dict[str, Any]:
    """The stacks of the ranks of some runs, as their agents tell of them (``about``). May block for some 5 s.

    tool: what the client says of its py-spy: "machine", "hash" and "path", or {}
    packed: that program; b"": it has not been sent
    Returns {"wants": hash} if it should be, else "ranks", "stacks" and "notes"; "silent": an agent does not answer.
    """
    deadline = time.monotonic() + PATIENCE
    workspaces = {rank["rank"]: told.get("workspace", "") for told in runs for rank in told["ranks"]}
    ranks = {rank["pid"]: rank["rank"] for told in runs for rank in told["ranks"] if not rank["ended"]}
    targets = [target for pid, family in families(ranks).items() for target in targets_of(ranks[pid], family)]
    report = _Report(workspaces)
    pythons = [target for target in targets if target.is_python]
    if pythons:
        kept = os.path.join(os.path.expanduser(remote_dir), "tools")
        fits = tool.get("machine") == os.uname().machine
        if fits and packed:
            try:
                spying.keep(kept, tool["hash"], packed)
            except (OSError, ValueError) as error:
                report.note(f"py-spy cannot be kept on the host: {error}", "")
        program, note = _find(pythons, kept, tool if fits else {})
        if fits and not packed and note[0] == ABSENT:
            return {"wants": tool["hash"]}
        _spy(program, pythons, report, note, deadline)
        _ask(pythons, report, deadline)
    for target in targets:
        if target.process.pid not in report.told:
            report.add_kernel(target)
    for process in look_at(pid for pid, rank in ranks.items() if rank not in report.ranks):
        # What it had started has ended meanwhile; it has not.
        report.add_kernel(Target(ranks[process.pid], process, False))
    return {
        "ranks": [{"rank": rank, "ended": rank not in report.ranks} for rank in workspaces],
        "silent": any(told.get("state") == NOT_ANSWERING for told in runs),
        "stacks": list(report.stacks.values()),
        "notes": [list(note) for note in report.notes] if report.is_short else [],
    }


class _Report:
    """What there is to tell, equal stacks as one."""

    def __init__(self, workspaces: dict[int, str]) -> None:
        """workspaces: of each rank: what is in there is told by its path in it."""
        self.stacks: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.told: set[int] = set()  # pids
        self.ranks: set[int] = set()  # that have a process there
        self.notes: dict[tuple[str, str], None] = {}  # why py-spy could not, and what to do; an ordered set
        self.is_short = False  # the kernel's word was all there was of a Python process
        self._places = {
            rank: tuple(dict.fromkeys(path + "/" for path in (place, os.path.realpath(place)) if path))
            for rank, place in workspaces.items()
        }

    def note(self, text: str, hint: str) -> None:
        if text:
            self.notes[text, hint] = None

    def add(self, target: Target, how: str, threads: list[dict[str, Any]]) -> None:
        self.told.add(target.process.pid)
        # The main thread is the last one in some accounts.
        for thread in sorted(threads, key=lambda thread: not thread["main"])[:MOST_THREADS]:
            frames = [(name, self._short(target.rank, file), line) for name, file, line in thread["frames"]]
            self._add(target, how, thread["main"], thread["name"], "", frames)

    def add_kernel(self, target: Target) -> None:
        pid = target.process.pid
        words = kernel.told(target.process)
        if not os.path.exists(f"/proc/{pid}"):
            return
        self.is_short = self.is_short or target.is_python
        self._add(target, "kernel", True, "", words, [(name, "", 0) for name in kernel.frames(pid)])

    def _add(self, target: Target, how: str, main: bool, name: str, words: str, frames: list[Any]) -> None:
        self.ranks.add(target.rank)
        cut = tuple(frames[:MOST_FRAMES])
        program = program_of(target.words, target.process.name, target.is_python)
        key = (target.role, how, main, "" if main else name, program, words, cut)
        stack = {
            "role": target.role,
            "how": how,
            "main": main,
            "thread": "" if main else name,
            "program": program,
            "words": words,
            "frames": cut,
            "of": [],
        }
        self.stacks.setdefault(key, stack)["of"].append([target.rank, target.process.pid])

    def _short(self, rank: int, file: str) -> str:
        place = next((place for place in self._places.get(rank, ()) if file.startswith(place)), "")
        return file[len(place) :]


def targets_of(rank: int, family: list[Process]) -> list[Target]:
    """What is told of a rank: its Python processes; where none of them is its own program, also those that are.

    family: the processes of the rank, parents before children
    """
    pythons: dict[int, Target] = {}
    above: dict[int, int] = {}  # the next Python process above each one; 0: there is none
    for process in family:
        parent = process.parent if process.parent in pythons else above.get(process.parent, 0)
        above[process.pid] = parent
        if is_python(process):
            target = pythons[process.pid] = Target(rank, process, True)
            target.role = role_of(target.words, pythons[parent].words if parent else None)
    if any(not target.role for target in pythons.values()):
        return list(pythons.values())
    others = [process for process in family if process.pid not in pythons]
    parents = {process.parent for process in others}  # as sh, which only waits
    return [Target(rank, process, False) for process in others if process.pid not in parents] + list(pythons.values())


def is_python(process: Process) -> bool:
    """Whether an interpreter runs in it, be it in another program."""
    try:
        name = os.path.basename(os.readlink(f"/proc/{process.pid}/exe"))
        if re.fullmatch(PYTHON, name):
            return True
        with open(f"/proc/{process.pid}/maps", "rb") as file:
            return EMBEDDED in file.read()
    except PermissionError:  # another user's
        return bool(re.fullmatch(PYTHON, process.name))
    except OSError:  # it has ended
        return False


def role_of(words: list[bytes], parents: list[bytes] | None) -> str:
    """What a Python process is for; "": it is its rank's own program.

    words, parents: its command, and that of the Python process above it, if there is one

    >>> role_of([b"python", b"a.py"], None), role_of([b"python", b"a.py"], [b"python", b"a.py"])
    ('', 'worker')
    >>> role_of([b"python", b"-u", b"train.py"], [b"torchrun"])
    'train.py'
    """
    command = b" ".join(words)
    for mark, role in HELPERS.items():
        if mark in command:
            return role
    if words == parents or any(mark in command for mark in SPAWNED):
        return "worker"
    return program_of(words, "child", True) if parents else ""


def program_of(words: list[bytes], name: str, is_python: bool) -> str:
    """What runs there, for people; name: as the kernel has it.

    >>> program_of([b"python3", b"-u", b"/w/train.py", b"--lr"], "python3", True)
    'train.py'
    >>> program_of([b"python3", b"-m", b"pkg.main"], "python3", True), program_of([b"/bin/sleep", b"9"], "x", False)
    ('pkg.main', 'sleep')
    """
    if not words or not words[0]:
        return name
    for number, word in enumerate(words[1:] if is_python else (), 1):
        if word == b"-m" and number + 1 < len(words):
            return words[number + 1].decode("utf-8", "replace")
        if word == b"-c":
            break
        if not word.startswith(b"-"):
            return os.path.basename(word).decode("utf-8", "replace")
    return os.path.basename(words[0]).decode("utf-8", "replace")


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(1 << 16).split(b"\0")[:-1]
    except OSError:
        return []


def _find(pythons: list[Target], kept: str, tool: dict[str, Any]) -> tuple[str, tuple[str, str]]:
    """py-spy's path, or "" and why there is none."""
    told = spying.forbidden()
    if told[0]:
        return "", told
    own = os.environb.get(b"PATH", os.defpath.encode()) + b":" + os.fsencode(os.path.expanduser("~/.local/bin"))
    first = pythons[0]
    beside = os.path.dirname(first.words[0]) if first.words else b""  # the bin/ of a virtual environment
    places = [variable_of(first.process.pid, b"PATH"), *([beside] if beside.startswith(b"/") else []), own]
    program = spying.find(places, kept, tool)
    return program, ("", "") if program else (ABSENT, GET_IT)


def _spy(program: str, pythons: list[Target], report: _Report, note: tuple[str, str], deadline: float) -> None:
    report.note(*note)
    if not program:
        return
    try:
        found = spying.dump(program, [target.process.pid for target in pythons], deadline)
    except OSError as error:
        report.note(f"{program} cannot be run: {error.strerror}", "")
        return
    for target in pythons:
        threads, said = found[target.process.pid]
        if threads:
            report.add(target, "py-spy", threads)
        else:
            report.note(*spying.why_not(target.process.pid, said))


def _ask(pythons: list[Target], report: _Report, deadline: float) -> None:
    """Ask what py-spy has not told, one after the other: several may write into one file."""
    for target in pythons:
        if target.process.pid in report.told or time.monotonic() > deadline + SPARE:
            continue
        try:
            threads = handlers.read(handlers.ask(target.process))
        except (OSError, ValueError):  # it has ended, or is not ours
            continue
        if threads:
            report.add(target, "faulthandler", threads)
