"""The guardian: the agent's parent. Should the agent be killed, it ends what the agent had started.

They part before most of the agent's modules are imported, so that little is copied for having been shared.
"""

from __future__ import annotations

import os
import time

from .lean import dumps, loads, signal, socketpair
from .processes import (
    AGENT,
    GUARDIAN,
    UNSEEN,
    become_subreaper,
    descendants,
    has_children,
    hear_of_parents_end,
    send_signal,
    take_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .lean import Socket

SWEPT = 95  # exit status: the agent was killed, and everything that it had started is gone
NOT_SWEPT = 94  # the same, but something is left
KILLED = "killed by signal "  # with its number: what the last words of a guardian say of such an agent
PATIENCE = 5.0  # seconds for SIGKILL to take effect
MOST_SAID = 200  # bytes of what the agent says of its own error
RENEWAL_STEP_S = 1.0  # a later end of the lease is written to the guardian in steps of this size
ANSWER_LIMIT_S = 5.0  # an agent that renews nothing for so long after the end of its lease is stuck
DRAIN_INTERVAL_S = 600.0  # the guardian empties the pipe at least this often, so that it never fills


class Guardian:
    """What the agent knows of it."""

    def __init__(self, held: Socket, words: int) -> None:
        self._held, self._words = held, words
        self._until = float("inf")  # the last time that was sent by ``renew``

    def keep_open(self, descriptor: int) -> None:
        """It stays open as long as one of the two processes lives."""
        from .doors import rights_of

        self._held.sendmsg([b"held"], [rights_of(descriptor)])

    def hear_of(self, run: str, node: int, remote_dir: str, cgroup: str) -> None:
        """What the agent is there for from now on. cgroup: the name of that of its processes, if they have one"""
        told = {"run": run, "node": node, "remote_dir": remote_dir, "cgroup": cgroup}
        os.write(self._words, dumps(told).encode() + b"\n")
        os.set_blocking(self._words, False)  # a stopped guardian must not stop the agent

    def renew(self, until: float) -> None:
        """Let the guardian wait for this agent until a monotonic time. Beyond it the guardian ends the run."""
        if until == self._until or self._until < until < self._until + RENEWAL_STEP_S:
            return
        try:
            os.write(self._words, b"%.3f\n" % until)
            self._until = until
        except OSError:  # the guardian is stopped, and the pipe is full; or it was killed
            pass

    def hear_why(self, error: BaseException) -> None:
        """What the agent fails of."""
        import traceback

        traceback.print_exc()
        last = traceback.format_exception_only(type(error), error)[-1]
        try:
            os.write(self._words, " ".join(last.split()).encode("utf-8", "replace")[:MOST_SAID])
        except OSError:  # as in ``renew``
            pass


def guard(serve: Callable[[Guardian], None]) -> None:
    """Run the agent, ``serve``, as a child of this process; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        os.setsid()
    except OSError:  # the login shell made us one already
        pass
    become_subreaper()
    take_name(GUARDIAN)
    guardian = os.getpid()
    ours, theirs = socketpair()
    heard, words_end = os.pipe()
    agent = os.fork()
    if not agent:
        status = 1
        link = Guardian(theirs, words_end)
        try:
            ours.close()
            become_subreaper()
            take_name(AGENT)
            hear_of_parents_end(guardian)
            serve(link)
            status = 0
        except BaseException as error:
            link.hear_why(error)
        finally:
            os._exit(status)
    theirs.close()
    os.set_blocking(heard, False)
    _let_go_of_the_channel()
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(agent, number))
    words = Words(heard)
    status = _wait_for(agent, words)  # from then on SIGTERM is for nobody
    words.read()
    begun, why = words.begun, words.error
    if status and not begun:
        _end_spare()
    if status == 0 or not begun:  # it has looked itself, and what is still there is there on purpose or was named
        _end_like(status)
    how = f"{KILLED}{os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "it failed"
    if words.is_late:
        how = "it did not answer after the end of its lease"
    left = [*end_all(), *_end_orphans(begun)]
    done = f"it left there {'; '.join(left)}" if left else "its processes were ended"
    os.write(2, f"the agent is gone ({how}{': ' * bool(why)}{why}); {done}\n".encode())
    os._exit(NOT_SWEPT if left else SWEPT)


def end_all() -> list[str]:
    """Kill everything below us; return what is left. It imports nothing: Python itself may have been removed since."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = descendants(os.getpid())
        if not found and not has_children():
            return []
        foreign = send_signal(found, signal.SIGKILL)
        if time.monotonic() > deadline or (found and len(foreign) == len(found)):
            return [process.told() for process in found or [UNSEEN]]
        _reap()
        time.sleep(0.005)


def _end_spare() -> None:
    """After an agent that was killed while it waited."""
    try:
        from . import cgroups
        from .doors import group_of

        end_all()
        cgroups.remove(os.path.join(cgroups.own(), group_of(os.getpid())))
    except Exception:  # Python itself may have been removed since
        pass


def _end_orphans(begun: bytes) -> list[str]:
    """After a killed agent and the end of its descendants: what else is the run's. Returns what is left.

    begun: what it was there for
    """
    told = loads(begun)
    try:
        from . import cgroups
        from .doors import containers_of, remove_door, sweep

        group = os.path.join(cgroups.own(), told["cgroup"])
        left = [process.told() for process in sweep("", group)]  # other agents of the run may be on this machine
        remove_door(told["run"], told["node"])
        return left + containers_of(told["remote_dir"], told["run"], told["node"]).stop(0.0)
    except Exception as error:  # Python itself may have been removed since
        return [f"perhaps what was not below it, as nobody could look: {error}"]


class Words:
    """Everything that the agent has written to its guardian."""

    def __init__(self, heard: int) -> None:
        """heard: the pipe, which does not block"""
        self._heard = heard
        self._rest = b""  # the beginning of a line
        self.begun = b""  # the first line: the run of the agent
        self.until = float("inf")  # monotonic: the end of the lease, as the agent wrote it last
        self.is_late = False  # the agent was killed because it did not answer after that

    @property
    def error(self) -> str:
        """The agent's own error in one line: the last words, without a newline."""
        return self._rest.decode("utf-8", "replace")

    def read(self) -> None:
        """Read all that has come."""
        while True:
            try:
                said = os.read(self._heard, 65536)  # as much as a pipe holds
            except BlockingIOError:
                return
            if not said:
                return
            *lines, self._rest = (self._rest + said).split(b"\n")
            if lines and not self.begun:
                self.begun = lines.pop(0)
            if lines:
                self.until = float(lines[-1])


def _end_like(status: int) -> None:
    """As if there had been no guardian: one that was killed while it brought a channel was the agent of no run."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.WEXITSTATUS(status))


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _wait_for(agent: int, words: Words) -> int:
    """Wait for the end of the agent; kill it if it does not answer after the end of its lease. Returns its status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # none may come between a look and the wait
    late_at = float("inf")  # monotonic: the agent is killed then
    try:
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                # It is there as long as nobody has waited for it: a signal can be for no other one.
                if ended.si_pid == agent:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid == agent:
                    return status
                continue
            words.read()
            now = time.monotonic()
            # The machine may have been asleep: the agent gets the time to read what came meanwhile.
            late_at = min(late_at, now + ANSWER_LIMIT_S) if now >= words.until else float("inf")
            if now >= late_at:
                words.is_late = True
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.kill(agent, signal.SIGKILL)
                return signal.SIGKILL  # its end is not waited for: a dead disk may hold it up
            wake_at = min(words.until if now < words.until else late_at, now + DRAIN_INTERVAL_S)
            signal.sigtimedwait([signal.SIGCHLD], wake_at - now)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _let_go_of_the_channel() -> None:
    """The channel is the agent's: it must end with the agent."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
