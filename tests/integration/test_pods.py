"""Pods as hosts, over the stand-in: a run in pods that are there behaves as a run over SSH."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.kubecluster.stand_in import StandIn
from tests.lab import Lab, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
PODS = 3
PATIENT_S = 150.0  # for what takes at most 50 s, on a machine with much to do
ECHO_SERVER = """\
import os, socket
with socket.create_server(("127.0.0.1", 7000)) as server:
    print("up", flush=True)
    while True:
        one, _ = server.accept()
        with one:
            one.sendall(os.environ["IN_POD"].encode() + b" " + one.makefile("rb").read())
"""
LINES = "for i in $(seq 200); do echo line $i; [ $i = 100 ] && until [ -e ~/go ]; do sleep 0.1; done; done; true"


@pytest.fixture
def kube(home: Home, lab: Lab) -> Iterator[StandIn]:
    """Three pods with the label app=x, and a user with a kubeconfig."""
    with StandIn(lab) as cluster:
        cluster.write_kubeconfig(home.path)
        for number in (10, 9, 2):
            cluster.make_pod(f"w-{number}", {"app": "x", "tier": "gpu"})
        home.clusters("gpus:\n  kubernetes:\n    selector: app=x\n")
        yield cluster


def test_files_are_sent_and_a_command_runs_in_every_pod(home: Home, kube: StandIn) -> None:
    home.files(hello__txt="hello\n")
    done = home.mesh("run", "gpus", "sh", "-c", "echo $IN_POD $RANK $(cat hello.txt) $MASTER_ADDR")
    assert done.status == 0, done.err
    first = kube.hosts["w-2"].address  # by name, with numbers as numbers
    names = ("w-2", "w-9", "w-10")
    assert done.lines == [f"[{rank}] {name} {rank} hello {first}" for rank, name in enumerate(names)]
    assert all("exec" in one or one.split()[0] in ("list", "get", "watch") for one in kube.requests)


def test_a_selector_in_place_of_a_cluster_takes_commas(home: Home, kube: StandIn) -> None:
    done = home.mesh("exec", "--hosts", "w-9", "k8s:team:app=x,tier=gpu", "--", "sh", "-c", "echo $IN_POD; exit 3")
    assert (done.status, done.lines) == (3, ["[0] w-9"]), done.err
    done = home.mesh("exec", "k8s:app=y", "true")
    assert done.status == 125
    assert "selector 'app=y' matches no pod of namespace team" in done.err


def test_a_port_of_each_pod_is_forwarded(home: Home, kube: StandIn) -> None:
    home.files(server__py=ECHO_SERVER)
    process = home.popen("run", "--forward", "0:7000", "gpus", "python3", "server.py")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for _ in range(PODS):
            assert process.stdout.readline().rstrip().endswith(b"up")
        ports: dict[str, int] = {}
        while len(ports) < PODS:
            line = process.stderr.readline().decode()
            assert line
            if found := re.search(r"(w-\d+):7000  http://127.0.0.1:(\d+)", line):
                ports[found.group(1)] = int(found.group(2))
        for name, port in ports.items():
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                one.sendall(b"hello")
                one.shutdown(socket.SHUT_WR)
                assert one.makefile("rb").read() == f"{name} hello".encode()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENT_S)


def test_a_run_is_detached_and_attached(home: Home, kube: StandIn) -> None:
    started = home.mesh("run", "-d", "gpus", "sh", "-c", "until [ -e ~/go ]; do sleep 0.1; done; echo $RANK done")
    assert started.status == 0, started.err
    for host in kube.hosts.values():
        host.script("touch ~/go")
    done = home.mesh("attach", started.out.decode().strip())
    assert done.status == 0, done.err
    assert done.lines == [f"[{rank}] {rank} done" for rank in range(PODS)]


def test_an_api_server_that_is_started_again_ends_no_run(home: Home, kube: StandIn) -> None:
    client = home.popen("run", "gpus", "sh", "-c", f"touch ~/up; {LINES}")
    assert eventually(lambda: all(host.path("/root/up").exists() for host in kube.hosts.values()), PATIENT_S)
    kube.is_down = True
    kube.cut()
    # A host has tried to come back. No longer is waited: the agents give their client 30 s.
    before = len(kube.requests)
    assert eventually(lambda: kube.requests[before:], PATIENT_S)
    kube.is_down = False
    for host in kube.hosts.values():
        host.script("touch ~/go")
    _, err = client.communicate(timeout=PATIENT_S)
    assert client.returncode == 0, err
    expected = "".join(f"line {number}\n" for number in range(1, 201))
    logs = sorted((home.path / ".local/state/mesh/runs").glob("*/logs/rank-*.out"))
    assert [log.read_text() for log in logs] == [expected] * PODS


def test_a_deleted_pod_is_named_and_ends_the_run(home: Home, kube: StandIn) -> None:
    client = home.popen("run", "--grace", "1", "gpus", "sh", "-c", "touch ~/up; sleep 4567")
    assert eventually(lambda: all(host.path("/root/up").exists() for host in kube.hosts.values()), PATIENT_S)
    kube.remove("pods", "w-9")
    _, err = client.communicate(timeout=PATIENT_S)
    assert client.returncode == 76, err
    assert b"w-9" in err
    assert b"the pod was deleted (by kubectl, a controller or a drain)" in err
    assert eventually(
        lambda: not any("sleep 4567" in text for host in kube.lab.hosts for _, text in host.processes()), PATIENT_S
    )


def test_a_terminal_in_a_pod(home: Home, kube: StandIn) -> None:
    done = home.mesh("ssh", "gpus:1", "--", "sh", "-c", "echo $IN_POD; echo no >&2; exit 5")
    assert (done.status, done.out, done.err) == (5, b"w-9\n", "no\n")


def test_the_check_of_pods(home: Home, kube: StandIn) -> None:
    done = home.mesh("check", "gpus", "--json")
    assert done.status == 0, done.err
    reports = json.loads(done.out)
    assert [report["host"] for report in reports] == ["w-2", "w-9", "w-10"]
    for report in reports:
        found = {one["name"]: one["verdict"] for one in report["checks"]}
        assert {found[name] for name in ("api", "rights", "schedule", "image", "python3", "network")} == {"ok"}
        assert "shm" in found
        assert "login" not in found


def test_an_interrupt_ends_the_ranks(home: Home, kube: StandIn) -> None:
    client = home.popen("run", "gpus", "sh", "-c", "touch ~/up; exec sleep 4567")
    assert eventually(lambda: all(host.path("/root/up").exists() for host in kube.hosts.values()), PATIENT_S)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=PATIENT_S)
    assert client.returncode == 130
    assert not any("sleep 4567" in text for host in kube.lab.hosts for _, text in host.processes())


# ---- pods that mesh makes

MADE = "gpus:\n  kubernetes: {image: test, nodes: 2, hold: 2s, start_timeout: 600s}\n"


@pytest.fixture
def empty(home: Home, lab: Lab) -> Iterator[StandIn]:
    """A cluster without pods, and a user who has mesh make two."""
    with StandIn(lab) as cluster:
        cluster.write_kubeconfig(home.path)
        home.clusters(MADE)
        yield cluster


def test_pods_are_made_for_a_run_used_again_and_end_themselves(home: Home, empty: StandIn) -> None:
    home.files(hello__txt="hello\n")
    done = home.mesh("run", "gpus", "sh", "-c", "echo $RANK $(cat hello.txt); pwd", within=PATIENT_S)
    assert done.status == 0, done.err
    assert "[0] 0 hello" in done.lines
    assert "/mesh/" in done.out.decode()
    pods = list(empty.objects["pods"].values())
    assert len(pods) == 2
    assert eventually(lambda: all(one["status"]["phase"] == "Succeeded" for one in pods), PATIENT_S)
    listed = home.mesh("clusters")
    assert "held until idle for 2 s" in listed.out.decode()
    done = home.mesh("run", "gpus", "true", within=PATIENT_S)
    assert done.status == 0, done.err
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
    assert empty.objects == {"pods": {}, "configmaps": {}}


def test_down_refuses_during_a_run_and_ends_it_by_force(home: Home, empty: StandIn) -> None:
    up = home.mesh("up", "--for", "1h", "gpus")
    assert up.status == 0, up.err
    assert "its pods stay until" in up.err
    client = home.popen("run", "--grace", "1", "gpus", "sh", "-c", "touch ~/up; sleep 4567")
    assert eventually(lambda: all(host.path("/root/up").exists() for host in list(empty.hosts.values())), PATIENT_S)
    refused = home.mesh("down", "gpus")
    assert refused.status == 75, refused.err
    assert "mesh down --force gpus" in refused.err
    assert home.mesh("down", "--force", "gpus", within=PATIENT_S).status == 0
    client.communicate(timeout=PATIENT_S)
    assert client.returncode == 76
    assert empty.objects == {"pods": {}, "configmaps": {}}


def test_pods_of_another_state_directory_are_named_and_adopted(home: Home, empty: StandIn) -> None:
    home.clusters(MADE.replace("hold: 2s", "hold: 10m"))  # longer than from one command to the next
    assert home.mesh("up", "gpus").status == 0
    home.environ["XDG_STATE_HOME"] = str(home.path / "elsewhere")
    for words in (("run", "gpus", "true"), ("down", "gpus")):
        refused = home.mesh(*words)
        assert refused.status == 75, refused.err
        assert "were made elsewhere" in refused.err
    asked = home.mesh("ssh", "gpus:0", "--", "sh", "-c", "echo $IN_POD")  # as `mesh ps` asks: it changes nothing
    assert asked.out.decode().strip() in empty.objects["pods"], asked.err
    assert home.mesh("up", "--adopt", "gpus").status == 0
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0


def test_a_client_that_is_killed_leaves_no_pod(home: Home, empty: StandIn) -> None:
    home.clusters(MADE.replace("600s", "10s"))
    client = home.popen("run", "gpus", "sh", "-c", "touch ~/up; sleep 4567")
    assert eventually(lambda: len(empty.objects["pods"]) == 2, PATIENT_S)
    empty.is_down = True  # no agent comes, so that 10 s are enough
    client.kill()
    client.communicate()
    empty.is_down = False
    pods = list(empty.objects["pods"].values())
    # 10 s for a client to come; or 30 s for it to come back, and then `hold`.
    assert eventually(lambda: all(one["status"]["phase"] in ("Succeeded", "Failed") for one in pods), PATIENT_S)
    home.clusters(MADE)
    done = home.mesh("run", "gpus", "true", within=PATIENT_S)
    assert done.status == 0, done.err
    assert len(empty.objects["configmaps"]) == 1
