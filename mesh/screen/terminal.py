"""The terminal: output of the ranks on stdout and stderr, and mesh's own lines on stderr."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from mesh.core.amounts import told_bytes
from mesh.core.cluster import Placement
from mesh.core.escapes import clean
from mesh.core.events import (
    CONNECTING,
    Behind,
    Connected,
    Event,
    Exited,
    Finished,
    Gone,
    HostNotice,
    LeftOut,
    Lost,
    Notice,
    Output,
    PrepareFailed,
    Reconnected,
    Reconnecting,
    Silent,
    Stream,
    Synced,
)
from mesh.core.look import Paint, has_colours
from mesh.core.nodes import PairRelayed
from mesh.core.ranks import counted, few
from mesh.core.stacks import Gathered
from mesh.core.typed import Typed
from mesh.screen.descriptor import Descriptor, standard
from mesh.screen.enter import EnterKey
from mesh.screen.github import Groups, Literal, error, is_job
from mesh.screen.hostlines import HostLines
from mesh.screen.live import LiveLines
from mesh.screen.modules import ModuleLines
from mesh.screen.notices import Notices
from mesh.screen.output import RankOutput, Style
from mesh.screen.progress import Progress
from mesh.screen.status import SILENCE_S, Facts, Status, behind
from mesh.screen.units import HOLD_S
from mesh.screen.unsent import UnsentInput

if TYPE_CHECKING:
    from mesh.screen.steps import Steps

MISSING_NAMED_S = 3.0  # of connecting, after which the missing hosts are named
CONNECTING_LIMIT_S = 10.0  # of connecting, after which mesh also shows the command line that leaves them out
DONE = "done"  # begins the line of a run that has succeeded
REDRAW_S = 0.15  # between two states of the live lines, and between two looks at the keyboard
PROGRESS_PERIOD_S = 10.0  # between two lines of progress without a terminal


class Streams(Struct, frozen=True, kw_only=True):
    """The descriptors and the environment of a terminal."""

    environ: Mapping[str, str]  # may hold NO_COLOR, TERM and GITHUB_ACTIONS
    stdin_fd: int = -1  # Enter on it asks for the status, if it is a terminal; -1: none
    stdout_fd: int | None = None  # None: sys.stdout
    stderr_fd: int | None = None  # None: sys.stderr
    unsent: str = ""  # shown once if stdin_fd has data; "": no notice
    typed_for_ranks: bool = False  # the ranks get typed lines, so that nothing is written in place while they run


class About(Struct, frozen=True, kw_only=True):
    """The facts of a run that mesh's own lines use."""

    progress: bool = False  # show how far the run is, and how the ranks are
    noun: str = "rank"  # as in Status
    run: str = ""  # as in Status
    stacks: bool = False  # show the stacks that are taken before the end, or while nothing is printed
    host_grace: float = 0.0  # seconds that a host may be silent before it is lost; 0: unknown
    title: str = ""  # the command, for the log of a GitHub job; "": it is no run
    undo: bool = False  # modules are undone
    typed: Typed | None = None  # the command line of the run, from which lines to paste are made


class TerminalSink:
    """Shows the output of the ranks, and mesh's own lines about them."""

    def __init__(
        self,
        placement: Placement,
        style: Style,
        streams: Streams,
        about: About = About(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock  # seconds
        self._placement = placement
        self._out = _descriptor(1, streams.stdout_fd, required=True)
        self._err = _descriptor(2, streams.stderr_fd, required=False, beside=self._out)
        for to in (self._out, self._err):
            to.paint = Paint(has_colours(style.look.color, streams.environ, is_terminal=to.is_terminal))
        self._paint, self._places = self._err.paint, style.places if self._err.is_terminal else None
        follows = about.progress and not style.look.terse
        self._live = LiveLines(self._err, streams.environ, EnterKey(streams.stdin_fd if follows else -1))
        self._notices = Notices(self._err, self._live, self._paint, is_terse=style.look.terse)
        shown_on = {
            Stream.STDOUT: self._out,
            Stream.STDERR: self._err,
            Stream.PRERUN: self._err,
            Stream.SETUP: self._out,
        }
        self._output = RankOutput(placement, shown_on, self._live, style)
        # Lines of mesh's own that wait, by time.
        self._later: collections.deque[tuple[float, Callable[[], None]]] = collections.deque()
        self._began = self._drawn_at = self._said_at = self._looked_at = self._clock()
        self._progress = Progress(placement, self._began) if follows else None
        self._modules = ModuleLines(placement, about.undo)
        facts = Facts(noun=about.noun, run=about.run, host_grace=about.host_grace)
        self._status = Status(placement, facts, self._paint) if follows else None
        self._steps: Steps | None = None
        if style.look.steps:
            from mesh.screen.steps import Steps

            self._steps = Steps(placement, self._began)
        self._unsent = streams.unsent
        self._unsent_input = UnsentInput(streams.stdin_fd)
        self._typed_for_ranks = streams.typed_for_ranks
        self._stacks = Gathered(placement) if about.stacks else None
        self._in_job = is_job(streams.environ) and not self._err.is_terminal
        self._literal = Literal()
        self._groups = Groups(about.title, self._literal, self._mark) if about.title and self._in_job else None
        self._named_missing = False
        self._is_run, self._typed = bool(about.title), about.typed
        self._connecting_since: float | None = None  # None: connecting has not begun
        self._named_unreached = False
        self._unreachable: list[str] = []  # names of hosts where connecting has failed
        self._missing = {host.name: None for host in placement.hosts}  # an ordered set
        self._synced: list[Synced] = []
        self._hosts = HostLines(self._say)

    def handle(self, event: Event) -> None:
        now = self._clock()
        if self._groups and not isinstance(event, Finished):
            self._groups.handle(event)
        if self._status:
            self._status.handle(event, now)
        if self._progress and self._progress.handle(event, now):
            self._tell_state(now)
        for line in self._stacks.take(event) if self._stacks else ():
            self._say(line)
        for line in self._modules.handle(event, now):
            self._say(line)
        if self._steps and (text := self._steps.handle(event, now)):
            self._say(text)
        match event:
            case Output():
                self._output.handle(event, now)
            case Connected(node=node):
                self._missing.pop(self._placement.hosts[node].name, None)
            case PrepareFailed(node=node, step=step):
                self._missing.pop(self._placement.hosts[node].name, None)
                if step in CONNECTING:
                    self._unreachable.append(self._name(node))
                    self._output.end(self._placement.ranks(node), now)
            case Synced():
                self._sync(event)
            case Exited(rank=rank):
                self._output.end([rank], now)
            case Lost(node=node, reason=reason, return_within=within):
                self._output.end(self._placement.ranks(node), now)
                what = f": the client was not back within {within:g} s" if within else " lost"
                self._in_turn(partial(self._notices.error, f"host {self._name(node)}{what}: {reason}"))
            case Gone(node=node):
                self._output.end(self._placement.ranks(node), now)
            case Silent(node=node, seconds=seconds):
                text = self._paint.warning(f"silent for {seconds:.0f} s") if seconds else "is back"
                self._hosts.add(self._name(node), text, now)
            case Behind() if not self._has_status_line and event.steps:
                self._say(behind([event]))
            case Reconnecting(node=node, reason=reason):
                self._hosts.add(self._name(node), f"{reason}; connecting again", now)
            case Reconnected(node=node):
                self._hosts.add(self._name(node), "connected again, nothing was lost", now)
            case LeftOut(rank=rank, stream=stream, bytes=size):
                self._say(f"rank {rank}: {told_bytes(size)} of its {stream.value} left out: no room for them there")
            case HostNotice(node=node, text=text):
                self._hosts.add(self._name(node), text, now)
            case PairRelayed(node=node, rank=rank, to=other, why=why):
                calls = f"calls from {self._placement.role(rank)} to {other} go through this machine"
                self._say(f"{self._name(node)}: {calls} (no direct connection: {why}); see `mesh check`")
            case Notice(text=text):
                self._say(text)
            case Finished():
                self._mention_unsent_input()
                self._output.end(range(self._placement.world_size), now)
                self._say_later_ones()
                if self._groups:
                    self._groups.handle(event)
        self._pass_time(now)

    def idle(self) -> None:
        self._out.check()
        now = self._clock()
        self._pass_time(now)
        if self._progress and self._live.is_possible:
            return
        if self._missing and not self._named_missing and now - self._began > MISSING_NAMED_S:
            self._named_missing = True
            self._say(f"still connecting to {few(list(self._missing))}")

    def close(self) -> None:
        self._say_later_ones()
        self._live.show()

    def conclude(self, lines: Sequence[str], *, failed: bool) -> None:
        """Write the summary after the end: as one error, or a few plain lines."""
        self._live.show()
        if not lines:
            return
        if failed:
            if self._in_job:
                self._notices.command(self._literal.begin)
            more = "\n".join(lines[1:])
            self._notices.error(clean(lines[0]), self._places.shown(more) if self._places else more)
            if self._in_job:
                self._notices.command(self._literal.end)
                self._notices.command(error("\n".join(lines)))
        else:
            for line in lines:
                begin, colon, rest = line.partition(":")
                self._notices.notice(f"{self._paint.good(begin)}{colon}{rest}" if begin == DONE else line)

    def hidden(self) -> contextlib.AbstractContextManager[None]:
        """Write nothing in place meanwhile, because a question is open on the terminal. From any thread."""
        return self._live.hidden()

    @property
    def problem(self) -> str:
        """The reason why some of the output was not shown; "" if all was."""
        return self._out.problem

    def say(self, text: str, *, is_good: bool = False) -> None:
        """Write a notice that is no event of the run; is_good: it confirms a success."""
        self._notices.notice(self._paint.good(text) if is_good else text)

    def complain(self, error: str, hint: str = "") -> None:
        """Write an error that is no part of the run itself."""
        self._notices.error(error, hint)

    # ---- mesh's own lines

    def _name(self, node: int) -> str:
        return self._placement.hosts[node].name

    def _say(self, text: str) -> None:
        self._in_turn(partial(self._notices.notice, text))

    def _mark(self, line: str) -> None:
        self._in_turn(partial(self._notices.command, line))

    def _in_turn(self, tell: Callable[[], None]) -> None:
        """Write a line of ours after all earlier lines, which may wait for their like."""
        self._hosts.flush()
        if self._output.is_waiting or self._later:
            self._later.append((self._clock() + HOLD_S, tell))
        else:
            tell()

    def _say_later_ones(self, now: float = float("inf")) -> None:
        self._hosts.tick(now)
        while self._later and (self._later[0][0] <= now or not self._output.is_waiting):
            self._later.popleft()[1]()

    def _pass_time(self, now: float) -> None:
        self._name_unreached(now)
        self._output.tick(now)
        self._say_later_ones(now)
        if now >= self._looked_at + REDRAW_S:
            self._looked_at = now
            self._mention_unsent_input()
            self._answer_enter(now)
        if now >= self._drawn_at + REDRAW_S:
            self._tell_state(now)

    def _mention_unsent_input(self) -> None:
        if self._unsent and self._unsent_input.has_data():
            self._mention_unsent()

    def _mention_unsent(self) -> None:
        """Note once that no rank gets our standard input."""
        if self._unsent:
            self._say(self._unsent)
            self._unsent = ""

    def _name_unreached(self, now: float) -> None:
        """Name once the hosts that are still not reached, with the command line for all others."""
        if not self._is_run or self._named_unreached:
            return
        if self._connecting_since is None:
            self._connecting_since = now  # a password may have been asked for before
        if now < self._connecting_since + CONNECTING_LIMIT_S:
            return
        self._named_unreached = True
        if not self._missing:
            return
        hosts = [*self._unreachable, *self._missing]
        head = f"not reached after {CONNECTING_LIMIT_S:.0f} s: {few(hosts)}"
        if self._typed and len(hosts) < len(self._placement.hosts):
            it = "it" if len(hosts) == 1 else "them"
            line = self._typed.without(hosts)
            self._in_turn(partial(self._notices.list, f"{head}; to leave {it} out:", [line]))
        else:
            self._say(head)

    def _answer_enter(self, now: float) -> None:
        lines = self._live.typed() if self._status and not self._live.is_hidden else []
        if any(line.strip() for line in lines):
            self._mention_unsent()
        if self._status and lines:
            head, *more = self._status.report(now)
            self._notices.list(head, more)

    def _tell_state(self, now: float) -> None:
        """Show progress and status: in place on a terminal, elsewhere as a line now and then."""
        if self._progress is None or self._status is None:
            return
        progress = clean(self._modules.line() or self._progress.line(now))
        # The reader of our stdout may write to the same terminal.
        in_place = self._has_status_line
        if self._live.is_possible and (now >= self._drawn_at + REDRAW_S or not progress):
            self._drawn_at = now
            status = self._status.line(now) if in_place else ""
            line = progress or status
            self._live.show(*(self._output.bars() if in_place else ()), self._notices.lead + line if line else "")
        if progress and not self._live.is_possible and now >= self._said_at + PROGRESS_PERIOD_S:
            self._said_at = now
            self._say(progress)
        if not in_place and now >= self._said_at + SILENCE_S and (text := self._status.silence(now)):
            self._said_at = now
            self._say(text)

    @property
    def _has_status_line(self) -> bool:
        """True if the last line of the terminal shows the status while ranks run."""
        return self._live.is_possible and not self._out.is_pipe and not self._typed_for_ranks

    def _sync(self, event: Synced) -> None:
        self._synced.append(event)
        hosts = len(self._placement.hosts)
        if len(self._synced) == hosts:
            slowest = max(one.seconds for one in self._synced)
            sent = sum(one.bytes for one in self._synced)
            where = "" if hosts == 1 else f" to {hosts} hosts"
            if event.source:
                self._say(f"the workspace is from {event.source}: tree {event.tree[:12]}")
                return
            self._say(f"synced {counted(event.files, 'file')}{where}: {told_bytes(sent)} sent, {slowest:.1f} s")


def _descriptor(number: int, other: int | None, *, required: bool, beside: Descriptor | None = None) -> Descriptor:
    if other is None:
        return standard(number, required=required, beside=beside)
    return Descriptor(other, required=required, beside=beside)
