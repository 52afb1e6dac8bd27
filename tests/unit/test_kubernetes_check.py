"""`mesh check` and `mesh pods show` of pods, over the stand-in without machines: its pods wait for ever."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mesh.agent.ask.memory import read_memory
from mesh.api.clusters import down, list_clusters
from mesh.api.inquiries import ps
from mesh.api.podshow import pods_lines
from mesh.backends.pods import state
from mesh.backends.pods.api import Api
from mesh.backends.pods.backend import PodsBackend
from mesh.backends.pods.objects import Node, Pod, PodEvent, Quota
from mesh.check.checkup import Wanted, host, merged
from mesh.cli.program import run
from mesh.config.podspec import MadePods, PodTemplate
from mesh.core.cluster import Host, PodPlace
from mesh.core.errors import HostUnreachable, MeshError
from mesh.core.findings import Verdict, failed, ok, unknown, warning
from mesh.core.statusline import REPEAT_S, StatusLine
from mesh.hosts.kubernetes import render, room
from mesh.hosts.kubernetes.clearing import remove_ended
from mesh.hosts.kubernetes.making import Maker
from mesh.hosts.kubernetes.preflight import rights_of
from mesh.hosts.kubernetes.records import PodsRecords
from mesh.hosts.kubernetes.render import Made
from mesh.hosts.kubernetes.user import user_here
from tests.facts import facts
from tests.kubecluster.alone import stand_in_alone
from tests.kubecluster.stand_in import Refused, StandIn

YAML = """\
gpus:
  kubernetes: {image: x, nodes: 3, start_timeout: 0s}
there:
  kubernetes: {selector: app=x}
gang:
  kubernetes: {image: x, nodes: 3, start_timeout: 0s, gang: volcano}
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    (tmp_path / "cluster.yaml").write_text(YAML)
    with stand_in_alone(tmp_path, monkeypatch) as stand_in:
        yield stand_in


Check = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def check(cluster: StandIn, capfd: pytest.CaptureFixture[str]) -> Check:
    def checked(name: str = "gpus", *, status: int = 0) -> dict[str, dict[str, Any]]:
        assert run(["mesh", "check", "--json", name]) == status
        (report,) = json.loads(capfd.readouterr().out)
        return {one["name"]: one for one in report["checks"]}

    return checked


def refused(cluster: StandIn, what: str, words: str = "no") -> None:
    cluster.refused[what] = Refused(403, words, "Forbidden")


def test_a_check_makes_no_pod_and_names_what_it_could_not_check(check: Check, cluster: StandIn) -> None:
    cluster.lists["nodes"] = [NODE]
    found = check()
    assert [found[name]["verdict"] for name in ("api", "rights", "admission")] == ["ok"] * 3
    assert found["api"]["detail"].startswith("v1.20.2 at http://127.0.0.1")
    assert found["schedule"]["detail"] == "0 of 3 pods are there; 1 of 1 nodes could hold a pod"
    assert found["schedule"]["hint"].startswith("mesh up gpus")
    assert {found[name]["verdict"] for name in ("image", "python3", "shm", "network")} == {"unknown"}
    assert not any(line.startswith(("create pods", "create configmaps")) for line in cluster.requests)
    assert cluster.requests.count("dry-run pods") == 1


@pytest.mark.parametrize("right", [str(one) for one in rights_of(is_existing=False)])
def test_each_right_that_is_missing_is_named_with_the_role(check: Check, cluster: StandIn, right: str) -> None:
    resource, verb = right.split()
    refused(cluster, f"{verb} {resource}")
    is_needed = right not in ("events list", "resourcequotas list", "secrets create", "pods/exec create")
    found = check(status=1 if is_needed else 0)["rights"]
    assert found["verdict"] == ("failed" if is_needed else "warning")
    assert found["detail"].startswith(f"missing in namespace team: {right}")
    assert "mesh pods role > role.yaml\nkubectl apply --context stand-in -n team -f role.yaml" in found["hint"]


def test_a_server_without_the_api_of_a_gang_is_named(
    check: Check, cluster: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    found = check("gang", status=1)
    needs = "the server has no podgroups of scheduling.volcano.sh/v1beta1"
    assert (found["api"]["verdict"], found["api"]["detail"]) == ("failed", f"{needs}, which gang: volcano needs")
    Path("mesh.yaml").touch()  # the home directory is a project then
    assert run(["mesh", "run", "gang", "true"]) == 125
    assert needs in capfd.readouterr().err
    assert cluster.objects == {"pods": {}, "configmaps": {}}
    cluster.answers["/apis/scheduling.volcano.sh/v1beta1"] = {"resources": [{"name": "podgroups"}]}
    refused(cluster, "create podgroups")
    found = check("gang", status=1)
    assert found["api"]["verdict"] == "ok"
    assert found["rights"]["detail"] == "missing in namespace team: podgroups create"
    assert "mesh pods role --gang volcano > role.yaml" in found["rights"]["hint"]


def test_the_words_of_an_admission_and_of_refused_credentials(check: Check, cluster: StandIn) -> None:
    refused(cluster, "dry-run pods", "violates PodSecurity restricted")
    found = check(status=1)
    assert (found["admission"]["verdict"], found["schedule"]["verdict"]) == ("failed", "unknown")
    assert found["admission"]["detail"] == "violates PodSecurity restricted"
    cluster.refused["list /version"] = Refused(401, "Unauthorized")
    assert "the credentials of context stand-in are refused" in check(status=1)["api"]["detail"]
    cluster.is_down = True
    assert "does not answer" in check(status=1)["api"]["detail"]


def test_a_quota_without_room_for_all(check: Check, cluster: StandIn) -> None:
    cluster.lists["resourcequotas"] = [
        {"metadata": {"name": "small"}, "status": {"hard": {"pods": "5"}, "used": {"pods": "3"}}}
    ]
    found = check(status=1)["schedule"]
    assert found["detail"] == "quota small: 3 pods need 3 of pods, and 2 of 5 are left"


def test_a_pod_that_does_not_run_fails_at_its_step(check: Check, cluster: StandIn) -> None:
    pod = cluster.make_pod("w-0", {"app": "x"})
    found = check("there", status=1)
    assert (found["rights"]["verdict"], found["schedule"]["verdict"]) == ("ok", "failed")
    assert found["schedule"]["detail"] == "pod w-0: 0/1 nodes are available: 1 Insufficient cpu."
    pod["spec"]["nodeName"] = "n1"
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling"}
    status = {"name": "main", "image": "x:9", "state": {"waiting": waiting}}
    cluster.change_status("w-0", containerStatuses=[status], conditions=[])
    found = check("there", status=1)
    assert (found["schedule"]["verdict"], found["image"]["verdict"], found["python3"]["verdict"]) == (
        "ok",
        "failed",
        "unknown",
    )
    assert found["image"]["detail"] == "pod w-0: cannot pull x:9: ImagePullBackOff (Back-off pulling)"


def test_a_refused_exec_fails_at_rights(cluster: StandIn, tmp_path: Path) -> None:
    cluster.make_pod("w", {"app": "x"})
    refused(cluster, "get pods/exec", "pods/exec is forbidden")
    backend = PodsBackend(PodPlace(selector="app=x"), {"HOME": str(tmp_path)})
    (opened,) = backend.open([Host(name="w", address="")], ["true"])
    backend.close()
    assert isinstance(opened.result, HostUnreachable)
    assert opened.result.step == "rights"


def test_findings_of_hosts_and_of_their_cluster() -> None:
    before = [ok("api", "v1"), warning("schedule", "few", "hint"), ok("rights", "all")]
    own = [ok("api"), ok("schedule"), failed("network", "a", "h"), failed("network", "b", "h"), unknown("rights")]
    assert merged(before, own) == [
        ok("api", "v1"),
        ok("rights", "all"),
        warning("schedule", "few", "hint"),
        failed("network", "a", "h"),
        failed("network", "b", "h"),
    ]


@pytest.mark.parametrize(
    ("size", "verdict"), [(64 << 20, Verdict.WARNING), (-1, Verdict.WARNING), (1 << 34, Verdict.OK)]
)
def test_shared_memory_of_containers(size: int, verdict: Verdict) -> None:
    answer = facts(shm_total=size, memory_limit=4_000_000_000, memory_free=1_000_000_000, memory_total=4_000_000_000)
    found = {one.name: one for one in host(answer, 0.0, Wanted(env={}, shm_hint="shm: 8Gi"), lambda owner: False)}
    assert found["shm"].verdict is verdict
    assert found["memory"].told == "1.0 GB free of the limit, 4.0 GB"


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path) -> None:
    info, own, group = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "fs/a/b"
    info.write_text("MemTotal: 64000 kB\nMemFree: 9000 kB\nMemAvailable: 32000 kB\n")
    own.write_text("0::/a/b\n")
    group.mkdir(parents=True)
    found = read_memory(str(tmp_path / "fs"), str(own), str(info))
    assert (found.free, found.total, found.limit) == (32000 << 10, 64000 << 10, 0)
    (group.parent / "memory.max").write_text("8192000\n")
    (group.parent / "memory.current").write_text("6144000\n")
    (group.parent / "memory.stat").write_text("anon 1\ninactive_file 2048000\n")
    (group / "memory.max").write_text("max\n")
    found = read_memory(str(tmp_path / "fs"), str(own), str(info))
    assert (found.free, found.total, found.limit) == (4096000, 8192000, 8192000)


# ---- room

NODE: dict[str, Any] = {
    "metadata": {"name": "n", "labels": {"pool": "a"}},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
UNFIT = {
    "": ({}, {}),
    "not Ready": ({"status": {"conditions": []}}, {}),
    "cordoned": ({"spec": {"unschedulable": True}}, {}),
    "without label pool=b": ({}, {"nodeSelector": {"pool": "b"}}),
    "with taint gpu": ({"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}}, {}),
    "with too little cpu": (
        {},
        {"containers": [{"resources": {"limits": {"cpu": "3"}}}, {"resources": {"requests": {"cpu": "1500m"}}}]},
    ),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_nodes_that_could_not_hold_a_pod(reason: str) -> None:
    node, spec = UNFIT[reason]
    assert room.unfit(msgspec.convert({**NODE, **node}, Node), msgspec.convert({"spec": spec}, Pod)) == reason


def test_a_toleration_opens_a_node() -> None:
    node = msgspec.convert({**NODE, "spec": {"taints": [{"key": "gpu", "value": "a", "effect": "NoSchedule"}]}}, Node)
    for toleration in ({"operator": "Exists"}, {"key": "gpu", "value": "a"}, {"key": "gpu", "operator": "Exists"}):
        assert room.unfit(node, msgspec.convert({"spec": {"tolerations": [toleration]}}, Pod)) == ""
    wrong = {"key": "gpu", "value": "b"}
    assert room.unfit(node, msgspec.convert({"spec": {"tolerations": [wrong]}}, Pod)) == "with taint gpu"


def test_quotas_count_requests_and_limits() -> None:
    resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "nvidia.com/gpu": "4"}}
    pod = msgspec.convert({"spec": {"containers": [{"resources": resources}]}}, Pod)
    hard = {"cpu": "4", "limits.cpu": "15", "requests.nvidia.com/gpu": "40", "services": "1", "count/pods": "8"}
    used = {"cpu": "250m", "limits.cpu": "0", "requests.nvidia.com/gpu": "9"}
    quota = msgspec.convert({"metadata": {"name": "q"}, "status": {"hard": hard, "used": used}}, Quota)
    assert room.shortages([quota], [(pod, 8)]) == [
        "quota q: 8 pods need 4 of cpu, and 3750m of 4 are left",
        "quota q: 8 pods need 16 of limits.cpu, and 15 of 15 are left",
        "quota q: 8 pods need 32 of requests.nvidia.com/gpu, and 31 of 40 are left",
    ]
    scoped = msgspec.convert({"spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "0"}}}, Quota)
    assert room.shortages([scoped], [(pod, 8)]) == []


# ---- events, and the line about pods that start


def test_events_are_the_reason_where_a_pod_shows_none() -> None:
    mount = PodEvent(type="Warning", reason="FailedMount", message='secret "nope" not found')
    assert state.waits_for(Pod(), [mount]) == ('FailedMount: secret "nope" not found', False)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = [{"name": "main", "image": "x", "state": {"waiting": waiting}}]
    pod = msgspec.convert({"status": {"containerStatuses": status}}, Pod)
    pull = PodEvent(type="Warning", reason="Failed", message='Failed to pull image "x": manifest unknown')
    text, is_final = state.waits_for(pod, [pull])
    assert "manifest unknown" in text
    assert is_final
    assert not state.waits_for(pod)[1]


def test_events_are_in_the_error_of_pods_that_do_not_start(cluster: StandIn, tmp_path: Path) -> None:
    cluster.lab.hosts.append(cast("Any", SimpleNamespace(name="n1", address="")))
    cluster.dead_images["x"] = "ContainerCreating: "
    cluster.lists["events"] = [{"type": "Warning", "reason": "FailedMount", "message": "no secret"}]
    source = MadePods(template=PodTemplate(image="x"), nodes=1, start_timeout=0.0)
    api = Api(PodPlace(), {"HOME": str(tmp_path)})
    with pytest.raises(MeshError, match="0 of 1 pods run; 1 wait: FailedMount: no secret"):
        Maker(api, Made(cluster="g", user="u", source=source), PodsRecords(os.environ)).ensure()
    api.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def test_a_state_is_one_line_on_a_terminal_and_rare_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    line = StatusLine(said.append, None, lambda: now[0])
    for at, text in ((0.0, "a"), (1.0, "b"), (REPEAT_S, "c"), (2 * REPEAT_S, "c"), (3 * REPEAT_S, "d")):
        now[0] = at
        line.show(text)
    assert said == ["a", "c", "d"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    line = StatusLine(said.append, terminal)
    line.show("2 of 8 pods run", 125.0)
    line.show("3 of 8 pods run")
    line.end()
    erase = "\r\x1b[2K"
    assert terminal.getvalue() == f"{erase}==> 2 of 8 pods run (2 min){erase}==> 3 of 8 pods run{erase}"


# ---- pods that are there, and pods that are gone


def maker(tmp_path: Path, namespace: str = "", nodes: int = 3) -> tuple[Api, Maker]:
    source = MadePods(template=PodTemplate(image="x"), nodes=nodes, start_timeout=0.0)
    api = Api(PodPlace(namespace=namespace), {"HOME": str(tmp_path)})
    return api, Maker(api, Made(cluster="gpus", user=user_here(), source=source), PodsRecords(os.environ))


def test_the_pods_of_a_cluster_are_shown(cluster: StandIn, tmp_path: Path) -> None:
    assert pods_lines("gpus") == ["gpus: no pods in namespace team of context stand-in"]
    pod = cluster.make_pod("w-0", {"app": "x"})
    uid = pod["metadata"]["uid"]
    event = {"type": "Warning", "reason": "FailedScheduling", "message": "no room", "count": 4}
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 122))
    cluster.lists["events"] = [{**event, "involvedObject": {"uid": uid}, "lastTimestamp": at}]
    for lines in (pods_lines("there"), pods_lines("there", "0"), pods_lines("there", "w-0")):
        assert lines[0] == "there: 1 pods in namespace team of context stand-in"
        assert lines[2].split()[:4] == ["0", "w-0", "Pending", "-"]
        assert "  PodScheduled=False (Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.)" in lines
        assert lines[-1] == "  2 min ago, 4 times: FailedScheduling: no room"
    with pytest.raises(MeshError, match="there is no pod '7'"):
        pods_lines("there", "7")


def test_down_deletes_pods_in_a_namespace_that_the_file_named_before(cluster: StandIn, tmp_path: Path) -> None:
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    mine._create(root, range(3), [])
    api.close()
    (tmp_path / "cluster.yaml").write_text(YAML.replace("image: x", "image: x, namespace: other"))
    said = list[str]()
    down("gpus", notify=said.append)
    assert said == ["gpus: its pods in namespace team are deleted"]
    assert cluster.objects == {"pods": {}, "configmaps": {}}
    down("gpus", notify=said.append)
    assert said[1:] == ["gpus has no pods: nothing to delete"]


def test_pods_that_have_ended_are_replaced_and_the_others_stay(cluster: StandIn, tmp_path: Path) -> None:
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    mine._create(root, range(3), [])
    names = sorted(cluster.objects["pods"])
    before = {name: cluster.objects["pods"][name]["metadata"]["uid"] for name in names}
    cluster.change_status(names[1], phase="Succeeded")
    assert mine._missing(root) == [1]
    assert sorted(cluster.objects["pods"]) == [names[0], names[2]]
    assert {cluster.objects["pods"][name]["metadata"]["uid"] for name in (names[0], names[2])} == {
        before[names[0]],
        before[names[2]],
    }
    api.close()


def test_clusters_without_pods_are_no_failure_of_ps_and_are_noted(cluster: StandIn, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("gpus:\n  kubernetes: {image: x, nodes: 3}\n")
    assert not any("gpus" in line for line in ps().failures)
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    api.close()
    assert "held until idle for 600 s" in list_clusters()[1].note
    cluster.remove("configmaps", root.metadata.name)
    assert list_clusters(refresh=True)[1].note == "no pods now; a run makes 3"
    assert list_clusters()[1].note == "3 pods, made when a command needs them"


def test_a_dry_run_makes_no_pod(cluster: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    os.chdir(project)
    assert run(["mesh", "run", "--dry-run", "gpus", "true"]) == 0
    out = capfd.readouterr().out
    assert all(f"mesh-gpus-{user_here()}-{number}" in out for number in range(3))
    assert not any(line.startswith(("create", "delete")) for line in cluster.requests)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_pods_start_deletes_them(cluster: StandIn, tmp_path: Path, number: int) -> None:
    source = MadePods(template=PodTemplate(image="x"), nodes=2, start_timeout=600.0)
    api = Api(PodPlace(), {"HOME": str(tmp_path)})

    def say(text: str) -> None:
        if "2 wait" in text:
            os.kill(os.getpid(), number)

    made = Made(cluster="g", user="u", source=source)
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # what runs in the background of a shell, or by nohup, has some ignored
    try:
        with api, pytest.raises((SystemExit, KeyboardInterrupt)) as caught:
            Maker(api, made, PodsRecords(os.environ), StatusLine(say)).ensure()
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    if number != signal.SIGINT:
        assert caught.value.args == (128 + number,)
    assert cluster.objects == {"pods": {}, "configmaps": {}}


@pytest.mark.parametrize("words", [("ps", "gpus"), ("ssh", "gpus:1")])
def test_a_question_while_pods_start_names_their_state(
    cluster: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    mine._create(root, range(3), [])
    api.close()
    run(["mesh", *words])
    assert "gpus: none of its 3 pods runs\n       mesh pods show gpus" in capfd.readouterr().err


def test_a_dry_run_while_pods_start_names_them(
    cluster: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    mine._create(root, range(3), [])
    api.close()
    project = tmp_path / "project"
    project.mkdir()
    os.chdir(project)
    assert run(["mesh", "run", "--dry-run", "gpus", "true"]) == 0
    out = capfd.readouterr().out
    assert all(name in out for name in cluster.objects["pods"])


def test_a_root_that_is_made_during_a_look_stays_ours(cluster: StandIn, tmp_path: Path) -> None:
    api, mine = maker(tmp_path)
    with api:
        seen = mine.recorded()
        root, _ = mine._create_root()  # by another command, after the look that found none
        mine.forget(seen)
        assert mine.root() == root
        cluster.remove("configmaps", root.metadata.name)
        mine.forget(mine.recorded())
        assert PodsRecords(os.environ).read() == []


def test_a_root_whose_creation_was_answered_by_a_failure_is_ours(cluster: StandIn, tmp_path: Path) -> None:
    api, mine = maker(tmp_path)
    cluster.refused["create configmaps"] = Refused(504, "the request timed out", "Timeout")
    with api, pytest.raises(MeshError):
        mine._create_root()
    (mark,) = (place.stem for place in (tmp_path / "state").rglob("pods/*.json"))
    made = msgspec.structs.replace(mine.made, mark=mark)  # the server has made it all the same
    cluster.add("configmaps", cast("dict[str, Any]", render.root_object(made)))
    api, mine = maker(tmp_path)
    with api:
        assert mine.root() is not None
    assert len(PodsRecords(os.environ).read()) == 1


def test_down_asks_no_pod_that_is_being_deleted_or_whose_container_has_ended(cluster: StandIn, tmp_path: Path) -> None:
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    mine._create(root, range(2), [])
    api.close()
    first, second = sorted(cluster.objects["pods"])
    states = {"running": {}}, {"terminated": {"exitCode": 0}}
    for name, found in zip((first, second), states, strict=True):
        status = {"name": render.CONTAINER, "image": "x", "state": found}
        cluster.change_status(name, phase="Running", containerStatuses=[status])
    cluster.objects["pods"][first]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    down("gpus")
    assert cluster.objects == {"pods": {}, "configmaps": {}}


def test_pods_that_wait_without_their_command_are_removed(cluster: StandIn, tmp_path: Path) -> None:
    api, mine = maker(tmp_path)
    root, _ = mine._create_root()
    mine._create(root, range(3), [])
    records = PodsRecords(os.environ)
    with api:
        assert remove_ended(api, user_here(), records) == []
        for pod in cluster.objects["pods"].values():
            pod["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
        assert remove_ended(api, user_here(), records) == [root.metadata.name]
    assert cluster.objects == {"pods": {}, "configmaps": {}}


def test_what_a_root_was_made_with_is_recorded_by_an_adoption(cluster: StandIn, tmp_path: Path) -> None:
    source = MadePods(template=PodTemplate(image="x"), nodes=5, hold=7.0)
    made = Made(cluster="gpus", user=user_here(), source=source)
    cluster.add("configmaps", cast("dict[str, Any]", render.root_object(made)))
    api, mine = maker(tmp_path)
    mine.adopt()
    api.close()
    (record,) = PodsRecords(os.environ).read()
    assert (record.pods, record.hold) == (5, 7.0)
