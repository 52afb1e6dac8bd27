"""The stacks of the ranks of a run: of their Python processes, or the kernel's state of other ones.

They come from py-spy, which reads the processes' memory; else from the handler of a rank that was prepared; else from
the kernel.
"""

from __future__ import annotations

import os
import re
import time

from mesh.agent.ask import handlers, kernel, spying
from mesh.agent.base.directories import is_home_read_only, places_of
from mesh.agent.control import requests
from mesh.agent.control.requests import NOT_ANSWERING
from mesh.agent.process.processes import families, look_at, variable_of
from mesh.protocol.frames import FrameError
from mesh.protocol.replies import Frame, Note, RankProcess, RankState, Stack, Stacks, WantsTool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Tuple

    from mesh.agent.ask.context import Context
    from mesh.agent.ask.threads import Frame as FrameRow
    from mesh.agent.ask.threads import Thread
    from mesh.agent.process.processes import Process
    from mesh.protocol.questions import AskStacks
    from mesh.protocol.replies import Run

    # The role, source, "is the main thread", name, program, state and frames of a stack.
    Key = Tuple[str, str, bool, str, str, str, Tuple[FrameRow, ...]]

STACKS_LIMIT_S = 4.0  # for all of them
HANDLERS_MARGIN_S = 1.0  # beyond that, for processes that py-spy could not read
PYTHON = r"(python|pypy)[0-9.]*[a-z]*( \(deleted\))?"
EMBEDDED = b"/libpython"
FRAMES_MAX = 200  # of one stack, the innermost ones
THREADS_MAX = 300  # of one process
COMMAND_BYTES = 1 << 16
# Processes of Python's own that only wait for their parents; by a word of their command.
HELPERS = {b"multiprocessing.resource_tracker": "resource tracker", b"multiprocessing.forkserver": "fork server"}
SPAWNED = (b"multiprocessing.spawn", b"--multiprocessing-fork")
ABSENT = "py-spy is not on the host"
GET_IT = "on the host: pip install --user py-spy; or start the run with --stacks"


def of_runs(question: AskStacks, context: Context) -> Stacks | WantsTool:
    """Return the stacks of all ranks of a run on this host. Raises FrameError for a question without a run."""
    if question.run is None or question.tool is None:
        raise FrameError("ask: stacks of no run")
    # Not a directory in /tmp that was not checked: the program that is kept there is executed.
    remote_dir = context.remote_dir
    place = places_of(remote_dir)[-1] if is_home_read_only(remote_dir) else remote_dir
    return gather(requests.runs(question.run), place, question.tool, context.enclosed)


class Target:
    """A process whose stacks are wanted."""

    def __init__(self, rank: int, process: Process, is_python: bool) -> None:
        self.rank, self.process, self.is_python = rank, process, is_python
        self.role = ""  # in its rank; "": it is the rank's own program
        self.words = _words(process.pid)


def gather(runs: Sequence[Run], remote_dir: str, tool: Mapping[str, str], packed: bytes) -> Stacks | WantsTool:
    """Return the stacks of the ranks of some runs. May block for some 5 s.

    tool: "machine", "hash" and "path" of the client's py-spy, or {}
    packed: that program; b"": it has not been sent
    """
    deadline = time.monotonic() + STACKS_LIMIT_S
    workspaces = {rank.rank: run.workspace for run in runs for rank in run.ranks}
    ranks = {rank.pid: rank.rank for run in runs for rank in run.ranks if not rank.ended}
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
            return WantsTool(wants=tool["hash"])
        _spy(program, pythons, report, note, deadline)
        _ask(pythons, report, deadline)
    for target in targets:
        if target.process.pid not in report.done:
            report.add_kernel(target)
    for process in look_at(pid for pid, rank in ranks.items() if rank not in report.ranks):
        # The processes that it had started have ended meanwhile; it has not.
        report.add_kernel(Target(ranks[process.pid], process, False))
    return Stacks(
        ranks=[RankState(rank=rank, ended=rank not in report.ranks) for rank in workspaces],
        silent=any(run.state == NOT_ANSWERING for run in runs),
        stacks=report.stacks(),
        notes=[Note(text=text, hint=hint) for text, hint in report.notes] if report.is_short else [],
    )


class _Report:
    """The stacks that were found, equal ones as one."""

    def __init__(self, workspaces: Mapping[int, str]) -> None:
        """workspaces: of each rank: files in there are named by their path in it"""
        self.done: set[int] = set()  # pids
        self.ranks: set[int] = set()  # that have a process there
        self.notes: dict[tuple[str, str], None] = {}  # why py-spy could not, and what to do; an ordered set
        self.is_short = False  # the kernel's state was all there was of a Python process
        self._found: dict[Key, list[RankProcess]] = {}
        self._places = {
            rank: tuple(dict.fromkeys(path + "/" for path in (place, os.path.realpath(place)) if path))
            for rank, place in workspaces.items()
        }

    def stacks(self) -> list[Stack]:
        """Return the stacks, each with its processes."""
        return [
            Stack(
                role=role,
                how=how,
                main=main,
                thread=thread,
                program=program,
                words=words,
                frames=[Frame(function=function, file=file, line=line) for function, file, line in frames],
                of=processes,
            )
            for (role, how, main, thread, program, words, frames), processes in self._found.items()
        ]

    def note(self, text: str, hint: str) -> None:
        """Note why stacks may be short."""
        if text:
            self.notes[text, hint] = None

    def add(self, target: Target, how: str, threads: Sequence[Thread]) -> None:
        """Add the threads of a process. how: the source"""
        self.done.add(target.process.pid)
        # The main thread is the last one in some sources.
        for thread in sorted(threads, key=lambda thread: not thread.is_main)[:THREADS_MAX]:
            frames = [(name, self._short(target.rank, file), line) for name, file, line in thread.frames]
            self._add(target, how, "" if thread.is_main else thread.name, frames, main=thread.is_main)

    def add_kernel(self, target: Target) -> None:
        """Add the kernel's state of a process, unless it has ended."""
        pid = target.process.pid
        words = kernel.state_of(target.process)
        if not os.path.exists(f"/proc/{pid}"):
            return
        self.is_short = self.is_short or target.is_python
        self._add(target, "kernel", "", [(name, "", 0) for name in kernel.frames(pid)], words=words)

    def _add(
        self, target: Target, how: str, thread: str, frames: list[FrameRow], *, main: bool = True, words: str = ""
    ) -> None:
        self.ranks.add(target.rank)
        program = program_of(target.words, target.process.name, target.is_python)
        key = (target.role, how, main, thread, program, words, tuple(frames[:FRAMES_MAX]))
        self._found.setdefault(key, []).append(RankProcess(rank=target.rank, pid=target.process.pid))

    def _short(self, rank: int, file: str) -> str:
        place = next((place for place in self._places.get(rank, ()) if file.startswith(place)), "")
        return file[len(place) :]


def targets_of(rank: int, family: list[Process]) -> list[Target]:
    """Return the Python processes of a rank; where none of them is its own program, also the processes that are.

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
    """Return True if an interpreter runs in a process, be it in another program."""
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
    """Return the purpose of a Python process; "": it is its rank's own program.

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
    """Return the program of a process, for people. name: as the kernel has it

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
            return file.read(COMMAND_BYTES).split(b"\0")[:-1]
    except OSError:
        return []


def _find(pythons: list[Target], kept: str, tool: Mapping[str, str]) -> tuple[str, tuple[str, str]]:
    """Return py-spy's path, or "" and why there is none."""
    refusal = spying.forbidden()
    if refusal[0]:
        return "", refusal
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
        threads, failure = found[target.process.pid]
        if threads:
            report.add(target, "py-spy", threads)
        else:
            report.note(*spying.why_not(target.process.pid, failure))


def _ask(pythons: list[Target], report: _Report, deadline: float) -> None:
    """Have the other processes write their stacks, one after the other: several may write into one file."""
    for target in pythons:
        if target.process.pid in report.done or time.monotonic() > deadline + HANDLERS_MARGIN_S:
            continue
        try:
            threads = handlers.read(handlers.ask(target.process))
        except (OSError, ValueError):  # it has ended, or is not ours
            continue
        if threads:
            report.add(target, "faulthandler", threads)
