"""Machines made and given back by hand, on a stand-in for the TPU API with real sshd hosts; audit, gc, cost, quota."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mesh.core.tpu import Provision, TpuSpec
from mesh.hosts.job import MACHINES
from mesh.hosts.tpu import google
from mesh.hosts.tpu.gcloud import Zone
from mesh.hosts.tpu.machines import Intent, labels_of
from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.lab import eventually
from tests.tpu_desk import end_of, job_file, jobs_end
from tests.tpu_steward import steward
from tests.tpuemulator.client import PROJECT, ZONES, Emulator, double

pytestmark = pytest.mark.root
UP_S = 300.0
CHIPS = 8  # of POD
POD = "pod:\n  tpu: {accelerator: v4-8, version: tpu-ubuntu2204-base, slices: 2, pricing: reserved}\n"


@pytest.fixture
def desk(tpu_desk: Desk) -> Desk:
    return tpu_desk


def write_cluster(desk: Desk, text: str = POD) -> None:
    place = desk.home.path / ".config/mesh/cluster.yaml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_the_document_of_multihost_runner_step_by_step(desk: Desk, tpus: Emulator) -> None:
    """Steps 3 to 6 of MaxText's page: create, install, run, clean up. `mesh up` is killed while it waits."""
    write_cluster(desk)
    project = desk.home.project
    (project / "setup.sh").write_text("echo ready > ~/installed\n")
    (project / "train.py").write_text(
        "import os, sys\nprint('step', sys.argv[1], os.path.exists(os.path.expanduser('~/installed')))\n"
    )
    # 3. gcloud alpha compute tpus queued-resources create ... --node-count=2 --reserved
    tpus.set(hold=["WAITING_FOR_RESOURCES"])
    with killed(desk.home.popen("up", "pod")) as waiting:
        assert waiting.stderr is not None
        assert any(b"WAITING_FOR_RESOURCES; position unknown" in line for line in waiting.stderr)
    assert len(tpus.requests) == 1
    tpus.set(hold=[])
    begun = time.time()
    done = desk.mesh("up", "pod", within=UP_S)
    up = time.time()
    assert done.status == 0, done.err
    assert "2 hosts up" in done.err
    # gcloud alpha compute tpus queued-resources list
    machines = [json.loads(line) for line in desk.mesh("job", "machines", "--json").out.splitlines()]
    assert [(one["accelerator"], one["slices"], one["pricing"], one["phase"]) for one in machines] == [
        ("v4-8", 2, "reserved", "ready")
    ]
    # 4. python3 multihost_runner.py --TPU_PREFIX=pod --COMMAND="bash setup.sh"
    done = desk.mesh("multihost", "--TPU_PREFIX=pod", "--COMMAND=bash setup.sh", within=UP_S)
    assert done.status == 0, done.err
    # 5. python3 multihost_runner.py --TPU_PREFIX=pod --COMMAND="python3 MaxText/train.py ..."
    done = desk.mesh("multihost", "--TPU_PREFIX=pod", "--COMMAND=python3 train.py run_name=$SLICE_ID", within=UP_S)
    assert done.status == 0, done.err
    assert sorted(line.partition("] ")[2] for line in done.out.decode().splitlines()) == [
        f"step run_name={number} True" for number in range(2)
    ]
    # A run is on: nothing is deleted.
    started = desk.mesh("run", "-d", "pod", "sleep", "600", within=UP_S)
    assert started.status == 0, started.err
    refused = desk.mesh("down", "pod", within=UP_S)
    assert (refused.status, len(tpus.requests)) == (75, 1), refused.err
    assert "is running there" in refused.err
    assert desk.mesh("stop", "pod", within=UP_S).status == 0
    # 6. gcloud alpha compute tpus queued-resources delete ... --force
    going = time.time()
    done = desk.mesh("down", "pod", within=UP_S)
    gone = time.time()
    assert done.status == 0, done.err
    assert (tpus.nodes, tpus.requests) == ({}, {})
    assert not double(tpus.effects("create-request"))
    assert "not up" in desk.mesh("down", "pod").err
    assert desk.mesh("run", "pod", "true").status == 125
    # Its cost: from the first machine to its end, as far as anybody else can have seen them.
    (cost,) = [json.loads(line) for line in desk.mesh("job", "cost", "--json").out.splitlines()]
    assert CHIPS * (going - up) <= cost["chip_hours"] * 3600 <= CHIPS * (gone - begun)
    made, ended = (times_of(tpus, machines[0]["name"], what) for what in ("create-node", "delete-node"))
    assert begun <= min(made) <= max(made) <= up <= going <= min(ended) <= max(ended) <= gone


@contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a process afterwards."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def times_of(tpus: Emulator, name: str, what: str) -> list[float]:
    """Return the times of an effect on the two nodes of a request, by the journal."""
    found = [one["time"] for one in tpus.journal() if one["what"] == what and one["name"].startswith(name)]
    assert len(found) == 2
    return found


def audit(desk: Desk, *words: str) -> tuple[int, dict[str, str]]:
    """Return the status of `mesh job audit`, and whose the machines are."""
    done = desk.mesh("job", "audit", "--json", *words, within=UP_S)
    return done.status, {one["name"]: one["whose"] for one in map(json.loads, done.out.splitlines())}


def test_only_what_nobody_owns_is_deleted(desk: Desk, tpus: Emulator) -> None:
    write_cluster(desk, "pod:\n  tpu: {accelerator: v4-8, version: tpu-ubuntu2204-base, allocation_mode: tpu-vm}\n")
    assert desk.mesh("up", "pod", within=UP_S).status == 0
    (gone,) = [json.loads(line) for line in desk.mesh("job", "machines", "--json").out.splitlines()]
    assert desk.mesh("down", "pod", within=UP_S).status == 0
    assert desk.mesh("up", "pod", within=UP_S).status == 0
    (held,) = [json.loads(line) for line in desk.mesh("job", "machines", "--json").out.splitlines()]
    store = gone["name"].split("-")[-3]
    plant(tpus, f"{gone['name']}-0", labels_of(store, str(gone["job"]), 1, "root"))
    plant(tpus, "lost-in-a-fire", labels_of(store, "99", 1, "root"))
    plant(tpus, "of-a-friend", labels_of("zzzzzz", str(gone["job"]), 1, "root"))
    plant(tpus, f"mesh-{store}-7-g1", {})
    expected = {
        held["name"]: "owned",
        f"{gone['name']}-0": "orphan",
        "lost-in-a-fire": "unknown",
        "of-a-friend": "other store",
        f"mesh-{store}-7-g1": "nobody's",
    }
    assert audit(desk, "--all") == (1, expected)
    assert desk.mesh("job", "gc").status == 0  # without a terminal it only shows
    assert desk.mesh("job", "gc", "--yes", "of-a-friend").status == 2
    assert len(tpus.nodes) == 5
    quota = [json.loads(line) for line in desk.mesh("job", "quota", "--json").out.splitlines()]
    assert {(one["pool"], one["used"]) for one in quota} == {(f"v4/{ZONES[0]}/ondemand", 20)}
    collect(desk)
    assert eventually(lambda: len(tpus.nodes) == 4, UP_S)
    del expected[f"{gone['name']}-0"]
    assert audit(desk, "--all") == (1, expected)
    collect(desk, "lost-in-a-fire")
    assert eventually(lambda: len(tpus.nodes) == 3, UP_S)
    # An answer that is not complete deletes nothing, and is no clean bill.
    tpus.faults({"verb": "ListNodes", "status": "PERMISSION_DENIED"})
    assert audit(desk)[0] == 125
    tpus.calm()
    assert desk.mesh("down", "pod", within=UP_S).status == 0
    assert set(audit(desk, "--all")[1].values()) == {"other store", "nobody's"}
    for name in ("of-a-friend", f"mesh-{store}-7-g1"):
        remove(tpus, name)


def test_the_steward_names_a_machine_that_nobody_owns(tpu_user: Home, tpus: Emulator) -> None:
    tpu_user.environ |= {"MESH_SERVE": "0", "MESH_TEST_AUDIT_S": "3"}
    with desk_of(tpu_user) as found, steward(found), jobs_end(found):
        job = found.submit(job_file("true", version="wrong"))
        found.until(job, "held", within=UP_S)
        (gone,) = [json.loads(line) for line in found.mesh("job", "machines", "--all", "--json").out.splitlines()]
        store = gone["name"].split("-")[-3]
        plant(tpus, gone["name"], labels_of(store, str(job), 1, "root"))
        found.until_row(job, lambda row: row["strays"] == [gone["name"]], UP_S)
        assert f"cost money): {gone['name']};" in found.mesh("job", "list").out.decode()
        assert gone["name"] in found.mesh("job", "machines").out.decode()
        assert f"{ZONES[0]}/{gone['name']}" in tpus.nodes  # nothing is deleted
        remove(tpus, gone["name"])
        found.until_row(job, lambda row: not row["strays"], UP_S)
        assert "without an owner" not in found.mesh("job", "list").out.decode()


def plant(tpus: Emulator, name: str, labels: dict[str, str]) -> None:
    """Make a node beside mesh."""
    spec = TpuSpec(accelerator="v4-8", runtime="r", zones=ZONES[:1], project=PROJECT, provision=Provision.TPU_VM)
    intent = Intent(spec=spec, project=PROJECT, zone=ZONES[0], name=name, labels=labels)
    google.make(intent, Zone(project=PROJECT, zone=ZONES[0], endpoint=tpus.url.rstrip("/")), {})


def remove(tpus: Emulator, name: str) -> None:
    zone = Zone(project=PROJECT, zone=ZONES[0], endpoint=tpus.url.rstrip("/"))
    (machine,) = [one for one in google.list_machines(zone, {}).machines if one.name == name]
    google.delete_machine(machine, {}, zone.endpoint)


def collect(desk: Desk, *names: str) -> None:
    """Do as `mesh job gc` on a terminal, with looks a second apart."""
    script = "import sys; from mesh.api import machines; print(machines.collect(sys.argv[1:], interval=1.0))"
    argv = [sys.executable, "-c", script, *names]
    done = subprocess.run(
        argv, env=desk.home.environ, cwd=desk.home.project, capture_output=True, text=True, timeout=UP_S
    )
    assert done.returncode == 0, done.stderr


def test_machines_of_an_ended_job_stay_for_people_and_for_the_next_job(desk: Desk, tpus: Emulator) -> None:
    write_cluster(desk)
    first = desk.submit(job_file("touch ~/here", allocation_mode="tpu-vm", keep="1h"))
    assert end_of(desk, first)["state"] == "succeeded"
    made = tpus.effects("create-node")
    (keeper,) = [one for one in desk.rows() if one["kept_from"] == first]
    name = f"job:{keeper['id']}"
    (line,) = [one for one in json.loads(desk.mesh("clusters", "--json").out) if one["name"] == name]
    assert line["hosts"] == keeper["machines"]
    assert f"kept after job {first}" in line["note"]
    (held,) = [json.loads(one) for one in desk.mesh("job", "machines", "--json").out.splitlines()]
    assert (held["job"], held["phase"]) == (keeper["id"], "kept")
    assert set(audit(desk)[1].values()) == {"owned"}
    # They can be used by the name of either job.
    look = "sh", "-c", "ls ~/here"
    assert eventually(lambda: (desk.place / str(keeper["id"]) / MACHINES).exists(), UP_S)
    for selector in (name, f"job:{first}"):
        done = desk.mesh("exec", selector, *look, within=UP_S)
        assert done.status == 0, done.err
    # The next job starts on them, and nothing is made.
    second = desk.submit(job_file("ls ~/here", allocation_mode="tpu-vm", keep="1h"))
    assert end_of(desk, second)["exit_code"] == 0
    assert tpus.effects("create-node") == made
    assert "nothing to delete" in desk.mesh("down", name).err
    (tpu,) = tpus.nodes
    done = desk.mesh("down", f"job:{second}", within=UP_S)
    assert (done.status, tpus.nodes) == (0, {}), done.err
    assert tpu.endswith(held["name"])


def test_the_selftest(tpu_user: Home, tpus: Emulator) -> None:
    """The trial for Google's own API, here on the stand-in, with stewards that mesh starts itself."""
    script = "from mesh.api import selftest; selftest.SLEEP_S = 20; selftest.selftest('', '', 'v4-8', 'r', print)"
    with desk_of(tpu_user) as found:
        argv, place = [sys.executable, "-c", script], found.home.project
        done = subprocess.run(argv, env=tpu_user.environ, cwd=place, capture_output=True, text=True, timeout=2 * UP_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed") == 2
    assert "made once, deleted, nothing left" in done.stdout
    (made,) = [name for name in tpus.effects("create-node") if name.startswith("mesh-selftest")]
    assert made in tpus.effects("delete-node")
