"""The module ssh: hosts' reports and files of OpenSSH as values, and its texts run by bash in temporary homes."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.app.keys import new_key_pair
from mesh.core.cluster import Host
from mesh.core.module import Identity, ModuleError, Ssh, Step
from mesh.modules.ssh import SshModule, label_of
from mesh.modules.ssh_hosts import authorized_keys, config_block, known_hosts, machines_of
from tests import host_steps as steps
from tests.full import times
from tests.host_steps import Place
from tests.lab import make_key

CUTS = times(8, full=20)
HOSTS = [Host(name="a", address="10.0.0.1"), Host(name="b", address="b.example")]
KEYS = ["AAAAC3NzaC1lZDI1NTE5AAAAIGdA", "AAAAC3NzaC1lZDI1NTE5AAAAIGdB"]


def fact(number: int, *more: str, port: int = 22, user: str = "root") -> str:
    lines = [f"user {user}", f"port {port}", f"name h{number}", f"address 10.0.0.{number}", "address 172.17.0.1"]
    return "\n".join([*lines, f"key ssh-ed25519 {KEYS[number - 1]}", "key ssh-rsa AAAA", *more])


def module(name: str = "pod") -> SshModule:
    return SshModule(Ssh(), cluster=name, key=new_key_pair(), contents={})


def test_files_of_openssh_have_all_hosts_by_names_and_addresses() -> None:
    machines = machines_of(HOSTS, [fact(1), fact(2, port=2222)])
    assert known_hosts(machines).splitlines() == [
        f"a,h1,10.0.0.1 ssh-ed25519 {KEYS[0]}",
        f"[b]:2222,[b.example]:2222,[h2]:2222,[10.0.0.2]:2222 ssh-ed25519 {KEYS[1]}",
    ]
    assert authorized_keys(machines, "ssh-ed25519 AAAA", "c") == 'from="10.0.0.1,10.0.0.2" ssh-ed25519 AAAA c\n'
    assert config_block(machines, "pod", "mesh-pod-1").splitlines()[1:] == [
        "Host a h1",
        "    HostName 10.0.0.1",
        "Host b b.example h2",
        "    HostName 10.0.0.2",
        "Host b b.example h2 10.0.0.2",
        "    Port 2222",
        "Host a h1 10.0.0.1 b b.example h2 10.0.0.2",
        "    IdentityFile ~/.ssh/mesh-pod-1",
        "    # default identities",
        "    UserKnownHostsFile ~/.ssh/mesh-pod-1.known_hosts",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
    ]


def test_a_thousand_hosts_make_no_line_that_openssh_cuts() -> None:
    hosts = [Host(name=f"node-{i}", address=f"10.1.{i // 250}.{i % 250}") for i in range(1000)]
    facts = [f"user u\nport 22\naddress {host.address}\nkey ssh-ed25519 AAA{i:05}" for i, host in enumerate(hosts)]
    machines = machines_of(hosts, facts)
    texts = [authorized_keys(machines, "ssh-ed25519 AAAA", "c"), config_block(machines, "pod", "k")]
    assert max(len(line) for text in texts for line in text.splitlines()) < 4096
    members = " ".join(machine.digest for machine in machines)
    assert len(members) < 30000  # a report has at most 65536 bytes


def test_users_are_named_where_they_differ() -> None:
    assert "    User someone" in config_block(machines_of(HOSTS, [fact(1), fact(2, user="someone")]), "pod", "k")
    assert "User" not in config_block(machines_of(HOSTS, [fact(1), fact(2)]), "pod", "k").replace("UserKnown", "")


@pytest.mark.parametrize(
    "line",
    [
        "name h1 ProxyCommand=evil",
        "name *",
        "address 10.0.0.1,0.0.0.0/0",
        "address 127.0.0.1",
        'address 10.0.0.1"',
        "port 22x",
        "user a b",
        "key ssh-ed25519 not base64",
        "key ssh-ed25519",
        "setup ../../x",
        "surprise 1",
    ],
)
def test_a_report_that_could_change_a_file_is_refused(line: str) -> None:
    with pytest.raises(ModuleError, match="a reports"):
        machines_of(HOSTS, [fact(1, line), fact(2)])


def test_a_host_without_an_address_of_its_own_is_refused() -> None:
    with pytest.raises(ModuleError, match="has no address of its own"):
        machines_of(HOSTS, [fact(1), fact(2).replace("10.0.0.2", "10.0.0.1").replace("h2", "h3")])


def test_no_keys_are_made_where_all_hosts_share_a_pair_that_works() -> None:
    made = module()
    assert len(made.join(HOSTS, [[fact(1)], [fact(2)]])) == 2
    members = " ".join(machine.digest for machine in machines_of(HOSTS, [fact(1), fact(2)]))
    there = [f"setup abcd1234\nmembers {members}", "setup abcd1234\nmembers 0000", "setup 99\nmembers " + members, ""]
    for one in there:
        further = made.join(HOSTS, [[fact(1, there[0])], [fact(2, one)]])
        assert (not further) == (one == there[0]), one
    assert made.join(HOSTS, [[fact(1, there[0])], [fact(2, there[0], port=23)]])


def test_labels_of_clusters_are_parts_of_file_names() -> None:
    labels = [label_of(name) for name in ("pod", "tpu:a/b", "tpu:a b", "../x", "a" * 300)]
    assert len(set(labels)) == len(labels)
    assert all("/" not in label and len(label) < 60 for label in labels)


def test_an_identity_goes_where_its_config_entry_has_it() -> None:
    def paths(entry: str) -> list[str]:
        identity = Identity(private_key="/k/id", public_key="/k/id.pub", config_entry=entry)
        made = SshModule(
            Ssh(identities=(identity,)), cluster="pod", key=new_key_pair(), contents={"/k/id": b"a", "/k/id.pub": b"b"}
        )
        text = made.steps(HOSTS, 0)[1].apply
        return text.splitlines()[0].removeprefix("paths=(").removesuffix(")").split()

    assert paths("") == [".ssh/id", ".ssh/id.pub"]
    assert paths("Host x\n  identityfile ~/.ssh/other\n") == [".ssh/other", ".ssh/other.pub"]
    assert paths('Host x\n  IdentityFile "%d/.ssh/q"') == [".ssh/q", ".ssh/q.pub"]
    assert paths("IdentityFile ~/.ssh/b\nIdentityFile ~/.ssh/sub/id\n")[0] == ".ssh/sub/id"
    with pytest.raises(ModuleError, match="begins with ~/"):
        paths("IdentityFile /etc/shadow")


# ---- in temporary homes, with stand-ins for sshd and ssh


@pytest.fixture
def place(tmp_path: Path) -> Place:
    programs, home = tmp_path / "programs", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    make_key(tmp_path / "host_key", "host")
    stand_ins = {
        "sshd": f'echo "hostkey {tmp_path}/host_key"; echo port 22',
        "ssh": "exit 0",
        "ip": "echo '2: eth0 inet 10.0.0.1/24 brd'; echo '3: docker0 inet 172.17.0.1/16'",
        "hostname": "echo h1",
    }
    for name, text in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return Place(home, {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"})


def second(place: Place, made: SshModule) -> Sequence[Step]:
    done = steps.check(place, made.steps(HOSTS[:1], 0)[0])
    assert done.status == 0, done
    return [step for found in made.join(HOSTS[:1], [[done.fact]]) for step in found]


def listing(place: Place) -> str:
    text = "find . -printf '%p %m %y\\n' | sort; find . -type f | sort | xargs -r sha256sum"
    return subprocess.run(["sh", "-c", text], cwd=place.home, capture_output=True, text=True, check=True).stdout


def test_a_report_has_user_names_addresses_and_keys(place: Place) -> None:
    done = steps.check(place, module().steps(HOSTS, 0)[0])
    lines = done.fact.splitlines()
    assert {"port 22", "name h1", "address 10.0.0.1"} <= set(lines)
    assert any(line.startswith("key ssh-ed25519 AAAA") for line in lines)
    assert not list(place.home.iterdir())


def test_the_second_time_nothing_is_applied(place: Place) -> None:
    [step] = second(place, module())
    assert steps.settle(place, step).status == 0
    before = listing(place)
    assert not second(place, module())
    assert listing(place) == before
    assert (place.home / ".ssh/config").read_text() == "Include config.d/mesh-*\n"


def test_default_identities_of_the_user_are_still_tried(place: Place) -> None:
    (place.home / ".ssh").mkdir(0o700)
    (place.home / ".ssh/id_rsa").write_text("mine")
    [step] = second(place, module())
    assert steps.settle(place, step).status == 0
    block = (place.home / ".ssh/config.d/mesh-pod").read_text()
    assert "    IdentityFile ~/.ssh/id_rsa\n" in block
    assert "id_ed25519" not in block


def test_a_config_that_is_a_link_stays_a_link(place: Place) -> None:
    (place.home / ".ssh").mkdir(0o700)
    (place.home / "dotfiles").mkdir()
    (place.home / "dotfiles/config").write_bytes(b"Host x\r\n\xff no newline")
    (place.home / ".ssh/config").symlink_to("../dotfiles/config")
    before, [step] = listing(place), second(place, module())
    assert steps.settle(place, step).status == 0
    assert (place.home / "dotfiles/config").read_bytes() == b"Include config.d/mesh-*\nHost x\r\n\xff no newline"
    assert steps.undo(place, module().steps(HOSTS, 0)[0]).status == 0
    assert listing(place) == before


def test_an_include_line_of_the_user_stays(place: Place) -> None:
    (place.home / ".ssh").mkdir(0o700)
    (place.home / ".ssh/config").write_text("# mine\nInclude config.d/mesh-*\n")
    before, [step] = listing(place), second(place, module())
    assert steps.settle(place, step).status == 0
    assert steps.undo(place, module().steps(HOSTS, 0)[0]).status == 0
    assert listing(place) == before


def test_a_key_that_does_not_log_in_is_an_error(place: Place, tmp_path: Path) -> None:
    (tmp_path / "programs/ssh").write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    [step] = second(place, module())
    done = steps.apply(place, step)
    assert done.status == 1
    assert done.err.splitlines()[-1].endswith("does not log in to h1 itself: Permission denied (publickey).")
    assert steps.undo(place, module().steps(HOSTS, 0)[0]).status == 0
    assert not list(place.home.iterdir())


@pytest.mark.parametrize("has_files", [False, True])
def test_cut_anywhere_the_step_can_be_repeated_and_undone(place: Place, has_files: bool) -> None:
    if has_files:
        (place.home / ".ssh").mkdir(0o700)
        (place.home / ".ssh/config").write_text("Host *\n  Compression yes")
        (place.home / ".ssh/authorized_keys").write_text("ssh-rsa AAAA me")
    seed = random.randrange(1 << 30)
    print("seed", seed)  # shown when the test fails
    chance, before, first = random.Random(seed), listing(place), module().steps(HOSTS, 0)[0]
    for number in range(CUTS):
        [step] = second(place, module())
        steps.write(place, step.files)
        text = first.undo if number % 4 == 3 else step.apply
        if number % 4 == 3:
            assert steps.settle(place, step).status == 0
        process = steps.start(place, text)
        time.sleep(chance.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if number % 2 == 0:
            [step] = second(place, module()) or [step]
            assert steps.settle(place, step).status == 0, number
            assert not second(place, module()), number
        done = steps.undo(place, first)
        assert (done.status, done.err) == (0, ""), (number, done)
        assert listing(place) == before, number
