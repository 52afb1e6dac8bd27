"""What people see: the output of the ranks on stdout and stderr, and mesh's own words on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from mesh.core.cluster import Placement
from mesh.core.events import (
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
from mesh.sinks.amounts import told_bytes
from mesh.sinks.descriptor import Descriptor
from mesh.sinks.escapes import Cleaner, clean, clean_lines
from mesh.sinks.lines import LineCutter, Lines, label
from mesh.sinks.live import LiveLine
from mesh.sinks.progress import Progress
from mesh.sinks.ranks import counted

PATIENCE = 3.0  # seconds of connecting after which those that are missing are named
OFTEN = 0.15  # seconds between two states of the live line
SELDOM = 10.0  # seconds between two lines of progress where there is no terminal
BOLD, RED, RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"


class TerminalSink:
    """Shows whole lines of all ranks (mode "all"), the bytes of rank 0 ("rank0"), or nothing of theirs ("none")."""

    def __init__(
        self,
        *,
        placement: Placement,
        mode: str,
        label: str,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        environ: Mapping[str, str],
        progress: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """label: "rank" or "host"; environ: NO_COLOR and TERM are looked for in it; progress: tell how far it is."""
        self._clock = clock  # seconds
        self._placement, self._mode = placement, mode
        self._out = Descriptor(stdout_fd, required=True)
        self._err = Descriptor(stderr_fd, required=False)
        self._to = {
            Stream.STDOUT: self._out,
            Stream.STDERR: self._err,
            Stream.PRERUN: self._err,
            Stream.SETUP: self._out,
        }
        self._colours = self._err.is_terminal and not environ.get("NO_COLOR")
        self._lead = f"{BOLD}==>{RESET} " if self._colours else "==> "
        self._prefixes = self._make_prefixes(label)
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._cleaners: dict[Stream, Cleaner] = {}
        self._live = LiveLine(self._err, environ)
        self._began = self._told_at = self._said_at = self._clock()
        self._progress = Progress(placement, self._began) if progress else None
        self._named_missing = False
        self._missing = {host.name: None for host in placement.hosts}  # an ordered set
        self._synced: list[Synced] = []

    def handle(self, event: Event) -> None:
        if self._progress and self._progress.handle(event, self._clock()):
            self._tell_progress(self._progress)
        match event:
            case Output():
                self._output(event)
            case Connected(node=node):
                self._missing.pop(self._placement.hosts[node].name, None)
            case PrepareFailed(node=node):
                self._missing.pop(self._placement.hosts[node].name, None)
            case Synced():
                self._sync(event)
            case Exited():
                self._end_lines(event.node, event.rank)
            case Lost(node=node, reason=reason):
                self._end_lines(node)
                self._complain(f"host {self._placement.hosts[node].name} lost: {reason}")
            case Gone(node=node):
                self._end_lines(node)
            case Silent(node=node, seconds=seconds):
                name = self._placement.hosts[node].name
                self._say(f"{name}: silent for {seconds:.0f} s" if seconds else f"{name}: is back")
            case Reconnecting(node=node, reason=reason):
                self._say(f"{self._placement.hosts[node].name}: {reason}; connecting again")
            case Reconnected(node=node):
                self._say(f"{self._placement.hosts[node].name}: connected again, nothing was lost")
            case LeftOut(rank=rank, stream=stream, bytes=size):
                self._say(f"rank {rank}: {told_bytes(size)} of its {stream.value} left out: no room for them there")
            case HostNotice(node=node, text=text):
                self._say(f"{self._placement.hosts[node].name}: {text}")
            case Notice(text=text):
                self._say(text)
            case Finished():
                self._end_lines()

    def idle(self) -> None:
        self._out.check()
        if self._progress:
            self._tell_progress(self._progress)
        if self._live.is_possible and self._progress:
            return
        if self._missing and not self._named_missing and self._clock() - self._began > PATIENCE:
            self._named_missing = True
            names = ", ".join(list(self._missing)[:8]) + (", ..." if len(self._missing) > 8 else "")
            self._say(f"still connecting to {names}")

    def close(self) -> None:
        self._live.show("")

    def conclude(self, lines: Sequence[str], *, failed: bool) -> None:
        """After the end: the summary, as one error or a few plain lines."""
        self._live.show("")
        if not lines:
            return
        if failed:
            self._complain(clean(lines[0]), "\n".join(lines[1:]))
        else:
            for line in lines:
                self._say(line)

    def hidden(self) -> contextlib.AbstractContextManager[None]:
        """Within: nothing is written in place, as somebody is asked something on the terminal. From any thread."""
        return self._live.hidden()

    @property
    def problem(self) -> str:
        """What kept some of the output from being shown; "" if nothing did."""
        return self._out.problem

    def say(self, text: str) -> None:
        """Tell something that is no event of the run."""
        self._say(text)

    def complain(self, error: str, hint: str = "") -> None:
        """Tell an error that is no part of the run itself."""
        self._complain(error, hint)

    # ---- mesh's own words

    def _say(self, text: str) -> None:
        self._tell(self._lead, text)

    def _complain(self, text: str, more: str = "") -> None:
        lead = f"{RED}error:{RESET} " if self._colours else "error: "
        self._tell(lead, "\n       ".join([text, *(more.split("\n") if more else [])]))

    def _tell(self, lead: str, text: str) -> None:
        begin = "\n" if self._live.in_line and self._err.is_terminal else ""
        self._live.write(self._err, f"{begin}{lead}{clean(text)}\n".encode("utf-8", "backslashreplace"))

    def _tell_progress(self, progress: Progress) -> None:
        """In place on a terminal, elsewhere as a line now and then."""
        now = self._clock()
        text = progress.line(now)
        if self._live.is_possible and (not text or now >= self._told_at + OFTEN):
            self._told_at = now
            self._live.show(self._lead + clean(text) if text else "")
        elif text and now >= self._said_at + SELDOM and not self._live.is_possible:
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

    # ---- output of the ranks

    def _make_prefixes(self, label: str) -> Sequence[bytes]:
        last = self._placement.world_size - 1
        numbers = [f"{rank:0{len(str(last))}d}" for rank in range(last + 1)]
        if label == "host":
            names = [self._placement.hosts[self._placement.node(rank)].name for rank in range(last + 1)]
            numbers = [f"{name}:{number}" for name, number in zip(names, numbers, strict=True)]
        return [f"[{number}] ".encode() for number in numbers]

    def _output(self, event: Output) -> None:
        if event.stream is Stream.PRERUN:
            if event.node == 0:  # the others do the same; what they said stands in their logs
                self._lines(event)
        elif self._mode == "all":
            self._lines(event)
        elif self._mode == "rank0" and event.rank == 0:
            self._bytes(event)

    def _bytes(self, event: Output) -> None:
        to = self._to[event.stream]
        data = event.data
        if to.is_terminal:
            data = self._cleaners.setdefault(event.stream, Cleaner()).feed(data).encode()
        self._live.write(to, data)

    def _lines(self, event: Output) -> None:
        key = event.rank, event.stream
        cutter = self._cutters.get(key)
        if cutter is None:
            cutter = self._cutters[key] = LineCutter()
        self._write_lines(cutter.feed(event.data), event.rank, event.stream)

    def _end_lines(self, node: int | None = None, rank: int | None = None) -> None:
        """Show what is left of lines that never ended, of one rank, one host or all."""
        for (of_rank, stream), cutter in self._cutters.items():
            if rank in (None, of_rank) and node in (None, self._placement.node(of_rank)):
                self._write_lines(cutter.end(), of_rank, stream)

    def _write_lines(self, lines: Lines | None, rank: int, stream: Stream) -> None:
        if lines is None:
            return
        to, prefix = self._to[stream], self._prefixes[rank]
        if stream in (Stream.PRERUN, Stream.SETUP):
            prefix = f"[{self._placement.hosts[self._placement.node(rank)].name}] ".encode()
        if lines.head is not None:
            self._live.write(to, prefix)
            for piece in lines.pieces():
                self._live.write(to, clean(piece.decode("utf-8", "replace")).encode() if to.is_terminal else piece)
        text = lines.text
        if to.is_terminal:
            text = clean_lines(text.decode("utf-8", "replace")).encode()
        self._live.write(to, label(text, prefix, first=lines.head is None))
