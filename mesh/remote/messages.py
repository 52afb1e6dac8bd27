"""The table of messages that an agent sends: their fields, with types and ranges, and the size of what follows them.

A session checks every message where it reads it. One that the table does not allow means that the host is lost, with
the field as the reason. remote/agent/messages.py has the requests, and the kinds of values.

All text that mesh shows or logs is of the kind ``shown``, which makes one plain line of it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mesh.core.events import (
    AsksPassword,
    Cleared,
    Detached,
    HostEvent,
    HostNotice,
    Introduced,
    OtherTree,
    Reconnected,
    Serving,
    StaysAttached,
    Unfetched,
    WantsPassword,
)
from mesh.core.text import one_line
from mesh.remote.agent.frames import FrameError
from mesh.remote.agent.messages import (
    CAUSE,
    PLACE_MAX,
    RANK_MAX,
    SIGNAL_MAX,
    Message,
    Wrong,
    anything,
    checked,
    described,
    integer,
    listed,
    mapping,
    number,
    record,
    row,
    sizes,
    text,
    truth,
    within,
    word,
)

if TYPE_CHECKING:
    from mesh.remote.agent.messages import Kind

OUTPUT_BYTES = 1 << 20  # in one message; agents send at most 116 KiB
PIECE_BYTES = 1 << 20  # the same of what is pulled; agents send at most 64 KiB
LACKS_BYTES = 16 << 20  # of what a host lacks, beyond what the workspace explains
HEADER_BYTES = 1 << 20  # of a message; lists of processes and paths are the longest
ANSWER_BYTES = 16 << 20  # of the message that answers a question: stacks, or all detached runs of a host
TIME_MAX_S = 1e11  # since the epoch
SPAN_MAX_S = 1e9
STEPS = ("lock", "home", "port", "sync", "interface", "devices", "prerun", "start", "agent", "pull")
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
STREAMS = ("stdout", "stderr")


def shown(value: Any) -> str:
    """Return a text as one plain line that a person can read."""
    if not isinstance(value, str):
        raise Wrong(f"expected a text, found {described(value)}")
    return one_line(value)


def hexadecimal(value: Any) -> str:
    """Check that it is a hash, or "" for none."""
    if not isinstance(value, str) or len(value) > 128 or not all(letter in "0123456789abcdef" for letter in value):
        raise Wrong(f"expected a hash, found {described(value)}")
    return value


def address(value: Any) -> str:
    """Check that it is an IP address."""
    import ipaddress  # few commands need it

    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else "")) and str(value)
    except ValueError:
        raise Wrong(f"expected an address, found {described(value)}") from None


def path(value: Any) -> str:
    """Check that it is a path, each of whose bytes travels as a character."""
    found: str = TEXT(value)
    if not all(letter <= "\xff" for letter in found):
        raise Wrong(f"expected a path, found {described(found)}")
    return found


def either(*kinds: Kind) -> Kind:
    """Return the kind of a value of one of some kinds, the first that takes it."""

    def check(value: Any) -> Any:
        for kind in kinds[:-1]:
            try:
                return kind(value)
            except Wrong:
                continue
        return kinds[-1](value)

    return check


def loose(fields: Mapping[str, Kind]) -> Kind:
    """Return the kind of an object that another version of mesh, or another program, may have written.

    A field with another value than the table has for it is left out, like one that the table does not have.
    """

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        found = {}
        for name, kind in fields.items():
            try:
                found[name] = kind(value[name])
            except (KeyError, Wrong):
                continue
        return found

    return check


def maybe(kind: Kind) -> Kind:
    """Return the kind of a value that is None where it is not of that kind."""

    def check(value: Any) -> Any:
        try:
            return kind(value)
        except Wrong:
            return None

    return check


TEXT = text(1 << 16)
LINES = listed(shown)
COUNT = integer(0, PLACE_MAX)
INDEX = integer(0, RANK_MAX)
PORT = integer(1, 65535)
TIME = number(0.0, TIME_MAX_S)
SPAN = number(0.0, SPAN_MAX_S)
PID = integer(1, 1 << 31)
STATUS = integer(0, 255)
SIGNAL = integer(0, 2 * SIGNAL_MAX)
OWNER = loose(
    {
        **dict.fromkeys(("run", "cluster", "user", "machine", "command"), shown),
        **dict.fromkeys(("boot", "start"), TEXT),
        **dict.fromkeys(("watch", "detached", "other_user"), truth),
        **dict.fromkeys(("since", "ends_by"), TIME),
        "pid": COUNT,
        "hosts": COUNT,
    }
)
OTHERS = listed(record({"user": shown, "run": shown, "since": TIME}), 1024)  # runs of other Unix users
_END = (
    {"rank": INDEX, "time": TIME},
    {"code": STATUS, "signal": SIGNAL, "during": text(), "oom": truth, "last": truth, "printed": mapping(COUNT, 2)},
)
_LEFT = {"left": LINES, "stays": LINES}

# How a run goes on. The session checks "rank", because only it has the ranks of its host.
ANSWERS: dict[str, Message] = {
    "hello": Message({"time": TIME, "machine": shown}, {"pid": PID, "runs": LINES}),
    "locked": Message(
        {"tree": hexadecimal, "bare": truth, "cgroup": TEXT, "ports": listed(PORT, 16), "others": OTHERS}
    ),
    "busy": Message({"owner": OWNER}),
    "lacks": Message({"attempt": INDEX}, data=LACKS_BYTES),
    "other-tree": Message({"tree": hexadecimal, "attempt": INDEX}),
    "serving": Message({"tree": COUNT, "port": PORT}),
    "unfetched": Message({"tree": COUNT, "reason": shown}),
    "synced": Message({"files": COUNT, "seconds": SPAN, "tree": hexadecimal, "attempt": INDEX}),
    "decided": Message({"entry": INDEX, "why": shown, "missing": LINES}),
    "ready": Message(
        {"interfaces": record({}, dict.fromkeys(INTERFACES, TEXT))}, {"status": integer(126, 127), "nearest": shown}
    ),
    "failed": Message({"step": word(*STEPS), "message": shown, "hint": shown, "time": TIME}, {"signal": SIGNAL}),
    "started": Message({"rank": INDEX, "pid": PID, "time": TIME}),
    "output": Message(
        {"rank": integer(-1, RANK_MAX), "stream": word(*STREAMS, "prerun", "setup")}, {"at": COUNT}, OUTPUT_BYTES
    ),
    "left-out": Message({"rank": integer(-1, RANK_MAX), "stream": word(*STREAMS, "prerun", "setup"), "bytes": COUNT}),
    "taken": Message({"rank": INDEX, "bytes": integer(1, PLACE_MAX)}),
    "exited": Message(*_END),
    "ended": Message(*_END),
    "step": Message({"number": INDEX}),
    "wants-password": Message(),
    "asks-password": Message(),
    "notice": Message({"text": shown, "seconds": number(0.0, 1e6)}),
    "stopped": Message({"time": TIME}),
    "clear": Message(_LEFT),
    "gone": Message(_LEFT),
    "beat": Message({"echo": TIME, "time": TIME, "orders": COUNT}, {"held": SPAN}),
    "no-door": Message({}, {"why": shown}),
    "attached": Message({"orders": COUNT}),
    "no-agent": Message({"left": LINES}),
    "detached": Message({"ends_with": word("", "login", "logins")}),
    "stays-attached": Message(),
    "introduced": Message({"port": integer(0, 65535), "reason": shown}),
    "piece": Message(data=PIECE_BYTES),
    "answer": Message({"answer": anything}),  # answers.py checks it, by the question
}

# Messages with the fields of an event; all other events are made one by one.
EVENTS: Mapping[str, type[HostEvent]] = {
    "other-tree": OtherTree,
    "serving": Serving,
    "unfetched": Unfetched,
    "wants-password": WantsPassword,
    "asks-password": AsksPassword,
    "notice": HostNotice,
    "clear": Cleared,
    "attached": Reconnected,
    "detached": Detached,
    "stays-attached": StaysAttached,
    "introduced": Introduced,
}

# From the process that reads a detached run's journal, beside those of the run itself.
OF_JOURNAL: dict[str, Message] = {
    **{name: ANSWERS[name] for name in ("started", "output", "exited", "failed", "notice", "gone", "beat")},
    "following": Message({"time": TIME, "machine": shown}, {"is_on": truth}),
    "caught-up": Message(),
    "no-agent": Message({"left": LINES, "why": shown, "time": TIME}),
    "no-tape": Message({"state": shown, "about": OWNER}),
    "end-ordered": Message(
        {"cause": CAUSE, "signal": SIGNAL, "time": TIME}, {"lost": integer(-1, RANK_MAX), "reason": shown}
    ),
}

# Within the pieces of a pull.
OF_PULL: dict[str, Message] = {
    "list": Message(data=PIECE_BYTES),
    "problem": Message({"path": path, "why": shown, "fails": truth}),
    "file": Message({"offset": COUNT}),
    "data": Message({}, {"packed": truth}, PIECE_BYTES),
    "end": Message({"hash": hexadecimal, "mode": COUNT, "mtime": integer(-PLACE_MAX, PLACE_MAX)}),
    "failed": Message({"why": shown}),
    "done": Message(),
}

PULL_ROW = row(path, word("d", "l", "f"), COUNT, integer(-PLACE_MAX, PLACE_MAX), COUNT, path)

ANSWER_SIZES, JOURNAL_SIZES, PULL_SIZES = sizes(ANSWERS), sizes(OF_JOURNAL), sizes(OF_PULL)


def read(table: dict[str, Message], header: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a message from an agent, checked. Raises FrameError."""
    found = checked(table, header)
    if found["type"] in ("exited", "ended") and ("code" in found) == ("signal" in found):
        raise FrameError(f"{found['type']}: expected either code or signal")
    return found


def lacks(data: bytes, most: int) -> tuple[Mapping[str, Any], ...]:
    """Return the contents that a host lacks. Raises FrameError.

    most: bytes that they may unpack to
    """
    try:
        rows = json.loads(unpacked(data, most))
        if not isinstance(rows, list):
            raise Wrong(f"expected a list, found {described(rows)}")
        return tuple(one if _is_plain(one) else within(place, _LACK, one) for place, one in enumerate(rows))
    except (Wrong, ValueError, RecursionError) as error:
        raise FrameError(f"lacks: {error}") from None


_LACK = record(
    {"hash": hexadecimal, "size": COUNT},
    {"base": hexadecimal, "base_size": COUNT, "head": listed(hexadecimal), "tail": listed(hexadecimal)},
)


def _is_plain(one: Any) -> bool:
    """True for the usual row; there may be a million of them."""
    if type(one) is not dict or len(one) != 2:
        return False
    content, size = one.get("hash"), one.get("size")
    return type(content) is str and len(content) == 40 and content.isalnum() and type(size) is int and size >= 0


def unpacked(data: bytes, most: int) -> bytes:
    """Return what was compressed. Raises ValueError, also for more bytes than that, before there is memory for them."""
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked ({error})") from None
    if not unpacker.eof:
        raise ValueError(f"it does not end within {most} bytes")
    return found


def pull_rows(data: bytes, most: int) -> Sequence[Sequence[Any]]:
    """Return the entries that a pull lists. Raises FrameError."""
    try:
        found: list[list[Any]] = within("rows", listed(PULL_ROW), json.loads(unpacked(data, most)))
    except (Wrong, ValueError, RecursionError) as error:
        raise FrameError(f"list: {error}") from None
    return found
