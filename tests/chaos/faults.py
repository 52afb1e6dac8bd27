"""What dies: the rows of the matrix, each with what the contract says about it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.stage import GRACE, HANG, LEAVE, SLACK, Stage
from tests.lab import eventually

RETURN = 5.0  # seconds in which a client whose connection has ended may come back
DRAIN = 2.0  # seconds that the others may speak after the first failure
LEASE = 6.0  # seconds, --lease where it is to run out
HOST_GRACE = 6.0  # seconds, --host-grace where it is to run out
TIMES_OUT = 9.0  # seconds in which sshd gives up a client that is silent; three times its ClientAliveInterval, and more
EVERY = range(4)

ALL, BEGINNING, COUNTED = "all", "a beginning", "less what was counted"  # of the output


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing, or several, that happen to a run."""

    name: str
    strike: Callable[[Stage], None]
    status: int  # of the client; negative: the signal that killed it
    ends: float | None = None  # seconds after the strike in which its processes end by rule; None: the run goes on
    output: str = ALL  # what the log files must hold at least
    options: tuple[str, ...] = ()
    prepare: Callable[[Stage], None] = lambda stage: None  # before the run
    on_terminal: bool = False

    @property
    def goes_on(self) -> bool:
        return self.ends is None

    @property
    def allowed(self) -> float:
        """Seconds after the strike in which no process may be left."""
        return (self.ends or 0.0) + GRACE + LEAVE + SLACK


def _ended(number: int) -> Callable[[Stage], None]:
    return lambda stage: stage.send(number)


def _stopped_for_good(stage: Stage) -> None:
    """It is killed only when its hosts have given it up."""
    stage.send(signal.SIGSTOP)
    eventually(lambda: not stage.survivors(), LEASE + GRACE + LEAVE + SLACK)
    stage.send(signal.SIGKILL)


def _times_out(stage: Stage) -> None:
    """sshd gives the client up; the client is back in time all the same."""
    stage.send(signal.SIGSTOP)
    if not eventually(lambda: not any(map(stage.is_connected, EVERY)), TIMES_OUT):
        # OpenSSH 9.2 does not count while it has something to write, be it read or not: there we do what it would.
        stage.reset_connections([node for node in EVERY if stage.is_connected(node)])
    stage.send(signal.SIGCONT)


def _sshd_restarts(stage: Stage) -> None:
    stage.kill_sshd(1)
    time.sleep(1.0)
    stage.start_sshd(stage.hosts[1])


def _disk_full(stage: Stage) -> None:
    """While the client does not read, what is printed must wait on a disk that is full."""
    stage.fill_disk()
    stage.stop_client(4.0)


def _several_pass(stage: Stage) -> None:
    stage.reset_connections([0])
    stage.hosts[3].cut()
    stage.send(signal.SIGSTOP)
    time.sleep(1.0)
    stage.reset_connections([1])  # with all that has not been read yet
    stage.send(signal.SIGCONT)
    time.sleep(1.0)
    stage.hosts[3].mend()


def _everything(stage: Stage) -> None:
    stage.cut_for_good([3])
    stage.kill_agent(1)
    stage.reset_connections([0])
    stage.send(signal.SIGKILL)


TO_LEASE = ("--lease", f"{LEASE:g}", "--host-grace", f"{HOST_GRACE:g}")

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(name="client: SIGINT", strike=_ended(signal.SIGINT), status=130, ends=0.0),
        Fault(name="client: SIGTERM", strike=_ended(signal.SIGTERM), status=143, ends=0.0),
        Fault(name="client: SIGHUP", strike=_ended(signal.SIGHUP), status=129, ends=0.0),
        Fault(
            name="client: SIGKILL",
            strike=_ended(signal.SIGKILL),
            status=-signal.SIGKILL,
            ends=RETURN,
            output=BEGINNING,
        ),
        Fault(name="terminal closed", strike=Stage.hang_up, status=129, ends=0.0, on_terminal=True),
        Fault(name="client stopped for 4 s", strike=lambda stage: stage.stop_client(4.0), status=0),
        Fault(
            name="client stopped for good",
            strike=_stopped_for_good,
            status=-signal.SIGKILL,
            ends=LEASE,
            output=BEGINNING,
            options=TO_LEASE,
        ),
        Fault(
            name="sshd times out a stopped client",
            strike=_times_out,
            status=0,
            prepare=lambda stage: stage.configure_sshd("ClientAliveInterval 1", "ClientAliveCountMax 2"),
        ),
        Fault(name="connection of one host reset", strike=lambda stage: stage.reset_connections([1]), status=0),
        Fault(name="connections of all hosts reset", strike=lambda stage: stage.reset_connections(EVERY), status=0),
        Fault(name="link of one host cut for 3 s", strike=lambda stage: stage.cut([2], 3.0), status=0),
        Fault(name="links of all hosts cut for 3 s", strike=lambda stage: stage.cut(EVERY, 3.0), status=0),
        Fault(name="link of one host cut for 30 s", strike=lambda stage: stage.cut([2], 30.0), status=0),
        Fault(name="links of all hosts cut for 30 s", strike=lambda stage: stage.cut(EVERY, 30.0), status=0),
        Fault(
            name="link of one host cut for good",
            strike=lambda stage: stage.cut_for_good([2]),
            status=76,
            ends=max(LEASE, HOST_GRACE + DRAIN),
            output=BEGINNING,
            options=TO_LEASE,
        ),
        Fault(
            name="links of all hosts cut for good",
            strike=lambda stage: stage.cut_for_good(EVERY),
            status=76,
            ends=max(LEASE, HOST_GRACE + DRAIN),
            output=BEGINNING,
            options=TO_LEASE,
        ),
        Fault(name="agent killed", strike=lambda stage: stage.kill_agent(1), status=76, ends=DRAIN, output=BEGINNING),
        Fault(
            name="agent told to end (SIGTERM)",
            strike=lambda stage: stage.kill_agent(1, number=signal.SIGTERM),
            status=76,
            ends=DRAIN,
            output=BEGINNING,
        ),
        Fault(
            name="guardian killed",
            strike=lambda stage: stage.kill_agent(1, agent=False, guardian=True),
            status=76,
            ends=DRAIN,
            output=BEGINNING,
        ),
        Fault(
            name="agent and guardian killed",
            strike=lambda stage: stage.kill_agent(1, guardian=True),
            status=76,
            ends=DRAIN,
            output=BEGINNING,
        ),
        Fault(
            name="sshd killed for good",
            strike=lambda stage: stage.kill_sshd(1),
            status=76,
            ends=max(RETURN, HOST_GRACE + DRAIN),
            output=BEGINNING,
            options=TO_LEASE,
        ),
        Fault(name="sshd killed, and back after 1 s", strike=_sshd_restarts, status=0),
        Fault(
            name="disk full, client stopped for 4 s",
            strike=_disk_full,
            status=0,
            output=COUNTED,
            prepare=lambda stage: stage.give_small_disk(4),
        ),
        Fault(name="one rank fails", strike=lambda stage: stage.fail(2), status=7, ends=DRAIN),
        Fault(
            name="connections reset, a link cut for 2 s, client stopped for 1 s",
            strike=_several_pass,
            status=0,
        ),
        Fault(
            name="client and agent killed, connection reset, link cut for good",
            strike=_everything,
            status=-signal.SIGKILL,
            ends=max(LEASE, RETURN),
            output=BEGINNING,
            options=TO_LEASE,
        ),
    )
}

BEHAVIOURS = {
    "sleep": "sleep",
    "ignore TERM": "ignore-term",
    "double fork, setsid": "double-fork",
    "cleared environment": "bare",
    "fork storm of 200": "storm",
    "hold a device": "device",
    "print fast": "fast",
    "print nothing": "nothing",
    "all of these": "ignore-term+double-fork+bare+storm+device+fast",
}


def hang_limit(fault: Fault) -> float:
    """Seconds after which a client that should have ended hangs."""
    return (fault.ends or 0.0) + GRACE + HANG
