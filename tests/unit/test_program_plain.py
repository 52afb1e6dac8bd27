"""The plain codec, which the client reads from hosts, and exceptions as data."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import os
import pathlib
import pickle
import sys
import urllib.error
import uuid
from collections import namedtuple
from typing import ClassVar

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.program.runtime import failures, plain
from mesh.program.runtime.errors import CannotTravel, Opaque, RemoteError

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.frozensets(st.integers())
    ),
)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: list[str]

    def __post_init__(self) -> None:
        assert not hasattr(sys, "made_a_point"), "a constructor was called"


class Colour(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "one other")


def there_and_back(value: object) -> object:
    body, buffers = plain.dumps(value)
    return plain.loads(body, [bytearray(one) for one in buffers])


@given(VALUES)
def test_values_arrive_as_they_are(value: object) -> None:
    assert there_and_back(value) == value


@given(st.binary(max_size=200))
def test_damaged_bytes_are_refused(data: bytes) -> None:
    try:
        plain.loads(data)
    except ValueError:
        pass


@given(VALUES, st.data())
def test_values_with_a_damaged_byte_are_refused_or_read(value: object, data: st.DataObject) -> None:
    body = bytearray(plain.dumps(value)[0])
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        plain.loads(body)
    except ValueError:
        pass


def test_own_classes_arrive_without_their_constructors() -> None:
    point = Point(1, ["a"])
    sys.made_a_point = True  # type: ignore[attr-defined]
    try:
        assert there_and_back([point, Colour.RED, Pair(1, 2)]) == [point, Colour.RED, Pair(1, 2)]
    finally:
        del sys.made_a_point  # type: ignore[attr-defined]
    assert there_and_back(pathlib.Path("/a/b")) == pathlib.Path("/a/b")


@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (300, 300)])
@pytest.mark.parametrize("kind", ["float32", "int64", "bool", "complex128", "<U3", "datetime64[s]"])
def test_arrays(kind: str, shape: tuple[int, ...]) -> None:
    array = numpy.zeros(shape, dtype=kind)
    found = there_and_back(array)
    assert isinstance(found, numpy.ndarray)
    assert (found.dtype, found.shape) == (array.dtype, shape)
    assert (found == array).all()
    if shape:
        found[...] = found  # it can be written
    scalar = there_and_back(numpy.float32(1.5))
    assert isinstance(scalar, numpy.float32)
    assert scalar == 1.5


class Hostile:
    """Runs code wherever it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 1",)


def test_other_objects_arrive_as_text_and_nothing_is_run() -> None:
    ran: list[str] = []
    watching = [True]
    sys.addaudithook(lambda name, args: ran.append(name) if watching and name == "os.system" else None)
    for value in (Hostile(), [Hostile()], numpy.array([Hostile()], dtype=object)):
        found = there_and_back(value)
        one = found[0] if isinstance(found, list) else found
        assert isinstance(one, Opaque)
        assert one.data  # which only a node reads
        assert isinstance(pickle.loads(pickle.dumps(one.text)), str)
    watching.clear()
    assert ran == []


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "sys:modules", "nowhere:Nothing", ":", "os:environ"])
def test_no_name_but_that_of_a_declared_class_is_made(name: str) -> None:
    for tag, fields in ((b"C", [name, [], []]), (b"n", [name, ["x"]]), (b"E", [name, "x"])):
        parts = b"".join(plain.dumps(field)[0] for field in fields)
        assert isinstance(plain.loads(tag + len(fields).to_bytes(8, "big") + parts), Opaque)


def test_lengths_and_depths_are_limited() -> None:
    with pytest.raises(ValueError, match="more parts than bytes"):
        plain.loads(b"l" + (1 << 60).to_bytes(8, "big"))
    with pytest.raises(ValueError, match="ends early"):
        plain.loads(b"b." + (1 << 60).to_bytes(8, "big"))
    with pytest.raises(ValueError, match="nested"):
        plain.loads((b"l" + (1).to_bytes(8, "big")) * 5000 + b"N")
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(CannotTravel):
        plain.dumps(deep)


def caught(raiser: object) -> BaseException:
    try:
        raiser()  # type: ignore[operator]
    except BaseException as error:
        return failures.rebuild(there_and_back(failures.describe(error, "actor/3", "tpu-1")))
    raise AssertionError


class Strange(Exception):
    """Its constructor takes five arguments, and it cannot be pickled."""

    def __init__(self, one: int, two: int, three: int, four: int, five: int) -> None:
        super().__init__("strange")
        self.one, self.lock = one, open  # of which the second cannot be sent


def raise_with_cause() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Strange(1, 2, 3, 4, 5) from error


def test_exceptions_keep_class_cause_and_traceback() -> None:
    error = caught(raise_with_cause)
    assert isinstance(error, Strange)
    assert isinstance(error, RemoteError)
    assert (error.one, error.label, error.host, str(error)) == (1, "actor/3", "tpu-1", "strange")
    assert isinstance(error.__cause__, KeyError)
    assert "raise_with_cause" in error.traceback
    assert "test_program_plain.py" in failures.printed(error)
    assert failures.printed(error).index("raise_with_cause") < failures.printed(error).rindex("Strange")


def raise_http() -> None:
    raise urllib.error.HTTPError("http://a", 404, "gone", {}, None)  # type: ignore[arg-type]


def raise_unicode() -> None:
    b"\xff".decode()


def raise_os() -> None:
    raise FileNotFoundError(2, "No such file", "/nowhere")


def test_exceptions_of_python_keep_their_fields() -> None:
    error = caught(raise_http)
    assert isinstance(error, urllib.error.HTTPError)
    assert (error.code, str(error)) == (404, "HTTP Error 404: gone")
    missing = caught(raise_os)
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (2, "/nowhere")
    decoding = caught(raise_unicode)
    assert isinstance(decoding, UnicodeDecodeError)
    assert (decoding.start, decoding.end) == (0, 1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions came with Python 3.11")
def test_groups_of_exceptions() -> None:
    def raise_group() -> None:
        raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])  # noqa: F821

    error = caught(raise_group)
    assert isinstance(error, ExceptionGroup)  # noqa: F821
    assert [type(one).__mro__[1] for one in error.exceptions] == [ValueError, KeyError]


def raise_unknown() -> None:
    raise type("Elsewhere", (Exception,), {"__module__": "not_imported_here"})("text")


def test_an_exception_of_a_class_that_is_not_imported_is_a_remote_error() -> None:
    error = caught(raise_unknown)
    assert type(error) is RemoteError
    assert (error.type_name, str(error)) == ("not_imported_here:Elsewhere", "text")


@dataclasses.dataclass
class Counted:
    value: int
    made: ClassVar[int] = 0


def test_a_dataclass_with_a_class_variable_arrives_as_itself() -> None:
    assert there_and_back(Counted(3)) == Counted(3)


class Titled(Exception):
    @property
    def text(self) -> str:
        return "a text of its own"


def test_an_exception_whose_properties_have_our_names_keeps_its_class() -> None:
    error = failures.rebuild(there_and_back(failures.describe(Titled("x"), "actor/0", "h")))
    assert isinstance(error, Titled)
    assert (str(error), error.text) == ("x", "a text of its own")


def test_special_numbers() -> None:
    assert there_and_back(math.inf) == math.inf
    assert str(there_and_back(decimal.Decimal("NaN"))) == "NaN"
    assert there_and_back(uuid.UUID(int=5)) == uuid.UUID(int=5)
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime(2026, 1, 1, tzinfo=zone)
    assert there_and_back(moment) == moment
