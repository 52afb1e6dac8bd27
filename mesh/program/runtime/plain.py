"""Values as bytes that can be read without running any code of their sender.

The client reads only this codec from hosts. Numbers, text, bytes, containers, dates, paths, enumerations, numpy arrays,
dataclasses and named tuples arrive as they are; classes only if this process has imported them already. No constructor
and no ``__setstate__`` is called. Any other value arrives as ``Opaque``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import io
import mmap
import pathlib
import pickle
import struct
import sys
import uuid
from typing import Callable, Dict, List, Sequence, Tuple, Union

from mesh.program.runtime.errors import CannotTravel, Opaque

DEPTH_LIMIT = 200  # of containers in each other
BUFFER_BYTES = 65536  # a value of at least this size travels beside the body
TEXT_CHARACTERS = 10000  # of an opaque value
MAIN_MODULES = ("__main__", "__mesh_main__")
ARRAY_KINDS = "biufcSUmM"  # of numpy: no objects, and no records, which can hold objects

Buffer = memoryview
Memory = Union[bytes, bytearray, memoryview, mmap.mmap]
# Classes of the runtime that travel by name: class -> (tag, its fields), tag -> its maker.
Fields = Tuple[object, ...]
WRITERS: Dict[type, Tuple[str, Callable[[object], Fields]]] = {}
READERS: Dict[str, Callable[..., object]] = {}


def dumps(value: object) -> Tuple[bytes, List[Buffer]]:
    """Return a value as a body, and its large parts as buffers. Raises CannotTravel if it is nested too deeply."""
    writer = _Writer()
    writer.write(value, 0)
    return writer.body.getvalue(), writer.buffers


def loads(body: Memory, buffers: Sequence[object] = ()) -> object:
    """Return the value of a body and its buffers. Raises ValueError if they are damaged."""
    reader = _Reader(memoryview(body), buffers)
    try:
        value = reader.read(0)
    except (struct.error, IndexError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"damaged value: {error}") from error
    if reader.place != len(reader.body):
        raise ValueError("damaged value: bytes after its end")
    return value


def type_name(kind: type) -> str:
    """Return the name of a class as it travels: the module and the qualified name."""
    module = "__main__" if kind.__module__ in MAIN_MODULES else kind.__module__
    return f"{module}:{kind.__qualname__}"


def find_class(name: str) -> "type | None":
    """Return the class of a name if this process has imported it already; no code is run to find it."""
    module_name, _, path = name.partition(":")
    module = sys.modules.get(module_name)
    if module_name == "__main__" and "__mesh_main__" in sys.modules:
        module = sys.modules["__mesh_main__"]
    found: object = module
    for part in path.split("."):
        space = getattr(type(found), "__dict__", None) if found is None else vars_of(found)
        found = space.get(part) if isinstance(space, dict) else None
    return found if isinstance(found, type) else None


def vars_of(found: object) -> "dict[str, object]":
    """Return the namespace of a module or class, without calling anything of it."""
    if isinstance(found, type):
        return dict(type.__getattribute__(found, "__dict__"))
    if type(found) is type(sys):
        return dict(object.__getattribute__(found, "__dict__"))
    return {}


class _Writer:
    """Writes values behind each other."""

    def __init__(self) -> None:
        self.body, self.buffers = io.BytesIO(), []  # type: io.BytesIO, List[Buffer]

    def write(self, value: object, depth: int) -> None:
        if depth > DEPTH_LIMIT:
            raise CannotTravel(f"a value is nested more than {DEPTH_LIMIT} levels deep")
        kind = type(value)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            simple(self, value)
        elif kind in _CONTAINERS:
            self.many(_CONTAINERS[kind], list(value), depth)  # type: ignore[call-overload, index]
        elif kind is dict:
            assert isinstance(value, dict)
            self.many(b"d", [part for pair in value.items() for part in pair], depth)
        else:
            self._other(value, kind, depth)

    def many(self, tag: bytes, parts: Sequence[object], depth: int) -> None:
        self.body.write(tag + struct.pack(">Q", len(parts)))
        for part in parts:
            self.write(part, depth + 1)

    def bytes(self, tag: bytes, data: "bytes | memoryview") -> None:
        """Write data with its length, or beside the body if it is large."""
        if len(data) >= BUFFER_BYTES:
            self.body.write(tag + b"@" + struct.pack(">Q", len(self.buffers)))
            self.buffers.append(memoryview(data))
        else:
            self.body.write(tag + b"." + struct.pack(">Q", len(data)))
            self.body.write(data)

    def _other(self, value: object, kind: type, depth: int) -> None:
        array = _as_array(value, kind)
        if array is not None:
            self._array(array, kind, depth)
        elif kind in WRITERS:
            tag, fields = WRITERS[kind]
            self.many(b"H", [tag, *fields(value)], depth)
        elif isinstance(value, enum.Enum):
            self.many(b"E", [type_name(kind), value.name], depth)
        elif dataclasses.is_dataclass(value):
            names = [one.name for one in dataclasses.fields(value)]
            self.many(b"C", [type_name(kind), names, [getattr(value, name) for name in names]], depth)
        elif isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
            self.many(b"n", [type_name(kind), list(value)], depth)
        elif isinstance(value, pathlib.PurePath):
            self.many(b"P", [str(value)], depth)
        elif isinstance(value, Opaque):
            self.many(b"O", [value.type_name, value.text, value.data], depth)
        else:
            self._opaque(value, kind, depth)

    def _opaque(self, value: object, kind: type, depth: int) -> None:
        try:
            text = repr(value)[:TEXT_CHARACTERS]
        except Exception as error:
            text = f"<no text: {type(error).__name__}>"
        try:
            data = pickle.dumps(value, protocol=5)
        except Exception:
            data = b""
        self.many(b"O", [type_name(kind), text, data], depth)

    def _array(self, array: "object", kind: type, depth: int) -> None:
        import numpy

        assert isinstance(array, (numpy.ndarray, numpy.generic))
        is_scalar = isinstance(array, numpy.generic)
        flat = numpy.ascontiguousarray(array)
        shape = [] if is_scalar else list(array.shape)
        self.many(b"G" if is_scalar else b"A", [flat.dtype.str, shape], depth)
        self.bytes(b"b", flat.reshape(-1).view(numpy.uint8).data if flat.size else b"")


def _as_array(value: object, kind: type) -> object:
    """Return a numpy array for a value that is one, or can be one without losing anything; None: it cannot."""
    root = kind.__module__.partition(".")[0]
    if root not in ("numpy", "jax", "jaxlib", "torch"):
        return None
    import numpy

    if root == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    elif root != "numpy" and hasattr(value, "__array__"):
        value = numpy.asarray(value)
    if isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in ARRAY_KINDS:
        return value
    return None


def _write_int(writer: _Writer, value: object) -> None:
    assert isinstance(value, int)
    writer.bytes(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _write_text(tag: bytes, text: "Callable[[object], str]") -> "Callable[[_Writer, object], None]":
    return lambda writer, value: writer.bytes(tag, text(value).encode("utf-8", "surrogatepass"))


def _write_time(writer: _Writer, value: object) -> None:
    assert isinstance(value, datetime.timedelta)
    writer.body.write(b"x" + struct.pack(">qqq", value.days, value.seconds, value.microseconds))


_CONTAINERS = {list: b"l", tuple: b"t", set: b"S", frozenset: b"R"}
_SIMPLE: "Dict[type, Callable[[_Writer, object], object]]" = {
    type(None): lambda writer, value: writer.body.write(b"N"),
    bool: lambda writer, value: writer.body.write(b"T" if value else b"F"),
    int: _write_int,
    float: lambda writer, value: writer.body.write(b"f" + struct.pack(">d", value)),
    complex: lambda writer, value: writer.body.write(b"c" + struct.pack(">dd", value.real, value.imag)),  # type: ignore[attr-defined]
    str: _write_text(b"s", lambda value: value),  # type: ignore[arg-type, return-value]
    bytes: lambda writer, value: writer.bytes(b"b", value),  # type: ignore[arg-type]
    bytearray: lambda writer, value: writer.bytes(b"B", value),  # type: ignore[arg-type]
    datetime.datetime: _write_text(b"D", lambda value: value.isoformat()),  # type: ignore[attr-defined]
    datetime.date: _write_text(b"y", lambda value: value.isoformat()),  # type: ignore[attr-defined]
    datetime.time: _write_text(b"h", lambda value: value.isoformat()),  # type: ignore[attr-defined]
    datetime.timedelta: _write_time,
    decimal.Decimal: _write_text(b"M", str),
    uuid.UUID: _write_text(b"U", str),
}


class _Reader:
    """Reads values behind each other."""

    def __init__(self, body: memoryview, buffers: Sequence[object]) -> None:
        self.body, self.place, self._buffers = body, 0, buffers

    def take(self, size: int) -> memoryview:
        """Return the next bytes. Raises ValueError if there are fewer."""
        if size > len(self.body) - self.place:
            raise ValueError("damaged value: it ends early")
        self.place += size
        return self.body[self.place - size : self.place]

    def number(self) -> int:
        return int(struct.unpack(">Q", self.take(8))[0])

    def read(self, depth: int) -> object:
        if depth > DEPTH_LIMIT + 2:
            raise ValueError("damaged value: nested too deeply")
        tag = bytes(self.take(1))
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _PACKED:
            form, make = _PACKED[tag]
            return make(*struct.unpack(form, self.take(struct.calcsize(form))))
        if tag in _TEXTS:
            return _TEXTS[tag](self.data())
        maker = _MADE.get(tag)
        if maker is None:
            raise ValueError(f"damaged value: tag {tag!r}")
        count = self.number()
        if count > len(self.body) - self.place:  # each part has a byte at least
            raise ValueError("damaged value: more parts than bytes")
        parts = [self.read(depth + 1) for _ in range(count)]
        return maker(self, parts)

    def data(self) -> memoryview:
        """Return the bytes of a text, number or array."""
        way, size = bytes(self.take(1)), self.number()
        if way == b"@":
            return memoryview(self._buffers[size])  # type: ignore[arg-type]
        return self.take(size)

    def array(self, parts: "list[object]", is_scalar: bool) -> object:
        """Return the array whose head was read."""
        name, shape = parts
        if bytes(self.take(1)) != b"b" or not isinstance(name, str) or not isinstance(shape, list):
            raise ValueError("damaged value: no array")
        data = self.data()
        import numpy

        kind = numpy.dtype(name)
        if kind.kind not in ARRAY_KINDS:
            raise ValueError("damaged value: no plain array")
        flat = numpy.frombuffer(bytearray(data) if data.readonly or len(data) < BUFFER_BYTES else data, dtype=kind)
        if is_scalar:
            return flat[0]
        return flat.reshape([int(size) for size in shape])


def _dictionary(reader: _Reader, parts: "list[object]") -> object:
    return dict(zip(parts[::2], parts[1::2]))


def _opaque(reader: _Reader, parts: "list[object]") -> object:
    name, text, data = parts
    if not isinstance(name, str) or not isinstance(text, str) or not isinstance(data, bytes):
        raise ValueError("damaged value: no opaque value")
    return Opaque(name, text, data)


def _instance(reader: _Reader, parts: "list[object]") -> object:
    """Make an instance of a dataclass that this process has imported: its fields are set, and no code is called."""
    name, names, values = parts
    if not isinstance(name, str) or not isinstance(names, list) or not isinstance(values, list):
        raise ValueError("damaged value: no dataclass")
    found = find_class(name)
    is_known = found is not None and "__dataclass_fields__" in vars_of(found)
    fields = {one.name for one in dataclasses.fields(found)} if is_known else set()  # type: ignore[arg-type]
    if found is None or set(names) != fields:
        pairs = ", ".join(f"{one}={value!r}" for one, value in zip(names, values))
        return Opaque(name, f"{name.partition(':')[2]}({pairs})"[:TEXT_CHARACTERS])
    made: object = object.__new__(found)
    for one, value in zip(names, values):
        object.__setattr__(made, one, value)
    return made


def _named(reader: _Reader, parts: "list[object]") -> object:
    name, values = parts
    if not isinstance(name, str) or not isinstance(values, list):
        raise ValueError("damaged value: no named tuple")
    found = find_class(name)
    fields = vars_of(found).get("_fields") if found is not None and issubclass(found, tuple) else None
    if found is None or not isinstance(fields, tuple) or len(fields) != len(values):
        return Opaque(name, f"{name.partition(':')[2]}{tuple(values)!r}"[:TEXT_CHARACTERS])
    return tuple.__new__(found, values)


def _member(reader: _Reader, parts: "list[object]") -> object:
    name, member = parts
    if not isinstance(name, str) or not isinstance(member, str):
        raise ValueError("damaged value: no enumeration")
    found = find_class(name)
    members = vars_of(found).get("_member_map_") if found is not None and issubclass(found, enum.Enum) else None
    if not isinstance(members, dict) or member not in members:
        return Opaque(name, f"{name.partition(':')[2]}.{member}")
    return members[member]


def _registered(reader: _Reader, parts: "list[object]") -> object:
    tag, *fields = parts
    return READERS[str(tag)](*fields)


def _text(data: memoryview) -> str:
    return bytes(data).decode("utf-8", "surrogatepass")


_CONSTANTS: "Dict[bytes, object]" = {b"N": None, b"T": True, b"F": False}
_PACKED: "Dict[bytes, Tuple[str, Callable[..., object]]]" = {
    b"f": (">d", float),
    b"c": (">dd", complex),
    b"x": (">qqq", datetime.timedelta),
}
_TEXTS: "Dict[bytes, Callable[[memoryview], object]]" = {
    b"i": lambda data: int.from_bytes(data, "big", signed=True),
    b"s": _text,
    b"b": bytes,
    b"B": bytearray,
    b"D": lambda data: datetime.datetime.fromisoformat(_text(data)),
    b"y": lambda data: datetime.date.fromisoformat(_text(data)),
    b"h": lambda data: datetime.time.fromisoformat(_text(data)),
    b"M": lambda data: decimal.Decimal(_text(data)),
    b"U": lambda data: uuid.UUID(_text(data)),
}
_MADE: "Dict[bytes, Callable[[_Reader, list[object]], object]]" = {
    b"l": lambda reader, parts: parts,
    b"t": lambda reader, parts: tuple(parts),
    b"S": lambda reader, parts: set(parts),
    b"R": lambda reader, parts: frozenset(parts),
    b"d": _dictionary,
    b"A": lambda reader, parts: reader.array(parts, is_scalar=False),
    b"G": lambda reader, parts: reader.array(parts, is_scalar=True),
    b"E": _member,
    b"C": _instance,
    b"n": _named,
    b"P": lambda reader, parts: pathlib.PurePath(*map(str, parts)),
    b"O": _opaque,
    b"H": _registered,
}
