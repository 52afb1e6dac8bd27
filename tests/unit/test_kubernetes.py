"""Pods: what is read of cluster.yaml, what is rendered, and what their states mean. No cluster is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from mesh.api.podshow import objects_text
from mesh.backends.pods import frames, state
from mesh.backends.pods.frames import BadFrame, Frames
from mesh.backends.pods.objects import Pod
from mesh.config.clusters import find_cluster, is_cluster, load_clusters
from mesh.config.kubernetes import Pods, built_in, built_in_name
from mesh.config.podspec import MadePods
from mesh.config.selectors import Part, parse
from mesh.core.cluster import PodPlace
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.choice import container_of, hosts_of, in_order
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from mesh.hosts.kubernetes.render import Made


def source_of(tmp_path: Path, text: str) -> Pods | MadePods:
    """Read `kubernetes:` of a cluster."""
    file = tmp_path / "cluster.yaml"
    file.write_text(f"gpus:\n  kubernetes: {text}\n")
    source = find_cluster("gpus", load_clusters(file, required=True)).source
    assert isinstance(source, Pods | MadePods)
    return source


def made(tmp_path: Path, text: str = "{image: team/train:3}") -> Made:
    source = source_of(tmp_path, text)
    assert isinstance(source, MadePods)
    return Made(cluster="gpus", user="ana", source=source)


def pod(**fields: object) -> Pod:
    """Return a pod, as the API would write it."""
    return msgspec.convert(fields, Pod)


BAD = {
    "{}": "expected selector: (pods that are there) or image: (pods that mesh makes)",
    "{selector: 'a b;c'}": "expected a selector of labels",
    "{selector: app=x, container: Main}": "expected a name of at most 63 small letters",
    f"{{selector: app=x, namespace: {'n' * 64}}}": "expected a name of at most 63 small letters",
    "{selector: app=x, order: size}": "expected index or name",
    "{selector: app=x, nodes: 3}": "unknown key",
    "{image: x, resources: {cpu: many}}": "cpu: expected a quantity, as 16, 500m or 64Gi, found 'many'",
    "{image: x, nodes: 0}": "expected a whole number from 1 to 1024",
    "{image: x, shm: big}": "expected a quantity",
    "{image: x, volumes: [{claim: data}]}": "expected one of claim, host_path",
    "{image: x, tolerations: all}": "expected a list of mappings",
    "{image: x, gang: yes please}": "expected none or volcano",
    "{image: x, queue: research}": "has no meaning without gang: volcano",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_has_the_file_and_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"cluster\.yaml:2: gpus\.kubernetes") as caught:
        source_of(tmp_path, text)
    assert BAD[text] in str(caught.value)


@pytest.mark.parametrize(
    "key", ["user: me", "gateway: g", "hosts: [a]", "keep: 10", "backend: command", "tpu: {name: a}"]
)
def test_keys_of_other_ways_are_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"gpus:\n  kubernetes: {{selector: app=x}}\n  {key}\n")
    with pytest.raises(UsageError, match="beside"):
        find_cluster("gpus", load_clusters(file, required=True))


@pytest.mark.parametrize("name", ["k8s", "slurm", "job", "tpu", "k8s:app"])
def test_names_of_built_in_clusters_are_reserved(tmp_path: Path, name: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"'{name}':\n  hosts: [a]\n")
    assert "cluster.yaml:2" in load_clusters(file, required=True).problems[name][0]


@pytest.mark.parametrize("name", ["k8s:", "k8s:Team:app=x", "k8s:a;b", "k8s:prod@:app=x", "k8s:prod@app=x"])
def test_selectors_that_are_none(name: str) -> None:
    with pytest.raises(UsageError):
        built_in(name)


@pytest.mark.parametrize("context", ["", "prod", "arn:aws:eks:us-east-1:1:cluster/a,b", "admin@prod"])
def test_pods_that_are_in_no_file_have_a_name_with_their_context(tmp_path: Path, context: str) -> None:
    name, file = built_in_name(context, "team", "mesh/root=u,x"), load_clusters(tmp_path / "none", required=False)
    assert parse(name, lambda text: is_cluster(text, file)) == (Part(cluster=name),)
    (part,) = parse(
        f"{built_in_name(context, 'team', 'app')}:pod-0".replace(",", ""), lambda text: is_cluster(text, file)
    )
    assert part.picks == ("pod-0",)
    source = find_cluster(name, file).source
    assert isinstance(source, Pods)
    assert (source.context, source.namespace, source.selector) == (context, "team", "mesh/root=u,x")


def test_a_pod_has_what_a_restricted_cluster_asks_for(tmp_path: Path) -> None:
    found = render.pod_object(made(tmp_path), 3, "uid-1")
    text = json.dumps(found)
    spec = found["spec"]
    assert isinstance(spec, dict)
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]} == {"/mesh", "/tmp"}
    assert (
        '"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "mesh-gpus-ana", "uid": "uid-1"}]'
        in text
    )
    assert '"mesh/root": "uid-1", "mesh/index": "3"' in text


def test_everything_that_was_asked_for_is_in_the_pod(tmp_path: Path) -> None:
    text = """
    image: x
    resources: {cpu: 16, nvidia.com/gpu: 8}
    node_selector: {pool: a100}
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
    volumes: [{claim: datasets, path: /data, read_only: true}, {nfs: "s:/e", path: /n}]
    shm: 16Gi
    service_account: trainer
    env: {A: "1"}
    pod: {hostNetwork: true, containers: [{name: main, workingDir: /w}]}
"""
    spec = render.pod_object(made(tmp_path, text), 0, "u")["spec"]
    assert isinstance(spec, dict)
    container = spec["containers"][0]
    assert (
        container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": "16", "nvidia.com/gpu": "8"}
    )
    assert container["workingDir"] == "/w"
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert spec["hostNetwork"] is True
    assert spec["automountServiceAccountToken"] is True
    kinds = [next(key for key in volume if key != "name") for volume in spec["volumes"]]
    assert kinds == ["emptyDir", "emptyDir", "emptyDir", "persistentVolumeClaim", "nfs"]


def test_names_are_valid_and_differ(tmp_path: Path) -> None:
    names = [f"{'Übung ' * (number % 9)}{number}" for number in range(1000)]
    found = {render.root_name(name, "Jo Doe") for name in names}
    assert len(found) == 1000
    assert all(len(f"{name}-fffff-1023") <= 63 and name.strip("-") == name and name.isascii() for name in found)


def test_another_description_has_another_digest(tmp_path: Path) -> None:
    assert made(tmp_path).digest == made(tmp_path).digest
    assert made(tmp_path).digest != made(tmp_path, "{image: team/train:4}").digest


def test_pods_by_completion_index_else_by_name() -> None:
    index = "batch.kubernetes.io/job-completion-index"
    jobs = [pod(metadata={"name": name, "annotations": {index: at}}) for name, at in (("a", "10"), ("b", "2"))]
    assert [one.name for one in in_order(jobs, "")] == ["b", "a"]
    assert [one.name for one in in_order(jobs, "name")] == ["a", "b"]


def test_several_containers_need_a_name() -> None:
    several = pod(metadata={"name": "a"}, spec={"containers": [{"name": "main"}, {"name": "proxy"}]})
    with pytest.raises(UsageError, match="several containers"):
        container_of([several], "")
    with pytest.raises(UsageError, match="no container 'x'"):
        container_of([several], "x")
    assert container_of([several], "main") == "main"


def test_a_pod_that_is_not_running_is_named_with_its_reason() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    waiting = pod(metadata={"name": "a"}, status={"phase": "Pending", "conditions": conditions})
    with pytest.raises(MeshError, match=r"1 of 1 pods do not run: a is Pending \(0/3 nodes") as raised:
        hosts_of([waiting], PodPlace(context="prod", namespace="team"), all_run=True)
    assert raised.value.hint == "kubectl describe pod --context prod -n team a"


ENDS = {
    "OOMKilled (limit 64Gi; the kernel ended the whole container)": {
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "64Gi"}}}]},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "main", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}],
        },
    },
    "its time is up (activeDeadlineSeconds)": {"status": {"phase": "Failed", "reason": "DeadlineExceeded"}},
    "preempted by a pod of higher priority": {
        "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
    },
    "the pod was deleted (by kubectl, a controller or a drain)": {"metadata": {"deletionTimestamp": "now"}},
}


@pytest.mark.parametrize("expected", ENDS)
def test_ends_of_pods(expected: str) -> None:
    assert state.end_of(pod(**ENDS[expected])) == expected


def test_an_image_that_is_not_there_is_final_and_a_slow_registry_is_not() -> None:
    def waiting(message: str) -> Pod:
        reason = {"reason": "ErrImagePull", "message": message}
        return pod(status={"containerStatuses": [{"name": "main", "image": "x", "state": {"waiting": reason}}]})

    assert state.waits_for(waiting("manifest unknown"))[1]
    assert not state.waits_for(waiting("i/o timeout"))[1]


@pytest.mark.parametrize("kind", ["waiting", "terminated"])
def test_an_image_without_python_is_named(kind: str) -> None:
    message = 'exec: "python3": executable file not found in $PATH: unknown'
    failed = {"reason": "RunContainerError", "message": message, "exitCode": 128}
    status = {"name": "main", "image": "busybox", "state": {kind: failed}}
    found = pod(status={"phase": "Failed" if kind == "terminated" else "Pending", "containerStatuses": [status]})
    text, is_final = state.waits_for(found)
    assert text.startswith("image busybox has no Python")
    assert is_final


def test_frames_in_any_pieces() -> None:
    data = b"".join(bytes((0x82, 0x7E)) + len(one).to_bytes(2, "big") + one for one in (b"a" * 300, b"b" * 200))
    data += b"\x89\x01p" + b"\x02\x02xy" + b"\x80\x01z"  # a ping, and a message in two parts
    reader = Frames()
    found = [one for place in range(len(data)) for one in reader.feed(data[place : place + 1])]
    assert found == [(2, b"a" * 300), (2, b"b" * 200), (frames.PING, b"p"), (2, b"xyz")]
    with pytest.raises(BadFrame):
        list(Frames().feed(b"\xf2\x01a"))


def test_records_are_those_of_this_state_directory(tmp_path: Path) -> None:
    records = PodsRecords({"XDG_STATE_HOME": str(tmp_path)})
    records.write(PodsRecord(uid="u-1", root="r", cluster="gpus", context="", namespace="n", pods=2, since=1.0))
    assert records.has("u-1")
    assert not records.has("u-2")
    assert [one.cluster for one in records.read()] == ["gpus"]
    records.remove("u-1")
    assert records.read() == []


def test_other_clusters_import_nothing_of_kubernetes() -> None:
    script = "import sys, mesh.api.clusters, mesh.app.carriers, mesh.config.clusters; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = [name for name in out.split() if "kubernetes" in name or "backends" in name or name == "websocket"]
    assert loaded == ["mesh.config.kubernetes"]


def test_the_role_for_pods_that_are_there_makes_and_deletes_nothing() -> None:
    text = json.dumps(render.role_object(is_existing=True))
    assert "delete" not in text
    assert "configmaps" not in text
    own = json.dumps(render.role_object(is_existing=False))
    assert '"resources": ["configmaps"], "verbs": ["get", "list", "create", "delete"]' in own


def test_pods_of_a_gang_are_members_of_its_group(tmp_path: Path) -> None:
    ours = made(tmp_path, "{image: x, nodes: 3, gang: volcano, queue: research}")
    (group,) = render.gang_objects(ours, "u")
    assert group["spec"] == {"minMember": 3, "queue": "research"}
    pods = [render.pod_object(ours, index, "u") for index in range(3)]
    names = {one["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for one in pods}  # type: ignore[index]
    assert names == {group["metadata"]["name"]}  # type: ignore[index]
    assert {one["spec"]["schedulerName"] for one in pods} == {"volcano"}  # type: ignore[index]
    plain = made(tmp_path, "{image: x, nodes: 3, gang: none}")
    assert render.gang_objects(plain, "u") == []
    assert "volcano" not in json.dumps(render.pod_object(plain, 0, "u"))
    roles = [json.dumps(render.role_object(is_existing=False, gang_kind=kind)) for kind in ("", "volcano")]
    assert ["podgroups" in one for one in roles] == [False, True]


def test_objects_are_shown_without_a_server(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("gpus:\n  kubernetes: {image: x, nodes: 3}\nold:\n  kubernetes: {selector: app=x}\n")
    kinds = [one["kind"] for one in yaml.safe_load_all(objects_text("gpus", str(file)))]
    assert kinds == ["ConfigMap", "Pod", "Pod", "Pod"]
    with pytest.raises(UsageError, match="mesh makes no pods"):
        objects_text("old", str(file))
