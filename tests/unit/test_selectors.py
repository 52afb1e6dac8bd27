"""Selectors: the hosts that a word in the place of a cluster names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.api import down, up
from mesh.api.choosing import choose_cluster, clusters_named
from mesh.api.detached import _cluster_of
from mesh.config.clusters import ClusterFile, find_cluster, is_cluster
from mesh.config.selectors import Part, parse
from mesh.config.settings import Options
from mesh.core.cluster import Cluster, Source
from mesh.core.errors import UsageError
from mesh.core.events import PrepareFailed
from mesh.core.outcome import Cause, Outcome
from mesh.hosts import sources
from mesh.hosts.interfaces import Purpose
from mesh.protocol.replies import Plan

FILE = """\
pod:
  user: me
  hosts: ["tpu-[0-7]"]
other: {hosts: [a, b], user: you}
"my:odd,name": {hosts: [o0, o1]}
"7": {hosts: [seven]}
far: {hosts: [f], python: /opt/python}
gate: {hosts: [g], gateway: bastion}
twins: {hosts: ["box:22", "box:23"]}
twin: {hosts: ["box:24"]}
third: {hosts: ["box:25"]}
again: {hosts: [tpu-3]}
sliced: {slices: [{hosts: [s0, s1]}, {hosts: [s2, s3]}]}
bad: {hosts: [], user: 7}
kept: {hosts: [k], keep: 60}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("MESH_KEEP", raising=False)
    (tmp_path / "cluster.yaml").write_text(FILE)
    return str(tmp_path / "cluster.yaml")


def hosts(path: str, selector: str, options: Options | None = None) -> list[str]:
    return [host.name for host in choose_cluster(selector, options or Options(), path).hosts]


SELECTED = {
    "pod": [f"tpu-{n}" for n in range(8)],
    "pod:3": ["tpu-3"],
    "pod:0-3": ["tpu-0", "tpu-1", "tpu-2", "tpu-3"],
    "pod:0-1,5": ["tpu-0", "tpu-1", "tpu-5"],
    "pod:5,0-1": ["tpu-5", "tpu-0", "tpu-1"],
    "pod:tpu-7": ["tpu-7"],
    "pod:tpu-7,2": ["tpu-7", "tpu-2"],
    "pod:tpu-[1-3]": ["tpu-1", "tpu-2", "tpu-3"],
    "pod:tpu-[1,3],5": ["tpu-1", "tpu-3", "tpu-5"],
    "twins:1,twin": ["box:23", "box"],
    "twin,third": ["box:24", "box:25"],
    "my:odd,name": ["o0", "o1"],
    "7": ["seven"],
    "local": ["local-0", "local-1"],
    "local:4": ["local-0", "local-1", "local-2", "local-3"],
    "local:4:2": ["local-2"],
    "local:4:2,3": ["local-2", "local-3"],
    "local:4:local-1": ["local-1"],
    "@h1": ["h1"],
    "@h1,me@h2:2222,[::1]:22,n[08-09]": ["h1", "h2", "::1", "n08", "n09"],
    "@h:1,h:2": ["h:1", "h:2"],
    "sliced:2,0,1": ["s2", "s0", "s1"],
}


@pytest.mark.parametrize("selector", SELECTED)
def test_a_selector_names_hosts_in_its_order(path: str, selector: str) -> None:
    found = choose_cluster(selector, Options(), path)
    assert ([host.name for host in found.hosts], found.name) == (SELECTED[selector], selector)


def test_hosts_of_several_clusters_are_one_cluster(path: str) -> None:
    joined = choose_cluster("other:1,pod:0,@x@h:2222,h2", Options(), path)
    assert [(host.user, host.name, host.port) for host in joined.hosts] == [
        ("you", "b", 0),
        ("me", "tpu-0", 0),
        ("x", "h", 2222),
        ("", "h2", 0),
    ]
    assert choose_cluster("sliced:0,sliced:2,3", Options(), path).slices == (1, 2)
    assert choose_cluster("other,kept", Options(), path).keep == 0


def test_options_pick_from_what_a_selector_names(path: str) -> None:
    assert hosts(path, "pod:4-7,other:0", Options(hosts="tpu-[5-6],a", exclude="1")) == ["tpu-6", "a"]


REFUSED = {
    "pod:8": "pod:8: no host 8 in pod: its hosts are 0-7",
    "pod:0,8": "pod:0,8: no host 8 in pod: its hosts are 0-7",
    "pod:3-1": "pod:3-1: the range 3-1 goes backwards",
    "pod:tpu-8": "pod:tpu-8: no host 'tpu-8' in pod; did you mean",
    "pod:": "pod:: no host '' in pod",
    "pod:0,0": "pod:0,0: host tpu-0 is named twice",
    "pod,3": "pod,3: host tpu-3 is named twice",
    "pod,again": "pod,again: host tpu-3 is named twice",
    "local:2,local:3": "local:2,local:3: host local-0 is named twice",
    "@h,h": "@h,h: host h is named twice",
    "pod,far": "pod,far: pod and far cannot be one cluster: python is python3 in pod and /opt/python in far",
    "pod,gate": "pod,gate: pod and gate cannot be one cluster: gateway is not set in pod and bastion in gate",
    "gate,@h": "gate,@h: gate and @h cannot be one cluster: gateway is bastion in gate and not set in @h",
    "pod,local": "pod,local: pod and local cannot be one cluster: backend is ssh in pod and local in local",
    "pod,sliced": "pod,sliced: pod and sliced cannot be one cluster: only sliced has slices",
    "sliced:0,2,1": "sliced:0,2,1: name the hosts of a slice of sliced side by side",
    "pod,,other": "'pod,,other': expected a cluster or host on both sides of a comma",
    "pod,": "'pod,': expected a cluster or host on both sides of a comma",
    "@": "@: '' is no host name",
    "@a b": "@a b: 'a b' is no host name",
    "pot": "no cluster 'pot' in",
    "pod:0,pot:1": "no cluster 'pot:1' in",
    "local:0": "'local:0': expected local:N with N from 1 to 64",
    "local:x": "local:x: no host 'x' in local",
    "tpu:Pod": "tpu:Pod: expected the name of a TPU",
    "": "no cluster was named",
}


@pytest.mark.parametrize("selector", REFUSED)
def test_a_selector_that_names_no_hosts_is_refused(path: str, selector: str) -> None:
    with pytest.raises(UsageError) as raised:
        hosts(path, selector)
    assert str(raised.value).startswith(REFUSED[selector])


def test_a_bad_cluster_is_named(path: str) -> None:
    with pytest.raises(UsageError, match=r"bad\.user"):
        hosts(path, "other,bad:0")


@pytest.mark.parametrize("name", ["tpu:pod", "tpu:lab/us-central2-b/pod", "tpu:example.com:lab/us-central2-b/pod"])
def test_colons_of_a_built_in_tpu_belong_to_its_name(name: str) -> None:
    file = ClusterFile(path=Path("/nowhere"))
    assert parse(f"{name}:3,5", lambda word: is_cluster(word, file)) == (Part(cluster=name, picks=("3", "5")),)
    assert parse(name, lambda word: is_cluster(word, file)) == (Part(cluster=name),)
    assert find_cluster(name, file).source is not None


def test_the_clusters_of_a_word(path: str) -> None:
    file = ClusterFile(path=Path(path), clusters=dict.fromkeys(("pod", "other"), Cluster(name="", hosts=())))
    assert clusters_named("pod:0,other:1,pod:2", file) == ("pod", "other")
    assert clusters_named("@h1,h2", file) == ("@h1,h2",)
    for word in ("20261123-1", "pot", "pod:0,pot", "pod,"):
        assert clusters_named(word, file) == ()


# ---- any words

NAMES = st.text(st.sampled_from("ab1:,@-[]"), min_size=1, max_size=4)
INDICES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda two: f"{min(two)}-{max(two)}") | st.integers(
    0, 99
).map(str)


@given(text=st.text(st.sampled_from("ab1:,@-[]"), max_size=12), names=st.sets(NAMES, max_size=4))
def test_any_text_is_read_or_refused(text: str, names: set[str]) -> None:
    try:
        parts = parse(text, names.__contains__)
    except UsageError:
        assert text not in names
        return
    assert parts
    assert all(bool(part.cluster) != bool(part.hosts) for part in parts)


@given(names=st.sets(NAMES, min_size=1, max_size=4), data=st.data())
def test_a_name_that_matches_exactly_is_that_cluster(names: set[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(names)))
    assert parse(name, names.__contains__) == (Part(cluster=name),)


@given(
    parts=st.lists(st.tuples(st.sampled_from(["a", "b", "local:4"]), st.lists(INDICES, max_size=3)), min_size=1),
    listed=st.lists(st.sampled_from(["h1", "me@h2:22", "[::1]:22", "n[1,3]"]), max_size=3),
)
def test_what_is_written_is_what_is_read(parts: list[tuple[str, list[str]]], listed: list[str]) -> None:
    text = ",".join(":".join([name, *([",".join(picks)] if picks else [])]) for name, picks in parts)
    text += ",@" + ",".join(listed) if listed else ""
    expected = tuple(Part(cluster=name, picks=tuple(picks)) for name, picks in parts)
    expected += (Part(hosts=tuple(listed)),) if listed else ()
    assert parse(text, ["a", "b", "local:4"].__contains__) == expected


# ---- sources


class Made(Source, frozen=True, kw_only=True):
    """The description of hosts of a source of this test."""


class Maker:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        return cluster

    def forget(self, cluster: Cluster) -> None:
        self.calls.append(f"forget {cluster.name}")

    def origin(self, cluster: Cluster) -> str:
        return "are made"


def test_hosts_that_cannot_be_made(path: str) -> None:
    for act in (up, down):
        with pytest.raises(UsageError, match=r"pod: .* are listed in cluster.yaml"):
            act("pod", path)
        with pytest.raises(UsageError, match=r"tpu:x: .* are those of TPU x"):
            act("tpu:x", path)
        with pytest.raises(UsageError, match="no cluster was named"):
            act("", path)


def test_only_the_source_of_a_wrong_host_forgets(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker()
    monkeypatch.setattr(sources, "SOURCES", {**sources.SOURCES, Made: lambda: maker})
    clusters = [choose_cluster(name, Options(), path) for name in ("pod", "other")]
    ours = [Cluster(name=one.name, hosts=one.hosts[:2], source=Made()) for one in clusters]
    joined = Cluster(name="both", hosts=(*ours[0].hosts, *ours[1].hosts), parts=tuple(ours))
    for node, step in ((3, "login"), (0, "sync")):
        failure = PrepareFailed(time=0.0, node=node, step=step, message="", hint="")
        outcome = Outcome(run="r", exit_code=125, cause=Cause.PREPARE, started=0.0, ended=0.0, failures=(failure,))
        sources.forget_wrong_hosts(joined, outcome)
    assert maker.calls == ["forget other"]


# ---- a host cannot name hosts


def test_a_host_cannot_name_hosts_in_no_file(path: str) -> None:
    """A detached run that only hosts have is on a cluster of theirs by name; mesh would connect to its hosts."""
    asked = choose_cluster("pod", Options(), path)
    for reported, hosts, trusted in (
        ("@evil", ["evil"], "pod"),
        ("pod:0,@evil", ["tpu-0"], "pod"),
        ("pod:0-1", ["tpu-0"], "pod:0-1"),
    ):
        plan = Plan(cluster=reported, hosts=hosts, command=["true"], nproc=1)
        assert _cluster_of(plan, asked, path) == trusted
