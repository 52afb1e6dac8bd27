"""Attempts of a detached run on allocations, as a client leaves them to a holder, finds them again and ends them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from mesh.backends.slurm import commands
from mesh.backends.slurm.login import Login
from mesh.core.errors import MeshError
from mesh.hosts.slurm import render
from mesh.hosts.slurm.desk import PREFIX
from mesh.hosts.slurm.making import Made

DESK = Path(__file__).with_name("desk.py")
ANSWER_LIMIT_S = 40.0  # for the holder to see the files, and to submit the next job
ID_DIGITS = 6  # at the end of a run's id, hexadecimal
WORDS, PLAN, PROGRAM, SCRIPT = "given.json", "plan.json", "program.zip", "script"  # files, as the holder has them
KEY, VARIABLES = "key", "variables"  # as mesh/agent/declared/main.py has them


class Attempt(Struct, frozen=True, kw_only=True):
    """An attempt that a job has taken on."""

    run: str
    job: str
    status: int | None = None  # None: it goes on, or nobody has looked yet


class AttemptsRecord(Struct, frozen=True, kw_only=True):
    """The attempts of one run, as their holders have written them down."""

    name: str
    cluster: str
    runs: tuple[str, ...]  # the ids of all that there may be
    attempts: tuple[Attempt, ...]  # those that there were
    waiting: tuple[str, ...] = ()  # the jobs of the next ones
    is_over: bool = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """Return the jobs that may be there."""
        return (*(one.job for one in self.attempts[-1:]), *self.waiting)


class Planned(Struct, frozen=True, kw_only=True):
    """The plan of a run's attempts, and what else they need."""

    plan: Mapping[str, object]  # as mesh/agent/declared/plan.py reads it
    runs: tuple[str, ...]  # ids, the first one a client's
    statuses: tuple[int, ...]  # after which a run is tried again
    ranks: tuple[int, ...]  # how many each node has
    remote_dir: str
    patience: float  # seconds that hosts may take to end a run
    key: str  # of the agents, as PEM
    program: bytes  # that begins a run


class Desk:
    """The files of attempts on a login node."""

    def __init__(self, login: Login, python: str, home: str) -> None:
        """python: on the login node; home: mesh's directory there"""
        self._login, self._python, self._home = login, python, home

    def leave(self, job: str, made: Made, planned: Planned, given: Mapping[str, object]) -> None:
        """Leave the attempts of a run to the holder of its job. given: of the next holder. Raises MeshError."""
        name = PREFIX + planned.runs[0]
        given = {**given, "attempts": name, "attempt": 1}
        words = {
            "cluster": made.cluster,
            "runs": planned.runs,
            "statuses": planned.statuses,
            "ranks": planned.ranks,
            "remote_dir": planned.remote_dir,
            "patience": planned.patience,
            "python": made.python,
            "submit": render.submit_words(made.source, made.cluster),
        }
        files = {
            WORDS: json.dumps(words).encode(),
            PLAN: json.dumps(planned.plan).encode(),
            PROGRAM: planned.program,
            SCRIPT: render.script_of(given, made.python).encode(),
            KEY: planned.key.encode(),
            VARIABLES: b"{}",
        }
        packed = {one: base64.b64encode(data).decode() for one, data in files.items()}
        answer = self._ask("leave", name=name, job=job, files=packed, limit=ANSWER_LIMIT_S)
        assert isinstance(answer, dict)
        if answer.get("is_late"):
            raise MeshError(
                f"{made.cluster}: --retries with -d needs a home directory that login node and nodes share, and job "
                f"{job} has not seen its files there",
                hint="mesh job submit",
            )
        if answer["problem"]:
            raise MeshError(
                f"{made.cluster}: the next attempt cannot wait: {answer['problem']}", hint="mesh job submit"
            )

    def report(self, run: str, status: int) -> None:
        """Note how the first attempt of a run has ended, of which its hosts keep no journal then. Raises MeshError."""
        self._ask("report", name=PREFIX + run, status=status)

    def find(self, run: str = "", cluster: str = "") -> AttemptsRecord | None:
        """Return the attempts of a run, or those of a cluster that are not over; None: there are none."""
        found = self._ask("find", run=run, cluster=cluster)
        return msgspec.convert(found, AttemptsRecord | None)

    def stop(self, record: AttemptsRecord) -> None:
        """Have no other attempt begin, and cancel the jobs that wait. Raises MeshError."""
        self._ask("stop", name=record.name)
        self.cancel(record)

    def cancel(self, record: AttemptsRecord) -> None:
        """Cancel the jobs that wait for the end of the last attempt. Raises MeshError."""
        if record.waiting:
            done = commands.ask(self._login, ["scancel", "--quiet", *reversed(record.waiting)])
            if done.status and not any(words in done.error for words in commands.NO_JOB):
                hint = f"scancel {' '.join(record.waiting)}"
                raise MeshError(f"{record.cluster}: {hint}: {commands.words_of(done)}", hint=hint)

    def is_held(self, record: AttemptsRecord) -> bool:
        """Return True while a job is there that may look after the attempts. Raises MeshError."""
        return any(commands.jobs(self._login, job=job) for job in record.jobs)

    def forget(self, record: AttemptsRecord) -> None:
        """Remove what attempts needed whose jobs are gone. Raises MeshError."""
        self._ask("forget", name=record.name)

    def _ask(self, verb: str, **given: object) -> object:
        order = json.dumps({"home": self._home, "do": verb, "with": given})
        text = f"{DESK.read_text()}\n\ncarry_out({order!r})\n"
        done = self._login.run([self._python, "-I", "-S", "-c", render.START_FROM_STDIN], text.encode())
        try:
            return msgspec.json.decode(done.out.encode())
        except msgspec.MsgspecError:
            why = commands.words_of(done)
            raise MeshError(f"{self._login.name}: the files of attempts cannot be used: {why}") from None


def ids_of(run: str, retries: int) -> tuple[str, ...]:
    """Return the ids of all attempts of a run: its own, and those that follow. They sort by their order.

    >>> ids_of("20261121-101500-3f9c2a", 2)
    ('20261121-101500-3f9c2a', '20261121-101500-3f9c2b', '20261121-101500-3f9c2c')
    """
    begin, number = run[:-ID_DIGITS], int(run[-ID_DIGITS:], 16)
    return tuple(f"{begin}{number + attempt:0{ID_DIGITS}x}" for attempt in range(retries + 1))


def may_count(run: str, retries: int) -> bool:
    """Return True if there are ids for all attempts of a run.

    >>> may_count("20261121-101500-3f9c2a", 2), may_count("20261121-101500-ffffff", 1)
    (True, False)
    """
    number: int = int(run[-ID_DIGITS:], 16) + retries
    return number < 1 << 4 * ID_DIGITS


def ranks_of(plan: Mapping[str, object]) -> tuple[int, ...]:
    """Return how many ranks each node of a plan has."""
    pods = plan["pods"]
    assert isinstance(pods, Sequence)
    return tuple(len(one["ranks"]) for one in pods)
