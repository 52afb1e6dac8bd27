"""Work that may hang, several pieces at a time, each in a process of its own."""

from __future__ import annotations

import os
import select
import time

from mesh.agent.base.background import Background
from mesh.agent.base.light import partial, signal
from mesh.protocol.records import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def run_parallel(works: Mapping[str, Callable[[], object]], limit_s: float) -> dict[str, object]:
    """Return the results of several functions as JSON has them. May block for limit_s.

    A function that is late is killed, and its result is {"error": ..., "hint": "", "late": true}.
    """
    results: dict[str, object] = {}
    processes = {name: Background(partial(_result_of, work)) for name, work in works.items()}
    poll, names = select.poll(), {process.channel: name for name, process in processes.items()}
    for descriptor in names:
        poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + limit_s
    while names and time.monotonic() < deadline:
        for descriptor, event in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 0.5):
            process = processes[names[descriptor]]
            process.read()
            if not event & select.POLLIN:  # it has closed its end
                poll.unregister(descriptor)
                answer = process.end()
                results[names.pop(descriptor)] = answer.get("result", answer)
    for descriptor, name in names.items():
        os.kill(processes[name].pid, signal.SIGKILL)
        os.close(descriptor)
        results[name] = {"error": f"no answer within {limit_s:g} s", "hint": "", "late": True}
    return results


def _result_of(work: Callable[[], object]) -> dict[str, object]:
    return {"result": plain(work())}
