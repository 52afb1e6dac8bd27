"""Runs in pods of a real cluster of Kubernetes: etcd, API server, controllers, scheduler, kubelets, containerd, runc.

The user has the rights of `mesh pods role` alone. On with MESH_TEST_KUBERNETES=1: the first time, the programs of the
cluster are built for some minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mesh.api.podshow import role_text
from tests.conftest import Home
from tests.kubecluster import faults, images
from tests.kubecluster.cluster import NODES, USER, Cluster
from tests.kubecluster.faults import PATIENT_S, SLEEP, made, roots, wait_until_up
from tests.kubecluster.stand_in_volcano import StandInVolcano
from tests.lab import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
STUBBORN = f"trap '' TERM; (exec {SLEEP}) & exec {SLEEP}"  # two processes
GPU = "mesh.test/gpu"
PROGRAM = """
import socket

from mesh.program import Program

if __name__ == "__main__":
    program = Program("hosts", cluster="gpus")
    program.add(socket.gethostname, label="actor", on="actor-[0-1]", per_host=1)
    program.add(socket.gethostname, label="learner", on="learner-0")
    with program.launch() as running:
        print("actors", running.result("actor"), "learner", running.result("learner"))
"""
ROLES = {"actor": "[0-1]", "learner": "0"}


def have_ended(kube: Cluster) -> bool:
    return all(phase in ("Succeeded", "Failed") for phase in kube.phases().values())


def command_lines() -> Iterator[bytes]:
    """Yield the command line of each process of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            yield path.read_bytes()


def end_of(client: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = client.communicate(timeout=PATIENT_S)
    return client.returncode, err.decode()


def test_a_run_in_eight_pods_that_end_themselves(home: Home, kube: Cluster) -> None:
    home.clusters(made(8))
    home.files(hello__txt="hello\n")
    text = "echo $RANK $(cat hello.txt) $(hostname); exit $((RANK == 3 ? 7 : 0))"
    done = home.mesh("run", "gpus", "sh", "-c", text, within=PATIENT_S)
    assert done.status == 7, done.err
    names = {one["metadata"]["labels"]["mesh/index"]: one["metadata"]["name"] for one in kube.listed("pods")}
    assert done.lines == [f"[{rank}] {rank} hello {names[str(rank)]}" for rank in range(8)]
    assert "rank 3 on" in done.err
    assert eventually(lambda: have_ended(kube), PATIENT_S), kube.phases()
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
    assert (kube.phases(), roots(kube)) == ({}, [])


def test_pods_are_used_again_with_an_edit_and_deleted_by_their_root(home: Home, kube: Cluster) -> None:
    home.clusters(made(2, hold="5m"))
    home.files(hello__txt="hello\n")
    assert home.mesh("run", "gpus", "true", within=PATIENT_S).status == 0
    pods = kube.phases()
    home.files(hello__txt="again\n")
    started = home.mesh("run", "-d", "gpus", "sh", "-c", "cat hello.txt; echo $MASTER_ADDR", within=PATIENT_S)
    assert started.status == 0, started.err
    done = home.mesh("attach", started.out.decode().strip(), within=PATIENT_S)
    first = kube.listed("pods", "mesh/index=0")[0]["status"]["podIP"]
    assert done.lines == sorted([f"[{rank}] {line}" for rank in (0, 1) for line in ("again", first)]), done.err
    assert kube.phases() == pods
    done = home.mesh("ssh", "gpus:1", "--", "sh", "-c", "hostname; echo no >&2; exit 5")
    assert (done.status, done.err) == (5, "no\n")
    assert done.out.decode().strip() in pods
    # `kubectl delete configmap` sends the same request. The cluster then deletes what belongs to the ConfigMap.
    kube.ask("DELETE", kube.path("configmaps", roots(kube)[0]))
    assert eventually(lambda: not kube.phases(), PATIENT_S), kube.phases()


def test_groups_of_pods_have_their_own_roles_and_states(home: Home, kube: Cluster) -> None:
    home.clusters(made(0, "env: {KIND: many}", "groups: {actor: {nodes: 2}, learner: {env: {KIND: one}}}", hold="5m"))
    up = home.mesh("up", "gpus", within=PATIENT_S)
    assert up.status == 0, up.err
    actor, learner = (f"{word}@{word}-{hosts}: echo $KIND; exec {SLEEP}" for word, hosts in ROLES.items())
    started = home.mesh("run", "-d", "--role", actor, "--role", learner, "gpus", within=PATIENT_S)
    assert started.status == 0, started.err
    run = started.out.decode().strip()
    assert eventually(lambda: len(kube.processes(SLEEP)) == 3, PATIENT_S)
    (line,) = json.loads(home.mesh("ps", "--json", "gpus", within=PATIENT_S).out)
    assert line["groups"] == {"actor": {"running": 2}, "learner": {"running": 1}}
    shown = home.mesh("pods", "show", "gpus", "learner-0", within=PATIENT_S).out.decode()
    assert "actor: 2 Running\nlearner: 1 Running\n" in shown
    assert home.mesh("stop", run, within=PATIENT_S).status == 0
    logged = sorted(line.split() for line in home.mesh("logs", run).lines)
    assert logged == [["[actor/0]", "many"], ["[actor/1]", "many"], ["[learner/0]", "one"]]
    done = home.mesh("exec", "--hosts", "actor-1,learner-0", "gpus", "hostname", within=PATIENT_S)
    assert done.lines == ["[0] actor-1", "[1] learner-0"], done.err
    assert home.mesh("ssh", "gpus:actor-1", "--", "hostname").out == b"actor-1\n"
    home.files(program__py=PROGRAM)
    program = subprocess.run(
        [sys.executable, "program.py"], cwd=home.project, env=home.environ, capture_output=True, timeout=PATIENT_S
    )
    assert program.returncode == 0, program.stderr.decode()
    assert "actors ['actor-0', 'actor-1'] learner learner-0" in program.stdout.decode()
    found = checked(home, "gpus", 0)
    assert [*found] == ["actor-0", "actor-1", "learner-0"]
    assert found["actor-0"]["admission"] == ("ok", "a pod of each of 2 groups is admitted (dry run)")
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
    assert (kube.phases(), roots(kube)) == ({}, [])


def test_pods_that_are_there_are_chosen_by_label(home: Home, kube: Cluster) -> None:
    for number, node in ((10, "node-1"), (9, "node-2"), (2, "node-1")):
        kube.make_pod(f"w-{number}", {"app": "x"}, node)
    kube.wait_for_pods("app=x", 3)
    done = home.mesh("exec", "k8s:app=x", "hostname")
    assert done.lines == ["[0] w-2", "[1] w-9", "[2] w-10"], done.err
    with home.terminal("ssh", "k8s:app=x:1") as terminal:
        terminal.expect(b"#", PATIENT_S)  # the prompt
        terminal.type(b"test -t 0 && echo a terminal in $(hostname); exit 5\n")
        terminal.expect(b"a terminal in w-9", PATIENT_S)
        assert terminal.end(PATIENT_S) == 5
    client = home.popen("run", "k8s:app=x", "sh", "-c", f"exec {SLEEP}")
    wait_until_up(kube, 3, client)
    client.send_signal(signal.SIGINT)
    assert end_of(client)[0] == 130
    assert kube.processes(SLEEP) == []
    assert set(kube.phases().values()) == {"Running"}


def test_many_pods_share_one_stream_that_may_end(home: Home, kube: Cluster) -> None:
    home.clusters(made(8, "switchboard_from: 8"))
    home.files(hello__txt="hello\n")
    client = home.popen("run", "--grace", "1", "gpus", "sh", "-c", f"cat hello.txt; hostname; exec {SLEEP}")
    wait_until_up(kube, 8, client)
    boards = kube.pids("pods-board")
    assert len(boards) == 1
    names = sorted(kube.phases())
    (secret,) = [one for one in kube.listed("secrets") if one["metadata"]["name"].endswith("-switchboard")]
    assert secret["data"]["key"][-200:] not in str(kube.listed("pods"))
    os.kill(boards[0], signal.SIGKILL)
    assert eventually(lambda: kube.pids("pods-board") not in ([], boards), PATIENT_S)
    assert home.mesh("exec", "gpus", "hostname", within=PATIENT_S).lines == [
        f"[{rank}] {name}" for rank, name in enumerate(names)
    ]
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=PATIENT_S)
    assert client.returncode == 130, err
    assert b"lost contact" not in err
    assert sorted(out.decode().splitlines()) == sorted(
        f"[{rank}] {line}" for rank, name in enumerate(names) for line in ("hello", name)
    )
    assert kube.processes(SLEEP) == []


def test_an_api_server_that_is_killed_and_started_again_ends_no_run(home: Home, kube: Cluster) -> None:
    home.clusters(made(4))
    faults.restart_api(home, kube, away_s=2.0)


@pytest.mark.parametrize("verb", ["DELETE", "evict"])
def test_a_pod_that_is_deleted_or_evicted_is_named_and_ends_the_run(home: Home, kube: Cluster, verb: str) -> None:
    home.clusters(made(3))
    client = home.popen("run", "--grace", "1", "gpus", "sh", "-c", f"exec {SLEEP}")
    wait_until_up(kube, 3, client)
    name = kube.listed("pods", "mesh/index=1")[0]["metadata"]["name"]
    faults.end_pod(kube, name, verb)
    status, err = end_of(client)
    assert status == 76, err
    assert name in err
    assert "the pod was deleted (by kubectl, a controller or a drain)" in err
    # The verdict does not wait for the deleted pod, in which the agent ends its rank by SIGTERM.
    assert eventually(lambda: not kube.processes(SLEEP), PATIENT_S), kube.processes(SLEEP)


def test_a_pod_that_its_node_evicts_is_named_with_the_reason(home: Home, kube: Cluster) -> None:
    faults.make_full_pod(kube, "full")
    kube.make_pod("other", {"app": "x"})
    kube.wait_for_pods("app=x", 2)
    client = home.popen("run", "--grace", "1", "k8s:app=x", "sh", "-c", f"exec {SLEEP}")
    wait_until_up(kube, 2, client)
    faults.let_go(kube, faults.HOGS)
    status, err = end_of(client)
    assert status == 76, err
    assert 'evicted: Usage of EmptyDir volume "data" exceeds the limit "1Mi"' in err
    assert eventually(lambda: not kube.processes(SLEEP), PATIENT_S), kube.processes(SLEEP)


def test_a_container_out_of_memory_is_named(home: Home, kube: Cluster) -> None:
    faults.make_big_pod(kube, "big")
    kube.make_pod("other", {"app": "x"})
    kube.wait_for_pods("app=x", 2)
    client = home.popen("run", "--grace", "1", "k8s:app=x", "sh", "-c", f"exec {SLEEP}")
    wait_until_up(kube, 2, client)
    faults.let_go(kube, faults.HOGS)
    status, err = end_of(client)
    assert status == 76, err
    assert "OOMKilled (limit 96Mi" in err
    assert kube.processes(SLEEP) == []


def test_a_node_whose_kubelet_is_killed_is_named_to_who_may_read_nodes(home: Home, kube: Cluster) -> None:
    kube.write_kubeconfig(home.path, "admin")
    for number, node in enumerate(NODES):
        kube.make_pod(f"w-{number}", {"app": "x"}, node)
    kube.wait_for_pods("app=x", 2)
    client = home.popen("run", "--grace", "1", "k8s:app=x", "sh", "-c", f"exec {SLEEP}")
    wait_until_up(kube, 2, client)
    kube.kill("kubelet", "node-2")
    try:
        status, err = end_of(client)
    finally:
        kube.start_kubelet(2)
    assert status == 76, err
    assert "w-1" in err
    assert "node node-2 is NotReady" in err
    assert eventually(lambda: kube.is_ready(), PATIENT_S)


def test_three_pods_where_two_fit_are_not_started(home: Home, kube: Cluster) -> None:
    faults.advertise(kube, GPU)
    home.clusters(made(3, f"resources: {{{GPU}: 1}}").replace("120s", "10s"))
    done = home.mesh("run", "gpus", "touch", "/mesh/started", within=PATIENT_S)
    assert done.status == 125, done.err
    assert f"Insufficient {GPU}" in done.err
    assert roots(kube) == []
    assert eventually(lambda: not kube.phases(), PATIENT_S), kube.phases()


def test_a_read_only_root_and_a_user_without_a_home(home: Home, kube: Cluster) -> None:
    own = "{name: main, securityContext: {readOnlyRootFilesystem: true}}"
    home.clusters(made(2, f"pod: {{securityContext: {{runAsUser: 123456, runAsGroup: 123456}}, containers: [{own}]}}"))
    home.files(hello__txt="hello\n")
    text = "echo $(id -u) $(cat hello.txt); touch /x 2>/dev/null || echo read-only"
    done = home.mesh("run", "gpus", "sh", "-c", text, within=PATIENT_S)
    assert done.status == 0, done.err
    assert done.lines == sorted(f"[{rank}] {line}" for rank in (0, 1) for line in ("123456 hello", "read-only"))


def test_an_image_without_python_is_refused(home: Home, kube: Cluster) -> None:
    home.clusters(made(3, image=images.PLAIN))
    done = home.mesh("run", "gpus", "true", within=PATIENT_S)
    assert done.status == 125, done.err
    assert f"image {images.PLAIN} has no Python" in done.err
    assert all(one["metadata"].get("deletionTimestamp") for one in kube.listed("pods"))
    kube.make_pod("plain", {"app": "x"}, container={"image": images.PLAIN})
    kube.wait_for_pods("app=x", 1)
    done = home.mesh("exec", "k8s:app=x", "true", within=PATIENT_S)
    assert done.status == 125, done.err
    assert "Python" in done.err


def test_no_secret_stands_in_an_object_an_event_or_a_command_line(home: Home, kube: Cluster) -> None:
    home.clusters(made(2))
    home.environ["TRAINING_KEY"] = secret = "hunter2-hunter2"
    home.files(mesh__yaml="pass: [TRAINING_KEY]\n")
    text = f"test ${{#TRAINING_KEY}} = {len(secret)} && exec {SLEEP}"
    client = home.popen("run", "--grace", "1", "gpus", "sh", "-c", text)
    wait_until_up(kube, 2, client)
    objects = [kube.listed(kind) for kind in ("pods", "configmaps", "events", "secrets", "services")]
    lines = list(command_lines())
    client.send_signal(signal.SIGINT)
    status, err = end_of(client)
    assert status == 130, err
    for value in (secret, kube.tokens["ana"]):
        assert value not in json.dumps(objects)
        assert not any(value.encode() in line for line in lines)


def test_pods_with_a_sidecar_and_the_processes_of_their_node_in_view_end(home: Home, kube: Cluster) -> None:
    sidecar = f"{{name: a-sidecar, image: {images.PYTHON}, command: [sleep, '86400']}}"
    home.clusters(made(2, f"pod: {{hostPID: true, nodeName: node-1, containers: [{sidecar}]}}"))
    assert home.mesh("run", "gpus", "true", within=PATIENT_S).status == 0
    first = kube.phases()

    def have_ended() -> bool:
        states = [one for pod in kube.listed("pods") for one in pod["status"]["containerStatuses"]]
        return all("terminated" in one["state"] for one in states if one["name"] == "main")

    assert eventually(have_ended, PATIENT_S), kube.phases()
    done = home.mesh("run", "gpus", "true", within=PATIENT_S)
    assert done.status == 0, done.err
    assert len(kube.phases().keys() - first.keys()) == 2
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
    assert roots(kube) == []
    assert eventually(lambda: not kube.phases(), PATIENT_S), kube.phases()  # those of the first run as well


def test_clients_killed_at_any_moment_leave_no_process_and_no_pod(home: Home, kube: Cluster) -> None:
    home.clusters(made(8))
    client = home.popen("run", "--grace", "1", "gpus", "sh", "-c", STUBBORN)
    wait_until_up(kube, 16, client)
    client.kill()
    client.communicate()
    moments = {f"c{number}": (moment, images.PYTHON) for number, moment in enumerate((0.6, 1.0, 1.5, 2.0))}
    moments["pulls"] = (3.0, faults.NO_IMAGE)
    faults.nothing_is_left(home, kube, faults.kill_clients(home, kube, moments))


def checked(home: Home, name: str, status: int) -> dict[str, dict[str, tuple[str, str]]]:
    """Return verdict and detail of each finding of a check, by host."""
    done = home.mesh("check", "--json", name, within=PATIENT_S)
    assert done.status == status, done.err
    return {
        report["host"]: {one["name"]: (one["verdict"], one["detail"]) for one in report["checks"]}
        for report in json.loads(done.out)
    }


def test_the_check_makes_no_pod_and_looks_into_those_that_are_there(home: Home, kube: Cluster) -> None:
    home.clusters(made(2, "resources: {memory: 256Mi}", "shm: 512Mi", hold="5m"))
    before = checked(home, "gpus", 0)["gpus"]
    assert [before[name][0] for name in ("api", "rights", "admission", "schedule", "image")] == [
        *("ok", "ok", "ok", "warning", "unknown")
    ]
    assert before["schedule"][1] == "0 of 2 pods are there; nodes may not be read"
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    kube.ask("POST", kube.path("resourcequotas"), quota)
    try:
        assert eventually(lambda: kube.listed("resourcequotas")[0].get("status", {}).get("used"), PATIENT_S)
        found = checked(home, "gpus", 1)["gpus"]
        assert found["schedule"] == ("failed", "quota small: 2 pods need 2 of pods, and 1 of 1 are left")
    finally:
        kube.ask("DELETE", kube.path("resourcequotas", "small"))
    assert (kube.phases(), roots(kube)) == ({}, [])
    up = home.mesh("up", "gpus", within=PATIENT_S)
    assert up.status == 0, up.err
    reports = checked(home, "gpus", 0)
    assert reports.keys() == kube.phases().keys()
    for found in reports.values():
        assert {found[name][0] for name in ("api", "rights", "admission", "schedule", "image", "python3")} == {"ok"}
        assert found["network"][0] == "ok"
        assert found["shm"][0] == "ok"  # servers from 1.22 on make it as big as was asked for
        assert "of the limit, 0.3 GB" in found["memory"][1]
    shown = home.mesh("pods", "show", "gpus", "0", within=PATIENT_S)
    assert "Scheduled: Successfully assigned" in shown.out.decode()
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0


@pytest.fixture
def gang_role(kube: Cluster) -> Iterator[None]:
    """The Role of a user who makes gangs."""
    kube.allow(USER, yaml.safe_load(role_text(gang="volcano"))["rules"])
    yield
    kube.allow(USER, yaml.safe_load(role_text())["rules"])


@pytest.mark.usefixtures("gang_role")
def test_a_gang_is_bound_as_a_whole_or_not_at_all(home: Home, kube: Cluster) -> None:
    faults.advertise(kube, GPU)
    lines = (f"resources: {{{GPU}: 1}}", "gang: volcano")
    with StandInVolcano(kube, GPU) as stand_in:
        home.clusters(made(3, *lines).replace("120s", "10s"))
        done = home.mesh("run", "gpus", "true", within=PATIENT_S)
        assert done.status == 125, done.err
        assert "pod group is not ready, 3 Pending, 3 minAvailable" in done.err
        assert (stand_in.bound, stand_in.members, roots(kube)) == ([], [3], [])
        assert eventually(lambda: not kube.phases(), PATIENT_S), kube.phases()
        home.clusters(made(2, *lines))
        done = home.mesh("run", "gpus", "hostname", within=PATIENT_S)
        assert done.status == 0, done.err
        assert sorted(stand_in.bound) == sorted(kube.phases())
        assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
        assert stand_in.error is None
        assert eventually(lambda: not stand_in.groups(), PATIENT_S), stand_in.groups()  # its owner is gone
