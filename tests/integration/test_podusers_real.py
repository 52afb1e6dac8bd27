"""Places for users in a real cluster of Kubernetes: made, isolated, worked in, and deleted.

The image of the dev pods is that of other pods, with this machine's programs and this checkout mounted. So its mesh and
its sshd are those of this machine.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh.config.podusers import read_pod_users
from mesh.hosts.kubernetes import userobjects
from mesh.hosts.kubernetes.userobjects import Space
from tests.conftest import REPOSITORY, Done, Home
from tests.kubecluster import images
from tests.kubecluster.cluster import ADMIN, NAMESPACE, NODES, SERVER, Cluster, Refused
from tests.kubecluster.faults import PATIENT_S
from tests.kubecluster.fields import dropped
from tests.lab import eventually, sh

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
USERS = ("ana", "ben")
MESH = """#!/bin/sh
export PYTHONHOME=/opt/python LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH=/opt/site:/opt/mesh
exec /opt/python/bin/{python} -m mesh "$@"
"""
RESOURCES = "resources: {cpu: 50m, memory: 64Mi}"
Object = dict[str, Any]


def users_file(home: Home, directory: Path, image: str = images.PYTHON, *, is_complete: bool = True) -> Path:
    """Write the file of `mesh pods apply`. is_complete: the image has mesh and sshd"""
    (directory / "bin").mkdir(exist_ok=True)
    wrapper = directory / "bin/mesh"
    wrapper.write_text(MESH.format(python=f"python{sys.version_info[0]}.{sys.version_info[1]}"))
    wrapper.chmod(0o755)
    places = {
        "/usr": "/usr",
        "/opt/python": sys.base_prefix,
        "/opt/site": sysconfig.get_path("purelib"),
        "/opt/mesh": str(REPOSITORY),
        "/opt/bin": str(directory / "bin"),
    }
    mounts = [{"name": f"host-{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(places)]
    volumes = [{"name": f"host-{n}", "hostPath": {"path": path}} for n, path in enumerate(places.values())]
    env = [{"name": "PATH", "value": "/opt/bin:/usr/bin:/bin"}]
    pod: Object = {"containers": [{"name": "dev", "env": env}]}
    key = directory / "key"
    if not key.exists():
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    user = {"cpu": "1", "memory": "1Gi", "storage": "1Gi", "pods": 5, "key": f"{key}.pub"}
    dev: Object = {"image": image, "cpu": "50m", "memory": "256Mi", "volume": "1Gi", "start_timeout": "120s"}
    dev["server"] = f"https://{SERVER}:6443"  # this cluster has neither DNS nor a proxy for services
    if is_complete:
        dev["pod"] = {"volumes": volumes, "containers": [{**pod["containers"][0], "volumeMounts": mounts}]}
    file = home.path / "pods.yaml"
    file.write_text(yaml.safe_dump({"users": dict.fromkeys(USERS, user), "dev": dev}))
    return file


@pytest.fixture
def admin(home: Home, kube: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make the test's user an administrator of a cluster with a volume for each user; return the volumes' directory."""
    kube.write_kubeconfig(home.path, ADMIN)
    for user in USERS:
        data = tmp_path / user
        data.mkdir()
        os.chown(data, 1000, 1000)
        spec: Object = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(data)},
            "claimRef": {"namespace": f"user-{user}", "name": "tdata"},
        }
        kube.ask("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"data-{user}"}, "spec": spec})
    yield tmp_path
    at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    for user in USERS:
        for kind in ("apis/apps/v1/namespaces/{}/deployments", "api/v1/namespaces/{}/pods", "api/v1/namespaces/{}"):
            with contextlib.suppress(Refused):
                kube.ask("DELETE", f"/{kind.format(f'user-{user}')}", at_once)
    assert eventually(lambda: not spaces(kube), PATIENT_S), spaces(kube)
    for user in USERS:
        kube.ask("DELETE", f"/api/v1/persistentvolumes/data-{user}")


@pytest.fixture
def volume(home: Home, kube: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make a volume for the pods of the tests' namespace; return its directory."""
    data = tmp_path / "data"
    for part in ("code", "cache", "models"):
        (data / part).mkdir(parents=True)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    spec: Object = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": str(data)}}
    spec["claimRef"] = {"namespace": NAMESPACE, "name": "tdata"}
    kube.ask("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "data"}, "spec": spec})
    kube.ask("POST", kube.path("persistentvolumeclaims"), {"metadata": {"name": "tdata"}, "spec": claim})
    home.environ["MESH_TDATA"] = "tdata:/TData"
    yield data
    kube.clear()  # pods keep a claim
    kube.ask("DELETE", kube.path("persistentvolumeclaims", "tdata"))
    kube.ask("DELETE", "/api/v1/persistentvolumes/data")


PARTS = "--gpu_memory 10000 --gpu_cores 100 --set_save_path"
EXAMPLES = {  # those of TLaunch's documents with other images, and the words that each rank or launcher gets
    f"--gpu 1 {PARTS} basic --num_trainer 2 --set_share_file train.py": (
        "train.py --share_file /TData/cache/mnist-X --save_path /TData/models/mnist --rank {rank} --world_size 2"
    ),
    f"--gpu 4 {PARTS} torchrun --nnodes 2 --nproc_per_node 4 train.py --save-model": (
        "--nnodes=2 --nproc-per-node=4 train.py --save-model --save_path /TData/models/mnist"
    ),
    f"--gpu 4 {PARTS} deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed": (
        "4+4 train.py --deepspeed --save_path /TData/models/mnist"
    ),
}
TRAIN = "import sys\nprint(*sys.argv)\n"
TORCHRUN = """#!/usr/bin/python3
import sys
words = sys.argv[1:]
own = [word.replace("nproc_per", "nproc-per").replace("per_node", "per-node") for word in words if word[:3] == "--n"]
print(*sorted(word for word in own if "rank" not in word), *words[words.index("train.py"):])
"""
DEEPSPEED = """
import base64, json, sys
words = sys.argv[1:]
world = json.loads(base64.urlsafe_b64decode(next(word for word in words if "world" in word).partition("=")[2]))
print("+".join(str(len(slots)) for slots in world.values()), *words[words.index("train.py"):])
"""


def test_the_documented_examples_of_tlaunchrun(home: Home, kube: Cluster, volume: Path) -> None:
    """Programs of the project have the names of the launchers, and print their words."""
    amounts = {"gpu": "4", "gpumem": "20000", "gpucores": "200"}
    places = {f"/status/capacity/mesh.test~1{name}": value for name, value in amounts.items()}
    patch = [{"op": "add", "path": path, "value": value} for path, value in places.items()]
    for node in NODES:
        kube.ask("PATCH", f"/api/v1/nodes/{node}/status", patch, kind="application/json-patch+json")
    share = "gpu_share: {gpu: mesh.test/gpu, memory: mesh.test/gpumem, cores: mesh.test/gpucores}"
    prerun = "prerun: ['export PATH=$PWD/bin:$PATH PYTHONPATH=$PWD']"
    home.files(mesh__yaml=f"{share}\n{prerun}\n", train__py=TRAIN)
    launch, programs = home.project / "deepspeed/launcher", home.project / "bin"
    for place in (launch, programs):
        place.mkdir(parents=True)
    for place in (launch, launch.parent):
        (place / "__init__.py").touch()
    (launch / "launch.py").write_text(DEEPSPEED)
    (programs / "torchrun").write_text(TORCHRUN)
    (programs / "torchrun").chmod(0o755)
    for words, expected in EXAMPLES.items():
        command = ["tlaunchrun", "--lpjob_name", "mnist", "--image", images.PYTHON, *words.split()]
        done = home.mesh(*command, within=PATIENT_S)
        assert done.status == 0, done.err
        there = [one for one in kube.listed("pods") if not one["metadata"].get("deletionTimestamp")]
        limits = [one["spec"]["containers"][0]["resources"]["limits"] for one in there]
        gpus = words.split()[1]
        assert limits == [{"mesh.test/gpu": gpus, "mesh.test/gpumem": "10k", "mesh.test/gpucores": "100"}] * 2
        lines = [re.sub(r"mnist-[0-9a-f]{12} ", "mnist-X ", line.partition("] ")[2]) for line in done.lines]
        assert lines == [expected.format(rank=rank) for rank in (0, 1)], done.lines
    assert (volume / "models/mnist").is_dir()
    assert home.mesh("down", "lpjob-mnist", within=PATIENT_S).status == 0  # which is in no cluster.yaml
    assert kube.phases() == {}


def spaces(kube: Cluster) -> list[str]:
    found = kube.ask("GET", "/api/v1/namespaces?labelSelector=mesh/space")["items"]
    return [one["metadata"]["name"] for one in found]


def versions(kube: Cluster) -> dict[str, str]:
    """Return the version of each object of the users' namespaces that mesh has made."""
    found = {}
    core = ("resourcequotas", "limitranges", "serviceaccounts", "persistentvolumeclaims", "configmaps", "secrets")
    groups = {"/api/v1": core, "/apis/rbac.authorization.k8s.io/v1": ("roles", "rolebindings")}
    groups["/apis/networking.k8s.io/v1"] = ("networkpolicies",)
    groups["/apis/apps/v1"] = ("deployments",)
    for user in USERS:
        for group, kinds in groups.items():
            for kind in kinds:
                path = f"{group}/namespaces/user-{user}/{kind}?labelSelector=mesh/space"
                for one in kube.ask("GET", path)["items"]:
                    meta = one["metadata"]  # the status of a Deployment and of a quota is written now and then
                    is_counted = kind in ("deployments", "resourcequotas")
                    version = json.dumps(one["spec"]) if is_counted else meta["resourceVersion"]
                    found[f"{user} {kind} {meta['name']}"] = version
    return found


def pods_of(kube: Cluster, user: str) -> dict[str, str]:
    found = kube.ask("GET", f"/api/v1/namespaces/user-{user}/pods")["items"]
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}


def in_dev_pod(home: Home, directory: Path, text: str) -> Done:
    """Run a shell text in ana's dev pod by ssh, through `mesh pods proxy`."""
    proxy = f"{sys.executable} -m mesh pods proxy ana"
    options = {"ProxyCommand": proxy, "UserKnownHostsFile": str(directory / "known_hosts"), "BatchMode": "yes"}
    options |= {"StrictHostKeyChecking": "accept-new", "IdentitiesOnly": "yes"}
    words = ["ssh", "-F", "none", "-i", str(directory / "key")]
    words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(
        [*words, "ana@user-ana", text], env=home.environ, capture_output=True, timeout=PATIENT_S, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def test_places_for_users(home: Home, kube: Cluster, admin: Path) -> None:
    """Its steps share the places, whose pods take a while to start and to go."""
    file = users_file(home, admin)
    planned = home.mesh("pods", "apply", "--dry-run", str(file), within=PATIENT_S)
    assert (planned.status, spaces(kube)) == (0, []), planned.err
    check_an_image_that_lacks_programs(home, admin)
    check_that_a_second_apply_changes_nothing(home, kube, file)
    layout = {path.name for path in (admin / "ana").iterdir()}
    assert {"code", "data", "cache", "models"} <= layout
    assert (admin / "ana/code/setup.sh").exists()
    check_that_users_are_apart(home, kube)
    check_work_in_a_dev_pod(home, kube, admin)
    check_removal(home, kube)


def check_an_image_that_lacks_programs(home: Home, directory: Path) -> None:
    """Check that a dev pod whose image has neither mesh nor sshd ends the command with their names."""
    file = users_file(home, directory, is_complete=False)
    done = home.mesh("pods", "apply", str(file), within=PATIENT_S)
    assert done.status == 125, done.err
    assert f"image {images.PYTHON} lacks sshd and mesh" in done.err
    assert "ReadWriteMany" in done.err
    users_file(home, directory)


def check_that_a_second_apply_changes_nothing(home: Home, kube: Cluster, file: Path) -> None:
    """Check it by the versions of all objects, after a first one that mends the image."""
    first = home.mesh("pods", "apply", str(file), within=PATIENT_S)
    assert first.status == 0, first.err
    assert "user-ana: Deployment dev changed" in first.lines
    before, pods = versions(kube), [pods_of(kube, user) for user in USERS]
    assert len(before) == 2 * 10, before
    second = home.mesh("pods", "apply", str(file), within=PATIENT_S)
    assert second.lines == [f"user-{user}: 11 objects unchanged" for user in USERS], second.err
    assert (versions(kube), [pods_of(kube, user) for user in USERS]) == (before, pods)
    check_that_the_server_has_every_field(kube, file)
    listed = home.mesh("pods", "list", within=PATIENT_S)
    assert [line.split()[0] for line in listed.lines] == [*USERS, "user"]  # sorted
    assert all(line.endswith("runs") for line in listed.lines[:2]), listed.lines
    file.write_text(file.read_text().replace("pods: 5", "pods: 6"))
    changed = home.mesh("pods", "apply", "--dry-run", str(file), within=PATIENT_S)
    shown = changed.out.decode().splitlines()
    assert shown[:2] == ["user-ana: ResourceQuota mesh changed", "  spec.hard.pods: 5 -> 6"], changed.err
    assert versions(kube) == before


def check_that_the_server_has_every_field(kube: Cluster, file: Path) -> None:
    """Check that the server drops no field of an object, and that a field of another program is not taken over."""
    found = read_pod_users(file)
    for user in found.users:
        for sent in userobjects.objects_of(Space(user=user, dev=found.dev)):
            path = f"{userobjects.path_of(sent)}?fieldManager=mesh&dryRun=All"
            answer = kube.ask("PATCH", path, sent, kind="application/apply-patch+yaml")
            assert list(dropped(json.loads(json.dumps(sent)), answer)) == []


def check_that_users_are_apart(home: Home, kube: Cluster) -> None:
    """Check that ana's credentials reach ana's pods and no others, change no limits, and end."""
    made = home.mesh("pods", "kubeconfig", "ana", "--for", "20m", within=PATIENT_S)
    assert made.status == 0, made.err
    config = json.loads(made.out)
    end = made.err.rpartition("until ")[2].strip()
    assert 0 < calendar.timegm(time.strptime(end, "%Y-%m-%dT%H:%M:%SZ")) - time.time() <= 20 * 60
    kube.tokens["ana's"] = config["users"][0]["user"]["token"]
    (own,) = pods_of(kube, "ana")
    (other,) = pods_of(kube, "ben")
    assert kube.ask("GET", "/api/v1/namespaces/user-ana/pods", user="ana's")["items"][0]["metadata"]["name"] == own
    binding = {"metadata": {"name": "x"}, "roleRef": {"apiGroup": "", "kind": "ClusterRole", "name": "cluster-admin"}}
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces"
    for method, path, body in (
        ("GET", "/api/v1/namespaces/user-ben/pods", None),
        ("GET", f"/api/v1/namespaces/user-ben/pods/{other}", None),
        ("POST", f"/api/v1/namespaces/user-ben/pods/{other}/exec?command=id&stdout=true", None),
        ("GET", f"/api/v1/namespaces/user-ben/pods/{other}/exec?command=id&stdout=true", None),
        ("DELETE", f"/api/v1/namespaces/user-ben/pods/{other}", None),
        ("GET", "/api/v1/namespaces/user-ana/secrets", None),
        ("DELETE", "/api/v1/namespaces/user-ana/resourcequotas/mesh", None),
        ("DELETE", "/api/v1/namespaces/user-ana", None),
        ("POST", f"{rbac}/user-ana/rolebindings", binding),
        ("DELETE", f"{rbac}/user-ana/roles/mesh", None),
        ("POST", "/api/v1/namespaces/user-ana/pods/x/portforward?ports=2222", None),
    ):
        with pytest.raises(Refused) as caught:
            kube.ask(method, path, body, user="ana's")
        assert caught.value.status == 403, (method, path)
    (home.path / ".kube/config").write_text(made.out.decode())
    done = home.mesh("exec", "user-ana", "id", "-un", within=PATIENT_S)
    assert (done.status, done.lines) == (0, ["[0] ana"]), done.err
    done = home.mesh("exec", "user-ben", "true", within=PATIENT_S)
    assert (done.status, "forbidden" in done.err) == (125, True), done.err
    kube.write_kubeconfig(home.path, ADMIN)


def check_removal(home: Home, kube: Cluster) -> None:
    """Check that a removal asks first, keeps the volume, and deletes that as well only when it is named."""
    before = versions(kube)
    asked = home.mesh("pods", "remove", "ben", within=PATIENT_S)
    assert asked.status == 2, asked.err
    assert "stays: volume tdata (--with-data deletes it)" in asked.lines
    assert any(line.startswith("deployments: dev") for line in asked.lines)
    assert versions(kube) == before
    done = home.mesh("pods", "remove", "--yes", "ben", within=PATIENT_S)
    assert done.status == 0, done.err
    assert set(versions(kube)) == {name for name in before if name.startswith("ana")} | {
        "ben persistentvolumeclaims tdata"
    }
    assert pods_of(kube, "ben") == {}
    assert "removed, its volume is kept" in home.mesh("pods", "list", within=PATIENT_S).out.decode()
    done = home.mesh("pods", "remove", "--yes", "--with-data", "ben", within=PATIENT_S)
    assert (done.status, spaces(kube)) == (0, ["user-ana"]), done.err


def check_work_in_a_dev_pod(home: Home, kube: Cluster, admin: Path) -> None:
    """Check that ana can log in by ssh, and that pods made from there have the volume and run its script first."""
    done = in_dev_pod(home, admin, "id -un; pwd; ls")
    assert done.status == 0, done.err
    assert done.out.decode().split() == ["ana", "/TData", "cache", "code", "data", "models"], done.err
    clusters = f"gpus: {{kubernetes: {{image: {images.PYTHON}, nodes: 2, hold: 60s, {RESOURCES}}}}}"
    text = f"mkdir -p .config/mesh work && echo '{clusters}' >.config/mesh/cluster.yaml && cd work"
    text += " && echo 'echo installed >>/TData/cache/log' >/TData/code/setup.sh"
    text += " && mesh run gpus sh -c 'echo $RANK $(wc -l </TData/cache/log)'"
    done = in_dev_pod(home, admin, text)
    assert done.status == 0, done.err
    assert sorted(done.lines) == ["[0] 0 2", "[1] 1 2"]
    names = [name for name in pods_of(kube, "ana") if name.startswith("mesh-gpus-ana-")]
    assert len(names) == 2, pods_of(kube, "ana")
    text = "cd work && echo 'echo no compiler here; exit 3' >/TData/code/setup.sh && mesh run gpus touch /TData/started"
    done = in_dev_pod(home, admin, text)
    assert done.status == 125, done.err
    assert "no compiler here" in done.err
    assert "/TData/code/setup.sh" in done.err
    assert not (admin / "ana/started").exists()
    shown = home.mesh("ssh", "user-ana", "--", "sh", "-c", "hostname; exit 4")
    assert (shown.status, shown.out) == (4, b"dev\n"), shown.err
