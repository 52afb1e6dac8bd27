"""The course of a collective in one process: it waits for all members, and moves values."""

from __future__ import annotations

import concurrent.futures
import pickle
import time
from typing import Callable, Dict, List, Sequence, Tuple, Union

from mesh.program.runtime import codec, failures
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.combining import Combine
from mesh.program.runtime.connection import CallOptions
from mesh.program.runtime.errors import CLIENT, CallTimeout, NodeLost, NotLaunched
from mesh.program.runtime.exchange import ENTER, FINISH, PIECE, WATCH, Piece, outcome_of
from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Handle
from mesh.program.runtime.here import Context, current, current_caller
from mesh.program.runtime.rounds import FAILED, GO, LATE, LOST, WRONG, Members, Outcome
from mesh.program.runtime.spreading import Assembly, Part, Plan, branches_of, cut
from mesh.program.runtime.stopping import peers

ANSWER_MARGIN_S = 5.0  # for the first member's answer, which names the missing members
REDUCE_BRANCHES = 2  # hosts whose values a host combines with its own
Root = Union[int, str, "Handle[object]"]
How = Union[str, Combine]
Group = Union["Sequence[Handle[object]]", None]
NO_OPTIONS = CallOptions()


class Turn:
    """A call of a collective by this process."""

    def __init__(self, what: str, root: Root, group: Group, timeout: "float | None", has_data: bool = True) -> None:
        handles = list(peers() if group is None else group)
        if not handles:
            raise ValueError(f"{what}: the group has no nodes")
        self.members: Members = tuple(one.label for one in handles)
        self._context, self._caller = _place(handles[0])
        self._label = self._context.here.label if self._context is not None else ""
        self.root = _root(root, self.members)
        self._hosts = self._caller.hosts
        self._what = what.replace("{}", self.root or "the client")
        self._known: "BaseException | None" = None  # a failure that the first member has reported
        self._check()
        self._timeout, self._has_data = timeout, has_data
        self._deadline = None if timeout is None else time.monotonic() + timeout + ANSWER_MARGIN_S
        self._all = (*self.members, "") if self.root == "" else self.members
        self._exchange = self._context.exchange if self._context is not None else None
        self._number = ""
        self._watch: "Future[object]" = Future()
        self._sent: "List[Tuple[str, Future[object]]]" = []

    def _check(self) -> None:
        """Raise ValueError for a group or root that this process cannot use."""
        if len(set(self.members)) < len(self.members):
            raise ValueError(f"{self._what}: a node is in the group twice")
        at_client = [one for one in self.members if self._hosts.get(one) == CLIENT]
        if at_client:
            raise ValueError(f"{self._what}: {at_client[0]} is on the client; members are nodes on hosts")
        if self._label and self._label not in self.members:
            raise ValueError(f"{self._what}: {self._label} is not in the group")
        if not self.root and not self._what.startswith("broadcast"):
            raise ValueError(f"{self._what}: the client can be the root of a broadcast alone")
        if not self._label and self.root:
            raise ValueError(f"{self._what}: only members call it; the client can be the root of a broadcast")

    # ---- begin and end

    def __enter__(self) -> "Turn":
        first = self._caller.to(self.members[0])  # raises in a process that was forked, whose locks may never be free
        self._take_turn()
        try:
            args = (ENTER, self._all, self._label, self._what, self._has_data, self._timeout)
            call = first.round(args, NO_OPTIONS)
            kind, *rest = self._checked(self._answer(call))
            if kind == GO and self._has_data:
                self._number = str(rest[0])
                if self._exchange is not None:
                    self._exchange.begin(self._number, self._all)
                self._watch = first.round((WATCH, self._number, self._label), NO_OPTIONS)
                self._watch.add_done_callback(self._wake)
        except BaseException:
            self._free()
            raise
        return self

    def _take_turn(self) -> None:
        """Wait for the end of a collective of this group in another thread. Raises CallTimeout."""
        if self._exchange is None:
            return
        seconds = -1 if self._timeout is None else max(0.0, self._timeout)
        if not self._exchange.turn(self._all).acquire(timeout=seconds):
            place = f"{self._label} on {self._hosts.get(self._label, '')}"
            raise CallTimeout(f"{self._what}: another thread of {place} is in a collective of this group")

    def __exit__(self, kind: "type | None", error: "BaseException | None", trace: object) -> None:
        try:
            if self._number:
                self._finish(error)
        finally:
            if self._exchange is not None and self._number:
                self._exchange.end(self._number)
            self._free()

    def _finish(self, error: "BaseException | None") -> None:
        """Wait until everything sent has arrived, and report the end to the first member."""
        outcome: "Outcome | None" = None
        try:
            if error is None:
                for _, future in self._sent:
                    self._answer(future)
            elif error is not self._known:
                outcome = self._outcome(error)
        except ConnectionError as failure:
            outcome = self._outcome(failure)
            self._send_end(outcome)
            raise
        if error is None or outcome is not None:
            answer = self._send_end(outcome)
            if error is None:
                self._checked(answer)

    def _send_end(self, outcome: "Outcome | None") -> Outcome:
        args = (FINISH, self._number, self._label, outcome)
        try:
            return self._answer(self._caller.to(self.members[0]).round(args, NO_OPTIONS))
        except (ConnectionError, CallTimeout):
            if outcome is None:
                raise
            return outcome  # this member raises its own error

    def _outcome(self, error: BaseException) -> Outcome:
        """Return a failure of this member as plain values, for all others."""
        if isinstance(error, NodeLost):
            return (LOST, error.label, error.host, error.reason)
        host = self._hosts.get(self._label, "")
        return (FAILED, failures.describe(error, self._label or CLIENT, host))

    def _free(self) -> None:
        if self._exchange is not None:
            self._exchange.turn(self._all).release()

    # ---- waiting

    def _wake(self, future: object) -> None:
        if self._exchange is not None:
            self._exchange.wake()

    def _answer(self, future: "Future[object]") -> Outcome:
        """Wait for an answer. Raises ConnectionError at the stop of the program, CallTimeout, NodeLost."""
        if self._exchange is None:
            return outcome_of(self._result(future, self._left()))
        future.add_done_callback(self._wake)
        try:
            self._until(future.done)
        except BaseException:
            if self._context is None or not self._context.stopped.is_set():  # else the others stop as well
                future.cancel()
            raise
        return outcome_of(self._result(future, None))

    def _result(self, future: "Future[object]", seconds: "float | None") -> object:
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            if not future.cancel():
                raise
            raise self._late() from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _until(self, condition: "Callable[[], object]") -> None:
        """Wait until a condition holds, at most until the deadline."""
        assert self._exchange is not None
        assert self._context is not None
        with self._exchange.changed:
            while not condition():
                if self._context.stopped.is_set():
                    raise ConnectionError("the program is stopped")
                left = self._left()
                if left is not None and left <= 0:
                    raise self._late()
                self._exchange.changed.wait(left)

    def _left(self) -> "float | None":
        return None if self._deadline is None else self._deadline - time.monotonic()

    def _late(self) -> CallTimeout:
        first = self.members[0]
        place = f"{first} on {self._hosts.get(first, '')}"
        return CallTimeout(f"{self._what}: {place}, which counts the members, does not answer")

    def _checked(self, outcome: Outcome) -> Outcome:
        """Return a good outcome; raise the exception of a failure."""
        kind, *rest = outcome
        if kind == LOST:
            self._known = NodeLost(*[str(one) for one in rest])
        elif kind == LATE:
            self._known = CallTimeout(str(rest[0]))
        elif kind == WRONG:
            self._known = RuntimeError(str(rest[0]))
        elif kind == FAILED:
            self._known = failures.rebuild(rest[0])
        if self._known is not None:
            raise self._known
        return outcome

    # ---- values

    def _send(self, label: str, tag: str, head: "Tuple[List[int], int]", parts: "Sequence[Part]") -> None:
        args = (PIECE, self._number, self._all, tag, self._label, head, parts)
        self._sent.append((label, self._caller.to(label).round(args, NO_OPTIONS)))

    def _send_value(self, labels: "Sequence[str]", tag: str, encoded: "Tuple[List[memoryview], int]") -> None:
        """Send a value in pieces, each of them to all labels."""
        segments, branches = encoded
        sizes = [one.nbytes for one in segments]
        for piece in cut(sizes):
            parts = [
                (number, start, pickle.PickleBuffer(segments[number][start:stop])) for number, start, stop in piece
            ]
            for label in labels:
                self._send(label, tag, (sizes, branches), _out_of_band(parts))

    def _receive(self, tag: str) -> Piece:
        """Wait for the next piece with a tag. Raises the failure of the round."""
        exchange = self._exchange
        assert exchange is not None
        found: "List[Piece]" = []

        def looks() -> bool:
            piece = exchange.piece(self._number, tag)
            found.extend([piece] if piece is not None else [])
            return bool(found) or self._watch.done()

        self._until(looks)
        if not found:
            self._checked(outcome_of(self._watch.result()))
            raise RuntimeError(f"{self._what}: it ended before all values had arrived")
        return found[0]

    def _receive_values(self, tag: str, senders: "Sequence[str]") -> "Dict[str, object]":
        """Return the values that some members send, by their labels."""
        assemblies: Dict[str, Assembly] = {}
        values: Dict[str, object] = {}
        while len(values) < len(senders):
            _, sender, head, parts = self._receive(tag)
            sizes, _ = head
            assembly = assemblies.setdefault(str(sender), Assembly(sizes))
            if assembly.add(parts):
                values[str(sender)] = _decoded(assemblies.pop(str(sender)))
        return values

    def broadcast(self, value: object, root: str) -> object:
        """Send a value from the root to all members, and return it."""
        plan = Plan(self.members, self._hosts, root)
        if self._label == root:
            segments = _encoded(value)
            branches = branches_of(sum(one.nbytes for one in segments))
            self._send_value(plan.targets(root, branches), "broadcast", (segments, branches))
            return value
        assembly: "Assembly | None" = None
        while True:
            _, _, head, parts = self._receive("broadcast")
            sizes, branches = head
            for label in plan.targets(self._label, branches):
                self._send(label, "broadcast", head, _out_of_band(parts))
            assembly = assembly or Assembly(sizes)
            if assembly.add(parts):
                return _decoded(assembly)

    def scatter(self, values: "Sequence[object] | None") -> object:
        """Send each member its value from the root, and return this member's."""
        if self._label != self.root:
            return self._receive_values("scatter", [self.root])[self.root]
        if values is None or len(values) != len(self.members):
            raise ValueError(f"{self._what}: {len(values or ())} values for {len(self.members)} members")
        for label, value in zip(self.members, values):
            if label != self._label:
                self._send_value([label], "scatter", (_encoded(value), 0))
        return values[self.members.index(self._label)]

    def gather(self, value: object) -> "List[object] | None":
        """Send the value to the root, which returns those of all members."""
        if self._label != self.root:
            self._send_value([self.root], "gather", (_encoded(value), 0))
            return None
        others = [one for one in self.members if one != self._label]
        found = self._receive_values("gather", others)
        return [value if one == self._label else found[one] for one in self.members]

    def reduce(self, value: object, combine: Combine) -> object:
        """Combine the values of each host, and then those of the hosts up a tree; the root returns the result."""
        plan = Plan(self.members, self._hosts, self.root)
        below = [*plan.others_here(self._label), *plan.next_hosts(self._label, REDUCE_BRANCHES)]
        found = self._receive_values("reduce", below)
        for label in below:  # the same order at each run: sums of floats are the same
            value = combine(value, found.pop(label))
        if self._label != self.root:
            self._send_value([plan.source(self._label, REDUCE_BRANCHES)], "reduce", (_encoded(value), 0))
            return None
        return value


def _place(handle: "Handle[object]") -> "Tuple[Context | None, Caller]":
    """Return the node that this code runs in, None at the client, and what calls the other members."""
    program = handle.program
    try:
        context = current()
    except NotLaunched:
        pass
    else:
        if context.caller.program == program:
            return context, context.caller
    caller = current_caller(program)
    if caller is None:
        raise NotLaunched(f"{handle.label}: its program is not launched, or has ended; call it after launch()")
    return None, caller


def _root(root: Root, members: Members) -> str:
    """Return the label of a root, "" for the client. Raises ValueError for one that is not in the group."""
    if isinstance(root, Handle):
        root = root.label
    if isinstance(root, int) and -len(members) <= root < len(members):
        return members[root]
    if root in members:
        return str(root)
    if root == CLIENT:
        return ""
    raise ValueError(f"root {root!r} is not in the group, which has {len(members)} nodes from {members[0]} on")


def _encoded(value: object) -> "List[memoryview]":
    """Return a value as its body and buffers. Raises CannotTravel."""
    body, buffers = codec.dumps(value)
    return [memoryview(body), *(one.cast("B") for one in buffers)]


def _decoded(assembly: Assembly) -> object:
    body, *buffers = assembly.segments
    return codec.loads(memoryview(body), buffers)  # type: ignore[arg-type]


def _out_of_band(parts: "Sequence[Part]") -> "List[Part]":
    """Return the parts of a piece in a form that is sent without a copy."""
    return [(number, start, pickle.PickleBuffer(memoryview(data))) for number, start, data in parts]  # type: ignore[arg-type]
