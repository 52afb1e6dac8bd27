"""The same three measures with other libraries: a round trip, many calls in flight, and an array.

Each is a script for a Python that has the library. It prints JSON: [seconds of a call, calls a second, bytes a second].
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

from msgspec import Struct

from benchmarks.peers import python_with

PEER_TIMEOUT_S = 120.0
CALLS, IN_FLIGHT, ARRAY_BYTES = 1000, 1000, 100_000_000

MEASURE = f"""
import json, os, sys, time

def timed(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun

def report(call, begin, bulk):
    for _ in range(50):
        call()
    trips = sorted(timed(call) for _ in range({CALLS}))
    rate = {IN_FLIGHT} / timed(lambda: begin({IN_FLIGHT})) if begin else 0.0
    size = {ARRAY_BYTES} / min(timed(bulk) for _ in range(3)) if bulk else 0.0
    print(json.dumps([trips[len(trips) // 2], rate, size]), flush=True)
    os._exit(0)
"""

TCP = """
import socket
own = socket.create_server(("127.0.0.1", 0))
if not os.fork():
    there, _ = own.accept()
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = bytearray(1 << 20)
    while True:
        size = int.from_bytes(there.recv(8, socket.MSG_WAITALL), "big")
        while size > 0:
            size -= there.recv_into(memory, min(size, len(memory)))
        there.sendall(b"x")
link = socket.create_connection(own.getsockname())
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def send(data):
    link.sendall(len(data).to_bytes(8, "big") + data[:0])
    link.sendall(data)
    link.recv(1)
data = bytes(ARRAY)
report(lambda: send(b"1"), None, lambda: send(data))
"""

ZMQ = """
import zmq
def curve(socket, server):
    public, secret = zmq.curve_keypair()
    socket.curve_publickey, socket.curve_secretkey = public, secret
    if server is None:
        socket.curve_server = True
    else:
        socket.curve_serverkey = server
    return public
read, write = os.pipe()
if not os.fork():
    own = zmq.Context().socket(zmq.REP)
    key = curve(own, None)
    port = own.bind_to_random_port("tcp://127.0.0.1")
    os.write(write, json.dumps([port, key.decode()]).encode())
    while True:
        own.send(own.recv(copy=False).buffer[:100])
port, key = json.loads(os.read(read, 1000))
link = zmq.Context().socket(zmq.REQ)
curve(link, key.encode())
link.connect(f"tcp://127.0.0.1:{port}")
def call(value):
    link.send(value, copy=False)
    link.recv()
data = bytes(ARRAY)
report(lambda: call(b"1"), None, lambda: call(data))
"""

GRPC = """
import subprocess, tempfile
from concurrent import futures
place = tempfile.mkdtemp()
words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
subprocess.run(["openssl", *words.split(), "-keyout", f"{place}/key", "-out", f"{place}/cert"], check=True,
               stderr=subprocess.DEVNULL)
key, cert = (open(f"{place}/{name}", "rb").read() for name in ("key", "cert"))
options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
read, write = os.pipe()
if not os.fork():
    import grpc
    server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request[:100])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"echo": handler}),))
    credentials = grpc.ssl_server_credentials([(key, cert)], cert, True)
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    os.write(write, str(port).encode())
    server.wait_for_termination()
import grpc
port = int(os.read(read, 100))
credentials = grpc.ssl_channel_credentials(cert, key, cert)
echo = grpc.secure_channel(f"localhost:{port}", credentials, options=options).unary_unary("/bench/echo")
data = bytes(ARRAY)
def begin(count):
    for future in [echo.future(b"1") for _ in range(count)]:
        future.result()
report(lambda: echo(b"1"), begin, lambda: echo(data))
"""

RAY = """
import numpy, ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
class Echo:
    def echo(self, value):
        return value
    def size(self, value):
        return value.nbytes
actor = ray.remote(Echo).remote()
data = numpy.ones(ARRAY, dtype=numpy.uint8)
def begin(count):
    ray.get([actor.echo.remote(1) for _ in range(count)])
report(lambda: ray.get(actor.echo.remote(1)), begin, lambda: ray.get(actor.size.remote(data)))
"""

COURIER = """
import courier
class Echo:
    def echo(self, value):
        return value
read, write = os.pipe()
if not os.fork():
    server = courier.Server("echo")
    server.Bind("echo", Echo().echo)
    server.Start()
    os.write(write, str(server.port).encode())
    server.Join()
client = courier.Client(f"localhost:{int(os.read(read, 100))}")
def begin(count):
    for future in [client.futures.echo(1) for _ in range(count)]:
        future.result()
report(lambda: client.echo(1), begin, None)
"""


class Peer(Struct, frozen=True):
    """A library. module: that its Python has; "": any Python"""

    name: str
    module: str
    script: str


PEERS = (
    Peer("raw TCP", "", TCP),
    Peer("Ray, one host", "ray", RAY),
    Peer("grpcio, mTLS", "grpc", GRPC),
    Peer("Courier, no encryption", "courier", COURIER),
    Peer("pyzmq, CURVE", "zmq", ZMQ),
)


def measured(peer: Peer) -> Sequence[float]:
    """Return the measures of a library; () if it is not installed or fails."""
    python = python_with(peer.module or "json")
    if not python:
        return ()
    words = [python, "-c", MEASURE + peer.script.replace("ARRAY", str(ARRAY_BYTES))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdout is not None

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its server as well, which would keep the pipe open

        timer = threading.Timer(PEER_TIMEOUT_S, kill)
        timer.start()
        line = next((line for line in process.stdout if line.startswith(b"[")), b"[]")
        timer.cancel()
        kill()
    found: list[float] = json.loads(line)
    return found
