"""What happens in a run. Events are all that sinks and the supervisor know; they come from the hosts' threads.

Every event carries ``time``: seconds since the epoch on the launcher's clock. Where a host told the time, it was
corrected by the offset between the two clocks, so that events of different hosts can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, field

# The steps on the way to an agent, in their order: a host that fails in one of them has none.
CONNECTING = ("reach", "host-key", "login", "python")

UNCHANGED = "its inputs have not changed"
OOM_NEAR = "the kernel has killed a process there for lack of memory"


class Stream(Enum):
    """Where bytes came from: a rank's two outputs, the steps before the ranks start, or a host's setup."""

    STDOUT = "stdout"
    STDERR = "stderr"
    PRERUN = "prerun"
    SETUP = "setup"


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened in a run."""

    time: float  # seconds since the epoch, on the launcher's clock


class HostEvent(Event, frozen=True, kw_only=True):
    """Something that happened on one host."""

    node: int  # 0 .. number of hosts - 1


class RankEvent(HostEvent, frozen=True, kw_only=True):
    """Something that happened to one rank."""

    rank: int  # 0 .. world size - 1


class Connected(HostEvent, frozen=True, kw_only=True):
    """The agent runs there and has answered."""

    address: str  # by which the other hosts reach it
    machine: str  # which machine it is: equal for two hosts of a cluster that are the same machine
    is_locking: bool = False  # it takes its lock without being told to
    is_preparing: bool = False  # and then prepares itself


class OtherRun(Struct, frozen=True, kw_only=True):
    """A run of another Unix user on a host."""

    user: str
    run: str
    since: float  # seconds since the epoch, on our clock


class Locked(HostEvent, frozen=True, kw_only=True):
    """The host is ours until the agent leaves."""

    tree: str = ""  # the tree hash of the workspace that is there; "": none that is complete
    is_bare: bool = False  # nothing is there that a sync could use
    ports: tuple[int, ...] = ()  # TCP ports that are kept there for the ranks
    others: tuple[OtherRun, ...] = ()  # which the lock does not keep out


class Busy(HostEvent, frozen=True, kw_only=True):
    """Another run holds the host's lock."""

    owner: str  # whose, since when, with what: one line for people
    is_brief: bool = False  # it is one sync of somebody who watches a workspace
    is_other_user: bool = False  # it is another Unix user's, and has a lock of its own


class Synced(HostEvent, frozen=True, kw_only=True):
    """The workspace on the host equals the local one."""

    files: int
    bytes: int  # that we have sent to this host
    seconds: float  # from the first byte sent to the last file in place
    tree: str = ""  # the tree hash of what is there now
    attempt: int = 0  # as in Lacks


class Lacks(HostEvent, frozen=True, kw_only=True):
    """Contents that the host needs for its workspace."""

    wants: tuple[Mapping[str, Any], ...]  # as docs/sync.md has them
    attempt: int  # how often the workspace had been listed again when it was told what has changed


class OtherTree(HostEvent, frozen=True, kw_only=True):
    """The host has another tree than it had told: the changes were for nothing."""

    tree: str  # its tree hash
    attempt: int  # as in Lacks


class Serving(HostEvent, frozen=True, kw_only=True):
    """The host hands on the next pack that it gets."""

    tree: int  # which of the trees that hand on packs it is about
    port: int


class Unfetched(HostEvent, frozen=True, kw_only=True):
    """The host cannot get the pack from another one, or cannot hand it on."""

    tree: int  # as in Serving
    reason: str


class Progress(Event, frozen=True, kw_only=True):
    """How far a sync or a pull is. A few come in a second; one that finds a sink busy is left out."""


class Preparing(Progress, frozen=True, kw_only=True):
    """Our own part of the sync takes a while."""

    what: str  # "listing", "hashing" or "packing"
    done: int  # files when listing, else bytes
    of: int  # the same; 0: not known


class Sending(Progress, frozen=True, kw_only=True):
    """The workspace travels."""

    sent: int  # bytes that have left for all hosts
    of: int  # bytes that are to leave, as far as is known


class Heard(HostEvent, frozen=True, kw_only=True):
    """Something has come that tells nothing. For the launcher, which acknowledges it."""


class PrerunDecided(HostEvent, frozen=True, kw_only=True):
    """The host knows whether it must run a prerun entry that has inputs."""

    entry: int  # index in the list
    why: str  # it runs; "": it is skipped
    missing: tuple[str, ...]  # inputs that are not there

    def told(self) -> str:
        """In words.

        >>> PrerunDecided(time=0, node=0, entry=0, why="", missing=("uv.lock",)).told()
        'skipped: its inputs have not changed'
        """
        return f"runs: {self.why}" if self.why else f"skipped: {UNCHANGED}"


class Ready(HostEvent, frozen=True, kw_only=True):
    """Everything before the ranks is done there, prerun too."""

    # NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, as the ranks there will have them.
    interfaces: Mapping[str, str] = field(default_factory=dict)
    status: int = 0  # 127: the host does not have the command; 126: it cannot be executed there; 0: neither is known
    nearest: str = ""  # the name of a command there that is like it; "": none is


class PrepareFailed(HostEvent, frozen=True, kw_only=True):
    """The host cannot take part; no rank will start anywhere."""

    # One of CONNECTING, or "lock", "home", "port", "sync", "interface", "devices", "prerun", "command", "start" or
    # "agent".
    step: str
    message: str
    hint: str = ""
    killed_by: str = ""  # "signal 15" if the agent was killed, or ended by that


class NoCommand(PrepareFailed, frozen=True, kw_only=True):
    """The host cannot execute the command; found after prerun, and before any rank starts."""

    program: str  # the first word of the command line
    status: int  # 127: the host does not have it; 126: it cannot be executed there
    nearest: str = ""  # as in Ready


class WorkspaceFailed(Event, frozen=True, kw_only=True):
    """Our own part of the preparation failed: the workspace cannot be listed, read or packed."""

    message: str
    hint: str = ""


class WantsPassword(HostEvent, frozen=True, kw_only=True):
    """sudo on the host will want the user's password in a later command of the setup; the host does not wait."""


class AsksPassword(HostEvent, frozen=True, kw_only=True):
    """sudo on the host wants the user's password; its setup waits."""

    step: int  # the number of the setup's command that needs it


class Answered(HostEvent, frozen=True, kw_only=True):
    """The agent's answer to a question."""

    answer: Mapping[str, Any]  # as the agent wrote it
    clock: float  # seconds that the host's clock is ahead of ours


class Pulling(Progress, HostEvent, frozen=True, kw_only=True):
    """How far a pull from one host is."""

    files: int  # that are here
    bytes: int  # of contents that have come
    of: int  # bytes that are to come, as far as is known


class Pulled(HostEvent, frozen=True, kw_only=True):
    """All that the host sends of a pull is here."""

    files: int  # files and links that are here now
    unchanged: int  # of these, what was here already
    bytes: int  # of contents that have come
    special_modes: int = 0  # files and directories that were setuid, setgid or sticky there, and are not here
    seconds: float  # since the host was reached


class NotPulled(HostEvent, frozen=True, kw_only=True):
    """A path that a pull does not bring from this host."""

    path: str  # as it was given, or as it would be here; for people
    reason: str
    fails: bool = True  # the pull is not complete without it; False: a socket, a device


class Started(RankEvent, frozen=True, kw_only=True):
    """The rank's process exists."""

    pid: int  # on its host


class Output(RankEvent, frozen=True, kw_only=True):
    """Bytes that a rank (or, for Stream.PRERUN and SETUP, the host's session) wrote, as they came."""

    stream: Stream
    data: bytes


class Exited(RankEvent, frozen=True, kw_only=True):
    """The rank's process ended by itself or by a signal; all that it had written came before."""

    code: int = 0  # 0 .. 255; 0 when a signal ended it
    signal: int = 0  # the signal's number, 0 if it exited
    during: str = ""  # the command of a setup that failed
    oom: bool = False  # meanwhile the kernel has killed a process there for lack of memory
    is_last: bool = False  # nothing of the run is left on the host, nor held there

    @property
    def status(self) -> int:
        """As a shell tells it: the exit code, or 128 + signal."""
        return 128 + self.signal if self.signal else self.code

    def told(self) -> str:
        """In words.

        >>> Exited(time=0, node=0, rank=0, signal=9).told(), Exited(time=0, node=0, rank=0, code=3).told()
        ('killed by SIGKILL', 'exit 3')
        """
        if not self.signal:
            return f"exit {self.code}" + (f" ({OOM_NEAR})" if self.oom else "")
        import signal

        if self.oom and self.signal == signal.SIGKILL:
            return "killed by the kernel: out of memory"
        try:
            return f"killed by {signal.Signals(self.signal).name}"
        except ValueError:  # a real-time signal
            return f"killed by signal {self.signal}"


class Ended(Exited, frozen=True, kw_only=True):
    """The same, told before the output that came first: behind a paused terminal it is known all the same.

    For the supervisor; Exited comes in its turn.
    """


class LeftOut(RankEvent, frozen=True, kw_only=True):
    """Output that the host's spool had no room for."""

    stream: Stream
    bytes: int


class Lost(HostEvent, frozen=True, kw_only=True):
    """The host or its agent is gone without a good-bye, or is silent for too long."""

    reason: str
    is_clear: bool = False  # the host has told that no process of the run is left there
    is_known: bool = False  # the host itself has told that the run's agent is no more
    killed_by: str = ""  # "signal 9" if a signal ended the agent, "a signal" if it left no word; "": another reason
    is_cut: bool = False  # only the connection is gone: the agent may keep the ranks until its lease ends


class Reconnecting(HostEvent, frozen=True, kw_only=True):
    """The connection ended; the agent goes on, and we are trying to reach it again."""

    reason: str


class Reconnected(HostEvent, frozen=True, kw_only=True):
    """The agent is back, and nothing was lost."""


class Silent(HostEvent, frozen=True, kw_only=True):
    """Nothing was heard from the host for some time, or (seconds == 0) it is back."""

    seconds: float


class HostNotice(HostEvent, frozen=True, kw_only=True):
    """A line for the user about one host."""

    text: str
    seconds: float = 0.0  # that the host asks for to end what it is doing


class Stopped(HostEvent, frozen=True, kw_only=True):
    """Somebody has asked the agent to end the run (``mesh stop``)."""


class Cleared(HostEvent, frozen=True, kw_only=True):
    """Every process of the run is gone there; told before the output that comes before Gone. For the supervisor."""


class Gone(HostEvent, frozen=True, kw_only=True):
    """The agent has ended every process of the run, looked, and leaves."""

    left: tuple[str, ...] = ()  # what is still there and why, one line each; () if nothing is
    stays: tuple[str, ...] = ()  # what a setup has left in the background on purpose, one line each


class Detached(HostEvent, frozen=True, kw_only=True):
    """The host keeps the run without us from now on."""

    ends_with: str = ""  # its system ends it with the end of "login", ours there, or "logins", the user's last one


class StaysAttached(HostEvent, frozen=True, kw_only=True):
    """The host cannot keep the run without us, though it was asked to; a HostNotice has told why."""


class Introduced(HostEvent, frozen=True, kw_only=True):
    """The host's agent has met the others of the run, or waits for them; it need not be asked by us any more."""

    port: int = 0  # where the hub waits for the others
    reason: str = ""  # why they will not meet


class CaughtUp(HostEvent, frozen=True, kw_only=True):
    """What comes from now on was not there when we attached."""


class EndOrdered(HostEvent, frozen=True, kw_only=True):
    """The ranks of a host were told to end while the run went on without the client that had started it."""

    cause: str  # a value of outcome.Cause
    signal: int  # that they got
    lost: int = -1  # the host whose loss it was, if it was one
    reason: str = ""  # how that one was lost


class Chosen(Event, frozen=True, kw_only=True):
    """What the user has answered, who was asked."""

    answer: str  # "stop", "leave" or "go on"


class Interrupted(Event, frozen=True, kw_only=True):
    """The launcher got a signal that asks it to end, or was told to."""

    signal: int


class StdoutClosed(Event, frozen=True, kw_only=True):
    """Nobody reads our standard output any more."""


class Tick(Event, frozen=True, kw_only=True):
    """Nothing happened but time. Only the supervisor sees it."""

    monotonic: float  # seconds of time.monotonic(), for deadlines


class Notice(Event, frozen=True, kw_only=True):
    """A line for the user about the run as a whole. Comes from the supervisor, for the sinks."""

    text: str


class Finished(Event, frozen=True, kw_only=True):
    """The run has ended everywhere; the last event of every run."""

    exit_code: int
    cause: str  # a value of outcome.Cause
    run: str
