"""A run from its start to its result."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.checking import numbered, vetted
from mesh.app.assemble import Parts, launch
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster
from mesh.core.events import Event, Stream
from mesh.core.module import NO_PREPARATION, Preparation
from mesh.core.notify import Notification
from mesh.core.run import AUTO, Kind, RunSpec
from mesh.rundir.results import RunResult, run_result

if TYPE_CHECKING:
    from mesh.core.forwarding import Forwarded
    from mesh.engine.relaying import Relay

OnEvent = Callable[[Event], object]


class Listener:
    """A sink that calls a function with each event. If the function raises, the run ends on all hosts."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._lock = threading.RLock()  # reentrant, as garbage collection may call ``end``
        self._signals: list[int] = []
        self._interrupt: Callable[[int], None] | None = None  # None: the run has not started
        self.error: BaseException | None = None  # that the function has raised

    def attach(self, interrupt: Callable[[int], None]) -> None:
        """Take the function that ends the run. It is called at once if the run was to end before its start."""
        with self._lock:
            self._interrupt, signals = interrupt, self._signals
        for number in signals:
            interrupt(number)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the run as a signal does. From any thread, also before the start of the run."""
        with self._lock:
            self._signals.append(number)
            interrupt = self._interrupt
        if interrupt is not None:
            interrupt(number)

    def handle(self, event: Event) -> None:
        if self.error is not None:
            return
        try:
            self._on_event(event)
        except BaseException as error:
            self.error = error
            self.end()

    def idle(self) -> None: ...

    def close(self) -> None: ...


class Beside(Struct, frozen=True, kw_only=True):
    """Parts of a project that stand beside the spec of a run."""

    notify: tuple[Notification, ...] = ()  # sent at the end
    preparation: Preparation = NO_PREPARATION  # of the hosts, by modules
    payloads: Mapping[str, bytes] = {}
    forward: tuple[Forwarded, ...] = ()  # ports of the hosts that this machine reaches meanwhile
    relayed: Callable[[Relay], object] = lambda relay: None  # called with the relay to the nodes, before the start


def run_on(
    cluster: Cluster,
    spec: RunSpec,
    showing: Showing,
    *,
    check_first: bool = False,
    listener: Listener | None = None,
    beside: Beside = Beside(),  # noqa: B008
) -> RunResult:
    """Run it to its end, in a run directory.

    check_first: see before if every host is fit for it
    beside: what the project has beside the run itself
    listener: gets all events; an error of its function is raised once the run has ended
    """
    if any(group.nproc == AUTO for group in spec.groups):
        from mesh.api.inquiries import count_gpus

        spec = spec.with_nproc(count_gpus(cluster, quiet=showing.quiet))
    preparation = beside.preparation
    decider = vetted(spec, cluster, preparation) if check_first else numbered(spec, cluster, preparation)
    parts = Parts(spec=spec, cluster=cluster, showing=showing, decider=decider, uses_kept=not check_first)
    parts = replace(
        parts,
        notify=beside.notify,
        preparation=preparation,
        payloads=beside.payloads,
        forward=beside.forward,
        relayed=beside.relayed,
    )
    if listener is not None:
        parts = replace(parts, sinks=(listener,), started=listener.attach)
    outcome, placement, store = launch(parts)
    assert store is not None  # runs are kept
    if listener is not None and listener.error is not None:
        raise listener.error
    outputs = (Stream.SETUP if spec.kind is Kind.SETUP else Stream.STDOUT, Stream.STDERR)
    return run_result(outcome, placement, store, outputs)
