"""Roles on real hosts: each has its own command, and its label wherever a rank is named."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import PATIENCE, Home
from tests.integration.test_attach import elsewhere, runs
from tests.integration.test_run_directory import problems
from tests.lab import Lab, eventually

SEEN = "echo $RANK $WORLD_SIZE $LOCAL_RANK $MESH_LABEL $MESH_GROUP_RANK"


def roles(*commands: str) -> list[str]:
    return [word for command in commands for word in ("--role", command)]


def test_each_role_runs_its_command_on_its_hosts(pod: Home, lab: Lab) -> None:
    first, second, third, left_out = (host.address for host in lab.hosts[:4])
    lab.hosts[3].cut()  # takes no part, so that nothing waits for it
    wait = "until [ -e ~/enough ]; do sleep 0.05; done"
    actor, learner = f"actor@{second},{third}: {SEEN}", f"learner@{first}: {SEEN}; {wait}; exit 5"
    process = pod.popen("run", "--nproc", "2", *roles(actor, learner), "pod")
    assert process.stdout is not None
    lines = [process.stdout.readline().decode().rstrip("\n") for _ in range(6)]
    lab.hosts[0].script("touch enough")  # all have printed: a failure may end ranks before they do
    rest, told = process.communicate(timeout=PATIENCE)
    lab.hosts[3].mend()
    assert (process.returncode, rest) == (5, b"")
    assert sorted(lines) == sorted(
        [
            *("[learner/0] 0 6 0 learner 0", "[learner/1] 1 6 1 learner 1"),
            *("[actor/0]   2 6 0 actor 0", "[actor/1]   3 6 1 actor 1"),
            *("[actor/2]   4 6 0 actor 2", "[actor/3]   5 6 1 actor 3"),
        ]
    )
    assert f"(learner/0) on {first}" in told.decode() or f"(learner/1) on {first}" in told.decode()
    (directory,) = runs(pod).iterdir()
    assert problems(directory) == []
    about = json.loads((directory / "run.json").read_text())
    assert about["hosts"] == [first, second, third]
    assert left_out not in json.dumps(about)
    assert [(group["label"], group["hosts"]) for group in about["groups"]] == [
        ("actor", [second, third]),
        ("learner", [first]),
    ]
    assert [rank["label"] for rank in about["ranks"]] == ["learner"] * 2 + ["actor"] * 4
    assert about["verdict"]["first"]["label"] == "learner"
    exited = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines() if "exited" in line]
    assert {event["label"] for event in exited} == {"actor", "learner"}
    assert pod.mesh("logs", "--rank", "actor/1").lines == ["[actor/1]   3 6 1 actor 1"]
    assert len(pod.mesh("logs", "--rank", "act*").lines) == 4
    assert "its labels are actor, learner" in pod.mesh("logs", "--rank", "critic").err
    assert "actor: echo" in pod.mesh("runs").out.decode()


def test_a_run_with_roles_is_left_and_found_again(pod: Home, lab: Lab, tmp_path: Path) -> None:
    """The hosts keep the spec: another machine of the user knows the roles as well."""
    first, second = (host.address for host in lab.hosts[:2])
    wait = "while ! [ -e ~/enough ]; do sleep 0.05; done"
    actor, learner = f"actor@{second}: echo up; {wait}; exit 7", f"learner@{first}: echo up; {wait}; sleep 1000"
    done = pod.mesh("run", "-d", "--env", "TOKEN=hunter2", *roles(actor, learner), "pod")
    assert done.status == 0, done.err
    run = done.out.decode().strip()
    other = elsewhere(pod, tmp_path / "state")
    both = ["[actor/0]   up", "[learner/0] up"]
    assert eventually(lambda: other.mesh("logs", run, "--cluster", "pod").lines == both, 120.0)
    assert pod.mesh("signal", run, "USR2", "--rank", "critic").status == 2
    for host in lab.hosts[:2]:
        host.script("touch enough")
    late = other.mesh("attach", run, "--from", "start", "--json")
    assert late.status == 7, late.err
    events = [json.loads(line) for line in late.out.splitlines()]
    assert {event["label"] for event in events if event["event"] == "line"} == {"actor", "learner"}
    here = pod.mesh("attach", run)
    assert here.status == 7
    assert f"rank 1 (actor/0) on {second} failed first" in here.err
    for state in (runs(pod) / run, tmp_path / "state/mesh/runs" / run):
        assert problems(state) == []
        assert "hunter2" not in (state / "run.json").read_text()
        spec = json.loads((state / "run.json").read_text())["spec"]
        assert [(group["label"], group["env"]) for group in spec["groups"]] == [
            ("actor", ["TOKEN"]),
            ("learner", ["TOKEN"]),
        ]


def test_roles_that_cannot_be_are_refused_before_anything_is_done(pod: Home, lab: Lab) -> None:
    name = lab.hosts[0].address
    for words, message in (
        (roles(f"a@{name}: x", f"b@{name}: y"), f"host {name} has two roles, a and b"),
        (roles("a@nowhere: x"), "no host 'nowhere' in pod"),
        (roles("a: x"), "expected LABEL@HOSTS: COMMAND"),
        (["--launcher", "torchrun", *roles(f"a@{name}: x")], "--launcher"),
    ):
        done = pod.mesh("run", *words, "pod")
        assert (done.status, message in done.err) == (2, True), done.err
    done = pod.mesh("run", *roles(f"a@{name}: x"), "pod", "true")
    assert (done.status, "roles have their own commands" in done.err) == (2, True), done.err
    assert not runs(pod).exists()
