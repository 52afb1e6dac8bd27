"""Kinds of values: the type and range of a field, as a check that returns the value or refuses it.

Every check takes a second argument, ``clean``: the filter for texts that the reader shows or logs (the kind ``SHOWN``).
Only the client shows them, and its filter is no part of the agent. So each reader gives its own filter where it reads,
and a reader that gives none cannot read such a text at all: no host's text can reach a terminal by an oversight.
"""

from __future__ import annotations

from .coding import dumps
from .typed import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar, overload

    Clean = Callable[[str], str]
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    D = TypeVar("D")
    A = TypeVar("A")
    B = TypeVar("B")
    C = TypeVar("C")
else:
    T_co = None

INFINITE = float("inf")
PLACE_MAX = 1 << 62  # bytes of a stream or a file
RANK_MAX = 1 << 24
PORT_MAX = 65535
SIGNAL_MAX = 64
NAME_CHARACTERS = 200
SHORT_CHARACTERS = 1 << 16
TEXT_CHARACTERS = 1 << 23  # of one text; Linux allows 6 MiB for all arguments of a program
LIST_ITEMS = 1 << 20
TIME_MAX_S = 1e11  # since the epoch
SPAN_MAX_S = 1e9
HASH_CHARACTERS = 128
HEXADECIMAL = "0123456789abcdef"


class Wrong(Exception):
    """A value that a message cannot have; the text names the field and the reason."""


class Kind(Generic[T_co]):
    """The kind of a value. ``check`` returns the value as it is used, or raises Wrong; ``words`` describe the kind."""

    def __init__(self, check: Callable[[object, Clean], T_co], words: str) -> None:
        self.check, self.words = check, words


def unfiltered(text: str) -> str:
    """Refuse to read a text for people without a filter."""
    raise TypeError("a reader of texts for people must give its filter")


def as_it_is(text: str) -> str:
    """Return a text unchanged: the filter of a program that passes texts on and shows none."""
    return text


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


def within(name: object, kind: Kind[T], value: object, clean: Clean) -> T:
    """Check the value of a field or of an item; name: for the message. Raises Wrong."""
    try:
        return kind.check(value, clean)
    except Wrong as wrong:
        raise Wrong(f"{name}: {wrong}") from None


def integer(least: int, most: int) -> Kind[int]:
    """Return the kind of a whole number in a range."""

    def check(value: object, clean: Clean) -> int:
        if type(value) is not int or not least <= value <= most:
            raise Wrong(f"expected a whole number from {least} to {most}, found {described(value)}")
        return value

    return Kind(check, f"integer, {_figure(least)} to {_figure(most)}")


def number(least: float, most: float) -> Kind[float]:
    """Return the kind of a number in a range; NaN is in none."""

    def check(value: object, clean: Clean) -> float:
        if type(value) not in (int, float) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise Wrong(f"expected a number from {least:g} to {most:g}, found {described(value)}")
        return float(value)

    return Kind(check, f"number, {least:g} to {most:g}")


def text(most: int = TEXT_CHARACTERS) -> Kind[str]:
    """Return the kind of a text that can be an argument, a path or the value of a variable."""

    def check(value: object, clean: Clean) -> str:
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

    return Kind(check, "text" if most == TEXT_CHARACTERS else f"text, at most {_figure(most)} characters")


def word(*choices: str) -> Kind[str]:
    """Return the kind of a text that is one of some words."""

    def check(value: object, clean: Clean) -> str:
        if not isinstance(value, str) or value not in choices:
            raise Wrong(f"expected one of {', '.join(map(repr, choices))}, found {described(value)}")
        return value

    return Kind(check, " or ".join(map(dumps, choices)))


def listed(kind: Kind[T], most: int = LIST_ITEMS, least: int = 0) -> Kind[list[T]]:
    """Return the kind of a list of values of a kind."""

    def check(value: object, clean: Clean) -> list[T]:
        if not isinstance(value, list):
            raise Wrong(f"expected a list, found {described(value)}")
        if not least <= len(value) <= most:
            raise Wrong(f"expected {least} to {most} items, found {len(value)}")
        return [within(place, kind, item, clean) for place, item in enumerate(value)]

    size = f" of {_figure(least)} to {_figure(most)} items" if (least, most) != (0, LIST_ITEMS) else ""
    return Kind(check, f"list{size}, each: {kind.words}")


def mapping(kind: Kind[T], most: int = LIST_ITEMS, name: Kind[str] | None = None) -> Kind[dict[str, T]]:
    """Return the kind of an object with any names and values of a kind. name: the kind of the names"""
    names = name or text()

    def check(value: object, clean: Clean) -> dict[str, T]:
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        if len(value) > most:
            raise Wrong(f"expected at most {most} fields, found {len(value)}")
        return {
            within("a name", names, key, clean): within(described(key), kind, item, clean)
            for key, item in value.items()
        }

    return Kind(check, f"object, each value: {kind.words}")


def named(names: Iterable[str], kind: Kind[T], *, all_needed: bool = True) -> Kind[dict[str, T]]:
    """Return the kind of an object with these names, each with a value of a kind; others are left out.

    all_needed: a missing name is refused
    """
    wanted = tuple(names)

    def check(value: object, clean: Clean) -> dict[str, T]:
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        for name in wanted:
            if all_needed and name not in value:
                raise Wrong(f"no {name}")
        return {name: within(name, kind, value[name], clean) for name in wanted if name in value}

    return Kind(check, f"object with {', '.join(f'`{name}`' for name in wanted)}, each: {kind.words}")


def nullable(kind: Kind[T]) -> Kind[T | None]:
    """Return the kind of a value that may be null."""
    return Kind(lambda value, clean: None if value is None else kind.check(value, clean), f"null, or {kind.words}")


def or_else(kind: Kind[T], instead: D) -> Kind[T | D]:
    """Return the kind of a value that another version may have written: one of another kind is replaced."""

    def check(value: object, clean: Clean) -> T | D:
        try:
            return kind.check(value, clean)
        except Wrong:
            return instead

    return Kind(check, f"{kind.words}; {dumps(instead)} for any other value")


if TYPE_CHECKING:

    @overload
    def either(first: Kind[A], second: Kind[B]) -> Kind[A | B]: ...
    @overload
    def either(first: Kind[A], second: Kind[B], third: Kind[C]) -> Kind[A | B | C]: ...
    def either(first: Kind[A], second: Kind[B], third: Kind[C] | None = None) -> Kind[A | B | C]: ...

else:

    def either(*kinds: Kind[object]) -> Kind[object]:
        """Return the kind of a value of one of some kinds; the first one that accepts it counts."""

        def check(value: object, clean: Clean) -> object:
            for kind in kinds[:-1]:
                try:
                    return kind.check(value, clean)
                except Wrong:
                    continue
            return kinds[-1].check(value, clean)

        return Kind(check, "; or ".join(kind.words for kind in kinds))


def containing(name: str, kind: Kind[object]) -> Kind[dict[str, object]]:
    """Return the kind of an object with one certain field; all others are kept unchecked, for other readers."""

    def check(value: object, clean: Clean) -> dict[str, object]:
        if not isinstance(value, dict):
            raise Wrong(f"expected an object, found {described(value)}")
        if name not in value:
            raise Wrong(f"no {name}")
        return {**value, name: within(name, kind, value[name], clean)}

    return Kind(check, f"object with `{name}` ({kind.words}), and any other fields")


def _truth(value: object, clean: Clean) -> bool:
    if type(value) is not bool:
        raise Wrong(f"expected true or false, found {described(value)}")
    return value


def _false(value: object, clean: Clean) -> bool:
    if value is not False:
        raise Wrong(f"expected false, found {described(value)}")
    return False


def _shown(value: object, clean: Clean) -> str:
    if not isinstance(value, str):
        raise Wrong(f"expected a text, found {described(value)}")
    return clean(value)


def _hash(value: object, clean: Clean) -> str:
    if not isinstance(value, str) or len(value) > HASH_CHARACTERS or value.strip(HEXADECIMAL):
        raise Wrong(f"expected a hash, found {described(value)}")
    return value


def _address(value: object, clean: Clean) -> str:
    import ipaddress  # few commands need it

    try:
        if isinstance(value, str):
            ipaddress.ip_address(value)
            return value
    except ValueError:
        pass
    raise Wrong(f"expected an address, found {described(value)}")


def _byte_path(value: object, clean: Clean) -> str:
    found = SHORT_TEXT.check(value, clean)
    if not all(letter <= "\xff" for letter in found):
        raise Wrong(f"expected a path, found {described(found)}")
    return found


def _figure(figure: int) -> str:
    """Return a limit as the documents have it.

    >>> _figure(65535), _figure(1 << 24), _figure(-(1 << 62))
    ('65535', '2^24', '-2^62')
    """
    power = abs(figure).bit_length() - 1
    if power > 10 and abs(figure) == 1 << power:
        return f"{'-' if figure < 0 else ''}2^{power}"
    return str(figure)


ANYTHING: Kind[object] = Kind(lambda value, clean: value, "any value")
TRUTH = Kind(_truth, "true or false")
FALSE = Kind(_false, "false")
SHOWN = Kind(_shown, "text for people")
HASH = Kind(_hash, f'hash: at most {HASH_CHARACTERS} hexadecimal digits, "" for none')
ADDRESS = Kind(_address, "IP address")
TEXT = text()
SHORT_TEXT = text(SHORT_CHARACTERS)
BYTE_PATH = Kind(_byte_path, f"path, each byte as one character, at most {_figure(SHORT_CHARACTERS)}")
NAME = text(NAME_CHARACTERS)
PATH = text(4096)  # linux/limits.h
CREDENTIALS = text(1 << 16)
TEXTS = listed(TEXT)
LINES = listed(SHOWN)
VARIABLES = mapping(TEXT)
OBJECT = mapping(ANYTHING)
SECONDS = number(0.0, INFINITE)
TIME = number(0.0, TIME_MAX_S)
SPAN = number(0.0, SPAN_MAX_S)
COUNT = integer(0, PLACE_MAX)  # bytes, files and places in a stream
SIGNED = integer(-PLACE_MAX, PLACE_MAX)
RANK = integer(0, RANK_MAX)
RANK_OR_NONE = integer(-1, RANK_MAX)  # -1: none
PID = integer(1, 1 << 31)
PORT = integer(0, PORT_MAX)  # 0: any
OPEN_PORT = integer(1, PORT_MAX)
STATUS = integer(0, 255)
SIGNAL = integer(1, SIGNAL_MAX)
END_SIGNAL = integer(0, 2 * SIGNAL_MAX)  # 0: unknown
CAUSE = word(
    "completed", "rank", "lost", "timeout", "signal", "prepare", "busy", "output-closed", "detached", "program"
)
