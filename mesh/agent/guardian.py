"""The guardian: the agent's parent. When the agent is killed, it ends all processes that the agent had started.

It forks the agent before most of the agent's modules are imported, so that little memory is copied for having been
shared. By then it has imported all that it needs, because the agent's directory may be gone when a run ends.
"""

from __future__ import annotations

import os
import time

from mesh.agent.base.light import dumps, loads, signal, socketpair
from mesh.agent.control.sockets import remove_socket, rights_of
from mesh.agent.process import cgroups
from mesh.agent.process.containers import containers_of
from mesh.agent.process.notes import remove_notes
from mesh.agent.process.processes import (
    AGENT,
    GUARDIAN,
    UNSEEN,
    become_subreaper,
    descendants,
    has_children,
    send_signal,
    take_name,
    terminate_with,
)
from mesh.agent.process.sweep import sweep
from mesh.protocol.kinds import NAME, PATH, RANK, as_it_is
from mesh.protocol.records import Record, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.base.light import Socket

SWEPT_STATUS = 95  # exit status: the agent was killed, and everything that it had started is gone
NOT_SWEPT_STATUS = 94  # the same, but something is left
KILLED = "killed by signal "  # with its number: in the last line of a guardian about such an agent
SIGKILL_TIMEOUT_S = 5.0
KILL_INTERVAL_S = 0.005
ERROR_BYTES = 200  # of the agent's own error
PIPE_BYTES = 1 << 16  # as much as a pipe holds
RENEWAL_STEP_S = 1.0  # a later end of the lease is written to the guardian in steps of this size
ANSWER_LIMIT_S = 5.0  # an agent that renews nothing for so long after the end of its lease is stuck
DRAIN_INTERVAL_S = 600.0  # the guardian empties the pipe at least this often, so that it never fills


class _GuardedRun(Record):
    """The run of an agent, in the first line to its guardian."""

    run: str = field(NAME)
    node: int = field(RANK)
    remote_dir: str = field(PATH)
    cgroup: str = field(NAME)  # the name of that of its processes, if they have one


class Guardian:
    """The agent's end of its connection to the guardian."""

    def __init__(self, held: Socket, pipe: int) -> None:
        self._held, self._pipe = held, pipe
        self._until = float("inf")  # the last time that was sent by ``renew``

    def keep_open(self, descriptor: int) -> None:
        """Send a descriptor to the guardian, where it stays open as long as one of the two processes lives."""
        self._held.sendmsg([b"held"], [rights_of(descriptor)])

    def begin(self, run: str, node: int, remote_dir: str, cgroup: str) -> None:
        """Send the run of this agent. cgroup: the name of that of its processes, if they have one"""
        guarded = _GuardedRun(run=run, node=node, remote_dir=remote_dir, cgroup=cgroup)
        os.write(self._pipe, dumps(guarded.to_json()).encode() + b"\n")
        os.set_blocking(self._pipe, False)  # a stopped guardian must not stop the agent

    def renew(self, until: float) -> None:
        """Let the guardian wait for this agent until a monotonic time. Beyond it the guardian ends the run."""
        if until == self._until or self._until < until < self._until + RENEWAL_STEP_S:
            return
        try:
            os.write(self._pipe, b"%.3f\n" % until)
            self._until = until
        except OSError:  # the guardian is stopped, and the pipe is full; or it was killed
            pass

    def report(self, error: BaseException) -> None:
        """Send the failure of the agent."""
        import traceback

        traceback.print_exc()
        last = traceback.format_exception_only(type(error), error)[-1]
        try:
            os.write(self._pipe, " ".join(last.split()).encode("utf-8", "replace")[:ERROR_BYTES])
        except OSError:  # as in ``renew``
            pass


def guard(serve: Callable[[Guardian], None]) -> None:
    """Run the agent, ``serve``, as a child of this process; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        os.setsid()
    except OSError:  # the login shell has begun one already
        pass
    become_subreaper()
    take_name(GUARDIAN)
    guardian = os.getpid()
    ours, theirs = socketpair()
    reports, reports_end = os.pipe()
    agent = os.fork()
    if not agent:
        status = 1
        link = Guardian(theirs, reports_end)
        try:
            ours.close()
            become_subreaper()
            take_name(AGENT)
            terminate_with(guardian)
            serve(link)
            status = 0
        except BaseException as error:
            link.report(error)
        finally:
            os._exit(status)
    theirs.close()
    os.set_blocking(reports, False)
    _close_channel()
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(agent, number))
    lines = Reports(reports)
    status = _wait_for(agent, lines)  # from then on SIGTERM is ignored
    lines.read()
    begun, why = lines.begun, lines.error
    if status == 0 or not begun:  # it has looked itself: the processes left are there on purpose, or were named
        _end_like(status)
    how = f"{KILLED}{os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "it failed"
    if lines.is_late:
        how = "it did not answer after the end of its lease"
    left = [*end_all(), *_end_orphans(begun)]
    done = f"it left there {'; '.join(left)}" if left else "its processes were ended"
    os.write(2, f"the agent is gone ({how}{': ' * bool(why)}{why}); {done}\n".encode())
    os._exit(NOT_SWEPT_STATUS if left else SWEPT_STATUS)


def end_all() -> list[str]:
    """Kill everything below this process, importing nothing. Return lines about processes that are left."""
    deadline = time.monotonic() + SIGKILL_TIMEOUT_S
    while True:
        found = descendants(os.getpid())
        if not found and not has_children():
            return []
        foreign = send_signal(found, signal.SIGKILL)
        if time.monotonic() > deadline or (found and len(foreign) == len(found)):
            return [process.described() for process in found or [UNSEEN]]
        _reap()
        time.sleep(KILL_INTERVAL_S)


def _end_orphans(begun: bytes) -> list[str]:
    """End the rest of a killed agent's run after its descendants. Return lines about processes that are left.

    begun: the agent's first line
    """
    try:
        about = _GuardedRun.take(loads(begun), as_it_is)
        group = os.path.join(cgroups.own(), about.cgroup)
        left = [process.described() for process in sweep("", group)]  # other agents of the run may be on this machine
        remove_socket(about.run, about.node)
        remove_notes(about.run, about.node)
        return left + containers_of(about.remote_dir, about.run, about.node).stop(0.0)
    except Exception as error:  # Python itself may have been removed since
        return [f"perhaps processes that were not below it: they could not be looked for: {error}"]


class Reports:
    """The lines that the agent has written to its guardian."""

    def __init__(self, pipe: int) -> None:
        """pipe: it does not block"""
        self._pipe = pipe
        self._rest = b""  # the beginning of a line
        self.begun = b""  # the first line: the run of the agent
        self.until = float("inf")  # monotonic: the end of the lease, as the agent wrote it last
        self.is_late = False  # the agent was killed because it did not answer after that

    @property
    def error(self) -> str:
        """The agent's own error in one line: the last one, which has no newline."""
        return self._rest.decode("utf-8", "replace")

    def read(self) -> None:
        """Read all lines that have come."""
        while True:
            try:
                piece = os.read(self._pipe, PIPE_BYTES)
            except BlockingIOError:
                return
            if not piece:
                return
            *lines, self._rest = (self._rest + piece).split(b"\n")
            if lines and not self.begun:
                self.begun = lines.pop(0)
            if lines:
                self.until = float(lines[-1])


def _end_like(status: int) -> None:
    """End as an agent without a run did: it was killed while it brought a channel, for example."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.WEXITSTATUS(status))


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _wait_for(agent: int, lines: Reports) -> int:
    """Wait for the end of the agent; kill it if it does not answer after the end of its lease. Returns its status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # none may come between a look and the wait
    late_at = float("inf")  # monotonic: the agent is killed then
    try:
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                # Its pid stays in use until it is waited for, so that a signal cannot reach another process.
                if ended.si_pid == agent:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid == agent:
                    return status
                continue
            lines.read()
            now = time.monotonic()
            # The machine may have been asleep: the agent gets the time to read what came meanwhile.
            late_at = min(late_at, now + ANSWER_LIMIT_S) if now >= lines.until else float("inf")
            if now >= late_at:
                lines.is_late = True
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.kill(agent, signal.SIGKILL)
                return signal.SIGKILL  # its end is not waited for: a dead disk may hold it up
            wake_at = min(lines.until if now < lines.until else late_at, now + DRAIN_INTERVAL_S)
            signal.sigtimedwait([signal.SIGCHLD], wake_at - now)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _close_channel() -> None:
    """Close the channel, which must end with the agent."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
