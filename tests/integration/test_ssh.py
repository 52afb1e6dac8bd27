"""Logins and connections of the SSH backend, against real sshd processes of this user."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import paramiko
import pytest

from mesh.backends.ssh.backend import (
    LINK_BYTES_PER_S,
    RECEIVE_BYTES,
    WINDOW_MIN_BYTES,
    SshBackend,
    SshChannel,
    remote_line,
)
from mesh.backends.ssh.passwords import Passwords
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.interfaces import Channel
from tests.conftest import PATIENCE
from tests.lab import PlainLab, eventually, make_key, ssh_agent

pytestmark = pytest.mark.sshd


@pytest.fixture
def lab(session_plain_lab: PlainLab) -> PlainLab:
    return session_plain_lab


class Client:
    """A user's home for the backend, and what it opened."""

    def __init__(self, home: Path, lab: PlainLab) -> None:
        self.home, self.lab = home, lab
        (home / ".ssh").mkdir(mode=0o700)
        self.backends: list[SshBackend] = []

    def config(self, text: str) -> None:
        (self.home / ".ssh/config").write_text(text)

    def host(self, number: int = 0, **changes: object) -> Host:
        there = self.lab.hosts[number]
        values: dict[str, object] = {
            "name": f"h{number}",
            "address": there.address,
            "port": there.port,
            "user": self.lab.user,
            "identity_file": str(self.lab.identity),
        }
        return Host(**{**values, **changes})  # type: ignore[arg-type]

    def open(
        self,
        *hosts: Host,
        argv: tuple[str, ...] = ("echo", "hi"),
        environ: Mapping[str, str] | None = None,
        ask: Callable[[str], str] | None = None,
        timeout: float = 10.0,
        tries: int = 3,
        **cluster: object,
    ) -> list[Channel | HostUnreachable]:
        made = Cluster(name="pod", hosts=hosts, connect_timeout=timeout, **cluster)  # type: ignore[arg-type]
        passwords = Passwords(made.password_env, environ or {}, ask)
        backend = SshBackend(made, environ=environ or {}, passwords=passwords, tries=tries)
        self.backends.append(backend)
        found = {opened.node: opened.result for opened in backend.open(hosts, argv)}
        return [found[node] for node in range(len(hosts))]

    def error(self, *hosts: Host, **more: object) -> HostUnreachable:
        (result,) = self.open(*hosts, **more)  # type: ignore[arg-type]
        assert isinstance(result, HostUnreachable)
        return result


def read(channel: Channel | HostUnreachable) -> bytes:
    assert not isinstance(channel, HostUnreachable), f"{channel} {channel.hint}"
    found = b""
    while chunk := channel.receive():
        found += chunk
    return found


@pytest.fixture
def client(tmp_path: Path, lab: PlainLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = Client(tmp_path, lab)
    yield made
    for backend in made.backends:
        backend.close()


def test_a_channel_both_ways(client: Client) -> None:
    (channel,) = client.open(client.host(), argv=("cat",))
    assert not isinstance(channel, HostUnreachable)
    sent = os.urandom(3_000_000)
    sender = threading.Thread(target=channel.send, args=(sent,))
    sender.start()
    found = b""
    while len(found) < len(sent):
        found += channel.receive()
    sender.join()
    assert found == sent


READS_NOTHING = "import select; print(flush=True); poll = select.poll(); poll.register(0, 0); poll.poll()"


def granted(channel: Channel | HostUnreachable, round_trip: float) -> int:
    """Return the bytes that may be on their way at first to a program that reads nothing."""
    assert isinstance(channel, SshChannel)
    assert channel.receive() == b"\n"
    channel.pace(round_trip)
    return channel._channel.out_window_size  # type: ignore[no-any-return]


def takes(channel: Channel | HostUnreachable, least: int) -> bool:
    """Send until the other end has taken more than this; False if it takes no more before."""
    assert isinstance(channel, SshChannel)
    channel._channel.settimeout(PATIENCE)
    sent = 0
    with contextlib.suppress(ChannelClosed):
        while sent <= least:
            channel.send(bytes(RECEIVE_BYTES))
            sent += RECEIVE_BYTES
    return sent > least


def test_no_more_is_on_its_way_than_a_fast_link_has(client: Client) -> None:
    """Of what its program does not read sshd would take 2 MB; it does so if it grants nothing for a while."""
    near, far = client.open(client.host(0), client.host(1), argv=(sys.executable, "-c", READS_NOTHING))
    assert granted(near, 0.001) == WINDOW_MIN_BYTES
    assert granted(far, 0.01) == 0.01 * LINK_BYTES_PER_S


def test_what_another_server_grants_is_used(client: Client) -> None:
    """It may grant more only when half of all is used up."""
    (near,) = client.open(client.host(), argv=(sys.executable, "-c", READS_NOTHING))
    assert isinstance(near, SshChannel)
    near._channel.get_transport().remote_version = "SSH-2.0-AsyncSSH_2.14.0"
    window = granted(near, 0.001)
    assert window - RECEIVE_BYTES > 1 << 20
    assert takes(near, window - RECEIVE_BYTES)


def test_a_window_that_stays_shut_is_opened(client: Client) -> None:
    (near,) = client.open(client.host(), argv=(sys.executable, "-c", READS_NOTHING))
    assert granted(near, 0.001) == WINDOW_MIN_BYTES
    assert takes(near, 1 << 20)


def test_a_grant_that_comes_as_the_time_is_up_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    (near,) = client.open(client.host(), argv=(sys.executable, "-c", READS_NOTHING))
    assert isinstance(near, SshChannel)
    assert near.receive() == b"\n"
    channel = near._channel
    window = channel.out_window_size
    near.pace(0.001)

    def times_out(seconds: float) -> bool:
        channel.out_window_size += 97_000
        return False

    monkeypatch.setattr(channel.out_buffer_cv, "wait", times_out)
    channel.out_window_size = 0
    near._wait_for_window()
    assert channel.out_window_size == 97_000 + window - WINDOW_MIN_BYTES


def test_what_the_hosts_compute_quickest_is_agreed_on(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Of what both know, the first in our offer counts (RFC 4253, 7.1)."""
    with caplog.at_level("DEBUG", "paramiko.transport"):
        assert read(*client.open(client.host())) == b"hi\n"
    assert "Kex: ecdh-sha2-nistp256" in caplog.messages
    assert "Cipher: aes128-gcm@openssh.com" in caplog.messages


def test_how_the_other_end_ended(client: Client) -> None:
    (channel,) = client.open(client.host(), argv=("sh", "-c", "echo out; echo why >&2; exit 7"))
    assert read(channel) == b"out\n"
    assert not isinstance(channel, HostUnreachable)
    farewell = channel.farewell()
    assert (farewell.status, farewell.stderr) == (7, b"why\n")


def test_hosts_come_as_they_are_opened(client: Client) -> None:
    results = client.open(client.host(0), client.host(1), client.host(0, port=1))
    assert [isinstance(result, HostUnreachable) for result in results] == [False, False, True]


def test_close_wakes_a_receiver_and_a_sender(client: Client) -> None:
    for argv, blocked in ((("sleep", "60"), "receive"), (("sleep", "60"), "send")):
        (channel,) = client.open(client.host(), argv=argv)
        assert not isinstance(channel, HostUnreachable)
        result: list[object] = []

        def work(channel: Channel = channel, blocked: str = blocked, result: list[object] = result) -> None:
            try:
                result.append(channel.receive() if blocked == "receive" else channel.send(b"x" * 50_000_000))
            except ChannelClosed as error:
                result.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        client.backends[-1].close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert result


def test_settings_of_ssh_config(client: Client) -> None:
    there = client.lab.hosts[1]
    (client.home / ".ssh/more").write_text(f"Host box\n  Port {there.port}\n")
    client.config(
        f"Include more\nUser {client.lab.user}\nHost box\n  HostName {there.address}\nMatch host {there.address}\n"
        f"  IdentityFile {client.lab.identity}\n  UserKnownHostsFile {client.home}/own_known\n"
    )
    (channel,) = client.open(Host(name="box", address="box"))
    assert read(channel) == b"hi\n"
    assert isinstance(channel, SshChannel)
    assert channel.address == there.address
    assert (client.home / "own_known").exists()


def test_a_bad_ssh_config(client: Client) -> None:
    client.config("Host\nMatch\nnonsense\n")
    assert "ssh_config cannot be read" in str(client.error(client.host()))


def test_a_key_that_the_server_does_not_know(client: Client) -> None:
    make_key(client.home / "other", "other")
    error = client.error(client.host(identity_file=str(client.home / "other")))
    assert f"login refused; tried: {client.home}/other; the server takes: publickey" in str(error)
    assert f"-i {client.home}/other" in error.hint


def test_no_key_at_all(client: Client) -> None:
    assert "tried: nothing (no key was found" in str(client.error(client.host(identity_file="")))


def test_a_key_with_a_passphrase(client: Client) -> None:
    key = client.home / "locked"
    key.write_bytes(client.lab.identity.read_bytes())
    key.chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(key)], check=True, capture_output=True
    )
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "wrong" if len(asked) == 1 else "open sesame"

    results = client.open(*(client.host(n % 2, identity_file=str(key)) for n in range(6)), ask=ask)
    assert [read(result) for result in results] == [b"hi\n"] * 6
    again = "Wrong passphrase, 2 more tries.\n"
    assert asked == [f"Passphrase for {key}: ", f"{again}Passphrase for {key}: "]
    assert "passphrase is missing" in str(client.error(client.host(identity_file=str(key))))


def test_a_key_that_the_agent_holds(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with ssh_agent(client.home, client.lab.identity) as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", sock)  # where paramiko looks
        (channel,) = client.open(client.host(identity_file=""), environ={"SSH_AUTH_SOCK": sock})
        assert read(channel) == b"hi\n"


def test_a_key_of_the_agent_that_the_server_does_not_know(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make_key(client.home / "other", "other")
    with ssh_agent(client.home, client.home / "other") as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", sock)
        error = client.error(client.host(identity_file=""), environ={"SSH_AUTH_SOCK": sock})
    assert "login refused; tried: the agent's ssh-ed25519 key; the server takes: publickey" in str(error)
    assert error.step == "login"


def test_a_gateway_that_all_hosts_share(client: Client) -> None:
    gate = client.lab.hosts[1]
    client.config(f"Host {gate.address}\n  IdentityFile {client.lab.identity}\n")
    hosts = [client.host(0) for _ in range(12)]
    before = (gate.directory / "log").read_text().count("Accepted publickey")
    results = client.open(
        *hosts, gateway=f"{client.lab.user}@{gate.address}:{gate.port}", argv=("sh", "-c", "echo $SSH_CLIENT")
    )
    assert {read(result).split()[0] for result in results} == {b"127.0.0.1"}
    assert (gate.directory / "log").read_text().count("Accepted publickey") - before == 1


def test_a_chain_of_jump_hosts(client: Client) -> None:
    first, second = client.lab.hosts
    user = client.lab.user
    client.config(
        f"Host inner\n  HostName {first.address}\n  Port {first.port}\n"
        f"  ProxyJump {user}@{second.address}:{second.port},{user}@127.0.0.2:{first.port}\n"
        f"Host *\n  User {user}\n  IdentityFile {client.lab.identity}\n"
    )
    (channel,) = client.open(Host(name="inner", address="inner"))
    assert read(channel) == b"hi\n"


def test_a_gateway_that_refuses(client: Client) -> None:
    error = client.error(client.host(), gateway="nobody@127.0.0.1:1")
    assert "Connection refused" in str(error)


def test_a_proxy_command(client: Client) -> None:
    relay = (
        "import os,socket,sys,threading\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n"
        "    while d:=os.read(0,65536): s.sendall(d)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while d:=s.recv(65536): os.write(1,d)\n"
    )
    (client.home / "relay.py").write_text(relay)
    client.config(f"Host *\n  ProxyCommand {shlex.quote(sys.executable)} {client.home}/relay.py %h %p\n")
    (channel,) = client.open(client.host())
    assert read(channel) == b"hi\n"


def test_a_server_that_never_speaks(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        error = client.error(client.host(address="127.0.0.1", port=port), timeout=0.4)
    assert f"127.0.0.1 port {port}: no SSH server answered in time" in str(error)
    assert "(3 tries in " in str(error)


class MuteServer(paramiko.ServerInterface):
    """An SSH server that accepts every login, opens a session, and does not answer the request to start a command."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._is_over = listener, threading.Event()
        self._key = paramiko.ECDSAKey.generate()
        self._transports: list[paramiko.Transport] = []
        self.asked = threading.Semaphore(0)  # released by each request
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over.is_set():
                transport = paramiko.Transport(self._listener.accept()[0])
                self._transports.append(transport)
                transport.add_server_key(self._key)
                transport.start_server(threading.Event(), self)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.asked.release()
        self._is_over.wait(30)
        return False

    def close(self) -> None:
        self._is_over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join()
        for transport in self._transports:
            transport.close()
            transport.join()


def test_a_server_that_starts_no_command(client: Client) -> None:
    """A link that is cut right after the login looks like this server: the client gives up the try."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.closing(MuteServer(listener)) as server:
        host = client.host(address="127.0.0.1", port=listener.getsockname()[1])
        found: list[HostUnreachable] = []
        # In a thread, as the main one would wait for ever if there were no limit.
        opening = threading.Thread(target=lambda: found.append(client.error(host, timeout=3.0, tries=2)), daemon=True)
        opening.start()
        opening.join(PATIENCE)
        assert not opening.is_alive(), "the client hangs"
        assert [server.asked.acquire(blocking=False) for _ in range(3)] == [True, True, False]  # once in each try
        assert "the server accepted the login but started no command within 3 s (2 tries in " in str(found[0])
        with pytest.raises(HostUnreachable, match="started no command") as raised:
            client.backends[0].reopen(0, ("true",))
        assert not raised.value.is_final


def test_a_name_that_does_not_exist(client: Client) -> None:
    error = client.error(client.host(address="no-such-host.invalid"))
    assert "no-such-host.invalid" in str(error)


def test_logins_beyond_maxstartups_are_tried_again(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with PlainLab(1, sshd=["MaxStartups 2:50:4"]) as small:
        other = Client.__new__(Client)
        other.home, other.lab, other.backends = client.home, small, client.backends
        there = small.hosts[0]

        results: list[Channel | HostUnreachable] = []
        # The server drops by chance, so that three tries may not be enough for all of them.
        opening = threading.Thread(target=lambda: results.extend(other.open(*[other.host()] * 8, tries=20)))
        with contextlib.ExitStack() as logins:
            on_their_way = 0
            while on_their_way < 4:  # all others are dropped
                sock = logins.enter_context(socket.create_connection((there.address, there.port), timeout=PATIENCE))
                on_their_way += sock.recv(4) == b"SSH-"
            opening.start()
            assert eventually(lambda: "Error reading SSH protocol banner" in caplog.text)  # of one that was dropped
        opening.join()
        assert [read(result) for result in results] == [b"hi\n"] * 8
        for backend in client.backends:
            backend.close()


def test_giving_up_while_connecting(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        host = client.host(address="127.0.0.1", port=silent.getsockname()[1])
        cluster = Cluster(name="pod", hosts=(host,), connect_timeout=60.0)
        backend = SshBackend(cluster, environ={}, passwords=Passwords("", {}))

        def give_up() -> None:
            with silent.accept()[0]:  # it is connecting
                backend.close()

        giving_up = threading.Thread(target=give_up)
        giving_up.start()
        assert list(backend.open([host], ["true"])) == []
        giving_up.join()


def test_what_not_every_shell_reads_alike_is_refused() -> None:
    for word in ("it's", "a\\b", "no!", "new\nline"):
        with pytest.raises(ValueError, match="not all shells"):
            remote_line(["echo", word])


def test_a_jump_host_that_refuses_the_login(client: Client) -> None:
    gate = client.lab.hosts[1]
    make_key(client.home / "other", "other")
    client.config(f"Host {gate.address}\n  IdentityFile {client.home}/other\n  IdentitiesOnly yes\n")
    error = client.error(client.host(), gateway=f"{client.lab.user}@{gate.address}:{gate.port}")
    assert f"its gateway {gate.address}: login refused; tried: {client.home}/other" in str(error)


def test_a_proxy_command_that_fails(client: Client) -> None:
    client.config("Host *\n  ProxyCommand sh -c 'echo no route to %h >&2; exit 3'\n")
    error = client.error(client.host(), tries=1)
    assert "its ProxyCommand ended (exit 3): no route to 127.0.0.2" in str(error)
