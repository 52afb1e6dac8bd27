"""Declared jobs in a real cluster. On with MESH_TEST_KUBERNETES=1, as test_pods_real.py.

The server, version 1.20, has no Indexed Job, and the cluster no DNS. Plain pods with the same template stand for those
of a Job: their number is a variable, and the first pod's name an entry of hostAliases.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from mesh.api.podshow import role_text
from tests.conftest import Home
from tests.kubecluster.cluster import NAMESPACE, USER, Cluster, Refused
from tests.kubecluster.faults import PATIENT_S, made
from tests.kubecluster.newer import NEWER, lacking
from tests.lab import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
SECRET = "hunter2-hunter2"
GROUPS = {"Job": "/apis/batch/v1", "Role": "/apis/rbac.authorization.k8s.io/v1"}
Object = dict[str, Any]


def objects_of(home: Home, *words: str) -> list[Object]:
    """Return the objects that `mesh pods render` prints."""
    done = home.mesh("pods", "render", *words)
    assert done.status == 0, done.err
    return list(yaml.safe_load_all(done.out.decode()))


def path_of(one: Object) -> str:
    kind = one["kind"]
    return f"{GROUPS.get(kind, '/api/v1')}/namespaces/{NAMESPACE}/{kind.lower()}s"


class Job:
    """The pods of a rendered job, made one by one."""

    def __init__(self, kube: Cluster, objects: list[Object]) -> None:
        self._kube = kube
        for one in objects[:-1]:
            kube.ask("POST", path_of(one), one)
        self._objects, self._template = objects[:-1], objects[-1]["spec"]["template"]

    def start(self, node: int, first: str = "") -> None:
        """Make a pod. first: the address of the first one"""
        spec = json.loads(json.dumps(self._template["spec"]))
        spec["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(node)})
        if first:
            (name,) = [one["value"] for one in spec["containers"][0]["env"] if one["name"] == "MESH_FIRST_POD"]
            spec["hostAliases"] = [{"ip": first, "hostnames": [name]}]
        meta = {**self._template["metadata"], "name": f"job-{node}"}
        self._kube.ask("POST", self._kube.path("pods"), {"metadata": meta, "spec": spec})

    def start_all(self, count: int) -> None:
        """Make all pods, the first one before the others."""
        self.start(0)
        assert eventually(lambda: self.pod(0)["status"].get("podIP"), PATIENT_S), self.pod(0)
        for node in range(1, count):
            self.start(node, self.pod(0)["status"]["podIP"])

    def pod(self, node: int) -> Object:
        found: Object = self._kube.ask("GET", self._kube.path("pods", f"job-{node}"))
        return found

    def ended(self, node: int) -> tuple[int, str]:
        """Wait for the end of a pod; return its status and the message."""
        assert eventually(lambda: self.pod(node)["status"]["phase"] in ("Failed", "Succeeded"), PATIENT_S), self.pod(
            node
        )
        ended: Mapping[str, Any] = self.pod(node)["status"]["containerStatuses"][0]["state"]["terminated"]
        return ended["exitCode"], ended.get("message", "")

    def clear(self) -> None:
        """Delete the objects beside the pods."""
        for one in self._objects:
            self._kube.ask("DELETE", f"{path_of(one)}/{one['metadata']['name']}")


def test_pods_of_a_job_begin_a_run_that_ps_attach_and_stop_find(home: Home, kube: Cluster) -> None:
    home.clusters(made(2, hold="20s"))
    home.environ["TRAINING_KEY"] = SECRET
    home.files(mesh__yaml="secret: [TRAINING_KEY]\n")
    text = "echo $RANK of $WORLD_SIZE ${#TRAINING_KEY}; test $RANK = 1 && exec sleep 4567; exec sleep 4567"
    objects = objects_of(home, "--as", "job", "--name", "nightly", "gpus", "--", "sh", "-c", text)
    job = Job(kube, objects)
    try:
        job.start(0)
        code, message = job.ended(0)
        assert (code, message.strip()) == (125, "there is no Secret mesh-gpus-root-job: mesh pods secret gpus")
        kube.ask("DELETE", kube.path("pods", "job-0"))
        assert eventually(lambda: not kube.phases(), PATIENT_S)
        done = home.mesh("pods", "secret", "gpus")
        assert done.status == 0, done.err
        assert "delete secret" in home.mesh("pods", "secret", "gpus").err
        job.start_all(2)
        assert eventually(lambda: len(kube.processes("sleep 4567")) == 2, PATIENT_S), kube.phases()
        shown = home.mesh("ps", "gpus")
        (run,) = re.findall(r"\d{8}-\d{6}-\w+", shown.out.decode())
        assert "nightly" in shown.out.decode()
        assert SECRET not in json.dumps(
            [objects, kube.listed("pods"), kube.listed("configmaps"), kube.listed("events")]
        )
        assert home.mesh("stop", run, within=PATIENT_S).status == 0
        assert kube.processes("sleep 4567") == []
        done = home.mesh("attach", run, within=PATIENT_S)
        assert done.lines == [f"[{rank}] {rank} of 2 {len(SECRET)}" for rank in (0, 1)], done.err
        assert home.mesh("logs", run).lines == done.lines
        assert [job.ended(node)[0] for node in (0, 1)] == [143, 143]
    finally:
        job.clear()
        with contextlib.suppress(Refused):
            kube.ask("DELETE", kube.path("secrets", "mesh-gpus-root-job"))


def test_a_variable_may_be_unset_where_a_job_is_rendered_but_not_in_its_secret(home: Home, kube: Cluster) -> None:
    home.clusters(made(1))
    done = home.mesh("pods", "secret", "gpus")
    assert done.status == 0, done.err
    home.files(mesh__yaml="secret: [TRAINING_KEY]\n")
    job = Job(
        kube, objects_of(home, "--as", "job", "gpus", "--", "sh", "-c", "test ${#TRAINING_KEY} = " + str(len(SECRET)))
    )
    again = "kubectl delete secret mesh-gpus-root-job && mesh pods secret gpus"
    try:
        job.start(0)
        code, message = job.ended(0)
        assert (code, message.strip()) == (
            125,
            f"the run has not begun: the Secret lacks the variable TRAINING_KEY: {again}",
        )
        kube.ask("DELETE", kube.path("pods", "job-0"))
        assert eventually(lambda: not kube.phases(), PATIENT_S)
        kube.ask("DELETE", kube.path("secrets", "mesh-gpus-root-job"))
        home.environ["TRAINING_KEY"] = SECRET
        assert home.mesh("pods", "secret", "gpus").status == 0
        job.start(0)
        assert job.ended(0) == (0, "")
    finally:
        job.clear()
        with contextlib.suppress(Refused):
            kube.ask("DELETE", kube.path("secrets", "mesh-gpus-root-job"))


def status_of(kube: Cluster, method: str, path: str, body: object = None) -> int:
    """Return the status of the answer to a user's request."""
    kind = "application/merge-patch+json" if method == "PATCH" else ""
    try:
        kube.ask(method, path, body, user=USER, kind=kind)
    except Refused as error:
        return error.status
    return 200


def test_the_role_for_declared_jobs_suffices_to_apply_and_delete_them(home: Home, kube: Cluster) -> None:
    home.clusters(made(1, "source: config_map"))
    home.files(hello__txt="hello\n")
    objects = objects_of(home, "--as", "job", "gpus", "--", "true")
    (service,) = [path_of(one) for one in objects if one["kind"] == "Service"]
    assert status_of(kube, "GET", f"{service}/x") == 403
    kube.allow(USER, yaml.safe_load(role_text(has_jobs=True))["rules"])
    try:
        assert eventually(lambda: status_of(kube, "GET", f"{service}/x") == 404, PATIENT_S)
        for one in objects:
            path = path_of(one)
            assert status_of(kube, "POST", f"{path}?dryRun=All", one) == 200
            place = f"{path}/{one['metadata']['name']}"
            assert [status_of(kube, verb, place, {}) for verb in ("GET", "PATCH", "DELETE")] == [404] * 3, place
        assert status_of(kube, "DELETE", kube.path("secrets", "mesh-gpus-root-job")) == 404
    finally:
        kube.allow(USER, yaml.safe_load(role_text())["rules"])


def test_the_server_keeps_every_field_that_is_rendered(home: Home, kube: Cluster) -> None:
    lines = (
        "resources: {cpu: 1, memory: 1Gi, mesh.test/gpu: 1}",
        "node_selector: {pool: a}",
        "tolerations: [{key: x, operator: Exists, effect: NoSchedule}]",
        "volumes: [{claim: a, path: /a, read_only: true}, {host_path: /b, path: /b}, {empty_dir: 1Gi, path: /c}, "
        "{secret: d, path: /d}, {config_map: e, path: /e}, {nfs: 'f:/f', path: /f}]",
        "shm: 1Gi",
        "image_pull_secrets: [reg]",
        "labels: {team: a}",
        "annotations: {note: b}",
        "env: {A: b}",
        "switchboard_from: 2",
        "gang: volcano",
        "source: {git: https://x/y.git, ref: v1, secret: forge}",
    )
    home.clusters(made(2, *lines))
    home.files(hello__txt="hello\n")
    words = ("gpus", "--", "true")
    rendered = [*objects_of(home, "gpus"), *objects_of(home, "--as", "job", *words)]
    rendered += objects_of(home, "--as", "jobset", *words)
    home.clusters(made(2, "source: config_map"))
    rendered += objects_of(home, "gpus")
    rendered += list(yaml.safe_load_all(home.mesh("pods", "role").out.decode()))
    unserved, newer, kinds = set[str](), set[str](), set[str]()
    for one in rendered:
        kind = one["kind"]
        if kind in ("PodGroup", "JobSet"):
            unserved.add(kind)
            continue
        try:
            got = kube.ask("POST", f"{path_of(one)}?dryRun=All", one)
        except Refused as error:
            raise AssertionError(f"{kind} {one['metadata']['name']}: {error}") from error
        kinds.add(kind)
        newer |= {f"{kind} {path}" for path in lacking(one, got)}
    assert newer == NEWER.keys()
    assert unserved == {"PodGroup", "JobSet"}
    assert kinds == {"ConfigMap", "Pod", "Secret", "Service", "Job", "Role"}
