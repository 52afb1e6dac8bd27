"""The ranks of a notebook: the first cell of a cluster starts them, and the end of the notebook's process ends them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import default_cluster, masked
from mesh.core.errors import MeshError, UsageError
from mesh.core.ranks import counted, told_ranks
from mesh.program.prompt.cells import is_end, parts
from mesh.program.prompt.outlet import Outlet
from mesh.program.prompt.runner import CellRunner, EndOfPromptError
from mesh.program.prompt.screen import Report
from mesh.program.prompt.starting import Wishes, outlasting_sleep, start

ENDINGS = {"error": "failed", "interrupted": "interrupted", "gone": "ended"}  # by the status of a report
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class CellFailed(MeshError):
    """A cell that has not ended well on all ranks. The reason is in their output."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback of this program."""
        return [f"{type(self).__name__}: {self}", *([f"  {self.hint}"] if self.hint else [])]


def as_failure(error: MeshError) -> CellFailed:
    """Return an error as a notebook shows it, without values of secrets."""
    return error if isinstance(error, CellFailed) else CellFailed(masked(str(error)), hint=masked(error.hint))


class Asked(Struct, frozen=True, kw_only=True):
    """The ranks that a cell is for."""

    cluster: str  # "": the only one that has ranks, else the default cluster
    options: tuple[str, ...]  # as they are typed; (): those with which the ranks were started
    wishes: Wishes  # for a start


class Ranks:
    """The ranks of one cluster, and the cells that a notebook runs there."""

    def __init__(self, runner: CellRunner, outlet: Outlet, options: tuple[str, ...]) -> None:
        """options: with which they were started"""
        self.runner, self.options = runner, options
        self._outlet = outlet

    def run(self, text: str) -> bool:
        """Run a cell of the notebook; return False if the user wants the ranks to end.

        Raises CellFailed, MeshError for a command that fails, KeyboardInterrupt, and EndOfPromptError.
        """
        for part in parts(text):
            if is_end(part):
                return False
            if not self.runner.run(part):
                raise CellFailed(told_end(self.runner.screen.reports))
        return True

    def ended(self) -> str:
        """Return the reason why the run has ended by itself; "": it goes on."""
        if not self.runner.running.has_ended:
            return ""
        try:
            result = self.runner.running.stop()
        except MeshError as error:
            return str(error)
        return result.why or result.reason

    def end(self) -> None:
        """End the run, and wait until nothing of it is left."""
        self.runner.screen.leave()
        try:
            self.runner.running.stop()
        finally:
            self.runner.screen.close()

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """Return what shows the output of the run below the cell that runs within."""
        return self._outlet.cell()


class Notebook:
    """All ranks of one notebook, by their clusters."""

    def __init__(self, names: dict[str, object]) -> None:
        """names: of the notebook, for %pull, %push and %local"""
        self._names, self._process = names, os.getpid()
        self._opened: dict[str, Ranks] = {}
        self._lock = threading.RLock()  # reentrant, as a signal may come while it is held

    @property
    def opened(self) -> Mapping[str, Ranks]:
        """The ranks that are there, by cluster."""
        with self._lock:
            return dict(self._opened)

    def run(self, asked: Asked, text: str) -> None:
        """Run a cell on all ranks of a cluster, which are started where there are none.

        Raises UsageError, and MeshError for a cell that fails or hosts that cannot take part.
        """
        name, ranks = self._ranks(asked)
        try:
            with ranks.shown():
                self._check(name, ranks)
                goes_on = ranks.run(text)
        except EndOfPromptError:
            self.end([name])
            raise CellFailed(
                f"{name}: the run was ended (a cell went on after an interrupt)", hint="the next cell starts new ranks"
            ) from None
        except KeyboardInterrupt:
            raise CellFailed("interrupted") from None
        except CellFailed:
            self._check(name, ranks)
            raise
        if not goes_on:
            self.end([name])

    def complete(self, text: str) -> Sequence[str]:
        """Return what a word may become on a rank that is there."""
        for ranks in self.opened.values():
            return ranks.runner.complete(text)
        return []

    def end(self, clusters: Iterable[str] | None = None) -> None:
        """End the ranks of some clusters, and wait until nothing of them is left. clusters: None for all

        Raises UsageError for a cluster without ranks.
        """
        for name in list(self.opened) if clusters is None else clusters:
            with self._lock:
                ranks = self._opened.pop(name, None)
            if ranks is not None:
                ranks.end()
            elif clusters is not None:
                raise UsageError(f"{name}: no cell has started ranks there", hint="%mesh")

    def _ranks(self, asked: Asked) -> tuple[str, Ranks]:
        """Return the ranks that a cell is for, with the name of their cluster."""
        opened = self.opened
        options = {name: one.options for name, one in opened.items()}
        name = chosen(asked.cluster, asked.options, options, lambda: default_cluster()[0])
        if name in opened:
            return name, opened[name]
        outlet = Outlet()
        wishes = replace(asked.wishes, cluster=name, options=outlasting_sleep(asked.wishes.options))
        try:
            with outlet.cell():
                runner = start(wishes, outlet=outlet, names=self._names)
        except KeyboardInterrupt:
            raise CellFailed("interrupted before the ranks were ready: they have ended") from None
        ranks = Ranks(runner, outlet, asked.options)
        with self._lock:
            self._opened[name] = ranks
        return name, ranks

    def _check(self, name: str, ranks: Ranks) -> None:
        """Raise CellFailed if the run has ended by itself, as when a host is lost."""
        if why := ranks.ended():
            with contextlib.suppress(MeshError):  # which is the reason
                self.end([name])
            raise CellFailed(f"{name}: the run has ended ({why})", hint="the next cell starts new ranks")

    # ---- the end of the process

    def end_with_process(self) -> None:
        """End all ranks when this process exits, and before a signal for which it has no handler ends it."""
        atexit.register(self.end_at_exit)
        if threading.current_thread() is threading.main_thread():
            for number in END_SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._on_signal)

    def close(self) -> None:
        """End all ranks; the end of the process ends none any more."""
        atexit.unregister(self.end_at_exit)
        self.end()

    def end_at_exit(self) -> None:
        """End all ranks. If no thread can be started any more, their hosts notice the end of this process."""
        if os.getpid() == self._process:  # and no process that the notebook has forked
            with contextlib.suppress(MeshError, RuntimeError):
                self.end()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """End all ranks, and then the process by the same signal. A second signal ends it at once."""
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != self._process:
            os.kill(os.getpid(), number)
            return
        # In a thread of its own, as this one may hold a lock that the end needs.
        threading.Thread(target=self._end_and_kill, args=(number,), name="mesh-notebook-end", daemon=True).start()

    def _end_and_kill(self, number: int) -> None:
        try:
            self.end_at_exit()
        finally:
            os.kill(os.getpid(), number)


def chosen(
    cluster: str, options: tuple[str, ...], opened: Mapping[str, tuple[str, ...]], default: Callable[[], str]
) -> str:
    """Return the cluster whose ranks run a cell.

    opened: the options of the ranks that are there, by cluster; default: names the default cluster
    Raises UsageError for a cell that may be for several clusters, and for other options than at the start.
    """
    if not cluster and not options and opened:
        first, *others = opened
        if others:
            raise UsageError(f"expected one of {', '.join(opened)}", hint=f"%%mesh {first}")
        return first
    name = cluster or default()
    if name in opened and options not in ((), opened[name]):
        raise UsageError(f"{name}: its ranks were started with other options", hint=f"%mesh --end {name}")
    return name


def told_end(reports: Mapping[int, Report]) -> str:
    """Return how a cell has ended on the ranks where it has not ended well.

    >>> told_end({0: Report("ok"), 1: Report("error"), 2: Report("interrupted"), 3: Report("error")})
    'ranks 1,3 failed; rank 2 interrupted'
    """
    found: dict[str, list[int]] = {ending: [] for ending in ENDINGS.values()}
    for rank, report in reports.items():
        if report.status != "ok":
            found[ENDINGS.get(report.status, "failed")].append(rank)
    return "; ".join(f"{told_ranks(ranks)} {ending}" for ending, ranks in found.items() if ranks)


def listed(opened: Mapping[str, Ranks]) -> list[str]:
    """Return a line for each cluster that has ranks."""
    return [
        f"{name}: {counted(one.runner.screen.world_size, 'rank')}, run {one.runner.running.run}"
        for name, one in opened.items()
    ]
