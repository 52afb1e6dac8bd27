"""The requests of a client to the agent of its run. questions.py has those that are questions."""

from __future__ import annotations

from .kinds import (
    CAUSE,
    COUNT,
    CREDENTIALS,
    HASH,
    NAME,
    PLACE_MAX,
    PORT,
    RANK,
    RANK_OR_NONE,
    SECONDS,
    SIGNAL,
    STATUS,
    TEXT,
    TEXTS,
    TRUTH,
    VARIABLES,
    Wrong,
    integer,
    listed,
    mapping,
    nullable,
)
from .messages import CLIENT, PIECE_BYTES, Message, Table
from .nodes import ATTEMPT, PID_OR_NONE, STREAM_NUMBER, Node, NodeAddress, NodeState
from .records import Record, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self


ENCLOSED_BYTES = 1 << 26  # that come with one question
TERMINAL_SIZE = integer(1, 65535)  # columns or rows


class Request(Message, sender=CLIENT):
    """A message of a client to an agent. It may get lost with its channel."""


class Order(Request):
    """A request that the client repeats over channels until its number is confirmed. The sender gives the number."""

    n: int = field(integer(1, PLACE_MAX), default=0)  # 0: it is sent once

    def numbered(self, n: int) -> Self:
        """Return the same order with its number."""
        return self.replaced(n=n)


class Finds(Record):
    """The environment and network of a host's first rank."""

    env: Mapping[str, str] = field(VARIABLES)
    interface: str = field(TEXT)  # for NCCL and gloo; "": the one towards the first of the targets
    targets: Sequence[str] = field(TEXTS)  # addresses; the second one counts where the first is the host itself


class PrerunEntry(Record):
    """A command of prerun."""

    run: str = field(TEXT)
    inputs: Sequence[str] = field(TEXTS)  # files whose change has it run again
    module: str = field(NAME)  # whose environment it enters; "": none, it is an entry of mesh.yaml


class RankStart(Record):
    """A rank to start: the differences from the host's first one."""

    rank: int = field(RANK)
    env: Mapping[str, str] = field(VARIABLES)
    stdin: bool = field(TRUTH)  # it gets the client's standard input
    argv: Sequence[str] = field(listed(TEXT), default=())  # its own command; (): that of the others
    # Columns and rows of the terminal that it gets in place of pipes; (): it gets none.
    terminal: Sequence[int] = field(listed(TERMINAL_SIZE, 2), default=())


class SetupCommand(Record):
    """A command of a setup."""

    run: str = field(TEXT)
    unless: str = field(TEXT)  # a command whose success skips this one; "": none
    sudo: bool = field(TRUTH)  # it may ask for a password


class HostFile(Record):
    """A file that a step finds on the host. Its bytes come in ``step-file`` once the agent asks for them."""

    path: str = field(TEXT)  # absolute, or with a leading ``~/``
    mode: int = field(integer(0, 0o7777))


class Step(Record):
    """A step of a module: shell texts that check, apply and undo."""

    module: str = field(NAME)
    check: str = field(TEXT)  # exit status 0: nothing is to be done; "": apply always
    apply: str = field(TEXT)
    undo: str = field(TEXT)  # "": there is nothing to undo
    sudo: bool = field(TRUTH)  # apply and undo as root; they may ask for a password
    timeout: float = field(SECONDS)  # of each text
    files: Sequence[HostFile] = field(listed(record(HostFile)))


class Loss(Record):
    """The reason why a run ends: the lost host, or what a node of a program gave."""

    lost: int = field(RANK_OR_NONE, default=-1)  # index of the host
    reason: str = field(TEXT, default="")
    code: int = field(STATUS, default=0)  # exit status of the program, with the cause "program"


class Lock(Request, name="lock"):
    """Asks for the host's lock."""

    take_over: str = field(NAME, default="")  # a run whose client is over, and which ends first


class Unlock(Request, name="unlock"):
    """Releases the host's lock."""


class Changes(Request, name="changes", data_bytes=PIECE_BYTES):
    """Carries a piece of the changes of the workspace: `base`, `put`, `drop`, `tree`, `leave` (see sync.md)."""

    first: bool = field(TRUTH, default=False)
    fresh: bool | None = field(TRUTH, default=None)  # with first: the host's own listing does not count
    attempt: int | None = field(RANK, default=None)  # with first: comes back with the answers
    last: bool = field(TRUTH, default=False)  # the sync can begin, without a pack

    def verify(self) -> None:
        if self.first and (self.fresh is None or self.attempt is None):
            raise Wrong("no fresh, or no attempt")


class Pack(Request, name="pack", data_bytes=PIECE_BYTES):
    """Carries a piece of the contents that the host lacks."""

    last: bool = field(TRUTH, default=False)


class Serve(Request, name="serve"):
    """Has the host hand on the next pack to other hosts."""

    tree: int = field(COUNT)  # comes back with the answer
    bytes: int = field(COUNT)  # of the pack
    credentials: str = field(CREDENTIALS)  # a private key and its certificate, as PEM


class Fetch(Request, name="fetch"):
    """Has the host get the pack from another one."""

    tree: int = field(COUNT)  # comes back with the answer
    address: str = field(TEXT)
    port: int = field(PORT)
    bytes: int = field(COUNT)  # of the pack
    credentials: str = field(CREDENTIALS)


class Settled(Request, name="settled"):
    """Has the host drop its pack, because no other host needs it any more."""


class Apply(Request, name="apply"):
    """Has the host carry out steps of modules, which end before prerun begins."""

    finds: Finds = field(record(Finds))
    steps: Sequence[Step] = field(listed(record(Step)))
    undo: bool = field(TRUTH)  # undo all steps
    force: bool = field(TRUTH)  # apply also steps whose check succeeds


class StepFile(Request, name="step-file", data_bytes=PIECE_BYTES):
    """Carries a piece of a file for the step that is to be applied."""

    step: int = field(RANK)
    file: int = field(RANK)  # index in the files of the step
    last: bool = field(TRUTH)  # the last piece of this file


class Prepare(Request, name="prepare", data_bytes=PIECE_BYTES):
    """Prepares the host for its ranks. The source of the module ``meshrun`` may follow."""

    finds: Finds = field(record(Finds))
    prerun: Sequence[PrerunEntry] = field(listed(record(PrerunEntry)))
    force: bool = field(TRUTH)  # also entries whose inputs have not changed
    claim: bool = field(TRUTH)  # see first that no process holds a device
    evict: bool = field(TRUTH)  # end processes of the same user that do
    program: str = field(TEXT)  # the first word of the command, which the host looks for; "": none


class Start(Order, name="start"):
    """Starts the ranks of the host."""

    argv: Sequence[str] = field(listed(TEXT, least=1))
    ranks: Sequence[RankStart] = field(listed(record(RankStart)))
    finds: Finds | None = field(nullable(record(Finds)))  # for a host that was prepared without it
    detach: bool = field(TRUTH)  # the journal keeps output from the beginning


class Program(Request, name="program"):
    """Brings the addresses of all nodes of a program, and their key."""

    nodes: Sequence[NodeAddress] = field(listed(record(NodeAddress)))
    credentials: str = field(CREDENTIALS)


class Payload(Request, name="payload", data_bytes=PIECE_BYTES):
    """Carries a piece of the bytes that some nodes of the host find in a file."""

    hash: str = field(HASH)


class Changed(Order, name="changed"):
    """Passes on how nodes on other hosts have changed."""

    nodes: Sequence[NodeState] = field(listed(record(NodeState)))


class RestartNode(Order, name="restart-node"):
    """Ends the process of a node, and starts the node again at once."""

    rank: int = field(RANK)


class Release(Order, name="release"):
    """Ends all processes of a rank that moves to another host; the answer is ``released`` or ``kept``."""

    rank: int = field(RANK)
    grace: float = field(SECONDS)  # from SIGTERM to SIGKILL


class Adopt(Order, name="adopt"):
    """Opens the sockets of a node that moves to this host; the answer is ``adopted``."""

    node: Node = field(record(Node))


class Readdress(Order, name="readdress"):
    """Replaces the addresses of all nodes, because one has moved."""

    nodes: Sequence[NodeAddress] = field(listed(record(NodeAddress)))


class Take(Order, name="take"):
    """Starts a rank that has moved to this host; the answer is ``restarted``."""

    start: RankStart = field(record(RankStart))
    attempt: int = field(ATTEMPT)
    after: str = field(TEXT)  # how its last process ended
    printed: Mapping[str, int] = field(mapping(COUNT), default={})  # bytes of each stream, on the hosts before


class Moved(Order, name="moved"):
    """Reports to the agent that a rank has left how its move ended, for the client that has asked."""

    rank: int = field(RANK)
    pid: int = field(PID_OR_NONE, default=0)  # of its new process, on its host; 0: there is none
    why: str = field(TEXT, default="")  # there is none


class Relay(Order, name="relay", data_bytes=PIECE_BYTES):
    """Carries bytes to a node, through a relayed connection; the first one opens it."""

    stream: int = field(STREAM_NUMBER)
    label: str = field(NAME, default="")  # of the node; given by the first one


class RelayTaken(Order, name="relay-taken"):
    """Counts bytes that the client has taken from a relayed connection."""

    stream: int = field(STREAM_NUMBER)
    bytes: int = field(COUNT)


class RelayEnd(Order, name="relay-end"):
    """Ends a relayed connection."""

    stream: int = field(STREAM_NUMBER)
    why: str = field(TEXT, default="")


class Setup(Order, name="setup"):
    """Runs the commands of a setup."""

    rank: int = field(RANK)
    commands: Sequence[SetupCommand] = field(listed(record(SetupCommand)))
    force: bool = field(TRUTH)  # also commands that ``unless`` would skip


class Detach(Order, name="detach"):
    """Has the agent keep the run without its client."""


class Introduce(Order, name="introduce"):
    """Has the agents of a detached run meet at the first host's agent."""

    node: int = field(RANK)
    host_grace: float = field(SECONDS)  # that a host may be silent before it is lost
    credentials: str = field(CREDENTIALS)
    address: str = field(TEXT)  # of the first host's agent; "": it is this one
    port: int = field(PORT)


class Password(Order, name="password", data_bytes=PIECE_BYTES):
    """Carries the password for a command that has asked; no bytes: there is none."""


class Enclosed(Request, name="enclosed", data_bytes=PIECE_BYTES):
    """Carries a piece of the bytes that the next question comes with."""


class Reply(Order, name="reply", data_bytes=PIECE_BYTES):
    """Carries frames for the reader of a pull."""


class Stdin(Order, name="stdin", data_bytes=PIECE_BYTES):
    """Carries bytes for the standard input of a rank; no bytes: its end."""

    rank: int = field(RANK)


class Resize(Request, name="resize"):
    """Changes the size of a rank's terminal."""

    rank: int = field(RANK)
    columns: int = field(TERMINAL_SIZE)
    rows: int = field(TERMINAL_SIZE)


class Signal(Order, name="signal"):
    """Signals every process of the run on the host, and kills the rest after its grace."""

    signal: int = field(SIGNAL)
    grace: float = field(SECONDS)
    cause: str = field(CAUSE, default="signal")
    more: Loss | None = field(record(Loss), default=None)  # with the causes "lost" and "program"


class Kill(Order, name="kill"):
    """Kills every process of the run on the host."""


class Finish(Order, name="finish"):
    """Ends the run on the host, and has the agent leave once everything is gone."""

    signal: int = field(SIGNAL)
    grace: float = field(SECONDS)


class Beat(Request, name="beat"):
    """Renews the lease, and asks for the host's time."""

    time: float = field(SECONDS)  # since the epoch, on the client's clock; comes back


class Ack(Request, name="ack"):
    """Confirms the agent's stream up to a place."""

    place: int = field(COUNT)


class Bye(Request, name="bye"):
    """Takes leave: the agent ends the run, unless it is detached."""


class Over(Request, name="over"):
    """Names other runs on the machine whose clients are over, so that their agents end them."""

    runs: Sequence[str] = field(listed(NAME))


# All but questions, which few agents are asked.
COMMON: Table[Request] = Table(
    *(Lock, Unlock, Changes, Pack, Serve, Fetch, Settled, Apply, StepFile, Prepare, Start, Setup, Detach),
    *(Introduce, Password, Enclosed, Reply, Stdin, Signal, Kill, Finish, Beat, Ack, Bye, Over),
    *(Program, Payload, Changed, RestartNode, Relay, RelayTaken, RelayEnd),
    *(Release, Adopt, Readdress, Take, Moved, Resize),
)
