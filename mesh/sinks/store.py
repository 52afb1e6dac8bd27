"""The run directory: what a run was, what happened in it, and every byte that its ranks wrote."""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

from mesh.core.cluster import Placement
from mesh.core.events import Event, Exited, LeftOut, Output, PrepareFailed, PrerunDecided, Started, Stream
from mesh.core.outcome import Outcome
from mesh.core.run import Kind, RunSpec
from mesh.sinks import encoding
from mesh.sinks.escapes import plain
from mesh.sinks.verdict import Verdict, make_verdict

VERSION = 1  # of run.json
MOST_OPEN = 64  # log files at a time; a laptop may have 256 descriptors in all
TAIL = 1 << 16  # bytes of a log that are read for its last lines
SUFFIX = {Stream.STDOUT: "out", Stream.STDERR: "err"}


class StoreSink:
    """Writes ``run.json``, ``events.jsonl`` and ``logs/``.

    A full disk does not end the run: what went wrong first is kept in ``problem``, and nothing more is written.
    """

    def __init__(self, *, directory: Path, spec: RunSpec, cluster_name: str, placement: Placement) -> None:
        self.directory, self.logs = directory, directory / "logs"
        self.problem = ""
        self._placement, self._prerun = placement, spec.prerun
        self._open: OrderedDict[Path, IO[bytes]] = OrderedDict()
        self._started: list[Started] = []
        self._left_out: list[dict[str, Any]] = []
        self._streams = (Stream.SETUP,) if spec.kind is Kind.SETUP else tuple(SUFFIX)
        self._about: dict[str, Any] = {
            "version": VERSION,
            "run": spec.run,
            "cluster": cluster_name,
            "kind": spec.kind.value,
            "command": list(spec.command),
            "commands": [command.run for command in spec.commands],
            "workspace": str(spec.workspace),
            "hosts": [host.name for host in placement.hosts],
            "env": sorted(spec.env),  # names only: values may be secrets
            "started": None,
            "ended": None,
            "exit_code": None,
            "cause": None,
            "ranks": [],
        }
        try:
            self.logs.mkdir(parents=True, mode=0o700)
            self.directory.chmod(0o700)
            self._write_about()
        except OSError as error:
            self._failed(error)

    def handle(self, event: Event) -> None:
        if self.problem:
            return
        try:
            if isinstance(event, Output):
                self._file(self.log(event.rank, event.stream)).write(event.data)
                return
            if isinstance(event, PrerunDecided):
                told = f"==> {self._prerun[event.entry].told} {event.told()}\n"
                self._file(self.host_log(event.node, Stream.PRERUN)).write(told.encode("utf-8", "replace"))
            if isinstance(event, Started):
                self._started.append(event)
            if isinstance(event, LeftOut):
                self._left_out.extend(encoding.objects(event, self._placement))
            events = self._file(self.directory / "events.jsonl")
            for item in encoding.objects(event, self._placement):
                events.write(json.dumps(item).encode() + b"\n")
            if isinstance(event, Exited | PrepareFailed):
                self._flush()  # whoever looks now wants to see why
        except OSError as error:
            self._failed(error)

    def idle(self) -> None:
        if not self.problem:
            try:
                self._flush()
            except OSError as error:
                self._failed(error)

    def close(self) -> None:
        try:
            for started in self._started:  # a rank that wrote nothing has its files as well
                for stream in self._streams:
                    self._file(self.log(started.rank, stream))
        except OSError as error:
            self._failed(error)
        for file in self._open.values():
            try:
                file.close()
            except OSError as error:
                self._failed(error)
        self._open.clear()

    def finish(self, outcome: Outcome) -> Verdict | None:
        """Complete run.json; returns the verdict on the run."""
        verdict = make_verdict(outcome, self._placement, self.said if Stream.STDOUT in self._streams else self.set_up)
        exits = {exited.rank: exited for exited in outcome.exits}
        ranks = []
        for node, host in enumerate(self._placement.hosts):
            for rank in self._placement.ranks(node):
                about: dict[str, Any] = {"rank": rank, "host": host.name}
                if rank in exits:
                    exited = exits[rank]
                    about |= {"signal": exited.signal} if exited.signal else {"code": exited.code}
                    about |= {"oom": True} if exited.oom else {}
                    about["ended"] = exited.time
                ranks.append(about)
        first = outcome.first
        self._about |= {
            "started": outcome.started or None,
            "ended": outcome.ended,
            "exit_code": outcome.exit_code,
            "cause": outcome.cause.value,
            "ranks": ranks,
            "first": None if first is None else next(encoding.objects(first, self._placement)),
            "stopped": list(outcome.stopped),
            "lost": [item for lost in outcome.lost for item in encoding.objects(lost, self._placement)],
            "failures": [item for one in outcome.failures for item in encoding.objects(one, self._placement)],
            "unverified": list(outcome.unverified),
            "left_out": self._left_out,
            "verdict": verdict.to_json(self._placement) if verdict else None,
        }
        try:
            self._write_about()
        except OSError as error:
            self._failed(error)
        return verdict

    def log(self, rank: int, stream: Stream) -> Path:
        """The file that a stream of a rank goes to; prerun and setup have one per host."""
        if stream in SUFFIX:
            return self.logs / f"rank-{rank:04d}.{SUFFIX[stream]}"
        return self.host_log(self._placement.node(rank), stream)

    def host_log(self, node: int, stream: Stream) -> Path:
        """The file of a host's prerun or setup."""
        name = self._placement.hosts[node].name
        return self.logs / f"{stream.value}-{name.replace('/', '_')}.log"

    def said(self, rank: int) -> list[str]:
        """The last lines of a rank's stderr, or of its stdout if it wrote none."""
        return self._tail(self.log(rank, Stream.STDERR)) or self._tail(self.log(rank, Stream.STDOUT))

    def prepared(self, node: int) -> list[str]:
        """The last lines of a host's prerun."""
        return self._tail(self.host_log(node, Stream.PRERUN))

    def set_up(self, node: int) -> list[str]:
        """The last lines of a host's setup."""
        return self._tail(self.host_log(node, Stream.SETUP))

    def _tail(self, path: Path) -> list[str]:
        """The last lines of a log that say something, as text without escape sequences."""
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = plain(file.read().decode("utf-8", "replace")).split("\n")
            return [line.rstrip() for line in lines if line.strip()]
        return []

    def _file(self, path: Path) -> IO[bytes]:
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            file = self._open[path] = os.fdopen(descriptor, "ab", buffering=1 << 16)
        self._open.move_to_end(path)
        return file

    def _flush(self) -> None:
        for file in self._open.values():
            file.flush()

    def _write_about(self) -> None:
        """Put run.json in place in one step, so that nobody reads half of it."""
        path = self.directory / "run.json.new"
        path.write_text(json.dumps(self._about, indent=1) + "\n")
        path.chmod(0o600)
        path.replace(self.directory / "run.json")

    def _failed(self, error: OSError) -> None:
        self.problem = self.problem or f"{error.strerror or error}: {error.filename or self.directory}"
