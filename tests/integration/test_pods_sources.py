"""Workspaces that pods of a real cluster fetch by themselves. On with MESH_TEST_KUBERNETES=1, as test_pods_real.py."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Home
from tests.gitserver import USER, GitServer
from tests.kubecluster.cluster import Cluster
from tests.kubecluster.faults import PATIENT_S, made
from tests.kubecluster.machines import SERVER

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
PASSWORD = "hunter2-hunter2"


def encoded(text: str) -> str:
    """Return a value of a Secret."""
    return base64.b64encode(text.encode()).decode()


def synced(out: bytes) -> list[dict[str, Any]]:
    """Return the events `synced` of a run with --json."""
    events = [json.loads(line) for line in out.splitlines()]
    return [one for one in events if one["event"] == "synced"]


def test_pods_run_a_commit_that_they_have_fetched_with_a_secret(home: Home, kube: Cluster, tmp_path: Path) -> None:
    data = {"username": encoded(USER), "password": encoded(PASSWORD)}
    kube.ask("POST", kube.path("secrets"), {"metadata": {"name": "forge"}, "data": data})
    home.files(hello__txt="the client's\n")
    try:
        with GitServer(tmp_path, SERVER, PASSWORD) as server:
            commit, tree = server.commit({"hello.txt": "the commit's\n"})
            server.commit({"hello.txt": "a later one\n"})
            home.clusters(made(2, f"source: {{git: '{server.url}', ref: {commit}, secret: forge}}", hold="60s"))
            done = home.mesh("run", "--json", "gpus", "cat", "hello.txt", within=PATIENT_S)
            assert done.status == 0, done.err
            lines = [json.loads(line) for line in done.out.splitlines()]
            assert [one["text"] for one in lines if one["event"] == "line"] == ["the commit's"] * 2
            assert [(one["tree"], one["source"]) for one in synced(done.out)] == [
                (tree, f"git {server.url} at {commit}")
            ] * 2
            assert PASSWORD not in json.dumps([kube.listed(kind) for kind in ("pods", "configmaps", "events")])
            done = home.mesh("push", "gpus", within=PATIENT_S)
            assert done.status == 2
            assert "its hosts fetch their workspace" in done.err
            assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
            kube.ask("DELETE", kube.path("secrets", "forge"))
            bad = {**data, "password": encoded("wrong")}
            kube.ask("POST", kube.path("secrets"), {"metadata": {"name": "forge"}, "data": bad})
            done = home.mesh("run", "gpus", "true", within=PATIENT_S)
            assert done.status == 125
            assert "its init container source has failed: git fetch: fatal: Authentication failed" in done.err
    finally:
        kube.ask("DELETE", kube.path("secrets", "forge"))


def test_pods_run_files_of_a_config_map(home: Home, kube: Cluster) -> None:
    home.clusters(made(2, "source: config_map", hold="60s"))
    home.files(hello__txt="hello\n")
    done = home.mesh("run", "--json", "gpus", "cat", "hello.txt", within=PATIENT_S)
    assert done.status == 0, done.err
    assert [one["source"] for one in synced(done.out)] == ["a ConfigMap"] * 2
    home.files(hello__txt="other\n")
    done = home.mesh("run", "gpus", "true", within=PATIENT_S)
    assert done.status == 125
    assert "made from another description" in done.err
    home.files(big__bin="x" * 800_000)
    done = home.mesh("run", "gpus", "true", within=PATIENT_S)
    assert done.status == 2
    assert "800.0 kB  big.bin" in done.err
    assert home.mesh("down", "gpus", within=PATIENT_S).status == 0
