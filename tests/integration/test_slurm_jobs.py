"""Jobs of mesh on allocations of a real Slurm, which they ask for and give back.

By hand, with 20 deaths of stewards and hands: ``python -m tests.integration.test_slurm_jobs 20 SEED``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mesh.api.carried import carried
from mesh.core.job import MachinesSpec
from tests.carried_life import KILLS, SAMPLE_KILLS, CarriedLife, live_many
from tests.conftest import REPOSITORY, Home, new_home
from tests.desk import Desk, desk_of
from tests.lab import eventually
from tests.slurmcluster import SlurmCluster, is_installed
from tests.tpu_steward import steward

pytestmark = [
    pytest.mark.root,
    pytest.mark.sshd,
    pytest.mark.skipif(not is_installed(), reason="needs slurmctld, slurmd, slurm-client and munge"),
]
WITHIN_S = 180.0  # for what takes seconds, on a machine with much to do
SLEEP = "sleep 4571"
AFTER_THE_MAKE = 26  # a seed, by which a hand dies before it has answered that it made the allocation
RULES = "restart: {on: preemption, backoff: [0.5, 1]}\nworkspace: none\n"


@pytest.fixture(scope="module")
def session_slurm() -> Iterator[SlurmCluster]:
    visible = (Path(sys.prefix), Path(sys.base_prefix), REPOSITORY)
    with SlurmCluster(visible=visible, kill_wait=10) as cluster:
        yield cluster


def describe(slurm: SlurmCluster, home: Home) -> None:
    """Write a cluster.yaml with requests of all kinds, for the login node over SSH."""
    home.trust(slurm.lab)
    login = f"gateway: {slurm.login.address}, user: root, identity_file: {slurm.lab.identity}"
    requests = {"one": "1", "big": "2", "all": "4, exclusive: true", "wide": "4, exclusive: true"}
    requests["wrong"] = "1, partition: absent"
    home.clusters("".join(f"{name}: {{{login}, slurm: {{nodes: {nodes}}}}}\n" for name, nodes in requests.items()))


@pytest.fixture
def slurm(session_slurm: SlurmCluster, home: Home, nothing_is_left: None) -> Iterator[SlurmCluster]:
    """The cluster without jobs, reached over SSH."""
    describe(session_slurm, home)
    yield session_slurm
    try:
        assert eventually(lambda: not session_slurm.jobs(), WITHIN_S), session_slurm.jobs()
    finally:
        session_slurm.clear()


@pytest.fixture
def desk(slurm: SlurmCluster, home: Home) -> Iterator[Desk]:
    """A user of the cluster with a steward that looks often."""
    home.environ["MESH_SERVE"] = "0"
    with desk_of(home) as found, steward(found):
        try:
            yield found
        finally:
            assert "running" not in found.end_jobs(90.0)


def sleepers(slurm: SlurmCluster) -> list[str]:
    """Return a line for each process of the ranks that sleeps, without their shells."""
    return [command for host in slurm.nodes for _, command in slurm.processes(host) if command.startswith(SLEEP)]


def named(slurm: SlurmCluster) -> list[str]:
    """Return the names of the jobs that wait or run."""
    return slurm.run("squeue", "-h", "-o", "%j").split()


def test_a_job_asks_for_an_allocation_again_after_a_loss_and_gives_it_back(desk: Desk, slurm: SlurmCluster) -> None:
    text = f"echo $MESH_ATTEMPT $RANK of $WORLD_SIZE on $(hostname); [ $MESH_ATTEMPT != 1 ] || {SLEEP}; exit $RANK"
    job = desk.submit(f"machines: big\ncommand: {{run: {text!r}, grace: 1}}\nresults: [out]\n{RULES}")
    assert eventually(lambda: len(sleepers(slurm)) == 2, WITHIN_S), desk.show(job)
    desk.until(job, "running", within=WITHIN_S)  # the steward has noted that the ranks run
    names = [host.name for host in slurm.nodes]
    assert desk.show(job)["machines"] == names[:2]
    (listed,) = [json.loads(line) for line in desk.mesh("job", "machines", "--json").lines]
    assert (listed["name"], listed["accelerator"]) == (named(slurm)[0], "2 nodes of Slurm")
    assert desk.show(job)["given"] == f"allocation {slurm.jobs()[0]} ({named(slurm)[0]})"
    done = desk.mesh("exec", f"job:{job}", "hostname", within=WITHIN_S)
    assert done.lines == [f"[{number}] {name}" for number, name in enumerate(names[:2])], done.err
    slurm.run("scancel", *slurm.jobs())
    row = desk.until(job, "succeeded", "failed", "held", within=WITHIN_S)
    assert (row["state"], row["exit_code"], row["attempt"], row["preemptions"]) == ("failed", 1, 2, 1), row
    assert desk.output(job).decode().splitlines()[-1].startswith("2 0 of 2 on ")
    log = (desk.place / f"{job}/logs/machines.log").read_text()
    assert "generation 1: lost (allocation 1: it was cancelled)" in log or "gone (allocation" in log, log
    assert slurm.jobs() == []


def test_jobs_wait_in_the_queue_and_are_held_for_what_slurm_refuses(desk: Desk, slurm: SlurmCluster) -> None:
    first = desk.submit(f"machines: all\nrun: {SLEEP}\n{RULES}", name="first")
    assert eventually(lambda: len(sleepers(slurm)) == 4, WITHIN_S), desk.show(first)
    second = desk.submit(f"machines: wide\nrun: {SLEEP}\n{RULES}", name="second")
    refused = desk.submit(f"machines: wrong\nrun: {SLEEP}\n{RULES}", name="refused")
    row = desk.until_row(second, lambda one: "waits: it waits for nodes" in str(one["reason"]), within=WITHIN_S)
    assert (row["state"], row["attempt"]) == ("requesting", 0)
    held = desk.until(refused, "held", within=WITHIN_S)
    assert "sbatch: " in str(held["reason"]), held
    assert "invalid partition" in str(held["reason"]), held
    assert "cluster.yaml" in str(held["hint"]), held
    assert desk.mesh("job", "stop", "*").status == 0
    for job in (first, second, refused):
        assert desk.until(job, "stopped", within=WITHIN_S)["exit_code"] == 143
    assert slurm.jobs() == []


class SlurmScheduler:
    """The allocations of the lab. See tests.carried_life.Scheduler."""

    beats = "/root/beats"

    def __init__(self, slurm: SlurmCluster, home: Home) -> None:
        self._slurm, self.environ = slurm, home.environ

    def hosts(self) -> Mapping[str, str]:
        return self._listed()

    def ever(self) -> Mapping[str, str]:
        return self._listed("--states=all")

    def _listed(self, *words: str) -> Mapping[str, str]:
        lines = self._slurm.run("squeue", "-h", "-o", "%i %j", *words).splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def take_away(self, identity: str) -> None:
        self._slurm.run("scancel", identity, check=False)

    def beat_files(self) -> Mapping[str, list[float]]:
        files = [file for host in self._slurm.nodes for file in host.path(self.beats).glob("*")]
        return {file.name: [float(line) for line in file.read_text().split()] for file in files}


def live(slurm: SlurmCluster, home: Home, root: Path, seed: int, *names: str) -> tuple[list[str], CarriedLife]:
    """Live one life on allocations of one node; return what went wrong, and the life. names: of jobs, all without"""
    for host in slurm.nodes:
        host.script(f"rm -rf {SlurmScheduler.beats}; mkdir -p {SlurmScheduler.beats}")
    machines = carried(MachinesSpec(cluster="one"), str(home.path / ".config/mesh/cluster.yaml"), "machines")
    assert machines is not None
    life = CarriedLife(root, seed, SlurmScheduler(slurm, home), machines, names)
    life.kills = SAMPLE_KILLS if names else KILLS
    try:
        life.live()
        return life.check(), life
    finally:
        life.store.close()


def test_killed_stewards_and_hands_leave_no_allocation_and_ask_for_none_twice(
    slurm: SlurmCluster, home: Home, tmp_path: Path
) -> None:
    wrong, life = live(slurm, home, tmp_path, AFTER_THE_MAKE, "succeeds")
    print(life.deaths)
    assert not wrong


def main(points: int, seed: int) -> int:
    """Live lives until so many processes have died, and print what went wrong in each."""
    visible = (Path(sys.prefix), Path(sys.base_prefix), REPOSITORY)
    with SlurmCluster(visible=visible, kill_wait=10) as slurm:

        def live_one(root: Path, number: int) -> tuple[list[str], CarriedLife]:
            home = new_home(root)
            describe(slurm, home)
            found = live(slurm, home, root, number)
            slurm.clear()
            return found

        return live_many(points, seed, live_one)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
