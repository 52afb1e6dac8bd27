"""Declared jobs: what is rendered, and how their pods meet."""

from __future__ import annotations

import json
import queue
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh.agent.declared.meeting import Host, MeetingOver, Member
from mesh.agent.declared.plan import BadPlan, filled, read_plan, with_passed
from mesh.agent.link.tls import tls_context
from mesh.api.declaring import job_text, make_job_secret
from mesh.core.credentials import make_credentials
from mesh.core.errors import UsageError
from tests.kubecluster.newer import NEWER
from tests.lab import eventually

GENEROUS_S = 60.0
SECRET = "hunter2-hunter2"
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Render:
    """Return a function that renders a job of a cluster with these keys, in a project that passes on a secret."""
    monkeypatch.setenv("TRAINING_KEY", SECRET)
    monkeypatch.setenv("MESH_CLUSTERS", str(tmp_path / "cluster.yaml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mesh.yaml").write_text("pass: [TRAINING_KEY]\nenv: {PLAIN: seen}\n")

    def rendered(keys: str = "", **more: Any) -> list[dict[str, Any]]:
        (tmp_path / "cluster.yaml").write_text(f"gpus:\n  kubernetes: {{image: x, nodes: 4{keys}}}\n")
        return list(yaml.safe_load_all(job_text("gpus", ["python3", "train.py"], **more)))

    return rendered


def plan_in(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return read_plan(objects[0]["data"]["plan.json"])


def test_a_rendered_job_names_its_secret_and_holds_no_value(render: Render) -> None:
    objects = render()
    assert [one["kind"] for one in objects] == ["ConfigMap", "Service", "Job"]
    assert SECRET not in json.dumps(objects)
    spec = objects[2]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        4,
        4,
        0,
    )
    volumes = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
    secret = objects[2]["metadata"]["name"] + "-job"
    assert volumes["job"]["secret"] == {"secretName": secret, "defaultMode": 0o444, "optional": True}
    assert (
        spec["template"]["spec"]["containers"][0]["command"][-1]
        == f"there is no Secret {secret}: mesh pods secret gpus"
    )
    plan = plan_in(objects)
    assert plan["env"]["PLAIN"] == "seen"
    pods = [{"name": f"p{node}", "address": f"10.0.0.{node}"} for node in range(4)]
    env = filled({**plan["env"], **plan["pods"][2]["env"]}, "r-1", "0", pods, {"TRAINING_KEY": SECRET})
    assert (env["TRAINING_KEY"], env["RANK"], env["MASTER_ADDR"]) == (SECRET, "2", "10.0.0.0")
    assert env["MESH_HOSTS"] == ",".join(one["address"] for one in pods)
    again = f"kubectl delete secret {secret} && mesh pods secret gpus"
    with pytest.raises(BadPlan, match=f"the Secret lacks the variable TRAINING_KEY: {again}"):
        filled(plan["env"], "r-1", "0", pods, {}, plan["secret"])


def test_a_variable_that_the_project_names_is_wanted_also_where_it_is_not_set(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mesh.yaml").write_text(
        "pass: [TRAINING_KEY, OTHER_KEY, 'WANDB_*']\nsecret: [LAST_KEY]\nenv: {OTHER_KEY: here}\n"
    )
    monkeypatch.delenv("TRAINING_KEY")
    monkeypatch.setenv("WANDB_HERE", SECRET)
    plan = plan_in(render(", namespace: team"))
    wanted = {name for name, value in plan["env"].items() if "@mesh-variable-" in value}
    assert wanted == {"TRAINING_KEY", "LAST_KEY", "WANDB_HERE"}
    assert plan["env"]["OTHER_KEY"] == "here"
    assert plan["begin"]["plan"]["spec"]["secrets"] == ["LAST_KEY"]  # by which `mesh attach` masks its value
    assert plan["secret"].startswith("kubectl delete secret -n team mesh-gpus-")
    env = with_passed(plan["env"], plan["passed"], ["AWS_KEY", "WANDB_THERE", "OTHER_KEY"])
    assert env == {**plan["env"], "WANDB_THERE": "@mesh-variable-WANDB_THERE@"}


def test_a_secret_is_not_made_without_a_variable_that_the_project_names(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    render()
    monkeypatch.delenv("TRAINING_KEY")
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")  # it is not reached
    with pytest.raises(UsageError, match=r"TRAINING_KEY: named by `pass:` or `secret:` of mesh\.yaml, and not set"):
        make_job_secret("gpus")


def test_addresses_of_the_sixth_version_have_brackets_before_a_port(render: Render) -> None:
    pods = [{"name": f"p{node}", "address": f"fd00::{node}"} for node in range(4)]
    env = filled(plan_in(render())["env"], "r", "0", pods, {"TRAINING_KEY": SECRET})
    assert (env["MASTER_ADDR"], env["JAX_COORDINATOR_ADDRESS"]) == ("fd00::0", "[fd00::0]:29500")


def test_slices_are_replicated_jobs_of_a_job_set(render: Render) -> None:
    objects = render(", slices: 2", kind="jobset", retries=3)
    spec = objects[1]["spec"]
    assert spec["failurePolicy"] == {"maxRestarts": 3}
    (replicated,) = spec["replicatedJobs"]
    assert (replicated["replicas"], replicated["template"]["spec"]["completions"]) == (2, 2)
    container = replicated["template"]["spec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: one for one in container["env"]}
    name = objects[1]["metadata"]["name"]
    assert variables["MESH_FIRST_POD"]["value"] == f"{name}-slice-0-0.{name}"
    assert spec["network"]["subdomain"] == name
    plan = plan_in(objects)
    assert (plan["per_slice"], plan["begin"]["ports"]) == (2, [29500, 29501])
    assert [one["env"]["SLICE_ID"] for one in plan["pods"]] == ["0", "0", "1", "1"]


def test_a_code_source_comes_with_the_job(render: Render, tmp_path: Path) -> None:
    (tmp_path / "hello.txt").write_text("hello")
    objects = render(", source: config_map")
    assert [one["kind"] for one in objects] == ["ConfigMap", "ConfigMap", "Service", "Job"]
    template = objects[3]["spec"]["template"]["spec"]
    assert template["volumes"][2]["configMap"]["name"] == objects[1]["metadata"]["name"]
    assert template["initContainers"][0]["name"] == "source"
    assert plan_in(objects)["begin"]["existing"] is True


def test_a_job_of_a_user_mounts_the_users_volume_and_runs_its_script_first(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_TDATA", "tdata:/TData")
    with (tmp_path / "mesh.yaml").open("a") as file:
        file.write("prerun: [make]\n")
    found = render()
    template = found[2]["spec"]["template"]["spec"]
    assert {"claimName": "tdata"} in [one.get("persistentVolumeClaim") for one in template["volumes"]]
    assert "/TData" in [one["mountPath"] for one in template["containers"][0]["volumeMounts"]]
    setup, own = plan_in(found)["prepare"]["prerun"]
    assert (setup["module"], own["run"]) == ("/TData/code/setup.sh", "make")


@pytest.mark.parametrize(
    ("keys", "more", "reason"),
    [
        ("", {"retries": 1}, "--retries: a Job cannot start all of its pods again"),
        (", slices: 3", {}, "expected a divisor of nodes: 4, found 3"),
    ],
)
def test_what_a_job_cannot_do_is_refused(render: Render, keys: str, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        render(keys, **more)


def test_modules_are_refused(render: Render, tmp_path: Path) -> None:
    with (tmp_path / "mesh.yaml").open("a") as file:
        file.write("uv:\n")
    with pytest.raises(UsageError, match="uv: declared jobs have no modules"):
        render()


class Pod:
    """A member of a meeting on this machine."""

    def __init__(self, key: str, port: int, node: int) -> None:
        import threading

        self.rounds: queue.Queue[Any] = queue.Queue()
        self.member = Member(tls_context(key, server=False), ("127.0.0.1", port), node, GENEROUS_S)
        arguments = (self.rounds.put, self.rounds.put)
        self.thread = threading.Thread(target=self.member.listen, args=arguments)
        self.thread.start()

    def get(self) -> Any:
        return self.rounds.get(timeout=GENEROUS_S)

    def close(self) -> None:
        self.member.leave()
        self.thread.join()


def test_pods_meet_round_by_round_until_one_leaves() -> None:
    key = make_credentials(1)
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        host = Host(tls_context(key, server=True), own, 3)
        host.start()
        with pytest.raises(MeetingOver):  # another key
            Member(tls_context(make_credentials(1), server=False), ("127.0.0.1", port), 0, 0.0).send({})
        pods = [Pod(key, port, node) for node in (0, 1)]
        for number, pod in enumerate(pods):
            pod.member.send({"value": number})
        early = Pod(key, port, 2)
        early.member.send({"value": 9})
        for pod in (*pods, early):
            assert [one["value"] for one in pod.get()] == [0, 1, 9]
        for pod in (*pods, early):
            pod.member.send({})
        for pod in (*pods, early):
            assert len(pod.get()) == 3
        early.member.send({"failed": "no such command"})
        for pod in pods:
            assert pod.get() == "pod 2: no such command"
        for pod in (*pods, early):
            pod.close()
        host.close()


def test_a_pod_that_leaves_before_all_have_come_may_come_again() -> None:
    key = make_credentials(1)
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        host = Host(tls_context(key, server=True), own, 2)
        host.start()
        first, lost = Pod(key, port, 0), Pod(key, port, 1)
        lost.member.send({"value": "old"})
        assert eventually(lambda: 1 in host.values, GENEROUS_S)
        lost.close()
        assert eventually(lambda: 1 not in host.values, GENEROUS_S)
        again = Pod(key, port, 1)
        for pod, value in ((first, "a"), (again, "b")):
            pod.member.send({"value": value})
        assert [one["value"] for one in first.get()] == ["a", "b"]
        for pod in (first, again):
            pod.close()
        host.close()


def test_the_document_lists_the_fields_that_the_server_of_the_tests_does_not_keep() -> None:
    text = (Path(__file__).parents[2] / "docs/kubernetes.md").read_text()
    rows = re.findall(r"^\| `(\w+ \S+)` \| (\S+) \|$", text.partition("first version that keeps it")[2], re.M)
    assert dict(rows) == NEWER
