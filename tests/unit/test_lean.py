"""What agents have in place of Python's own modules, and that they do without those."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.agent.base.light import Socket, dumps, loads, quote, socketpair
from tests.conftest import REPOSITORY

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
# Regular expressions, enumerations and what needs them: several times what all of ours takes.
HEAVY = {"array", "collections", "ctypes", "enum", "functools", "hashlib", "json", "re", "signal", "socket", "typing"}


@given(VALUES)
def test_json(value: object) -> None:
    assert dumps(value) == json.dumps(value, separators=(",", ":"))
    assert loads(dumps(value)) == loads(dumps(value).encode()) == value


@pytest.mark.parametrize("text", ["", "{", '{"a":1', "[1]]", "1 2", "nothing", '"\n"', b"\xff", "[" * 5])
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        loads(text)


def test_damaged_json_where_nothing_has_imported_json() -> None:
    """Python's scanner in C then has no error of its own to raise."""
    script = """
import sys
from mesh.agent.base.light import loads
text = b'[["a",1.5,null,true,{"k":"\\\\u00e9"}],[]]'
for place in range(len(text)):
    for bit in range(8):
        damaged = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1:]
        try:
            loads(damaged)
        except ValueError:
            pass
for text in ("[" * 200_000, '"\\n"', '"' + chr(92)):
    try:
        loads(text)
        sys.exit(text[:9])
    except ValueError:
        pass
assert "json" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_json_has_not() -> None:
    with pytest.raises(TypeError):
        dumps({"a": b"bytes"})


@given(st.text())
def test_quote(word: str) -> None:
    assert shlex.split(quote(word)) == [word]


def test_sockets() -> None:
    one, other = socketpair()
    with one, other:
        one.send(b"a word")
        assert other.recv(100) == b"a word"
    assert (one.fileno(), other.fileno()) == (-1, -1)
    with Socket() as listener, Socket() as caller:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        caller.connect(listener.getsockname())
        visitor, address = listener.accept()
        with visitor:
            assert address == caller.getsockname()
            visitor.send(b"welcome")
            assert caller.recv(100) == b"welcome"


def imported_by(module: str) -> set[str]:
    """What is there once an agent has imported one of its modules; its own by their last names."""
    show = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import mesh.agent.{module}; "
        "print(*(name.replace('mesh.agent.', '') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", show], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["main", "sync.apply"])  # that a run begins with, and that a sync adds
def test_what_an_agent_imports(module: str) -> None:
    assert HEAVY.isdisjoint(imported_by(module))


def test_what_only_some_runs_need_comes_with_those() -> None:
    assert imported_by("main").isdisjoint(
        {"sync.sync", "sync.manifest", "prerun.session", "prerun.shell", "run.devices", "run.network", "link.journal"}
    )
    assert HEAVY.isdisjoint(imported_by("guardian"))
