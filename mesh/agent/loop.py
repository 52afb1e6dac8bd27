"""An event loop: descriptors, deadlines, signals, ended children and background work. It names no part of the agent.

Every call runs in the loop's thread, one after the other; none may block. Every time is monotonic.
"""

from __future__ import annotations

import os
import select
import time

from mesh.agent.base.background import Background
from mesh.agent.base.light import partial, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from mesh.agent.base.background import Answer

POLL_LIMIT_S = 3600.0  # of one poll: its argument is an int of milliseconds
WAKE_READ_BYTES = 4096
NEVER = float("inf")


class Watch:
    """A descriptor that the loop waits for."""

    __slots__ = ("call", "events")

    def __init__(self, events: int, call: Callable[[int], None]) -> None:
        self.events, self.call = events, call


class Deadline:
    """A call at a time."""

    __slots__ = ("call", "time")

    def __init__(self, time: float, call: Callable[[], None]) -> None:
        self.time, self.call = time, call


class Loop:
    """The loop of one process. Use it as a context: it takes over SIGCHLD and the wake-up descriptor of signals."""

    def __init__(self) -> None:
        """Make a loop without anything to wait for."""
        self._poll = select.poll()
        self._watches: dict[int, Watch] = {}
        self._deadlines: dict[object, Deadline] = {}
        self._children: dict[int, Callable[[int], None]] = {}
        self._backgrounds: set[Background] = set()
        self._signals: set[int] = set()  # that have arrived, and were not handled yet
        self._signal_calls: dict[int, Callable[[], None]] = {}
        self._handlers: dict[int, object] = {}  # of before, by signal
        self._wake = self._wake_end = self._wake_before = -1
        self.before_poll: list[Callable[[], None]] = []  # called before the loop waits
        self.after_turn: list[Callable[[], None]] = []  # called after everything that was ready or due
        self.on_other_child_end: Callable[[int, int], None] = _ignore  # for children without a call: pid, status

    def __enter__(self) -> Loop:
        self._wake, self._wake_end = os.pipe()
        for descriptor in (self._wake, self._wake_end):
            os.set_blocking(descriptor, False)
        self._wake_before = signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        self.watch(self._wake, select.POLLIN, self._woken)
        self.on_signal(signal.SIGCHLD, self.collect_children)
        self._signals.add(signal.SIGCHLD)  # children may have ended before
        return self

    def __exit__(self, *why: object) -> None:
        """Give signals back and close the loop's own descriptors; background processes go on."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as signal.signal returned it
        signal.set_wakeup_fd(self._wake_before)
        for background in self._backgrounds:
            background.close()
        os.close(self._wake)
        os.close(self._wake_end)

    # ---- descriptors

    def watch(self, descriptor: int, events: int, call: Callable[[int], None]) -> Watch:
        """Call with the events of poll(2) whenever the descriptor has any of these, until ``unwatch``.

        A second watch of a descriptor replaces the first. Hang-up and error are reported for every descriptor, also
        with no events.
        """
        self._poll.register(descriptor, events)
        watch = self._watches[descriptor] = Watch(events, call)
        return watch

    def unwatch(self, descriptor: int, watch: Watch | None = None) -> None:
        """Stop waiting for a descriptor, before it is closed; ignore one that is not watched.

        watch: the only one that ends; another part may watch a new descriptor of that number
        """
        if watch is not None and self._watches.get(descriptor) is not watch:
            return
        if self._watches.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # ---- deadlines

    def at(self, key: object, moment: float, call: Callable[[], None]) -> None:
        """Call once, at a monotonic time or soon after, in place of an earlier call with the same key.

        A time that has passed means the next turn; infinity means never.
        """
        if moment == NEVER:
            self.cancel(key)
        else:
            self._deadlines[key] = Deadline(moment, call)

    def cancel(self, key: object) -> None:
        """Forget the call with this key; ignore a key without one."""
        self._deadlines.pop(key, None)

    # ---- signals and children

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call from the loop after a signal has arrived, once for several that have arrived together."""
        before = signal.signal(number, self._note_signal)
        self._handlers.setdefault(number, before)
        self._signal_calls[number] = call

    def on_child_end(self, pid: int, call: Callable[[int], None]) -> None:
        """Call once with the status from waitpid(2) when this child has ended."""
        self._children[pid] = call

    def collect_children(self) -> None:
        """Wait for all children that have ended, among them orphans if this process is a subreaper, and report them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            call = self._children.pop(pid, None)
            if call is not None:
                call(status)
            else:
                self.on_other_child_end(pid, status)

    # ---- background work

    def background(self, work: Callable[[], Answer], then: Callable[[Answer], None]) -> Background:
        """Call ``work`` in a forked child, and ``then`` with its answer once the child has ended. Raises OSError."""
        background = Background(work)
        self._backgrounds.add(background)
        self.watch(background.channel, select.POLLIN, lambda events: self._read_answer(background, events))
        self.on_child_end(background.pid, lambda status: self._end_background(background, then))
        return background

    def _read_answer(self, background: Background, events: int) -> None:
        if events & select.POLLIN:
            background.read()
        else:  # the child has closed its end and is about to end
            self.unwatch(background.channel)

    def _end_background(self, background: Background, then: Callable[[Answer], None]) -> None:
        self.unwatch(background.channel)
        self._backgrounds.discard(background)
        then(background.end())

    # ---- turns

    def run_until(self, done: Callable[[], bool]) -> None:
        """Take turns until ``done`` is true, which is asked before each turn."""
        while not done():
            self.turn()

    def turn(self) -> None:
        """Wait until something is ready or due, and make all calls for it."""
        for hook in self.before_poll:
            hook()
        ready = [(number, events, self._watches[number]) for number, events in self._poll.poll(self._wait_ms())]
        for number, events, watch in ready:
            # An earlier call may have given up the descriptor, and its number may be that of another one now.
            if self._watches.get(number) is watch:
                watch.call(events)
        self._serve_signals()
        self._serve_deadlines()
        for hook in self.after_turn:
            hook()

    def _wait_ms(self) -> float:
        """Return how long the next poll may take, in milliseconds; poll(2) rounds up."""
        if self._signals:
            return 0.0
        moment = min((deadline.time for deadline in self._deadlines.values()), default=NEVER)
        return min(max(0.0, moment - time.monotonic()), POLL_LIMIT_S) * 1000

    def _serve_deadlines(self) -> None:
        now = time.monotonic()
        due = [(key, deadline) for key, deadline in self._deadlines.items() if deadline.time <= now]
        for key, deadline in sorted(due, key=lambda item: item[1].time):
            if self._deadlines.get(key) is deadline:  # an earlier call may have cancelled it
                del self._deadlines[key]
                deadline.call()

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.add(number)

    def _woken(self, events: int) -> None:
        try:
            while os.read(self._wake, WAKE_READ_BYTES):
                pass
        except BlockingIOError:
            pass
        # Before the descriptors behind this one: an ended child explains the end of a pipe.
        self._serve_signals()

    def _serve_signals(self) -> None:
        while self._signals:
            self._signal_calls[self._signals.pop()]()


class Watches:
    """The descriptors of a part that opens and closes them by itself: watched anew before each poll."""

    def __init__(self, loop: Loop) -> None:
        """Watch nothing yet."""
        self._loop = loop
        self._watched: dict[int, Watch] = {}
        self._ready: set[int] = set()

    def arm(self, events: Mapping[int, int]) -> None:
        """Watch these descriptors only, each for its events."""
        self._release()
        for descriptor, wanted in events.items():
            self._watched[descriptor] = self._loop.watch(descriptor, wanted, partial(self._note, descriptor))

    def take(self) -> set[int]:
        """Return the descriptors that became ready; the part may close any of its descriptors now."""
        self._release()
        ready, self._ready = self._ready, set()
        return ready

    def _note(self, descriptor: int, events: int) -> None:
        self._ready.add(descriptor)

    def _release(self) -> None:
        for descriptor, watch in self._watched.items():
            self._loop.unwatch(descriptor, watch)
        self._watched.clear()


def _ignore(pid: int, status: int) -> None:
    """Leave an ended child at that."""
