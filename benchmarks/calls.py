"""Calls to another process by mesh and by other libraries, all measured by the same code.

``python calls.py LIBRARY`` is run by an interpreter that has the library. It starts a second process, which serves, and
then measures what each line of its input names. mesh's own nodes use ``measured`` as well. Needs nothing of mesh.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

Found = tuple[list[float], float]  # seconds of each measurement, and CPU seconds of both processes for all of them
PATIENCE_S = 10.0  # for one call
BIG = -1  # the size of a message that has no limit


class Sized:
    """An array."""

    nbytes: int


class Calls:
    """The ways of one library to call the other process."""

    def __init__(
        self,
        echo: Callable[[], object],
        many: Callable[[int], object],
        bulk: Callable[[Sized], object],
        cpu: Callable[[], float],
    ) -> None:
        """echo: makes one call; many: makes so many calls at once; bulk: sends an array and waits until it is there

        cpu: returns the CPU seconds of the other process
        """
        self.echo, self.many, self.bulk, self.cpu = echo, many, bulk, cpu


def measured(calls: Calls, kind: str, count: int, size: int) -> Found:
    """Measure calls. kind: "echo": count calls, one by one; "many": size calls at once; "bulk": arrays of size bytes"""
    work: Callable[[], object]
    if kind == "echo":
        work = calls.echo
    elif kind == "many":
        work = lambda: calls.many(size)  # noqa: E731
    else:
        data = array(size)
        work = lambda: calls.bulk(data)  # noqa: E731
    theirs, ours = calls.cpu(), time.process_time()
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    ours = time.process_time() - ours
    return found, ours + calls.cpu() - theirs


def array(size: int) -> Sized:
    """Return an array of so many bytes."""
    import numpy

    made: Sized = numpy.ones(size, dtype=numpy.uint8)  # type: ignore[assignment]
    return made


# ---- pyzmq: messages between two sockets, encrypted by CURVE


def zmq_serve(place: str) -> None:
    """Serve echoes. place: a file with the keys"""
    import zmq

    own = zmq.Context().socket(zmq.ROUTER)
    with open(place) as file:
        keys = [word.encode() for word in file.read().split()]
    own.curve_server, own.curve_publickey, own.curve_secretkey = True, keys[0], keys[1]
    own.rcvhwm = own.sndhwm = 0
    tell(own.bind_to_random_port("tcp://127.0.0.1"))
    while True:
        sender, what, data = own.recv_multipart(copy=False)
        if what.bytes == b"cpu":
            answer = repr(time.process_time()).encode()
        else:
            answer = data.bytes if what.bytes == b"echo" else str(len(data)).encode()
        own.send_multipart([sender.bytes, answer])


@contextlib.contextmanager
def zmq_calls(place: str) -> Iterator[Calls]:
    """Call the server over a socket with CURVE."""
    import zmq

    keys = [*zmq.curve_keypair(), *zmq.curve_keypair()]
    with open(place, "w") as file:
        file.write(" ".join(key.decode() for key in keys))
    with serving("pyzmq", place) as port:
        own = zmq.Context().socket(zmq.DEALER)
        own.curve_serverkey, own.curve_publickey, own.curve_secretkey = keys[0], keys[2], keys[3]
        own.rcvhwm = own.sndhwm = 0
        own.connect(f"tcp://127.0.0.1:{port}")

        def call(what: bytes, data: object) -> bytes:
            own.send_multipart([what, data], copy=False)
            answer: bytes = own.recv()
            return answer

        def many(count: int) -> None:
            for _ in range(count):
                own.send_multipart([b"echo", b"1"])
            for _ in range(count):
                own.recv()

        yield Calls(
            lambda: call(b"echo", b"1"), many, lambda data: call(b"bulk", data), lambda: float(call(b"cpu", b""))
        )
        own.close(linger=0)


# ---- grpcio: calls of a generic handler, with a certificate on both ends or without encryption


def grpc_options() -> list[tuple[str, object]]:
    return [
        ("grpc.max_receive_message_length", BIG),
        ("grpc.max_send_message_length", BIG),
        ("grpc.ssl_target_name_override", "localhost"),
    ]


def pem(place: str) -> tuple[bytes, bytes]:
    """Return key and certificate; make them where they are not there."""
    if not os.path.exists(place):
        words = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout {place} "
        words += f"-out {place}.certificate -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        subprocess.run(words.split(), check=True, capture_output=True)
    with open(place, "rb") as key, open(f"{place}.certificate", "rb") as certificate:
        return key.read(), certificate.read()


def grpc_serve(place: str) -> None:
    """Serve echoes. place: a file with the key; "": no encryption"""
    from concurrent import futures

    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(16), options=grpc_options())
    answers = {
        "echo": lambda request, context: request,
        "bulk": lambda request, context: str(len(request)).encode(),
        "cpu": lambda request, context: repr(time.process_time()).encode(),
    }
    handlers = {name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    if place:
        key, certificate = pem(place)
        credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
        tell(server.add_secure_port("127.0.0.1:0", credentials))
    else:
        tell(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


@contextlib.contextmanager
def grpc_calls(place: str) -> Iterator[Calls]:
    """Call the server. place: a file for the key; "": no encryption"""
    import grpc

    if place:
        key, certificate = pem(place)
        credentials = grpc.ssl_channel_credentials(certificate, key, certificate)
    with serving("grpcio" if place else "grpcio-open", place) as port:
        address = f"127.0.0.1:{port}"
        channel = (
            grpc.secure_channel(address, credentials, options=grpc_options())
            if place
            else grpc.insecure_channel(address, options=grpc_options())
        )
        echo, bulk, cpu = (channel.unary_unary(f"/bench/{name}") for name in ("echo", "bulk", "cpu"))

        def many(count: int) -> None:
            for future in [echo.future(b"1") for _ in range(count)]:
                future.result()

        yield Calls(
            lambda: echo(b"1", wait_for_ready=True),
            many,
            lambda data: bulk(data.tobytes()),  # type: ignore[attr-defined]
            lambda: float(cpu(b"", wait_for_ready=True)),
        )
        channel.close()


# ---- Ray: an actor on this machine; arrays go through shared memory, without encryption


@contextlib.contextmanager
def ray_calls(place: str) -> Iterator[Calls]:
    """Call an actor."""
    import logging

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray

    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=1 << 30,
        _temp_dir=directory,
    )

    class Served:
        def echo(self, value: object) -> object:
            return value

        def bulk(self, data: Sized) -> int:
            return int(data.nbytes)

        def cpu(self) -> float:
            return time.process_time()

    try:
        actor = ray.remote(Served).remote()
        yield Calls(
            lambda: ray.get(actor.echo.remote(1)),
            lambda count: ray.get([actor.echo.remote(1) for _ in range(count)]),
            lambda data: ray.get(actor.bulk.remote(data)),
            lambda: float(ray.get(actor.cpu.remote())),
        )
    finally:
        ray.shutdown()
        subprocess.run(["rm", "-rf", directory], check=False)


# ---- Courier of Launchpad: without encryption


def courier_serve(place: str) -> None:
    """Serve echoes at a port that is free."""
    import courier

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = courier.Server("bench", port)
    server.Bind("echo", lambda value: value)
    server.Bind("bulk", lambda data: int(data.nbytes))
    server.Bind("cpu", time.process_time)
    server.Start()
    tell(port)
    server.Join()


@contextlib.contextmanager
def courier_calls(place: str) -> Iterator[Calls]:
    """Call the server."""
    import courier

    with serving("courier", place) as port:
        client = courier.Client(f"localhost:{port}", call_timeout=PATIENCE_S)

        def many(count: int) -> None:
            for future in [client.futures.echo(1) for _ in range(count)]:
                future.result()

        yield Calls(lambda: client.echo(1), many, client.bulk, client.cpu)


# ---- the two processes

LIBRARIES: dict[str, tuple[Callable[[str], contextlib.AbstractContextManager[Calls]], Callable[[str], None] | None]]
LIBRARIES = {
    "pyzmq": (zmq_calls, zmq_serve),
    "grpcio": (grpc_calls, grpc_serve),
    "grpcio-open": (lambda place: grpc_calls(""), lambda place: grpc_serve("")),
    "ray": (ray_calls, None),
    "courier": (courier_calls, courier_serve),
}


def tell(value: object) -> None:
    """Print a line for the process that waits for it."""
    print(value, flush=True)


@contextlib.contextmanager
def serving(library: str, place: str) -> Iterator[str]:
    """Start the process that serves; yield the line that it prints, its port."""
    argv = [sys.executable, __file__, library, "serve", place]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main(words: Sequence[str]) -> None:
    """Measure what the lines of the input name, as "bulk 2 100000000", and print a line of JSON for each."""
    call, serve = LIBRARIES[words[0]]
    if words[1:] and serve is not None:
        serve(words[2])
        return
    with tempfile.TemporaryDirectory() as directory, call(os.path.join(directory, "keys")) as calls:
        for line in sys.stdin:
            kind, count, size = line.split()
            try:
                tell(json.dumps(measured(calls, kind, int(count), int(size))))
            except Exception as error:  # of the library: this row has no such figure
                tell(json.dumps(f"{type(error).__name__}: {error}".splitlines()[0][:200]))


if __name__ == "__main__":
    main(sys.argv[1:])
