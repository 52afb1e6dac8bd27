"""The requests of a client to one agent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from mesh.core.events import EndOrdered, Stream
from mesh.core.interfaces import Channel
from mesh.core.module import Step
from mesh.core.run import SetupCommand
from mesh.protocol import requests
from mesh.protocol.answers import LACKS_BYTES, Lacks
from mesh.protocol.first import Begin
from mesh.protocol.messages import Message, encode
from mesh.protocol.nodes import Node, NodeAddress, NodeState
from mesh.protocol.questions import Question
from mesh.protocol.requests import Changes, Finds, Introduce, Lock, Loss, Prepare, RankStart, Setup, Start
from mesh.remote.asked import Asked
from mesh.remote.blob import opening
from mesh.remote.sender import Frame, Sender, pack_frames, pieces


class Requests:
    """Sends requests to one agent, from any thread; notes each one, as its answers are checked against it."""

    def __init__(self, channel: Channel, sizes: Mapping[str, int]) -> None:
        """sizes: bytes that may follow a message, by its name"""
        self._sender = Sender(channel)
        self._asked = Asked()
        self._data_bytes = dict(sizes)
        self._may_come_back = False  # the agent listens for another channel
        self._return_within = 0.0  # seconds that the agent then waits; 0: unknown
        self.round_trip = float("inf")  # seconds, of the fastest beat
        self.printed: dict[tuple[int, Stream], int] = {}  # bytes that ranks here have printed, on all of their hosts
        self._offset = 0.0  # the host's clock minus ours, in seconds; from the fastest beat
        self._arriving: dict[int, Mapping[str, int]] = {}  # what ranks that are to start here had printed before
        self._steps: Sequence[Step] = ()  # of modules, which the host carries out

    @property
    def sent(self) -> int:
        """Return how many bytes of the workspace were sent."""
        return self._sender.sent

    @property
    def attempt(self) -> int:
        """The listing of the workspace that is being sent; pieces of an earlier one are broken off."""
        return self._sender.attempt

    @attempt.setter
    def attempt(self, attempt: int) -> None:
        self._sender.attempt = attempt

    def begin(self, begin: Begin, prepare: Prepare | None = None, library: bytes = b"") -> None:
        """Ship the agent and its first request in one flight, and with it the one to prepare, if there is that.

        library: as in ``prepare``
        """
        self._run, self._agent, self._remote_dir = begin.run, begin.node, begin.remote_dir
        self._begun, self._return_within = time.monotonic(), begin.return_within
        self._is_locking, self._is_preparing = begin.lock, prepare is not None
        self._marker = begin.marker
        self._asked.begin(len(begin.ports), begin.nodes, begin.node)
        if begin.lock:
            self._asked.note(Lock)
        data = opening() + encode(begin)
        if prepare is not None:
            self._asked.prepare(len(prepare.prerun))
            data += encode(prepare, library)
        self._sender.begin(data)

    def lock(self) -> None:
        """Take the host's lock, if the run takes any."""
        self._asked.note(Lock)
        self._send(Lock())

    def unlock(self) -> None:
        """Release the host's lock."""
        self._send(requests.Unlock())

    def send_changes(
        self,
        changes: bytes,
        *,
        attempt: int,
        fresh: bool,
        pack: int = -1,
        asks: bool = True,
        lacks_bytes: int = LACKS_BYTES,
    ) -> None:
        """Send the changes of the manifest, and a pack with what the host will lack, if one is given.

        attempt: comes back with what the host answers
        pack: an open file; -1: none goes along
        asks: without one the host is to answer what it lacks; otherwise it waits for a pack
        lacks_bytes: of the longest list of what it lacks
        """
        self._data_bytes[Lacks.NAME] = lacks_bytes
        self._asked.send(attempt)
        frames = pieces(Changes(), changes)
        frames[0] = Changes(first=True, fresh=fresh, attempt=attempt), frames[0][1]
        frames[-1] = frames[-1][0].replaced(last=asks and pack < 0), frames[-1][1]
        self._sender.send_pieces(attempt, self.round_trip, frames, pack_frames(pack) if pack >= 0 else ())

    def send_pack(self, pack: int, *, attempt: int) -> None:
        """Send a pack from an open file, which other threads read as well. attempt: as in send_changes."""
        self._sender.send_pieces(attempt, self.round_trip, pack_frames(pack))

    def settle(self) -> None:
        """Have the host drop the pack: no other host gets it from there any more."""
        self._send(requests.Settled())

    def serve(self, tree: int, size: int, credentials: str) -> None:
        """Have the host pass on the next pack that it gets. tree: comes back with its answer; size: in bytes"""
        self._asked.serve(tree)
        self._send(requests.Serve(tree=tree, bytes=size, credentials=credentials))

    def fetch(self, tree: int, address: str, port: int, size: int, credentials: str) -> None:
        """Have the host get the pack from another one."""
        self._asked.fetch(tree)
        self._send(requests.Fetch(tree=tree, address=address, port=port, bytes=size, credentials=credentials))

    def prepare(self, prepare: Prepare, library: bytes = b"") -> None:
        """Prepare the host. library: the source of the module ``meshrun`` for programs there; b"": none"""
        self._asked.prepare(len(prepare.prerun))
        self._sender.send(encode(prepare, library))

    def apply(self, finds: Finds, steps: Sequence[Step], *, undo: bool, force: bool) -> None:
        """Have the host carry out steps of modules; it answers with Applied.

        undo: undo them all; force: apply also those whose check succeeds
        """
        self._steps = steps
        self._asked.apply(steps)
        listed = [
            requests.Step(
                module=step.module,
                check=step.check,
                apply=step.apply,
                undo=step.undo,
                sudo=step.sudo,
                timeout=step.timeout,
                files=[requests.HostFile(path=file.path, mode=file.mode) for file in step.files],
            )
            for step in steps
        ]
        self._sender.send(encode(requests.Apply(finds=finds, steps=listed, undo=undo, force=force)))

    def send_files(self, number: int) -> None:
        """Send the files of a step that is to be applied."""
        for index, file in enumerate(self._steps[number].files):
            message = requests.StepFile(step=number, file=index, last=False)
            frames = pieces(message, file.data) or [(message, b"")]
            frames[-1] = message.replaced(last=True), frames[-1][1]
            self._sender.send_pieces(self.attempt, self.round_trip, frames)

    def start(
        self, argv: Sequence[str], ranks: Sequence[RankStart], *, finds: Finds | None = None, detach: bool = False
    ) -> None:
        """Start the ranks of this host.

        finds: their environment, if the host was prepared without it
        detach: the host keeps their output from the beginning
        """
        self._may_come_back = True
        self._asked.start([rank.rank for rank in ranks])
        self._sender.order(Start(argv=list(argv), ranks=list(ranks), finds=finds, detach=detach))

    def bring_program(self, nodes: Sequence[NodeAddress], credentials: str, payloads: Mapping[str, bytes]) -> None:
        """Send what the nodes of a program find on the host. For a thread of its own.

        nodes: the addresses of all; credentials: their key and certificate, as PEM; payloads: by their hashes
        """
        frames: list[Frame] = [(requests.Program(nodes=list(nodes), credentials=credentials), b"")]
        for name, data in payloads.items():
            frames += pieces(requests.Payload(hash=name), data) or [(requests.Payload(hash=name), b"")]
        self._sender.send_pieces(self.attempt, self.round_trip, frames)

    def change(self, states: Sequence[tuple[str, str, int, str]]) -> None:
        """Pass on to the nodes of the host how other nodes have changed: label, state and attempt of each, and why."""
        rows = [NodeState(label=label, state=state, attempt=attempt, why=why) for label, state, attempt, why in states]
        self._sender.order(requests.Changed(nodes=rows))

    def restart(self, rank: int) -> None:
        """End the process of a node, and have the host start the node again at once."""
        self._sender.order(requests.RestartNode(rank=rank))

    def release(self, rank: int, grace: float) -> None:
        """End all processes of a rank that goes to another host; the host answers with Released or Kept."""
        self._asked.release(rank)
        self._sender.order(requests.Release(rank=rank, grace=grace))

    def adopt(self, node: Node) -> None:
        """Have the host open the sockets of a node that comes to it; it answers with Adopted."""
        self._asked.adopt(node)
        self._sender.order(requests.Adopt(node=node))

    def readdress(self, nodes: Sequence[NodeAddress]) -> None:
        """Send the addresses of all nodes again, because one has moved."""
        self._sender.order(requests.Readdress(nodes=list(nodes)))

    def take(self, start: RankStart, attempt: int, after: str, printed: Mapping[Stream, int]) -> None:
        """Start a rank that comes from another host.

        after: how its last process ended; printed: bytes of each stream that have come from the hosts before
        """
        self._asked.take(start.rank)
        self.printed |= {(start.rank, stream): count for stream, count in printed.items()}
        counts = {stream.value: count for stream, count in printed.items()}
        self._arriving[start.rank] = counts
        self._sender.order(requests.Take(start=start, attempt=attempt, after=after, printed=counts))

    def moved(self, rank: int, pid: int, why: str) -> None:
        """Send how the move of a rank ended, for the client that has asked this host's agent. pid: 0: for why"""
        self._sender.order(requests.Moved(rank=rank, pid=pid, why=why))

    def relay(self, stream: int, data: bytes, label: str = "") -> None:
        """Send bytes through a relayed connection. label: of the node, with the first ones"""
        self._asked.relay(stream)
        self._sender.order(requests.Relay(stream=stream, label=label), data)

    def relay_taken(self, stream: int, count: int) -> None:
        """Let the node at the end of a relayed connection send so many more bytes."""
        self._sender.order(requests.RelayTaken(stream=stream, bytes=count))

    def relay_end(self, stream: int, why: str = "") -> None:
        """End a relayed connection. why: it could not be made"""
        self._sender.order(requests.RelayEnd(stream=stream, why=why))

    def detach(self) -> None:
        """Have the host keep the run without us; it answers with Detached."""
        self._sender.order(requests.Detach())

    def introduce(self, host_grace: float, credentials: str, address: str = "", port: int = 0) -> None:
        """Have the agents of a detached run meet at the first host's; it answers with Introduced.

        host_grace: seconds that a host may be silent before it is lost
        credentials: a private key and its certificate, as PEM, that only the agents of this run get
        address, port: of the first host's agent; "": it is that one
        """
        self._asked.note(Introduce)
        self._sender.order(
            Introduce(node=self._agent, host_grace=host_grace, credentials=credentials, address=address, port=port)
        )

    def setup(self, rank: int, commands: Sequence[SetupCommand], force: bool) -> None:
        """Run the commands of a setup as this rank; force: also those that ``unless`` would skip."""
        self._may_come_back = True
        self._asked.setup(rank, commands)
        listed = [requests.SetupCommand(run=one.run, unless=one.unless, sudo=one.sudo) for one in commands]
        self._sender.order(Setup(rank=rank, commands=listed, force=force))

    def password(self, step: int, password: str) -> None:
        """Answer AsksPassword, unless the command that asked has ended; "" if there is no password."""
        if self._asked.may_have_password(step):
            self._sender.order(requests.Password(), password.encode("utf-8", "surrogateescape"))

    def ask(self, question: Question[object], *, lasting: bool = False) -> None:
        """Ask the agent; it answers with Answered.

        lasting: the answer takes long, so that a broken connection is made again meanwhile
        """
        self._asked.ask(question, has_enclosed=False)
        if lasting:
            self._may_come_back = True
            self._sender.order(question)
        else:
            self._send(question)

    def ask_with(self, question: Question[object], enclosed: bytes) -> None:
        """Ask the agent a question that comes with many bytes. For a thread of its own."""
        self._asked.ask(question, has_enclosed=bool(enclosed))
        frames = [*pieces(requests.Enclosed(), enclosed), (question, b"")]
        self._sender.send_pieces(self.attempt, self.round_trip, frames)

    def reply(self, data: bytes) -> None:
        """Send data to the part of the agent that answers a lasting question."""
        self._sender.order(requests.Reply(), data)

    def stdin(self, rank: int, data: bytes) -> None:
        """Send bytes for the stdin of a rank; b"" ends it."""
        self._asked.give(rank, len(data))
        self._sender.order(requests.Stdin(rank=rank), data)

    def resize(self, rank: int, columns: int, rows: int) -> None:
        """Send the size of a rank's terminal."""
        self._sender.send(encode(requests.Resize(rank=rank, columns=columns, rows=rows)))

    def beat(self) -> None:
        """Renew the lease, and ask for the host's time."""
        self._sender.owe_beat()
        self._sender.send(b"")

    def signal(self, number: int, grace: float, why: EndOrdered | None = None) -> None:
        """Signal every process of the run there, and kill the rest after grace seconds.

        why: the reason, which the host keeps for clients that follow the run
        """
        order = requests.Signal(signal=number, grace=grace)
        if why:
            order = order.replaced(cause=why.cause, more=Loss(lost=why.lost, reason=why.reason, code=why.code))
        self._sender.order(order)

    def kill(self) -> None:
        """Kill every process of the run there, now."""
        self._sender.order(requests.Kill())

    def finish(self, number: int, grace: float) -> None:
        """End what is left (signal, grace, SIGKILL), check that it is gone, and let the agent leave."""
        self._sender.is_ending = True
        self._asked.end()
        self._sender.order(requests.Finish(signal=number, grace=grace))

    def _send(self, message: Message) -> None:
        """Send a message that may get lost with the channel."""
        self._sender.send(encode(message))

    def _set_clock(self, now: float, *, sent: float, there: float) -> None:
        """Take the other clock from the beat with the shortest round trip."""
        round_trip = now - sent
        if 0 <= round_trip < self.round_trip:
            self.round_trip = round_trip
            self._offset = there - (sent + round_trip / 2)
