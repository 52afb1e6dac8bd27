"""Reading YAML with line numbers: every problem of a file has its line, and all are reported at once."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.core.errors import UsageError

MAX_DEPTH = 20  # of nested values, because an anchor may refer to itself


@dataclass
class Problems:
    """The problems found in one file (or one part of it)."""

    path: Path
    lines: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)  # lines that would be right

    def add(self, node: Node, where: str, text: str) -> None:
        """Note a problem with a value; where is its path in the file, as ``pod.hosts[2]``."""
        self.lines.append(f"{self.place(node, where)}: {text}")

    def place(self, node: Node, where: str) -> str:
        """Return the place of a value, with which messages begin."""
        return f"{self.path}:{node.start_mark.line + 1}: {where}"

    def unexpected(self, node: Node, where: str, expected: str) -> None:
        """Note that another kind of value was expected."""
        self.add(node, where, f"expected {expected}, found {found(node)}")

    def check(self) -> None:
        """Raise a UsageError with all problems, if there are any."""
        if self.lines:
            raise UsageError("\n".join(self.lines), hint="\n".join(dict.fromkeys(self.hints)))


def found(node: Node) -> str:
    """Describe a value for people: ``10.5``, ``a list``, ``nothing``."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    if _kind(node) == "null":
        return "nothing"
    text = str(node.value)
    return repr(text[:60]) if _kind(node) == "str" else text[:60]


def _kind(node: Node) -> str:
    return str(node.tag).rpartition(":")[2]


def load(path: Path) -> tuple[Node | None, Problems]:
    """Parse a file; None if it is empty. Raises UsageError if it cannot be read or is not valid YAML."""
    problems = Problems(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=f"ls -l {shlex.quote(str(path))}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error
    try:
        node = _parsed(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {error.problem}", hint=_yaml_hint(text)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {str(error) or type(error).__name__}") from error
    if node is not None and _kind(node) == "null":
        node = None
    return node, problems


@lru_cache(maxsize=8)
def _parsed(text: str) -> Node | None:
    """Parse a text. Callers must not change the result. Raises yaml.YAMLError, RecursionError and ValueError."""
    loader = yaml.SafeLoader(text)
    try:
        node: Node | None = loader.get_single_node()
        if node is not None:
            _flatten(loader, node, 0)
        return node
    finally:
        loader.dispose()


def _flatten(loader: yaml.SafeLoader, node: Node, depth: int) -> None:
    """Resolve merge keys (<<) in place."""
    if depth > MAX_DEPTH:
        raise yaml.YAMLError("nested too deeply")
    if isinstance(node, MappingNode):
        loader.flatten_mapping(node)
        for _, value in node.value:
            _flatten(loader, value, depth + 1)
    elif isinstance(node, SequenceNode):
        for value in node.value:
            _flatten(loader, value, depth + 1)


def _yaml_hint(text: str) -> str:
    if any(line.startswith("\t") for line in text.splitlines()):
        return "YAML is indented by spaces, not by tabs"
    return "a value that holds `: `, ` #`, or begins with one of *&!%@`{[ needs quotes"


def mapping(node: Node, where: str, problems: Problems, expected: str) -> dict[str, tuple[Node, Node]]:
    """Return the keys of a mapping, each with its key's and its value's node; a key that is no text is a problem."""
    if not isinstance(node, MappingNode):
        problems.unexpected(node, where, expected)
        return {}
    keys: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            problems.unexpected(key, where, "a name as key")
        elif key.value in keys:
            problems.add(key, _join(where, key.value), "is there twice")
        else:
            keys[str(key.value)] = key, value
    return keys


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def known(keys: dict[str, tuple[Node, Node]], names: Iterable[str], where: str, problems: Problems) -> None:
    """Note keys that are none of the names, with the nearest one."""
    names = list(names)
    for key, (node, _) in keys.items():
        if key not in names:
            problems.add(node, where or key, f"unknown key {key!r}{did_you_mean(key, names)}")


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return the nearest right names as the end of a message.

    >>> did_you_mean("identityfile", ["identity_file", "hosts"])
    "; did you mean 'identity_file'?"
    >>> did_you_mean("x", ["user", "hosts"])
    "; there are 'user', 'hosts'"
    """
    import difflib  # only for mistakes

    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(repr(one) for one in near) + "?"
    return "; there are " + ", ".join(repr(one) for one in names) if names else ""


def text(node: Node, where: str, problems: Problems, expected: str = "a text") -> str:
    """Read a scalar that YAML takes for text; "" and a problem otherwise."""
    if isinstance(node, ScalarNode) and _kind(node) == "str" and node.value:
        return str(node.value)
    problems.unexpected(node, where, expected)
    return ""


def quoted(text: str) -> str:
    """Return a text as a key or a list's item: plain where YAML reads that as the same text, else in quotes.

    >>> quoted("me@tpu-[0-3]:22"), quoted("no"), quoted("it's: x")
    ('me@tpu-[0-3]:22', "'no'", "'it''s: x'")
    """
    try:
        is_plain = yaml.safe_load(f"- {text}") == [text] and yaml.safe_load(f"{text}: 1") == {text: 1}
    except (yaml.YAMLError, TypeError, ValueError):  # TypeError: a list or mapping as a key
        is_plain = False
    style = '"' if "\n" in text else "'"  # one line in any case
    return text if is_plain else str(yaml.safe_dump(text, default_style=style, width=math.inf)).strip()


def number(node: Node, where: str, problems: Problems, expected: str) -> float | None:
    """Read a whole number or one with a fraction; None and a problem otherwise."""
    if isinstance(node, ScalarNode) and _kind(node) in ("int", "float"):
        try:
            return float(node.value.replace("_", ""))
        except ValueError:
            pass
    problems.unexpected(node, where, expected)
    return None


def flag(node: Node, where: str, problems: Problems) -> bool:
    """Read true or false; False and a problem otherwise."""
    if isinstance(node, ScalarNode) and _kind(node) == "bool":
        return node.value.lower() in ("yes", "true", "on")
    problems.unexpected(node, where, "true or false")
    return False


def scalar(node: Node, where: str, problems: Problems, expected: str) -> str:
    """Read any scalar but nothing, as it is written in the file; "" and a problem otherwise."""
    if isinstance(node, ScalarNode) and _kind(node) != "null":
        return str(node.value)
    problems.unexpected(node, where, expected)
    return ""


def items(node: Node, where: str, problems: Problems, expected: str) -> list[tuple[str, Node]]:
    """Return the items of a list, each with its path; a problem if it is none."""
    if not isinstance(node, SequenceNode):
        problems.unexpected(node, where, expected)
        if isinstance(node, ScalarNode) and node.value:
            problems.hints += [f"{where.rpartition('.')[2]}:", f"  - {quoted(node.value)}"]
        return []
    return [(f"{where}[{index}]", item) for index, item in enumerate(node.value)]


def texts(node: Node, where: str, problems: Problems, expected: str) -> tuple[str, ...]:
    """Read a list of texts; nothing is an empty list."""
    if _kind(node) == "null":
        return ()
    return tuple(text(item, place, problems) for place, item in items(node, where, problems, expected))
