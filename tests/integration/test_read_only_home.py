"""A host whose home cannot be written: a run says so and what to do, and `mesh exec` works in /tmp."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
PLACE = "/tmp/mesh-home-0"


@contextlib.contextmanager
def read_only_home(host: TestHost) -> Iterator[None]:
    """Within: root's home is a file system that is mounted read-only."""
    host.script("mount -t tmpfs -o mode=0700 tmpfs /root; mount -o remount,ro /root")
    try:
        yield
    finally:
        host.unmount("/root")


def test_run_on_a_read_only_home_says_so(pod: Home, lab: Lab) -> None:
    host = lab.hosts[0]
    pod.files(a__txt="x")
    with read_only_home(host):
        for command in ("run", "push"):
            done = pod.mesh(command, "--hosts", host.address, "pod", *(["true"] if command == "run" else []))
            assert done.status == 125
            assert f"{host.address}: home: HOME is read-only: /root/.mesh" in done.err
            assert f"add to the cluster in cluster.yaml: remote_dir: {PLACE}/.mesh\n" in done.err
        pod.clusters(lab.cluster_yaml("pod", f"remote_dir: {PLACE}/.mesh"))
        done = pod.mesh("run", "--hosts", host.address, "pod", "cat", "a.txt")
        assert (done.status, done.out) == (0, b"[0] x\n")


def test_home_that_was_used_before_it_became_read_only(pod: Home, lab: Lab) -> None:
    host = lab.hosts[0]
    pod.files(a__txt="x")
    host.script("mount -t tmpfs -o mode=0700 tmpfs /root")
    try:
        assert pod.mesh("run", "--hosts", host.address, "pod", "true").status == 0
        assert eventually(lambda: not host.processes())
        host.script("mount -o remount,ro /root")
        done = pod.mesh("run", "--hosts", host.address, "pod", "true")
        assert done.status == 125
        assert f"{host.address}: home: HOME is read-only: /root/.mesh" in done.err
        assert pod.mesh("exec", "--hosts", host.address, "pod", "true").status == 0
    finally:
        host.unmount("/root")


def test_exec_on_a_read_only_home_works_in_tmp(pod: Home, lab: Lab) -> None:
    host = lab.hosts[0]
    script = "pwd; stat -c '%a %u' /tmp/mesh-home-0; touch it; head -c 3000000 /dev/zero | wc -c"
    with read_only_home(host):
        for _ in range(2):
            done = pod.mesh("exec", "pod", "sh", "-c", script)
            assert done.status == 0, done.err
            lines = [line for line in done.out.decode().splitlines() if line.startswith("[0] ")]
            assert lines[0].startswith(f"[0] {PLACE}/.mesh/workspaces/")
            assert lines[1:] == ["[0] 700 0", "[0] 3000000"]
            assert f"==> {host.address}: HOME is read-only: this command works in {PLACE}\n" in done.err
            assert done.err.count("read-only") == 1
        started = pod.mesh("exec", "-d", "--hosts", host.address, "pod", "sh", "-c", "echo up; exit 3")
        assert started.status == 0, started.err
        attached = pod.mesh("attach", "--from", "start", started.out.decode().strip())
        assert (attached.status, attached.out) == (3, b"[0] up\n")


@pytest.mark.parametrize("wrong", ["mkdir -m 777", "ln -s /var/tmp", "mkdir -m 700 --owner"])
def test_place_in_tmp_that_others_may_write_is_refused(pod: Home, lab: Lab, wrong: str) -> None:
    host = lab.hosts[0]
    make = f"mkdir -m 700 {PLACE}; chown 1 {PLACE}" if wrong.endswith("owner") else f"{wrong} {PLACE}"
    host.script(make)
    with read_only_home(host):
        done = pod.mesh("exec", "--hosts", host.address, "pod", "true")
        assert done.status == 125
        assert f"{host.address}: home: not a directory of this user alone: {PLACE}" in done.err
    assert not os.listdir(host.path(PLACE)) or wrong.startswith("ln")
