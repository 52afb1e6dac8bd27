"""mesh check: what is found on hosts, and what to do about it."""

from __future__ import annotations

import json

import pytest

from mesh.core.events import Answered, PrepareFailed
from mesh.engine.checkup import Finding, Verdict, failed_host, host
from tests.conftest import Home
from tests.lab import Lab

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
}


def finding(name: str, clock: float = 0.0, **facts: object) -> Finding:
    (found,) = [
        one for one in host(Answered(time=0, node=0, answer={**GOOD, **facts}, clock=clock)) if one.name == name
    ]
    return found


def test_a_good_host() -> None:
    findings = host(Answered(time=0, node=0, answer=GOOD, clock=0.2))
    assert {one.verdict for one in findings} == {Verdict.OK}
    assert [one.name for one in findings] == [one.name for one in failed_host(failure("reach"))]
    assert {one.name: one.told for one in findings if one.told} == {
        "login": "me",
        "python3": "3.11.2",
        "disk": "50.0 GB free",
        "clock": "+0.2 s",
    }


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
        (finding("clock", clock=-90.0), Verdict.WARNING, "-90.0 s off ours"),
    ],
)
def test_what_facts_mean(found: Finding, verdict: Verdict, told: str) -> None:
    assert (found.verdict, found.told) == (verdict, told)
    assert bool(found.hint) == (verdict is not Verdict.OK)


def failure(step: str) -> PrepareFailed:
    return PrepareFailed(time=0, node=0, step=step, message="no", hint="do this")


def test_what_an_earlier_failure_hides_is_unknown() -> None:
    verdicts = {one.name: one.verdict for one in failed_host(failure("login"))}
    assert [verdicts.pop(name) for name in ("reachable", "host key", "login")] == [
        Verdict.OK,
        Verdict.OK,
        Verdict.FAILED,
    ]
    assert set(verdicts.values()) == {Verdict.UNKNOWN}


@root
@sshd
def test_a_healthy_cluster(pod: Home, lab: Lab) -> None:
    done = pod.mesh("check", "pod")
    assert done.status == 0, done.err
    head, *rows = done.out.decode().splitlines()
    assert head.split() == ["host", "reachable", "host", "key", "login", "python3", "bash", "home", "disk", "clock"]
    assert [row.split()[0] for row in rows] == [host.address for host in lab.hosts]
    assert all("FAILED" not in row and " root " in row for row in rows)
    assert [list(host.path("/root").iterdir()) for host in lab.hosts] == [[]] * 4  # nothing is left there
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
        third.script("umount /root/ro")
        second.old_host_key()
    names = {key: [one["name"] for one in bad] for key, bad in found.items()}
    assert names == {
        "a 127.0.0.1": ["reachable"],
        f"a {second.address}": ["host key"],
        f"a {first.address}": [],
        f"b {first.address}": ["login"],
        f"c {first.address}": ["python3"],
        f"d {third.address}": ["home"],
        f"e {fourth.address}": ["clock"],
    }
    assert found[f"e {fourth.address}"][0]["told"].startswith("-90.")
    assert f"FAILED: {second.address}: host key: " in table
    assert "    ssh-keygen -R" in table


def test_the_built_in_cluster(home: Home) -> None:
    assert home.mesh("check", "local", "--hosts", "0").out.decode().splitlines()[1].startswith("local-0  ok")
    assert home.mesh("check", "nowhere").status == 2
    assert home.mesh("check").status == 2
