"""Every way to log in and to become root, against real sshd and sudo; a wrong one of each; and no secret anywhere."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Done, Home
from tests.lab import Lab, PlainLab, TestHost, eventually, make_key, processes_in, ssh_agent

pytestmark = [pytest.mark.sshd]
root = pytest.mark.root
PASSWORD = "open-sesame-4711"


def sign(authority: Path, key: Path, principal: str, *more: str) -> None:
    """Make a certificate for a key."""
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", principal, *more, f"{key}.pub"]
    subprocess.run(argv, check=True, capture_output=True)


class TestCertificates:
    """An sshd that trusts an authority, and no key by itself."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> Path:
        make_key(tmp_path / "authority", "authority")
        return tmp_path / "authority"

    @pytest.fixture
    def lab(self, authority: Path) -> Iterator[PlainLab]:
        with PlainLab(1, sshd=[f"TrustedUserCAKeys {authority}.pub", "AuthorizedKeysFile none"]) as lab:
            yield lab

    @pytest.fixture
    def key(self, home: Home) -> Path:
        (home.path / ".ssh").mkdir(mode=0o700)
        make_key(home.path / ".ssh/id_ed25519", "mine")
        return home.path / ".ssh/id_ed25519"

    def cluster(self, home: Home, lab: PlainLab) -> None:
        (host,) = lab.hosts
        home.clusters(f"pod:\n  user: {lab.user}\n  hosts: ['{host.address}:{host.port}']\n")

    def test_beside_the_key(self, home: Home, lab: PlainLab, authority: Path, key: Path) -> None:
        self.cluster(home, lab)
        sign(authority, key, lab.user)
        assert home.mesh("run", "pod", "echo", "hi").lines == ["[0] hi"]

    def test_named_by_ssh_config(self, home: Home, lab: PlainLab, authority: Path, key: Path) -> None:
        self.cluster(home, lab)
        sign(authority, key, lab.user)
        (home.path / ".ssh/id_ed25519-cert.pub").rename(home.path / "elsewhere")
        (home.path / ".ssh/config").write_text(f"Host *\n  IdentityFile {key}\n  CertificateFile ~/elsewhere\n")
        assert home.mesh("run", "pod", "echo", "hi").lines == ["[0] hi"]

    def test_held_by_the_agent(self, home: Home, lab: PlainLab, authority: Path, key: Path) -> None:
        self.cluster(home, lab)
        sign(authority, key, lab.user)
        with ssh_agent(home.path, key) as sock:
            home.environ["SSH_AUTH_SOCK"] = sock
            for path in (home.path / ".ssh").glob("id_*"):
                path.unlink()
            assert home.mesh("run", "pod", "echo", "hi").lines == ["[0] hi"]

    def test_of_somebody_else_and_one_that_is_over(self, home: Home, lab: PlainLab, authority: Path, key: Path) -> None:
        self.cluster(home, lab)
        for principal, validity in (("somebody", "+1h"), (lab.user, "20200101:20200102")):
            sign(authority, key, principal, "-V", validity)
            done = home.mesh("run", "pod", "true")
            assert done.status == 125
            assert f"login refused; tried: {key} with its certificate" in done.err


def test_match_blocks(home: Home, session_plain_lab: PlainLab) -> None:
    lab = session_plain_lab
    first, second = lab.hosts
    (home.path / ".ssh").mkdir(mode=0o700)
    (home.path / ".ssh/config").write_text(
        f'Match originalhost first exec "test -e {home.path}/flag"\n  Port {first.port}\n  HostName {first.address}\n'
        f"Match host second\n  HostName {second.address}\n  Port {second.port}\n"
        f"Match all\n  User {lab.user}\n  IdentityFile {lab.identity}\n"
    )
    home.clusters("pod:\n  hosts: [first, second]\n")
    (home.path / "flag").touch()
    assert home.mesh("run", "pod", "echo", "hi").lines == ["[0] hi", "[1] hi"]
    (home.path / "flag").unlink()
    done = home.mesh("run", "pod", "true")
    assert done.status == 125
    assert "first" in done.err


# ---- passwords and sudo, on hosts with users of their own


@contextmanager
def hosts_with_a_user(home: Home, *sshd: str) -> Iterator[Lab]:
    """Two hosts that know the user ``ana`` with a password."""
    with Lab(2, sshd=["PasswordAuthentication yes", *sshd]) as lab:
        for host in lab.hosts:
            host.run("useradd", "-m", "-s", "/bin/bash", "ana")
            host.run("chpasswd", text=f"ana:{PASSWORD}\n")
            host.run("sh", "-c", "echo 'ana ALL=(ALL) ALL' > /etc/sudoers.d/ana")
        home.trust(lab)
        listed = "".join(f"    - {host.address}\n" for host in lab.hosts)
        home.clusters(f"pod:\n  user: ana\n  password_env: POD_PASSWORD\n  hosts:\n{listed}")
        home.environ["POD_PASSWORD"] = PASSWORD
        yield lab


class Watch:
    """Looks at the argv and the environment of every process there is, as long as it is open."""

    def __init__(self, *hosts: TestHost) -> None:
        self._namespaces = [os.readlink(f"/proc/{host.pid}/ns/pid") for host in hosts]
        self.seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.is_set():
            for found in processes_in([*self._namespaces, os.readlink("/proc/self/ns/pid")]).values():
                self.seen.update(command for _, command in found)
            self._over.wait(0.02)  # the processor is for those that are watched

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def files_with(secret: str, *places: Path) -> list[Path]:
    found = []
    for place in places:
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes():
                found.append(path)
    return found


def everywhere(home: Home, lab: Lab) -> list[Path]:
    """Where a secret could be found afterwards, on both sides."""
    inside = ("/home", "/root", "/tmp", "/var/log", "/var/tmp", "/run")
    return [home.path, home.project, *(host.path(place) for host in lab.hosts for place in inside)]


SUDO = "commands:\n  - echo I am $(id -un)\n  - run: echo now $(id -un); cat; touch /root/by-root\n    sudo: true\n"


@root
def test_sudo_by_the_password_of_the_login(home: Home) -> None:
    with hosts_with_a_user(home) as lab, Watch(*lab.hosts) as watch:
        home.files(mesh__yaml=SUDO.replace("cat;", "cat; while [ ! -e /tmp/seen ]; do sleep 0.05; done;"))
        client = home.popen("setup", "--json", "pod")
        try:
            assert eventually(lambda: any("sudo -S" in command for command in list(watch.seen)), PATIENCE)
        finally:
            for host in lab.hosts:
                host.run("touch", "/tmp/seen")
            out, err = client.communicate(timeout=2 * PATIENCE)
        done = Done(client.returncode, out, err.decode())
        assert done.status == 0, done.err
        assert done.out.count(b'"now root"') == 2
        assert [host.path("/root/by-root").exists() for host in lab.hosts] == [True, True]
        assert not [command for command in watch.seen if PASSWORD in command]
        assert PASSWORD not in done.out.decode() + done.err
        assert files_with(PASSWORD, *everywhere(home, lab)) == []
        assert files_with("now root", *everywhere(home, lab)) != []  # the search does find what is there


@root
def test_sudo_asks_once_on_a_terminal(home: Home) -> None:
    with hosts_with_a_user(home) as lab:
        key = home.path / "key"
        make_key(key, "ana")
        for host in lab.hosts:
            host.path("/etc/ssh/authorized_keys").write_text(key.with_suffix(".pub").read_text())
        text = (home.path / ".config/mesh/cluster.yaml").read_text()
        home.clusters(text.replace("password_env: POD_PASSWORD", f"identity_file: {key}"))
        home.files(mesh__yaml=SUDO)
        with home.terminal("setup", "pod") as terminal:
            terminal.expect(b"Password for ana (used for all hosts): ")
            terminal.type(PASSWORD.encode() + b"\n")
            assert terminal.end() == 0
            assert terminal.shown.count(b"Password for") == 1
            assert PASSWORD.encode() not in terminal.shown
            assert b"complete" in terminal.shown
        with home.terminal("setup", "pod") as terminal:
            terminal.expect(b"Password for ana (used for all hosts): ")
            terminal.type(b"\x03")
            assert terminal.end() == 130
            assert terminal.has_echo
        # Off a terminal there is nobody to ask.
        done = home.mesh("setup", "pod")
        assert done.status == 1
        assert "mesh: sudo wants a password on this host, and there is none" in done.err
        for host in lab.hosts:
            host.run("sh", "-c", "echo 'ana ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ana")
        assert home.mesh("setup", "pod").status == 0


@root
def test_a_wrong_password_for_sudo(home: Home) -> None:
    with hosts_with_a_user(home) as lab:
        for host in lab.hosts:
            host.run("sh", "-c", "echo 'Defaults rootpw' >> /etc/sudoers.d/ana")
            host.run("chpasswd", text="root:another\n")
        home.files(mesh__yaml=SUDO)
        done = home.mesh("setup", "pod")
        assert done.status == 1
        assert "failed on 2 of 2 hosts" in done.err
        assert "incorrect password attempt" in done.err


@root
def test_a_password_that_is_typed(home: Home) -> None:
    with hosts_with_a_user(home) as lab, Watch(*lab.hosts) as watch:
        text = (home.path / ".config/mesh/cluster.yaml").read_text()
        home.clusters(text.replace("  password_env: POD_PASSWORD\n", ""))
        with home.terminal("run", "--output", "all", "pod", "echo", "hi") as terminal:
            terminal.expect(b"Password for ana (used for all hosts): ")
            terminal.type(PASSWORD.encode() + b"\n")
            assert terminal.end() == 0
            assert terminal.shown.count(b"Password for") == 1
            assert b"[0] hi" in terminal.shown
            assert b"[1] hi" in terminal.shown
            assert PASSWORD.encode() not in terminal.shown
        assert not [command for command in watch.seen if PASSWORD in command]
        assert files_with(PASSWORD, *everywhere(home, lab)) == []
        done = home.mesh("run", "pod", "true")
        assert done.status == 125
        assert "no password is set" in done.err


@root
@pytest.mark.parametrize("kind", ["PasswordAuthentication", "KbdInteractiveAuthentication"])
def test_a_user_who_must_choose_a_new_password(home: Home, kind: str) -> None:
    with hosts_with_a_user(home, f"{kind} yes") as lab:
        lab.hosts[1].run("chage", "-d", "0", "ana")
        done = home.mesh("run", "pod", "true")
        assert done.status == 125
        assert f"{lab.hosts[1].address}: its user must choose a new password before anything else" in done.err
        assert "ssh -t" in done.err
        assert f"{lab.hosts[0].address}: " not in done.err
