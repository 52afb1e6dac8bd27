"""Requests that an agent was sent, as far as they decide which of its messages can come."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Container, Mapping, Sequence
from typing import Any

from mesh.core.events import Stream
from mesh.core.run import SetupCommand
from mesh.remote import answers, messages
from mesh.remote.agent.frames import FrameError
from mesh.remote.sudo import SetupSteps


class Asked:
    """The requests of one session. A message that no request explains is refused: its host would drive the run.

    Requests are noted by any thread, before they are sent; messages are checked in the host's own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()  # requests without an answer, by type
        self._ports = 0  # that the host is to keep
        self._entries = 0  # of prerun
        self._attempt, self._synced = -1, -1  # of the workspace: sent last, and there
        self._serving: set[int] = set()  # trees that the host hands on
        self._fetching: set[int] = set()  # trees that it gets from another host
        self._ranks: Container[int] = ()  # of this host
        self._running: set[int] = set()  # ranks whose end was not received
        self._commands: Sequence[SetupCommand] = ()
        self._steps = SetupSteps()
        self._streams: Mapping[str, Stream] = {}  # of the ranks
        self._given: Counter[int] = Counter()  # bytes of stdin that a rank has not taken
        self._questions: deque[tuple[Mapping[str, Any], bool]] = deque()  # and whether they came with bytes
        self._is_ending = False  # the client or the host has begun to end the run there

    # ---- requests

    def begin(self, ports: int) -> None:
        self._ports = ports
        self.note("begin")

    def note(self, kind: str) -> None:
        """Note a request that has one answer."""
        with self._lock:
            self._waiting[kind] += 1

    def prepare(self, entries: int) -> None:
        """entries: of prerun"""
        self._entries = entries
        self.note("prepare")

    def send(self, attempt: int) -> None:
        """Note that the workspace is sent."""
        with self._lock:
            self._attempt = max(self._attempt, attempt)

    def serve(self, tree: int) -> None:
        self._serving.add(tree)

    def fetch(self, tree: int) -> None:
        self._fetching.add(tree)

    def start(self, ranks: Sequence[int]) -> None:
        self._ranks, self._running = frozenset(ranks), set(ranks)
        self._streams = {name: Stream(name) for name in messages.STREAMS}

    def setup(self, rank: int, commands: Sequence[SetupCommand]) -> None:
        self._ranks, self._running, self._commands = frozenset((rank,)), {rank}, commands
        self._streams = {Stream.SETUP.value: Stream.SETUP}
        self._steps = SetupSteps(commands)

    def may_have_password(self, step: int) -> bool:
        """Return True if the command of a setup that asked for the password still waits for it; for one answer."""
        return self._steps.may_have(step)

    def follow(self, ranks: Sequence[int]) -> None:
        """Note that the journal of a run is read; its ranks may have ended."""
        self.start(ranks)
        self._is_ending = True

    def give(self, rank: int, count: int) -> None:
        """Note bytes of stdin."""
        with self._lock:
            self._given[rank] += count

    def ask(self, question: Mapping[str, Any], *, has_enclosed: bool) -> None:
        self._questions.append((question, has_enclosed))

    def end(self) -> None:
        self._is_ending = True

    # ---- messages

    @property
    def awaits_answer(self) -> bool:
        """True while a question has no answer."""
        return bool(self._questions)

    def stream(self, header: Mapping[str, Any], first_rank: int) -> tuple[int, Stream]:
        """Return the rank and the stream of output. Raises FrameError.

        first_rank: stands for the host, whose prerun is that of no rank
        """
        name, rank = header["stream"], header["rank"]
        if name == Stream.PRERUN.value:
            if not self._entries:
                raise FrameError(f"{header['type']}: stream: there is no prerun")
            return first_rank, Stream.PRERUN
        if name not in self._streams:
            raise FrameError(f"{header['type']}: stream: unexpected {name!r}")
        self._check_rank(header)
        return rank, self._streams[name]

    def check(self, header: dict[str, Any]) -> None:
        """Check that a message can come now, and note what it answers. Raises FrameError."""
        kind = header["type"]
        match kind:
            case "hello":
                self._answered(kind, "begin")
            case "locked":
                self._answered(kind, "lock")
                if len(header["ports"]) != self._ports:
                    raise FrameError(f"locked: ports: expected {self._ports}, found {len(header['ports'])}")
            case "busy":
                self._answered(kind, "lock")
            case "decided":
                if not self._waiting["prepare"] or header["entry"] >= self._entries:
                    raise FrameError(f"decided: entry: unexpected {header['entry']}")
            case "ready":
                self._answered(kind, "prepare")
            case "lacks" | "other-tree" | "synced":
                if not self._synced < header["attempt"] <= self._attempt:
                    raise FrameError(f"{kind}: attempt: unexpected {header['attempt']}")
                if kind == "synced":
                    self._synced = header["attempt"]
            case "serving" | "unfetched":
                trees = self._serving if kind == "serving" else self._serving | self._fetching
                if header["tree"] not in trees:
                    raise FrameError(f"{kind}: tree: unexpected {header['tree']}")
            case "introduced":
                self._answered(kind, "introduce")
            case "answer":
                self._check_answer(header)
            case "piece":
                if not self._questions or self._questions[0][0]["question"] != "pull":
                    raise FrameError("piece: nothing is pulled")
            case "failed" | "stopped":
                self._is_ending = True
            case "gone":
                if self._running and not self._is_ending:
                    raise FrameError(f"gone: rank {min(self._running)} has not ended")
            case _:
                self._check_of_ranks(header)

    def _check_of_ranks(self, header: dict[str, Any]) -> None:
        kind = header["type"]
        match kind:
            case "started":
                self._check_rank(header)
            case "exited" | "ended":
                self._check_rank(header)
                if header.get("during") and header["during"] not in [command.run for command in self._commands]:
                    raise FrameError(f"{kind}: during: no command of the setup")
                if kind == "exited":
                    if header["rank"] not in self._running:
                        raise FrameError(f"exited: rank: {header['rank']} had ended before")
                    self._running.discard(header["rank"])
                    self._steps.end()
            case "taken":
                with self._lock:
                    if header["bytes"] > self._given[header["rank"]]:
                        raise FrameError("taken: bytes: more than were sent")
                    self._given[header["rank"]] -= header["bytes"]
            case "step":
                self._steps.begin(header["number"])
            case "wants-password":
                self._steps.expect_question()
            case "asks-password":
                header["step"] = self._steps.ask()
            case "detached" | "stays-attached":
                if not self._streams:
                    raise FrameError(f"{kind}: no rank was started")

    def _check_rank(self, header: Mapping[str, Any]) -> None:
        if header["rank"] not in self._ranks:
            raise FrameError(f"{header['type']}: rank: {header['rank']} is not on this host")

    def _check_answer(self, header: dict[str, Any]) -> None:
        if not self._questions:
            raise FrameError("answer: nothing was asked")
        question, has_enclosed = self._questions.popleft()
        header["answer"] = answers.answer(question, header["answer"], has_enclosed=has_enclosed)

    def _answered(self, kind: str, request: str) -> None:
        with self._lock:
            if not self._waiting[request]:
                raise FrameError(f"{kind}: nothing was asked")
            self._waiting[request] -= 1
