"""The results of runs, for programs."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.errors import MeshError
from mesh.core.events import Exited, Lost, Stream
from mesh.core.outcome import Cause, Outcome
from mesh.rundir.writer import StoreSink


class RankResult(Struct, frozen=True, kw_only=True):
    """The end and the output of one rank."""

    rank: int  # 0 .. world size - 1
    host: str
    label: str  # of its group; "": the run has no roles
    code: int | None  # its exit code, 0 .. 255; None if a signal ended it, or its end is not recorded
    signal: int | None  # the signal that ended it; None if none did, or its end is not recorded
    stdout_path: Path
    stderr_path: Path

    @property
    def told(self) -> str:
        """Its end in words: "exit 3", "killed by SIGKILL"."""
        return Exited(time=0.0, node=0, rank=self.rank, code=self.code or 0, signal=self.signal or 0).told()

    @property
    def stdout(self) -> bytes:
        """All bytes that it wrote to stdout, less what ``logs:`` left out; none if it never started. Raises OSError."""
        return self.stdout_path.read_bytes() if self.stdout_path.exists() else b""

    @property
    def stderr(self) -> bytes:
        """All bytes that it wrote to stderr, less what ``logs:`` left out; none if it never started. Raises OSError."""
        return self.stderr_path.read_bytes() if self.stderr_path.exists() else b""


class RunResult(Struct, frozen=True, kw_only=True):
    """The end of a run."""

    run: str  # its id
    exit_code: int  # 0 .. 255, by the table of docs/ending.md
    cause: Cause  # what decided it
    ranks: tuple[RankResult, ...]
    failures: tuple[str, ...]  # why the command was not started, one line for each host; () if it was
    directory: Path  # with run.json, events.jsonl and logs/
    first_failure: str = ""  # the rank or host that decided the end, and how; "": none, or it is not recorded
    was_stopped: bool = False  # Ctrl-C, another signal or `mesh stop` has asked for the end

    @property
    def ok(self) -> bool:
        """True if every rank exited 0."""
        return self.exit_code == 0

    def raise_for_status(self) -> None:
        """Raise a MeshError that names the first failure, with the run's ``exit_code``, unless the run is ``ok``."""
        if self.ok:
            return
        failed = [f"rank {rank.rank} on {rank.host}: {rank.told}" for rank in self.ranks if rank.code or rank.signal]
        decided_by_rank = self.cause is Cause.RANK
        reasons = [
            self.first_failure,
            *self.failures,
            *(failed if decided_by_rank else ()),
            f"ended: {self.cause.value}",
        ]
        reason = next(filter(None, reasons))
        error = MeshError(f"run {self.run}: {reason}", hint=f"mesh logs {self.run}")
        error.exit_code = self.exit_code
        raise error


class SyncResult(Struct, frozen=True, kw_only=True):
    """The end of a sync."""

    exit_code: int  # 0, 75, 125, 129, 130 or 143, by the table of docs/ending.md
    files: int  # of the workspace, on every host
    sent: int  # bytes, to all hosts together
    failures: tuple[str, ...]  # why it failed, one line for each host

    @property
    def ok(self) -> bool:
        """True if every host has the workspace."""
        return self.exit_code == 0


class PullResult(Struct, frozen=True, kw_only=True):
    """The end of a pull."""

    exit_code: int  # 0, 76, 125, 129, 130 or 143, by the table of docs/ending.md
    directory: Path  # with rank-0000 and so on
    files: int  # files and links that are here now, of all hosts together
    unchanged: int  # of these, what was here already
    bytes: int  # of contents that have come
    missing: tuple[str, ...]  # what was not pulled, a line each: HOST: PATH: why
    failures: tuple[str, ...]  # hosts that could not be asked, or did not answer to the end, a line each

    @property
    def ok(self) -> bool:
        """True if every host had every path, and all of it is here."""
        return self.exit_code == 0


def run_result(outcome: Outcome, placement: Placement, store: StoreSink, outputs: tuple[Stream, Stream]) -> RunResult:
    """Return how each rank ended.

    outputs: the streams that its stdout and its stderr went to; a setup has one for both
    """
    exits = {exited.rank: exited for exited in outcome.exits}
    ranks = []
    for rank in range(placement.world_size):
        exited = exits.get(rank)
        ranks.append(
            RankResult(
                rank=rank,
                host=placement.hosts[placement.node(rank)].name,
                label=placement.label(rank),
                code=exited.code if exited and not exited.signal else None,
                signal=exited.signal if exited and exited.signal else None,
                stdout_path=store.log(rank, outputs[0]),
                stderr_path=store.log(rank, outputs[1]),
            )
        )
    return RunResult(
        run=outcome.run,
        exit_code=outcome.exit_code,
        cause=outcome.cause,
        ranks=tuple(ranks),
        failures=failures(outcome, placement),
        directory=store.directory,
        first_failure=_first_failure(outcome, placement),
        was_stopped=bool(outcome.signal),
    )


def _first_failure(outcome: Outcome, placement: Placement) -> str:
    match outcome.first:
        case Exited(rank=rank) as exited:
            return f"rank {rank} on {placement.hosts[placement.node(rank)].name}: {exited.told()}"
        case Lost(node=node, reason=reason):
            return f"{placement.hosts[node].name}: lost ({reason})"
    return ""


def failures(outcome: Outcome, placement: Placement) -> tuple[str, ...]:
    """Return why hosts could not take part, a line each."""
    return tuple(f"{placement.hosts[failure.node].name}: {failure.message}" for failure in outcome.failures)
