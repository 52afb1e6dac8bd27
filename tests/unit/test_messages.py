"""Messages that cannot be: from a host to its client, in every form that hypothesis finds."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mesh.core.cluster import Cluster, Host, place_ranks
from mesh.core.encoding import objects
from mesh.core.events import Event, Lost, Notice, PrepareFailed, Serving, Silent, Started
from mesh.core.interfaces import Opened
from mesh.core.module import HostFile, Step
from mesh.core.outcome import Cause, Outcome
from mesh.core.text import one_line
from mesh.engine.launcher import Launcher
from mesh.engine.run import Local, Run
from mesh.engine.supervisor import Supervisor
from mesh.protocol import questions
from mesh.protocol.answers import ANSWERS, LACKS_BYTES
from mesh.protocol.answers import Failed as FailedMessage
from mesh.protocol.answers import Serving as ServingMessage
from mesh.protocol.frames import Decoder, FrameError, encode
from mesh.protocol.journal import JOURNAL_VERSION, OF_JOURNAL
from mesh.protocol.messages import PROTOCOL_VERSION, VersionError
from mesh.protocol.nodes import Node
from mesh.protocol.records import Record
from mesh.protocol.requests import Introduce, Lock
from mesh.protocol.tables import REQUESTS
from mesh.remote.events import event_of
from mesh.remote.following import Following
from mesh.remote.handover import Handovers
from tests.full import times
from tests.scripted import ScriptedBackend, ScriptedChannel, prints
from tests.specs import spec_of
from tests.unit.test_session import BEGIN, Recorder, begun

RANK, MACHINE = 0, "machine-0"
NOW = time.time()
DEVICES = {"error": "/dev/x is held by sleep (pid 3)", "hint": "wait"}
HOST = {
    "python": "3.11.2",
    "user": "me",
    "place": "/root",
    "problem": "",
    "driver": "",
    "bash": True,
    "time": NOW,
    "disk_free": 1,
    "disk_total": 2,
    "memory_free": 1,
    "memory_total": 2,
    "inodes_free": -1,
    "addresses": [["eth0", "10.0.0.1", 1500]],
    "lock": {"run": "r", "user": "me", "machine": "m", "since": NOW, "command": "true"},
    "devices": DEVICES,
    "ends_with": "",
    "others": [{"user": "ana", "run": "r", "since": 0.0}],
    "sees_others": True,
    "name": {"name": "h"},
    "worker": None,
    "versions": {"program": "/usr/bin/python3", "python": "3.11.2", "jax": "0.4"},
    "paths": {"/a": {"there": False}},
    "programs": {"uv": {"place": "/usr/bin/uv"}},
}
RUN = {"run": "r", "node": 0, "about": {"user": "me"}, "attached": True, "ranks": [{"rank": 0, "ended": False}]}
STACK = {
    "role": "",
    "how": "kernel",
    "main": True,
    "thread": "",
    "program": "sh",
    "words": "waits",
    "frames": [["f", "a.py", 3]],
    "of": [[0, 17]],
}
TOOL = {"machine": "x86_64", "hash": "ab", "path": "/py-spy"}
STACKS = {"ranks": [{"rank": 0, "ended": True}], "silent": False, "stacks": [STACK], "notes": [["short", ""]]}
# Each question with an answer to it.
QUESTIONS: list[tuple[questions.Question[Any], Any]] = [
    (
        questions.Check(
            project="p", env={}, venv="", devices=[], lock=True, worker=False, paths=["/a"], programs=["uv"]
        ),
        HOST,
    ),
    (questions.Listen(key="00", ports=[0, -1]), {"ports": [4000, "it is in use there"]}),
    (questions.Try(key="00", targets=[questions.Target(address="a", port=1)]), {"tried": [["silent", ""]]}),
    (questions.Hush(), {}),
    (questions.AskWorker(), {"number": 3}),
    (questions.AskGpus(), {"gpus": 8}),
    (
        questions.AskFigures(seconds=0.5),
        {
            "cores": 2,
            "cpu": 0.5,
            "memory": 9,
            "memory_used": 3,
            "disk_read": 0.0,
            "disk_written": 1.5,
            "received": 2.0,
            "sent": 3.0,
            "devices": [{"name": "H100", "busy": 0.25, "memory": 80, "memory_used": 8}],
            "ranks": [{"run": "r", "rank": 0, "cpu": 1.5, "memory": 7}],
        },
    ),
    (questions.AskRuns(), {"runs": [RUN], "orphans": [{"run": "o", "told": "sleep (pid 4)"}]}),
    (questions.AskJournals(), {"tapes": [{"run": "r", "plan": {"hosts": ["a"]}}]}),
    (questions.Detach(run="r"), {"told": [RUN]}),
    (questions.Pass(run="r", signal=10, ranks=None, id="i"), {"told": [{"ranks": {"0": 2}}]}),
    (questions.AskLeftovers(dry_run=True), {"found": [{"what": "/a", "bytes": 3, "stays": False}]}),
    (
        questions.Restart(run="r", ranks=[0], grace=None, limit=9.0, id="i"),
        {"ranks": [{"rank": 0, "pid": 7}, {"rank": 1, "why": "it has ended"}], "agents": 1},
    ),
    (questions.Stop(run="r", grace=None), {"stopped": [{"run": "r", "node": 0}], "left": ["r"]}),
    (questions.AskStacks(run="r", tool=TOOL), {"wants": "ab"}),
    (questions.AskStacks(run="r", tool=TOOL), STACKS),
    (questions.Pull(paths=["a"]), {}),
]
END = {"rank": RANK, "time": NOW, "signal": 9, "oom": False, "last": False, "printed": {"stdout": 3}}
LACKS = [{"hash": "0" * 40, "size": 3}, {"hash": "1" * 40, "size": 9, "base": "ab", "head": ["ab"], "tail": ["ab"]}]
OTHERS = [{"user": "ana", "run": "r", "since": NOW}]
OF_SETUP = ("step", "wants-password", "asks-password")  # tests/unit/test_sudo.py sends them
OF_MODULES = ("applying", "wants-files", "applied")  # sent below, to a client that has asked for steps
# tests/agent/test_nodes.py and tests/integration/test_program_firewall.py open connections for them.
OF_RELAY = ("connecting", "relayed", "relay-taken", "relay-ended")
SENT_ELSEWHERE = ("attached", "no-agent", "piece", *OF_SETUP, *OF_MODULES, *OF_RELAY)
# One of each message, as agents send them.
TOLD: dict[str, dict[str, Any]] = {
    "hello": {"protocol": PROTOCOL_VERSION, "time": NOW, "machine": MACHINE, "pid": 12},
    "locked": {"tree": "ab", "bare": False, "cgroup": "/sys/fs/cgroup/x", "ports": [], "others": OTHERS},
    "busy": {"owner": {"run": "other", "user": "me", "machine": "m", "since": NOW, "command": "true"}},
    "lacks": {"attempt": 0},
    "other-tree": {"tree": "", "attempt": 0},
    "serving": {"tree": 1, "port": 4000},
    "unfetched": {"tree": 1, "reason": "no ssl"},
    "synced": {"files": 1, "seconds": 0.5, "tree": "ab", "attempt": 0},
    "decided": {"entry": 0, "why": "", "missing": ["uv.lock"]},
    "ready": {"interfaces": {"NCCL_SOCKET_IFNAME": "eth0"}, "packages": {"torch": "2.13.0"}},
    "failed": {"step": "prerun", "message": "exit 3", "hint": "look", "time": NOW},
    "started": {"rank": RANK, "pid": 9, "time": NOW},
    "output": {"rank": RANK, "stream": "stdout"},
    "left-out": {"rank": RANK, "stream": "stderr", "bytes": 7},
    "taken": {"rank": RANK, "bytes": 1},
    "exited": END,
    "ended": END,
    "step": {"number": 0},
    "wants-password": {},
    "asks-password": {},
    "applying": {"step": 0},
    "wants-files": {"step": 0},
    "applied": {"facts": ["3.11"], "applied": [0]},
    "notice": {"text": "waiting for /dev/x", "seconds": 3},
    "stopped": {"time": NOW},
    "clear": {"left": [], "stays": []},
    "gone": {"left": ["sleep (pid 3)"], "stays": []},
    "beat": {"echo": NOW, "time": NOW, "orders": 0, "held": 0.0},
    "no-door": {"why": "full"},
    "attached": {"orders": 0},
    "no-agent": {"left": []},
    "detached": {"ends_with": ""},
    "stays-attached": {},
    "introduced": {"port": 4000, "reason": ""},
    "piece": {},
    "answer": {"answer": {}},
    "rank-ready": {"rank": RANK, "attempt": 0, "time": NOW},
    "restarting": {"rank": RANK, "attempt": 1, "time": NOW, "seconds": 1.0, "code": 3},
    "restarted": {"rank": RANK, "attempt": 1, "pid": 9, "time": NOW},
    "move-asked": {"rank": RANK, "to": 1, "grace": 5.0, "time": NOW},
    "released": {"rank": RANK, "attempt": 1, "time": NOW, "signal": 15},
    "kept": {"rank": RANK, "why": "it has ended", "time": NOW},
    "adopted": {"rank": RANK, "sockets": [RANK, "/tmp/0", []], "time": NOW},
    "pair-relayed": {"rank": RANK, "to": "echo/1", "why": "no answer", "time": NOW},
    "connecting": {"stream": (1 << 30) + 1, "label": "echo/1"},
    "program-stopped": {"rank": RANK, "code": 3, "why": "enough", "time": NOW},
    "result": {"rank": RANK, "last": True},
    "relayed": {"stream": 1},
    "relay-taken": {"stream": 1, "bytes": 3},
    "relay-ended": {"stream": 1, "why": "it does not listen"},
}
DATA = {"output": b"some words\n", "lacks": zlib.compress(json.dumps(LACKS).encode()), "piece": b"?"}
NUMBERS = [-1, 1 << 70, 1e308, float("nan"), float("inf"), True, 0.5]
IMPOSSIBLE: list[Any] = [None, "x", "\0", "\ud800", "==> done", [], {}, [None], [[]], {"": None}, *NUMBERS]
# What a host may write to have a line of its own on a terminal.
SPOOFS = ["\r\x1b[2K==> done: 4 ranks exited 0", "\nerror: your key is revoked", "\x85\u2028==> x", "\u202e\x9b2Kx\x07"]


def mutations(value: Any) -> Iterator[Any]:
    """A value less a field, with another kind of value, or with an impossible one, at every place in it."""
    yield from IMPOSSIBLE
    if isinstance(value, dict):
        for name in value:
            yield {other: item for other, item in value.items() if other != name}
            yield from ({**value, name: other} for other in mutations(value[name]))
    elif isinstance(value, list):
        yield value * 3
        for place, item in enumerate(value):
            yield from ([*value[:place], other, *value[place + 1 :]] for other in mutations(item))


def frames_of(kind: str, told: Mapping[str, dict[str, Any]] = TOLD) -> list[bytes]:
    """Everything that is made of one message."""
    header, data = {"type": kind, **told[kind]}, DATA.get(kind, b"")
    made = [encode(changed, data) for changed in mutations(header) if isinstance(changed, dict)]
    huge = [encode({**header, "size": size}) for size in (1 << 40, 1 << 70, -1)]
    return [*made, *huge, encode(header, b"?"), encode({"more": "x" * 2_000_000, **header})]


NONSENSE = [
    *[b"\n", b"nothing\n", b"[1]\n", b"3\n", b"null\n", b"\xff\xfe\n", b"{}\n", b'{"type":["exited"]}\n'],
    *[b'{"type":"exited"}\n', b'{"type":"riddle"}\n', b'{"type":null,"size":1000}\n', b"[" * 100_000 + b"\n"],
    *[b'{"type":"output","rank":[0],"stream":"stdout","size":1}\nx', b'{"type":"output","size":true}\nx'],
    *[b'{"type":"beat","echo":' + b"9" * 10_000 + b"}\n", b'{"type":"taken","rank":0,"bytes":1}\n'],
]
FRAMES = [frame for kind in TOLD for frame in frames_of(kind)] + NONSENSE


class Rogue(ScriptedChannel):
    """An agent that says something else at one moment of its run, and goes on as if it had not."""

    def __init__(self, node: int, moment: str, frame: bytes) -> None:
        super().__init__(node, prints(2), {}, threading.Event() if moment != "start" else None)
        self._moment, self._frame = moment, frame

    def _tell(self, kind: str, **more: Any) -> None:
        super()._tell(kind, **more)
        if kind == self._moment:
            self._out.put(self._frame)


class Hosts(ScriptedBackend):
    """Two of them, of which the second is none of ours."""

    def __init__(self, moment: str, frame: bytes) -> None:
        super().__init__(prints(2), ends=threading.Event())
        self._rogue = moment, frame

    def open(self, hosts: Any, argv: Any) -> Iterator[Opened]:
        yield from super().open(hosts[:1], argv)
        channel = Rogue(1, *self._rogue)
        self.channels.append(channel)
        yield Opened(node=1, result=channel)

    def reopen(self, node: int, argv: Any) -> ScriptedChannel:
        raise AssertionError("a host that does not speak our protocol is not asked again")


class Seen:
    """A sink that keeps what it is shown."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def idle(self) -> None: ...

    def close(self) -> None: ...


def run(moment: str, frame: bytes) -> tuple[Outcome, Seen, Hosts]:
    """A run on two hosts, whose second one says this right after a message of its own."""
    hosts = (Host(name="h0", address="h0"), Host(name="h1", address="h1"))
    placement = place_ranks(hosts)
    spec = spec_of(run="r", project="p", workspace=Path("/"), command=("true",), sync=False, grace=0.1, drain=0.0)
    local = Local(
        owner={}, is_dead=lambda owner: False, luggage=lambda tell: pytest.fail("sync"), password=lambda user: ""
    )
    seen, backend = Seen(), Hosts(moment, frame)
    parts = Run(
        spec=spec,
        cluster=Cluster(name="c", hosts=hosts),
        placement=placement,
        backend=backend,
        local=local,
        decider=Supervisor(spec, placement),
    )
    launcher = Launcher(parts, [seen])
    over = threading.Event()
    ending = threading.Thread(target=end_ranks, args=(backend, over))
    ending.start()
    try:
        return launcher.run(), seen, backend
    finally:
        over.set()
        ending.join()


def end_ranks(backend: ScriptedBackend, over: threading.Event) -> None:
    """End the ranks of all hosts again and again: some may start late."""
    while not over.wait(0.1):
        for channel in list(backend.channels):
            channel.end()


@pytest.mark.parametrize("frame", NONSENSE, ids=range(len(NONSENSE)))
def test_a_host_that_sends_nonsense_is_lost_and_the_run_ends(frame: bytes) -> None:
    outcome, seen, _ = run("started", frame)
    (lost,) = [event for event in seen.events if isinstance(event, Lost)]
    assert (lost.node, lost.reason.startswith("does not speak our protocol: ")) == (1, True)
    assert (outcome.exit_code, outcome.cause) == (76, Cause.LOST)
    assert lost.reason.isprintable()
    assert len(lost.reason) < 300


def test_the_reason_names_the_message_and_the_field() -> None:
    _, seen, _ = run("started", b'{"type":"exited"}\n')
    reasons = [event.reason for event in seen.events if isinstance(event, Lost)]
    assert reasons == ["does not speak our protocol: exited: no rank"]
    _, seen, _ = run("started", encode({"type": "exited", "rank": 1}))
    reasons = [event.reason for event in seen.events if isinstance(event, Lost)]
    assert reasons == ["does not speak our protocol: exited: no time"]


@settings(max_examples=times(25, full=60), deadline=None, suppress_health_check=list(HealthCheck))
@example(frame=encode({"type": "gone", "left": ["sleep (pid 3)"], "stays": []}), moment="ready")  # this run never ended
@given(
    frame=st.sampled_from(FRAMES) | st.binary(max_size=40).map(lambda data: data + b"\n"),
    moment=st.sampled_from(["hello", "locked", "ready", "started", "beat", "exited", "gone"]),
)
def test_no_message_breaks_a_run(frame: bytes, moment: str) -> None:
    """It ends by the rules, and nothing is raised: the message may have been one that can be."""
    outcome, _, backend = run(moment, frame)
    assert outcome.exit_code in (0, 75, 76, 125, 126, 127, 128 + 9, 143)
    assert all(channel._is_closed for channel in backend.channels)


@pytest.mark.parametrize("kind", TOLD)
def test_no_message_breaks_a_session(kind: str) -> None:
    """Whatever a host has been asked, and in whatever state it is."""
    for frame in frames_of(kind):
        _, talk = asked(frame)
        for event in talk.events():
            assert isinstance(event, Event)
            assert not isinstance(event, Lost | PrepareFailed) or _texts_are_plain(event)


# The same from who reads the journal of a detached run.
JOURNAL: dict[str, dict[str, Any]] = {
    **{kind: TOLD[kind] for kind in ("started", "exited", "failed", "notice", "gone", "beat")},
    "output": {"rank": RANK, "stream": "stdout", "at": 3},
    "following": {"protocol": PROTOCOL_VERSION, "time": NOW, "machine": MACHINE, "is_on": True},
    "caught-up": {},
    "no-agent": {"left": [], "why": "", "time": NOW},
    "no-tape": {"state": "running", "about": {"machine": "m"}},
    "end-ordered": {"cause": "lost", "signal": 15, "time": NOW, "lost": 1, "reason": "silent"},
    **{kind: TOLD[kind] for kind in ("rank-ready", "restarting", "restarted")},
}


@pytest.mark.parametrize("kind", JOURNAL)
def test_no_message_breaks_who_follows_a_run(kind: str) -> None:
    for frame in frames_of(kind, JOURNAL):
        list(following(encode({"type": "following", **JOURNAL["following"]}), frame).events())


@pytest.mark.parametrize("kind", JOURNAL)
def test_what_a_journal_has_is_in_the_table(kind: str) -> None:
    talk = following(encode({"type": kind, **JOURNAL[kind]}, DATA.get(kind, b"")))
    assert not [event for event in talk.events() if isinstance(event, Lost) and "protocol" in event.reason]


def test_every_message_of_a_journal_is_tried() -> None:
    assert set(JOURNAL) == {message.NAME for message in OF_JOURNAL}


def test_a_journal_that_cannot_be_read_there_ends_the_attempt_to_attach() -> None:
    versions = f"speaks journal {JOURNAL_VERSION + 1}, this mesh speaks {JOURNAL_VERSION}"
    error = VersionError(f"agent: {versions}", "upgrade the older one")
    failed = FailedMessage(step="agent", message=str(error), hint=error.hint, time=NOW)
    (event,) = following(encode(failed.header())).events()
    assert isinstance(event, PrepareFailed)
    assert (event.step, event.message, event.hint) == ("attach", str(error), error.hint)
    assert versions in event.message


def following(*told: bytes) -> Following:
    """A client that follows a run whose journal has this."""
    channel = Recorder()
    talk = Following(0, 0, channel)
    talk.follow(BEGIN, [RANK], {}, Handovers(place_ranks([Host(name="a", address="a")], (RANK + 1,)), [], {}))
    channel._told = [b"\n%s\n" % talk._marker.encode(), *told]
    return talk


def asked(*told: bytes) -> Any:
    """A session whose agent was asked for all that there is."""
    channel, talk = begun(*told)
    talk._asked.begin(0)
    for kind in (Lock, Introduce):
        talk._asked.note(kind)
    talk._asked.prepare(1)
    talk._asked.send(0)
    talk._asked.serve(1)
    talk._asked.fetch(1)
    talk._asked.start([RANK])
    talk._asked.release(RANK)
    talk._asked.give(RANK, 1)
    talk._asked.ask(questions.Hush(), has_enclosed=False)
    talk._asked.end()
    talk._is_locking = talk._is_preparing = False
    return channel, talk


@pytest.mark.parametrize("kind", [kind for kind in TOLD if kind not in SENT_ELSEWHERE])
def test_what_agents_send_is_in_the_table(kind: str) -> None:
    _, talk = asked(encode({"type": kind, **TOLD[kind]}, DATA.get(kind, b"")))
    if kind == "adopted":
        talk._asked.adopt(Node(rank=RANK, label="echo/0", sockets=1))
    assert not [event for event in talk.events() if isinstance(event, Lost) and "protocol" in event.reason]


def applying(*kinds: str, **changed: Any) -> list[Any]:
    """Return the events of a session whose host was sent one step, after messages of these kinds."""
    told = [encode({"type": kind, **TOLD[kind], **(changed if kind == kinds[-1] else {})}) for kind in kinds]
    _, talk = begun(*told)
    talk._asked.begin(0)
    talk._asked.apply([Step(module="uv", apply="true", files=(HostFile(path="~/a", data=b"x"),))])
    talk._steps = talk._asked._modules
    talk._may_come_back = False
    return list(talk.events())


def test_messages_about_the_steps_of_modules_are_in_the_table() -> None:
    begins, applies, applied, lost = applying("step", "applying", "wants-files", "applied")
    assert [event.state for event in (begins, applies)] == ["check", "apply"]
    assert (applied.facts, applied.applied) == (("3.11",), (0,))
    assert "protocol" not in lost.reason


@pytest.mark.parametrize(
    ("kinds", "changed"),
    [
        (("applying",), {}),  # no step has begun
        (("step", "applying"), {"step": 1}),
        (("step", "wants-files"), {}),  # it is not applied
        (("step", "applying", "wants-files", "wants-files"), {}),  # they come once
        (("step", "applied"), {"facts": []}),
        (("step", "applied"), {"applied": [1]}),
        (("step", "applied", "applied"), {}),
        (("step", "step"), {"number": 1}),
    ],
)
def test_messages_about_steps_that_were_not_asked_for_are_refused(
    kinds: tuple[str, ...], changed: dict[str, Any]
) -> None:
    *_, lost = applying(*kinds, **changed)
    assert isinstance(lost, Lost)
    assert "does not speak our protocol" in lost.reason


def test_every_message_of_the_table_is_tried() -> None:
    assert set(TOLD) == {message.NAME for message in ANSWERS}


@pytest.mark.parametrize("name", sorted({*TOLD} - {"beat", "notice", "stopped", "failed", "no-door", "clear", "gone"}))
def test_what_nobody_has_asked_for_is_refused(name: str) -> None:
    _, talk = begun(encode({"type": name, **TOLD[name]}, DATA.get(name, b"")))
    talk._may_come_back = False
    (lost,) = talk.events()
    assert isinstance(lost, Lost)
    assert "does not speak our protocol" in lost.reason


@pytest.mark.parametrize(("question", "answer"), QUESTIONS, ids=[question.NAME for question, _ in QUESTIONS])
def test_answers(question: questions.Question[Any], answer: Any) -> None:
    assert isinstance(question.read(answer, one_line), Record)
    for changed in mutations(answer):
        with contextlib.suppress(FrameError):
            assert _is_plain(question.read(changed, one_line))


def test_every_question_is_tried() -> None:
    assert {type(question) for question, _ in QUESTIONS} == set(questions.QUESTIONS)


@pytest.mark.parametrize("spoof", SPOOFS)
def test_texts_of_a_host_are_one_plain_line(spoof: str) -> None:
    for kind, fields in TOLD.items():
        if kind in SHOWN:
            found = ANSWERS.read({"type": kind, **_with_texts(fields, spoof)}, one_line)
            assert _is_plain(found), found
    for question, answer in QUESTIONS:
        with contextlib.suppress(FrameError):  # a text of which only a few can be
            assert _is_plain(question.read(_with_texts(answer, spoof), one_line))


SHOWN = ("hello", "busy", "unfetched", "decided", "notice", "clear", "gone", "no-door", "no-agent")


def _with_texts(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {name: _with_texts(item, text) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, text) for item in value]
    return text if isinstance(value, str) else value


def _is_plain(value: Any) -> bool:
    """Whether every text in it is for people."""
    if isinstance(value, Record):
        return _is_plain(value.items())
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value.isprintable() if isinstance(value, str) else True


def _texts_are_plain(event: Lost | PrepareFailed) -> bool:
    return _is_plain(vars(event) if hasattr(event, "__dict__") else {})


@given(st.text())
@example("a\u2028b\x1b]0;title\x07\ud800")
def test_one_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert one_line(one_line(text)) == one_line(text)


# ---- limits before memory is taken


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"output","rank":0,"stream":"stdout","size":%d}\n' % (1 << 40),
        b'{"type":"hello","size":%d}\n' % (1 << 30),
        b'{"type":"lacks","attempt":0,"size":%d}\n' % (1 << 30),
        b'{"type":"notice","text":"',
        b"x" * 100,
    ],
    ids=["output", "no data", "lacks", "a header", "no newline"],
)
def test_a_message_that_is_too_long_is_refused_before_it_has_come(frame: bytes) -> None:
    rest = [b"a" * (1 << 16)] * 1000
    channel, talk = begun(frame, *rest)
    tracemalloc.start()
    try:
        (lost,) = talk.events()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(lost, Lost)
    assert len(channel._told) > 900


def test_compressed_data_is_not_unpacked_beyond_its_limit() -> None:
    bomb = zlib.compress(b"[" + b" " * (8 * LACKS_BYTES) + b"]")
    _, talk = asked(encode({"type": "lacks", "attempt": 0}, bomb))
    tracemalloc.start()
    try:
        (lost,) = [event for event in talk.events() if isinstance(event, Lost)]
        assert tracemalloc.get_traced_memory()[1] < 4 * LACKS_BYTES
    finally:
        tracemalloc.stop()
    assert "does not end within" in lost.reason


# ---- requests


def test_a_header_is_read_as_long_as_it_may_be() -> None:
    frame = encode({"type": "a", "text": "x" * 100})
    assert Decoder({}, len(frame)).feed(frame)
    with pytest.raises(FrameError):
        Decoder({}, 50).feed(frame)


REQUEST = st.sampled_from(sorted({"ask", *(message.NAME for message in REQUESTS)}))
ANYTHING = st.recursive(
    st.sampled_from(IMPOSSIBLE) | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(REQUEST, st.dictionaries(st.sampled_from(["n", "rank", "argv", "grace", "signal", "question", "run"]), ANYTHING))
def test_a_request_is_as_the_table_has_it_or_refused(kind: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(FrameError):
        found = REQUESTS.read({**fields, "type": kind})
        assert REQUESTS.read(found.header()) == found


def test_an_event_is_made_from_the_fields_of_its_message() -> None:
    message = ServingMessage(tree=3, port=4711)
    event = event_of(message, b"", node=1, sent=0, lacks_bytes=0, offset=0.0)
    assert event == Serving(time=event.time, node=1, tree=3, port=4711)


def test_an_event_with_a_tag_is_written_with_all_of_its_fields() -> None:
    placement = place_ranks([Host(name="a", address=""), Host(name="b", address="")], [2, 2])
    of_rank = {"event": "started", "time": 1.0, "rank": 3, "host": "b", "pid": 9}
    assert list(objects(Started(time=1.0, node=1, rank=3, pid=9), placement)) == [of_rank]
    of_host = {"event": "silent", "time": 1.0, "rank": 2, "host": "b", "seconds": 5.0}
    assert list(objects(Silent(time=1.0, node=1, seconds=5.0), placement)) == [of_host]
    of_run = {"event": "notice", "time": 1.0, "text": "x"}
    assert list(objects(Notice(time=1.0, text="x"), placement)) == [of_run]
