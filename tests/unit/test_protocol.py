"""Messages as typed classes: written, read, refused, and those of other versions of mesh."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mesh.core.text import one_line
from mesh.protocol import (
    answers,
    control,
    first,
    journal,
    pulling,
    questions,
    requests,
    tables,
)
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.messages import PROTOCOL_VERSION, Message, Table, VersionError, encode
from tests.agent.conftest import PYTHONS
from tests.protocol_document import document
from tests.unit.test_messages import JOURNAL, QUESTIONS, TOLD

REPOSITORY = Path(__file__).parents[2]
FINDS = {"env": {"A": "b"}, "interface": "", "targets": ["10.0.0.1"]}
OF_RUN = {"marker": "ab", "run": "r", "node": 0, "remote_dir": "~/.mesh"}
ANSWERS = [
    ({name: value for name, value in question.header().items() if name != "type"}, answer)
    for question, answer in QUESTIONS
]
# One of each message, as they are sent.
FIRST: dict[str, dict[str, Any]] = {
    "begin": {
        **OF_RUN,
        **dict.fromkeys(("lock", "announce", "exclusive", "share", "existing", "workspace_links"), True),
        **dict.fromkeys(("needs_home", "stacks", "keep_going"), False),
        **dict.fromkeys(("device_patience", "lease", "return_within", "grace", "drain", "timeout"), 1.5),
        "devices": ["/dev/x*"],
        "spool": 3,
        "project": "p",
        "about": {"run": "r"},
        "owner": {"run": "r", "pid": 3},
        "ports": [0],
        "plan": {"hosts": ["a"]},
    },
    "channel": {**OF_RUN, "have": 3, "cgroup": "/x", "age": 3.5},
    "reach": {**OF_RUN, "rank": 3, "wants": "calls"},
    "follow": {**OF_RUN, "client": "c", "have": {"0.stdout": 3}, "only_reads": True, "only_end": False, "place": 3},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "lock": {"take_over": "r"},
    "unlock": {},
    "changes": {"first": True, "fresh": False, "attempt": 0, "last": True},
    "pack": {"last": True},
    "serve": {"tree": 1, "bytes": 3, "credentials": "c"},
    "fetch": {"tree": 1, "address": "a", "port": 3, "bytes": 3, "credentials": "c"},
    "settled": {},
    "prepare": {
        "finds": FINDS,
        "prerun": [{"run": "make", "inputs": ["a"], "module": ""}],
        "force": True,
        "claim": True,
        "evict": False,
        "program": "python3",
    },
    "start": {
        "argv": ["true"],
        "ranks": [{"rank": 0, "env": {}, "stdin": True}],
        "finds": FINDS,
        "detach": True,
        "n": 1,
    },
    "setup": {"rank": 0, "commands": [{"run": "a", "unless": "", "sudo": True}], "force": True, "n": 2},
    "detach": {"n": 1},
    "introduce": {"node": 0, "host_grace": 3.0, "credentials": "c", "address": "", "port": 0, "n": 3},
    "password": {"n": 1},
    "enclosed": {},
    "reply": {"n": 1},
    "stdin": {"rank": 0, "n": 1},
    "signal": {"signal": 15, "grace": 1.0, "cause": "lost", "more": {"lost": 1, "reason": "silent"}, "n": 1},
    "kill": {"n": 1},
    "finish": {"signal": 15, "grace": 0.0, "n": 1},
    "beat": {"time": 3.0},
    "ack": {"place": 3},
    "bye": {},
    "over": {"runs": ["r"]},
}
AT_SOCKET: dict[str, dict[str, Any]] = {
    "about": {},
    "channel": {"have": 3},
    "follow": {"client": "c"},
    "detach": {},
    "over": {},
    "pass": {"signal": 10, "ranks": [0], "id": "i"},
    "restart": {"ranks": [0], "grace": None, "id": "i"},
    "stop": {"grace": 3.0},
}
FROM_PEER: dict[str, dict[str, Any]] = {
    "join": {"node": 1},
    "news": {"cause": "lost", "signal": 3, "lost": 1, "reason": "silent"},
    **{name: {} for name in ("welcome", "beat", "done", "bye")},
}
OF_PULL: dict[str, dict[str, Any]] = {
    "list": {},
    "problem": {"path": "a", "why": "no", "fails": True},
    "file": {"offset": 3},
    "data": {"packed": True},
    "end": {"hash": "ab", "mode": 3, "mtime": -3},
    "failed": {"why": "no"},
    "done": {},
}


GREETING = (*(one.NAME for one in first.FIRST), "hello", "following")
ALL: list[tuple[Table[Message], dict[str, Any]]] = [
    (
        table,
        {"type": name, **fields, **({"protocol": 1} if name in ("hello", "following") or table is first.FIRST else {})},
    )
    for table, examples in (
        (first.FIRST, FIRST),
        (tables.REQUESTS, REQUESTS),
        (control.AT_CONTROL_SOCKET, AT_SOCKET),
        (control.FROM_PEER, FROM_PEER),
        (answers.ANSWERS, TOLD),
        (journal.OF_JOURNAL, JOURNAL),
        (pulling.OF_PULL, OF_PULL),
    )
    for name, fields in examples.items()
]


@pytest.mark.parametrize(("table", "header"), ALL, ids=[header["type"] for _, header in ALL])
def test_a_message_is_written_as_it_was_read(table: Table[Message], header: dict[str, Any]) -> None:
    found = table.read(header, one_line)
    ((written, data),) = Decoder(table.sizes).feed(encode(found))
    assert (table.read(written, one_line), data) == (found, b"")
    assert written.items() <= header.items()  # without what a reader adds by itself
    assert {name for name, declared in found.FIELDS.items() if declared.is_needed} <= written.keys()


@pytest.mark.parametrize("question", [question for question, _ in ANSWERS], ids=lambda one: one["question"])
def test_a_question_is_written_as_it_was_read(question: dict[str, Any]) -> None:
    found = tables.REQUESTS.read({"type": "ask", **question, "n": 3})
    assert isinstance(found, requests.Order)
    assert found.header() == {"type": "ask", **question, "n": 3}


@pytest.mark.parametrize(("question", "answer"), ANSWERS, ids=[question["question"] for question, _ in ANSWERS])
def test_an_answer_is_written_as_it_was_read(question: dict[str, Any], answer: Any) -> None:
    asked = questions.QUESTIONS.read(question)
    found = asked.read(answer, one_line)
    written = answers.Answer(answer=found).header()["answer"]
    assert asked.read(written, one_line) == found


# ---- what is refused


@pytest.mark.parametrize(
    ("table", "header", "reason"),
    [
        (tables.REQUESTS, {"type": "riddle"}, "no message is called 'riddle'"),
        (tables.REQUESTS, {"type": "ask", "question": "riddle"}, "no message is called 'riddle'"),
        (tables.REQUESTS, {}, "no message is called null"),
        (tables.REQUESTS, [], "expected an object, found a list"),
        (tables.REQUESTS, {"type": "stdin"}, "stdin: no rank"),
        (
            tables.REQUESTS,
            {"type": "stdin", "rank": -1},
            "stdin: rank: expected a whole number from 0 to 16777216, found -1",
        ),
        (
            tables.REQUESTS,
            {"type": "over", "runs": ["a", 3]},
            "over: runs: 1: expected a text, found 3",
        ),
        (
            tables.REQUESTS,
            {"type": "ask", "question": "try", "key": "k", "targets": [["a", True]]},
            "try: targets: 0: port: expected a whole number from 0 to 65535, found true",
        ),
        (answers.ANSWERS, {"type": "exited", "rank": 0, "time": 3}, "exited: expected either code or signal"),
        (control.FROM_PEER, {"type": "news", "cause": "signal"}, "news: no signal"),
    ],
)
def test_the_reason_names_message_and_field(table: Table[Message], header: Any, reason: str) -> None:
    with pytest.raises(FrameError) as refused:
        table.read(header, one_line)
    assert str(refused.value) == reason


def test_fields_of_a_newer_peer_are_ignored() -> None:
    found = answers.ANSWERS.read({"type": "started", "rank": 1, "pid": 2, "time": 3.0, "colour": ["red"]})
    assert found == answers.Started(rank=1, pid=2, time=3.0)


def test_more_bytes_than_a_message_may_have_are_refused() -> None:
    assert Decoder(answers.ANSWERS.sizes).feed(encode(answers.Piece(), b"x"))
    for message in (answers.StaysAttached(), answers.Started(rank=1, pid=2, time=3.0)):
        with pytest.raises(FrameError, match="1 bytes behind"):
            Decoder(answers.ANSWERS.sizes).feed(encode(message, b"x"))


def test_a_message_cannot_be_made_with_other_fields_than_it_has() -> None:
    with pytest.raises(TypeError, match="Started: no time"):
        answers.Started(rank=1, pid=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Kill: colour: no such field"):
        requests.Kill(colour="red")  # type: ignore[call-arg]


def test_only_an_order_has_a_number() -> None:
    order = requests.Stdin(rank=1).numbered(3)
    assert encode(order, b"x") == b'{"type":"stdin","n":3,"rank":1,"size":1}\nx'
    assert tables.read_order(order.header()) == order
    for header in ({"type": "stdin", "rank": 1}, {"type": "bye", "n": 3}):
        with pytest.raises(FrameError, match="no n"):
            tables.read_order(header)


# ---- texts for people


def test_a_reader_filters_texts_for_people_wherever_they_stand() -> None:
    spoof = "a\n==> done"
    busy = answers.ANSWERS.read({"type": "busy", "owner": {"user": spoof, "boot": spoof}}, one_line)
    assert busy == answers.Busy(owner=answers.Owner(user=one_line(spoof), boot=spoof))
    gone = answers.ANSWERS.read({"type": "gone", "left": [spoof], "stays": []}, one_line)
    assert gone == answers.Gone(left=[one_line(spoof)], stays=[])


def test_a_reader_without_a_filter_reads_no_text_for_people() -> None:
    assert answers.ANSWERS.read({"type": "serving", "tree": 1, "port": 2})
    with pytest.raises(TypeError, match="must give its filter"):
        answers.ANSWERS.read({"type": "busy", "owner": {"user": "a"}})


def test_an_owner_of_another_version_is_read_as_far_as_it_can_be() -> None:
    found = answers.Owner.take({"user": "ana", "since": "yesterday", "pid": -1, "colour": "red"}, one_line)
    assert found == answers.Owner(user="ana")


# ---- other versions

BEGIN = {"type": "begin", **FIRST["begin"], "protocol": PROTOCOL_VERSION}
HELLO = {"type": "hello", **TOLD["hello"], "protocol": PROTOCOL_VERSION}
FOLLOWING = {"type": "following", **JOURNAL["following"], "protocol": PROTOCOL_VERSION}
GREETINGS: list[tuple[Any, dict[str, Any], str]] = [
    *[(first.FIRST, {"type": name, **FIRST[name], "protocol": PROTOCOL_VERSION}, "client") for name in FIRST],
    (answers.ANSWERS, HELLO, "agent"),
    (journal.OF_JOURNAL, FOLLOWING, "journal reader"),
]
IDS = [header["type"] for _, header, _ in GREETINGS]


@pytest.mark.parametrize(("table", "header", "sender"), GREETINGS, ids=IDS)
def test_the_first_message_of_a_channel_and_its_answer_have_the_version(
    table: Table[Message], header: dict[str, Any], sender: str
) -> None:
    assert table.read(header, one_line).header()["protocol"] == PROTOCOL_VERSION


@pytest.mark.parametrize(("table", "header", "sender"), GREETINGS, ids=IDS)
def test_a_garbled_peer_is_refused(table: Table[Message], header: dict[str, Any], sender: str) -> None:
    with pytest.raises(FrameError, match="no frame"):
        Decoder(table.sizes).feed(b"SSH-2.0-OpenSSH_9.2\r\n")
    with pytest.raises(FrameError, match=f"{header['type']}: protocol: expected a whole number"):
        table.read({**header, "protocol": "one"}, one_line)


@pytest.mark.parametrize(("table", "header", "sender"), GREETINGS, ids=IDS)
def test_an_older_peer_is_refused_with_both_versions_and_a_hint(
    table: Table[Message], header: dict[str, Any], sender: str
) -> None:
    without = {name: value for name, value in header.items() if name != "protocol"}
    with pytest.raises(VersionError) as refused:
        table.read(without, one_line)
    ours = PROTOCOL_VERSION
    assert str(refused.value) == f"{sender}: speaks protocol 0, this mesh speaks {ours} (another version of mesh)"
    assert "mesh stop" in refused.value.hint


@pytest.mark.parametrize(("table", "header", "sender"), GREETINGS, ids=IDS)
def test_a_newer_peer_is_refused_whatever_else_it_sends(
    table: Table[Message], header: dict[str, Any], sender: str
) -> None:
    newer = PROTOCOL_VERSION + 2
    with pytest.raises(VersionError) as refused:
        table.read({"type": header["type"], "protocol": newer, "colour": "red"}, one_line)
    text = f"{sender}: speaks protocol {newer}, this mesh speaks {PROTOCOL_VERSION} (another version of mesh)"
    assert str(refused.value) == text
    assert "pipx install --force ." in refused.value.hint


ABOUT = {"about": {"user": "ana"}, "plan": {"hosts": ["a"]}, "boot": "b", "cgroup": "/x"}


def test_the_journal_has_its_version() -> None:
    written = journal.About(about={"user": "ana"}, plan={"hosts": ["a"]}, boot="b", cgroup="/x").to_json()
    assert written == {**ABOUT, "journal": journal.JOURNAL_VERSION}
    assert journal.read_about(json.loads(json.dumps(written))).to_json() == written


def test_an_older_journal_is_read() -> None:
    found = journal.read_about(ABOUT)
    assert (found.journal, found.about, found.plan, found.boot, found.cgroup) == (0, *ABOUT.values())


def test_a_newer_journal_is_refused_with_both_versions_and_a_hint() -> None:
    newer = journal.JOURNAL_VERSION + 1
    with pytest.raises(VersionError) as refused:
        journal.read_about({"journal": newer, "about": 3, "pieces": 3})
    ours = journal.JOURNAL_VERSION
    assert str(refused.value) == f"journal: has format {newer}, this mesh reads 0 to {ours} (another version of mesh)"
    assert "pipx install --force ." in refused.value.hint


def test_a_garbled_journal_is_refused() -> None:
    with pytest.raises(FrameError, match=r"about\.json: expected an object"):
        journal.read_about(["x"])
    for field_name in ("journal", "about", "boot"):
        with pytest.raises(FrameError, match=rf"about\.json: {field_name}: expected"):
            journal.read_about({**ABOUT, field_name: [3]})


# ---- on the hosts

EVERYWHERE = f"""
import sys, types
package = types.ModuleType("mesh")  # an agent has no other module of mesh
package.__path__ = [{str(REPOSITORY / "mesh")!r}]
sys.modules["mesh"] = package
from mesh.protocol import answers, control, first, journal, messages, pulling, tables
print(*({{"re", "typing", "enum", "dataclasses", "json", "collections", "functools"}} & set(sys.modules)))
header = {{"type": "ask", "question": "pass", "run": "r", "signal": 10, "ranks": None, "id": "i", "n": 3}}
found = tables.REQUESTS.read(header)
print(messages.encode(found).decode(), end="")
print(messages.encode(answers.Output(rank=3, stream="stdout", at=0), b"x").decode())
"""


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_every_python_reads_and_writes_messages_without_slow_imports(python: str) -> None:
    done = subprocess.run([python, "-I", "-S", "-c", EVERYWHERE], capture_output=True, text=True, check=True)
    imported, question, output, data = done.stdout.splitlines()
    asked = {"type": "ask", "question": "pass", "run": "r", "signal": 10, "ranks": None, "id": "i", "n": 3}
    assert (imported, json.loads(question)) == ("", asked)
    assert (output, data) == ('{"type":"output","rank":3,"stream":"stdout","at":0,"size":1}', "x")


def test_the_document_is_the_tables() -> None:
    text = (REPOSITORY / "docs/protocol.md").read_text()
    assert text == document(), "python -m tests.protocol_document > docs/protocol.md"
