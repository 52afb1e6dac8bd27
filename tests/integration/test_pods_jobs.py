"""Jobs of mesh in pods of a real cluster of Kubernetes, which they make and delete. See test_pods_real.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.kubecluster.cluster import Cluster
from tests.kubecluster.faults import NO_IMAGE, PATIENT_S, made, roots
from tests.lab import eventually
from tests.tpu_steward import steward

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
SLEEP = "sleep 4573"
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
    assert eventually(lambda: len(kube.processes(SLEEP)) >= 2, PATIENT_S), desk.show(job)
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
