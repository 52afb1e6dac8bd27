"""Prints docs/protocol.md: ``python -m tests.protocol_document > docs/protocol.md``."""

from __future__ import annotations

import sys

from mesh.protocol import answers, control, first, forwarding, journal, pulling, questions, requests, tables
from mesh.protocol.coding import dumps
from mesh.protocol.messages import PROTOCOL_VERSION, Message, Table
from mesh.protocol.records import Record, Row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEAD = f"""# Protocol

The messages between a client and the agents on its hosts, between agents, and of the journal of a detached run.
Printed from `mesh/protocol` by `python -m tests.protocol_document > docs/protocol.md`; both ends read and write through
the same classes. "2^24" is a power of two.

## Frames

A frame is one line of JSON, the header, and then as many bytes as its `size`. `type` names the message. Each
reader has a table of the messages that it accepts. A header that the table refuses ends the connection; the reason
names message and field. Fields that a reader does not have are ignored, because a newer peer may send them. A field
with a default is left out where it has that default.

Texts for people come from hosts and end on a terminal. A client reads each through a filter that leaves one plain line
without control characters.

## Numbers

An order is a request with a number, `n`. The client numbers its orders from 1 and keeps them until the agent has
confirmed the number in `beat` or `attached`. Through another channel, it sends the unconfirmed ones again; the agent
ignores numbers that it has carried out. All other messages may get lost with their channel.

## Versions

The protocol has version {PROTOCOL_VERSION}, in the field `protocol` of the first message of each channel and of its
answer. A message without the field is version 0. A reader that finds another version refuses the message before it
reads any other field, and names both versions:

    agent: speaks protocol 3, this mesh speaks 1 (another version of mesh)

The journal of a detached run has version {journal.JOURNAL_VERSION}, in the field `journal` of its file
`about.json`. A journal without the field is version 0 and is still read: it differs in nothing else. A journal of a
newer version is refused, and both versions are named.
"""

SECTIONS: tuple[tuple[str, str, tuple[Table[Message], ...]], ...] = (
    ("First message", "From the client to the process that it has started on a host.", (first.FIRST, first.AT_START)),
    ("Requests", "From the client to the agent of its run.", (tables.REQUESTS,)),
    ("Messages of an agent", "From the agent of a run to its client.", (answers.ANSWERS,)),
    (
        "Journal",
        "The frames in the files of a journal.",
        (journal.IN_JOURNAL,),
    ),
    (
        "Reading a journal",
        "From the process that reads a journal to a client that follows the run.",
        (journal.OF_JOURNAL,),
    ),
    (
        "Pull",
        "The frames in messages `piece`, from the process that reads files, and in `reply`, to it.",
        (pulling.OF_PULL, pulling.TO_PULL),
    ),
    (
        "Control socket",
        "From a process of the same user to an agent: one object in one packet, without a frame.",
        (control.AT_CONTROL_SOCKET,),
    ),
    (
        "Forwarding",
        "Between a client and a forwarder, which connects streams to ports of its host.",
        (forwarding.OF_STREAMS,),
    ),
    ("Peers", "Between the agents of a detached run.", (control.FROM_PEER,)),
)


def document() -> str:
    """Return docs/protocol.md."""
    parts, seen = [HEAD], set[type[Message]]()
    for title, introduction, sources in SECTIONS:
        every = [message for source in sources for message in source]
        above = ", ".join(f"`{message.NAME}`" for message in every if message in seen)
        text = f"{introduction} As above: {above}." if above else introduction
        rows = [_message(message) for message in every if message not in seen]
        parts.append(_section(title, text, ("message", "sender", "meaning", "fields", "bytes that follow"), rows))
        seen.update(every)
    return "\n".join([*parts, _questions(), _records()])


def _message(message: type[Message]) -> tuple[str, ...]:
    numbered = "; an order" if issubclass(message, requests.Order) else ""
    follow = f"at most {message.DATA_BYTES >> 20} MiB" if message.DATA_BYTES else ""
    return f"`{message.NAME}`", message.SENDER + numbered, _meaning(message), _fields(message), follow


def _questions() -> str:
    text = "Orders with the type `ask` and their name in `question`. `answer` brings the record of the answer."
    rows = [(f"`{one.NAME}`", _meaning(one), _fields(one), _answer(one)) for one in questions.QUESTIONS]
    return _section("Questions", text, ("question", "meaning", "fields", "answer"), rows)


def _answer(question: type[questions.Question[object]]) -> str:
    """Return the records that may answer a question, by the annotation that mypy checks."""
    declared: str = question.answered_by.__annotations__["return"]
    return declared[len("Kind[") : -1].replace(" | ", " or ")


def _records() -> str:
    rows = [
        (f"{one.__name__}{' (a list)' if issubclass(one, Row) else ''}", _meaning(one), _fields(one))
        for one in sorted(_all_records(Record), key=lambda one: one.__name__)
    ]
    text = "Objects within messages. A record that is a list has its values in the order of the fields."
    return _section("Records", text, ("record", "meaning", "fields"), rows)


def _all_records(base: type[Record]) -> Iterator[type[Record]]:
    for one in base.__subclasses__():
        if not issubclass(one, Message):
            if one is not Row and one.__module__.startswith("mesh.protocol."):  # others never leave their machine
                yield one
            yield from _all_records(one)


def _fields(one: type[Record]) -> str:
    lines = []
    for name, declared in one.FIELDS.items():
        if issubclass(one, requests.Order) and name == "n":
            continue
        default = "" if declared.is_needed else f" (default: {_default(declared.absent)})"
        lines.append(f"`{name}`: {declared.kind.words}{default}")
    return "<br>".join(lines)


def _default(value: object) -> str:
    if value in ((), {}):
        return "empty"
    return "none" if value is None else dumps(value)


def _meaning(one: type[Record]) -> str:
    return " ".join((one.__doc__ or "").split()).replace("``", "`")


def _section(title: str, text: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return f"## {title}\n\n{text}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(document())
