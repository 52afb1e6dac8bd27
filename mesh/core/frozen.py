"""``@frozen``: a frozen dataclass that is made quickly.

For each class ``dataclasses`` writes and compiles six functions, and every command would wait for that 130 times. Here
a class gets an ``__init__`` of its own when the first value is made; what compares, hashes, tells and guards a value is
the same for all classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

T = TypeVar("T")
OWN_NAMES = frozenset(("self", "_values", "_missing"))  # of what is written

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**given: Any) -> Callable[[T], T]:
        return lambda decorator: decorator


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = True) -> type[T] | Callable[[type[T]], type[T]]:
    """Make the class a dataclass whose fields are set once, by its ``__init__``.

    kw_only: fields are given by name
    Raises TypeError for fields that would not be given to ``__init__``, or have a name that it needs.
    """

    def made(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(kw_only=kw_only, init=False, eq=False, repr=False)(cls)
        if "__init__" not in vars(made):
            setattr(made, "__init__", _init_of(made))  # noqa: B010  (mypy wants no other __init__)
        for name, method in SHARED.items():
            if name not in vars(made):
                setattr(made, name, method)
        return made

    return made if cls is None else made(cls)


def write_all() -> None:
    """Write each ``__init__`` that no value has needed: who forks does it once for all."""
    while _unwritten:
        cls = _unwritten.pop()
        cls.__init__ = _written_init(cls)


_unwritten: list[Any] = []  # classes


def _init_of(cls: Any) -> Callable[..., None]:
    """The ``__init__`` of a class, which is written at its first call."""
    for field in dataclasses.fields(cls):
        if not field.init or field.name in OWN_NAMES:
            raise TypeError(f"{cls.__qualname__}.{field.name}: no field of a frozen class")
    _unwritten.append(cls)

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        written = cls.__init__ = _written_init(cls)
        written(self, *given, **named)

    return __init__


def _written_init(cls: Any) -> Callable[..., None]:
    names: dict[str, Any] = {"_missing": dataclasses.MISSING}
    parameters, lines = ["self"], ["_values = self.__dict__"]
    for field in sorted(dataclasses.fields(cls), key=lambda field: bool(field.kw_only)):
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        value = parameter = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            parameter += f"=_default_{field.name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_new_{field.name}"] = field.default_factory
            parameter += "=_missing"
            value = f"_new_{field.name}() if {field.name} is _missing else {field.name}"
        parameters.append(parameter)
        lines.append(f"_values[{field.name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"  # what a wrong call is told with
    return made


def _set(self: Any, name: str, value: object) -> None:
    values = self.__dict__
    if name in values or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    values[name] = value


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _fields(self: Any) -> tuple[object, ...]:
    return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def _equal(self: Any, other: object) -> bool:
    return _fields(self) == _fields(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_fields(self))


def _tell(self: Any) -> str:
    told = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"


SHARED = {"__setattr__": _set, "__delattr__": _delete, "__eq__": _equal, "__hash__": _hash, "__repr__": _tell}
