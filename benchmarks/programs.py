"""Calls between nodes: round trip, calls in flight, and 100 MB; beside grpcio and pyzmq where those are installed.

``python -m benchmarks.programs`` prints one row each, all measured in the same run. Goals are ratios within it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy

from mesh.program import Handle, Program

REPOSITORY = Path(__file__).parent.parent
CALLS, IN_FLIGHT, ARRAY_BYTES = 2000, 1000, 100_000_000


class Echo:
    """Returns what it gets, or its size."""

    def echo(self, value: object) -> object:
        return value

    def size(self, value: numpy.ndarray) -> int:
        return int(value.nbytes)


class Caller:
    """Measures calls to another node."""

    def __init__(self, other: Handle[Echo]) -> None:
        self._other = other

    def measure(self, calls: int, in_flight: int, size: int) -> tuple[float, float, float]:
        """Return seconds of the median call, calls a second with many in flight, and bytes a second of an array."""
        other = self._other
        trips = sorted(timed(lambda: other.echo(1)) for _ in range(calls))
        begun = time.perf_counter()
        for future in [other.futures.echo(number) for number in range(in_flight)]:
            future.result()  # type: ignore[attr-defined]
        rate = in_flight / (time.perf_counter() - begun)
        array = numpy.ones(size, dtype=numpy.uint8)
        bulk = min(timed(lambda: other.size(array)) for _ in range(3))
        return trips[len(trips) // 2], rate, size / bulk


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def mesh_program(hosts: str) -> tuple[float, float, float]:
    """Measure calls between two nodes. hosts: "a,a" for one host, "a,b" for two, with TLS between them"""
    here, there = hosts.split(",")
    program = Program("bench", python=sys.executable)
    echo = program.add(Echo, on=there)
    caller = program.add(Caller, echo, on=here)
    assert isinstance(caller, Handle)
    with program.launch("local"):
        found = caller.measure(CALLS, IN_FLIGHT, ARRAY_BYTES)
    assert isinstance(found, tuple)
    return found


@contextlib.contextmanager
def server(source: str) -> Iterator[str]:
    """Start a server of another library; yield the line that it prints, its port."""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


ZMQ = """
import zmq
own = zmq.Context().socket(zmq.REP)
print(own.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while True:
    own.send(own.recv()[:100])
"""

GRPC = """
import grpc
from concurrent import futures
options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request[:100])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"echo": handler}),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


def pyzmq() -> tuple[float, float, float]:
    """Measure pyzmq without encryption; it has one call in flight."""
    import zmq

    with server(ZMQ) as port:
        own = zmq.Context.instance().socket(zmq.REQ)
        own.connect(f"tcp://127.0.0.1:{port}")

        def call(data: bytes) -> None:
            own.send(data)
            own.recv()

        found = _measured(call, None)
        own.close(linger=0)
        return found


def grpcio() -> tuple[float, float, float]:
    """Measure grpcio without encryption."""
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with server(GRPC) as port, grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        echo = channel.unary_unary("/bench/echo")
        return _measured(echo, echo.future)


def _measured(call: Callable[[bytes], object], begin: Callable[[bytes], object] | None) -> tuple[float, float, float]:
    trips = sorted(timed(lambda: call(b"1")) for _ in range(CALLS))
    rate = 0.0
    if begin is not None:
        begun = time.perf_counter()
        for future in [begin(b"1") for _ in range(IN_FLIGHT)]:
            future.result()  # type: ignore[attr-defined]
        rate = IN_FLIGHT / (time.perf_counter() - begun)
    data = bytes(ARRAY_BYTES)
    return trips[len(trips) // 2], rate, ARRAY_BYTES / min(timed(lambda: call(data)) for _ in range(3))


ROWS: dict[str, Callable[[], tuple[float, float, float]]] = {
    "mesh, one host": lambda: mesh_program("a,a"),
    "mesh, two hosts, TLS": lambda: mesh_program("a,b"),
    "pyzmq, no encryption": pyzmq,
    "grpcio, no encryption": grpcio,
}


def main() -> None:
    """Print the table."""
    print(f"{'':<24}{'round trip':>12}{f'{IN_FLIGHT} in flight':>18}{'100 MB':>12}")
    for name, measure in ROWS.items():
        try:
            trip, rate, bulk = measure()
        except ImportError as error:
            print(f"{name:<24}{error.name} is not installed")
            continue
        told = f"{rate:,.0f} calls/s" if rate else "-"
        print(f"{name:<24}{trip * 1e6:>9.0f} us{told:>18}{bulk / 1e6:>7.0f} MB/s", flush=True)


if __name__ == "__main__":
    main()
