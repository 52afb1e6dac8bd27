"""Faults of a real cluster of Kubernetes in runs of mesh, by hand and as samples in the tests.

``python -m tests.kubecluster.faults kills 50 7``: 50 clients are killed at random moments; 7 is the seed.
``python -m tests.kubecluster.faults restarts 20``: the API server is killed in 20 runs, and started again later.
``python -m tests.kubecluster.faults away``: the API server is away for 120 s, in an attended and in a detached run.
``python -m tests.kubecluster.faults ends``: how long after the end of a pod its run ends, and the verdict.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from mesh.api.podshow import role_text
from tests.conftest import Home
from tests.kubecluster import images
from tests.kubecluster.cluster import ADMIN, NODES, USER, Cluster
from tests.lab import eventually

PATIENT_S = 240.0  # for what takes at most 60 s, on a machine with much to do
SLEEP = "sleep 4567"
LINES = 200
TEXT = (
    f"for i in $(seq {LINES}); do echo line $i; "
    "[ $i = 100 ] && until [ -e /mesh/go ]; do sleep 0.1; done; done; rm /mesh/go"
)
SHELL = "sh -c for i in"  # begins the command line of its processes
HOG = (
    "import os, time\n"
    "while not os.path.exists('/mesh/go'): time.sleep(0.1)\n"
    "open('/mesh/data', 'wb').write(b'x' * (20 << 20))\n"
    "time.sleep(86400)"
)
DELAYS_S = (2.0, 5.0, 10.0, 20.0)  # for which an API server is away
AWAY_S = 120.0
GRACE_S, HOLD_S, START_S = 1, 5, 15
NO_IMAGE = "absent.test/x:1"  # its registry has no address, so that it is pulled again and again
LATEST_S = 6.0  # after the start of a client, at which it is killed
PODS_AT_ONCE = 40
HOGS = "os.path.exists"  # is in the command line of what waits for its file


def made(nodes: int, *more: str, image: str = images.PYTHON, hold: str = "2s", name: str = "gpus") -> str:
    """Return a cluster of pods that mesh makes. nodes: 0 where groups have them; more: lines below ``kubernetes:``"""
    lines = [f"image: {image}", *[f"nodes: {nodes}"] * bool(nodes), f"hold: {hold}", "start_timeout: 120s", *more]
    return f"{name}:\n  kubernetes:\n" + "".join(f"    {line}\n" for line in lines)


def roots(kube: Cluster) -> list[str]:
    """Return the names of the roots that are there."""
    return [one["metadata"]["name"] for one in kube.listed("configmaps")]


def advertise(kube: Cluster, resource: str) -> None:
    """Have each node show one unit of a resource, as a plug-in of devices would."""
    patch = [{"op": "add", "path": f"/status/capacity/{resource.replace('/', '~1')}", "value": "1"}]
    for node in NODES:
        kube.ask("PATCH", f"/api/v1/nodes/{node}/status", patch, kind="application/json-patch+json")


def still_run(kube: Cluster) -> dict[str, str]:
    """Return the pods that run, or will by themselves."""
    return {
        one["metadata"]["name"]: one["status"].get("phase", "")
        for one in kube.listed("pods")
        if one["status"].get("phase") not in ("Succeeded", "Failed")
        and one["spec"]["containers"][0]["image"] != NO_IMAGE
    }


def let_go(kube: Cluster, text: str = SHELL, path: str = "mesh/go") -> None:
    """Make a file in the containers of processes that wait for it, by default of those of TEXT."""
    for pid in kube.pids(text):
        with contextlib.suppress(OSError):  # a fork of the shell, which has become a program and ended
            Path(f"/proc/{pid}/root/{path}").touch()


def end_pod(kube: Cluster, name: str, verb: str) -> None:
    """Delete a pod, or evict it as a drain does. verb: "DELETE" or "evict", for the two."""
    path = kube.path("pods", name)
    if verb == "DELETE":
        kube.ask("DELETE", path)
    else:
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        kube.ask("POST", f"{path}/eviction", body)


def make_full_pod(kube: Cluster, name: str) -> None:
    """Make a pod that writes more than it may once its file is there, so that its node evicts it."""
    volume = {"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}
    container = {"command": ["python3", "-c", HOG], "volumeMounts": [{"name": "data", "mountPath": "/mesh"}]}
    kube.make_pod(name, {"app": "x"}, restartPolicy="Never", container=container, volumes=[volume])


def make_big_pod(kube: Cluster, name: str) -> None:
    """Make a pod that takes more memory than it may once its file is there."""
    text = HOG.replace("open('/mesh/data', 'wb').write(b'x' * (20 << 20))", "x = [b'x' * n for n in range(10**6)]")
    limits = {"resources": {"limits": {"memory": "96Mi"}}}
    container = {"command": ["sh", "-c", 'mkdir -p /mesh; exec python3 -c "$0"', text], **limits}
    kube.make_pod(name, {"app": "x"}, restartPolicy="Never", container=container)


def wait_until_up(kube: Cluster, count: int, client: subprocess.Popen[bytes], text: str = SLEEP) -> None:
    """Wait until so many processes run in the pods."""

    def is_up() -> bool:
        assert client.poll() is None, client.communicate()
        return len(kube.processes(text)) == count

    assert eventually(is_up, PATIENT_S), kube.phases()


def kill_clients(home: Home, kube: Cluster, moments: dict[str, tuple[float, str]]) -> float:
    """Start clients one after another, and kill each a moment later; return when the last one was.

    moments: by name of the cluster: seconds after its start, and the image of its pods
    """
    home.clusters(
        "".join(
            made(2, name=name, image=image, hold=f"{HOLD_S}s").replace("120s", f"{START_S}s")
            for name, (_, image) in moments.items()
        )
    )
    for name, (moment, _) in moments.items():
        client = home.popen("run", "--grace", str(GRACE_S), name, "sh", "-c", f"exec {SLEEP}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.communicate(timeout=moment)
        client.kill()
        client.communicate()
    return time.monotonic()


def nothing_is_left(home: Home, kube: Cluster, killed_at: float) -> float:
    """Wait until no pod runs, and none is there after another command; return the seconds that the first took."""
    assert eventually(lambda: not still_run(kube), PATIENT_S), kube.phases()
    lasted = time.monotonic() - killed_at
    assert kube.processes(SLEEP) == []
    home.clusters(made(1, name="last"))
    done = home.mesh("run", "last", "true", within=PATIENT_S)
    assert done.status == 0, done.err
    assert all("-last-" in name for name in roots(kube)), roots(kube)

    def are_gone() -> bool:
        return all("-last-" in name for name in kube.phases())

    assert eventually(are_gone, PATIENT_S), kube.phases()
    return lasted


def restart_api(home: Home, kube: Cluster, away_s: float, pods: int = 4) -> float:
    """Kill the API server in mid run, start it again later, and check that the run has every line once.

    Return the seconds until the server was ready again.
    """
    client = home.popen("run", "gpus", "sh", "-c", TEXT)
    wait_until_up(kube, pods, client, SHELL)
    kube.kill("kube-apiserver")
    began = time.monotonic()
    try:
        let_go(kube)
        time.sleep(away_s)  # the length of the fault
    finally:
        kube.start_api()
        kube.wait_for_api()
        lasted = time.monotonic() - began
    _, err = client.communicate(timeout=PATIENT_S)
    assert client.returncode == 0, f"not ready for {lasted:.1f} s\n{err.decode()}"
    newest = max((home.path / ".local/state/mesh/runs").iterdir(), key=lambda one: one.stat().st_mtime)
    expected = "".join(f"line {number}\n" for number in range(1, LINES + 1))
    assert [log.read_text() for log in sorted(newest.glob("logs/rank-*.out"))] == [expected] * pods
    return lasted


def _kills(home: Home, kube: Cluster, count: int, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    for first in range(0, count, PODS_AT_ONCE // 2):
        numbers = range(first, min(first + PODS_AT_ONCE // 2, count))
        moments = {
            f"c{number}": (chance.uniform(0.1, LATEST_S), NO_IMAGE if number % 5 == 4 else images.PYTHON)
            for number in numbers
        }
        print("  ".join(f"{name} {moment:.2f} s" for name, (moment, _) in moments.items()), flush=True)
        lasted = nothing_is_left(home, kube, kill_clients(home, kube, moments))
        print(f"{len(moments)} clients: the last pod ended {lasted:.1f} s after the last kill", flush=True)


def _restarts(home: Home, kube: Cluster, count: int) -> None:
    home.clusters(made(4, hold="5m"))
    failed = 0
    for number in range(count):
        away = DELAYS_S[number % len(DELAYS_S)]
        try:
            lasted = restart_api(home, kube, away)
            print(f"run {number}: away for {away:g} s, not ready for {lasted:.1f} s: every line once", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"run {number}: away for {away:g} s: FAILED {error}", flush=True)
    print(f"{count - failed} of {count} runs have every line once")


def _away(home: Home, kube: Cluster) -> None:
    home.clusters(made(2, hold="5m") + made(2, hold="5m", name="others"))
    client = home.popen("run", "gpus", "sh", "-c", f"exec {SLEEP}")
    started = home.mesh("run", "-d", "others", "sh", "-c", TEXT, within=PATIENT_S)
    assert started.status == 0, started.err
    wait_until_up(kube, 2, client)
    kube.kill("kube-apiserver")
    try:
        time.sleep(AWAY_S)
    finally:
        kube.start_api()
        kube.wait_for_api()
    _, err = client.communicate(timeout=PATIENT_S)
    print(f"attended: status {client.returncode}\n{err.decode()}")
    print(f"its processes: {kube.processes(SLEEP)}")
    let_go(kube)
    done = home.mesh("attach", started.out.decode().strip(), within=PATIENT_S)
    print(f"detached: status {done.status}, {len(done.lines)} of {2 * LINES} lines\n{done.err}")


def _ends(home: Home, kube: Cluster) -> None:
    kube.write_kubeconfig(home.path, ADMIN)  # who may read nodes
    ways: dict[str, Callable[[], None]] = {
        "deleted": lambda: end_pod(kube, "w-0", "DELETE"),
        "evicted by the API": lambda: end_pod(kube, "w-1", "evict"),
        "out of memory": lambda: let_go(kube, HOGS),
        "evicted by its node": lambda: let_go(kube, HOGS),
        "kubelet killed": lambda: kube.kill("kubelet", "node-2"),
    }
    for number, (name, end) in enumerate(ways.items()):
        pod = f"w-{number}"  # a node may still end what had a name before
        kube.make_pod(f"other-{number}", {"app": "x"}, NODES[0])
        if name == "out of memory":
            make_big_pod(kube, pod)
        elif name == "evicted by its node":
            make_full_pod(kube, pod)
        else:
            kube.make_pod(pod, {"app": "x"}, NODES[1])
        kube.wait_for_pods("app=x", 2)
        client = home.popen("run", "--grace", "1", "k8s:app=x", "sh", "-c", f"exec {SLEEP}")
        wait_until_up(kube, 2, client)
        began = time.monotonic()
        end()
        _, err = client.communicate(timeout=PATIENT_S)
        lasted = time.monotonic() - began
        print(f"---- {name}: status {client.returncode} after {lasted:.1f} s; left: {kube.processes(SLEEP)}")
        print(err.decode(), flush=True)
        if name == "kubelet killed":
            kube.start_kubelet(2)
            assert eventually(kube.is_ready, PATIENT_S)
        kube.clear()


def main() -> None:
    """Do what the command line names. Raises AssertionError if a promise is broken."""
    kind, numbers = sys.argv[1], [int(one) for one in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as directory, Cluster() as kube:
        home = Home(Path(directory, "home"), Path(directory, "project"))
        home.path.mkdir()
        home.project.mkdir()
        home.environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        home.environ |= {"HOME": str(home.path), "MESH_KEEP": "0"}
        kube.write_kubeconfig(home.path, USER)
        kube.allow(USER, yaml.safe_load(role_text(is_existing=False))["rules"])
        if kind == "kills":
            _kills(home, kube, numbers[0], numbers[1] if len(numbers) > 1 else random.randrange(10**6))
        elif kind == "restarts":
            _restarts(home, kube, numbers[0])
        elif kind == "ends":
            _ends(home, kube)
        else:
            _away(home, kube)


if __name__ == "__main__":
    main()
