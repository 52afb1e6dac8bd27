"""One run over agents that are played here, in a process of its own: what does a client cost?

    python -m benchmarks.played HOSTS [--lines N] [--mode all|fold] [--equal] [--switchboard]

Says as one line of JSON what it took.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.switchboard_nodes import PlayedNodes, name_of
from mesh.app.assemble import Parts, launch
from mesh.app.carriers import Carrier
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster, Host
from mesh.core.interfaces import Backend
from tests.lab import peak_memory
from tests.scripted import Play, ScriptedBackend, prints
from tests.specs import spec_of


class _Watch:
    """The most threads and descriptors that there are at a time."""

    def __init__(self) -> None:
        self.threads = self.descriptors = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.05):
            self.threads = max(self.threads, threading.active_count() - 1)
            self.descriptors = max(self.descriptors, len(os.listdir("/proc/self/fd")))


def play_of(lines: int, *, equal: bool) -> Play:
    """Ranks that print so many lines."""
    return prints(lines, lambda rank, line: b"rank %d step %d\n" % (0 if equal else rank, line))


def through_switchboard(hosts: int, lines: int, *, equal: bool) -> dict[str, float]:
    """The same with nodes that are played in another process, through a real switchboard in a third one."""
    with PlayedNodes(hosts, lines, equal=equal) as nodes:
        found = run(hosts, nodes.backend(hosts), "all")
        return {**found, **nodes.costs()}


def played(hosts: int, lines: int, mode: str, *, equal: bool) -> dict[str, float]:
    """Seconds, CPU seconds, MB and the like of one run, with a rank on each host that prints so many lines."""
    backend = ScriptedBackend(play_of(lines, equal=equal))
    found = run(hosts, backend, mode)
    return {**found, "sent": sum(channel.received for channel in backend.channels)}


def run(hosts: int, backend: Backend, mode: str) -> dict[str, float]:
    """Run `true` on all hosts, and measure this process."""
    names = map(name_of, range(hosts))
    cluster = Cluster(name="played", hosts=tuple(Host(name=name, address=name) for name in names), backend="played")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"HOME": scratch, "XDG_STATE_HOME": scratch}
        spec = spec_of(run="played", project="p", workspace=Path(scratch), command=("true",), sync=False)
        carrier = Carrier(open=lambda cluster, reaching: backend, descriptors=0)
        parts = Parts(spec=spec, cluster=cluster, showing=Showing(output=mode), carrier=carrier)
        begin = time.monotonic()
        with _Watch() as watch:
            outcome, _, _ = launch(parts)
        seconds = time.monotonic() - begin
    if outcome.exit_code:
        raise SystemExit(f"exit {outcome.exit_code}")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": peak_memory(),
        "threads": watch.threads,
        "descriptors": watch.descriptors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", type=int)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--mode", default="all")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--switchboard", action="store_true", help="through one, with nodes that are played")
    chosen = parser.parse_args()
    if chosen.switchboard:
        found = through_switchboard(chosen.hosts, chosen.lines, equal=chosen.equal)
    else:
        found = played(chosen.hosts, chosen.lines, chosen.mode, equal=chosen.equal)
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
