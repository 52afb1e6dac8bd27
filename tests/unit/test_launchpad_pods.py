"""TLaunch's programs on Kubernetes: which pods their descriptions become. No cluster is needed."""

from __future__ import annotations

from pathlib import Path

import kubernetes.client
import msgspec
import pytest

from mesh import launchpad as lp
from mesh.backends.pods.objects import Pod
from mesh.config.gpushare import GpuShare
from mesh.config.podspec import MadePods, PodGroup, PodTemplate
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.render import Made
from mesh.launchpad import lp_k8s, lp_ssh, podlaunch
from mesh.launchpad.lp_k8s import Config, Container, GitSource, Resource, ResourceRange, Source
from mesh.launchpad.lp_k8s.util import get_namespace
from mesh.launchpad.podlaunch import MADE, _placed, base_of, cluster_of
from mesh.launchpad.podparts import code_of, namespace_of, parts_of, prerun_of, read_command
from mesh.launchpad.runtime.pods import Quantity
from mesh.launchpad.translating import Plan, translate
from tests.conftest import REPOSITORY, Home

IMAGE = Config(Container(image="team/train:3"))
KUBECONFIG = """\
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: team-b}}]
current-context: x
"""

# The names that TLaunch's packages export.
TLAUNCH = {
    lp_ssh: ("PyClassNode", "SSHNode", "stop", "launch", "Program", "TransmitNode", "flags"),
    lp_k8s: (
        *("launch", "stop", "Resource", "ResourceRange", "Config", "Container", "ReverbNode", "CourierNode"),
        *("Source", "GitSource"),
    ),
}

QUANTITIES: list[tuple[str, Quantity, str | None, str | None]] = [
    ("cpu", "4", "4", None),
    ("cpu", 0.5, "0.5", None),
    ("memory", ("1Gi", "2Gi"), "1Gi", "2Gi"),
    ("memory", ("1Gi", None), "1Gi", None),
    ("nvidia_gpu", ("4", "4"), "4", "4"),
    ("nvidia_gpu", 2, "2", "2"),
    ("cpu", ResourceRange(limits="4"), None, "4"),
    ("amd.com/gpu", 8, "8", "8"),
]


@pytest.mark.parametrize(("name", "value", "request_", "limit"), QUANTITIES)
def test_quantities_are_requests_and_limits(
    name: str, value: Quantity, request_: str | None, limit: str | None
) -> None:
    found, key = Resource(**{name: value}), {"nvidia_gpu": "nvidia.com/gpu"}.get(name, name)
    assert (found.requests.get(key), found.limits.get(key)) == (request_, limit)
    assert len(found.requests) + len(found.limits) == (request_ is not None) + (limit is not None)


COMMANDS = {
    ("python3", "-u", "-mtlaunch.lp_k8s.process_entry"): ("", "python3", ()),
    ("python3", "-u", "-mlaunchpad_kubernetes.process_entry", "--n", "a b"): ("", "python3", ("--n", "a b")),
    ("/opt/py/bin/python3.11", "-m", "tlaunch.lp_k8s.process_entry"): ("", "/opt/py/bin/python3.11", ()),
    ("bash", "-c", "pip install x && cd /w\nexec python -m tlaunch.lp_k8s.process_entry"): (
        "pip install x && cd /w",
        "python",
        (),
    ),
    ("/bin/sh", "-ec", "a;b ;  python3 -u -mtlaunch.lp_k8s.process_entry --x=1 "): ("a;b", "python3", ("--x=1",)),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_preparation_interpreter_and_flags(words: tuple[str, ...]) -> None:
    found = read_command("tester", words)
    assert (found.prerun, found.python, found.flags) == COMMANDS[words]


@pytest.mark.parametrize(
    "words",
    [
        ("sleep", "infinity"),
        ("python3", "train.py"),
        ("bash", "-c", "python3 -m tlaunch.lp_k8s.process_entry; echo end"),
        ("bash", "-c", "python3 -m tlaunch.lp_k8s.process_entry | tee log"),
        ("bash", "-c", "yes | python3 -m tlaunch.lp_k8s.process_entry"),
        ("bash", "-c", "false || python3 -m tlaunch.lp_k8s.process_entry"),
        ("bash", "-c", "sleep 9 & python3 -m tlaunch.lp_k8s.process_entry"),
        ("nice", "python3", "-m", "tlaunch.lp_k8s.process_entry"),
        ("python3", "-m", "other.process_entry"),
    ],
)
def test_another_command_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(
        UsageError, match=r"tester: command .*: expected one that ends in tlaunch\.lp_k8s\.process_entry"
    ):
        read_command("tester", words)


def test_each_label_is_a_group_with_what_its_configuration_and_the_cluster_have() -> None:
    like = PodTemplate(image="base:1", requests={"cpu": "1"}, env={"A": "1"}, node_selector={"pool": "x"})
    own = PodGroup(name="learner", template=msgspec.structs.replace(like, image="learn:1", node_selector={}), nodes=9)
    toleration = kubernetes.client.V1Toleration(key="gpu", operator="Exists", toleration_seconds=3)
    text = "pip install x; python3.9 -u -mtlaunch.lp_k8s.process_entry --own"
    container = Container(
        command=["bash", "-c", text], flags=["--n=1"], resources=Resource(nvidia_gpu=2), env={"B": "2"}
    )
    config = Config(container, host_network=True, tolerations=[toleration], node_selector={"pool": "y"})
    base = MadePods(template=like, nodes=9, groups=(own,))
    actor, learner = parts_of({"Actor_1": 2, "learner": 1}, {"Actor_1": config}, base)
    assert actor.hosts == [f"{actor.group.name}-0", f"{actor.group.name}-1"]
    assert actor.group.template.image == "base:1"
    assert actor.group.template.limits == {"nvidia.com/gpu": "2"}
    assert actor.group.template.env == {"A": "1", "B": "2", "LP_GROUP": actor.group.name}
    assert actor.group.template.pod == {
        "hostNetwork": True,
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 3}],
        "nodeSelector": {"pool": "y"},
    }
    assert (actor.prerun, actor.python, actor.flags) == ("pip install x", "python3.9", ("--own", "--n=1"))
    assert (learner.hosts, learner.group.template.image, learner.group.nodes) == (["learner-0"], "learn:1", 1)
    (entry,) = prerun_of([actor, learner])
    assert "pip install x" in entry
    assert entry.startswith(f'if [ "$LP_GROUP" = {actor.group.name} ]')


REFUSED = {
    "lerner": (Config(), "the program has no label 'lerner'; the nearest is 'learner'"),
    "learner": (Config(), "learner: no image is named"),
    "actor": (Config(IMAGE.container, restart_policy="Always"), "restart_policy= has no meaning"),
}


@pytest.mark.parametrize("label", REFUSED)
def test_what_mesh_does_not_have_is_refused(label: str) -> None:
    config, message = REFUSED[label]
    with pytest.raises(UsageError) as caught:
        parts_of({"actor": 1, "learner": 1}, {"actor": IMAGE, label: config}, None)
    assert message in str(caught.value)


def test_a_program_without_nodes_is_refused_before_any_pod_is_made(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home.path))
    monkeypatch.chdir(home.project)
    for configs in ({}, {"actor": Config()}):
        with pytest.raises(UsageError, match="empty: the program has no nodes"):
            lp_k8s.launch(lp.Program("empty"), group_config=configs)


def test_a_resource_that_kubernetes_does_not_have_is_refused() -> None:
    config = Config(Container(image="x", resources=Resource(nvidia_gpu=2, nvidia_gpus=4000)))
    with pytest.raises(UsageError, match="nvidia_gpus is no resource of Kubernetes"):
        parts_of({"tester": 1}, {"tester": config}, None)


def test_parts_of_gpus_are_the_resources_that_the_project_names() -> None:
    config = Config(Container(image="x", resources=Resource(nvidia_gpu=2, nvidia_gpu_memory=4000)))
    with pytest.raises(UsageError, match="no resource is named for nvidia_gpu_memory"):
        parts_of({"tester": 1}, {"tester": config}, None)
    (part,) = parts_of({"tester": 1}, {"tester": config}, None, GpuShare(memory="nvidia.com/gpumem"))
    assert part.group.template.limits == {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}


def test_a_namespace_is_that_of_the_launch_or_the_only_one_of_its_configurations() -> None:
    configs = {"a": Config(namespace="one"), "b": Config(Container(namespace="two"))}
    assert namespace_of("three", configs) == "three"
    assert namespace_of(None, {"a": configs["a"], "c": Config()}) == "one"
    assert namespace_of(None, {}) == ""
    with pytest.raises(UsageError, match=r"several namespaces \(one, two\)"):
        namespace_of(None, configs)


def test_every_launch_has_a_cluster_of_its_own_whose_hosts_are_its_nodes() -> None:
    program, handles = lp.Program("Consumer_Producers of a very long name"), []
    with program.group("producer"):
        handles = [program.add_node(lp_k8s.CourierNode(dict)) for _ in range(2)]
    program.add_node(lp_k8s.CourierNode(dict, handles), label="consumer")
    counts = {label: len(nodes) for label, nodes in program.groups.items()}
    parts = parts_of(counts, {"producer": IMAGE, "consumer": IMAGE}, None)
    first, second = (cluster_of(program.name, parts, Cluster(name="", hosts=(), source=MADE)) for _ in range(2))
    assert first.name != second.name
    assert isinstance(first.source, MadePods)
    made = Made(cluster=first.name, user="ana", source=first.source)
    pods = [msgspec.convert(render.pod_object(made, index, "uid"), Pod) for index in range(3)]
    assert all(pod.name.startswith(f"mesh-{first.name}-ana-") for pod in pods)
    assert all(len(pod.name) <= 63 for pod in pods)
    hosts = [host for part in parts for host in part.hosts]
    for part in parts:
        for node, host in zip(program.groups[part.label], part.hosts, strict=True):
            node.host = host
    plan = Plan(cluster=first, hosts=tuple(hosts), names={name: name for name in hosts}, flags={"consumer": ("--n=3",)})
    found = translate(program, plan)
    assert [(node.wish.label, node.wish.hosts) for node in found.nodes] == [
        ("producer", ("producer-0", "producer-1")),
        ("consumer", ("consumer-0",)),
    ]
    assert [part.argv for node in found.nodes for part in node.args[0]] == [(), (), ("--n=3",)]  # type: ignore[attr-defined]


def test_a_cluster_of_the_file_has_what_a_launch_does_not_name(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.clusters("pod:\n  hosts: [a]\ngpus:\n  kubernetes: {image: base:1, hold: 5m}\n  python: python3.9\n")
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home.project)
    monkeypatch.delenv("MESH_CLUSTER", raising=False)
    assert base_of("").source == MADE
    found = cluster_of("x", parts_of({"a": 1}, {}, base_of("gpus").source), base_of("gpus"))  # type: ignore[arg-type]
    assert isinstance(found.source, MadePods)
    assert (found.python, found.source.hold, found.source.groups[0].template.image) == ("python3.9", 60.0, "base:1")
    with pytest.raises(UsageError, match="pod: mesh makes no pods for it"):
        base_of("pod")


def test_a_source_of_git_is_that_of_all_pods_and_has_no_password() -> None:
    code = code_of(GitSource("https://h/r", ref="v1", secret="forge"))
    source = _placed(Cluster(name="", hosts=(), source=MADE), "team", code)
    parts = parts_of({"a": 1, "b": 2}, {"a": IMAGE, "b": IMAGE}, source)
    found = cluster_of("x", parts, Cluster(name="", hosts=(), source=source)).source
    assert isinstance(found, MadePods)
    assert found.namespace == "team"
    assert {found.template.source, *(group.template.source for group in found.groups)} == {code}
    assert (code_of(None), code_of(Source())) == (None, None)
    with pytest.raises(UsageError, match="put them into a Secret"):
        podlaunch.launch(lp.Program("x"), source=GitSource("https://h/r", "me", "secret"))


def test_the_namespace_is_that_of_the_current_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert get_namespace() == "team-b"


def test_every_name_of_tlaunch_is_there_and_on_the_page() -> None:
    page = (REPOSITORY / "docs/from-tlaunch.md").read_text()
    rows = "\n".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| "))
    for module, names in TLAUNCH.items():
        for name in names:
            assert getattr(module, name) is not None
            assert f"`{name}" in rows, name
    for name in lp_k8s.__all__:
        assert getattr(lp_k8s, name) is not None
