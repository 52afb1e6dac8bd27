"""Run directories for tests of pages, written by the real writer from given output and events."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Connected, Event, Exited, Finished, Gone, Output, Ready, Silent, Started, Stream, Synced
from mesh.core.outcome import Cause, Outcome
from mesh.rundir.writer import StoreSink
from tests.conftest import Home
from tests.specs import spec_of

BEGIN = 1_700_000_000.0  # seconds since the epoch
RANKS = 4
TRACEBACK = (
    b'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\nValueError: bad <b>shape</b>\n'
)


def written(time: float, rank: int, data: bytes, stream: Stream = Stream.STDOUT) -> Output:
    """Return output of a rank, some seconds after the beginning."""
    return Output(time=BEGIN + time, node=rank, rank=rank, stream=stream, data=data)


def steps(count: int, *, missing: int = -1) -> list[Output]:
    """Return a line of each rank for each step. missing: a rank that prints the first two steps alone"""
    return [
        written(1.0 + step, rank, b"step %d loss %.4f\n" % (step, 2.0 / (step + 1) + rank / 100))
        for step in range(count)
        for rank in range(RANKS)
        if rank != missing or step < 2
    ]


def runs_of(home: Home) -> Path:
    """Return the directory of a user's runs, made if need be."""
    directory = home.path / ".local/state/mesh/runs"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def disguise(directory: Path, text: str) -> None:
    """Have a recorded run with this text in its command and in the names of its cluster, branch and hosts."""
    path = directory / "run.json"
    about = json.loads(path.read_text())
    about["command"] = ["python3", text]
    for group in (*about["spec"]["groups"], *about.get("groups", ())):
        group["command"] = about["command"]
    about |= {"cluster": text, "git": {"branch": text}, "hosts": [f"{text}{host}" for host in about["hosts"]]}
    path.write_text(json.dumps(about))


def abandon(sink: StoreSink) -> None:
    """Let go of a run directory as the death of its client does."""
    sink.close()
    os.close(sink._events_file)


def make_run(
    directory: Path,
    outputs: Sequence[Event],
    *,
    run: str = "20261121-101500-3f9c2a",
    failed: int = -1,
    is_over: bool = True,
    **spec: object,
) -> StoreSink:
    """Write a run of RANKS hosts with a rank each. failed: a rank that ends with status 1; is_over: the run has ended

    The writer of a run that is not over is returned open; ``abandon`` lets go of it.
    """
    placement = place_ranks([Host(name=f"h{node}", address="") for node in range(RANKS)])
    made = spec_of(run=run, workspace=directory, command=("python3", "train.py"), **spec)
    sink = StoreSink(directory=directory / run, spec=made, cluster_name="pod", placement=placement)
    exits = [Exited(time=BEGIN + 20, node=rank, rank=rank, code=int(rank == failed)) for rank in range(RANKS)]
    for node in range(RANKS):
        sink.handle(Connected(time=BEGIN, node=node, address="", machine=""))
        sink.handle(Synced(time=BEGIN + 0.3, node=node, files=1, bytes=10, seconds=0.1, tree="ab12"))
        sink.handle(Ready(time=BEGIN + 0.5, node=node))
    for rank in range(RANKS):
        sink.handle(Started(time=BEGIN + 0.6, node=rank, rank=rank, pid=100 + rank))
    sink.handle(Silent(time=BEGIN + 3, node=1, seconds=1.0))
    sink.handle(Silent(time=BEGIN + 4, node=1, seconds=0.0))
    for output in outputs:
        sink.handle(output)
    if not is_over:
        return sink
    for event in exits:
        sink.handle(event)
        sink.handle(Gone(time=BEGIN + 21, node=event.node))
    first = exits[failed] if failed >= 0 else None
    sink.handle(Finished(time=BEGIN + 22, exit_code=int(failed >= 0), cause="rank", run=run))
    sink.close()
    sink.finish(
        Outcome(
            run=run,
            exit_code=int(failed >= 0),
            cause=Cause.COMPLETED if first is None else Cause.RANK,
            started=BEGIN + 0.6,
            ended=BEGIN + 22,
            first=first,
            exits=tuple(exits),
        )
    )
    return sink
