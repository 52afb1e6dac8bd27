"""TPUs by name: what a name means, which hosts it has, where it is looked for, and what is kept."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.check.workers import Numbers
from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.settings import read_flag
from mesh.config.tpu import TpuName
from mesh.core.cluster import Cluster, Host, place_ranks
from mesh.core.errors import MeshError, UsageError
from mesh.core.findings import Verdict
from mesh.hosts.tpu.answering import all_answer
from mesh.hosts.tpu.cache import Answer, AnswerCache
from mesh.hosts.tpu.gcloud import Zone, zone_of
from mesh.hosts.tpu.nodes import TpuNode, Worker, matching, with_nodes
from mesh.protocol import replies

HERE = Zone(project="lab", zone="us-central2-b")
OUTSIDE = Worker(internal="10.0.0.1", external="34.0.0.1")
INSIDE = Worker(internal="10.0.0.2")


def node(name: str, *workers: Worker, state: str = "READY", os_login: bool = False) -> TpuNode:
    return TpuNode(name=name, state=state, workers=workers or (INSIDE,), os_login=os_login)


# ---- cluster.yaml

WRONG_FILES = {
    "neither name nor prefix": ("tpu: {}", "expected either name: or prefix:"),
    "both": ("tpu: {name: a, prefix: b}", "expected either name: or prefix:"),
    "no mapping": ("tpu: my-tpu", "expected a mapping with name: or prefix:, found 'my-tpu'"),
    "no name of a TPU": ("tpu: {name: My_TPU}", "expected the name of a TPU: lower-case letters"),
    "no zone": ("tpu: {name: a, zone: here}", "expected a zone, as us-central2-b, found 'here'"),
    "no way": ("tpu: {name: a, internal_ip: 3}", "expected auto, true or false, found 3"),
    "an unknown key": ("tpu: {name: a, zon: us-central2-b}", "unknown key 'zon'; did you mean 'zone'?"),
    "hosts as well": ("tpu: {name: a}\n  hosts: [h]", "has hosts: beside it"),
    "two ways": ("tpu: {name: a, iap: true}\n  gateway: g", "has tpu.iap: true beside it"),
}


@pytest.mark.parametrize(("text", "complaint"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_wrong_clusters(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "cluster.yaml").write_text(f"pod:\n  {text}\n")
    file = load_clusters(tmp_path / "cluster.yaml", required=True)
    assert complaint in "\n".join(file.problems["pod"])


def test_a_tpu_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "pod:\n  user: me\n  tpu: {prefix: a, project: lab, zone: us-central2-b, internal_ip: true}\n"
    )
    file = load_clusters(tmp_path / "cluster.yaml", required=True)
    like = Host(name="", address="", user="me")
    tpu = TpuName(name="a", is_prefix=True, project="lab", zone="us-central2-b", internal_ip="true", like=like)
    assert find_cluster("pod", file) == Cluster(name="pod", hosts=(), source=tpu)
    assert find_cluster("tpu:lab/us-central2-b/b", file).source == TpuName(
        name="b", is_prefix=True, project="lab", zone="us-central2-b"
    )
    for name in ("tpu:", "tpu:A", "tpu:lab/b", "tpu:lab/here/b"):
        with pytest.raises(UsageError, match=f"{name}'?: expected"):
            find_cluster(name, file)


def test_true_and_false() -> None:
    assert [read_flag("--F", text) for text in ("", "True", "t", "1", "FALSE", "no")] == [
        *(None, True, True, True),
        *(False, False),
    ]
    with pytest.raises(UsageError, match="--F: expected true or false, found 'maybe'"):
        read_flag("--F", "maybe")


# ---- what a name means

ZONE_OF_MANY = [node(name) for name in ("pod-10", "pod-2", "pod-1", "pod-1-0", "pod-x", "podium-1", "a.b-1", "solo")]
MEANINGS = {
    "a prefix is ordered by number": ("pod", True, ["pod-1", "pod-2", "pod-10"]),
    "an exact name comes first": ("pod-1", True, ["pod-1"]),
    "a name is no prefix": ("solo", False, ["solo"]),
    "a prefix is no pattern": ("a.b", True, ["a.b-1"]),
}


@pytest.mark.parametrize(("name", "is_prefix", "found"), MEANINGS.values(), ids=MEANINGS)
def test_what_a_name_means(name: str, is_prefix: bool, found: list[str]) -> None:
    tpu = TpuName(name=name, is_prefix=is_prefix)
    assert [one.name for one in matching(ZONE_OF_MANY, tpu, HERE)] == found


def test_names_that_mean_nothing_or_too_much() -> None:
    with pytest.raises(MeshError, match="no TPU pods in zone us-central2-b of project lab") as told:
        matching(ZONE_OF_MANY, TpuName(name="pods"), HERE)
    assert "pod-1" in told.value.hint
    with pytest.raises(MeshError, match="no TPU pod or pod-NUMBER") as told:
        matching([], TpuName(name="pod", is_prefix=True), HERE)
    assert "it has no TPU at all" in told.value.hint
    with pytest.raises(MeshError, match="pod-01 and pod-1 are both number 1 of pod"):
        matching([node("pod-1"), node("pod-01")], TpuName(name="pod", is_prefix=True), HERE)


# ---- its hosts

ADDRESSES = {
    "from outside": ("auto", False, OUTSIDE, "34.0.0.1"),
    "from another machine of Google's": ("auto", True, OUTSIDE, "10.0.0.1"),
    "where there is no other": ("auto", False, INSIDE, "10.0.0.2"),
    "as it was chosen": ("true", False, OUTSIDE, "10.0.0.1"),
    "as it was chosen against": ("false", True, OUTSIDE, "34.0.0.1"),
}


def hosts_of(tpu: TpuName, *nodes: TpuNode, is_google: bool = False, key: str = "") -> Cluster:
    return with_nodes(Cluster(name="c", hosts=(), source=tpu), nodes, HERE, key=key, is_google=is_google)


@pytest.mark.parametrize(("internal_ip", "is_google", "worker", "address"), ADDRESSES.values(), ids=ADDRESSES)
def test_addresses(internal_ip: str, is_google: bool, worker: Worker, address: str) -> None:
    found = hosts_of(TpuName(name="a", internal_ip=internal_ip), node("a", worker), is_google=is_google)
    assert [(host.name, host.address, host.internal_ip) for host in found.hosts] == [("a-w0", address, worker.internal)]


def test_hosts_and_slices() -> None:
    like = Host(name="", address="", user="me", port=2222)
    found = hosts_of(TpuName(name="a", like=like), replace(node("a-0", OUTSIDE, INSIDE), id="7"), node("a-1"), key="/k")
    assert [(host.name, host.slice_index, host.user, host.port, host.identity_file) for host in found.hosts] == [
        ("a-0-w0", 0, "me", 2222, "/k"),
        ("a-0-w1", 1, "me", 2222, "/k"),
        ("a-1-w0", 0, "me", 2222, "/k"),
    ]
    assert found.slices == (2, 1)
    assert [host.key_alias for host in found.hosts] == ["tpu.7-0", "tpu.7-1", ""]
    assert "ssh me@a-1 --zone=us-central2-b" in found.hosts[2].hints["login"]
    login = hosts_of(TpuName(name="a"), node("a", os_login=True), key="/k").hosts[0].hints["login"]
    assert "gcloud compute os-login ssh-keys add --key-file=/k.pub" in login
    with pytest.raises(MeshError, match="a has no external address, and internal_ip is false"):
        hosts_of(TpuName(name="a", internal_ip="false"), node("a"))


def test_what_is_not_ready_is_named() -> None:
    nodes = (
        node("a-0"),
        node("a-1", state="CREATING"),
        node("a-2", state="99"),
        TpuNode(name="a-3", state="READY", workers=()),
    )
    with pytest.raises(MeshError) as told:
        hosts_of(TpuName(name="a"), *nodes)
    assert str(told.value).splitlines() == [
        "TPU a-1 is CREATING, not READY",
        "TPU a-2 is 99, not READY",
        "TPU a-3 is READY, but the API lists no address for some of its machines",
    ]
    assert "wait until a-1 is READY" in told.value.hint
    cluster = Cluster(name="c", hosts=(), source=TpuName(name="a"))
    asked = with_nodes(cluster, nodes, HERE, key="", is_google=False, all_ready=False)
    assert [host.name for host in asked.hosts] == ["a-0-w0", "a-1-w0", "a-2-w0"]


# ---- where it is looked for


def test_project_and_zone(tmp_path: Path) -> None:
    configurations = tmp_path / "configurations"
    configurations.mkdir()
    (configurations / "config_default").write_text("[core]\nproject = one\n[compute]\nzone = us-central1-a\n")
    (configurations / "config_work").write_text("[core]\naccount = a%b\nproject = two\n")
    environ = {"CLOUDSDK_CONFIG": str(tmp_path)}
    assert zone_of(TpuName(name="a"), environ) == Zone(project="one", zone="us-central1-a")
    assert zone_of(TpuName(name="a", project="p", zone="z"), environ) == Zone(project="p", zone="z")
    (tmp_path / "active_config").write_text("work\n")
    with pytest.raises(UsageError, match=r"TPU \S+: no zone is set"):
        zone_of(TpuName(name="a"), environ)
    more = {**environ, "CLOUDSDK_COMPUTE_ZONE": "eu", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://h:1/"}
    assert zone_of(TpuName(name="a"), more) == Zone(project="two", zone="eu", endpoint="http://h:1")
    with pytest.raises(UsageError, match=r"TPU \S+: no project is set"):
        zone_of(TpuName(name="a"), {"CLOUDSDK_CONFIG": str(tmp_path / "nowhere")})
    (configurations / "config_work").write_text("no configuration")
    with pytest.raises(UsageError, match="no project is set"):
        zone_of(TpuName(name="a"), environ)


# ---- what is kept


def test_answers_are_kept_and_damage_counts_as_nothing(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path, TpuName(name="a"), HERE)
    answer = Answer(time=5.0, nodes=(node("a", OUTSIDE, INSIDE),))
    assert cache.get() is None
    cache.keep(answer)
    assert cache.get() == answer
    assert AnswerCache(tmp_path, TpuName(name="a", is_prefix=True), HERE).get() is None
    (path,) = (tmp_path / "tpu").iterdir()
    whole = path.read_bytes()
    told = json.loads(whole)
    for damaged in (
        b"",
        b"[]",
        whole[:-9],
        json.dumps({**told, "version": 0}).encode(),
        json.dumps({**told, "nodes": [{"name": "a"}]}).encode(),
        json.dumps({**told, "nodes": [{**told["nodes"][0], "workers": "w"}]}).encode(),
    ):
        path.write_bytes(damaged)
        assert cache.get() is None
    cache.forget()
    cache.forget()
    assert not path.exists()
    (tmp_path / "file").write_text("")
    AnswerCache(tmp_path / "file", TpuName(name="a"), HERE).keep(answer)  # it cannot be: no error


def test_hosts_that_are_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as server:
        address, other = server.getsockname(), silent.getsockname()

        def serve() -> None:
            for words in (b"SSH-2.0-x\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1"):
                taken, _ = server.accept()
                with taken:
                    taken.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        assert all_answer([address, address], 60.0)  # each is tried once
        assert not all_answer([address, other], 0.1)
        assert not all_answer([address], 60.0)  # another kind of server
        thread.join()
    assert not all_answer([address], 60.0)  # nobody is there
    assert not all_answer([("no-address", 22)], 60.0)


# ---- the workers' own numbers


def judged(told: Mapping[int, dict[str, int]], *, picked: tuple[int, ...] = (0, 1, 2)) -> dict[int, Verdict]:
    every = [Host(name=f"w{number}", address=f"10.0.0.{number}", slice_index=number) for number in range(3)]
    placement = place_ranks(tuple(every[number] for number in picked), slices=(len(picked),))
    workers = {host: replies.Worker(**fields) for host, fields in told.items()}
    return {host: findings[0].verdict for host, findings in Numbers(placement).judge(workers).items()}


def test_workers_numbers() -> None:
    right = {host: {"number": host} for host in range(3)}
    assert judged(right) == dict.fromkeys(range(3), Verdict.OK)
    assert judged({0: {"number": 1}, 1: {"number": 2}}, picked=(1, 2)) == dict.fromkeys(range(2), Verdict.OK)
    assert judged({0: {}, 2: {"number": 2}}) == {2: Verdict.OK}  # who does not know contradicts nobody
    wrong = {0: {"number": 0}, 1: {"number": 2}, 2: {"number": 1}}
    assert judged(wrong) == {0: Verdict.FAILED, 1: Verdict.OK, 2: Verdict.OK}
