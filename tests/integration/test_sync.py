"""The workspace on its way: how much travels, along which links, and what happens when something fails on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mesh.remote.blob import blob
from tests.conftest import Home
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

MB = 1_000_000


def pushed(home: Home, *words: str) -> tuple[int, list[dict[str, object]]]:
    """Push to the cluster; bytes that left for all hosts, and the synced events."""
    done = home.mesh("push", "--json", *words, "pod")
    assert done.status == 0, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    synced = [event for event in events if event["event"] == "synced"]
    return sum(event["bytes"] for event in synced), synced


def workspace(host: TestHost) -> Path:
    (found,) = [path for path in host.path("/root/.mesh/workspaces").iterdir() if not path.name.startswith(".")]
    return found


def same_everywhere(lab: Lab, project: Path) -> bool:
    """Compare by diff, and not by our own means."""
    compare = ["diff", "-r", "--no-dereference", str(project)]
    return not any(subprocess.run([*compare, str(workspace(host))], check=False).returncode for host in lab.hosts)


def no_host_listens(lab: Lab) -> bool:
    """Return True once only sshd listens on each host, on IPv4 and IPv6."""
    return eventually(lambda: all(host.run("ss", "-Hltn").count("LISTEN") == 2 for host in lab.hosts))


def test_a_large_pack_leaves_about_once(pod: Home, lab: Lab) -> None:
    for number in range(6):
        (pod.project / f"f{number}").write_bytes(os.urandom(MB))
    counter = Path(f"/sys/class/net/{lab.link}/statistics/tx_bytes")
    before = int(counter.read_text())
    sent, synced = pushed(pod)
    assert len(synced) == 4
    assert sent < 1.2 * 6 * MB
    # The interface counts the agents and the packets' own bytes as well.
    assert int(counter.read_text()) - before < 1.2 * (6 * MB + 4 * len(blob()))
    assert same_everywhere(lab, pod.project)
    assert no_host_listens(lab)
    assert pushed(pod)[0] < 10_000


def test_no_fanout(pod: Home, lab: Lab) -> None:
    (pod.project / "f").write_bytes(os.urandom(2 * MB))
    assert pushed(pod, "--no-fanout")[0] > 8 * MB
    assert same_everywhere(lab, pod.project)


def test_hosts_that_cannot_reach_each_other(home: Home, lab: Lab) -> None:
    """Who cannot fetch gets it from us: here nobody can from the second and the third."""
    addresses = [host.address for host in lab.hosts]
    listed = "".join(
        f"    - {{host: {address}{', internal_ip: 127.0.0.1' if number in (1, 2) else ''}}}\n"
        for number, address in enumerate(addresses)
    )
    home.clusters(f"pod:\n  user: root\n  identity_file: {lab.identity}\n  hosts:\n{listed}")
    home.trust(lab)
    (home.project / "f").write_bytes(os.urandom(2 * MB))
    sent, synced = pushed(home)
    assert len(synced) == 4
    assert 2 * MB < sent < 7 * MB
    assert same_everywhere(lab, home.project)


def test_hosts_without_ssl(pod: Home, lab: Lab) -> None:
    """They can neither hand on nor fetch: one of them at least is not the first."""
    library = lab.hosts[0].script("python3 -c 'import _ssl; print(_ssl.__file__)'").strip()
    (pod.project / "f").write_bytes(os.urandom(2 * MB))
    lacking = lab.hosts[:2]
    for host in lacking:
        host.run("mount", "--bind", "/dev/null", library)
    try:
        _, synced = pushed(pod)
    finally:
        for host in lacking:
            host.unmount(library)
    assert len(synced) == len(lab.hosts)
    assert same_everywhere(lab, pod.project)


def test_what_was_there_before_travels_nothing(pod: Home, lab: Lab) -> None:
    for name in ("a", "b"):
        (pod.project / name).write_bytes(os.urandom(MB))
    pushed(pod)
    (pod.project / "a").rename(pod.project / "renamed")
    assert pushed(pod)[0] < 10_000
    (pod.project / "copy").write_bytes((pod.project / "b").read_bytes())
    assert pushed(pod)[0] < 10_000
    old = (pod.project / "b").read_bytes()
    (pod.project / "b").write_bytes(b"other")
    (pod.project / "copy").unlink()
    pushed(pod)
    (pod.project / "b").write_bytes(old)
    assert pushed(pod)[0] < 10_000  # it was in the store
    assert same_everywhere(lab, pod.project)


def test_a_large_file_that_changed_a_little(pod: Home, lab: Lab) -> None:
    data = bytearray(os.urandom(5 * MB))
    (pod.project / "big").write_bytes(data)
    pushed(pod)
    data[2 * MB : 2 * MB + 100] = b"x" * 150
    (pod.project / "big").write_bytes(data)
    assert pushed(pod)[0] < 4 * 500_000
    assert same_everywhere(lab, pod.project)


def test_an_edit_of_the_same_size_within_the_same_second(pod: Home, lab: Lab) -> None:
    file = pod.project / "main.py"
    for number in range(3):
        file.write_text(f"print({number})\n")
        os.utime(file, ns=(10**18, 10**18))
        done = pod.mesh("run", "pod", "cat", "main.py")
        assert done.lines == [f"[{rank}] print({number})" for rank in range(4)], done.err


def test_what_hosts_have_done_to_it_is_repaired(pod: Home, lab: Lab) -> None:
    pod.files(a="one", b="two")
    pushed(pod)
    first, second = lab.hosts[:2]
    (workspace(first) / "a").write_text("ONE")
    (workspace(second) / "b").unlink()
    (workspace(second) / "made").write_text("by the host")
    pushed(pod)
    assert (workspace(first) / "a").read_text() == "one"
    assert (workspace(second) / "b").read_text() == "two"
    assert (workspace(second) / "made").exists()
    pushed(pod, "--fresh")
    assert same_everywhere(lab, pod.project)


def test_a_damaged_store_is_found_out(pod: Home, lab: Lab) -> None:
    (pod.project / "a").write_bytes(b"first" * 1000)
    pushed(pod)
    (pod.project / "a").write_bytes(b"other" * 1000)
    pushed(pod)
    kept = [path for path in lab.hosts[0].path("/root/.mesh/store").rglob("*") if path.is_file()]
    (damaged,) = [path for path in kept if path.read_bytes().startswith(b"first")]
    damaged.write_bytes(b"wrong" * 1000)
    (pod.project / "a").write_bytes(b"first" * 1000)
    pushed(pod)
    assert same_everywhere(lab, pod.project)


def test_a_damaged_record_is_no_obstacle(pod: Home, lab: Lab) -> None:
    pod.files(a="one", b="two")
    pushed(pod)
    (record,) = lab.hosts[0].path("/root/.mesh/workspaces").glob(".*.record")
    first, _, rest = record.read_bytes().partition(b"\n")
    record.write_bytes(first + b"\n" + rest[: len(rest) // 2])
    pod.files(a="three")
    pushed(pod)
    assert same_everywhere(lab, pod.project)


def test_a_full_disk_on_one_host(pod: Home, lab: Lab) -> None:
    """Nobody starts; what was there is as it was; the next sync completes it."""
    pod.files(a="old")
    pushed(pod)
    host = lab.hosts[1]
    host.script("mkdir -p .mesh.full; cp -a .mesh/. .mesh.full/")
    host.script("mount -t tmpfs tmpfs .mesh; cp -a .mesh.full/. .mesh/")
    used = "$(df -k --output=used .mesh | tail -1)"  # other tests of this host have left things there
    host.script(f"mount -o remount,size=$(({used} + 2048))k .mesh")
    (pod.project / "a").write_bytes(os.urandom(4 * MB))
    try:
        done = pod.mesh("run", "pod", "echo", "started")
        assert (done.status, done.out) == (125, b"")
        place = "/root/.mesh/workspaces: up to 8.0 MB needed, "
        found = re.search(f"{host.address}: sync: No space left on device: {place}(.*) MB free\\n", done.err)
        assert found, done.err
        assert 1.0 < float(found.group(1)) < 2.2, done.err  # the pack that did not fit is gone
        assert (workspace(host) / "a").read_text() == "old"
    finally:
        host.unmount("/root/.mesh")
        host.script("rm -rf .mesh.full")
    assert pod.mesh("run", "pod", "true").status == 0
    assert same_everywhere(lab, pod.project)


def test_very_many_files(pod: Home, lab: Lab) -> None:
    """What a host lacks is more than the window of its stream."""
    for number in range(45_000):
        if number % 300 == 0:
            (pod.project / f"d{number // 300}").mkdir()
        (pod.project / f"d{number // 300}/{number}").write_text(str(number))
    done = pod.mesh("push", "--ranks", "0", "pod")
    assert done.status == 0, done.err
    assert "synced 45000 files" in done.err


def test_a_file_that_changes_while_packs_travel(pod: Home, lab: Lab) -> None:
    """The workspace is listed again, and what was on its way is broken off."""
    pod.files(late="0" * 300_000)
    assert pod.mesh("push", "--ranks", "3", "pod").status == 0
    (pod.project / "big").write_bytes(os.urandom(30 * MB))
    (pod.project / "late").write_text("1" * 300_000)
    subprocess.run(
        ["tc", "qdisc", "add", "dev", lab.link, "root", "tbf", "rate", "100mbit", "burst", "64k", "latency", "50ms"],
        check=True,
    )
    try:
        process = pod.popen("run", "--no-fanout", "pod", "sh", "-c", "echo got $(cut -c1-3 late)")
        for round_ in range(8):  # some of it falls between listing and packing, as the last host answers
            (pod.project / "late").write_text(str(round_) * 300_000)
            time.sleep(0.1)
        out, err = process.communicate(timeout=60)
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", lab.link, "root"], check=True)
    if process.returncode:  # a host had the tree already: then it is named
        assert b"late: changes while it is read" in err, err
    else:
        assert len({line.partition(b" ")[2] for line in out.splitlines()}) == 1, out


def test_a_second_pack_on_its_way(pod: Home, lab: Lab) -> None:
    """What the store lacks after all is asked for again, handed on again, and nobody listens any more."""
    (pod.project / "a").write_bytes(os.urandom(4 * MB))
    first = (pod.project / "a").read_bytes()
    pushed(pod)
    (pod.project / "a").unlink()
    pushed(pod)
    for host in lab.hosts:
        for path in host.path("/root/.mesh/store").rglob("*"):
            if path.is_file() and path.stat().st_size == len(first):
                path.write_bytes(bytes(len(first)))
    (pod.project / "a").write_bytes(first)
    (pod.project / "b").write_bytes(os.urandom(4 * MB))
    process = pod.popen("run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    try:
        assert process.stdout is not None
        assert all(process.stdout.readline() for _ in lab.hosts)
        assert no_host_listens(lab)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert same_everywhere(lab, pod.project)


def test_a_file_that_changes_all_the_time_is_named(pod: Home, lab: Lab) -> None:
    log = pod.project / "busy.log"
    log.write_bytes(b"")
    writer = subprocess.Popen(["sh", "-c", f"while :; do echo line >>{log}; done"])
    try:
        done = pod.mesh("run", "pod", "echo", "started")
    finally:
        writer.kill()
        writer.wait()
    # It may have held still for a moment; if not, it is named, and nothing has been started.
    assert done.status == 0 or ("busy.log: changes while it is read" in done.err and not done.out), done.err


def test_the_commit_is_told(pod: Home) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
    pod.files(a="one")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=pod.project, env=pod.environ, check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], cwd=pod.project, env=pod.environ, capture_output=True, text=True, check=True
    ).stdout.strip()
    show = "echo $MESH_GIT_COMMIT $MESH_GIT_DIRTY $(ls -A)"
    assert pod.mesh("run", "--ranks", "0", "pod", "-c", show).lines == [f"[0] {commit} 0 a"]
    pod.files(a="two")
    assert pod.mesh("run", "--ranks", "0", "pod", "-c", show).lines == [f"[0] {commit} 1 a"]
    pod.files(mesh__yaml="include_git: true\n")
    done = pod.mesh("run", "--ranks", "0", "pod", "-c", "git log --format=%s")
    assert done.lines == ["[0] first"], done.err


def link_away(host: TestHost) -> Path:
    """Replace the workspace of a host by a link to a directory of the user's; return that directory."""
    (name,) = host.script("ls /root/.mesh/workspaces").split()
    host.script(f"cd /root && mv .mesh/workspaces/{name} elsewhere && ln -s /root/elsewhere .mesh/workspaces/{name}")
    (host.path("/root/elsewhere") / "precious").write_text("stay")
    return host.path("/root/elsewhere")


@pytest.mark.parametrize(
    "words",
    [["push", "pod"], ["push", "--fresh", "pod"], ["run", "pod", "true"], ["exec", "pod", "true"]],
    ids=lambda words: " ".join(words),
)
def test_a_workspace_that_is_a_link_is_refused(pod: Home, lab: Lab, words: list[str]) -> None:
    pod.files(a="1", b="2")
    pushed(pod)
    elsewhere = link_away(lab.hosts[1])
    (pod.project / "a").write_text("changed")
    (pod.project / "b").unlink()
    done = pod.mesh(*words)
    assert done.status == 125
    assert lab.hosts[1].address in done.err
    assert f"{lab.hosts[0].address}: home" not in done.err
    assert "home: the workspace is a symbolic link: /root/.mesh/workspaces/" in done.err
    assert "workspace_links: true" in done.err
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {"a": "1", "b": "2", "precious": "stay"}


def test_a_directory_of_workspaces_that_is_a_link_is_refused(pod: Home, lab: Lab) -> None:
    lab.hosts[1].script("mkdir -p /root/.mesh /root/elsewhere && ln -s /root/elsewhere /root/.mesh/workspaces")
    done = pod.mesh("push", "pod")
    assert done.status == 125
    assert "home: the directory of workspaces is a symbolic link: /root/.mesh/workspaces\n" in done.err
    assert not list(lab.hosts[1].path("/root/elsewhere").iterdir())


def test_a_cluster_may_say_that_workspaces_are_links(pod: Home, lab: Lab) -> None:
    pod.files(a="1", b="2")
    pushed(pod)
    elsewhere = link_away(lab.hosts[1])
    pod.clusters(lab.cluster_yaml("pod", "workspace_links: true"))
    (pod.project / "a").write_text("changed")
    (pod.project / "b").unlink()
    pushed(pod)
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {"a": "changed", "precious": "stay"}
    done = pod.mesh("push", "--fresh", "pod")
    assert done.status == 125
    assert "--fresh deletes nothing behind a symbolic link" in done.err
    assert (elsewhere / "precious").read_text() == "stay"
    done = pod.mesh("run", "--ranks", "1", "pod", "cat", "a", "precious")
    assert done.out == b"[0] changedstay\n"


def test_the_place_of_all_workspaces_may_be_a_link(pod: Home, lab: Lab) -> None:
    pod.files(a="1")
    for host in lab.hosts:
        host.script("mkdir /root/large && ln -s large /root/.mesh")
    pushed(pod)
    assert pod.mesh("push", "--fresh", "pod").status == 0
    assert same_everywhere(lab, pod.project)


def test_names_left_out_by_default_are_said_once_and_stay_where_an_earlier_version_has_sent_them(home: Home) -> None:
    """An earlier version of mesh sent `.venv`, as `!.venv` does."""
    for name in (".venv", "pkg/__pycache__", "node_modules"):
        (home.project / name).mkdir(parents=True)
        (home.project / name / "file").write_text("x")
    home.files(mesh__yaml="ignore: ['!.venv', '!__pycache__']\n")
    first = home.mesh("run", "local:1", "echo made > .venv/mine; find . -type f | sort")
    assert b".venv/file" in first.out
    assert "left out by default: node_modules; `ignore: ['!node_modules']` in mesh.yaml sends it" in first.err
    home.files(mesh__yaml="grace: 5\n")
    shutil.rmtree(home.project / "pkg/__pycache__")
    second = home.mesh("run", "local:1", "find . -type f | sort")
    assert [line for line in second.out.split(b"\n") if b".yaml" not in line] == [
        b"[0] ./.venv/file",
        b"[0] ./.venv/mine",
        b"[0] ./pkg/__pycache__/file",
        b"",
    ]
    assert "left out by default: .venv;" in second.err
    third = home.mesh("run", "local:1", "cat .venv/file .venv/mine")
    assert third.out == b"[0] xmade\n"
    assert "left out by default" not in third.err
    fresh = home.mesh("run", "--fresh", "local:1", "ls -A")
    assert fresh.out == b"[0] mesh.yaml\n[0] pkg\n"
