"""Beats reach every host that takes them, however many others block."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mesh.engine.beats import Beats
from tests.lab import eventually


class Host:
    """The session of a host that takes beats only while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.beats = 0

    def beat(self) -> None:
        self.open.wait()
        self.beats += 1


def test_a_blocked_host_delays_no_other_host() -> None:
    threads: list[threading.Thread] = []

    def spawn(function: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=function))
        threads[-1].start()

    hosts = {node: Host() for node in range(6)}
    for node in (1, 3, 5):
        hosts[node].open.set()
    beats = Beats(spawn)
    beats.renew(hosts)

    def have_come(count: int) -> bool:
        beats.advance()
        return [hosts[node].beats for node in (1, 3, 5)] == [count] * 3

    assert eventually(lambda: have_come(1))
    beats.renew(hosts)
    assert eventually(lambda: have_come(2))
    blocked = [hosts[node].beats for node in (0, 2, 4)]
    for host in hosts.values():
        host.open.set()
    # Its beats do not pile up meanwhile: it gets one.
    assert eventually(lambda: [hosts[node].beats for node in (0, 2, 4)] == [1, 1, 1])
    beats.close()
    for thread in threads:
        thread.join()
    assert blocked == [0, 0, 0]
    assert len(threads) == 4  # one for each host that blocks, and one for all others
