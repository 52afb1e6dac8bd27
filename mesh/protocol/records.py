"""Records: objects with certain fields, as plain classes that mypy checks at both ends.

A record is made with keywords, and its values are the writer's own. It is read by ``take``, which checks every value.
"""

from __future__ import annotations

from .kinds import Kind, Wrong, described
from .typed import dataclass_transform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, TypeVar, overload

    from typing_extensions import Self

    from .kinds import Clean, D, T

    R = TypeVar("R", bound="Record")

MISSING = object()  # the default of a field that must be there


class Field:
    """The declaration of a field: its kind, and what it is where none is given or read."""

    def __init__(self, kind: Kind[object], default: object = MISSING, absent: object = MISSING) -> None:
        """default: of the constructor; absent: the value where a message does not have the field"""
        self.kind, self.default = kind, default
        self.absent = default if absent is MISSING else absent

    @property
    def is_needed(self) -> bool:
        """Return True if every message has the field."""
        return self.default is MISSING


if TYPE_CHECKING:

    @overload
    def field(kind: Kind[T]) -> T: ...
    @overload
    def field(kind: Kind[T], *, default: D, absent: T | D = ...) -> T | D: ...
    def field(kind: Kind[T], *, default: object = MISSING, absent: object = MISSING) -> object: ...

else:
    field = Field


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Record:
    """An object with the fields that its class declares. A field that has its absent value is not written."""

    if TYPE_CHECKING:
        FIELDS: ClassVar[Mapping[str, Field]]
        IS_LOOSE: ClassVar[bool]
    FIELDS = {}  # noqa: RUF012
    IS_LOOSE = False  # a field that another version wrote with another value is left out, not refused

    def __init_subclass__(cls, *, loose: bool = False) -> None:
        fields: dict[str, Field] = {}
        for base in reversed(cls.__mro__[1:]):
            fields.update(base.__dict__.get("FIELDS", {}))
        for name, found in list(vars(cls).items()):
            if isinstance(found, Field):
                fields[name] = found
                if found.is_needed:
                    delattr(cls, name)
                else:
                    setattr(cls, name, found.default)
        cls.FIELDS = fields
        cls.IS_LOOSE = loose

    if not TYPE_CHECKING:

        def __init__(self, **given: object) -> None:
            for name, found in self.FIELDS.items():
                if found.is_needed and name not in given:
                    raise TypeError(f"{type(self).__name__}: no {name}")
            for name in given:
                if name not in self.FIELDS:
                    raise TypeError(f"{type(self).__name__}: {name}: no such field")
            self.__dict__.update(given)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Record) and self.items() == other.items()

    def __hash__(self) -> int:
        raise TypeError("a record has no hash, because its lists and objects have none")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.items().items())})"

    def items(self) -> dict[str, object]:
        """Return the fields by their names, also those that have their default."""
        own = self.__dict__
        return {name: own.get(name, found.default) for name, found in self.FIELDS.items()}

    def replaced(self, **values: object) -> Self:
        """Return a copy with other values of some fields."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **values)
        return made

    def to_json(self) -> object:
        """Return the record as JSON has it."""
        return fields_of(self)

    def verify(self) -> None:
        """Check what depends on several fields. Raises Wrong."""

    @classmethod
    def take(cls, value: object, clean: Clean, kinds: Mapping[str, Kind[object]] | None = None) -> Self:
        """Return the record of a JSON value. Raises Wrong.

        kinds: instead of those of the class, for some of its fields
        """
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        made = object.__new__(cls)
        own = made.__dict__
        for name, found in cls.FIELDS.items():
            if name in value:
                kind = kinds[name] if kinds and name in kinds else found.kind
                try:
                    own[name] = kind.check(value[name], clean)
                except Wrong as wrong:
                    if not cls.IS_LOOSE:
                        raise Wrong(f"{name}: {wrong}") from None
            elif found.is_needed:
                raise Wrong(f"no {name}")
            elif found.absent is not found.default:
                own[name] = found.absent
        made.verify()
        return made


class Row(Record):
    """A record that is written as a list of its values, in the order of its fields; all of them are needed."""

    def to_json(self) -> object:
        own = self.__dict__
        return [plain(own[name]) for name in self.FIELDS]

    @classmethod
    def take(cls, value: object, clean: Clean, kinds: Mapping[str, Kind[object]] | None = None) -> Self:
        if not isinstance(value, list) or len(value) != len(cls.FIELDS):
            raise Wrong(f"expected a list of {len(cls.FIELDS)} items, found {described(value)}")
        return super().take(dict(zip(cls.FIELDS, value)), clean, kinds)


def fields_of(one: Record) -> dict[str, object]:
    """Return the fields of a record as they are written, without those that have their absent value."""
    own, found = one.__dict__, {}
    for name, declared in one.FIELDS.items():
        value = own.get(name, declared.default)
        if declared.is_needed or value != declared.absent:
            found[name] = plain(value)
    return found


def plain(value: object) -> object:
    """Return a value as JSON has it: records, lists and objects all the way down."""
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def record(kind: type[R], **kinds: Kind[object]) -> Kind[R]:
    """Return the kind of a record. kinds: instead of those of its class, for some of its fields"""
    shape = "row" if issubclass(kind, Row) else "object"
    return Kind(lambda value, clean: kind.take(value, clean, kinds), f"{shape} {kind.__name__}")
