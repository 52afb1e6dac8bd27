"""Periodic work of the steward for all jobs: cost limits at each turn, and an audit of machines every 10 minutes.

The audit asks the API in a child process. It deletes nothing: `mesh job gc` does, and a person starts that.
"""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from mesh.jobs.child import STEWARD_VARIABLE
from mesh.jobs.coding import decode
from mesh.jobs.costs import PriceOf, no_price
from mesh.jobs.events import AnyEvent, StraysSeen
from mesh.jobs.spending import cost_event
from mesh.jobs.store import Store
from mesh.jobs.strays import Strays, read_strays, write_strays
from mesh.jobs.values import Job

AUDIT_INTERVAL_S = 600.0
AUDIT_LIMIT_S = 900.0  # for the child: it asks every zone, and a minute later those with findings again
READ_BYTES = 1 << 16
log = logging.getLogger(__name__)


class RoundOptions(Struct, frozen=True, kw_only=True):
    """The prices, and the program that audits."""

    price_of: PriceOf = no_price
    audit: tuple[str, ...] = ()  # its argv; (): no audit
    interval: float = AUDIT_INTERVAL_S  # seconds from one audit to the next


class Rounds:
    """The rounds. They are used from the steward's thread, which waits on the selector."""

    def __init__(
        self,
        store: Store,
        options: RoundOptions,
        selector: selectors.BaseSelector,
        record: Callable[[int, AnyEvent], object],
    ) -> None:
        """record: writes an event of a job"""
        self._store, self._options, self._selector, self._record = store, options, selector, record
        self._child: subprocess.Popen[bytes] | None = None
        self._written = b""
        self._kill_at = 0.0  # monotonic
        last = read_strays(store.place.directory)
        self._reported = {
            one.job for one in last.found if one.job is not None
        }  # jobs that had a machine without an owner at the last audit
        self._audit_at = max(time.time(), last.time + options.interval) if last.time else time.time() + options.interval

    def go(self, limited: Iterable[Job], now: float) -> None:
        """Check the costs of jobs with a limit, and begin or end an audit that is due."""
        for job in limited:
            if (event := cost_event(job, now, self._options.price_of)) is not None:
                self._record(job.id, event)
        if self._child is not None and time.monotonic() >= self._kill_at:
            log.warning("the audit of machines has not ended within %g s", AUDIT_LIMIT_S)
            self.end()
        if self._options.audit and self._child is None and now >= self._audit_at:
            self._audit_at = now + self._options.interval
            if any(job.spec.machines.tpu is not None for job in self._store.jobs()):
                self._begin()

    def end(self) -> None:
        """Kill the child that audits."""
        child, self._child, self._written = self._child, None, b""
        if child is None or child.stdout is None:
            return
        self._selector.unregister(child.stdout)
        child.kill()
        child.wait()
        child.stdout.close()

    def _begin(self) -> None:
        environ = {**os.environ, STEWARD_VARIABLE: str(os.getpid())}
        child = subprocess.Popen(
            self._options.audit, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, start_new_session=True
        )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self._child, self._kill_at = child, time.monotonic() + AUDIT_LIMIT_S
        self._selector.register(child.stdout, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        """Read the findings of the child when it ends. The findings of a child that failed are unknown."""
        assert self._child is not None
        assert self._child.stdout is not None
        try:
            data = os.read(self._child.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        self._written += data
        if data:
            return
        written = self._written
        self.end()
        try:
            found = decode(written, Strays)
        except ValueError:
            log.warning("the audit of machines has failed; the next one is due in %g s", self._options.interval)
            return
        self._take(found)

    def _take(self, found: Strays) -> None:
        """Record machines without an owner: in a file, in the log, and as an event of the job that had them."""
        before = read_strays(self._store.place.directory)
        found = found.beside(before)
        write_strays(self._store.place.directory, found)
        known = {one.identity for one in before.found}
        for one in found.found:
            if one.identity not in known:
                log.warning("%s in %s has no owner: `mesh job audit` lists it", one.name, one.zone)
        jobs = found.by_job()
        for number in sorted({*self._reported, *jobs}):
            if self._store.job(number) is not None:
                self._record(number, StraysSeen(time=time.time(), names=jobs.get(number, ())))
        self._reported = set(jobs)
