"""The run directory: what a run was, what happened in it, and the bytes that its ranks wrote."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesh.core import encoding
from mesh.core.cluster import Placement
from mesh.core.escapes import plain
from mesh.core.events import (
    Event,
    Exited,
    HostEvent,
    LeftOut,
    Lost,
    Output,
    PrepareFailed,
    PrerunDecided,
    Started,
    Stream,
)
from mesh.core.masking import after
from mesh.core.module import ModuleStep
from mesh.core.nodes import Arrived, NodeResult, RankReady, Restarted, Restarting
from mesh.core.outcome import Cause, Outcome
from mesh.core.run import Kind, RunSpec
from mesh.rundir.about import describe_begin, describe_end, kept, with_move, write_over
from mesh.rundir.layout import (
    INDEX,
    LOGS,
    MASK_RECORD,
    MASKED,
    RECORD,
    RUN,
    SUFFIX,
    link_names,
    log_name,
    log_number,
    rank_and_stream,
)
from mesh.rundir.logfile import Gap, LogFile, Shelf
from mesh.rundir.modulelogs import ModuleLogs
from mesh.rundir.noderesults import ResultFiles
from mesh.rundir.records import UNFETCHED, moves_of
from mesh.rundir.resuming import Left, open_events
from mesh.verdict.verdict import Verdict, make_verdict
from mesh.verdict.words import of_last_process

BUFFER_BYTES = 1 << 20  # of output that wait in memory
FLUSH_DELAY_S = 0.2  # for more output to come; a crash loses no more than that
INDEX_MERGE_S = 0.05  # seconds within which chunks that follow each other in one log are one in the index
BYTES_OF_END, BYTES_OF_RANK = 1 << 14, 1 << 8  # in run.json: about the end of the run, and of each rank
TAIL_BYTES = 1 << 16  # of a log that are read for its last lines

ONCE = (Started, Exited, RankReady, Restarting, Restarted)  # as in resuming.py


class StoreSink:
    """Writes ``run.json``, ``events.jsonl`` and ``logs/``.

    A full disk does not end the run: the first error is kept in ``problem`` and reported at once.
    """

    def __init__(
        self,
        *,
        directory: Path,
        spec: RunSpec,
        cluster_name: str,
        placement: Placement,
        report: Callable[[str], None] = lambda text: None,
        left: Left | None = None,
    ) -> None:
        """report: called once, with the reason why the directory is not complete

        left: the state in which another client has left the directory; the caller holds its lock
        """
        self.directory, self.logs = directory, directory / LOGS
        self.problem = ""
        self._report, self._prerun = report, spec.prerun
        self._placement = self._now = placement  # at the start of the run, as logs go by that; and now
        self._started: list[Started] = []
        self._left_out: list[dict[str, Any]] = [dict(item) for item in left.left_out] if left else []
        self._told = set(left.told) if left else set()  # what is in events.jsonl once
        self._skip = dict(left.skip) if left else {}
        self._streams = (Stream.SETUP,) if spec.kind is Kind.SETUP else tuple(SUFFIX)
        count = 2 * placement.world_size + len(placement.hosts) + bool(spec.secrets)
        self._index_shares = max(1, count // 4)
        self._shelf = Shelf(spec.rules.logs, count + self._index_shares, self._failed)
        self._logs: dict[int, LogFile] = {}  # by their number
        self._modules = ModuleLogs(self.logs, placement, self._shelf)
        self._results = ResultFiles(directory, placement) if spec.keep_results else None
        self._changed: dict[int, LogFile] = {}  # those with output that waits
        self._waiting, self._flush_at = 0, 0.0
        self._index = LogFile(self.logs / INDEX, self._shelf, weight=self._index_shares, unit=RECORD.size)
        self._masks = LogFile(self.logs / MASKED, self._shelf, unit=MASK_RECORD.size)
        self._missing: dict[int, int] = {}  # by a log's number: bytes of its stream that masks stand for, less theirs
        self._record: tuple[float, int, int] | None = None  # the last one, which may grow
        self._events = b""  # what waits to be written
        self._events_file = -1
        self._writing = threading.Lock()  # who interrupts us a second time finishes without waiting for our thread
        self._about: dict[str, Any] = {**describe_begin(spec, cluster_name, placement), "left_out": self._left_out}
        if left:
            self._about |= kept(left.about)
            self._now = placement.moved(moves_of(self._about, [host.name for host in placement.hosts]))
        try:
            self.logs.mkdir(parents=True, mode=0o700, exist_ok=left is not None)
            self.directory.chmod(0o700)
            if left:
                self._events_file = left.lock
                self._resume(left)
            else:
                self._events_file = open_events(directory)
            self._write_about()
        except OSError as error:
            self._failed(error)
        self._index.make()

    def _resume(self, left: Left) -> None:
        """Go on with the logs that are there. Raises OSError."""
        self._index.resume(0)
        self._masks.resume(0)
        self._missing = {log_number(*key): count for key, count in left.masked.items()}
        for rank in range(self._placement.world_size):
            for stream in self._streams:
                if left.have.get((rank, stream)):
                    log = self._log(rank, stream)
                    log.resume(left.before.get(log.path.name, 0))

    def handle(self, event: Event) -> None:
        if isinstance(event, Output):
            if event.stream is Stream.MODULE:
                self._modules.add(event.node, event.data)
                self._count(len(event.data))
            else:
                self._output(event)
            return
        if isinstance(event, NodeResult) and self._results is not None:
            self._keep(self._results, event)
        if isinstance(event, ModuleStep):
            self._modules.begin(event)
        if isinstance(event, PrerunDecided):
            self._log_prerun(event, f"==> {self._prerun[event.entry].told} {event.told()}\n")
        if isinstance(event, Lost | PrepareFailed) and event.killed_by and self._prerun and not self._started:
            # The output of prerun may be lost with its agent; the log then has at least the reason.
            self._log_prerun(event, f"==> {event.reason if isinstance(event, Lost) else event.message}\n")
        if isinstance(event, Started):
            self._started.append(event)
        if isinstance(event, ONCE):
            key = str(type(event).__struct_config__.tag), event.rank, getattr(event, "attempt", 0)
            if key in self._told:  # hosts send it anew to each client that attaches
                return
            self._told.add(key)
        if isinstance(event, Restarted) and self._results is not None:
            self._results.forget(event.rank)
        if isinstance(event, Started) and Stream.STDOUT in self._streams:
            self._link(event.rank)
        if isinstance(event, LeftOut):
            self._leave_out(event)
            return
        if isinstance(event, Arrived):
            self._move(event)
        for item in encoding.objects(event, self._now):
            self._events += json.dumps(item).encode() + b"\n"
        if isinstance(event, Exited | PrepareFailed):
            self._flush()  # whoever looks now wants to see why

    def _move(self, event: Arrived) -> None:
        """Write at once where a rank is now, and where its output there begins."""
        self._now = self._now.moved([(event.rank, event.node)])
        self._about |= with_move(self._about, event, self._now.hosts[event.node].name)
        try:
            self._write_about()
        except OSError as error:
            self._failed(error)

    def _keep(self, results: ResultFiles, event: NodeResult) -> None:
        try:
            results.add(event)
        except OSError as error:
            self._failed(error)

    def _log_prerun(self, event: HostEvent, text: str) -> None:
        """Append a line of ours to the log of a host's prerun."""
        first, data = self._placement.first(event.node), text.encode("utf-8", "replace")
        self._output(Output(time=event.time, node=event.node, rank=first, stream=Stream.PRERUN, data=data))

    def idle(self) -> None:
        self._flush()

    def close(self) -> None:
        for started in self._started:  # a rank that wrote nothing has its files as well
            for stream in self._streams:
                self._log(started.rank, stream)
        for log in self._logs.values():
            log.make()
        self._modules.close()
        if self._results is not None:
            self._results.close()
        self._flush()
        for number, log in self._logs.items():
            log.finish()
            self._join(number, log)
        self._index.finish()  # who reads it reads its parts as well
        self._masks.finish()
        self._shelf.close_all()

    def finish(self, outcome: Outcome, account: Mapping[str, object] | None = None) -> Verdict | None:
        """Complete run.json, and let go of the directory; return the verdict on the run.

        account: of Slurm, after the run
        """
        placement = self._placement.moved(outcome.moved)
        verdict = make_verdict(outcome, placement, self.said if Stream.STDOUT in self._streams else self.set_up)
        if outcome.goes_on:
            self._about |= {"started": outcome.started or self._about["started"]}
            self._about |= {"detached": True} if outcome.cause is not Cause.PREPARE else {}
        else:
            self._about |= describe_end(outcome, placement, verdict)
            self._about |= {"slurm": dict(account)} if account else {}
            self._about.pop(UNFETCHED, None)
        self._write_events()
        try:
            self._write_about(is_end=True)
        except OSError as error:
            self._failed(error)
        with self._writing:
            if self._events_file >= 0:
                os.close(self._events_file)
                self._events_file = -1
        return verdict

    @property
    def left_out(self) -> Mapping[int, int]:
        """How many bytes of each rank were left out of its logs for want of room here."""
        counts: dict[int, int] = {}
        for item in self._left_out:
            if "log" in item:
                counts[item["rank"]] = counts.get(item["rank"], 0) + item["bytes"]
        return counts

    def log(self, rank: int, stream: Stream) -> Path:
        """The file that a stream of a rank goes to; prerun and setup have one per host."""
        return self.logs / log_name(self._placement, rank, stream)

    def said(self, rank: int) -> Sequence[str]:
        """The last lines that a rank's last process wrote on stderr, or those of its stdout if there are none."""
        return of_last_process(self._tail(rank, Stream.STDERR)) or self._tail(rank, Stream.STDOUT)

    def prepared(self, node: int) -> list[str]:
        """The last lines of a host's prerun."""
        return self._tail(self._placement.first(node), Stream.PRERUN)

    def set_up(self, node: int) -> list[str]:
        """The last lines of a host's setup."""
        return self._tail(self._placement.first(node), Stream.SETUP)

    def _tail(self, rank: int, stream: Stream) -> list[str]:
        """Return the last lines of a log that are not blank, as text without escape sequences."""
        data = b""
        with contextlib.suppress(OSError), self.log(rank, stream).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read()
        if log := self._logs.get(log_number(rank, stream)):
            data += log.unwritten
        lines = plain(data.decode("utf-8", "replace")).split("\n")
        return [line.rstrip() for line in lines if line.strip()]

    def _leave_out(self, event: LeftOut) -> None:
        """A host has no more of it: it counts like what has come, once all before it is written."""
        key = event.rank, event.stream
        if skipped := min(self._skip.get(key, 0), event.bytes):
            self._skip[key] -= skipped
            return
        self._flush()
        (item,) = encoding.objects(event, self._placement)
        self._left_out.append(item)
        self._events += json.dumps(item).encode() + b"\n"
        self._write_events()

    def _output(self, event: Output) -> None:
        key = event.rank, event.stream
        if skipped := min(self._skip.get(key, 0), event.size):
            self._skip[key] -= skipped
            event = after(event, skipped)
            if not event.data:
                return
        log = self._log(event.rank, event.stream)
        number = log_number(event.rank, event.stream)
        log.add(event.data)
        if event.size != len(event.data):
            self._missing[number] = self._missing.get(number, 0) + event.size - len(event.data)
            self._masks.add(MASK_RECORD.pack(log.size, number, self._missing[number]))
        self._changed[number] = log
        last = self._record
        if last and last[1] == number and 0 <= event.time - last[0] < INDEX_MERGE_S:
            self._record = last[0], number, log.size
        else:
            self._end_record()
            self._record = event.time, number, log.size
        self._count(len(event.data))

    def _count(self, size: int) -> None:
        """Note bytes that wait, and write all that does if it is much, or has waited for long."""
        self._waiting += size
        if self._waiting >= BUFFER_BYTES or time.monotonic() >= self._flush_at:
            self._flush()

    def _link(self, rank: int) -> None:
        """Link the other names of a rank's log."""
        for name in link_names(self._placement, rank):
            log = self._log(rank, Stream.STDOUT)
            log.make()  # whoever follows it may begin now
            with contextlib.suppress(OSError):  # a file system without links
                (self.logs / name).symlink_to(log.path.name)

    def _log(self, rank: int, stream: Stream) -> LogFile:
        number = log_number(rank, stream)
        if number not in self._logs:
            self._logs[number] = LogFile(self.log(rank, stream), self._shelf)
        return self._logs[number]

    def _end_record(self) -> None:
        if self._record:
            self._index.add(RECORD.pack(*self._record))
            self._record = None

    def _flush(self) -> None:
        """Write what waits: masks before their logs, and the index last, so that it lists only what is there."""
        self._masks.flush()
        self._modules.flush()
        for log in self._changed.values():
            log.flush()
        self._end_record()
        self._index.flush()
        self._write_events()
        self._changed = {number: log for number, log in self._changed.items() if log.is_behind}
        self._waiting, self._flush_at = 0, time.monotonic() + FLUSH_DELAY_S

    def _write_events(self) -> None:
        with self._writing:
            if self._events_file < 0:
                self._events = b""
            try:
                while self._events:
                    self._events = self._events[os.write(self._events_file, self._events) :]
            except OSError as error:
                self._failed(error)

    def _join(self, number: int, log: LogFile) -> None:
        """Make one file of a log that has outgrown its share; its gaps are written to run.json first."""
        gaps: list[Gap] | None = None
        try:
            gaps = log.join()
            if log.left_out():
                self._tell_left_out(number, log, gaps)
            log.drop_tail()
        except OSError as error:
            self._failed(error)
            if gaps is None:
                self._tell_left_out(number, log, [])

    def _tell_left_out(self, number: int, log: LogFile, gaps: Sequence[Gap]) -> None:
        """gaps: none if head and tail are still apart. Raises OSError."""
        rank, stream = rank_and_stream(number)
        event = LeftOut(
            time=time.time(), node=self._placement.node(rank), rank=rank, stream=stream, bytes=log.left_out()
        )
        (about,) = encoding.objects(event, self._placement)
        about["log"] = log.path.name
        places = [{"bytes": gap.count, "at": gap.at, "marker": gap.marker} for gap in gaps]
        self._left_out += [{**about, **place} for place in places or [{}]]
        self._write_about()

    def _write_about(self, *, is_end: bool = False) -> None:
        """Put run.json in place in one step, so that nobody reads half of it. Raises OSError."""
        path, text = (
            self.directory / f"{RUN}.new",
            json.dumps(self._about, indent=1).encode() + b"\n",
        )
        with self._writing:
            write_over(path, text)
            path.replace(self.directory / RUN)
            if not is_end:  # what the end needs is taken now, as the disk may be full by then
                more = BYTES_OF_END + BYTES_OF_RANK * self._placement.world_size
                write_over(path, b"\n" * (len(text) + more))

    def _failed(self, error: OSError) -> None:
        if not self.problem:
            self.problem = f"{error.strerror or error}: {error.filename or self.directory}"
            self._report(self.problem)
