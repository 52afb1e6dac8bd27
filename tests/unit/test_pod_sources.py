"""Workspaces that pods fetch by themselves: the program that fetches, the archive of a ConfigMap, and the pods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import convert
from msgspec.structs import replace

from mesh.agent.base.directories import known_tree
from mesh.backends.pods import state
from mesh.backends.pods.objects import Pod
from mesh.config.podcode import Code
from mesh.core.errors import UsageError
from mesh.core.events import Locked, Synced
from mesh.core.outcome import Cause
from mesh.engine.orders import Prepare, Tell
from mesh.hosts.kubernetes import code, render
from mesh.workspace.archive import LIMIT_BYTES, archive_of
from tests.gitserver import USER, GitServer
from tests.unit.test_kubernetes import made, source_of
from tests.unit.test_supervisor import Replay, connected

PASSWORD = "hunter2-hunter2"


def fetch(tmp_path: Path, source: Code, **more: str) -> tuple[int, str, str]:
    """Run the init container's program here; return its status, the tree in the record, and its last line."""
    given = {**code.request_of(source, str(tmp_path / "mesh")), **more}
    words = [sys.executable, "-I", "-S", "-c", code.FETCH.read_text(), json.dumps(given)]
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, capture_output=True, text=True, env=environ)
    tree = known_tree(given["record"])
    return done.returncode, tree, (done.stderr.splitlines() or [""])[-1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    (tmp_path / "git").mkdir()
    with GitServer(tmp_path / "git", password=PASSWORD) as found:
        yield found


def test_a_commit_is_fetched_with_the_password_of_a_secret(tmp_path: Path, server: GitServer) -> None:
    first, tree = server.commit({"a.txt": "one\n"})
    server.commit({"a.txt": "two\n"})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "username").write_text(USER)
    (secret / "password").write_text(PASSWORD + "\n")
    workspace = tmp_path / "mesh/workspaces" / code.PROJECT
    for ref, text in ((first, "one\n"), (first[:10], "one\n"), ("main", "two\n"), ("", "two\n")):
        source = Code(kind="git", url=server.url, ref=ref, secret="x")
        status, found, line = fetch(tmp_path, source, secret_dir=str(secret))
        assert (status, line) == (0, "")
        assert (found == tree) == (text == "one\n")
        assert (workspace / "a.txt").read_text() == text
        assert sorted(os.listdir(workspace)) == ["a.txt"]
    (secret / "password").write_text("wrong")
    status, _, line = fetch(tmp_path, Code(kind="git", url=server.url, secret="x"), secret_dir=str(secret))
    assert (status, "Authentication failed" in line) == (1, True)
    assert not workspace.exists()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "the Secret of source: has no password"),
        ({"ssh-privatekey": "k"}, "the Secret has a key for ssh and no known_hosts (ssh-keyscan HOST prints it)"),
        (None, "is not mounted"),
    ],
)
def test_a_secret_that_lacks_something_is_named(tmp_path: Path, files: dict[str, str] | None, reason: str) -> None:
    secret = tmp_path / "secret"
    if files is not None:
        secret.mkdir()
        for name, text in files.items():
            (secret / name).write_text(text)
    status, tree, line = fetch(
        tmp_path, Code(kind="git", url="http://127.0.0.1:9/x", secret="x"), secret_dir=str(secret)
    )
    assert (status, tree) == (1, "")
    assert reason in line


def test_a_workspace_travels_in_a_config_map_as_it_is(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "sub/run.sh").write_text("echo hello\n")
    (workspace / "sub/run.sh").chmod(0o755)
    (workspace / "link").symlink_to("sub/run.sh")
    (workspace / "left.log").write_text("x")
    archive = archive_of(workspace, ["*.log"])
    assert archive == archive_of(workspace, ["*.log"])
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / code.ARCHIVE).write_bytes(archive)
    status, tree, line = fetch(tmp_path, Code(kind="config_map"), archive_dir=str(mounted))
    assert (status, line, len(tree)) == (0, "", 64)
    found = tmp_path / "mesh/workspaces" / code.PROJECT
    assert sorted(os.listdir(found)) == ["link", "sub"]
    assert (found / "link").read_text() == "echo hello\n"
    assert os.access(found / "sub/run.sh", os.X_OK)
    assert (found / "sub/run.sh").stat().st_mtime == int((workspace / "sub/run.sh").stat().st_mtime)


def test_a_large_workspace_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * (LIMIT_BYTES // 6 - 100 + number))
    with pytest.raises(UsageError, match=r"816\.0 kB, and a ConfigMap takes 700\.0 kB") as caught:
        archive_of(tmp_path, [])
    names = [line.split()[-1] for line in str(caught.value).splitlines()[1:]]
    assert names == [f"{number}.bin" for number in (6, 5, 4, 3, 2)]
    assert archive_of(tmp_path, ["6.bin"])  # just fits


def spec_of(tmp_path: Path, text: str, archive: bytes = b"") -> dict[str, Any]:
    ours = made(tmp_path, text)
    ours = replace(ours, source=replace(ours.source, archive=archive))
    return cast("dict[str, Any]", render.pod_object(ours, 0, "u")["spec"])


def test_a_pod_with_a_source_has_an_init_container_with_its_secret(tmp_path: Path) -> None:
    lines = "image: x, resources: {memory: 1Gi}"
    spec = spec_of(tmp_path, f"{{{lines}, source: {{git: https://x/y.git, ref: v1, secret: forge}}}}")
    (init,) = spec["initContainers"]
    assert (init["image"], init["resources"]["limits"]) == ("x", {"memory": "1Gi"})
    assert [one["mountPath"] for one in init["volumeMounts"]] == ["/mesh", "/tmp", code.SECRET_DIR]
    assert code.SECRET_DIR not in json.dumps(spec["containers"])
    assert spec["volumes"][-1] == {"name": "source-secret", "secret": {"secretName": "forge", "defaultMode": 0o444}}
    assert "initContainers" not in spec_of(tmp_path, f"{{{lines}}}")
    assert spec_of(tmp_path, "{image: x, source: config_map}", b"z")["volumes"][-1]["name"] == "source-archive"


def test_other_files_are_other_pods(tmp_path: Path) -> None:
    ours = made(tmp_path, "{image: x, source: config_map}")
    digests = {replace(ours, source=replace(ours.source, archive=one)).digest for one in (b"a", b"b")}
    assert len(digests) == 2


def fetched(*trees: str) -> tuple[Replay, list[Any]]:
    """Replay a run whose hosts have fetched these trees; return it, and its orders."""
    replay = Replay(hosts=len(trees), sync=False, existing=True, fetched="git x")
    replay.tick(1.0)
    orders: list[Any] = []
    for node, tree in enumerate(trees):
        orders += replay.handle(connected(node), Locked(time=1, node=node, tree=tree))
    return replay, orders


def test_the_tree_that_a_host_has_fetched_is_recorded_as_with_a_sync() -> None:
    _, orders = fetched("ab", "ab")
    told = [one.event for one in orders if isinstance(one, Tell)]
    assert [(one.node, one.tree, one.source) for one in told if isinstance(one, Synced)] == [
        (0, "ab", "git x"),
        (1, "ab", "git x"),
    ]
    assert [one.node for one in orders if isinstance(one, Prepare)] == [0, 1]


@pytest.mark.parametrize("trees", [("ab", "cd"), ("ab", ""), ("", "ab")])
def test_no_rank_starts_where_hosts_have_fetched_different_trees(trees: tuple[str, str]) -> None:
    replay, orders = fetched(*trees)
    assert not any(isinstance(one, Prepare) for one in orders if trees[0])
    outcome = replay.supervisor.outcome(100.0)
    assert outcome.cause is Cause.PREPARE
    assert "its workspace differs from that on h0" in outcome.failures[0].message


BAD = {
    "{image: x, source: svn}": "expected config_map, or a mapping with git:",
    "{image: x, source: {ref: v1}}": "expected config_map, or a mapping with git:",
    "{image: x, source: {git: 'https://me:secret@x/y'}}": "has credentials in it",
    "{image: x, source: {git: 'https://token@x/y'}}": "has credentials in it",
    "{image: x, source: {git: --upload-pack=x}}": "expected a URL",
    "{image: x, source: {git: https://x/y, ref: --x}}": "expected a commit, tag or branch",
    "{image: x, source: {git: https://x/y, secret: A b}}": "expected the name of a Secret",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_has_the_file_and_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"cluster\.yaml:2: gpus\.kubernetes\.source") as caught:
        source_of(tmp_path, text)
    assert BAD[text] in str(caught.value)


def test_the_state_of_an_init_container_is_the_reason_why_a_pod_waits() -> None:
    failed = {"exitCode": 1, "message": "remote: no\ngit fetch: refused\n"}
    for own, told in (
        ({"running": {}}, ("its init container source runs", False)),
        (
            {"terminated": failed},
            ("its init container source has failed: git fetch: refused", True),
        ),
    ):
        status = {"phase": "Failed" if "terminated" in own else "Pending"}
        statuses = [{"name": "source", "state": own}]
        pod = convert({"spec": {"nodeName": "n"}, "status": {**status, "initContainerStatuses": statuses}}, Pod)
        assert state.waits_for(pod) == told
