"""What people see: the output of the ranks on stdout and stderr, and mesh's own words on stderr."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mesh.core.amounts import told_bytes
from mesh.core.cluster import Placement
from mesh.core.escapes import clean
from mesh.core.events import (
    CONNECTING,
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
from mesh.core.ranks import counted, few
from mesh.core.stacks import Gathered
from mesh.core.typed import Typed
from mesh.screen.descriptor import Descriptor, standard
from mesh.screen.enter import EnterKey
from mesh.screen.github import Fence, Groups, error, is_job
from mesh.screen.live import LiveLines
from mesh.screen.output import RankOutput
from mesh.screen.progress import Progress
from mesh.screen.status import SILENCE, Status
from mesh.screen.units import HOLD
from mesh.screen.unsent import UnsentInput
from mesh.screen.voice import Voice

PATIENCE = 3.0  # seconds of connecting after which those that are missing are named
CONNECTING_LIMIT_S = 10.0  # after this long, mesh also shows the command line that leaves them out
OFTEN = 0.15  # seconds between two states of the live lines, and between two looks at the keyboard
SELDOM = 10.0  # seconds between two lines of progress where there is no terminal


class TerminalSink:
    """Shows the output of the ranks by ``output.RankOutput``, and what mesh has to say about them."""

    def __init__(
        self,
        *,
        placement: Placement,
        mode: str,
        label: str,
        exact: bool = False,
        stdin_fd: int = -1,
        unsent: str = "",
        typed_for_ranks: bool = False,
        noun: str = "rank",
        run: str = "",
        stdout_fd: int | None = None,
        stderr_fd: int | None = None,
        environ: Mapping[str, str],
        progress: bool = False,
        stacks: bool = False,
        title: str = "",
        typed: Typed | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """mode, label, exact: as RankOutput has them; environ: NO_COLOR, TERM and GITHUB_ACTIONS are looked for.

        progress: tell how far it is, and how the ranks are; stdin_fd: where Enter asks for that, if it is a terminal
        unsent: notice for stdin_fd that has data, shown once; "": none
        typed_for_ranks: what is typed goes to the ranks, so that nothing is written in place while they run
        noun, run: as Status has them
        stdout_fd, stderr_fd: None: sys.stdout and sys.stderr
        stacks: tell those that are taken before the end
        title: what the ranks run, for the log of a GitHub job; "": it is no run
        typed: the command line of the run, from which lines to paste are made
        """
        self._clock = clock  # seconds
        self._placement = placement
        self._out = standard(1, required=True) if stdout_fd is None else Descriptor(stdout_fd, required=True)
        if stderr_fd is None:
            self._err = standard(2, required=False, beside=self._out)
        else:
            self._err = Descriptor(stderr_fd, required=False, beside=self._out)
        self._live = LiveLines(self._err, environ, EnterKey(stdin_fd if progress else -1))
        self._voice = Voice(self._err, self._live, environ)
        to = {
            Stream.STDOUT: self._out,
            Stream.STDERR: self._err,
            Stream.PRERUN: self._err,
            Stream.SETUP: self._out,
        }
        self._output = RankOutput(placement, to, self._live, mode=mode, label=label, exact=exact)
        self._later: collections.deque[tuple[float, Callable[[], None]]] = collections.deque()  # words, by time
        self._began = self._drawn_at = self._said_at = self._looked_at = self._clock()
        self._progress = Progress(placement, self._began) if progress else None
        self._status = Status(placement, noun, run) if progress else None
        self._unsent = unsent
        self._unsent_input = UnsentInput(stdin_fd)
        self._typed_for_ranks = typed_for_ranks
        self._stacks = Gathered(placement) if stacks else None
        self._in_job = is_job(environ) and not self._err.is_terminal
        self._fence = Fence()
        self._groups = Groups(title, self._fence, self._mark) if title and self._in_job else None
        self._named_missing = False
        self._is_run, self._typed = bool(title), typed
        self._connecting_since: float | None = None  # None: it has not begun
        self._named_unreached = False
        self._unreachable: list[str] = []  # names of hosts where connecting has failed
        self._missing = {host.name: None for host in placement.hosts}  # an ordered set
        self._synced: list[Synced] = []

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
            case Lost(node=node, reason=reason):
                self._output.end(self._placement.ranks(node), now)
                self._in_turn(partial(self._voice.complain, f"host {self._name(node)} lost: {reason}"))
            case Gone(node=node):
                self._output.end(self._placement.ranks(node), now)
            case Silent(node=node, seconds=seconds):
                self._say(
                    f"{self._name(node)}: silent for {seconds:.0f} s" if seconds else f"{self._name(node)}: is back"
                )
            case Reconnecting(node=node, reason=reason):
                self._say(f"{self._name(node)}: {reason}; connecting again")
            case Reconnected(node=node):
                self._say(f"{self._name(node)}: connected again, nothing was lost")
            case LeftOut(rank=rank, stream=stream, bytes=size):
                self._say(f"rank {rank}: {told_bytes(size)} of its {stream.value} left out: no room for them there")
            case HostNotice(node=node, text=text):
                self._say(f"{self._name(node)}: {text}")
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
        if self._missing and not self._named_missing and now - self._began > PATIENCE:
            self._named_missing = True
            names = ", ".join(list(self._missing)[:8]) + (", ..." if len(self._missing) > 8 else "")
            self._say(f"still connecting to {names}")

    def close(self) -> None:
        self._say_later_ones()
        self._live.show()

    def conclude(self, lines: Sequence[str], *, failed: bool) -> None:
        """After the end: the summary, as one error or a few plain lines."""
        self._live.show()
        if not lines:
            return
        if failed:
            if self._in_job:
                self._voice.mark(self._fence.begin)
            self._voice.complain(clean(lines[0]), "\n".join(lines[1:]))
            if self._in_job:
                self._voice.mark(self._fence.end)
                self._voice.mark(error("\n".join(lines)))
        else:
            for line in lines:
                self._voice.say(line)

    def hidden(self) -> contextlib.AbstractContextManager[None]:
        """Within: nothing is written in place, as somebody is asked something on the terminal. From any thread."""
        return self._live.hidden()

    @property
    def problem(self) -> str:
        """What kept some of the output from being shown; "" if nothing did."""
        return self._out.problem

    def say(self, text: str) -> None:
        """Tell something that is no event of the run."""
        self._voice.say(text)

    def complain(self, error: str, hint: str = "") -> None:
        """Tell an error that is no part of the run itself."""
        self._voice.complain(error, hint)

    # ---- mesh's own words

    def _name(self, node: int) -> str:
        return self._placement.hosts[node].name

    def _say(self, text: str) -> None:
        self._in_turn(partial(self._voice.say, text))

    def _mark(self, line: str) -> None:
        self._in_turn(partial(self._voice.mark, line))

    def _in_turn(self, tell: Callable[[], None]) -> None:
        """Tell it, but not before what had come from the ranks by then, which may wait to be folded."""
        if self._output.is_waiting or self._later:
            self._later.append((self._clock() + HOLD, tell))
        else:
            tell()

    def _say_later_ones(self, now: float = float("inf")) -> None:
        while self._later and (self._later[0][0] <= now or not self._output.is_waiting):
            self._later.popleft()[1]()

    def _pass_time(self, now: float) -> None:
        self._name_unreached(now)
        self._output.tick(now)
        self._say_later_ones(now)
        if now >= self._looked_at + OFTEN:
            self._looked_at = now
            self._mention_unsent_input()
            self._answer_enter(now)
        if now >= self._drawn_at + OFTEN:
            self._tell_state(now)

    def _mention_unsent_input(self) -> None:
        if self._unsent and self._unsent_input.has_data():
            self._mention_unsent()

    def _mention_unsent(self) -> None:
        """Say once that no rank gets our standard input."""
        if self._unsent:
            self._say(self._unsent)
            self._unsent = ""

    def _name_unreached(self, now: float) -> None:
        """Once: name the hosts that are still not reached, with the command line for all others."""
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
            self._in_turn(partial(self._voice.list, f"{head}; to leave {it} out:", [line]))
        else:
            self._say(head)

    def _answer_enter(self, now: float) -> None:
        lines = self._live.typed() if self._status and not self._live.is_hidden else []
        if any(line.strip() for line in lines):
            self._mention_unsent()
        if self._status and lines:
            head, *more = self._status.report(now)
            self._voice.list(head, more)

    def _tell_state(self, now: float) -> None:
        """How far it is and how the ranks are: in place on a terminal, elsewhere as a line now and then."""
        if self._progress is None or self._status is None:
            return
        progress = clean(self._progress.line(now))
        # What reads our stdout through a pipe may write to the same terminal.
        in_place = self._live.is_possible and not self._out.is_pipe and not self._typed_for_ranks
        if self._live.is_possible and (now >= self._drawn_at + OFTEN or not progress):
            self._drawn_at = now
            status = self._status.line(now) if in_place else ""
            line = progress or status
            self._live.show(*(self._output.bars() if in_place else ()), self._voice.lead + line if line else "")
        if progress and not self._live.is_possible and now >= self._said_at + SELDOM:
            self._said_at = now
            self._say(progress)
        if not in_place and now >= self._said_at + SILENCE and (text := self._status.silence(now)):
            self._said_at = now
            self._say(text)

    def _sync(self, event: Synced) -> None:
        self._synced.append(event)
        hosts = len(self._placement.hosts)
        if len(self._synced) == hosts:
            slowest = max(one.seconds for one in self._synced)
            sent = sum(one.bytes for one in self._synced)
            where = "" if hosts == 1 else f" to {hosts} hosts"
            self._say(f"synced {counted(event.files, 'file')}{where}: {told_bytes(sent)} sent, {slowest:.1f} s")
