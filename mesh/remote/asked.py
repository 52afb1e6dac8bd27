"""Requests that an agent was sent, as far as they decide which of its messages can come."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence

from mesh.core.events import Stream
from mesh.core.module import Step
from mesh.core.run import SetupCommand
from mesh.core.text import one_line
from mesh.protocol import answers, nodes
from mesh.protocol.first import Begin
from mesh.protocol.frames import FrameError
from mesh.protocol.messages import Message
from mesh.protocol.nodes import Node
from mesh.protocol.questions import Pull, Question
from mesh.protocol.requests import Apply, Introduce, Lock, Prepare
from mesh.remote.sudo import SudoSteps

RANK_STREAMS = (Stream.STDOUT, Stream.STDERR)


class Asked:
    """The requests of one session. A message that no request explains is refused: its host would drive the run.

    Requests are noted by any thread, before they are sent; messages are checked in the host's own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Counter[type[Message]] = Counter()  # requests without an answer
        self._ports, self._host = 0, 0  # how many ports the host is to keep; its index
        self._nodes: dict[int, int] = {}
        self._entries = 0  # of prerun
        self._attempt, self._synced = -1, -1  # of the workspace: sent last, and there
        self._serving: set[int] = set()  # trees that the host hands on
        self._fetching: set[int] = set()  # trees that it gets from another host
        self._ranks: set[int] = set()  # of this host
        self._releasing: set[int] = set()  # ranks that are to leave the host
        self._adopting: set[int] = set()  # nodes whose sockets the host is to open
        self._running: set[int] = set()  # ranks whose end was not received
        self._commands: Sequence[SetupCommand] = ()
        self._steps = SudoSteps()
        self._modules: Sequence[Step] = ()  # steps of modules that the host was sent last
        self._applying = -1  # the step that is applied now, whose files may be asked for; -1: none
        self._streams: Mapping[str, Stream] = {}  # of the ranks
        self._given: Counter[int] = Counter()  # bytes of stdin that a rank has not taken
        self._relayed: set[int] = set()  # connections to nodes that the client has opened
        self._questions: deque[tuple[Question[object], bool]] = deque()  # and whether they came with bytes
        self._is_ending = False  # the client or the host has begun to end the run there

    # ---- requests

    def begin(self, ports: int, nodes: Sequence[Node] = (), host: int = 0) -> None:
        self._ports, self._host = ports, host
        # How many TCP ports each node has on the host, by its rank.
        self._nodes = {node.rank: _ports_of(node) for node in nodes}
        self.note(Begin)

    def note(self, request: type[Message]) -> None:
        """Note a request that has one answer."""
        with self._lock:
            self._waiting[request] += 1

    def prepare(self, entries: int) -> None:
        """entries: of prerun"""
        self._entries = entries
        self.note(Prepare)

    def send(self, attempt: int) -> None:
        """Note that the workspace is sent."""
        with self._lock:
            self._attempt = max(self._attempt, attempt)

    def serve(self, tree: int) -> None:
        self._serving.add(tree)

    def fetch(self, tree: int) -> None:
        self._fetching.add(tree)

    def start(self, ranks: Sequence[int]) -> None:
        self._ranks, self._running = set(ranks), set(ranks)
        self._streams = {stream.value: stream for stream in RANK_STREAMS}

    def release(self, rank: int) -> None:
        """Note that a rank is to leave the host."""
        with self._lock:
            self._releasing.add(rank)

    def adopt(self, node: Node) -> None:
        """Note that the host is to open the sockets of a node."""
        with self._lock:
            self._nodes[node.rank] = _ports_of(node)
            self._adopting.add(node.rank)

    def take(self, rank: int) -> None:
        """Note that the host is to start a rank that comes from another one."""
        with self._lock:
            self._ranks.add(rank)
            self._running.add(rank)

    def apply(self, steps: Sequence[Step]) -> None:
        """Note steps of modules, which the host carries out now."""
        self._modules = steps
        self._steps = SudoSteps(tuple(step.sudo for step in steps))
        self._applying = -1
        self.note(Apply)

    def setup(self, rank: int, commands: Sequence[SetupCommand]) -> None:
        self._ranks, self._running, self._commands = {rank}, {rank}, commands
        self._streams = {Stream.SETUP.value: Stream.SETUP}
        self._steps = SudoSteps(tuple(command.sudo for command in commands))

    def may_have_password(self, step: int) -> bool:
        """Return True if the command of a setup that asked for the password still waits for it; for one answer."""
        return self._steps.may_have(step)

    def follow(self, ranks: Iterable[int]) -> None:
        """Note that the journal of a run is read; its ranks may have ended."""
        self.start(list(ranks))
        self._is_ending = True

    def give(self, rank: int, count: int) -> None:
        """Note bytes of stdin."""
        with self._lock:
            self._given[rank] += count

    def relay(self, stream: int) -> None:
        """Note a connection to a node that goes through the host's agent."""
        self._relayed.add(stream)

    def ask(self, question: Question[object], *, has_enclosed: bool) -> None:
        self._questions.append((question, has_enclosed))

    def end(self) -> None:
        self._is_ending = True

    # ---- messages

    @property
    def awaits_answer(self) -> bool:
        """True while a question has no answer."""
        return bool(self._questions)

    @property
    def step(self) -> int:
        """Return the number of the setup's command, or the module's step, that runs; -1: none has begun."""
        return self._steps.step

    def module(self, number: int) -> str:
        """Return the module of a step; "" where a setup runs commands."""
        return self._modules[number].module if self._waiting[Apply] else ""

    def stream(self, message: answers.Output | answers.LeftOut, first_rank: int) -> tuple[int, Stream]:
        """Return the rank and the stream of output. Raises FrameError.

        first_rank: stands for the host, whose prerun is that of no rank
        """
        if message.stream == Stream.PRERUN.value:
            if not self._entries:
                raise FrameError(f"{message.NAME}: stream: there is no prerun")
            return first_rank, Stream.PRERUN
        if message.stream == Stream.MODULE.value:
            if not self._modules:
                raise FrameError(f"{message.NAME}: stream: there is no module")
            return first_rank, Stream.MODULE
        if message.stream not in self._streams:
            raise FrameError(f"{message.NAME}: stream: unexpected {message.stream!r}")
        self._check_rank(message, message.rank)
        return message.rank, self._streams[message.stream]

    def check(self, message: Message) -> None:
        """Check that a message can come now, and note what it answers. Raises FrameError."""
        match message:
            case answers.Hello():
                self._answered(message, Begin)
            case answers.Locked(ports=ports, sockets=sockets):
                self._answered(message, Lock)
                if {one.rank: len(one.ports) for one in sockets} != self._nodes:
                    raise FrameError("locked: sockets: not those that were asked for")
                if len(ports) != self._ports:
                    raise FrameError(f"locked: ports: expected {self._ports}, found {len(ports)}")
            case answers.Busy():
                self._answered(message, Lock)
            case answers.Decided(entry=entry):
                if not self._waiting[Prepare] or entry >= self._entries:
                    raise FrameError(f"decided: entry: unexpected {entry}")
            case answers.Ready():
                self._answered(message, Prepare)
            case answers.Lacks(attempt=attempt) | answers.OtherTree(attempt=attempt):
                self._check_attempt(message, attempt)
            case answers.Synced(attempt=attempt):
                self._check_attempt(message, attempt)
                self._synced = attempt
            case answers.Serving(tree=tree):
                self._check_tree(message, tree, self._serving)
            case answers.Unfetched(tree=tree):
                self._check_tree(message, tree, self._serving | self._fetching)
            case answers.Introduced():
                self._answered(message, Introduce)
            case answers.Piece():
                if not self._questions or not isinstance(self._questions[0][0], Pull):
                    raise FrameError("piece: nothing is pulled")
            case answers.Failed() | answers.Stopped():
                self._is_ending = True
            case answers.Gone():
                if self._running and not self._is_ending:
                    raise FrameError(f"gone: rank {min(self._running)} has not ended")
            case _:
                self._check_of_ranks(message)

    def _check_of_ranks(self, message: Message) -> None:
        match message:
            case answers.Started(rank=rank):
                self._check_rank(message, rank)
            case answers.Exited() | answers.Ended():
                self._check_end(message)
            case nodes.RankReady() | nodes.Restarting() | nodes.Restarted() | nodes.ProgramStopped() | nodes.Result():
                self._check_rank(message, message.rank)
            case nodes.PairRelayed(rank=rank) | nodes.MoveAsked(rank=rank):
                self._check_rank(message, rank)
            case nodes.Released(rank=rank) | nodes.Kept(rank=rank):
                self._check_release(message, rank)
            case nodes.Adopted(rank=rank, sockets=sockets):
                if rank not in self._adopting or sockets.rank != rank or len(sockets.ports) != self._nodes[rank]:
                    raise FrameError("adopted: sockets: not those that were asked for")
                self._adopting.discard(rank)
            case nodes.Connecting(stream=stream):
                self._check_pair(message, stream)
            case nodes.Relayed() | nodes.RelayTaken() | nodes.RelayEnded():
                if message.stream not in self._relayed:
                    raise FrameError(f"{message.NAME}: stream: unexpected {message.stream}")
            case answers.Taken(rank=rank, bytes=count):
                with self._lock:
                    if count > self._given[rank]:
                        raise FrameError("taken: bytes: more than were sent")
                    self._given[rank] -= count
            case answers.Step(number=number):
                self._steps.begin(number)
            case answers.Applying(step=step):
                self._check_step(message, step)
                self._applying = step
            case answers.WantsFiles(step=step):
                if step != self._applying or not self._modules[step].files:
                    raise FrameError(f"wants-files: step: unexpected {step}")
                self._applying = -1  # it gets them once
            case answers.Applied(facts=facts, applied=applied):
                self._answered(message, Apply)
                self._steps.end()
                if len(facts) != len(self._modules) or any(step >= len(facts) for step in applied):
                    raise FrameError(f"applied: facts: expected {len(self._modules)}, found {len(facts)}")
            case answers.WantsPassword():
                self._steps.expect_question()
            case answers.AsksPassword():
                self._steps.ask()
            case answers.Detached() | answers.StaysAttached():
                if not self._streams:
                    raise FrameError(f"{message.NAME}: no rank was started")

    def _check_end(self, message: answers.End) -> None:
        self._check_rank(message, message.rank)
        if message.during and message.during not in [command.run for command in self._commands]:
            raise FrameError(f"{message.NAME}: during: no command of the setup")
        if isinstance(message, answers.Exited):
            if message.rank not in self._running:
                raise FrameError(f"exited: rank: {message.rank} had ended before")
            self._running.discard(message.rank)
            self._steps.end()

    def _check_release(self, message: nodes.Released | nodes.Kept, rank: int) -> None:
        if rank not in self._releasing:
            raise FrameError(f"{message.NAME}: rank: {rank} was not to leave")
        self._releasing.discard(rank)
        if isinstance(message, nodes.Released):
            self._running.discard(rank)

    def _check_step(self, message: Message, step: int) -> None:
        if not self._waiting[Apply] or step != self._steps.step:
            raise FrameError(f"{message.NAME}: step: unexpected {step}")

    def _check_pair(self, message: Message, stream: int) -> None:
        """Note a connection that the agent asks for. Its numbers are its own, so that no two agents use the same."""
        is_own = bool(self._nodes) and stream >> nodes.PAIR_STREAM_BITS == self._host + 1
        if not is_own or stream in self._relayed:
            raise FrameError(f"{message.NAME}: stream: unexpected {stream}")
        self._relayed.add(stream)

    def _check_rank(self, message: Message, rank: int) -> None:
        if rank not in self._ranks:
            raise FrameError(f"{message.NAME}: rank: {rank} is not on this host")

    def _check_attempt(self, message: Message, attempt: int) -> None:
        if not self._synced < attempt <= self._attempt:
            raise FrameError(f"{message.NAME}: attempt: unexpected {attempt}")

    def _check_tree(self, message: Message, tree: int, trees: Container[int]) -> None:
        if tree not in trees:
            raise FrameError(f"{message.NAME}: tree: unexpected {tree}")

    def read_answer(self, message: answers.Answer) -> object:
        """Return the record that answers the oldest question. Raises FrameError."""
        if not self._questions:
            raise FrameError("answer: nothing was asked")
        question, has_enclosed = self._questions.popleft()
        return question.read(message.answer, one_line, has_enclosed=has_enclosed)

    def _answered(self, message: Message, request: type[Message]) -> None:
        with self._lock:
            if not self._waiting[request]:
                raise FrameError(f"{message.NAME}: nothing was asked")
            self._waiting[request] -= 1


def _ports_of(node: Node) -> int:
    """Return how many TCP ports a node has on its host."""
    return max(0, node.sockets - (not node.remote))
