"""Jobs of mesh in pods of a real cluster of Kubernetes, which they make and delete. See test_pods_real.py.

By hand, with 20 deaths of stewards and hands: ``python -m tests.integration.test_pods_jobs 20 SEED``
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from mesh.api.carried import carried
from mesh.api.podshow import role_text
from mesh.core.job import MachinesSpec
from tests.carried_life import KILLS, SAMPLE_KILLS, CarriedLife, live_many
from tests.conftest import Home, new_home
from tests.desk import Desk, desk_of
from tests.kubecluster.cluster import USER, Cluster
from tests.kubecluster.faults import NO_IMAGE, PATIENT_S, made, roots
from tests.lab import eventually
from tests.tpu_steward import steward

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
SLEEP = "sleep 4573"
AFTER_THE_MAKE = 26  # a seed, by which a hand dies before it has answered that it made the pods
RULES = "restart: {on: preemption, backoff: [0.5, 1]}\nworkspace: none\n"
GPU = "mesh.test/gpu"  # no node has any


@pytest.fixture
def desk(home: Home, kube: Cluster) -> Iterator[Desk]:
    """A user with two pods, as ``gpus``, one that no node has room for, and one without an image."""
    home.environ["MESH_SERVE"] = "0"
    wrong = made(1, name="absent", image=NO_IMAGE).replace("absent.test/x:1", "Not/A_Name")
    home.clusters(made(2) + made(1, f"resources: {{{GPU}: 1}}", name="full") + wrong)
    with desk_of(home) as found, steward(found):
        try:
            yield found
        finally:
            assert "running" not in found.end_jobs(90.0)
            assert eventually(lambda: not (kube.phases() or roots(kube)), PATIENT_S), kube.phases()


def test_a_job_makes_pods_recovers_from_the_loss_of_one_and_deletes_them(desk: Desk, kube: Cluster) -> None:
    text = f"echo $MESH_ATTEMPT $RANK of $WORLD_SIZE on $(hostname); [ $MESH_ATTEMPT != 1 ] || {SLEEP}; echo x > out"
    job = desk.submit(f"machines: gpus\ncommand: {{run: {text!r}, grace: 1}}\nresults: [out]\n{RULES}")

    def sleepers() -> list[str]:
        return [words for words in kube.processes(SLEEP) if words.startswith(SLEEP)]

    assert eventually(lambda: len(sleepers()) == 2, PATIENT_S), desk.show(job)
    desk.until(job, "running", within=PATIENT_S)  # the steward has noted that the ranks run
    pods = sorted(kube.phases())
    assert desk.show(job)["machines"] == pods
    kube.ask("DELETE", kube.path("pods", pods[1]))
    row = desk.until(job, "succeeded", "failed", "held", within=PATIENT_S)
    assert (row["state"], row["attempt"], row["preemptions"]) == ("succeeded", 2, 1), row
    assert desk.output(job).decode().splitlines()[-1].startswith("2 0 of 2 on mesh-train-")
    assert kube.phases() == {}
    log = (desk.place / f"{job}/logs/machines.log").read_text()
    assert "generation 1: lost (" in log
    assert "generation 2: gone (" in log


def test_jobs_wait_for_room_and_are_held_for_what_cannot_be_had(desk: Desk, kube: Cluster) -> None:
    waiting = desk.submit(f"machines: full\nrun: {SLEEP}\n{RULES}", name="waiting")
    refused = desk.submit(f"machines: absent\nrun: {SLEEP}\n{RULES}", name="refused")
    row = desk.until_row(waiting, lambda one: GPU in str(one["reason"]), within=PATIENT_S)
    assert (row["state"], row["attempt"]) == ("requesting", 0), row
    assert "0 of 1 pods run; 1 wait: " in str(row["reason"])
    held = desk.until(refused, "held", within=PATIENT_S)
    assert "InvalidImageName" in str(held["reason"]), held
    assert "cluster.yaml" in str(held["hint"]), held
    assert eventually(lambda: len(kube.phases()) == 1, PATIENT_S), kube.phases()
    assert desk.mesh("job", "stop", "*").status == 0
    for job in (waiting, refused):
        desk.until(job, "stopped", within=PATIENT_S)


class PodScheduler:
    """The pods of the tests' namespace. See tests.carried_life.Scheduler."""

    def __init__(self, kube: Cluster, home: Home, beats: Path) -> None:
        self._kube, self.environ, self.beats = kube, home.environ, str(beats)

    def hosts(self) -> Mapping[str, str]:
        return self._listed()

    def ever(self) -> Mapping[str, str]:
        return self._listed()

    def _listed(self) -> Mapping[str, str]:
        found = [one["metadata"] for kind in ("pods", "configmaps") for one in self._kube.listed(kind)]
        return {one["uid"]: one["name"] for one in found if one["name"].startswith("mesh-")}

    def take_away(self, identity: str) -> None:
        for one in self._kube.listed("pods"):
            if one["metadata"]["uid"] == identity:
                self._kube.ask("DELETE", self._kube.path("pods", one["metadata"]["name"]))

    def beat_files(self) -> Mapping[str, list[float]]:
        files = Path(self.beats).glob("*")
        return {file.name: [float(line) for line in file.read_text().split()] for file in files}


def live(kube: Cluster, home: Home, root: Path, seed: int, *names: str) -> tuple[list[str], CarriedLife]:
    """Live one life in pods; return what went wrong, and the life. names: of jobs, all without"""
    beats = root / "beats"
    beats.mkdir()
    home.clusters(made(1, f"volumes: [{{host_path: {beats}, path: {beats}}}]", name="one"))
    machines = carried(MachinesSpec(cluster="one"), str(home.path / ".config/mesh/cluster.yaml"), "machines")
    assert machines is not None
    life = CarriedLife(root, seed, PodScheduler(kube, home, beats), machines, names)
    life.kills = SAMPLE_KILLS if names else KILLS
    try:
        life.live()
        return life.check(), life
    finally:
        life.store.close()


def test_killed_stewards_and_hands_leave_no_pod_and_make_none_twice(
    kube: Cluster, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home.path / ".kube/config"))
    wrong, life = live(kube, home, tmp_path, AFTER_THE_MAKE, "succeeds")
    print(life.deaths)
    assert not wrong


def main(points: int, seed: int) -> int:
    """Live lives until so many processes have died, and print what went wrong in each."""
    with Cluster() as kube:
        kube.allow(USER, yaml.safe_load(role_text(is_existing=False))["rules"])

        def live_one(root: Path, number: int) -> tuple[list[str], CarriedLife]:
            home = new_home(root)
            kube.write_kubeconfig(home.path, USER)
            os.environ["KUBECONFIG"] = str(home.path / ".kube/config")
            found = live(kube, home, root, number)
            kube.clear()
            return found

        return live_many(points, seed, live_one)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
