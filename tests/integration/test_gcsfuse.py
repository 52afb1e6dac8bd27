"""Buckets on test hosts: real FUSE, a fake Google Cloud Storage, and a stand-in for the program gcsfuse."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.core.module import Bucket, Gcsfuse, Step
from mesh.modules.gcsfuse import GcsfuseModule
from mesh.modules.gcsfuse_texts import ANSWER_LIMIT_S
from tests import host_steps as steps
from tests.conftest import Home
from tests.full import times
from tests.gcs import PROGRAM, FakeGcs, missing
from tests.host_steps import Place
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(missing()), reason=missing() or "nothing")]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POINT = "/srv/data"
CUTS = times(8, full=20)
SEED = 1
WITHIN_S = 300.0


# Locks as apt does, by fcntl, until a file is there.
LOCKS = """import fcntl, os, time
held = open('/var/lib/dpkg/lock-frontend', 'w')
fcntl.lockf(held, fcntl.LOCK_EX)
open('/srv/locked', 'w').close()
while not os.path.exists('/srv/go'):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def gcs(session_lab: Lab) -> Iterator[FakeGcs]:
    """Two buckets, which all hosts reach."""
    network = ".".join(session_lab.hosts[0].address.split(".")[:2])
    with FakeGcs(f"{network}.0.1") as server:
        server.bucket("mine", a__txt="hello\n")
        server.bucket("other", b__txt="other\n")
        yield server


@pytest.fixture
def host(lab: Lab, gcs: FakeGcs) -> Iterator[TestHost]:
    """A host with the stand-in for gcsfuse."""
    machine = lab.hosts[0]
    machine.path(PROGRAM).write_text(gcs.program())
    machine.path(PROGRAM).chmod(0o755)
    yield machine
    gcs.go_on()
    for point in [line.split()[4] for line in mounts(machine)]:
        machine.run("umount", "-l", point.encode().decode("unicode_escape"), check=False)
    lab.end_all(machine)
    machine.path(PROGRAM).unlink(missing_ok=True)
    machine.script("rm -rf /srv/*")


def mounts(host: TestHost) -> list[str]:
    lines = host.run("cat", "/proc/self/mountinfo").splitlines()
    return [line for line in lines if " - fuse.gcsfuse " in line]


def place(host: TestHost) -> Place:
    enter = ("nsenter", "-t", str(host.pid), "-m", "-u", "-i", "-n", "-p", "-w", "--")
    return Place(host.path(host.home), {"PATH": PATH}, enter, host.home)


def mount(bucket: str = "mine", path: str = POINT, **cache: str | int | bool) -> Step:
    description = Gcsfuse(buckets=(Bucket(name=bucket, path=path, cache=cache),))
    return GcsfuseModule(description).steps((), 0)[1]


def found(host: TestHost) -> str:
    """All files of the places where tests mount, and marks."""
    return host.run("sh", "-c", "find /srv /root -xdev ! -path '/root/.mesh' ! -path /root/.mesh/modules | sort")


def send(host: TestHost, number: int, command: str) -> None:
    """Send a signal to the host's processes whose command has a text."""
    for pid, line in host.processes():
        if command in line:
            with suppress(ProcessLookupError):  # its parent, killed before it, had ended it
                os.kill(pid, number)


def cut(host: TestHost) -> None:
    """Kill what runs of a step, also what it was about to start."""

    def is_gone() -> bool:
        send(host, signal.SIGKILL, "bash -c")
        return not any("bash -c" in line for _, line in host.processes())

    assert eventually(is_gone, WITHIN_S)


def impatient(step: Step, seconds: float) -> Step:
    """Return a step that waits so long for a mount to answer."""
    usual, texts = f"answer_s={ANSWER_LIMIT_S}\n", (step.check, step.apply, step.undo)
    assert all(usual in text for text in texts)
    check, apply, undo = (text.replace(usual, f"answer_s={seconds:g}\n") for text in texts)
    return replace(step, check=check, apply=apply, undo=undo)


def daemons(host: TestHost) -> list[int]:
    return [pid for pid, command in host.processes() if "gcsfuse --foreground" in command]


def test_a_bucket_is_mounted_once_and_undo_leaves_the_host_as_it_was(host: TestHost, gcs: FakeGcs) -> None:
    before, step = found(host), mount()
    assert steps.check(place(host), step).status != 0
    done = steps.settle(place(host), step)
    assert done.status == 0, done
    assert host.script(f"cat {POINT}/a.txt") == "hello\n"
    host.script(f"echo new >{POINT}/n.txt")
    assert eventually(lambda: "n.txt" in host.script(f"ls {POINT}"))
    [line] = mounts(host)
    assert steps.check(place(host), step).status == 0
    assert steps.apply(place(host), step).status == 0
    assert mounts(host) == [line]
    assert steps.undo(place(host), step).status == 0
    assert not mounts(host)
    assert gcs.read("mine", "n.txt") == "new\n"
    assert found(host) == before


def test_a_stale_mount_is_mounted_again(host: TestHost) -> None:
    step = mount()
    assert steps.settle(place(host), step).status == 0
    send(host, signal.SIGKILL, "gcsfuse --foreground")
    assert eventually(lambda: not host.processes())
    assert steps.check(place(host), step).status != 0
    done = steps.settle(place(host), step)
    assert done.status == 0, done
    assert host.script(f"cat {POINT}/a.txt") == "hello\n"
    assert steps.undo(place(host), step).status == 0
    assert not mounts(host)
    assert not host.path(POINT).exists()


def test_a_daemon_that_does_not_answer_is_replaced_in_time(host: TestHost) -> None:
    step, quick = mount(), impatient(mount(), 2.0)
    assert steps.settle(place(host), step).status == 0
    send(host, signal.SIGSTOP, "rclone")
    started = time.monotonic()
    assert steps.check(place(host), quick).status != 0
    assert time.monotonic() - started > 1.9
    done = steps.apply(place(host), quick)
    assert (done.status, "does not answer" in done.err) == (0, True), done
    assert steps.check(place(host), step).status == 0
    assert host.script(f"cat {POINT}/a.txt") == "hello\n"


def test_undo_removes_a_stale_mount_of_mesh(host: TestHost) -> None:
    before, step = found(host), mount()
    assert steps.settle(place(host), step).status == 0
    send(host, signal.SIGKILL, "rclone")
    assert steps.undo(place(host), step).status == 0
    assert not mounts(host)
    assert found(host) == before


def test_a_slow_bucket_does_not_hold_up_the_check(host: TestHost, gcs: FakeGcs) -> None:
    step = mount()
    assert steps.settle(place(host), step).status == 0
    gcs.stop()
    assert steps.check(place(host), step).status == 0


def test_another_bucket_at_the_path_is_refused_with_both_names(host: TestHost) -> None:
    other = mount("other")
    assert steps.settle(place(host), other).status == 0
    lines = mounts(host)
    assert steps.check(place(host), mount()).status != 0
    done = steps.apply(place(host), mount())
    assert done.status == 1
    assert "other" in done.err.splitlines()[-1]
    assert "mine" in done.err.splitlines()[-1]
    assert steps.undo(place(host), mount()).status == 0
    assert mounts(host) == lines


def test_a_path_that_is_not_empty_or_no_directory_is_refused(host: TestHost) -> None:
    host.script(f"mkdir {POINT}; touch {POINT}/precious")
    done = steps.apply(place(host), mount())
    assert done.status == 1
    assert "precious" in done.err.splitlines()[-1]
    host.script("touch /srv/file")
    done = steps.apply(place(host), mount(path="/srv/file"))
    assert done.status == 1
    assert "not a directory" in done.err.splitlines()[-1]
    host.run("mount", "-t", "tmpfs", "some", POINT)
    assert "tmpfs" in steps.apply(place(host), mount()).err.splitlines()[-1]
    host.run("umount", POINT)
    assert host.path(f"{POINT}/precious").exists()


def test_a_missing_bucket_is_named_and_leaves_nothing(host: TestHost) -> None:
    before = found(host)
    done = steps.apply(place(host), mount("nowhere"))
    assert done.status == 1
    assert "nowhere" in done.err.splitlines()[-1]
    assert "doesn't exist" in done.err.splitlines()[-1]
    assert found(host) == before


def test_a_host_without_gcsfuse_is_named(host: TestHost) -> None:
    host.path(PROGRAM).unlink()
    assert steps.check(place(host), mount()).status != 0
    done = steps.apply(place(host), mount())
    assert done.status == 1
    assert done.err.splitlines()[-1] == "gcsfuse: this host has no gcsfuse"


def test_somebody_elses_mount_is_used_and_not_touched(host: TestHost) -> None:
    host.script(f"mkdir {POINT}; gcsfuse --implicit-dirs mine {POINT}")
    lines, step = mounts(host), mount()
    assert steps.check(place(host), step).status == 0
    assert steps.apply(place(host), step).status == 0
    assert steps.undo(place(host), step).status == 0
    assert mounts(host) == lines


def test_a_later_mount_of_somebody_at_the_same_path_is_not_touched(host: TestHost) -> None:
    """The kernel may give the numbers of a mount once more. Here the mark of ours gets those of the later one."""
    step = mount()
    assert steps.settle(place(host), step).status == 0
    [ours] = mounts(host)
    host.script(f"fusermount3 -u {POINT}")
    assert eventually(lambda: not daemons(host), WITHIN_S)
    host.script(f"gcsfuse --implicit-dirs mine {POINT}")
    lines = mounts(host)
    [mark] = host.path(f"{host.home}/.mesh/modules").glob("gcsfuse-*")
    before, after = (f"mounted={' '.join(line.split()[:3:2])}\n" for line in (ours, lines[0]))
    text = mark.read_text()
    assert before in text
    mark.write_text(text.replace(before, after))
    assert steps.check(place(host), step).status == 0
    assert steps.undo(place(host), step).status == 0
    assert mounts(host) == lines


def test_other_options_mount_the_bucket_again(host: TestHost, gcs: FakeGcs) -> None:
    assert steps.settle(place(host), mount()).status == 0
    changed = mount(stat_cache_max_size_mb=-1, dir="/srv/cache dir", prefix="mkdir -p '/srv/cache dir'")
    assert steps.check(place(host), changed).status != 0
    host.script(f"cd {POINT}; exec setsid sleep 100 >/dev/null 2>&1 </dev/null &")
    assert "cannot be unmounted" in steps.apply(place(host), changed).err.splitlines()[-1]
    assert steps.check(place(host), mount()).status == 0
    send(host, signal.SIGTERM, "sleep 100")
    assert eventually(lambda: not any("sleep 100" in line for _, line in host.processes()), WITHIN_S)
    done = steps.settle(place(host), changed)
    assert done.status == 0, done
    assert "--cache-dir=/srv/cache dir" in str(host.processes())
    assert host.path("/srv/cache dir").is_dir()
    assert steps.undo(place(host), changed).status == 0
    assert not mounts(host)


def test_a_directory_in_use_is_unmounted_in_the_end(host: TestHost) -> None:
    step = mount(path="/srv/deep/er")
    assert steps.settle(place(host), step).status == 0
    host.script("cd /srv/deep/er; exec setsid sleep 100 >/dev/null 2>&1 </dev/null &")
    process = steps.start(place(host), step.undo)
    # It waits half a second after a try.
    tried = eventually(lambda: any(line.startswith("sleep 0.5") for _, line in host.processes()), WITHIN_S)
    send(host, signal.SIGTERM, "sleep 100")
    _, err = process.communicate(timeout=WITHIN_S)
    assert (tried, process.returncode) == (True, 0), err
    assert not host.path("/srv/deep").exists()


def test_a_path_with_blanks_and_a_link(host: TestHost) -> None:
    host.script("mkdir '/srv/a b'; ln -s '/srv/a b' /srv/link")
    before, step = found(host), mount(path="/srv/link/c 'd")
    done = steps.settle(place(host), step)
    assert done.status == 0, done
    assert host.run("cat", "/srv/a b/c 'd/a.txt") == "hello\n"
    assert steps.undo(place(host), step).status == 0
    assert found(host) == before


def test_a_step_that_is_cut_anywhere_can_be_repeated_and_undone(host: TestHost) -> None:
    chance, before, step = random.Random(SEED), found(host), mount(path="/srv/deep/er")
    for number in range(CUTS):
        process = steps.start(place(host), step.apply)
        time.sleep(chance.uniform(0.0, 0.8))
        cut(host)
        process.communicate()
        if number % 2:
            done = steps.settle(place(host), step)
            assert done.status == 0, (number, done)
            assert len(mounts(host)) == 1, (number, mounts(host))
            assert host.run("cat", "/srv/deep/er/a.txt") == "hello\n"
        undone = steps.undo(place(host), step)
        assert undone.status == 0, (number, undone)
        assert not mounts(host), number
        assert found(host) == before, number


def test_the_program_is_installed_as_google_has_it(host: TestHost, tmp_path: Path) -> None:
    program = GcsfuseModule(Gcsfuse(buckets=())).steps((), 0)[0]
    assert steps.check(place(host), program).status == 0
    text = host.path(PROGRAM).read_text()
    host.path(PROGRAM).unlink()
    host.path("/srv/gcsfuse").write_text(text)
    # Stand-ins for apt-get, which cannot reach Google's repository from here, and for curl.
    apt = f'case "$*" in *install*) install -m 755 /srv/gcsfuse {PROGRAM};; esac; echo apt-get "$@" >>/srv/log'
    made = {"apt-get": apt, "curl": 'echo "the key of $*"'}
    for name, line in made.items():
        host.path(f"/usr/local/bin/{name}").write_text(f"#!/bin/sh\n{line}\n")
        host.path(f"/usr/local/bin/{name}").chmod(0o755)
    try:
        host.run("sh", "-c", f'python3 -c "{LOCKS}" >/dev/null 2>&1 &')
        assert eventually(host.path("/srv/locked").exists, WITHIN_S)
        process = steps.start(place(host), program.apply)
        assert process.stderr is not None
        waits = any("waiting for apt's lock: python3 (process" in line for line in process.stderr)
        host.path("/srv/go").touch()
        _, err = process.communicate(timeout=WITHIN_S)
        assert (waits, process.returncode) == (True, 0), err
        assert steps.check(place(host), program).status == 0
    finally:
        listed = host.path("/etc/apt/sources.list.d/gcsfuse.list")
        kept = listed.read_text() if listed.exists() else ""
        host.script(
            f"rm -f /usr/local/bin/apt-get /usr/local/bin/curl {PROGRAM} {'/etc/apt/sources.list.d/gcsfuse.list'}"
        )
        host.script("rm -f /usr/share/keyrings/cloud.google.asc")
    release = "deb [signed-by=/usr/share/keyrings/cloud.google.asc] https://packages.cloud.google.com/apt gcsfuse-"
    assert kept.startswith(release)
    log = host.path("/srv/log").read_text().splitlines()
    assert [line.split()[-1] for line in log] == ["update", "gcsfuse"]
    assert all("DPkg::Lock::Timeout=600" in line for line in log)


# ---- through mesh


@pytest.fixture
def hosts(lab: Lab, host: TestHost, gcs: FakeGcs) -> Iterator[list[TestHost]]:
    """All hosts with the stand-in for gcsfuse."""
    others = lab.hosts[1:]
    for machine in others:
        machine.path(PROGRAM).write_text(gcs.program())
        machine.path(PROGRAM).chmod(0o755)
    yield lab.hosts
    for machine in others:
        for _ in mounts(machine):
            machine.run("umount", "-l", POINT, check=False)
        lab.end_all(machine)
        machine.path(PROGRAM).unlink(missing_ok=True)
        machine.script("rm -rf /srv/*")


def test_a_run_mounts_and_the_mount_outlives_run_and_agent(pod: Home, hosts: list[TestHost]) -> None:
    before = [found(machine) for machine in hosts]
    pod.files(mesh__yaml=f"modules: [gcsfuse]\ngcsfuse: {{bucket: mine, path: {POINT}}}\n")
    done = pod.mesh("run", "pod", "cat", f"{POINT}/a.txt")
    assert done.status == 0, done.err
    assert {line.partition(" ")[2] for line in done.lines} == {"hello"}, done
    assert eventually(lambda: not any("mesh-" in command for machine in hosts for _, command in machine.processes()))
    lines = [mounts(machine) for machine in hosts]
    assert all(len(line) == 1 for line in lines)
    assert hosts[3].script(f"cat {POINT}/a.txt") == "hello\n"
    assert pod.mesh("run", "pod", "cat", f"{POINT}/a.txt").status == 0
    assert [mounts(machine) for machine in hosts] == lines
    assert f": bucket mine at {POINT} (`mesh setup --undo` removes it)" in pod.mesh("check", "pod").out.decode()
    undone = pod.mesh("setup", "--undo", "pod")
    assert undone.status == 0, undone.err
    assert not any(mounts(machine) for machine in hosts)
    assert not any(machine.path(POINT).exists() for machine in hosts)
    assert all(eventually(lambda machine=machine: not daemons(machine)) for machine in hosts)
    assert [found(machine).count("\n/srv") for machine in hosts] == [text.count("\n/srv") for text in before]


def test_a_missing_bucket_starts_no_rank(pod: Home, hosts: list[TestHost]) -> None:
    pod.files(mesh__yaml=f"modules: [gcsfuse]\ngcsfuse: {{bucket: nowhere, path: {POINT}}}\n")
    done = pod.mesh("run", "pod", "touch", "/srv/started")
    assert done.status == 125
    assert f"cannot mount the bucket nowhere at {POINT}" in done.err
    assert "doesn't exist" in done.err
    assert not any(machine.path("/srv/started").exists() or machine.path(POINT).exists() for machine in hosts)
