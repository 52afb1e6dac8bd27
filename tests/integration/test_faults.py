"""Bad input and faults, each against real sshd hosts: its message and its status."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Home
from tests.full import IS_FULL, times
from tests.lab import Lab, eventually, peak_memory

pytestmark = [pytest.mark.root, pytest.mark.sshd]

CSHRC = "echo banner from cshrc; if (! $?prompt) echo not interactive\n"
FISH = "echo banner from fish; set -gx FROM_FISH 1\n"
BASHRC = "echo banner from bashrc; echo 'to stderr' >&2; no_such_command; export FROM_RC=yes; false\n"


def test_an_unknown_cluster_names_the_nearest(pod: Home) -> None:
    done = pod.mesh("run", "pdo", "true")
    assert done.status == 2
    assert "no cluster 'pdo'" in done.err
    assert "did you mean 'pod'" in done.err


def test_a_refused_login_is_not_tried_again(pod: Home, lab: Lab) -> None:
    key = pod.path / "other"
    os.system(f"ssh-keygen -q -t ed25519 -N '' -f {key}")
    pod.clusters(lab.cluster_yaml().replace(str(lab.identity), str(key)))
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125
    assert f"4 hosts ({lab.hosts[0].address}" not in done.err  # each has its own user@host in the message
    for host in lab.hosts:
        assert f"cannot connect to root@{host.address} port 22: login refused; tried: {key}" in done.err
    assert "the server takes: publickey" in done.err


def test_passwords_come_from_a_variable_and_stand_nowhere(home: Home) -> None:
    with Lab(2, sshd=["PermitRootLogin yes"]) as lab:
        for host, kind in zip(lab.hosts, ("PasswordAuthentication", "KbdInteractiveAuthentication"), strict=True):
            host.run("chpasswd", text="root:open sesame\n")
            host.script(f"sed -i '1i {kind} yes' /etc/ssh/sshd_config")
            host.restart_sshd()
        home.trust(lab)
        settings = lab.cluster_yaml("pod", "password_env: POD_PASSWORD").replace(
            f"  identity_file: {lab.identity}\n", ""
        )
        home.clusters(settings)
        home.environ["POD_PASSWORD"] = "open sesame"
        done = home.mesh("run", "--json", "pod", "sh", "-c", "env; ps axww")
        assert done.status == 0, done.err
        kept = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
        assert b"open sesame" not in done.out + done.err.encode() + kept
        home.environ["POD_PASSWORD"] = "wrong"
        wrong = home.mesh("run", "pod", "true")
        assert wrong.status == 125
        for host in lab.hosts:
            assert f"{host.address} port 22: login refused; tried: the password; the server takes:" in wrong.err


def test_a_changed_host_key_is_refused(pod: Home, lab: Lab) -> None:
    lab.hosts[1].new_host_key()
    try:
        done = pod.mesh("run", "pod", "true")
    finally:
        lab.hosts[1].old_host_key()
    assert done.status == 125
    assert "the host key has changed" in done.err
    assert done.err.count("SHA256:") == 2
    assert f"ssh-keygen -R '{lab.hosts[1].address}' -f {pod.path}/.ssh/known_hosts" in done.err


def test_a_new_host_is_recorded_so_that_ssh_knows_it(home: Home, lab: Lab) -> None:
    home.clusters(lab.cluster_yaml(hosts=lab.hosts[:1]))
    assert home.mesh("run", "pod", "true").status == 0
    known = home.path / ".ssh/known_hosts"
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    ssh = f"ssh -F none -o StrictHostKeyChecking=yes -o UserKnownHostsFile={known} -o BatchMode=yes -i {lab.identity}"
    assert os.system(f"{ssh} root@{lab.hosts[0].address} true") == 0


def test_strict_host_keys_refuse_a_new_host(home: Home, lab: Lab) -> None:
    home.clusters(lab.cluster_yaml("pod", "host_keys: strict", hosts=lab.hosts[:1]))
    done = home.mesh("run", "pod", "true")
    assert done.status == 125
    assert "the host key is not recorded" in done.err
    assert not (home.path / ".ssh/known_hosts").exists()


def test_no_python_on_a_host(pod: Home, lab: Lab) -> None:
    pod.clusters(lab.cluster_yaml("pod", "python: /opt/no/python3"))
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125
    assert f"4 hosts ({', '.join(host.address for host in lab.hosts)}): no python3 there" in done.err
    assert "set python: in cluster.yaml" in done.err
    assert "No such file or directory" in done.err  # what the shell says: there may be another reason


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/tcsh", "/usr/bin/fish", "/bin/dash"])
@pytest.mark.parametrize("python", ["nopython3", "~/no/python 3"])
def test_no_python_whatever_the_login_shell(pod: Home, lab: Lab, shell: str, python: str) -> None:
    host = lab.hosts[0]
    host.set_shell(shell)
    pod.clusters(lab.cluster_yaml("pod", f"python: {python}", hosts=[host]))
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125
    assert f"{host.address}: no python3 there" in done.err


def test_a_python_that_is_too_old(pod: Home, lab: Lab) -> None:
    old = "#!/bin/sh\nexec /usr/bin/python3 -c 'import sys; sys.version_info = (3, 7); exec(sys.argv[1])' \"$4\"\n"
    for host in lab.hosts:
        host.path("/root/old").write_text(old)
        host.path("/root/old").chmod(0o755)
    pod.clusters(lab.cluster_yaml("pod", "python: ~/old"))
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125
    assert "python3 is older than 3.8 there" in done.err


@pytest.mark.parametrize(
    ("shell", "file", "text"),
    [
        ("/bin/bash", ".bashrc", BASHRC),
        ("/bin/tcsh", ".cshrc", CSHRC),
        ("/usr/bin/fish", ".config/fish/config.fish", FISH),
        ("/bin/dash", ".profile", "echo never read\n"),
    ],
)
def test_login_shells_that_speak(pod: Home, lab: Lab, shell: str, file: str, text: str) -> None:
    for host in lab.hosts:
        host.set_shell(shell)
        host.path(f"/root/{file}").parent.mkdir(parents=True, exist_ok=True)
        host.path(f"/root/{file}").write_text(text)
    pod.files(mesh__yaml="prerun: [export SEEN=$RANK]\n")
    done = pod.mesh("run", "pod", "sh", "-c", "printf '%s ' $SEEN '$x' \"!\" 'a\\b'")
    assert done.status == 0, done.err
    assert done.lines == [f"[{n}] {n} $x ! a\\b " for n in range(4)]


def test_a_login_shell_that_ends(pod: Home, lab: Lab) -> None:
    lab.hosts[2].path("/root/.bashrc").write_text("echo 'this host is closed today'; exit 3\n")
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125
    assert f"{lab.hosts[2].address}: the login shell ended before our agent started" in done.err
    assert "this host is closed today" in done.err


NEVER_GREETS = {
    "prints without end": "while :; do printf x || exit; sleep 0.1; done\n",
    "becomes another shell": "exec zsh\n",
    "waits": "read line </dev/zero\n",
}


def test_a_login_that_never_greets(pod: Home, lab: Lab) -> None:
    others = lab.hosts[1:]  # the first one greets
    for host, startup in zip(others, NEVER_GREETS.values(), strict=True):
        host.path("/root/.bashrc").write_text(startup)
    done = pod.mesh("run", "--connect-timeout", "10", "pod", "true", within=2 * PATIENCE)
    for host in others:
        lab.end_all(host)
    assert done.status == 125
    told = [line for line in done.err.splitlines() if "its login shell did not start mesh's agent within 10 s" in line]
    assert [any(host.address in line for line in told) for host in lab.hosts] == [False, True, True, True], done.err
    assert "ssh HOST true" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "pod", "true"],
        ["setup", "pod"],
        ["push", "pod"],
        ["pull", "pod", "file"],
        ["ps", "pod"],
        ["check", "pod"],
        ["clean", "pod"],
        ["stop", "--all", "--cluster", "pod"],
    ],
    ids=lambda words: words[0],
)
def test_a_login_that_never_greets_ends_each_command(pod: Home, lab: Lab, words: list[str]) -> None:
    pod.clusters(lab.cluster_yaml(hosts=lab.hosts[1:3]))
    host = lab.hosts[2]
    host.path("/root/.bashrc").write_text(NEVER_GREETS["prints without end"])
    pod.files(mesh__yaml="commands: [echo hi]\n")
    done = pod.mesh(words[0], "--connect-timeout", "5", *words[1:])
    lab.end_all(host)
    assert done.status not in (0, 2)
    assert "did not start mesh's agent within 5 s" in done.err + done.out.decode()


def test_the_time_for_a_greeting_by_a_variable(pod: Home, lab: Lab) -> None:
    host = lab.hosts[2]
    host.path("/root/.bashrc").write_text(NEVER_GREETS["prints without end"])
    pod.environ["MESH_CONNECT_TIMEOUT"] = "5"
    done = pod.mesh("attach", "--cluster", "pod", "20260101-120000-abcdef")
    lab.end_all(host)
    assert done.status != 0
    assert "did not start mesh's agent within 5 s" in done.err
    pod.environ["MESH_CONNECT_TIMEOUT"] = "soon"
    done = pod.mesh("exec", "pod", "true")
    assert done.status == 2
    assert "MESH_CONNECT_TIMEOUT: expected seconds" in done.err


def test_a_full_disk_while_unpacking(pod: Home, lab: Lab) -> None:
    host = lab.hosts[3]
    host.script("mkdir /root/.mesh && mount -t tmpfs -o size=1m tmpfs /root/.mesh")
    (pod.project / "big.bin").write_bytes(os.urandom(3_000_000))
    try:
        done = pod.mesh("run", "pod", "true")
        assert not list(host.path("/root/.mesh/workspaces").glob("*.new-*"))
    finally:
        host.unmount("/root/.mesh")
    assert done.status == 125
    assert f"{host.address}: sync: No space left on device: /root/.mesh/workspaces: " in done.err
    assert "free some space on the host" in done.err


def test_an_unwritable_home(pod: Home, lab: Lab) -> None:
    host = lab.hosts[0]
    host.script("mount -t tmpfs -o ro tmpfs /mnt")
    pod.clusters(lab.cluster_yaml("pod", "remote_dir: /mnt/mesh"))
    try:
        done = pod.mesh("run", "--ranks", "0", "pod", "true")
    finally:
        host.unmount("/mnt")
    assert done.status == 125
    assert f"{host.address}: home: Read-only file system: /mnt/mesh" in done.err


def test_what_cannot_be_sent_is_said_and_what_cannot_be_read_is_an_error(pod: Home) -> None:
    os.mkfifo(pod.project / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        directory = os.getcwd()
        os.chdir(pod.project)
        sock.bind("sock")
        os.chdir(directory)
        (pod.project / "link").symlink_to("/etc/hostname")
        done = pod.mesh("run", "--ranks", "0", "pod", "sh", "-c", "ls; readlink link")
    assert done.status == 0
    assert done.lines == ["[0] /etc/hostname", "[0] link"]
    assert "not sent: fifo: a FIFO" in done.err
    assert "not sent: sock: a socket" in done.err


def test_names_of_every_kind_and_an_empty_workspace(pod: Home) -> None:
    assert pod.mesh("run", "--ranks", "0", "pod", "ls", "-A").out == b""
    names = [b"new\nline", b"\xff\xfe", "ünï".encode(), b"-dash", b"quo'te"]
    for name in names:
        with open(os.fsencode(pod.project) + b"/" + name, "wb") as file:
            file.write(name)
    show = "import os; print([(n, open(n, 'rb').read() == n) for n in sorted(os.listdir(b'.'))])"
    done = pod.mesh("run", "--ranks", "0", "pod", "python3", "-c", show)
    assert done.out.decode() == f"[0] {[(name, True) for name in sorted(names)]}\n"


def test_a_host_whose_cable_is_cut_is_lost(pod: Home, lab: Lab) -> None:
    words = ["run", "--grace", "0.5", "--host-grace", "10"]
    process = pod.popen(*words, "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    lab.hosts[1].cut()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 76, err
    assert f"lost contact with {lab.hosts[1].address} (rank 1)" in err.decode()
    others = [host for host in lab.hosts if host is not lab.hosts[1]]
    assert eventually(lambda: not any(host.processes() for host in others))
    lab.end_all(lab.hosts[1])  # its lease would do that, after 60 s


def test_a_cable_that_is_cut_in_the_middle_of_a_sync(pod: Home, lab: Lab) -> None:
    (pod.project / "big.bin").write_bytes(os.urandom(60_000_000))
    host = lab.hosts[2]
    slow = ("rate", "20mbit", "burst", "128k", "latency", "1s")
    lab.in_switch("tc", "qdisc", "add", "dev", f"p{host.index}", "root", "tbf", *slow)
    try:
        process = pod.popen("run", "--host-grace", "10", "pod", "true")
        machines = host.path("/root/.mesh/machines")
        assert eventually(lambda: any(path.stat().st_size for path in machines.rglob("pack-*")))
        host.cut()
        _, err = process.communicate(timeout=60)
    finally:
        lab.in_switch("tc", "qdisc", "del", "dev", f"p{host.index}", "root")
    assert process.returncode == 125, err
    assert f"{host.address}: silent for 10 s" in err.decode()
    lab.end_all(host)


def test_output_without_a_newline_and_bytes_that_are_no_text(pod: Home) -> None:
    done = pod.mesh("run", "--ranks", "0", "pod", "sh", "-c", r"printf 'a\377\000b'; printf 'e' >&2; exit 0")
    assert done.out == b"[0] a\xff\x00b\n"
    assert "[0] e\n" in done.err


def test_a_hundred_megabytes_in_one_line(pod: Home) -> None:
    """A tenth of it in each run of the suite: the client keeps 1 MB of an unfinished line in memory."""
    count = times(10, full=100)
    script = f"import sys; b = sys.stdout.buffer; [b.write(b'x' * 1000000) for _ in range({count})]"
    process = pod.popen("run", "--ranks", "0,1", "pod", "python3", "-c", script)
    assert process.stdout is not None
    sizes = [len(line) for line in process.stdout]
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert sizes == [count * 1_000_000 + 5] * 2


LINES = times(100_000, full=200_000)  # of each rank


def test_eight_hosts_lose_and_tear_no_line(home: Home, tmp_path: Path) -> None:
    """Lines of 100 bytes from each of 8 hosts at once, 200,000 with MESH_TEST_FULL=1, and the client's memory."""
    with Lab(8) as lab:
        home.clusters(lab.cluster_yaml())
        home.trust(lab)
        program = (
            "import os, sys\n"
            "rank = os.environ['RANK']\n"
            "out = sys.stdout.buffer\n"
            f"for n in range(0, {LINES}, 500):\n"
            "    lines = (b'%s %06d ' % (rank.encode(), i) + b'.' * 91 + b'\\n' for i in range(n, n + 500))\n"
            "    out.write(b''.join(lines))\n"
            "    out.flush()\n"
        )
        home.files(lines__py=program)
        read_end, write_end = os.pipe()
        process = home.popen("run", "pod", "python3", "lines.py", stdout=write_end)
        os.close(write_end)
        seen, memory = [0] * 8, 0.0
        with open(read_end, "rb") as lines:
            for line in lines:
                rank = line[1] - 48
                expected = b"[%d] %d %06d " % (rank, rank, seen[rank]) + b"." * 91 + b"\n"
                assert line == expected
                seen[rank] += 1
                if not seen[rank] % 10_000 and seen[rank] < LINES:  # at the last one it may have ended
                    memory = peak_memory(process.pid)
        process.communicate()
        assert process.returncode == 0
        assert seen == [LINES] * 8
        assert 0 < memory < (200 if IS_FULL else 150)
        assert eventually(lambda: not any(host.processes() for host in lab.hosts))


def test_hosts_that_share_one_home_directory(home: Home) -> None:
    with Lab(2, shared_home=True) as lab:
        home.clusters(lab.cluster_yaml())
        home.trust(lab)
        home.files(data__txt="x" * 100_000)
        done = home.mesh("run", "pod", "sh", "-c", "wc -c < data.txt; hostname > made-by-$RANK")
        assert done.status == 0, done.err
        assert done.lines == ["[0] 100000", "[1] 100000"]
        assert len(list(lab.hosts[0].path("/root/.mesh/machines").iterdir())) == 2
        # A run on one machine does not keep another one out of the second.
        first = home.popen("run", "--ranks", "0", "pod", "sh", "-c", "echo up; exec sleep 1000")
        assert first.stdout is not None
        first.stdout.readline()
        assert home.mesh("run", "--ranks", "1", "pod", "true").status == 0
        assert home.mesh("run", "--ranks", "0", "pod", "true").status == 75
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)


def test_ipv6_and_a_gateway(home: Home, lab: Lab) -> None:
    gateway, inner = lab.hosts[0], lab.hosts[1]
    home.trust(lab)
    home.clusters(lab.cluster_yaml("pod", f"gateway: root@{gateway.address}", hosts=lab.hosts[1:]))
    ssh = home.path / ".ssh/config"
    ssh.write_text(f"Host *\n  IdentityFile {lab.identity}\n")
    done = home.mesh("run", "pod", "sh", "-c", "echo $SSH_CONNECTION | cut -d' ' -f1")
    assert done.status == 0, done.err
    assert done.lines == [f"[{n}] {gateway.address}" for n in range(3)]
    inner.script("sysctl -qw net.ipv6.conf.all.disable_ipv6=0; ip -6 addr add fd00:77::2/64 dev eth0 nodad")
    home.clusters(
        f"pod:\n  user: root\n  gateway: root@{gateway.address}\n  identity_file: {lab.identity}\n"
        "  hosts: ['fd00:77::2']\n"
    )
    gateway.script("sysctl -qw net.ipv6.conf.all.disable_ipv6=0; ip -6 addr add fd00:77::1/64 dev eth0 nodad")
    assert home.mesh("run", "pod", "sh", "-c", "echo $MASTER_ADDR").lines == ["[0] fd00:77::2"]


def test_one_machine_twice_in_a_cluster(home: Home, lab: Lab) -> None:
    """As users try mesh with one box: two aliases of one host share its lock and its workspace."""
    home.trust(lab)
    (home.path / ".ssh/config").write_text(
        "".join(f"Host {name}\n  HostName {lab.hosts[0].address}\n" for name in ("one", "two"))
    )
    home.clusters(f"pod:\n  user: root\n  identity_file: {lab.identity}\n  hosts: [one, two]\n")
    home.files(data__txt="here")
    done = home.mesh("run", "pod", "sh", "-c", "echo $RANK $(cat data.txt)")
    assert done.status == 0, done.err
    assert done.lines == ["[0] 0 here", "[1] 1 here"]


def test_a_run_directory_that_cannot_be_written_does_not_end_the_run(pod: Home) -> None:
    state = pod.path / ".local/state"
    state.mkdir(parents=True)
    (state / "mesh").write_text("in the way")
    done = pod.mesh("run", "--ranks", "0", "pod", "echo", "hi")
    assert (done.status, done.out) == (0, b"[0] hi\n")
    assert "its logs are incomplete" in done.err


def test_events_are_stored(pod: Home) -> None:
    pod.mesh("run", "--ranks", "0", "pod", "sh", "-c", "exit 9")
    (directory,) = (pod.path / ".local/state/mesh/runs").iterdir()
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events if event["event"] != "notice"] == [
        "connected",
        "synced",
        "ready",
        "started",
        "exited",
        "gone",
        "finished",
    ]
