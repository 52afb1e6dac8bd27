"""Attempts of a detached run on Slurm: how one is judged, and what its holder does about the next one."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.switchboard import attempts
from mesh.agent.switchboard.attempts import Attempts
from mesh.agent.switchboard.board import Board
from mesh.agent.switchboard.judging import Judged, is_tried_again, judge
from mesh.backends.slurm.commands import Job
from mesh.core.credentials import make_credentials
from mesh.hosts.slurm.desk import Desk
from tests.conftest import Home

STARTED: dict[str, Any] = {"type": "started", "rank": 0, "time": 1.0}
GONE: dict[str, Any] = {"type": "gone"}
RUNS = ["20261121-101500-3f9c2a", "20261121-101500-3f9c2b", "20261121-101500-3f9c2c"]
NAME = f"attempts-{RUNS[0]}"


def exited(time: float, code: int = 0, **more: int) -> dict[str, Any]:
    return {"type": "exited", "rank": 0, "time": time, **(more or {"code": code})}


def ordered(time: float, cause: str, **more: int) -> dict[str, Any]:
    return {"type": "end-ordered", "cause": cause, "time": time, "signal": 15, **more}


LOST, FAILED = ordered(3.0, "lost", lost=1), {"type": "failed", "step": "agent", "message": "SIGTERM", "time": 3.0}
# The journals of two nodes with a rank each, and what they show.
END = (exited(4.0, 143), GONE)
ENDS: dict[str, tuple[list[list[dict[str, Any]]], Judged]] = {
    "all is well": ([[STARTED, exited(2.0), GONE]] * 2, Judged(0, False, True, True)),
    "the first failure counts": (
        [[exited(5.0, 3), GONE], [STARTED, exited(4.0, 7), GONE]],
        Judged(7, False, True, True),
    ),
    "a signal": ([[STARTED, exited(2.0, signal=9), GONE], [exited(3.0), GONE]], Judged(137, False, True, True)),
    "a rank without an end": ([[STARTED, exited(2.0), GONE], [STARTED]], Judged(76, False, True, False)),
    "a node without a journal": ([[STARTED, exited(2.0), GONE], []], Judged(76, False, True, False)),
    "a lost host": ([[STARTED, LOST, *END], [STARTED]], Judged(76, False, True, False)),
    "ranks that end well at SIGTERM": ([[STARTED, FAILED, exited(4.0), GONE]] * 2, Judged(76, False, True, True)),
    "ranks that get it first": ([[STARTED, exited(2.9, signal=15), FAILED, GONE]] * 2, Judged(76, False, True, True)),
    "ranks that fail at it": ([[STARTED, exited(2.9, 1), FAILED, GONE]] * 2, Judged(76, False, True, True)),
    "a rank that failed before that": ([[STARTED, exited(-9.0, 1), FAILED, GONE]] * 2, Judged(1, False, True, True)),
    "a rank and its agent are killed": ([[STARTED, exited(2.0, signal=9)], []], Judged(76, False, True, False)),
    "its time is up": ([[STARTED, ordered(3.0, "timeout"), *END]] * 2, Judged(124, False, True, True)),
    "a program that ends": ([[STARTED, ordered(3.0, "program", code=5), GONE]] * 2, Judged(5, False, True, True)),
    "mesh stop": ([[STARTED, {"type": "stopped", "time": 3.0}, *END]] * 2, Judged(143, True, True, True)),
    "Ctrl-C of a client": ([[STARTED, ordered(3.0, "signal"), *END]] * 2, Judged(143, True, True, True)),
    "nothing began": ([[], []], Judged(76, False, False, False)),
}


@pytest.mark.parametrize(("journals", "judged"), ENDS.values(), ids=ENDS)
def test_journals_show_how_an_attempt_has_ended(journals: list[list[dict[str, Any]]], judged: Judged) -> None:
    assert judge(journals, [1, 1]) == judged


FOLLOWED_ENDS = {
    "a lost host": (Judged(76, False, True, True), 0, True),
    "another status": (Judged(1, False, True, True), 0, False),
    "success": (Judged(0, False, True, True), 1, False),
    "a stop, whatever the status": (Judged(76, True, True, True), 1, False),
    "a first attempt that no client has begun": (Judged(76, False, False, True), 0, False),
    "a later one that has not begun": (Judged(76, False, False, True), 1, True),
}


@pytest.mark.parametrize(("judged", "attempt", "is_again"), FOLLOWED_ENDS.values(), ids=FOLLOWED_ENDS)
def test_an_attempt_follows_failures_of_these_statuses_alone(judged: Judged, attempt: int, is_again: bool) -> None:
    assert is_tried_again(judged, [76], attempt=attempt) is is_again


CALL = "scancel --quiet --batch --signal=CONT"


class Site:
    """A home directory with the files of a run's attempts, and programs that write down what Slurm is asked."""

    def __init__(self, home: Path) -> None:
        self.home, self.place, self.asked = home, home / "slurm" / NAME, home / "asked"
        self.board = Board(make_credentials())

    def journal(self, run: str, node: int, *messages: dict[str, Any]) -> None:
        place = self.home / "machines" / f"n{node}" / f"tape-{run}-{node}"
        place.mkdir(parents=True)
        (place / "facts").write_text("".join(json.dumps(one) + "\n" for one in messages))

    def leave(self) -> dict[str, Any]:
        """Leave the attempts, and take them as the holder of job 100; return the answer."""
        words = {"runs": RUNS, "statuses": [76], "ranks": [1], "remote_dir": str(self.home), "patience": 0.0}
        words |= {"submit": ["sbatch", "--parsable"], "cluster": "big", "python": "python3"}
        files = {"given.json": json.dumps(words).encode(), "script": b'main({"attempt": 1})'}
        packed = {name: base64.b64encode(data).decode() for name, data in files.items()}
        answers: list[dict[str, Any]] = []
        leaving = threading.Thread(target=lambda: answers.append(Desk(str(self.home)).leave(NAME, "100", packed, 60.0)))
        leaving.start()
        self.holder = Attempts("100", str(self.home))
        before = signal.signal(signal.SIGCONT, self.holder.call)
        while leaving.is_alive():
            self.holder.look(self.board, "")
        leaving.join()
        signal.signal(signal.SIGCONT, before)
        return answers[0]

    def commands(self) -> list[str]:
        asked = self.asked.read_text().splitlines() if self.asked.exists() else []
        return [line for line in asked if not line.startswith(("squeue", CALL))]

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "slurm" / f"{NAME}.json").read_text())
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    count = f"$((100 + $(grep -c ^sbatch {tmp_path}/asked)))"
    for name, printed in (("sbatch", count), ("scancel", ""), ("squeue", "101")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/asked\ncat >>{tmp_path}/scripts\necho {printed}\n'
            'case "$*" in *CONT*) kill -CONT $PPID;; esac\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name in ("LOOK_INTERVAL_S", "READ_INTERVAL_S", "QUIET_S"):
        monkeypatch.setattr(attempts, name, 0.0)
    found = Site(tmp_path)
    yield found
    found.board.close()


SUBMITTED = [f"sbatch --parsable --dependency=afterany:{job}" for job in (100, 101)]
CANCELLED = "scancel --quiet 102 101"


def test_the_next_job_waits_before_the_first_attempt_begins(site: Site) -> None:
    assert site.leave() == {"problem": ""}
    assert site.commands() == SUBMITTED
    assert (site.home / "scripts").read_text() == 'main({"attempt": 1})main({"attempt": 2})'
    assert stat.S_IMODE(site.place.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in site.place.iterdir()} == {0o600}
    assert site.record() == {
        "cluster": "big", "runs": RUNS, "attempts": [{"run": RUNS[0], "job": "100", "status": None}],
        "waiting": ["101", "102"], "is_over": False,
    }  # fmt: skip


def run_first(site: Site, *messages: dict[str, Any]) -> str:
    """Have the first attempt end so; return why its allocation ends."""
    site.leave()
    site.board.note_busy("n0", True)
    assert site.holder.look(site.board, "") == ""
    site.journal(RUNS[0], 0, *messages)
    site.board.note_busy("n0", False)
    found = [site.holder.look(site.board, "") for _ in range(3)]
    return found[-1]


def test_success_leaves_nothing_but_the_record(site: Site) -> None:
    assert run_first(site, STARTED, exited(2.0), GONE) == ""
    assert site.commands() == [*SUBMITTED, CANCELLED]
    assert not site.place.exists()
    assert (site.record()["is_over"], site.record()["attempts"][0]["status"]) == (True, 0)
    assert site.holder.look(site.board, "unused") == "unused"  # the allocation is there for other commands


def test_a_failure_ends_the_allocation_for_the_next_attempt(site: Site) -> None:
    assert run_first(site, STARTED, FAILED, exited(4.0, 143), GONE) == (
        "the next attempt follows, as this one ended with 76"
    )
    assert site.commands() == SUBMITTED


def test_a_failure_that_its_client_has_seen_ends_the_allocation_as_well(site: Site) -> None:
    site.leave()
    Desk(str(site.home)).report(NAME, 76)
    found = [site.holder.look(site.board, "") for _ in range(3)]
    assert found[-1] == "the next attempt follows, as this one ended with 76"


def test_no_allocation_ends_for_a_job_that_was_cancelled_by_hand(site: Site) -> None:
    (site.home / "bin/squeue").write_text("#!/bin/sh\n")
    assert run_first(site, STARTED, FAILED, exited(4.0, 143), GONE) == ""
    assert (site.record()["is_over"], site.place.exists()) == (True, False)


def test_a_client_that_never_begins_leaves_nothing(site: Site) -> None:
    site.leave()
    assert site.holder.look(site.board, "unused") == "unused"
    assert site.commands() == [*SUBMITTED, CANCELLED]
    assert not site.place.exists()


def test_a_stop_cancels_the_next_job(site: Site) -> None:
    site.leave()
    site.board.note_busy("n0", True)
    Desk(str(site.home)).stop(NAME)
    site.holder.look(site.board, "")
    assert site.commands() == [*SUBMITTED, CANCELLED]
    site.journal(RUNS[0], 0, STARTED, {"type": "stopped", "time": 3.0}, exited(4.0, 143), GONE)
    site.board.note_busy("n0", False)
    assert site.holder.look(site.board, "") == ""
    assert not site.place.exists()


def test_the_holder_after_one_that_was_killed_judges_its_attempt(site: Site) -> None:
    site.leave()
    site.journal(RUNS[0], 0, STARTED)
    second = Attempts("101", str(site.home), NAME, 1)
    assert second.enter(["n0"]) == ""
    assert site.commands() == SUBMITTED  # there is no fourth attempt
    assert [one["status"] for one in site.record()["attempts"]] == [76, None]
    third = Attempts("102", str(site.home), NAME, 2)
    assert third.enter(["n0"]) == ""  # the second has not begun
    assert [one["run"] for one in site.record()["attempts"]] == RUNS


@pytest.mark.parametrize("messages", [(STARTED, exited(2.0), GONE), (STARTED, exited(2.0, 1), GONE), ()])
def test_the_holder_after_one_that_was_killed_begins_nothing_after_a_last_end(
    site: Site, messages: tuple[dict[str, Any], ...]
) -> None:
    site.leave()
    site.journal(RUNS[0], 0, *messages)
    assert Attempts("101", str(site.home), NAME, 1).enter(["n0"]).startswith("nobody has used it")
    assert site.commands()[-1] == "scancel --quiet 102"
    assert not site.place.exists()
    assert Attempts("102", str(site.home), NAME, 2).enter(["n0"]).startswith("nobody has used it")


@pytest.mark.parametrize(("end", "begins"), [((exited(2.0), GONE), False), ((FAILED, GONE), True)])
def test_a_holder_that_died_before_it_did_anything_is_passed_over(
    site: Site, end: tuple[dict[str, Any], ...], begins: bool
) -> None:
    site.leave()
    site.journal(RUNS[0], 0, STARTED, *end)
    assert (Attempts("102", str(site.home), NAME, 2).enter(["n0"]) == "") is begins
    assert site.place.exists() is begins


def test_an_attempt_is_taken_on_by_one_job_alone(site: Site) -> None:
    site.leave()
    site.journal(RUNS[0], 0, STARTED, FAILED, GONE)
    assert Attempts("101", str(site.home), NAME, 1).enter(["n0"]) == ""
    assert Attempts("109", str(site.home), NAME, 1).enter(["n0"]) != ""
    assert site.commands() == SUBMITTED
    assert site.place.exists()


def test_a_holder_looks_for_files_of_clients_seldom_unless_a_client_calls(site: Site) -> None:
    mark = site.home / "slurm/100.attempts"
    mark.parent.mkdir()
    holder = Attempts("100", str(site.home))
    holder.look(site.board, "")
    mark.write_text(NAME)
    holder.look(site.board, "")
    assert mark.exists()
    holder.call()
    holder.look(site.board, "")
    assert not mark.exists()


def test_the_files_of_a_client_that_nobody_answers_are_withdrawn(site: Site) -> None:
    assert Desk(str(site.home)).leave(NAME, "100", {"given.json": ""}, 0.0) == {"problem": "", "is_late": True}
    assert list((site.home / "slurm").iterdir()) == []


def test_a_stop_whose_allocation_has_ended_by_then_is_no_failure(home: Home) -> None:
    directory = home.path / ".local/state/mesh/runs" / RUNS[0]
    directory.mkdir(parents=True)
    about = {"run": RUNS[0], "kind": "run", "cluster": "big", "hosts": ["n0"], "nproc": 1, "created": 1.0}
    (directory / "run.json").write_text(json.dumps({**about, "command": ["true"], "detached": True}))
    home.clusters("big:\n  slurm: {nodes: 1}\n")
    program = home.path / "bin/squeue"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    lines = (
        "from mesh.api import stopping",
        "from mesh.api.records import find_record",
        f"assert find_record('{RUNS[0]}').state is stopping.State.DETACHED",
        f"try: stopping.fetch_end(find_record('{RUNS[0]}'), '')",
        "except stopping.NoHosts: print('no hosts')",
        f"stopping._note_end('{RUNS[0]}', '')",
    )
    environ = {**home.environ, "PATH": f"{program.parent}:{home.environ['PATH']}"}
    argv = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(argv, env=environ, cwd=home.project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "no hosts\n"), done.stderr


def test_attempts_are_found_by_any_of_their_ids_and_by_their_cluster(site: Site) -> None:
    site.leave()
    desk = Desk(str(site.home))
    found = [desk.find(RUNS[0], ""), desk.find(RUNS[2], ""), desk.find("", "big")]
    assert [one and one["name"] for one in found] == [NAME] * 3
    assert desk.find("", "other") is None
    desk.forget(NAME)
    assert (desk.find("", "big"), site.place.exists()) == (None, False)


def test_a_job_that_waits_for_another_one_is_the_next_attempts() -> None:
    assert Job(job="1", state="PENDING", reason="Dependency").is_next
    assert not Job(job="1", state="PENDING", reason="Resources").is_next
