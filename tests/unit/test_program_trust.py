"""Strangers and hostile hosts: nothing of theirs is run, and honest callers are served."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh.engine.credentials import make_credentials
from mesh.program.runtime import frames, plain
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions, Connection
from mesh.program.runtime.errors import CLIENT, LinkRefused, NodeLost
from mesh.program.runtime.frames import Frame
from mesh.program.runtime.here import Context, Here
from mesh.program.runtime.links import Link, SocketLink, TlsStream, memory_links, tls_context
from mesh.program.runtime.listening import Listener
from mesh.program.runtime.serving import Server
from tests.conftest import PATIENCE

OPTIONS = CallOptions(timeout=PATIENCE)
GREETING: dict[str, object] = {"program": "p", "to": "server", "from": ""}


class Hostile:
    """Runs a command wherever it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 0",)


@pytest.fixture
def ran() -> Iterator[list[str]]:
    """The commands that this process runs."""
    found: list[str] = []
    watching = [True]
    sys.addaudithook(lambda name, args: found.append(name) if watching and name == "os.system" else None)
    yield found
    watching.clear()


def answering(answer: Callable[[Link, Frame], object]) -> Connection:
    """Return a client's connection to a host that answers the first call in its own way."""
    ours, theirs = socket.socketpair()
    link = SocketLink(theirs)

    def serve() -> None:
        try:
            link.receive()
            answer(link, link.receive())
            while True:
                link.receive()
        except (EOFError, OSError):
            theirs.close()

    threading.Thread(target=serve, name="hostile-host", daemon=True).start()
    return Connection(SocketLink(ours), GREETING, ("server", "host"), is_trusting=False)


def raw(link: Link, data: bytes) -> None:
    assert isinstance(link, SocketLink)
    link._stream.sendall(data)


def head(kind: int, call: int, buffers: int, size: int) -> bytes:
    return frames.HEAD.pack(frames.MARK, kind, frames.PLAIN, call, buffers, size)


HOSTILE: dict[str, Callable[[Link, Frame], object]] = {
    "a pickle": lambda link, call: link.send(Frame(frames.RESULT, call.call, pickle.dumps(Hostile()))),
    "a pickle that is marked as plain": lambda link, call: link.send(
        Frame(frames.RESULT, call.call, pickle.dumps(Hostile()), flags=frames.PLAIN)
    ),
    "a pickled error": lambda link, call: link.send(Frame(frames.ERROR, call.call, pickle.dumps(Hostile()))),
    "a call that was not made": lambda link, call: link.send(Frame(frames.RESULT, 77, plain.dumps(1)[0])),
    "a call of its own": lambda link, call: link.send(Frame(frames.CALL, 1, pickle.dumps(Hostile()))),
    "no frame": lambda link, call: raw(link, b"GET / HTTP/1.1\r\n" * 10),
    "a huge body": lambda link, call: raw(link, head(frames.RESULT, call.call, 0, 1 << 60)),
    "huge buffers": lambda link, call: raw(
        link, head(frames.RESULT, call.call, 2, 1) + struct.pack(">2Q", 1 << 63, 1 << 63)
    ),
    "many buffers": lambda link, call: raw(link, head(frames.RESULT, call.call, 1 << 31, 1)),
    "deep nesting": lambda link, call: link.send(
        Frame(frames.RESULT, call.call, (b"l" + (1).to_bytes(8, "big")) * 100_000 + b"N", flags=frames.PLAIN)
    ),
    "an error of no shape": lambda link, call: link.send(Frame(frames.ERROR, call.call, plain.dumps([1])[0])),
    "a wrong welcome": lambda link, call: link.send(Frame(frames.WELCOME, 0, plain.dumps("many")[0])),
    "the end": lambda link, call: link.close(),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_host_fails_its_calls_and_runs_nothing(
    answer: Callable[[Link, Frame], object], ran: list[str]
) -> None:
    connection = answering(answer)
    error = connection.call(("method", (), {}), OPTIONS).exception(PATIENCE)
    assert isinstance(error, NodeLost | ValueError | LinkRefused), error
    assert ran == []
    connection.close()
    connection.join(PATIENCE)


def test_announced_bytes_cost_no_memory_before_they_come() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 3 << 30
    connection = answering(lambda link, call: raw(link, head(frames.RESULT, call.call, 0, size) + b"x" * 1000))
    future = connection.call(("method", (), {}), OPTIONS)
    connection_is_reading = threading.Event()
    connection_is_reading.wait(0.2)  # nothing is to happen
    assert not future.done()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 200_000
    connection.close()
    connection.join(PATIENCE)


# ---- strangers at a node


class Echo:
    def echo(self, value: object) -> object:
        return value


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key.pem"
    path.write_text(make_credentials())
    return str(path)


@pytest.fixture
def address(key_file: str) -> Iterator[tuple[str, int]]:
    """The address of a node that listens with TLS."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2000)
    found = listening.getsockname()
    caller = Caller(("p", "server"), lambda label: SocketLink(socket.socket()), {}, is_trusting=True)
    context = Context(Here("p", "server", 0, 1, "host"), caller, lambda code, why: None)
    server = Server(context, 2, 100, lambda error: None)
    server.open(Echo())
    listener = Listener({"tcp": listening.detach()}, key_file, server.attach)
    listener.start()
    yield found
    listener.close()
    server.close()


def calling(address: tuple[str, int], key_file: str, greeting: dict[str, object] = GREETING) -> Connection:
    own = socket.create_connection(address, PATIENCE)
    try:
        tls = tls_context(key_file, is_server=False).wrap_socket(own)
    except BaseException:
        own.close()
        raise
    return Connection(SocketLink(TlsStream(tls)), greeting, ("server", "host"), is_trusting=False)


def test_a_caller_with_the_key_is_served_beside_half_open_connections(address: tuple[str, int], key_file: str) -> None:
    strangers = [socket.create_connection(address, PATIENCE) for _ in range(300)]
    try:
        # The node drops strangers after some seconds; a caller waits until then, and is not refused.
        connection = calling(address, key_file)
        assert connection.call(("echo", (b"x" * 100_000,), {}), OPTIONS).result(PATIENCE) == b"x" * 100_000
        connection.close()
        connection.join(PATIENCE)
    finally:
        for one in strangers:
            one.close()


def test_a_caller_without_the_key_is_refused(address: tuple[str, int], tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(make_credentials())
    with pytest.raises((ssl.SSLError, OSError)):
        calling(address, str(other))
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, PATIENCE) as own:
        assert answer_to_a_greeting(bare, own) == b""


def answer_to_a_greeting(context: ssl.SSLContext, own: socket.socket) -> bytes:
    """Greet a node without a certificate, and return what comes back before the end."""
    try:
        with context.wrap_socket(own) as tls:
            tls.sendall(b"".join(bytes(one) for one in Frame(frames.HELLO, body=plain.dumps(GREETING)[0]).pieces()))
            return tls.recv(100)
    except OSError:
        return b""


@pytest.mark.parametrize("wrong", [{"program": "other"}, {"to": "learner"}], ids=["program", "label"])
def test_a_caller_of_another_node_is_refused(address: tuple[str, int], key_file: str, wrong: dict[str, object]) -> None:
    connection = calling(address, key_file, {**GREETING, **wrong})
    with pytest.raises(NodeLost):
        connection.call(("echo", (1,), {}), OPTIONS).result(PATIENCE)
    connection.join(PATIENCE)


@pytest.mark.parametrize("body", [pickle.dumps(((), {})), pickle.dumps(Hostile())], ids=["a call", "a command"])
def test_a_node_on_the_client_reads_no_pickle_of_a_host(body: bytes, ran: list[str]) -> None:
    caller = Caller(("p", "server"), lambda label: pytest.fail(label), {}, is_trusting=False)
    here = Here("p", "server", 0, 1, CLIENT)
    server = Server(Context(here, caller, lambda code, why: None), 1, 10, lambda error: None, plain.loads)
    server.open({})
    ours, theirs = memory_links()
    server.attach(theirs)
    ours.send(Frame(frames.HELLO, body=plain.dumps({**GREETING, "serves": True})[0]))
    assert ours.receive().kind == frames.WELCOME  # it lends no link to a host
    ours.send(Frame(frames.CALL, 1, struct.pack(">d", PATIENCE) + body))
    assert ours.receive().kind == frames.ERROR
    assert ran == []
    ours.close()
    server.close()
