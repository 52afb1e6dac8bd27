"""Exceptions as plain data: described where they were raised, rebuilt at the caller without unpickling anything."""

from __future__ import annotations

import sys
import traceback
import types
from typing import Dict, Type

from mesh.program.runtime import plain
from mesh.program.runtime.errors import RemoteError, RemoteTraceback

CAUSES_LIMIT = 20  # of a chain of causes
TRACEBACK_CHARACTERS = 100000
Description = Dict[str, object]
_CLASSES: Dict[Type[BaseException], Type[BaseException]] = {}


def describe(error: BaseException, label: str = "", host: str = "", depth: int = 0) -> Description:
    """Return an exception as values of the plain codec. label, host: of the node that raised it"""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)) if depth == 0 else ""
    found: Description = {
        "type": plain.type_name(type(error)),
        "text": _text_of(error),
        "args": [_carried(value) for value in _arguments(error)],
        "state": {name: value for name, value in _state_of(error).items() if _is_plain(value)},
        "traceback": text[-TRACEBACK_CHARACTERS:],
        "label": label,
        "host": host,
    }
    if isinstance(error, RemoteError):  # it has come here from a third node, whose class it keeps
        found["type"] = error.type_name
        found["label"], found["host"] = error.label or label, error.host or host
    cause = error.__cause__
    if cause is not None and not isinstance(cause, RemoteTraceback) and depth < CAUSES_LIMIT:
        found["cause"] = describe(cause, label, host, depth + 1)
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and depth < CAUSES_LIMIT:
        found["group"] = [describe(one, label, host, depth + 1) for one in members if isinstance(one, BaseException)]
    return found


def rebuild(found: object) -> BaseException:
    """Return the exception of a description, as its own class and RemoteError. Raises ValueError if it is none."""
    if not isinstance(found, dict):
        raise ValueError("no description of an exception")
    kind = _class_of(str(found.get("type")))
    group = [rebuild(one) for one in _list(found.get("group"))]
    arguments = tuple(_list(found.get("args")))
    try:
        error = _made(kind, arguments, group)
    except Exception:
        error = RemoteError(*arguments)
    state = found.get("state")
    own = vars(error)  # its class may have properties of the same names
    for name, value in state.items() if isinstance(state, dict) else ():
        if isinstance(name, str):
            own[name] = value
    for name, key in (("label", "label"), ("host", "host"), ("type_name", "type"), ("text", "text")):
        own[name] = str(found.get(key, ""))
    own["traceback"] = trace = str(found.get("traceback", ""))
    cause = found.get("cause")
    error.__cause__ = rebuild(cause) if cause else None
    if trace:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        root.__cause__ = RemoteTraceback(trace)
    return error


def _made(
    kind: "Type[BaseException] | None", arguments: "tuple[object, ...]", group: "list[BaseException]"
) -> RemoteError:
    """Make an instance without calling Python code of its class."""
    if kind is None:
        return RemoteError(*arguments)
    if group:
        made = kind.__new__(kind, str(arguments[0]) if arguments else "", group)
    elif isinstance(kind.__new__, types.BuiltinFunctionType):
        made = kind.__new__(kind, *arguments)
    else:
        made = Exception.__new__(kind, *arguments)
    assert isinstance(made, RemoteError)
    if isinstance(kind.__init__, types.WrapperDescriptorType) and not group:  # written in C
        kind.__init__(made, *arguments)
    if not isinstance(made, OSError):
        made.args = arguments
    return made


def _arguments(error: BaseException) -> "tuple[object, ...]":
    """Return the arguments that make an exception; those of an OSError lack the names of files."""
    if isinstance(error, OSError) and len(error.args) == 2 and error.filename is not None:
        return (*error.args, error.filename, None, error.filename2)
    return error.args


def _class_of(name: str) -> "Type[BaseException] | None":
    """Return the class of a name, joined with RemoteError, if it is built in or imported here already."""
    kind = plain.find_class(name)
    if kind is None or not issubclass(kind, Exception) or kind is RemoteError:
        return None
    if kind not in _CLASSES:
        try:
            names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": RemoteError.__str__}
            if isinstance(kind.__init__, types.WrapperDescriptorType):
                names["__init__"] = kind.__init__
            _CLASSES[kind] = type(kind.__name__, (kind, RemoteError), names)
        except TypeError:  # its layout, or a metaclass of its own, forbids that
            return None
    return _CLASSES[kind]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"<no text: {type(failure).__name__}>"


def _state_of(error: BaseException) -> "dict[str, object]":
    skipped = ("text", "traceback", "type_name", "label", "host") if isinstance(error, RemoteError) else ()
    state = getattr(error, "__dict__", {})
    names = {name: value for name, value in state.items() if name not in skipped and isinstance(name, str)}
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _is_plain(value: object, depth: int = 0) -> bool:
    """Return True for a value that arrives as it is."""
    if isinstance(value, (list, tuple, set, frozenset)) and type(value) in (list, tuple, set, frozenset):
        return depth < 20 and all(_is_plain(one, depth + 1) for one in value)
    if type(value) is dict:
        return depth < 20 and all(_is_plain(one, depth + 1) for pair in value.items() for one in pair)
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def _carried(value: object) -> object:
    if _is_plain(value):
        return value
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _list(value: object) -> "list[object]":
    return value if isinstance(value, list) else []


def printed(error: BaseException) -> str:
    """Return the traceback as Python would print it."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def print_failure(error: BaseException, label: str) -> None:
    """Print a traceback on stderr, in one piece, as other threads print too."""
    sys.stderr.write(f"{label} failed:\n{printed(error)}" if label else printed(error))
    sys.stderr.flush()
