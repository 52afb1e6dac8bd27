"""Stacks of ranks: equal ones of many processes are shown once, the odd one out first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from mesh.core.cluster import Placement
from mesh.core.escapes import plain
from mesh.core.events import Event, Exited, Finished, Hanging, StacksTaken
from mesh.core.hoststacks import HostStacks, StackShape
from mesh.core.ranks import told, told_roles

# The directory before a module's own name, because libraries lie elsewhere on each host. mesh's own runtime is one.
_LIBRARY = re.compile(r"(?:^|.*/)(?:site-packages|dist-packages|lib(?:64)?/python3\.[0-9]+t?|meshrun\.zip)/")
GROUPS_SHOWN = 4  # in one line
HELPERS = frozenset(("resource tracker", "fork server"))  # Python's own processes, which only wait


class Frame(Struct, frozen=True, kw_only=True):
    """A call of a stack."""

    function: str
    file: str  # relative to the workspace or to the libraries' directory, else absolute; "": in the kernel
    line: int  # 0: unknown
    is_library: bool  # part of Python or a library

    def told(self) -> str:
        """
        >>> Frame(function="step", file="train.py", line=88, is_library=False).told()
        'step at train.py:88'
        """
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.function} at {place}" if place else self.function


class At(Struct, frozen=True, kw_only=True):
    """A process that has a stack."""

    rank: int
    host: str
    pid: int


class Group(Struct, frozen=True, kw_only=True):
    """Equal stacks, and their processes."""

    role: str  # of the processes in their ranks; "" for the ranks' own program
    is_main: bool  # of the main threads
    thread: str  # the name of the threads; "" for main ones, and where it is unknown
    program: str
    how: str  # the source: "py-spy", "faulthandler" or "kernel"
    words: str  # the kernel's text; "" if there is a Python stack
    frames: tuple[Frame, ...]  # innermost first
    processes: tuple[At, ...]
    names: str = ""  # of the ranks, by their labels; "": they have none

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({process.rank for process in self.processes}))

    def headline(self) -> str:
        """Return one line: the processes, the innermost call of the user's own code, and the innermost one of all."""
        return plain(f"[{self._ranks()}] {self._who()}{self.where()}")

    def where(self) -> str:
        """Return the innermost call of the user's own code, and the innermost one of all."""
        if self.words or not self.frames:
            return self.words or "no Python code is running"
        innermost = self.frames[0]
        own = next((frame for frame in self.frames if not frame.is_library), innermost)
        return own.told() + (f", in {innermost.told()}" if own is not innermost else "")

    def details(self) -> Iterator[str]:
        """Yield the same with all calls, innermost first."""
        thread = f"thread {self.thread}".rstrip() if not self.is_main else ""
        about = [self.role, thread, self.program if self.program != self.role else "", f"by {self.how}"]
        yield plain(f"[{self._ranks()}] {', '.join(word for word in about if word)}")
        if self.words:
            yield plain(f"    {self.words}")
        for frame in self.frames:
            yield plain(f"    {frame.told()}")

    def _ranks(self) -> str:
        return self.names or told(self.ranks)

    def _who(self) -> str:
        who = self.role or (self.program if self.words else "")
        count = len({(process.host, process.pid) for process in self.processes})
        if count > len(self.ranks):
            who = f"{who} ({count} processes)".lstrip()
        return f"{who}: " if who else ""


def fold(answers: Iterable[tuple[str, HostStacks]], placement: Placement | None = None) -> list[Group]:
    """Group equal stacks from hosts' answers, given as (name, answer); the smallest group comes first.

    placement: the places of ranks, or None: one host may answer for the ranks of several that are one machine
    Stacks are equal if all their calls are: module, function and line. The ranks' own programs come before the
    processes that they have started, main threads before others.
    """
    found: dict[tuple[object, ...], tuple[str, StackShape, tuple[Frame, ...], list[At]]] = {}
    names: dict[int, str] = {}
    if placement:
        names = {rank: placement.hosts[placement.node(rank)].name for rank in range(placement.world_size)}
    for host, answer in answers:
        for stack in answer.stacks:
            frames = tuple(_frame(frame.function, frame.file, frame.line) for frame in stack.frames)
            key = (stack.role, stack.main, *_what(stack, frames))
            thread, first, _, processes = found.setdefault(key, (stack.thread, stack, frames, []))
            processes += [At(rank=one.rank, host=names.get(one.rank, host), pid=one.pid) for one in stack.of]
            if thread != stack.thread:
                found[key] = ("", first, frames, processes)
    groups = [
        Group(
            role=stack.role,
            is_main=stack.main,
            thread=thread,
            program=stack.program,
            how=stack.how,
            words=stack.words,
            frames=frames,
            processes=tuple(sorted(processes, key=lambda process: (process.rank, process.pid))),
            names=told_roles([one.rank for one in processes], placement),
        )
        for thread, stack, frames, processes in found.values()
    ]
    return sorted(groups, key=_oddity)


def _what(stack: StackShape, frames: Sequence[Frame]) -> tuple[object, ...]:
    """Return the key of equal stacks. Tools differ in class names before functions, and kernels in their frames."""
    if stack.words:
        return stack.program, stack.words
    return tuple((frame.function.rpartition(".")[2], frame.file, frame.line) for frame in frames)


def _oddity(group: Group) -> tuple[object, ...]:
    return not group.is_main, group.role in HELPERS, group.role != "", len(group.ranks), group.ranks, group.role


def ended(answers: Iterable[tuple[str, HostStacks]]) -> tuple[int, ...]:
    """Return the ranks that have no process any more."""
    return tuple(sorted({rank.rank for _, answer in answers for rank in answer.ranks if rank.ended}))


def short(groups: Sequence[Group], over: Sequence[int], names: str = "") -> Iterator[str]:
    """Yield one line for each group of main threads.

    over: the ranks that have ended; names: the same by their labels, or ""
    """
    if over:
        yield f"[{names or told(over)}] ended"
    yield from (group.headline() for group in groups if group.is_main and group.role not in HELPERS)


def full(groups: Sequence[Group], over: Sequence[int], names: str = "") -> Iterator[str]:
    """Yield every group with all its calls. over, names: as for ``short``"""
    if over:
        yield f"[{names or told(over)}] ended"
    for group in groups:
        yield from group.details()


def as_dict(group: Group) -> dict[str, object]:
    """Return a group for scripts. Fields may be added, never renamed."""
    return {
        "ranks": list(group.ranks),
        **({"labels": group.names} if group.names else {}),
        "role": group.role,
        "main_thread": group.is_main,
        "thread": group.thread,
        "program": group.program,
        "how": group.how,
        "words": group.words,
        "where": plain(group.where()),
        "frames": [{"function": frame.function, "file": frame.file, "line": frame.line} for frame in group.frames],
        "processes": [asdict(process) for process in group.processes],
    }


def notes(answers: Iterable[tuple[str, HostStacks]]) -> Iterator[str]:
    """Yield why some hosts have less than stacks, and advice: one text for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for host, answer in answers:
        for note in answer.notes:
            found.setdefault((note.text, note.hint), []).append(host)
    for (text, hint), hosts in found.items():
        who = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
        yield plain(f"{who}: {text}" + (f"; {hint}" if hint else ""))


class Gathered:
    """Collects the stacks that are taken while no rank prints anything, or before a run ends, for people."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._answers: list[tuple[str, HostStacks]] = []
        self._hanging: Hanging | None = None  # the answers that come belong to it; None: they come before the end

    def take(self, event: Event) -> list[str]:
        """Return the lines to show now: once every host has answered, or no more answers will come."""
        if isinstance(event, Hanging):
            self._hanging = event
            return []
        if isinstance(event, StacksTaken):
            self._answers.append((self._placement.hosts[event.node].name, event.answer))
            if len(self._answers) < (self._hanging.hosts if self._hanging else len(self._placement.hosts)):
                return []
        elif not isinstance(event, Exited | Finished):
            return []
        answers, self._answers = self._answers, []
        if not answers:
            return []
        groups = [group for group in fold(answers, self._placement) if group.is_main and group.role not in HELPERS]
        hanging, self._hanging = self._hanging, None
        if hanging:
            places = [group.headline() for group in groups]
            more = [f"and {len(places) - GROUPS_SHOWN} more"] if len(places) > GROUPS_SHOWN else []
            return [f"no output for {hanging.seconds:g} s: {'; '.join([*places[:GROUPS_SHOWN], *more])}"]
        over = ended(answers)
        return [*full(groups, over, told_roles(over, self._placement)), *notes(answers)]


def _frame(function: str, file: str, line: int) -> Frame:
    """Return a call from a host's answer.

    >>> _frame("get", "/usr/lib/python3.11/queue.py", 171).told()
    'get at queue.py:171'
    """
    found = _LIBRARY.match(file)
    return Frame(
        function=function,
        file=file[found.end() :] if found else file,
        line=line,
        is_library=bool(found) or file.startswith("<frozen"),
    )
