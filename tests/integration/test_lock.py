"""One run per host at a time; what runs where, ended from anywhere; what is left behind, removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home, read_until
from tests.lab import Lab, TestHost, eventually, is_agent

pytestmark = [pytest.mark.root, pytest.mark.sshd]

ROUNDS = int(os.environ.get("MESH_LOCK_ROUNDS", "4"))  # docs/reliability.md tells of 50, on eight hosts
MANY_ROUNDS = 20


def start(pod: Home, *words: str, ranks: int = 4) -> subprocess.Popen[bytes]:
    """Start a run and wait until every rank has said something."""
    process = pod.popen(*words)
    assert process.stdout is not None
    for _ in range(ranks):
        assert process.stdout.readline()
    return process


def run_of(pod: Home) -> str:
    return max(path.name for path in (pod.path / ".local/state/mesh/runs").iterdir())


@pytest.fixture
def contended(lab: Lab) -> Iterator[Lab]:
    """Hosts that two clients want: four, or eight of their own where there are many rounds."""
    if ROUNDS < MANY_ROUNDS:
        yield lab
        return
    with Lab(8, visible=[Path(sys.prefix), Path(sys.base_prefix), REPOSITORY]) as eight:
        yield eight


def both_orders(home: Home, lab: Lab) -> None:
    """Make the clusters ``pod`` and ``back`` of the same hosts, in opposite orders."""
    back = lab.cluster_yaml("back", hosts=lab.hosts[::-1])
    home.clusters(lab.cluster_yaml() + back)
    home.trust(lab)


def test_two_clients_at_once(home: Home, contended: Lab) -> None:
    """All hosts or none: one of them wins, the other one changes nothing."""
    both_orders(home, contended)
    for round_ in range(ROUNDS):
        # Two clusters of the same hosts in another order cannot agree on who is first: then both may lose.
        names = ("pod", "pod") if round_ % 4 else ("pod", "back")
        over = f"/tmp/over-{round_}"
        wait = f"echo $RANK; while ! [ -e {over} ]; do sleep 0.02; done"
        clients = [home.popen("run", name, "sh", "-c", wait) for name in names]
        assert eventually(lambda ours=clients: any(client.poll() is not None for client in ours), PATIENCE)
        for host in contended.hosts:
            host.path(over).touch()
        done = [client.communicate(timeout=60) for client in clients]
        statuses = sorted(client.returncode for client in clients)
        assert statuses == [0, 75] or (names[0] != names[1] and statuses == [75, 75]), done
        for (out, err), client in zip(done, clients, strict=True):
            assert len(out.splitlines()) == (len(contended.hosts) if client.returncode == 0 else 0)
            assert client.returncode == 0 or b"busy with" in err
        assert eventually(lambda: not any(host.processes() for host in contended.hosts))


def test_those_who_wait_have_their_turn(home: Home, lab: Lab) -> None:
    """Also those whose clusters have the same hosts in another order: nobody keeps a host while waiting."""
    both_orders(home, lab)
    script = "mkdir ~/alone || exit 9; sleep 0.3; rmdir ~/alone"
    clients = [home.popen("run", "--wait", "240", name, "sh", "-c", script) for name in ("pod", "back", "pod")]
    for client in clients:
        _, err = client.communicate(timeout=300)
        assert client.returncode == 0, err
        assert err.count(b"waiting for") <= 1


def test_waiting_ends_in_time(pod: Home) -> None:
    holder = start(pod, "run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    done = pod.mesh("run", "--wait", "1", "pod", "true")
    assert done.status == 75
    assert "waiting for " in done.err
    assert "for 1 s at most" in done.err
    waiter = pod.popen("run", "--wait", "pod", "true")
    read_until(waiter.stderr, b"waiting for")
    (line,) = [line for line in json.loads(pod.mesh("ps", "pod", "--json").out) if line["state"] == "waiting"]
    assert line["command"] == "true"
    holder.send_signal(signal.SIGINT)
    holder.communicate(timeout=60)
    waiter.communicate(timeout=60)
    assert waiter.returncode == 0


@pytest.mark.parametrize("how", ["killed", "interrupted thrice"])
def test_the_dead_keep_nobody_waiting(pod: Home, lab: Lab, how: str) -> None:
    """A client that is killed and started again at once has the cluster without waiting for a lease."""
    stubborn = "trap '' TERM INT; echo up; while :; do sleep 1; done"
    process = start(pod, "run", "--grace", "1", "pod", "bash", "-c", stubborn)
    if how == "killed":
        process.kill()
    else:
        for host in lab.hosts:
            for pid, command in host.processes():
                if is_agent(command):
                    os.kill(pid, signal.SIGSTOP)
        for said in (b"stopping 4 ranks", b"killing"):
            process.send_signal(signal.SIGINT)
            read_until(process.stderr, said)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        for host in lab.hosts:
            for pid, command in host.processes():
                if is_agent(command):
                    os.kill(pid, signal.SIGCONT)
    done = pod.mesh("run", "pod", "sh", "-c", "echo mine")
    process.communicate()
    assert done.status == 0, done.err
    assert done.lines == [f"[{rank}] mine" for rank in range(4)]
    assert not any("while" in command for host in lab.hosts for _, command in host.processes())


def test_ps_and_stop_from_another_machine(pod: Home, lab: Lab, own_place: Path, tmp_path: Path) -> None:
    process = start(pod, "run", "--nproc", "2", "pod", "sh", "-c", "trap '' TERM; echo up; sleep 1000", ranks=8)
    run = run_of(pod)
    elsewhere = Home(tmp_path / "elsewhere", tmp_path, {**pod.environ, "HOME": str(tmp_path / "elsewhere")})
    elsewhere.clusters(lab.cluster_yaml())
    elsewhere.trust(lab)
    head, line = elsewhere.mesh("ps", "pod").out.decode().splitlines()
    assert head.split() == ["run", "cluster", "owner", "age", "hosts", "ranks", "state", "devices", "command"]
    words = line.split()
    assert (words[0], words[1], words[4], words[5], words[6]) == (run, "pod", "4", "8", "running")
    every = json.loads(elsewhere.mesh("ps", "--json").out)  # of every cluster, and of this machine
    (told,) = [one for one in every if one["run"] == run]
    assert told["run"] == run
    assert told["hosts"] == [host.address for host in lab.hosts]
    assert elsewhere.mesh("stop", "2999", "--cluster", "pod").status == 2
    done = elsewhere.mesh("stop", run[:11], "--cluster", "pod", "--grace", "0.5")
    assert (done.status, done.out.decode()) == (0, f"stopped {run}\n"), done.err
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"ended by SIGTERM" in err
    assert not any("sleep" in command for host in lab.hosts for _, command in host.processes())
    assert elsewhere.mesh("ps", "pod").out == b"no run is there\n"
    assert pod.mesh("stop", "last").out == b"nothing to stop: the last run of this machine has ended already\n"


def test_stop_all(pod: Home, lab: Lab) -> None:
    runs = [start(pod, "exec", "pod", "sh", "-c", "echo up; exec sleep 1000") for _ in range(2)]
    assert pod.mesh("stop", "--all").status == 2
    assert pod.mesh("stop").status == 2
    done = pod.mesh("stop", "--all", "--cluster", "pod")
    assert (done.status, done.out.count(b"stopped ")) == (0, 2), done.err
    for run in runs:
        run.communicate(timeout=60)
        assert run.returncode == 143


def test_a_run_whose_client_is_away_is_stopped_as_well(pod: Home, lab: Lab) -> None:
    process = start(pod, "run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    process.send_signal(signal.SIGSTOP)
    done = pod.mesh("stop", "last")
    assert (done.status, done.out.decode()) == (0, f"stopped {run_of(pod)}\n"), done.err
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_share_runs_beside(pod: Home, lab: Lab) -> None:
    pod.files(data__txt="one")
    holder = start(pod, "run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert pod.mesh("run", "pod", "true").status == 75
    assert pod.mesh("run", "--share", "--wait", "pod", "true").status == 2
    done = pod.mesh("run", "--share", "pod", "sh", "-c", "cat data.txt; echo; touch made; pwd")
    assert done.status == 0, done.err
    assert [line for line in done.lines if "one" in line] == [f"[{rank}] one" for rank in range(4)]
    for host in lab.hosts:
        assert not list(host.path("/root/.mesh/machines").glob("*/share-*"))
        assert not list(host.path("/root/.mesh/workspaces").glob("*/made"))
    holder.send_signal(signal.SIGINT)
    holder.communicate(timeout=60)


def test_clean(pod: Home, lab: Lab) -> None:
    assert pod.mesh("run", "pod", "true").status == 0
    first, second = lab.hosts[:2]
    (machine,) = first.path("/root/.mesh/machines").iterdir()
    spool = machine / "spool-20200101-000000-abcdef-0"
    spool.mkdir()
    (spool / "1").write_bytes(b"x" * 1000)
    (machine / "pack-999999").write_bytes(b"y" * 500)
    (machine / "modules").mkdir()
    (machine / "modules/incoming-999999").write_bytes(b"z" * 700)
    second.script("MESH_RUN_ID=20200101-000000-abcdef setsid sleep 4999 >/dev/null 2>&1 </dev/null &")
    second.script("MESH_RUN_ID=20200101-000000-abcdef MESH_SETUP=1 setsid sleep 4998 >/dev/null 2>&1 </dev/null &")
    assert eventually(lambda: sorted(c for _, c in second.processes()) == ["sleep 4998 ", "sleep 4999 "])
    (orphaned,) = json.loads(pod.mesh("ps", "pod", "--json").out)
    assert (orphaned["state"], orphaned["hosts"]) == ("orphaned", [second.address])
    listed = pod.mesh("clean", "pod", "--dry-run")
    assert listed.out.decode().splitlines()[-1].startswith("would be removed: "), listed.out
    assert spool.exists()
    found = json.loads(pod.mesh("clean", "pod", "--json").out)
    # The hosts of all labs on this machine share its control groups.
    found = [item for item in found if "/sys/fs/cgroup/" not in item["what"]]
    assert sorted((item["host"], item["bytes"]) for item in found) == [
        (first.address, 500),
        (first.address, 700),
        (first.address, 1000),
        (second.address, 0),
    ]
    assert not spool.exists()
    assert eventually(lambda: [c for _, c in second.processes()] == ["sleep 4998 "])
    found = json.loads(pod.mesh("clean", "pod", "--json").out)
    assert [item for item in found if "/sys/fs/cgroup/" not in item["what"]] == []
    lab.end_all(second)


def test_clean_touches_no_run_that_lives(pod: Home, lab: Lab) -> None:
    """Not one whose agent is slow, not one whose door was deleted, not one of another user."""
    process = start(pod, "run", "--host-grace", "60", "pod", "sh", "-c", "echo up; exec sleep 1000")
    first, second, third = lab.hosts[:3]
    third.script("MESH_RUN_ID=x setpriv --reuid 65534 --clear-groups setsid sleep 4996 >/dev/null 2>&1 </dev/null &")
    assert eventually(lambda: any(command.startswith("sleep 4996") for _, command in third.processes()))
    stopped = [pid for pid, command in first.processes() if is_agent(command)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    second.script("rm -r /tmp/mesh-0")
    try:
        done = pod.mesh("clean", "pod", "--hosts", ",".join(host.address for host in lab.hosts[:3]))
        assert done.status == 1, done.err
        told = f"{first.address}: run {run_of(pod)}: its agent does not answer, so nobody could look"
        assert told in done.out.decode()
        listed = json.loads(pod.mesh("ps", "pod", "--json").out)
        assert [line["state"] for line in listed] == ["running,not answering"]
        assert listed[0]["command"].startswith("sh -c")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    for host in lab.hosts[:3]:
        assert any("sleep 1000" in command for _, command in host.processes())
    assert any("sleep 4996" in command for _, command in third.processes())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    lab.end_all(third)


def test_stop_last_means_the_one_that_runs(pod: Home) -> None:
    process = start(pod, "run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert pod.mesh("run", "pod", "true").status == 75
    assert pod.mesh("stop", "last").out.startswith(b"stopped ")
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert pod.mesh("stop", "20260101-000000-abcdef").status == 2  # nobody knows that one


def test_stop_last_means_the_one_that_goes_on_by_itself(pod: Home) -> None:
    """Whatever has run and ended since."""
    run = pod.mesh("run", "-d", "pod", "sleep", "1000").out.decode().strip()
    assert pod.mesh("exec", "pod", "true").status == 0
    assert pod.mesh("stop", "last").out == f"stopped {run}\n".encode()


def logins(host: TestHost) -> int:
    """How often somebody has logged in there."""
    return host.path("/var/log/sshd.log").read_text().count("Accepted publickey")


def is_local(line: bytes) -> bool:
    """Return True for a run of another test: this machine may have it, on ``local``, as a job or without a cluster."""
    return line.split()[1] not in (b"first", b"second", b"third", b"fourth", b"pod")


def test_ps_asks_each_host_of_all_clusters_once(pod: Home, lab: Lab) -> None:
    """A host whose cable is cut stands in three clusters, one that refuses connections in two."""
    clusters = [lab.cluster_yaml("first", hosts=lab.hosts[:2])]
    clusters += [lab.cluster_yaml(name, hosts=lab.hosts) for name in ("second", "third", "fourth")]
    refusing = f'- "{lab.hosts[2].address}:9"\n'
    pod.clusters("".join(clusters).replace(f"- {lab.hosts[2].address}\n", refusing))
    run = pod.mesh("run", "-d", "first", "sleep", "1000").out.decode().strip()
    lab.hosts[3].cut()
    before = [logins(host) for host in lab.hosts[:2]]
    process = pod.popen("ps")
    assert process.stdout is not None
    head = process.stdout.readline()
    line = next(line for line in process.stdout if not is_local(line))
    assert process.poll() is None  # it waits for the host that does not answer
    assert head.split()[:2] == [b"run", b"cluster"]
    assert line.split()[:2] == [run.encode(), b"first"]
    assert line.split()[4:6] == [b"2", b"2"]  # hosts and ranks
    rest = process.stdout.read()  # with all that was read ahead, which communicate() passes over
    _, err = process.communicate(timeout=60)
    assert process.returncode == 125
    assert [line for line in rest.splitlines() if not is_local(line)] == []
    assert [err.decode().count(f"{host.address}: cannot connect") for host in lab.hosts] == [0, 0, 1, 1]
    assert "no answer within 4 s" in err.decode()
    assert [logins(host) for host in lab.hosts[:2]] == [number + 1 for number in before]
    assert pod.mesh("stop", run).status == 0


def test_ps_gives_up_a_host_that_takes_the_login_and_never_answers(pod: Home, lab: Lab) -> None:
    lab.hosts[0].script("printf '#!/bin/sh\\nexec sleep 1000\\n' > /tmp/stuck; chmod +x /tmp/stuck")
    lab.hosts[0].set_shell("/tmp/stuck")
    done = pod.mesh("ps")
    lab.end_all(lab.hosts[0])
    assert done.status == 125
    assert f"{lab.hosts[0].address}: no answer within 5 s\n" in done.err
    assert not any(f"{host.address}: " in done.err for host in lab.hosts[1:])


def test_what_cannot_be_asked_is_told(pod: Home) -> None:
    file = pod.path / ".config/mesh/cluster.yaml"
    file.write_text(file.read_text() + "bad:\n  hosts: 3\n")
    done = pod.mesh("ps")
    assert done.status == 125
    assert "bad: not asked: " in done.err


def test_a_device_of_a_cluster(home: Home, lab: Lab) -> None:
    """Held by somebody, the run does not start; by the run, `mesh ps` tells."""
    home.clusters(lab.cluster_yaml("pod", "devices: [/root/dev/chip*]"))
    home.trust(lab)
    first = lab.hosts[0]
    for host in lab.hosts:
        host.script("mkdir dev; touch dev/chip0 dev/chip1")
    first.script("setsid sleep 4997 <dev/chip1 >/dev/null 2>&1 &")
    assert eventually(lambda: [c for _, c in first.processes()] == ["sleep 4997 "])
    done = home.mesh("run", "pod", "echo", "started")
    assert (done.status, done.out) == (125, b"")
    assert f"{first.address}: devices: /root/dev/chip1 is held by pid " in done.err
    assert "sleep 4997" in done.err
    assert "--evict" in done.err
    process = start(home, "run", "--evict", "pod", "sh", "-c", "exec <$HOME/dev/chip0; echo up; sleep 1000")
    (line,) = json.loads(home.mesh("ps", "pod", "--json").out)
    assert line["devices"] == [f"{host.address}:/root/dev/chip0" for host in lab.hosts]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
