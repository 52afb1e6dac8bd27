"""Groups of pods: what is read of cluster.yaml, what is rendered, and how hosts are called. No cluster is needed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from mesh.api.gathering import Gathering
from mesh.api.podshow import objects_text
from mesh.backends.pods.objects import Pod, Quota
from mesh.cli.reports import _in_groups
from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.podspec import MadePods
from mesh.config.schema import of_clusters
from mesh.config.selectors import select_hosts
from mesh.config.settings import Options
from mesh.config.userspaces import PodHome, with_home
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.hosts.kubernetes import render, room
from mesh.hosts.kubernetes.choice import all_hosts, in_groups
from mesh.hosts.kubernetes.making import progress
from mesh.hosts.kubernetes.render import Made
from mesh.protocol.answers import Owner
from mesh.protocol.replies import Run, Runs

FILE = """\
gpus:
  kubernetes:
    image: team/train:3
    env: {A: "1"}
    shm: 1Gi
    groups:
      actor: {nodes: 2, resources: {cpu: 2}}
      learner: {image: team/learn:1, resources: {nvidia.com/gpu: 8}, env: {B: "2"}, node_selector: {pool: a100}}
"""


def made(tmp_path: Path, text: str = FILE) -> Made:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    source = find_cluster("gpus", load_clusters(file, required=True)).source
    assert isinstance(source, MadePods)
    return Made(cluster="gpus", user="ana", source=source)


def pods_of(found: Made) -> list[Pod]:
    """Return the pods, as the API would write them."""
    return [msgspec.convert(render.pod_object(found, index, "uid"), Pod) for index in range(found.source.nodes)]


def test_each_group_has_its_own_keys_and_those_of_the_cluster(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert found.source.nodes == 3
    specs = [render.pod_object(found, index, "uid")["spec"] for index in range(3)]
    containers = [spec["containers"][0] for spec in specs]  # type: ignore[index]
    assert [one["image"] for one in containers] == ["team/train:3", "team/train:3", "team/learn:1"]
    assert [one["env"] for one in containers] == [*[[{"name": "A", "value": "1"}]] * 2, [{"name": "B", "value": "2"}]]
    assert [one["resources"]["limits"] for one in containers] == [*[{"cpu": "2"}] * 2, {"nvidia.com/gpu": "8"}]
    assert [spec.get("nodeSelector") for spec in specs] == [None, None, {"pool": "a100"}]  # type: ignore[attr-defined]
    assert all("shm" in [volume["name"] for volume in spec["volumes"]] for spec in specs)  # type: ignore[index]


def test_pods_have_names_of_group_and_index_and_hosts_are_called_by_them(tmp_path: Path) -> None:
    pods = pods_of(made(tmp_path))
    prefix = pods[0].name.removesuffix("-actor-0")
    assert prefix.startswith("mesh-gpus-ana-")
    assert [pod.name for pod in pods] == [f"{prefix}-{name}" for name in ("actor-0", "actor-1", "learner-0")]
    assert [(pod.metadata.labels or {})[render.INDEX] for pod in pods] == ["0", "1", "2"]
    assert [render.pod_object(made(tmp_path), 1, "uid")["spec"]["hostname"]] == ["actor-1"]  # type: ignore[index]
    hosts = in_groups(pods, all_hosts(pods))
    assert [(host.name, host.group, host.pod) for host in hosts] == [
        ("actor-0", "actor", pods[0].name),
        ("actor-1", "actor", pods[1].name),
        ("learner-0", "learner", pods[2].name),
    ]
    cluster = Cluster(name="gpus", hosts=hosts)
    assert select_hosts(cluster, Options(hosts="actor-[0-1]")).hosts == hosts[:2]


def test_pods_without_groups_are_called_as_before(tmp_path: Path) -> None:
    found = made(tmp_path, "gpus:\n  kubernetes: {image: x, nodes: 2}\n")
    pods = pods_of(found)
    assert [pod.name.rpartition("-")[2] for pod in pods] == ["0", "1"]
    assert in_groups(pods, all_hosts(pods)) == all_hosts(pods)
    assert "hostname" not in render.pod_object(found, 0, "uid")["spec"]  # type: ignore[operator]


def test_names_stay_apart_and_valid(tmp_path: Path) -> None:
    long = "g" * 40
    text = f"gpus:\n  kubernetes: {{image: x, groups: {{a: {{nodes: 3}}, a-1: {{nodes: 3}}, {long}: {{nodes: 2}}}}}}\n"
    found = made(tmp_path, text)
    hosts = [render.host_labels(found.source, index)[render.HOST] for index in range(8)]
    assert len({*hosts}) == 8
    assert all(len(name) <= 63 for name in hosts)


def test_every_group_mounts_the_volume_of_its_user(tmp_path: Path) -> None:
    source = with_home(made(tmp_path).source, PodHome("tdata", "/TData"))
    assert [[one.path for one in group.template.volumes] for group in source.groups] == [["/TData"]] * 2
    assert with_home(source, PodHome("tdata", "/TData")) == source


def test_a_changed_group_is_another_description(tmp_path: Path) -> None:
    digests = {
        made(tmp_path, text).digest for text in (FILE, FILE.replace("nodes: 2", "nodes: 3"), FILE + "      b: {}\n")
    }
    assert len(digests) == 3


def test_groups_are_rendered_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    text = objects_text("gpus", str(tmp_path / "cluster.yaml"))
    groups = [one["metadata"]["labels"].get("mesh/group") for one in yaml.safe_load_all(text)]
    assert groups == [None, "actor", "actor", "learner"]


BAD = {
    "{groups: {actor: {nodes: 2}}}": "groups.actor: expected image:, in the group or beside groups:",
    "{image: x, groups: {}}": "expected groups of pods by their names, as actor: {nodes: 8}",
    "{image: x, groups: [actor]}": "expected groups of pods by their names, as actor: {nodes: 8}",
    "{image: x, groups: {Actor: {}}}": "expected a name of at most 40 small letters, digits and dashes",
    "{image: x, groups: {actor: {nodes: 0}}}": "groups.actor.nodes: expected a whole number from 1 to 1024",
    "{image: x, groups: {actor: 3}}": "groups.actor: expected a mapping, as {nodes: 8}",
    "{image: x, groups: {actor: {nods: 3}}}": "groups.actor: unknown key",
    "{image: x, groups: {actor: {hold: 1m}}}": "groups.actor: unknown key",
    "{image: x, groups: {actor: {resources: {cpu: many}}}}": "cpu: expected a quantity",
    "{image: x, nodes: 2, groups: {actor: {}}}": "nodes: has no meaning beside groups:",
    "{image: x, groups: {a: {nodes: 1024}, b: {}}}": "expected at most 1024 pods in all, found 1025",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_groups_have_one_message_with_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"cluster\.yaml:2: gpus\.kubernetes") as caught:
        made(tmp_path, f"gpus:\n  kubernetes: {text}\n")
    assert BAD[text] in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_schema_takes_what_the_reader_takes() -> None:
    schema = of_clusters()
    jsonschema.validate(yaml.safe_load(FILE), schema)
    for text in ("{groups: {}}", "{image: x, groups: {Actor: {}}}", "{image: x, groups: {actor: {hold: 1m}}}"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"gpus": {"kubernetes": yaml.safe_load(text)}}, schema)


def test_a_quota_counts_the_pods_of_all_groups(tmp_path: Path) -> None:
    actor, _, learner = pods_of(made(tmp_path))
    hard = {"pods": "2", "requests.cpu": "4", "requests.nvidia.com/gpu": "4"}
    quota = msgspec.convert({"metadata": {"name": "q"}, "status": {"hard": hard}}, Quota)
    assert room.shortages([quota], [(actor, 2), (learner, 1)]) == [
        "quota q: 3 pods need 3 of pods, and 2 of 2 are left",
        "quota q: 3 pods need 8 of requests.nvidia.com/gpu, and 4 of 4 are left",
    ]
    assert room.needs(learner, "limits") == {"nvidia.com/gpu": Decimal(8)}


def test_the_line_about_pods_that_start_counts_each_group() -> None:
    line = progress(3, 1, ["Insufficient cpu"] * 2, "actor 1 of 2, learner 0 of 1")
    assert line == "1 of 3 pods run (actor 1 of 2, learner 0 of 1); 2 wait: Insufficient cpu"


def test_runs_are_listed_with_the_states_of_each_group() -> None:
    gathering = Gathering(lambda lines: None)
    for node, (name, state) in enumerate((("actor-0", "running"), ("actor-1", "ended"), ("learner-0", ""))):
        host = Host(name=name, address="", pod=f"mesh-x-{name}")
        gathering.take(
            host, Runs(runs=[Run(run="r", node=node, about=Owner(), attached=True, ranks=[], state=state)], orphans=[])
        )
    (line,) = gathering.end()
    assert line.groups == {"actor": {"running": 1, "ended": 1}, "learner": {"running": 1}}
    assert line.state == "running"  # until its last host has ended
    assert _in_groups(line) == "actor 1 running, 1 ended; learner 1 running"
