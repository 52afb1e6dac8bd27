"""mesh check: what is found on hosts, and what to do about it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.agent.ask.checks import find
from mesh.backends.ssh.command_line import key_file
from mesh.check.checkup import Wanted, failed_host, host
from mesh.core.cluster import Host
from mesh.core.events import OtherRun, PrepareFailed
from mesh.core.findings import NAMES, Finding, Verdict
from mesh.remote.owners import other_line
from tests.conftest import Home
from tests.facts import facts
from tests.lab import Lab, TestHost, eventually

root = pytest.mark.root
sshd = pytest.mark.sshd
GOOD = {
    "python": "3.11.2",
    "bash": True,
    "user": "me",
    "time": 0.0,
    "place": "/home/me",
    "problem": "",
    "disk_free": 50_000_000_000,
    "disk_total": 100_000_000_000,
    "inodes_free": 1_000_000,
    "memory_free": 20_000_000_000,
    "memory_total": 64_000_000_000,
    "name": {"name": "h00"},
    "lock": None,
    "others": [],
    "sees_others": True,
    "devices": {},
    "ends_with": "",
    "programs": {},
}
LEAVES = "systemd-logind ends what a login leaves behind (KillUserProcesses): a detached run ends as its client leaves"
WANTED = Wanted(env={}, programs=("nvcc",))
OWNER = {"run": "20200101-000000-abcdef", "user": "me", "machine": "laptop", "command": "train", "watch": False}


def judged(clock: float, changes: dict[str, object]) -> list[Finding]:
    return host(facts(**{**GOOD, **changes}), clock, WANTED, lambda owner: owner.machine == "dead")


def finding(name: str, /, clock: float = 0.0, **changes: object) -> Finding:
    (found,) = [one for one in judged(clock, changes) if one.name == name]
    return found


def test_what_modules_have_left_is_named() -> None:
    told = finding("modules", modules=["bucket b at /x", "bucket c at /y"])
    assert (told.verdict, told.told) == (Verdict.OK, "bucket b at /x; bucket c at /y")


def test_the_sizes_of_workspaces() -> None:
    told = finding("workspaces", workspaces={"sizes": {"small": 4096, "large": 2_000_000}})
    assert (told.verdict, told.told) == (Verdict.OK, "large 2.0 MB, small 4.1 kB")
    late = {"error": "no answer within 2.5 s", "hint": "", "late": True}
    assert finding("workspaces", workspaces=late).verdict is Verdict.UNKNOWN


def test_a_good_host() -> None:
    findings = judged(0.2, {"programs": {"nvcc": {"place": "/usr/bin/nvcc"}}})
    assert {one.verdict for one in findings} == {Verdict.OK}
    of_others = {"modules", "worker", "versions", "network", "master port", "path", "workspaces"}
    of_others |= {"api", "rights", "admission", "schedule", "image", "shm", "slurm", "switchboard"}  # of pods and Slurm
    assert {one.name for one in findings} == set(NAMES) - of_others
    assert {one.name: one.told for one in findings if one.told} == {
        "login": "me",
        "python3": "3.11.2",
        "disk": "50.0 GB free",
        "memory": "20.0 GB free",
        "clock": "+0.2 s",
        "users": "no run of another user; mesh's lock counts for one Unix user alone",
        "program": "/usr/bin/nvcc",
    }


def test_a_program_may_be_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "madengine"
    found = [find(str(file), b"/bin")]
    file.write_text("")
    found.append(find(str(file), b"/bin"))
    file.chmod(0o755)
    assert [*found, find(str(file), b"/bin"), find("madengine", os.fsencode(tmp_path))] == [
        "",
        "",
        str(file),
        str(file),
    ]


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (finding("bash", bash=False), Verdict.WARNING, "not found"),
        (
            finding("home", problem="Permission denied"),
            Verdict.FAILED,
            "cannot write below /home/me: Permission denied",
        ),
        (finding("disk", disk_free=60_000_000), Verdict.FAILED, "0.1 GB free"),
        (finding("disk", disk_free=4_000_000_000), Verdict.WARNING, "4.0 GB free (4 %)"),
        (finding("disk", inodes_free=3), Verdict.WARNING, "only 3 more files can be made"),
        (finding("disk", inodes_free=-1), Verdict.OK, "50.0 GB free"),
        (finding("memory", memory_free=1_000_000_000), Verdict.WARNING, "1.0 GB free (2 %)"),
        (finding("clock", clock=-90.0), Verdict.WARNING, "-90.0 s off ours"),
        (
            finding("name", name={"name": "x", "error": "unknown"}),
            Verdict.WARNING,
            "it cannot resolve its own name, x: unknown",
        ),
        (finding("logout", ends_with="login"), Verdict.WARNING, LEAVES),
        (
            finding("logout", ends_with="logins"),
            Verdict.WARNING,
            "a detached run ends with the last login of me, who does not linger",
        ),
        (finding("devices", devices={"error": "accel0 is held", "hint": "wait"}), Verdict.FAILED, "accel0 is held"),
        (
            finding("program", programs={"nvcc": {"place": ""}}),
            Verdict.FAILED,
            "nvcc: not found on the PATH of the ranks",
        ),
        (finding("lock", lock=OWNER), Verdict.FAILED, "busy with me on laptop: train (run 20200101-000000-abcdef)"),
        (finding("lock", lock={}), Verdict.FAILED, "busy with a run that gave no details"),
        (
            finding("lock", lock={**OWNER, "machine": "dead"}),
            Verdict.WARNING,
            "a run whose client is over: me on dead: train (run 20200101-000000-abcdef)",
        ),
        (
            finding("lock", lock={**OWNER, "watch": True}),
            Verdict.WARNING,
            "its workspace is being synced: me on laptop: train (run 20200101-000000-abcdef)",
        ),
        (
            finding("users", sees_others=False),
            Verdict.WARNING,
            "the runs of other users cannot be seen: no directory there may be written by all",
        ),
        (
            finding("users", clock=10.0, others=[{"user": "ana", "run": "r", "since": 1e9}]),
            Verdict.WARNING,
            f"also used by {other_line(OtherRun(user='ana', run='r', since=1e9 - 10.0))}",
        ),
    ],
)
def test_what_facts_mean(found: Finding, verdict: Verdict, told: str) -> None:
    assert (found.verdict, found.told) == (verdict, told)
    assert bool(found.hint) == (verdict is not Verdict.OK)


def failure(step: str) -> PrepareFailed:
    return PrepareFailed(time=0, node=0, step=step, message="no", hint="do this")


def test_a_key_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    key = tmp_path / "my key"
    key.touch(0o600)
    host = Host(name="h", address="h", identity_file=str(key))
    assert key_file(host) == []
    key.chmod(0o644)
    (found,) = key_file(host)
    told = f"{key} can be read by others, so that ssh does not use it"
    assert (found.verdict, found.told, found.hint) == (Verdict.WARNING, told, f"chmod 600 '{key}'")


def test_what_an_earlier_failure_hides_is_unknown() -> None:
    verdicts = {one.name: one.verdict for one in failed_host(failure("login"), WANTED)}
    assert [verdicts.pop(name) for name in ("reachable", "host key", "login")] == [
        Verdict.OK,
        Verdict.OK,
        Verdict.FAILED,
    ]
    assert set(verdicts.values()) == {Verdict.UNKNOWN}


@root
@sshd
def test_a_healthy_cluster(pod: Home, lab: Lab) -> None:
    before = [list(host.path("/root").iterdir()) for host in lab.hosts]  # the machine's Python may stand there
    done = pod.mesh("check", "pod")
    assert done.status == 0, done.err
    head, *rows, rest = done.out.decode().splitlines()
    assert head.split() == ["host", "login", "python3", "disk", "memory", "clock", "network"]
    ordinary = "reachable, host key, bash, home, name, lock, users, devices, logout, versions, master port"
    assert rest == f"ok everywhere: {ordinary}"
    assert [row.split()[0] for row in rows] == [host.address for host in lab.hosts]
    assert all("FAILED" not in row and " root " in row for row in rows)
    assert [list(host.path("/root").iterdir()) for host in lab.hosts] == before  # nothing is left there
    assert not (pod.path / ".local/state/mesh").exists()


@root
@sshd
def test_every_kind_of_failure_at_once(home: Home, lab: Lab) -> None:
    """One host each: unreachable, another host key, no login, no Python, an unwritable home, a skewed clock."""
    first, second, third, fourth = lab.hosts
    home.trust(lab)
    second.new_host_key()
    wrong = home.path / "wrong"
    wrong.write_bytes((home.path / ".ssh/known_hosts").read_bytes())  # no key at all
    wrong.chmod(0o644)
    third.script("mkdir /root/ro; mount -t tmpfs -o ro tmpfs /root/ro")
    # A Python whose clock is 90 s slow.
    skewed = "import sys, time; real = time.time; time.time = lambda: real() - 90; exec(sys.argv[4])"
    fourth.script(f"printf '#!/usr/bin/python3 -IS\\n%s\\n' '{skewed}' > /root/skewed; chmod +x /root/skewed")
    common = f"  user: root\n  identity_file: {lab.identity}\n"
    home.clusters(
        f"a:\n{common}  hosts: ['127.0.0.1:1', {second.address}, {first.address}]\n"
        f"b:\n  user: root\n  identity_file: {wrong}\n  hosts: [{first.address}]\n"
        f"c:\n{common}  python: python2.0\n  hosts: [{first.address}]\n"
        f"d:\n{common}  remote_dir: /root/ro/mesh\n  hosts: [{third.address}]\n"
        f"e:\n{common}  python: /root/skewed\n  hosts: [{fourth.address}]\n"
    )
    found: dict[str, list[dict[str, str]]] = {}
    try:
        table = home.mesh("check", "a").out.decode()
        for cluster, status in (("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 0)):
            done = home.mesh("check", "--json", cluster)
            assert done.status == status, done.err
            for report in json.loads(done.out):
                bad = [one for one in report["checks"] if one["verdict"] in ("failed", "warning")]
                assert report["ok"] is (not any(one["verdict"] == "failed" for one in bad))
                assert all(one["hint"] for one in bad)
                found[f"{cluster} {report['host']}"] = bad
    finally:
        third.unmount("/root/ro")
        second.old_host_key()
    names = {key: [one["name"] for one in bad] for key, bad in found.items()}
    assert names == {
        "a 127.0.0.1": ["reachable"],
        f"a {second.address}": ["host key"],
        f"a {first.address}": [],
        f"b {first.address}": ["login", "login"],
        f"c {first.address}": ["python3"],
        f"d {third.address}": ["home"],
        f"e {fourth.address}": ["clock"],
    }
    assert abs(float(found[f"e {fourth.address}"][0]["detail"].split()[0]) + 90) < 30  # measured on a busy machine
    assert f"FAILED: {second.address}: host key: " in table
    assert found[f"b {first.address}"][1]["hint"] == f"chmod 600 {wrong}"
    assert "    ssh-keygen -R" in table


CLOCK = "import sys, time; real = time.time; time.time = lambda: real() - 90; exec(sys.argv[4])"
HOLD = "import sys, time; file = open(sys.argv[1]); time.sleep(1000)"
# As a firewall does; what is for the host itself is looked up by the rule 0, which must come after ours.
DROP = "ip rule add pref 2 lookup local; ip rule del pref 0; ip rule add pref 1 iif eth0 {} blackhole"
ACCEPT = "ip rule add pref 0 lookup local; ip rule del pref 1; ip rule del pref 2"
PACKAGES = "/root/.local/lib/python3.11/site-packages"


def holds(host: TestHost, path: str) -> bool:
    """Return True if a process of a host has a file open. path: its end"""
    for pid, _ in host.processes():
        with contextlib.suppress(OSError):
            if any(os.readlink(link).endswith(path) for link in Path(f"/proc/{pid}/fd").iterdir()):
                return True
    return False


@contextlib.contextmanager
def faults(lab: Lab) -> Iterator[None]:
    """On all four hosts: what keeps a run from starting, or lets it hang."""
    first, second, third, fourth = lab.hosts
    with contextlib.ExitStack() as undo:

        def plant(host: TestHost, fault: str, repair: str) -> None:
            host.script(fault)
            undo.callback(host.script, repair)

        for host in lab.hosts:
            host.script("mkdir -p bin /srv/data; ln -s /usr/bin/python3.11 bin/agent; touch accel0")
            undo.callback(host.script, "rm -rf /srv/data")
            jax = "0.4.35" if host is third else "0.4.30"
            host.script(f"mkdir -p {PACKAGES}/jax-{jax}.dist-info .local/bin; ln -s /bin/true .local/bin/tool")
        # Packets to the port where the ranks meet are dropped, as by a firewall.
        plant(first, DROP.format("ipproto tcp dport 5000"), ACCEPT)
        # A disk that is full but for 1 MB, a path that is not mounted, a device that is held, no such program.
        second.script("mkdir tiny; mount -t tmpfs -o size=1m tmpfs tiny")
        undo.callback(second.unmount, "/root/tiny")
        second.script("rm -r /srv/data .local/bin/tool")
        second.script(f"setsid /usr/bin/python3.11 -c '{HOLD}' /root/accel0 >/dev/null 2>&1 &")
        undo.callback(lab.end_all, second)
        assert eventually(lambda: holds(second, "/accel0"))
        # Another jax, a clock that is 90 s slow, a name that nobody knows.
        third.script(
            f"printf '#!/usr/bin/python3 -IS\\n%s\\n' '{CLOCK}' > skewed; chmod +x skewed; mv skewed bin/agent"
        )
        plant(third, "cp /etc/hosts hosts; grep -v h02 hosts > /etc/hosts", "cp hosts /etc/hosts")
        # Another MTU, a python3 that is broken, and nothing comes from the third host.
        plant(fourth, "ip link set eth0 mtu 1280", "ip link set eth0 mtu 1500")
        fourth.script(
            "printf '#!/bin/sh\\necho no such library; exit 1\\n' > .local/bin/python3; chmod +x .local/bin/python3"
        )
        plant(fourth, DROP.format(f"from {third.address}"), ACCEPT)
        yield


@root
@sshd
def test_every_fault_is_found_where_it_is(home: Home, lab: Lab) -> None:
    """Thirteen faults on four hosts: each is told of its host, with a remedy, and nothing else is."""
    first, second, third, fourth = lab.hosts
    home.trust(lab)
    settings = ("python: /root/bin/agent", "remote_dir: ~/tiny/mesh", "devices: [/root/accel*]")
    home.clusters(lab.cluster_yaml("pod", *settings))
    lookfor = ("--path", "/srv/data", "--program", "tool", "--master-port", "5000")
    with faults(lab):
        # The lock is per remote_dir; that of the first host is held by a run.
        run = home.popen("run", "--hosts", first.address, "pod", "sleep", "1000")
        try:
            assert eventually(lambda: any("sleep 1000" in command for _, command in first.processes()))
            done = home.mesh("check", "--json", *lookfor, "pod")
        finally:
            run.terminate()
            run.communicate()
    assert done.status == 1, done.err
    found: dict[str, set[tuple[str, str]]] = {}
    for report in json.loads(done.out):
        bad = [one for one in report["checks"] if one["verdict"] in ("failed", "warning")]
        assert all(one["detail"] and one["hint"] for one in bad)
        found[report["host"]] = {(one["verdict"], one["name"]) for one in bad}
    assert found == {
        first.address: {("failed", "lock"), ("failed", "master port")},
        second.address: {("failed", "disk"), ("failed", "path"), ("failed", "devices"), ("failed", "program")},
        third.address: {("failed", "versions"), ("failed", "network"), ("warning", "clock"), ("warning", "name")},
        fourth.address: {("failed", "network"), ("warning", "network"), ("warning", "versions")},
    }


def test_the_built_in_cluster(home: Home) -> None:
    assert home.mesh("check", "local", "--hosts", "0").out.decode().splitlines()[1].startswith("local-0  ")
    assert home.mesh("check", "nowhere").status == 2
    assert home.mesh("check").status == 2
