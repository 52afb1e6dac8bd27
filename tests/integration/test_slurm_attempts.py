"""Runs on real allocations with a home directory that login node and nodes share: attempts, and the workspace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Home
from tests.integration.test_shared_home import Created
from tests.integration.test_slurm import PATIENT_S, SLEEP, all_gone, described, logged, sleepers
from tests.lab import eventually
from tests.slurmcluster import NODES, SlurmCluster, is_installed

pytestmark = [
    pytest.mark.root,
    pytest.mark.sshd,
    pytest.mark.skipif(not is_installed(), reason="needs slurmctld, slurmd, slurm-client and munge"),
]
SEEN = 'echo "$MESH_RUN_ID $MESH_ATTEMPT" >>seen-$RANK'
FIRST_FAILS = f"{SEEN}; [ $MESH_ATTEMPT = 1 ] || exit 7; echo attempt $MESH_ATTEMPT; exec {SLEEP}"
SECOND_ENDS = f"{SEEN}; [ $MESH_ATTEMPT = 1 ] || exec {SLEEP}"


@pytest.fixture(scope="module")
def session_shared() -> Iterator[SlurmCluster]:
    visible = (Path(sys.prefix), Path(sys.base_prefix), REPOSITORY)
    with SlurmCluster(visible=visible, shared_home=True) as cluster:
        yield cluster


@pytest.fixture
def shared(session_shared: SlurmCluster, home: Home) -> Iterator[SlurmCluster]:
    home.trust(session_shared.lab)
    home.clusters(described(session_shared))
    yield session_shared
    session_shared.clear()


def desk(shared: SlurmCluster) -> Path:
    return shared.login.path("/root/.mesh/slurm")


def record(shared: SlurmCluster) -> dict[str, Any]:
    (place,) = desk(shared).glob("attempts-*.json")
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def seen(shared: SlurmCluster) -> list[str]:
    """Return the attempts that rank 0 has seen, as `RUN NUMBER`."""
    return [
        line
        for one in shared.login.path("/root/.mesh/workspaces").glob("*/seen-0")
        for line in one.read_text().split("\n")
        if line
    ]


def plans(shared: SlurmCluster) -> list[str]:
    """Return what there is of attempts beside their record."""
    return [place.name for place in desk(shared).iterdir() if not place.name.endswith(".json")]


def is_over(shared: SlurmCluster) -> bool:
    """Return True once neither a job nor a process is left, and of the attempts only the record."""
    return not shared.jobs() and not plans(shared) and all_gone(shared)


def test_the_next_attempt_follows_a_failure_and_is_found_and_stopped_by_the_run(
    shared: SlurmCluster, home: Home
) -> None:
    words = ("run", "-d", "--grace", "1", "--retries", "3", "--retry-on", "7", "big", "sh", "-c", FIRST_FAILS)
    run = home.mesh(*words, within=PATIENT_S)
    assert run.status == 0, run.err
    assert eventually(lambda: len(seen(shared)) == 2, PATIENT_S), (record(shared), shared.run("squeue", "-l"))
    first, second, *_ = record(shared)["runs"]
    assert seen(shared) == [f"{first} 0", f"{second} 1"]
    # The job of this attempt, and those of the next ones. The one before may still be on its way out.
    assert eventually(lambda: len(shared.jobs()) == 3, PATIENT_S), shared.run("squeue", "-l")
    assert second in home.mesh("ps", "big", within=PATIENT_S).out.decode()
    assert logged(home, [f"[{rank}] attempt 1" for rank in range(NODES)])
    done = home.mesh("stop", first, within=PATIENT_S)
    assert (done.status, second in done.out.decode() + done.err) == (0, True), done.err
    assert (shared.run("squeue", "-h", "-t", "PENDING", "-o", "%i"), plans(shared)) == ("", [])
    assert not sleepers(shared)
    assert (record(shared)["is_over"], record(shared)["attempts"][0]["status"], len(seen(shared))) == (True, 7, 2)


def test_the_next_attempt_follows_the_death_of_a_holder_and_its_end_is_the_last_one(
    shared: SlurmCluster, home: Home
) -> None:
    words = ("run", "-d", "--grace", "1", "--retries", "3", "big", "sh", "-c", SECOND_ENDS)
    assert home.mesh(*words, within=PATIENT_S).status == 0
    assert eventually(lambda: len(seen(shared)) == 1, PATIENT_S)
    job, *_ = sorted(shared.jobs(), key=int)
    shared.run("scancel", "--signal=KILL", "--batch", job)
    assert eventually(lambda: len(seen(shared)) == 2, PATIENT_S), (record(shared), shared.run("squeue", "-l"))
    assert eventually(lambda: is_over(shared), PATIENT_S), shared.run("squeue", "-l")
    first, second, *_ = record(shared)["runs"]
    assert seen(shared) == [f"{first} 0", f"{second} 1"]
    assert [one["status"] for one in record(shared)["attempts"]] == [76, 0]


def test_nodes_with_one_home_directory_get_the_workspace_once(shared: SlurmCluster, home: Home) -> None:
    home.files(train__py="print(1)")
    assert home.mesh("run", "big", "true", within=PATIENT_S).status == 0
    home.files(train__py="print(2)")
    created = Created(shared.nodes[0].path("/root/.mesh/workspaces"))
    try:
        done = home.mesh("run", "big", "python3", "train.py", within=PATIENT_S)
        made = [name for name in created.names() if ".new-" in name]
    finally:
        created.close()
    assert done.lines == [f"[{rank}] 2" for rank in range(NODES)], done.err
    assert len(made) == 1, made
