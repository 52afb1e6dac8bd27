"""Places for users in Kubernetes: what is read of the file, and what is rendered. No cluster is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mesh.app.modules import preparation_of
from mesh.config.clusters import find_cluster, is_cluster, load_clusters
from mesh.config.kubernetes import Pods
from mesh.config.podspec import MadePods, PodTemplate, Volume
from mesh.config.podusers import PodUsers, read_pod_users
from mesh.config.userspaces import PodHome, pod_home, with_home
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UnknownCluster, UsageError
from mesh.core.run import Kind
from mesh.hosts.kubernetes import userobjects
from mesh.hosts.kubernetes.differing import differences
from mesh.hosts.kubernetes.userobjects import Space
from tests.conftest import REPOSITORY
from tests.kubecluster.fields import dropped
from tests.specs import spec_of as run_spec

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGx4 ana@desk"
FILE = f"""\
users:
  ana: {{cpu: 64, memory: 256Gi, gpus: 8, storage: 500Gi, pods: 40, key: {KEY}}}
  ben: {{cpu: 500m, memory: 1Gi}}
dev: {{image: team/dev:1, cpu: 250m, memory: 512Mi, volume: 100Gi}}
"""
BAD = {
    "users: {}": ":1: dev: is missing",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {}": "dev.image: expected an image",
    "users: {Ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x}": ":1: users.Ana: user 'Ana': expected at most",
    "users: {root: {cpu: 1, memory: 1Gi}}\ndev: {image: x}": ":1: users.root: is an account of the dev pod itself",
    "users: {1000: {cpu: 1, memory: 1Gi}}\ndev: {image: x}": ":1: users.1000: is a number",
    "users: {ana: {memory: 1Gi}}\ndev: {image: x}": "users.ana.cpu: is missing",
    "users: {ana: {cpu: many, memory: 1Gi}}\ndev: {image: x}": ":1: users.ana.cpu: expected a quantity",
    "users: {ana: {cpu: 1, memory: 1Gi, key: /no/such}}\ndev: {image: x}": ":1: users.ana.key: cannot read /no/such",
    "users: {ana: {cpu: 1, memory: 1Gi, disk: 1}}\ndev: {image: x}": ":1: users.ana: unknown key 'disk'",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x, access: Many}": ":2: dev.access: expected ReadWriteOnce",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x, mount: data}": ":2: dev.mount: expected an absolute path",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x, port: 22}": ":2: dev.port: expected a whole number",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x, gang: both}": ":2: dev.gang: expected volcano",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x, server: 'http://a'}": ":2: dev.server: expected an address",
    "users: {ana: {cpu: 1, memory: 1Gi}}\ndev: {image: x, pod: [1]}": ":2: dev.pod: expected fields of a pod spec",
}


def read(tmp_path: Path, text: str = FILE) -> PodUsers:
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    return read_pod_users(file)


def space(tmp_path: Path, text: str = FILE) -> Space:
    found = read(tmp_path, text)
    return Space(user=found.users[0], dev=found.dev)


def objects(found: Space) -> dict[str, dict[str, Any]]:
    return {str(one["kind"]): json.loads(json.dumps(one)) for one in userobjects.objects_of(found)}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_has_the_file_and_the_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape("pods.yaml")) as caught:
        read(tmp_path, text)
    assert BAD[text] in str(caught.value)


def test_a_key_is_a_text_or_a_file_beside_the_users_and_never_a_private_one(tmp_path: Path) -> None:
    assert read(tmp_path).users[0].keys == (KEY,)
    (tmp_path / "ana.pub").write_text(f"# at work\n{KEY}\n{KEY}2\n")
    assert read(tmp_path, FILE.replace(f"key: {KEY}", "key: ana.pub")).users[0].keys == (KEY, f"{KEY}2")
    (tmp_path / "ana").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    with pytest.raises(UsageError, match=r"users\.ana\.key: expected a public key") as caught:
        read(tmp_path, FILE.replace(f"key: {KEY}", "key: ana"))
    assert "abc" not in str(caught.value)


def test_the_file_in_the_document_is_right(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs/pods.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "ben.pub").write_text(f"{KEY}\n")
    found = read(tmp_path, text.replace("~/keys/ana.pub", str(tmp_path / "ben.pub")))
    assert [userobjects.too_little(Space(user=user, dev=found.dev)) for user in found.users] == ["", ""]


def test_a_users_rights_are_those_of_a_run_and_change_neither_rights_nor_limits(tmp_path: Path) -> None:
    rules = objects(space(tmp_path))["Role"]["rules"]
    for rule in rules:
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"]
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert {"bind", "escalate", "impersonate"}.isdisjoint(rule["verbs"])
        assert "pods/portforward" not in rule["resources"]
        if {"resourcequotas", "limitranges"} & {*rule["resources"]}:
            assert {*rule["verbs"]} <= {"get", "list"}
    binding = objects(space(tmp_path))["RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "mesh", "namespace": "user-ana"}]
    assert binding["roleRef"]["kind"] == "Role"


def test_a_place_has_its_level_of_pod_security_a_quota_and_a_policy(tmp_path: Path) -> None:
    found = objects(space(tmp_path))
    labels = {"mesh/space": "ana", "pod-security.kubernetes.io/enforce": "baseline"}
    assert found["Namespace"]["metadata"] == {"name": "user-ana", "labels": labels}
    hard = found["ResourceQuota"]["spec"]["hard"]
    assert (hard["requests.cpu"], hard["limits.memory"], hard["pods"]) == ("64", "256Gi", "40")
    assert (hard["requests.nvidia.com/gpu"], hard["requests.storage"]) == ("8", "500Gi")
    assert found["NetworkPolicy"]["spec"]["ingress"] == [{"from": [{"podSelector": {}}]}]
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    second = Space(user=read(tmp_path).users[1], dev=read(tmp_path).dev)
    default = objects(second)["LimitRange"]["spec"]["limits"][0]["default"]
    assert default == {"cpu": "500m", "memory": "1Gi"}  # no more than the quota has
    assert "needs 100Gi of storage" not in userobjects.too_little(second)
    assert userobjects.too_little(space(tmp_path, FILE.replace("250m", "65"))).startswith("ana: the dev pod needs 65")


def test_a_dev_pod_is_unprivileged_and_a_change_of_its_files_starts_it_again(tmp_path: Path) -> None:
    deployment = objects(space(tmp_path))["Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (1000, True)
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "ports" not in spec["containers"][0]
    files = objects(space(tmp_path))["ConfigMap"]["data"]
    assert files["authorized_keys"] == f"{KEY}\n"
    assert "ListenAddress 127.0.0.1" in files["sshd_config"]
    assert "ana:x:1000:1000::/TData:/bin/bash" in files["passwd"]
    other_key = objects(space(tmp_path, FILE.replace("ana@desk", "ana@home")))["Deployment"]
    other_port = objects(space(tmp_path, FILE.replace("image:", "port: 2022, image:")))["Deployment"]
    assert other_key == deployment  # sshd reads the keys at each login
    assert other_port["spec"]["template"]["metadata"] != deployment["spec"]["template"]["metadata"]


def test_only_the_secret_has_the_key_of_the_host(tmp_path: Path) -> None:
    secret = userobjects.host_key_object(space(tmp_path), b"private")
    assert secret["data"] == {"ssh_host_ed25519_key": "cHJpdmF0ZQ=="}
    assert userobjects.path_of(secret) == "/api/v1/namespaces/user-ana/secrets/dev-host-key"
    assert "cHJpdmF0ZQ==" not in json.dumps(userobjects.objects_of(space(tmp_path)))


def test_versions_and_states_that_the_server_writes_are_no_difference() -> None:
    before = {"metadata": {"name": "a", "resourceVersion": "1", "managedFields": [1]}, "status": {"x": 1}, "spec": [1]}
    after = {"metadata": {"name": "a", "resourceVersion": "2", "managedFields": [2]}, "status": {"x": 2}, "spec": [1]}
    assert differences(before, after) == []
    assert differences(before, {**after, "spec": [2]}) == ["spec[0]: 1 -> 2"]


def test_pods_get_the_volume_of_their_user_unless_they_have_one_there() -> None:
    source = MadePods(template=PodTemplate(image="x"))
    home = PodHome("tdata", "/TData")
    (volume,) = with_home(source, home).template.volumes
    assert (volume.kind, volume.value, volume.path) == ("claim", "tdata", "/TData")
    own = MadePods(template=PodTemplate(image="x", volumes=(Volume(kind="nfs", value="s:/e", path="/TData"),)))
    assert with_home(own, home) == own
    assert with_home(source, None) == source
    for text in ("tdata", "tdata:TData", ":/TData", "tdata:/"):
        with pytest.raises(UsageError, match="MESH_TDATA: expected CLAIM:PATH"):
            pod_home({"MESH_TDATA": text})


def test_the_script_of_the_volume_runs_before_prerun_of_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_TDATA", "tdata:/TData")
    spec, setup = run_spec(), "/TData/code/setup.sh"
    source = MadePods(template=PodTemplate(image="x"))
    cluster = Cluster(name="c", hosts=(Host(name="a", address=""),), backend="pods", source=source)
    found, _ = preparation_of(spec, cluster, ())
    assert found.prerun[0].run == f"[ ! -e {setup} ] || (cd /TData/code && exec bash setup.sh)"
    assert found.prerun[0].module == setup
    assert found.prerun[1:] == spec.prerun
    other, _ = preparation_of(run_spec(kind=Kind.SETUP), cluster, ())
    assert other.prerun == run_spec(kind=Kind.SETUP).prerun
    there = Cluster(name="c", hosts=cluster.hosts, backend="pods")  # pods that mesh has not made
    assert preparation_of(spec, there, ())[0].prerun == spec.prerun


def test_a_dev_pod_is_a_cluster_where_there_is_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    file = load_clusters(tmp_path / "cluster.yaml", required=False)
    with pytest.raises(UnknownCluster):
        find_cluster("user-ana", file)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").touch()
    assert is_cluster("user-ana", file)
    assert not is_cluster("user-Ana", file)
    found = find_cluster("user-ana", file)
    assert isinstance(found.source, Pods)
    assert (found.source.namespace, found.source.selector, found.source.container) == (
        "user-ana",
        "mesh/dev=ana",
        "dev",
    )
    (tmp_path / "cluster.yaml").write_text("user-ana: {hosts: [a]}\n")
    assert find_cluster("user-ana", load_clusters(tmp_path / "cluster.yaml", required=True)).hosts[0].name == "a"


def test_fields_that_a_server_drops_are_found() -> None:
    sent = {"a": {"b": "500m", "c": [1, {"d": True}]}, "e": False}
    assert list(dropped(sent, {"a": {"b": "0.5", "c": [1, {"d": True, "more": 1}]}})) == []
    assert list(dropped(sent, {"a": {"b": "1", "c": [1, {}]}})) == [
        "a.b: '500m', found '1'",
        "a.c[1].d: True, found None",
    ]


def test_users_may_make_gangs_only_where_the_file_has_them(tmp_path: Path) -> None:
    groups = {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["create"]}

    def rules(text: str) -> object:
        return next(one for one in userobjects.objects_of(space(tmp_path, text)) if one["kind"] == "Role")["rules"]

    assert groups not in rules(FILE)  # type: ignore[operator]
    assert groups in rules(FILE.replace("volume: 100Gi", "volume: 100Gi, gang: volcano"))  # type: ignore[operator]


def test_users_may_apply_declared_jobs_only_where_the_file_has_it(tmp_path: Path) -> None:
    def kinds(text: str) -> dict[str, set[str]]:
        role = next(one for one in userobjects.objects_of(space(tmp_path, text)) if one["kind"] == "Role")
        rules: Any = role["rules"]
        return {name: {*rule["verbs"]} for rule in rules for name in rule["resources"]}

    assert {"services", "jobs", "jobsets"}.isdisjoint(kinds(FILE))
    found = kinds(FILE.replace("volume: 100Gi", "volume: 100Gi, jobs: true"))
    for name in ("services", "jobs", "jobsets", "configmaps"):
        assert {"get", "create", "patch", "delete"} <= found[name]
    assert found["resourcequotas"] == {"list"}
