"""Mailboxes: values on a host that any node may put and get. Waiting holds no thread of the node."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from typing import Callable, Deque, Dict, List, Sequence, Tuple

from mesh.program.runtime import plain
from mesh.program.runtime.combining import Combine, combine_of
from mesh.program.runtime.errors import NotLaunched
from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Handle
from mesh.program.runtime.here import current

QUEUE, LATEST, BY_SENDER = "queue", "latest", "latest_by_sender"
STAR, TREE, ALL = "star", "tree", "all"
WAIT_S = 20.0  # of one call, before the caller asks again


class Mailbox:
    """The values of one mailbox. All of it happens on the node's loop."""

    def __init__(self, kind: str, size: int) -> None:
        """kind: QUEUE, LATEST or BY_SENDER; size: of a queue, whose senders wait while it is full"""
        self._kind, self._size = kind, size
        self._queue: Deque[object] = deque()
        self._latest: "Dict[str, Tuple[int, object]]" = {}  # by sender; LATEST has one entry
        self._version = 0
        self._seen: Dict[str, int] = {}  # by reader
        self._changed: "List[asyncio.Future[None]]" = []

    async def put(self, sender: str, value: object) -> bool:
        """Add a value; return False if a queue was full for so long that the sender must ask again."""
        if self._kind == QUEUE:
            if not await self._until(lambda: len(self._queue) < self._size, WAIT_S):
                return False
            self._queue.append(value)
        else:
            self._version += 1
            self._latest[sender if self._kind == BY_SENDER else ""] = self._version, value
        self._wake()
        return True

    async def get(self, reader: str, seconds: float) -> "Tuple[object, ...]":
        """Return a value, in a tuple; () if there was none that this reader has not had for so many seconds."""
        if self._kind == QUEUE:
            if not await self._until(lambda: bool(self._queue), seconds):
                return ()
            value = self._queue.popleft()
            self._wake()
            return (value,)
        seen = self._seen.get(reader, 0)
        if not await self._until(lambda: self._version > seen, seconds):
            return ()
        self._seen[reader] = self._version
        if self._kind == LATEST:
            return (self._latest[""][1],)
        return ({name: value for name, (version, value) in self._latest.items() if version > seen},)

    async def items(self) -> object:
        """Return all values that are there: a list, or a dictionary by sender."""
        if self._kind == QUEUE:
            return list(self._queue)
        values = {name: value for name, (_, value) in self._latest.items()}
        return values if self._kind == BY_SENDER else list(values.values())

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def _until(self, condition: "Callable[[], bool]", seconds: float) -> bool:
        """Wait until a condition holds, at most so many seconds."""
        loop = asyncio.get_event_loop()
        deadline = loop.time() + seconds
        while not condition():
            left = deadline - loop.time()
            if left <= 0:
                return False
            one: "asyncio.Future[None]" = loop.create_future()
            self._changed.append(one)
            try:
                await asyncio.wait_for(one, left)
            except asyncio.TimeoutError:
                continue
            finally:
                if one in self._changed:
                    self._changed.remove(one)
        return True


class Relay:
    """The mailbox of one host in a tree: it combines what its host sends while the last value is on its way."""

    def __init__(self, combine: "str | Combine", root: "Handle[object]") -> None:
        self._combine = combine_of(combine)
        self._root = root
        self._pending: List[object] = []  # at most one value
        self._senders: "List[asyncio.Future[bool]]" = []  # whose values are part of it
        self._is_sending = False
        self._sending: "asyncio.Future[None] | None" = None  # referred to, so that it is not collected

    async def put(self, sender: str, value: object) -> bool:
        """Combine a value with those that wait, and return once the root has it."""
        self._pending = [self._combine(self._pending[0], value) if self._pending else value]
        done: "asyncio.Future[bool]" = asyncio.get_event_loop().create_future()
        self._senders.append(done)
        if not self._is_sending:
            self._is_sending = True
            self._sending = asyncio.ensure_future(self._send())
        return await done

    async def _send(self) -> None:
        label = current().here.label
        try:
            while self._pending:
                (value,), senders = self._pending, self._senders
                self._pending, self._senders = [], []
                try:
                    while not await _begun(self._root, "put", label, value):
                        pass
                except BaseException as error:
                    for one in senders:
                        if not one.done():
                            one.set_exception(error)
                    continue
                for one in senders:
                    if not one.done():
                        one.set_result(True)
        finally:
            self._is_sending = False


class MailboxHandle:
    """The way to a mailbox, from the client and from every node that gets it as an argument."""

    def __init__(self, root: "Handle[object]", others: "Sequence[Handle[object]]" = (), spread: str = STAR) -> None:
        """others: the relays of a tree, or the replicas beside the root, one on each host"""
        self._root, self._others, self._spread = root, tuple(others), spread
        self._reader = uuid.uuid4().hex

    def put(self, value: object) -> None:
        """Add a value, or replace the last one. Waits while a queue is full. Raises NodeLost."""
        sender = _own_label()
        targets: "List[Handle[object]]" = [self._near()]
        if self._spread == ALL:
            targets = [self._root, *self._others]
        calls = [(one, _begun(one, "put", sender, value)) for one in targets]
        for one, future in calls:
            while not future.result():
                future = _begun(one, "put", sender, value)

    def get(self, timeout: "float | None" = None) -> object:
        """Return the next value of a queue, or the last one that this handle has not had.

        A mailbox by sender returns a dictionary of the senders with news. timeout: seconds, None: no limit
        Raises TimeoutError, NodeLost.
        """
        source = self._near() if self._spread == ALL else self._root
        left = float("inf") if timeout is None else timeout
        while True:
            found: "Tuple[object, ...]"
            found = _begun(source, "get", self._reader, min(left, WAIT_S)).result()
            if found:
                return found[0]
            left -= WAIT_S
            if left <= 0:
                raise TimeoutError(f"{self._root.label}: no value within {timeout:g} s")

    def items(self) -> object:
        """Return all values that are there: a list, or a dictionary by sender."""
        return _begun(self._root, "items").result()

    def _near(self) -> "Handle[object]":
        """Return the relay or replica on this host; the root where there is none."""
        try:
            host = current().here.host
        except NotLaunched:
            return self._root
        if self._root.host == host and self._spread == ALL:
            return self._root
        return next((one for one in self._others if one.host == host), self._root)

    def __reduce__(self) -> "Tuple[object, ...]":
        return MailboxHandle, (self._root, self._others, self._spread)


def _begun(handle: "Handle[object]", method: str, *args: object) -> "Future[object]":
    """Begin a call and return its future."""
    begin: "Callable[..., Future[object]]" = getattr(handle.futures, method)
    return begin(*args)


def _own_label() -> str:
    try:
        return current().here.label
    except NotLaunched:
        return ""


def restored(root: "Handle[object]", others: "Sequence[Handle[object]]", spread: str) -> MailboxHandle:
    """Return the handle that was sent."""
    return MailboxHandle(root, others, spread)


plain.WRITERS[MailboxHandle] = ("mailbox", lambda value: value.__reduce__()[1])  # type: ignore[assignment, return-value]
plain.READERS["mailbox"] = restored
