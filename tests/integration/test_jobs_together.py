"""Many jobs on hosts that a person uses too: no host has two runs at a time, and every job ends."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.jobs.reading import read_events
from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.lab import Lab, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
REPOSITORY = Path(__file__).parents[2]
COUNTS = (1, 2, 4, 1, 3, 2, 1, 1, 3, 2, 1, 1)  # of hosts, one job each
TEXT = "machines: {cluster: pod, hosts: %d}\nrun: echo $(hostname) $(date +%%s.%%N); sleep 0.5; date +%%s.%%N\n"
WAIT_S = 400.0


@pytest.fixture(scope="module")
def eight() -> Iterator[Lab]:
    with Lab(8, visible=[Path(sys.prefix), Path(sys.base_prefix), REPOSITORY]) as lab:
        yield lab


@pytest.fixture
def desk(home: Home, eight: Lab) -> Iterator[Desk]:
    home.clusters(eight.cluster_yaml())
    home.trust(eight)
    with desk_of(home) as made:
        yield made


def test_twelve_jobs_share_eight_hosts_with_a_person(desk: Desk, eight: Lab) -> None:
    mine = desk.mesh("run", "-d", "pod:0-1", "sleep", "900", within=120.0)
    assert mine.status == 0, mine.err
    person = mine.out.decode().strip()
    desk.home.environ["MESH_SERVE"] = "0"  # all wait before the first of them starts
    jobs = [desk.submit(TEXT % count, name=f"j{number}") for number, count in enumerate(COUNTS)]
    del desk.home.environ["MESH_SERVE"]
    done = desk.mesh("job", "wait", *map(str, jobs), "--timeout", str(WAIT_S), within=WAIT_S + 60)
    assert done.status == 0, [(row["id"], row["state"], row["reason"]) for row in map(desk.show, jobs)]
    spans: dict[str, list[tuple[float, float]]] = {}
    for row in desk.rows(*jobs):
        (run,) = row["runs"]  # type: ignore[misc]
        for log in (desk.home.path / f".local/state/mesh/runs/{run}/logs").glob("rank-*.out"):
            first, last = log.read_text().splitlines()
            host, begin = first.split()
            spans.setdefault(host, []).append((float(begin), float(last)))
    assert sum(map(len, spans.values())) == sum(COUNTS)
    assert not spans.keys() & {host.name for host in eight.hosts[:2]}  # they have the person's run
    for used in spans.values():
        used.sort()
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(used)), used
    assert any(person in str(event) for job in jobs for event in read_events(desk.store, job))
    assert person in desk.mesh("ps", "pod").out.decode()
    assert desk.mesh("stop", person).status == 0
    assert eventually(lambda: person not in desk.mesh("ps", "pod").out.decode(), WAIT_S)
