"""Attempts of `mesh run --retries`: which failures are tried again, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh import api
from mesh.api import retrying
from mesh.cli.program import status
from mesh.config.settings import Options
from mesh.core.errors import UsageError
from mesh.core.outcome import Cause
from mesh.rundir.results import RunResult
from tests.conftest import Home
from tests.specs import spec_of

FIRST = RunResult(run="r", exit_code=76, cause=Cause.LOST, ranks=(), failures=(), directory=Path("/runs/r"))
OTHER = replace(FIRST, exit_code=3, cause=Cause.RANK)
WELL = replace(FIRST, exit_code=0, cause=Cause.COMPLETED)
INTERRUPTED = replace(FIRST, exit_code=130, cause=Cause.SIGNAL)
TOO_LATE = replace(FIRST, was_stopped=True)  # Ctrl-C came when the attempt had failed already

ATTEMPTS = {
    "a lost host is tried again": (Options(retries=3), [FIRST, WELL], 2),
    "as often as it may": (Options(retries=2), [FIRST, FIRST, FIRST, WELL], 3),
    "no other failure": (Options(retries=3), [OTHER, WELL], 1),
    "the failures that were named, and not the usual one": (Options(retries=3, retry_on=(3,)), [OTHER, FIRST], 2),
    "nothing after Ctrl-C": (Options(retries=3, retry_on=(130,)), [INTERRUPTED, WELL], 1),
    "nothing after a late Ctrl-C": (Options(retries=3), [TOO_LATE, WELL], 1),
    "nothing without retries": (Options(), [FIRST, WELL], 1),
}


@pytest.mark.parametrize(("options", "results", "count"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_attempts_end_with_the_last_result(options: Options, results: list[RunResult], count: int) -> None:
    started: list[int] = []
    said: list[str] = []

    def start(attempt: int) -> RunResult:
        started.append(attempt)
        return results[attempt]

    assert retrying.attempts(start, options, said.append) == results[count - 1]
    assert started == list(range(count))
    assert len(said) == count - 1


def test_ranks_find_the_number_of_their_attempt() -> None:
    assert "MESH_ATTEMPT" not in retrying.with_attempt(spec_of(command=("true",)), 0).groups[0].env
    assert retrying.with_attempt(spec_of(command=("true",)), 2).groups[0].env["MESH_ATTEMPT"] == "2"


REFUSED = {
    "inside of a job": (["run", "--retries=1", "local", "true"], {"MESH_JOB_ID": "42"}, "inside of job 42", "restart:"),
    "detached": (["run", "-d", "--retries=1", "local", "true"], {}, "--detach leaves", "mesh job submit"),
    "statuses alone": (["run", "--retry-on=76", "local", "true"], {}, "without --retries", "--retries 3"),
    "with standard input": (["run", "-i", "--retries=1", "local", "true"], {}, "cannot be read again", "leave out -i"),
    "no status": (["run", "--retries=1", "--retry-on=0", "local", "true"], {}, "from 1 to 255", ""),
    "no number": (["run", "--retries=some", "local", "true"], {}, "expected a number", ""),
}


@pytest.mark.parametrize(("words", "environ", "text", "hint"), REFUSED.values(), ids=REFUSED)
def test_attempts_that_cannot_be_started_are_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch, words: list[str], environ: dict[str, str], text: str, hint: str
) -> None:
    monkeypatch.chdir(home.project)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        status(words)
    assert text in str(refused.value)
    assert hint in refused.value.hint


@pytest.mark.parametrize("options", [Options(retries=1), Options(retry_on=(3,))], ids=["retries", "statuses"])
def test_exec_tries_nothing_again(home: Home, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    monkeypatch.chdir(home.project)
    with pytest.raises(UsageError, match=r"--retr(ies|y-on) is for mesh run"):
        api.exec(["true"], cluster="local:1", options=options)
