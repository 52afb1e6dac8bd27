"""Fetches output of a detached run from its hosts into its directory, beside readers of that."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from msgspec.structs import replace

from mesh.api.checking import TCP_TIMEOUT_S
from mesh.api.detached import DetachedRun, Place, Scratch, known, prepared
from mesh.app.assemble import Parts, launch, placed
from mesh.app.screen import Showing
from mesh.app.secrets import unknown, unmasked_notice
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.findings import few
from mesh.core.outcome import Cause
from mesh.core.run import RunSpec
from mesh.rundir.records import Record

FETCH_POLL_S = 0.05  # between two looks if the hosts have reported the output that they have
END_LIMIT_S = 10.0  # for the hosts of a stopped run to report how its ranks ended
SILENT_HOST_LIMIT_S = 20.0  # for a host that sends nothing


class Fetch:
    """A fetch in a thread of its own, quietly, and without any effect on the run."""

    def __init__(self, spec: RunSpec, cluster: Cluster, place: Place | Scratch, *, lasting: bool) -> None:
        """place: written by this fetch alone; lasting: go on until the run has ended."""
        from mesh.engine.fetching import Fetching

        rules = replace(spec.rules, host_grace=min(spec.rules.host_grace, SILENT_HOST_LIMIT_S))
        self._spec = spec if lasting else replace(spec, rules=rules)
        self._cluster, self._place, self._lasting = cluster, place, lasting
        placement, arrivals = placed(self._spec, self._cluster), place.attaching.arrivals
        self._decider = Fetching(self._spec, placement, lasting=lasting, arrivals=arrivals)
        self._error: BaseException | None = None
        self._problem = ""  # why not all of it is here
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="mesh-fetch", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until each host has reported the output that it has, or is out of reach."""
        while self._thread.is_alive() and not (self._lasting and self._decider.has_told):
            self._thread.join(FETCH_POLL_S)

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the run has ended and all of its hosts have reported that, at most so long."""
        self._thread.join(seconds)

    @property
    def is_complete(self) -> bool:
        """True if all output has come, as far as hosts keep it. Valid after ``wait``."""
        return not self._problem and not self._decider.troubles

    def news(self) -> Iterator[str]:
        """Yield the missing parts with their reasons, a line each: once. Raises an error of mesh itself."""
        if self._error is not None:
            raise self._error
        by_trouble: dict[str, list[str]] = {}
        for node, trouble in sorted(self._decider.troubles.copy().items()):
            by_trouble.setdefault(trouble, []).append(self._cluster.hosts[node].name)
        lines = [f"{few(hosts)} {trouble}" for trouble, hosts in by_trouble.items()]
        if missing := unknown(self._spec, os.environ):
            lines.append(unmasked_notice(missing))
        for line in [*lines, *([self._problem] if self._problem else [])]:
            if line not in self._told:
                self._told.add(line)
                yield line

    def close(self) -> None:
        """End the fetch."""
        self._decider.leave()
        self._thread.join()

    def _work(self) -> None:
        attaching = replace(self._place.attaching, only_reads=True)
        try:
            parts = Parts(
                spec=self._spec,
                cluster=self._cluster,
                showing=Showing(quiet=True),
                decider=self._decider,
                attaching=attaching,
                reach_limit_s=TCP_TIMEOUT_S,
            )
            outcome, _, store = launch(parts)
        except MeshError as error:
            self._problem = str(error)
            return
        except BaseException as error:  # ``news`` raises it in the thread that waits
            self._error = error
            return
        if store is not None and store.problem:
            self._problem = f"the run directory is incomplete: {store.problem}"
        if outcome.cause is Cause.PREPARE:
            (failure, *_) = outcome.failures
            self._problem = f"{self._cluster.hosts[failure.node].name}: {failure.message}"
            self._place.forget()


def fetch(found: DetachedRun, clusters_file: str, *, lasting: bool) -> Fetch | None:
    """Begin to fetch what hosts have more of a run; None if another client of this machine does it already.

    lasting: what comes later too. Raises UsageError, and MeshError if its directory cannot be written.
    """
    spec, cluster = prepared(found, clusters_file)
    try:
        place = Place(found, "here", shared=False)
    except BlockingIOError:
        return None
    except OSError as error:
        raise MeshError(f"cannot write the directory of run {found.run}: {error.strerror}") from error
    return Fetch(spec, cluster, place, lasting=lasting)


def fetch_end(record: Record, clusters_file: str) -> None:
    """Write into a run's directory how a detached run has ended, if all of its hosts report that it has.

    Its output stays on the hosts until ``mesh logs`` or ``mesh attach`` fetches it. Raises UsageError.
    """
    from mesh.rundir.about import write_end
    from mesh.rundir.resuming import open_events

    found = known(record)
    spec, cluster = prepared(found, clusters_file)
    with contextlib.ExitStack() as held:
        try:
            held.callback(os.close, open_events(record.directory))
            scratch = held.enter_context(contextlib.closing(Scratch(found)))
            with contextlib.closing(Fetch(spec, cluster, scratch, lasting=True)) as fetching:
                fetching.wait_for_end(END_LIMIT_S)
            write_end(record.directory, scratch.directory)
        except BlockingIOError:  # another client of this machine follows the run, and writes its end
            return
        except OSError as error:
            raise MeshError(f"cannot write the end of run {record.run}: {error.strerror}") from error
