"""A mapping of a YAML file, whose keys are read one by one with their types."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config import yamlfile
from mesh.config.settings import read_seconds
from mesh.config.yamlfile import Problems
from mesh.core.errors import UsageError

E = TypeVar("E", bound=Enum)


class Section:
    """The keys of one mapping. Each reader notes a problem and returns its default for a value of another kind."""

    def __init__(self, node: Node | None, where: str, names: Sequence[str], problems: Problems, about: str) -> None:
        """node: None has no keys; where: its path in the file; names: the keys that there are; about: as expected"""
        self.problems, self._where = problems, where
        self.keys = yamlfile.mapping(node, where, problems, about) if node is not None else {}
        yamlfile.known(self.keys, names, where, problems)

    def __contains__(self, key: str) -> bool:
        return key in self.keys

    def node(self, key: str) -> Node:
        """Return the value of a key that is there."""
        return self.keys[key][1]

    def where(self, key: str) -> str:
        """Return the path of a key in the file."""
        return f"{self._where}.{key}" if self._where else key

    def add(self, key: str, text: str) -> None:
        """Note a problem with the value of a key."""
        self.problems.add(self.node(key), self.where(key), text)

    def unexpected(self, key: str, expected: str) -> None:
        """Note that another kind of value was expected."""
        self.problems.unexpected(self.node(key), self.where(key), expected)

    def text(self, key: str, expected: str = "a text", default: str = "") -> str:
        """Return a text. A number counts as the text that it is written as."""
        if key not in self:
            return default
        return yamlfile.scalar(self.node(key), self.where(key), self.problems, expected) or default

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        return yamlfile.flag(self.node(key), self.where(key), self.problems) if key in self else default

    def integer(self, key: str, default: int, least: int, greatest: int, *, expected: str = "") -> int:
        """Return a whole number of a range."""
        if key not in self:
            return default
        number = whole(self.node(key))
        if number is None or not least <= number <= greatest:
            self.unexpected(key, expected or f"a whole number from {least} to {greatest}")
            return default
        return number

    def integers(self, key: str, expected: str) -> tuple[int, ...]:
        """Return whole numbers that are not negative: a list of them, or one alone."""
        if key not in self:
            return ()
        node = self.node(key)
        found = [whole(item) for item in (node.value if isinstance(node, SequenceNode) else [node])]
        if any(number is None or number < 0 for number in found):
            self.unexpected(key, expected)
        return tuple(number for number in found if number is not None)

    def texts(self, key: str, expected: str) -> tuple[str, ...]:
        """Return the texts of a list; a number counts as the text that it is written as."""
        if key not in self:
            return ()
        listed = yamlfile.items(self.node(key), self.where(key), self.problems, expected)
        return tuple(yamlfile.scalar(item, place, self.problems, "a text") for place, item in listed)

    def backoff(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """Return the first and the longest of growing pauses, in seconds."""
        return default if key not in self else _pauses(self, key) or default

    def seconds(self, key: str, default: float) -> float:
        """Return a time in seconds, which may be written as 90s, 30m, 2h or 1d."""
        if key not in self:
            return default
        found = as_seconds(self.node(key), self.where(key), self.problems)
        return default if found is None else found

    def word(self, key: str, kind: type[E], default: E) -> E:
        """Return a value of an enumeration."""
        if key not in self:
            return default
        words = {str(one.value): one for one in kind if one.value}
        found = words.get(str(self.node(key).value))
        if found is None:
            self.unexpected(key, " or ".join(words))
        return found or default

    def environment(self, key: str) -> dict[str, str]:
        """Return the names and values of variables."""
        if key not in self:
            return {}
        node = self.node(key)
        if not isinstance(node, MappingNode):
            self.unexpected(key, "variables, NAME: VALUE")
            return {}
        found = yamlfile.mapping(node, self.where(key), self.problems, "variables, NAME: VALUE")
        expected = 'a text (an empty one is "")'
        return {
            name: yamlfile.scalar(value, f"{self.where(key)}.{name}", self.problems, expected)
            for name, (_, value) in found.items()
        }


def whole(node: Node) -> int | None:
    """Return a whole number; None for anything else."""
    text = str(node.value) if isinstance(node, ScalarNode) else ""
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else None


def _pauses(section: Section, key: str) -> tuple[float, float] | None:
    """Return two times, the second not the shorter one; None after a problem was noted."""
    node, expected = section.node(key), "two times, the first and the longest, as [30s, 30m]"
    if not isinstance(node, SequenceNode) or len(node.value) != 2:
        section.unexpected(key, expected)
        return None
    first, last = (as_seconds(item, section.where(key), section.problems) for item in node.value)
    if first is None or last is None:
        return None
    if last < first:
        section.unexpected(key, expected)
        return None
    return first, last


def as_seconds(node: Node, where: str, problems: Problems) -> float | None:
    """Return a time in seconds; None and a problem for anything else."""
    text = str(node.value) if isinstance(node, ScalarNode) else ""
    try:
        found = read_seconds(where, text)
    except UsageError:
        found = None
    if found is None:
        problems.unexpected(node, where, "seconds, or a time such as 30s, 5m or 2h")
    return found
