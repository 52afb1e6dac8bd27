"""Wrong configuration, and refusals of a cluster: one message each, with its status. The server is the stand-in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mesh.api.podhold import _check_idle
from mesh.cli.program import run
from mesh.config.podspec import MadePods, PodTemplate
from mesh.core.cluster import Cluster
from mesh.core.errors import NoHosts
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from tests.kubecluster.alone import stand_in_alone
from tests.kubecluster.stand_in import Refused, StandIn

THERE = "gpus:\n  kubernetes:\n    selector: app=x\n"
MADE = "gpus:\n  kubernetes:\n    image: x\n"
Change = Callable[[StandIn, Path], object]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A stand-in without machines, whose pods wait for ever, and a user of it."""
    with stand_in_alone(tmp_path, monkeypatch) as stand_in:
        yield stand_in


def refuses(verb: str, status: int, message: str, reason: str = "") -> Change:
    return lambda cluster, home: cluster.refused.update({verb: Refused(status, message, reason)})


def no_kubeconfig(cluster: StandIn, home: Path) -> None:
    (home / ".kube/config").unlink()


def no_library(cluster: StandIn, home: Path) -> None:
    sys.modules["websocket"] = cast("SimpleNamespace", None)  # type: ignore[assignment]


def has_pod(cluster: StandIn, home: Path) -> None:
    cluster.make_pod("w-0", {"app": "x"})


def has_two_containers(cluster: StandIn, home: Path) -> None:
    cluster.make_pod("w-0", {"app": "x"}, containers=[{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])


def nothing(cluster: StandIn, home: Path) -> None:
    pass


# By name: cluster.yaml, what is wrong in the cluster, exit status, words of the message.
CASES: dict[str, tuple[str, Change, int, str]] = {
    "no kubeconfig": (THERE, no_kubeconfig, 2, "there is no kubeconfig"),
    "the extra is missing": (THERE, no_library, 2, "pip install "),
    "unknown context": (
        THERE + "    context: prod\n",
        nothing,
        2,
        "cluster.yaml:3: gpus.kubernetes.context: {home}/.kube/config: there is no context 'prod'",
    ),
    "unknown context of made pods": (
        MADE + "    context: prod\n",
        nothing,
        2,
        "cluster.yaml:3: gpus.kubernetes.context",
    ),
    "expired token": (THERE, refuses("list pods", 401, "Unauthorized"), 125, "the credentials of context stand-in are"),
    "no namespace": (THERE + "    namespace: nowhere\n", nothing, 125, "there is no namespace nowhere"),
    "no namespace for made pods": (MADE + "    namespace: nowhere\n", nothing, 125, "there is no namespace nowhere"),
    "a refused verb": (
        MADE,
        refuses("create pods", 403, 'pods is forbidden: User "u" cannot create resource "pods"'),
        125,
        "`mesh pods role` prints the Role",
    ),
    "a quota": (MADE, refuses("create pods", 403, "exceeded quota: small"), 125, "kubectl describe resourcequota"),
    "a quantity that is none": (
        MADE + "    resources:\n      cpu: 1\n      memory: lots\n",
        nothing,
        2,
        "cluster.yaml:6: gpus.kubernetes.resources: memory: expected a quantity",
    ),
    "a suffix that is none": (
        MADE + "    shm: 8GB\n",
        nothing,
        2,
        "cluster.yaml:4: gpus.kubernetes.shm",
    ),
    "an SSH key": (
        THERE + "  gateway: g\n",
        nothing,
        2,
        "cluster.yaml:4: gpus.gateway: has no meaning beside",
    ),
    "a selector that matches nothing": (THERE, nothing, 125, "selector 'app=x' matches no pod of namespace team"),
    "several containers": (
        THERE,
        has_two_containers,
        2,
        "cluster.yaml:3: gpus.kubernetes: pod w-0 has several containers (a, b)",
    ),
    "a container that is not there": (THERE + "    container: c\n", has_pod, 2, "pod w-0 has no container 'c'"),
    "a pod that is not running": (THERE, has_pod, 125, "w-0 is Pending (0/1 nodes are available: 1 Insufficient cpu.)"),
    "a long name": (THERE + f"    container: {'n' * 64}\n", nothing, 2, "cluster.yaml:4: gpus.kubernetes.container"),
    "a long label": (
        MADE + f"    labels: {{a: {'n' * 64}}}\n",
        nothing,
        2,
        "cluster.yaml:4: gpus.kubernetes.labels: a: expected at most 63",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_message_with_its_status(
    cluster: StandIn, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, change, status, words = CASES[name]
    (tmp_path / "mesh.yaml").touch()
    (tmp_path / "cluster.yaml").write_text(text)
    monkeypatch.setitem(sys.modules, "websocket", sys.modules.get("websocket") or __import__("websocket"))
    change(cluster, tmp_path)
    assert run(["mesh", "run", "gpus", "true"]) == status
    out, err = capfd.readouterr()
    assert out == ""
    assert words.format(home=tmp_path) in err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    assert {kind: set(listed) for kind, listed in cluster.objects.items() if kind == "configmaps"} == {
        "configmaps": set()
    }


@pytest.mark.parametrize("name", ["k8s", "slurm", "job", "tpu", "local"])
def test_a_reserved_name_is_refused(
    cluster: StandIn, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(f"a:\n  hosts: [b]\n{name}:\n  hosts: [c]\n")
    run(["mesh", "clusters"])
    assert "cluster.yaml:4: " in capfd.readouterr().out


def test_pods_of_a_context_that_is_gone_are_named_and_given_up_by_force(
    cluster: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(MADE)
    record = PodsRecord(uid="u", root="mesh-gpus-a", cluster="gpus", context="old", namespace="n", pods=2, since=1.0)
    records = PodsRecords(os.environ)
    records.write(record)
    assert run(["mesh", "down", "gpus"]) == 125
    err = capfd.readouterr().err
    assert "its pods in namespace n cannot be deleted" in err
    assert "there is no context 'old'" in err
    assert "mesh down --force gpus" in err
    assert records.has("u")
    assert run(["mesh", "down", "--force", "gpus"]) == 0
    assert "2 pods in namespace n are given up" in "".join(capfd.readouterr())
    assert run(["mesh", "down", "gpus"]) == 0


@pytest.mark.parametrize("words", [["run", "-q"], ["exec", "-q"], ["run"]])
def test_quiet_commands_show_no_progress_of_pods(
    cluster: StandIn, tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mesh.yaml").touch()
    (tmp_path / "cluster.yaml").write_text(MADE + "    start_timeout: 1s\n")
    assert run(["mesh", *words, "gpus", "true"]) == 125
    err = capfd.readouterr().err
    assert ("making 1 pods" in err) == ("-q" not in words)
    assert "not all pods run after 1 s" in err


def test_pods_that_end_while_they_are_asked_hold_up_no_down(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"a", "b"}, {"b"}, {"b"}])
    gpus = Cluster(name="gpus", hosts=(), source=MadePods(template=PodTemplate(image="x"), nodes=2))
    with pytest.raises(NoHosts, match="gpus has no pods"):  # b still runs
        _check_idle(gpus, lambda: next(answers))
    answers = iter([{"a", "b"}, {"b"}, set()])
    _check_idle(gpus, lambda: next(answers))
    assert list(answers) == []
