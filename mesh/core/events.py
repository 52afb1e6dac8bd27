"""The events of a run. Sinks and the supervisor get all their facts from events, which come from the hosts' threads.

Every event carries ``time``: seconds since the epoch on the launcher's clock. A time from a host is corrected by the
offset between the two clocks, so that events of different hosts can be compared.

An event with a tag is written to --json and to events.jsonl with all of its fields; core/encoding.py writes the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from mesh.core.cluster import NodeSockets
from mesh.core.hoststacks import HostStacks
from mesh.core.wants import Want

SSH_STEPS = ("reach", "host-key", "login", "python")
SLURM_STEPS = ("slurm", "schedule", "switchboard", "python")
POD_STEPS = ("api", "rights", "admission", "schedule", "image", "python")
# The steps on the way to an agent, of all backends: a host that fails in one of them has no agent.
CONNECTING = tuple(dict.fromkeys((*SSH_STEPS[:-1], *SLURM_STEPS[:-1], *POD_STEPS)))
UNCHANGED = "its inputs have not changed"
OOM_NEAR = "the kernel has killed a process there for lack of memory"


class Stream(Enum):
    """The source of bytes: a rank's two outputs, prerun, a host's setup, or the steps of its modules."""

    STDOUT = "stdout"
    STDERR = "stderr"
    PRERUN = "prerun"
    SETUP = "setup"
    MODULE = "module"


class Event(Struct, frozen=True, kw_only=True):
    """The base of all events."""

    time: float  # seconds since the epoch, on the launcher's clock


class HostEvent(Event, frozen=True, kw_only=True):
    """An event of one host."""

    node: int  # 0 .. number of hosts - 1


class RankEvent(HostEvent, frozen=True, kw_only=True):
    """An event of one rank."""

    rank: int  # 0 .. world size - 1


class Connected(HostEvent, frozen=True, kw_only=True):
    """The host's agent runs and has answered."""

    address: str  # at which the other hosts reach it
    machine: str  # equal for two hosts of a cluster that are the same machine
    is_locking: bool = False  # the agent takes its lock without an order
    is_preparing: bool = False  # the agent then prepares the host without an order


class OtherRun(Struct, frozen=True, kw_only=True):
    """A run of another Unix user on a host."""

    user: str
    run: str
    since: float  # seconds since the epoch, on our clock


class Locked(HostEvent, frozen=True, kw_only=True):
    """The agent has the host's lock, until it leaves."""

    tree: str = ""  # the tree hash of the workspace on the host; "": none that is complete
    is_bare: bool = False  # the host has no files that a sync could use
    ports: tuple[int, ...] = ()  # TCP ports that the agent keeps for the ranks
    others: tuple[OtherRun, ...] = ()  # runs that the lock does not keep out
    sockets: tuple[NodeSockets, ...] = ()  # of nodes of a program


class Busy(HostEvent, frozen=True, kw_only=True):
    """Another run holds the host's lock."""

    owner: str  # user, start and command of that run: one line for people
    is_brief: bool = False  # it is one sync of `push --watch`
    is_other_user: bool = False  # it belongs to another Unix user, and has a lock of its own


class Synced(HostEvent, frozen=True, kw_only=True):
    """The workspace on the host equals the local one, or was fetched by the host itself."""

    files: int
    bytes: int  # sent from here to this host
    seconds: float  # from the first byte sent to the last file in place
    tree: str = ""  # the tree hash of the workspace on the host now
    attempt: int = 0  # as in Lacks
    source: str = ""  # where the host has got it from by itself, for people; "": it was sent


class Lacks(HostEvent, frozen=True, kw_only=True):
    """Contents that the host needs for its workspace."""

    wants: tuple[Want, ...]
    attempt: int  # how often the workspace had been listed again before the host got the changes


class OtherTree(HostEvent, frozen=True, kw_only=True):
    """The host has another tree than it reported: the changes do not apply."""

    tree: str  # its tree hash
    attempt: int  # as in Lacks


class Serving(HostEvent, frozen=True, kw_only=True):
    """The host passes the next pack that it gets on to others."""

    tree: int  # number of the tree along which the pack is passed on
    port: int


class Unfetched(HostEvent, frozen=True, kw_only=True):
    """The host cannot get the pack from another host, or cannot pass it on."""

    tree: int  # as in Serving
    reason: str


class Heard(HostEvent, frozen=True, kw_only=True):
    """Bytes have come that contain no event. The launcher acknowledges them."""


class PrerunDecided(HostEvent, frozen=True, kw_only=True):
    """The host has decided if it runs a prerun entry that has inputs."""

    entry: int  # index in the list
    why: str  # why the entry runs; "": it is skipped
    missing: tuple[str, ...]  # inputs that are not there

    def told(self) -> str:
        """Describe the decision.

        >>> PrerunDecided(time=0, node=0, entry=0, why="", missing=("uv.lock",)).told()
        'skipped: its inputs have not changed'
        """
        return f"runs: {self.why}" if self.why else f"skipped: {UNCHANGED}"


class Ready(HostEvent, frozen=True, kw_only=True):
    """The host has done everything that comes before the ranks, prerun too."""

    interfaces: Mapping[str, str] = field(default_factory=dict)  # NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME there
    status: int = 0  # 127: the host has no such command; 126: it cannot execute it; 0: no such finding
    nearest: str = ""  # the name of a similar command there; "": none
    packages: Mapping[str, str] = field(default_factory=dict)  # versions by names; only of the first host


class PrepareFailed(HostEvent, frozen=True, kw_only=True):
    """The host cannot take part; no rank will start on any host."""

    # A step of CONNECTING, or "lock", "home", "port", "sync", "interface", "devices", "module", "prerun", "command",
    # "start", "ready" or "agent".
    step: str
    message: str
    hint: str = ""
    killed_by: str = ""  # "signal 15" if a signal killed or ended the agent


class NoCommand(PrepareFailed, frozen=True, kw_only=True):
    """The host cannot execute the command; found after prerun, and before any rank starts."""

    program: str  # the first word of the command line
    status: int  # 127: the host has no such command; 126: it cannot execute it
    nearest: str = ""  # as in Ready


class WorkspaceFailed(Event, frozen=True, kw_only=True):
    """Our own part of the preparation failed: the workspace cannot be listed, read or packed."""

    message: str
    hint: str = ""


class WantsPassword(HostEvent, frozen=True, kw_only=True):
    """A later command of the setup needs the user's password for sudo; the host does not wait."""


class AsksPassword(HostEvent, frozen=True, kw_only=True):
    """sudo on the host asks for the user's password; its setup waits."""

    step: int  # the number of the setup's command that needs it


class Answered(HostEvent, frozen=True, kw_only=True):
    """The agent's answer to a question."""

    answer: object  # the record of protocol/replies.py that belongs to the question
    clock: float  # seconds that the host's clock is ahead of ours


class StacksTaken(Answered, frozen=True, kw_only=True):
    """The answer to the question for stacks."""

    answer: HostStacks


class Started(RankEvent, frozen=True, kw_only=True, tag="started"):
    """The rank's process exists."""

    pid: int  # on its host


class Output(RankEvent, frozen=True, kw_only=True):
    """Bytes from a rank (or, for Stream.PRERUN and SETUP, from the host's session), in chunks as they came."""

    stream: Stream
    data: bytes
    taken: int = -1  # bytes of the rank's stream that data stands for, where a value is masked; -1: as many as it has

    @property
    def size(self) -> int:
        """The bytes of the rank's stream that data stands for."""
        return len(self.data) if self.taken < 0 else self.taken


class Exited(RankEvent, frozen=True, kw_only=True):
    """The rank's process ended by itself or by a signal. All its output came before this event."""

    code: int = 0  # 0 .. 255; 0 when a signal ended it
    signal: int = 0  # the signal's number, 0 if it exited
    during: str = ""  # the command of a setup that failed
    oom: bool = False  # meanwhile the kernel has killed a process there for lack of memory
    is_last: bool = False  # the host holds nothing of the run any more, and no process of it is left

    @property
    def status(self) -> int:
        """The exit status in a shell: the exit code, or 128 + signal."""
        return 128 + self.signal if self.signal else self.code

    def told(self) -> str:
        """Describe the end.

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
    """The end of a rank for the supervisor, ahead of output and Exited, because a paused terminal delays those."""


class LeftOut(RankEvent, frozen=True, kw_only=True):
    """Output that was dropped because the host's spool was full."""

    stream: Stream
    bytes: int


class Lost(HostEvent, frozen=True, kw_only=True):
    """The host or its agent ended without a goodbye, or is silent for too long."""

    reason: str
    is_clear: bool = False  # the host has reported that no process of the run is left there
    is_known: bool = False  # the host itself has reported that the run's agent is gone
    killed_by: str = ""  # "signal 9" if a signal ended the agent, "a signal" if it left no message; "": another reason
    is_cut: bool = False  # only the connection is gone: the agent may keep the ranks until its lease ends
    return_within: float = 0.0  # seconds within which the client could not come back; 0: that is not the reason


class Reconnecting(HostEvent, frozen=True, kw_only=True, tag="reconnecting"):
    """The connection ended; the agent goes on, and the client is connecting again."""

    reason: str


class Reconnected(HostEvent, frozen=True, kw_only=True, tag="reconnected"):
    """The client is connected to the agent again, and no bytes were lost."""


class Silent(HostEvent, frozen=True, kw_only=True, tag="silent"):
    """No byte has come from the host for some time, or (seconds == 0) the silence is over."""

    seconds: float


class Behind(RankEvent, frozen=True, kw_only=True, tag="behind"):
    """The rank prints lower numbers of steps than the others for some seconds, or (steps == 0) no longer."""

    steps: int
    median: int  # the step of the other ranks
    unit: str  # "step", "epoch", "batch" or the like


class HostNotice(HostEvent, frozen=True, kw_only=True):
    """A line for the user about one host."""

    text: str
    seconds: float = 0.0  # that the host needs to end its present work


class Stopped(HostEvent, frozen=True, kw_only=True):
    """The agent was asked to end the run (``mesh stop``)."""


class Cleared(HostEvent, frozen=True, kw_only=True):
    """No process of the run is left on the host; ahead of output that comes before Gone. For the supervisor."""


class Gone(HostEvent, frozen=True, kw_only=True):
    """The agent has ended every process of the run, has verified that, and leaves."""

    left: tuple[str, ...] = ()  # processes that are left and why, one line each
    stays: tuple[str, ...] = ()  # processes that a setup has left in the background on purpose, one line each


class Detached(HostEvent, frozen=True, kw_only=True):
    """The host keeps the run without us from now on."""

    ends_with: str = ""  # the host ends the run with our login there ("login"), or the user's last one ("logins")


class StaysAttached(HostEvent, frozen=True, kw_only=True):
    """The host was asked to keep the run without us and cannot; a HostNotice came before with the reason."""


class Introduced(HostEvent, frozen=True, kw_only=True):
    """The host's agent has met the other agents of the run, or waits for them."""

    port: int = 0  # at which the first host's agent waits for the others
    reason: str = ""  # why they cannot meet


class CaughtUp(HostEvent, frozen=True, kw_only=True, tag="attached"):
    """All earlier events of the host have come: those from now on are newer than our attachment."""


class EndOrdered(HostEvent, frozen=True, kw_only=True):
    """The agent of a detached run has ordered the ranks of its host to end."""

    cause: str  # a value of outcome.Cause
    signal: int  # that the ranks got
    lost: int = -1  # the host whose loss ended the run; -1: another cause
    reason: str = ""  # why that host was lost, or why a node has ended its program
    code: int = 0  # exit status of a program that a node has ended


class Chosen(Event, frozen=True, kw_only=True):
    """The user's answer to a question."""

    answer: str  # "stop", "leave" or "go on"


class Interrupted(Event, frozen=True, kw_only=True):
    """The launcher got a signal that asks it to end."""

    signal: int


class StdoutClosed(Event, frozen=True, kw_only=True):
    """The reader of our standard output is gone."""


class Tick(Event, frozen=True, kw_only=True):
    """Time has passed. Only the supervisor gets it."""

    monotonic: float  # seconds of time.monotonic(), for deadlines


class Notice(Event, frozen=True, kw_only=True, tag="notice"):
    """A line for the user about the run as a whole. The supervisor makes it for the sinks."""

    text: str


class Hanging(Event, frozen=True, kw_only=True, tag="hanging"):
    """No rank has printed anything for a time, and the hosts are asked for the stacks of their ranks."""

    seconds: float
    hosts: int  # that are asked


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    """The run has ended on all hosts; the last event of every run."""

    exit_code: int
    cause: str  # a value of outcome.Cause
    run: str
