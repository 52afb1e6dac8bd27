"""The watchdog of a run: renews the leases, and ends what is silent for too long."""

from __future__ import annotations

import threading
import time
from functools import partial

from mesh.core.events import Silent
from mesh.engine.beats import Beats
from mesh.engine.channels import Channels
from mesh.engine.inbox import Inbox
from mesh.engine.run import Run
from mesh.engine.threads import Threads
from mesh.remote.session import Session

BEAT_INTERVAL_S = 5.0
GREETING_LIMIT_S = 20.0  # for the login on a host to start the agent, where --connect-timeout is not given
SILENCE_S = 15.0  # without a byte, after which a host is called silent


class Watchdog:
    """A thread that looks at every session about once a second."""

    def __init__(self, run: Run, channels: Channels, inbox: Inbox, threads: Threads, over: threading.Event) -> None:
        """over: ends the watchdog once it is set"""
        self._run, self._channels, self._inbox = run, channels, inbox
        self._threads, self._over = threads, over
        self._runner = threading.current_thread()
        self._silent: set[int] = set()  # nodes

    def start(self) -> None:
        """Start the thread. The calling thread is the one that runs the launcher: its end ends all channels."""
        self._runner = threading.current_thread()
        self._threads.start("mesh-watchdog", self._watch)

    def _watch(self) -> None:
        spec = self._run.spec
        # Several beats fit into the silence that either side allows.
        interval = min(BEAT_INTERVAL_S, spec.rules.host_grace / 4, spec.rules.lease / 4)
        beat_at = time.monotonic() + interval
        beats = Beats(partial(self._threads.start, "mesh-beat"))
        while not self._over.wait(min(1.0, interval / 2)):
            # Before Python 3.13 a signal at the end of SimpleQueue.get's timeout has it wait for ever.
            self._inbox.wake()
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + interval
                beats.renew(self._channels.sessions.copy())
            else:
                beats.advance()
            for node, session in list(self._channels.sessions.items()):
                self._look_at(node, session, now)
            if not self._runner.is_alive():
                for session in list(self._channels.sessions.values()):
                    session.close()
        beats.close()

    def _look_at(self, node: int, session: Session, now: float) -> None:
        """Try another channel to a silent host, report it, and give it up after ``host_grace``."""
        limit = self._run.cluster.connect_timeout or GREETING_LIMIT_S
        if session.awaits_login and now - session.opened > limit:
            session.end_login(limit)
        quiet = now - session.active_at if session.waiting else 0.0
        if quiet > self._run.spec.rules.host_grace:
            session.give_up(f"silent for {self._run.spec.rules.host_grace:g} s")
        if quiet > SILENCE_S and now - session.opened > SILENCE_S:
            session.try_another(f"silent for {quiet:.0f} s")
        if (quiet > SILENCE_S) != (node in self._silent):
            self._silent ^= {node}
            self._inbox.post(Silent(time=time.time(), node=node, seconds=quiet if quiet > SILENCE_S else 0.0))
