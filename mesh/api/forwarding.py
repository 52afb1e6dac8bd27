"""mesh forward: ports of hosts as ports of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mesh.api.choosing import choose_cluster
from mesh.app.carriers import Means, allow_descriptors, carrier_of
from mesh.app.forwarder import Forwarder
from mesh.app.listening import listen, listen_at
from mesh.backends.ssh.passwords import Passwords
from mesh.config.forwarding import read_forwarded
from mesh.config.settings import Options
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.interfaces import Purpose

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def chosen(selector: str, options: Options, clusters_file: str) -> Cluster:
    """Return the hosts of a selector whose ports are wanted. Raises UsageError and MeshError."""
    return choose_cluster(selector, options, clusters_file, purpose=Purpose.ASK)


def forward(
    ports: Sequence[str],
    cluster: Cluster,
    *,
    socket: str = "",
    show: Callable[[str], object] = print,
    notify: Callable[[str], object] = print,
) -> int:
    """Carry connections to ports of this machine to the same ports of hosts, until a signal; return 128 + the signal.

    ports: each "REMOTE" or "LOCAL:REMOTE"; a port of loopback on the hosts, and the one of this machine's loopback for
    the first host. Each further host has the next one. A port that is taken is replaced by a free one.
    socket: a path for a Unix socket that only this user can open, in place of a port; for one port of one host
    show: called with a line for each port once all hosts are connected; notify: called with a line for each problem
    Call it in the main thread. Raises UsageError, and MeshError if a host cannot be reached.
    """
    wanted = list(dict.fromkeys(read_forwarded("forward", text) for text in ports))
    if not wanted:
        raise UsageError("forward: no port was named", hint=f"mesh forward {cluster.name} 6006")
    if socket and (len(wanted) > 1 or len(cluster.hosts) > 1):
        hint = f"mesh forward {cluster.name}:0 --socket PATH {wanted[0].remote}"
        raise UsageError("--socket: it is for one port of one host", hint=hint)
    carrier = carrier_of(cluster)
    allow_descriptors(len(cluster.hosts), carrier)  # connections that find no descriptor wait
    passwords = Passwords(cluster.password_env, os.environ)
    forwarder = Forwarder(cluster, carrier.open(cluster, Means(environ=os.environ, passwords=passwords)), "", notify)
    signals: list[int] = []
    try:
        forwarder.open()
        hosts = cluster.hosts
        one = wanted[0].remote
        places = [listen_at(socket, hosts[0], one)] if socket else listen(hosts, wanted, here=forwarder.here)
        forwarder.listen(places)

        def end(number: int) -> None:
            signals.append(number)
            forwarder.stop()

        with _noting(end):
            for place in places:
                show(place.told)
            forwarder.serve()
    except OSError as error:
        raise MeshError(f"forward: no socket can be opened here ({error.strerror})", hint="ulimit -n 4096") from error
    finally:
        forwarder.close()
        passwords.close()
    return 128 + signals[0]


@contextmanager
def _noting(note: Callable[[int], object]) -> Iterator[None]:
    """Within: call a function with the number of each signal that asks for the end."""
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: note(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
