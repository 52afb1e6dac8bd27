"""`mesh forward` and `mesh run --forward`: ports of hosts as ports of this machine."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import Lab, PlainLab, eventually
from tests.ports import free_port

AT_ONCE = 64  # requests to each host; a server answers none before all have come
HTTP, COUNTER, ENDLESS, CLOSED = 8000, 8001, 8002, 8003
SERVER = f"""\
import http.server, os, socket, threading, time

class All(http.server.ThreadingHTTPServer):
    request_queue_size = {2 * AT_ONCE}
    daemon_threads = True

class Handler(http.server.BaseHTTPRequestHandler):
    together = threading.Barrier({AT_ONCE})
    def do_GET(self):
        if self.path == "/together":
            self.together.wait()
        text = f"{{os.environ['RANK']}} {{self.path}}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *words):
        pass

def serve(port, answer):
    listener = socket.create_server(("127.0.0.1", port))
    def work():
        while True:
            one, _ = listener.accept()
            threading.Thread(target=answer, args=(one,), daemon=True).start()
    threading.Thread(target=work, daemon=True).start()

def count(one):
    size = 0
    while data := one.recv(65536):
        size += len(data)
    one.sendall(b"%d" % size)
    one.close()

def endless(one):
    try:
        while True:
            one.sendall(b"." * 65536)
    except OSError:
        pass

serve({COUNTER}, count)
serve({ENDLESS}, endless)
server = All(("127.0.0.1", {HTTP}), Handler)
print("up", flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def serving(home: Home, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the server on four hosts; it is stopped at the end."""
    home.files(server__py=SERVER)
    process = home.popen("run", *options, "pod", "python3", "server.py")
    assert process.stdout is not None
    try:
        for _ in range(4):
            assert process.stdout.readline().rstrip().endswith(b"up")
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextlib.contextmanager
def forwarding(home: Home, *words: str, count: int) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """A `mesh forward` with its first lines."""
    process = home.popen("forward", *words)
    assert process.stdout is not None
    try:
        yield process, [process.stdout.readline().decode() for _ in range(count)]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def port_of(line: str) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
    assert found, line
    return int(found.group(1))


def greeting(server: socket.socket, port: int) -> bytes:
    """Return what a connection to a forwarded port receives from the server behind it, which sends 5 bytes."""
    server.settimeout(60)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        there, _ = server.accept()
        with there:
            there.sendall(b"hello")
            return one.recv(5)


def get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.root
@pytest.mark.sshd
def test_many_requests_at_once_reach_the_servers_of_four_hosts(pod: Home, lab: Lab) -> None:
    names = [host.address for host in lab.hosts]
    with serving(pod), forwarding(pod, "pod", str(HTTP), count=4) as (process, lines):
        assert [line.split(":")[0] for line in lines] == names
        ports = [port_of(line) for line in lines]
        with ThreadPoolExecutor(4 * AT_ONCE) as pool:
            answers = list(pool.map(lambda port: get(port, "/together"), ports * AT_ONCE))
        assert answers == ["0 /together", "1 /together", "2 /together", "3 /together"] * AT_ONCE
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.mark.root
@pytest.mark.sshd
def test_a_stream_that_is_not_read_holds_up_neither_the_others_nor_the_run(pod: Home) -> None:
    with serving(pod, "--forward", f"0:{HTTP}", "--forward", f"0:{COUNTER}", "--forward", f"0:{ENDLESS}") as process:
        assert process.stderr is not None
        ports: dict[tuple[str, int], int] = {}
        while len(ports) < 12:
            line = process.stderr.readline().decode()
            assert line
            if found := re.search(r"==> (\S+):(\d+)  http", line):
                ports[found.group(1), int(found.group(2))] = port_of(line)
        hosts = sorted({host for host, _ in ports})
        with contextlib.ExitStack() as held:
            for host in hosts:  # each server sends without end, and nothing here reads it
                held.enter_context(socket.create_connection(("127.0.0.1", ports[host, ENDLESS])))
            assert sorted(get(ports[host, HTTP], "/x") for host in hosts) == ["0 /x", "1 /x", "2 /x", "3 /x"]
            size = 3 << 20
            for host in hosts:
                with socket.create_connection(("127.0.0.1", ports[host, COUNTER]), timeout=60) as one:
                    one.sendall(b"x" * size)
                    one.shutdown(socket.SHUT_WR)  # the other direction stays open
                    assert one.recv(100) == b"%d" % size


@pytest.mark.root
@pytest.mark.sshd
def test_a_killed_forward_leaves_nothing_on_a_host(pod: Home, lab: Lab) -> None:
    with forwarding(pod, "pod", str(CLOSED), count=4) as (process, lines):
        assert all(host.processes() for host in lab.hosts)
        assert process.stderr is not None
        with (
            contextlib.suppress(ConnectionResetError),
            socket.create_connection(("127.0.0.1", port_of(lines[0])), timeout=60) as one,
        ):
            assert one.recv(1) == b""
        refusal = f"==> {lab.hosts[0].address}:{CLOSED}: Connection refused (on loopback there)\n"
        assert process.stderr.readline().decode() == refusal
        process.kill()
    assert eventually(lambda: not any(host.processes() for host in lab.hosts))


@pytest.mark.sshd
def test_a_port_of_this_machine_itself_leads_to_its_program_and_not_back(plain_pod: Home) -> None:
    port = free_port()
    with forwarding(plain_pod, "pod:0", str(port), count=1) as (process, (line,)):
        assert line.endswith(f"({port} is the host's own port)\n")
        with socket.create_server(("127.0.0.1", port)) as server:  # mesh has left the port to it
            assert greeting(server, port_of(line)) == b"hello"
        process.terminate()
        assert process.wait(60) == 143


@pytest.mark.sshd
def test_ports_of_the_hosts_that_are_left_are_forwarded(home: Home, session_plain_lab: PlainLab) -> None:
    home.clusters(session_plain_lab.cluster_yaml() + '    - "127.0.0.9:1"\n')
    names = [host.address for host in session_plain_lab.hosts]
    process = home.popen("exec", "--keep-going", "--forward", "0:9", "pod", "exec sleep 1000")
    assert process.stderr is not None
    try:
        found: list[str] = []
        while len(found) < len(names):
            line = process.stderr.readline().decode()
            assert line
            assert "no port is forwarded" not in line
            found += re.findall(r"==> (\S+):9  http", line)
        assert found == names
    finally:
        process.terminate()
        process.communicate(timeout=60)
    done = home.mesh("forward", "pod", "9")  # without a run, all hosts are needed
    assert (done.status, done.out, "127.0.0.9" in done.err) == (125, b"", True), done.err


def test_a_host_whose_connection_breaks_is_connected_again(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with forwarding(home, "local:1", str(port), count=1) as (process, (line,)):
            assert process.stderr is not None
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            lines = [process.stderr.readline().decode() for _ in range(2)]
            assert lines[0] == "==> local-0: the connection has ended; connecting again\n"
            assert lines[1] == "==> local-0: connected again\n"
            assert greeting(server, port_of(line)) == b"hello"
            process.terminate()
            assert process.wait(60) == 143


def test_a_socket_of_your_own_is_for_nobody_else(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket(socket.AF_UNIX) as stale:  # as a killed process leaves one
            stale.bind(str(path))
        with forwarding(home, "local:1", "--socket", str(path), str(port), count=1) as (process, (line,)):
            assert line == f"local-0:{port}  {path}\n"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(str(path))
                there, _ = server.accept()
                with there:
                    there.sendall(b"hello")
                    assert one.recv(5) == b"hello"
            process.terminate()
            assert process.wait(60) == 143
        assert not os.path.lexists(path)
        path.write_text("a file")
        done = home.mesh("forward", "local:1", "--socket", str(path), str(port))
        assert (done.status, path.read_text()) == (2, "a file")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("local", "70000"), "found '70000'"),
        (("local", "x:80"), "found 'x:80'"),
        (("local",), "no port was named"),
        (("nowhere", "80"), "no cluster 'nowhere'"),
        (("local:2", "--socket", "s", "80"), "one port of one host"),
        (("local:1", "--socket", "s" * 108, "80"), "more than 107 bytes"),
    ],
)
def test_bad_input_is_one_line_and_a_command(home: Home, words: tuple[str, ...], reason: str) -> None:
    done = home.mesh("forward", *words)
    assert done.status == 2
    assert reason in done.err
