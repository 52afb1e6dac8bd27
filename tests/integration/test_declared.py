"""Runs that no client begins: two pods of a declared job as processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mesh.api.declaring import job_text
from mesh.core.credentials import make_credentials
from mesh.remote.declared import pack

GENEROUS_S = 120.0


def free_port() -> int:
    """Return a port on which nobody listens, and that the kernel gives to no client and to no other listener."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Job:
    """Two pods, each with a directory as its /mesh."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        secret = directory / "secret"
        secret.mkdir()
        (secret / "key").write_text(make_credentials(1))
        (secret / "program").write_bytes(pack())
        (secret / "variables").write_text("{}")

    def run(
        self, *command: str, pods: int = 2, name: str = "gpus", start_s: float = GENEROUS_S
    ) -> tuple[list[int], list[str]]:
        """Start pods; return the status of each, and what it has written to standard error."""
        text = job_text(name, command)
        plan = json.loads(next(yaml.safe_load_all(text))["data"]["plan.json"])
        plan |= {"port": free_port(), "python": sys.executable, "start_timeout": start_s}
        plan["begin"]["ports"] = [0]
        processes = []
        for node in range(pods):
            plan["begin"]["remote_dir"] = str(self._directory / f"pod-{node}")
            file = self._directory / f"plan-{node}.json"
            file.write_text(json.dumps(plan))
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": str(self._directory),
                "MESH_POD_NAME": f"pod-{node}",
                "MESH_POD_ADDRESS": "127.0.0.1",
                "MESH_FIRST_POD": "127.0.0.1",
                "JOB_COMPLETION_INDEX": str(node),
            }
            secret = self._directory / "secret"
            words = [sys.executable, "-I", "-S", str(secret / "program"), str(file), str(secret)]
            processes.append(subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True))
        told = [one.communicate(timeout=GENEROUS_S)[1] for one in processes]
        return [one.returncode for one in processes], told

    def printed(self, node: int) -> str:
        """Return the journals of a pod, in which is what its ranks have printed."""
        files = sorted((self._directory / f"pod-{node}").glob("machines/*/tape-*/1"))
        return "".join(file.read_text() for file in files)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    text = "gpus:\n  kubernetes: {image: x, nodes: 2}\none:\n  kubernetes: {image: x}\n"
    (tmp_path / "cluster.yaml").write_text(text)
    monkeypatch.setenv("MESH_CLUSTERS", str(tmp_path / "cluster.yaml"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return Job(tmp_path)


def test_pods_begin_a_run_and_end_with_its_status(job: Job) -> None:
    statuses, told = job.run("sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR")
    assert (statuses, told) == ([0, 0], ["", ""])
    for node in (0, 1):
        assert f"rank {node} of 2 at 127.0.0.1\n" in job.printed(node)


def test_a_rank_that_fails_ends_those_of_all_pods(job: Job) -> None:
    statuses, _ = job.run("sh", "-c", 'test "$RANK" = 1 && exit 3; exec sleep 4567')
    assert statuses == [143, 3]


def test_a_command_that_is_not_there_starts_no_rank(job: Job) -> None:
    statuses, told = job.run("no-such-command")
    assert statuses == [125, 125]
    assert "no-such-command: no such command" in told[0]
    assert (job.printed(0), job.printed(1)) == ("", "")


def test_a_run_that_ends_before_its_pod_has_left_it_has_its_status(job: Job) -> None:
    assert job.run("sh", "-c", "exit 5", pods=1, name="one") == ([5], [""])


def test_a_job_that_lacks_a_pod_begins_no_run(job: Job) -> None:
    statuses, told = job.run("true", pods=1, start_s=1.0)
    assert statuses == [125]
    assert "the run has not begun: not all 2 pods have met" in told[0]
