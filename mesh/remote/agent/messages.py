"""The table of messages: what a value may be, and every message that an agent reads.

A message that the table does not allow is refused where it is read, so that no other code meets one.
mesh/remote/messages.py has the messages that an agent sends.
"""

from __future__ import annotations

from .frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kind = Callable[[Any], Any]  # returns the value as it is used; raises Wrong

INFINITE = float("inf")
PLACE_MAX = 1 << 62  # bytes of a stream or a file
RANK_MAX = 1 << 24
PORT_MAX = 65535
SIGNAL_MAX = 64
NAME_CHARACTERS = 200
TEXT_CHARACTERS = 1 << 23  # of one text; Linux allows 6 MiB for all arguments of a program
LIST_ITEMS = 1 << 20
PIECE_BYTES = 1 << 20  # of the data behind a request; clients send at most 64 KiB at once
ENCLOSED_BYTES = 1 << 26  # that come with one question


class Wrong(Exception):
    """A value that a message cannot have; the text says which field, and why."""


def described(value: object) -> str:
    """Return a short description of a value, in printable ASCII.

    >>> described("a" * 99), described(None), described({"a": 1}), described(10**99)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'", 'null', 'an object', 'a number that is too large')
    """
    if isinstance(value, str):
        return ascii(value if len(value) <= 30 else value[:30] + "...")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value) if -PLACE_MAX < value < PLACE_MAX else "a number that is too large"
    return "an object" if isinstance(value, dict) else "a list"


def within(name: object, kind: Kind, value: object) -> Any:
    """Check the value of a field or of an item; name: for the message."""
    try:
        return kind(value)
    except Wrong as wrong:
        raise Wrong(f"{name}: {wrong}") from None


def integer(least: int, most: int) -> Kind:
    """Return the kind of a whole number in a range."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise Wrong(f"expected a whole number from {least} to {most}, found {described(value)}")
        return int(value)

    return check


def number(least: float, most: float) -> Kind:
    """Return the kind of a number in a range; NaN is in none."""

    def check(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise Wrong(f"expected a number from {least:g} to {most:g}, found {described(value)}")
        return float(value)

    return check


def truth(value: Any) -> bool:
    """Check that it is true or false."""
    if type(value) is not bool:
        raise Wrong(f"expected true or false, found {described(value)}")
    return bool(value)


def text(most: int = TEXT_CHARACTERS) -> Kind:
    """Return the kind of a text that can be an argument, a path or the value of a variable."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise Wrong(f"expected a text, found {described(value)}")
        if len(value) > most:
            raise Wrong(f"expected at most {most} characters, found {len(value)}")
        if "\0" in value:
            raise Wrong("expected a text without a zero byte")
        try:
            value.isascii() or value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise Wrong("expected a text in UTF-8") from None
        return value

    return check


def word(*choices: str) -> Kind:
    """Return the kind of a text that is one of some words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise Wrong(f"expected one of {', '.join(map(repr, choices))}, found {described(value)}")
        return value

    return check


def listed(kind: Kind, most: int = LIST_ITEMS, least: int = 0) -> Kind:
    """Return the kind of a list of values of a kind."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Wrong(f"expected a list, found {described(value)}")
        if not least <= len(value) <= most:
            raise Wrong(f"expected {least} to {most} items, found {len(value)}")
        return [within(place, kind, item) for place, item in enumerate(value)]

    return check


def row(*kinds: Kind) -> Kind:
    """Return the kind of a list with one value of each kind."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) != len(kinds):
            raise Wrong(f"expected a list of {len(kinds)} items, found {described(value)}")
        return [within(place, kind, item) for place, (kind, item) in enumerate(zip(kinds, value))]

    return check


def mapping(kind: Kind, most: int = LIST_ITEMS) -> Kind:
    """Return the kind of an object with any names and values of a kind."""
    name = text()

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        if len(value) > most:
            raise Wrong(f"expected at most {most} fields, found {len(value)}")
        return {within("a name", name, key): within(described(key), kind, item) for key, item in value.items()}

    return check


def record(needed: dict[str, Kind], optional: dict[str, Kind] | None = None) -> Kind:
    """Return the kind of an object with certain fields; others are left out of what is returned."""
    more = optional or {}

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        found = {}
        for name, kind in needed.items():
            if name not in value:
                raise Wrong(f"no {name}")
            found[name] = within(name, kind, value[name])
        for name, kind in more.items():
            if name in value:
                found[name] = within(name, kind, value[name])
        return found

    return check


def nullable(kind: Kind) -> Kind:
    """Return the kind of a value that may be null."""
    return lambda value: None if value is None else kind(value)


def anything(value: Any) -> Any:
    """Accept every value: nobody here looks into it."""
    return value


def containing(needed: dict[str, Kind]) -> Kind:
    """Return the kind of an object with certain fields; all others are kept unchecked, for other readers."""
    fields = record(needed)

    def check(value: Any) -> dict[str, Any]:
        return {**value, **fields(value)} if isinstance(value, dict) else fields(value)

    return check


class Message:
    """One row of the table: the fields of a message, and how many bytes may follow it."""

    __slots__ = ("data", "fields")

    def __init__(
        self, needed: dict[str, Kind] | None = None, optional: dict[str, Kind] | None = None, data: int = 0
    ) -> None:
        self.fields, self.data = record(needed or {}, optional), data


def checked(table: dict[str, Message], header: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a message with the fields that the table has for it. Raises FrameError.

    >>> checked({"ack": Message({"place": integer(0, 9)})}, {"type": "ack", "place": 3, "more": 4})
    {'type': 'ack', 'place': 3}
    """
    kind = header.get("type")
    message = table.get(kind) if isinstance(kind, str) else None
    if message is None or not isinstance(kind, str):
        raise FrameError(f"no message is called {described(kind)}")
    try:
        return {"type": kind, **message.fields(header)}
    except Wrong as wrong:
        raise FrameError(f"{kind}: {wrong}") from None


def sizes(table: dict[str, Message]) -> dict[str, int]:
    """Return how many bytes may follow each message that may have any."""
    return {name: message.data for name, message in table.items() if message.data}


NAME = text(NAME_CHARACTERS)
TEXT = text()
TEXTS = listed(TEXT)
PATH = text(4096)  # linux/limits.h
SECONDS = number(0.0, INFINITE)
PLACE = integer(0, PLACE_MAX)
RANK = integer(0, RANK_MAX)
PORT = integer(0, PORT_MAX)
SIGNAL = integer(1, SIGNAL_MAX)
CREDENTIALS = text(1 << 16)
VARIABLES = mapping(TEXT)
FINDS = record({"env": VARIABLES, "interface": TEXT, "targets": TEXTS})
LOSS = record({}, {"lost": integer(-1, RANK_MAX), "reason": TEXT})
CAUSE = word("completed", "rank", "lost", "timeout", "signal", "prepare", "busy", "output-closed", "detached")

# The first message on a channel.
_OF_RUN = {"marker": NAME, "run": NAME, "node": RANK, "remote_dir": PATH}
FIRST = {
    "begin": Message(
        {
            **_OF_RUN,
            **dict.fromkeys(("lock", "announce", "exclusive", "share", "existing", "workspace_links"), truth),
            **dict.fromkeys(("needs_home", "stacks", "keep_going"), truth),
            **dict.fromkeys(("device_patience", "lease", "return_within", "grace", "drain", "timeout"), SECONDS),
            "devices": TEXTS,
            "spool": PLACE,
            "project": TEXT,
            "about": mapping(anything),
            "owner": nullable(containing({"run": NAME})),
            "ports": listed(PORT, 16),
            "plan": mapping(anything),
        }
    ),
    "channel": Message({**_OF_RUN, "have": PLACE, "cgroup": PATH}, {"age": SECONDS}),
    "follow": Message(
        {**_OF_RUN, "client": NAME, "have": mapping(PLACE), "only_reads": truth, "only_end": truth, "place": PLACE}
    ),
}

_NUMBERED = {"n": integer(1, PLACE_MAX)}
REQUESTS = {
    "lock": Message({}, {"take_over": NAME}),
    "unlock": Message(),
    "changes": Message({}, {"first": truth, "fresh": truth, "attempt": RANK, "last": truth}, PIECE_BYTES),
    "pack": Message({}, {"last": truth}, PIECE_BYTES),
    "serve": Message({"tree": PLACE, "bytes": PLACE, "credentials": CREDENTIALS}),
    "fetch": Message({"tree": PLACE, "address": TEXT, "port": PORT, "bytes": PLACE, "credentials": CREDENTIALS}),
    "settled": Message(),
    "prepare": Message(
        {
            "finds": FINDS,
            "prerun": listed(record({"run": TEXT, "inputs": TEXTS})),
            **dict.fromkeys(("force", "claim", "evict"), truth),
            "program": TEXT,
        },
        data=PIECE_BYTES,
    ),
    "start": Message(
        {
            "argv": listed(TEXT, least=1),
            "ranks": listed(record({"rank": RANK, "env": VARIABLES, "stdin": truth})),
            "finds": nullable(FINDS),
            "detach": truth,
        },
        _NUMBERED,
    ),
    "setup": Message(
        {"rank": RANK, "commands": listed(record({"run": TEXT, "unless": TEXT, "sudo": truth})), "force": truth},
        _NUMBERED,
    ),
    "detach": Message({}, _NUMBERED),
    "introduce": Message(
        {"node": RANK, "host_grace": SECONDS, "credentials": CREDENTIALS, "address": TEXT, "port": PORT}, _NUMBERED
    ),
    "password": Message({}, _NUMBERED, PIECE_BYTES),
    "enclosed": Message(data=PIECE_BYTES),
    "reply": Message({}, _NUMBERED, PIECE_BYTES),
    "stdin": Message({"rank": RANK}, _NUMBERED, PIECE_BYTES),
    "signal": Message({"signal": SIGNAL, "grace": SECONDS}, {**_NUMBERED, "cause": CAUSE, "more": LOSS}),
    "kill": Message({}, _NUMBERED),
    "finish": Message({"signal": SIGNAL, "grace": SECONDS}, _NUMBERED),
    "beat": Message({"time": number(0.0, INFINITE)}),
    "ack": Message({"place": PLACE}),
    "bye": Message(),
    "over": Message({"runs": listed(NAME)}),
}

# A question is one message with a field that names it.
QUESTIONS = {
    "check": Message(
        {
            "project": TEXT,
            "env": VARIABLES,
            "venv": nullable(TEXT),
            **dict.fromkeys(("devices", "paths", "programs"), TEXTS),
            **dict.fromkeys(("lock", "worker"), truth),
        }
    ),
    "listen": Message({"key": text(1 << 10), "ports": listed(integer(-1, PORT_MAX), 16)}),
    "try": Message({"key": text(1 << 10), "targets": listed(row(TEXT, PORT))}),
    **{name: Message() for name in ("hush", "worker", "gpus", "runs", "tapes")},
    "detach": Message({"run": NAME}),
    "pass": Message({"run": NAME, "signal": SIGNAL, "ranks": nullable(listed(RANK)), "id": NAME}),
    "clean": Message({"dry_run": truth}),
    "stacks": Message({}, {"run": NAME, "tool": VARIABLES}),
    "stop": Message({"run": NAME, "grace": nullable(SECONDS)}),
    "pull": Message({"paths": TEXTS}),
}

# From other processes of this user, on the agent's own socket.
AT_DOOR = {
    "about": Message(),
    "channel": Message({"have": PLACE}),
    "follow": Message({"client": NAME}),
    "detach": Message(),
    "over": Message(),
    "pass": Message({"signal": SIGNAL, "ranks": nullable(listed(RANK)), "id": NAME}),
    "stop": Message({"grace": nullable(SECONDS)}),
}

# From another agent of a detached run.
FROM_PEER = {
    "join": Message({"node": RANK}),
    "news": Message({"cause": word("rank", "lost", "signal")}, {"signal": SIGNAL, "lost": RANK, "reason": TEXT}),
    **{name: Message() for name in ("welcome", "beat", "done", "bye")},
}

REQUEST_BYTES = sizes(REQUESTS)


def request(header: dict[str, Any]) -> dict[str, Any]:
    """Return a request of the client, checked. Raises FrameError."""
    if header.get("type") != "ask":
        return checked(REQUESTS, header)
    asked = checked(QUESTIONS, {**header, "type": header.get("question")})
    return {**asked, **checked({"ask": Message({}, _NUMBERED)}, header), "question": asked["type"]}


def order(header: Any) -> dict[str, Any]:
    """Return a request that has a number, checked. Raises FrameError."""
    if not isinstance(header, dict):
        raise FrameError(f"expected an object, found {described(header)}")
    found = request(header)
    if "n" not in found:
        raise FrameError(f"{found['type']}: no n")
    return found


def first(header: dict[str, Any]) -> dict[str, Any]:
    """Return the first message on a channel, checked. Raises FrameError."""
    return checked(FIRST, header)


def at_door(header: Any) -> dict[str, Any]:
    """Return a request on the agent's own socket, checked. Raises FrameError."""
    if not isinstance(header, dict):
        raise FrameError(f"expected an object, found {described(header)}")
    return checked(AT_DOOR, header)


def from_peer(header: dict[str, Any]) -> dict[str, Any]:
    """Return a message of another agent, checked. Raises FrameError."""
    found = checked(FROM_PEER, header)
    needed = {"lost": ("lost", "reason"), "signal": ("signal",)}.get(found.get("cause", ""), ())
    for name in needed:
        if name not in found:
            raise FrameError(f"news: no {name}")
    return found
