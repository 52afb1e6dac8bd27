"""Ignore patterns, by git's rules (gitignore(5), and git's dir.c and wildmatch.c where the page is silent).

gitignore-parser reads a rule's flags: negated, for directories only, anchored. Its matcher differs from git's
(``build/`` matches a file there, ``\\`` is no escape, ``[!a]`` matches characters instead of bytes) and takes 20 times
longer. So the expressions are our own, over bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gitignore_parser import rule_from_pattern
from msgspec import Struct

_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\v\f\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
NEVER = rb"(?!)"


class Pattern(Struct, frozen=True):
    """A rule, for paths relative to the directory of its ignore file."""

    text: bytes  # as it was written
    place: str  # file and line
    negated: bool
    wants_directory: bool
    expression: bytes  # matches a whole path
    of_git: bool = False  # from an ignore file of git: it excludes no tracked file


def read_lines(data: bytes, place: str, *, of_git: bool = False) -> list[Pattern]:
    """Return the rules of an ignore file."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    found = (read(line.removesuffix(b"\r"), f"{place}:{number}", of_git) for number, line in enumerate(lines, 1))
    return [pattern for pattern in found if pattern is not None]


def read_ours(lines: Sequence[str], places: Sequence[str] = ()) -> list[Pattern]:
    """Return the rules of ``ignore:`` in mesh.yaml: a leading ``./`` anchors, a leading ``*/`` means any depth.

    places: file and line of each; by default its number in the list
    """
    places = places or [f"mesh.yaml: ignore[{number}]" for number in range(len(lines))]
    patterns = []
    for line, place in zip(lines, places, strict=True):
        negation, body = ("!", line[1:]) if line.startswith("!") else ("", line)
        if body.startswith("./"):
            body = body[1:]
        elif body.startswith("*/"):
            body = "*" + body
        pattern = read((negation + body).encode("utf-8", "surrogateescape"), place)
        if pattern is not None:
            patterns.append(pattern)
    return patterns


def read(line: bytes, place: str, of_git: bool = False) -> Pattern | None:
    """Parse one line; return None if it is no rule."""
    line = _without_trailing_spaces(line)
    if not line or line.startswith(b"#"):
        return None
    negated, wants_directory, anchored = line.startswith(b"!"), False, False
    if line.removeprefix(b"!").strip(b"/"):
        rule = rule_from_pattern(_skeleton(line))
        negated, wants_directory, anchored = rule.negation, rule.directory_only, rule.anchored
    body = line[1:] if negated else line
    body = body.removesuffix(b"/") if wants_directory else body
    expression = _translate(body.removeprefix(b"/")) if anchored else _anywhere(body)
    return Pattern(line, place, negated, wants_directory, expression if body.strip(b"/") else NEVER, of_git)


def _skeleton(line: bytes) -> str:
    """Return the part of a pattern that decides its flags: a leading ``!``, and the positions of slashes.

    gitignore-parser fails on stars, brackets and backslashes, and reads the flags right without them.

    >>> _skeleton(b"!a/**/[b-z]\\\\/")
    '!x/xx/xxxxxx/'
    """
    return "".join(chr(c) if c == ord("/") or (c == ord("!") and not i) else "x" for i, c in enumerate(line))


def _anywhere(body: bytes) -> bytes:
    return rb"(?:.*/)?" + _translate(body)


def _without_trailing_spaces(line: bytes) -> bytes:
    """
    >>> _without_trailing_spaces(b"a b  "), _without_trailing_spaces(b"a\\\\  ")
    (b'a b', b'a\\\\ ')
    """
    end = position = 0
    while position < len(line):
        position += 2 if line[position : position + 1] == b"\\" else 1
        if line[position - 1 : position] != b" " or line[position - 2 : position - 1] == b"\\":
            end = min(position, len(line))
    return line[:end]


def _translate(body: bytes) -> bytes:
    """Translate a pattern to a regular expression over a path, as git's wildmatch with WM_PATHNAME reads it."""
    parts = []
    position = 0
    while position < len(body):
        byte = body[position : position + 1]
        if byte == b"*":
            end = position
            while body[end : end + 1] == b"*":
                end += 1
            alone = (position == 0 or body[position - 1 : position] == b"/") and body[end : end + 1] in (b"", b"/")
            if end - position > 1 and alone and end == len(body):
                parts.append(b".*")
            elif end - position > 1 and alone:
                parts.append(b"(?:.*/)?")
                end += 1  # include the slash
            else:
                parts.append(b"[^/]*")
            position = end
        elif byte == b"?":
            parts.append(b"[^/]")
            position += 1
        elif byte == b"[":
            found = _bracket(body, position + 1)
            if found is None:
                return NEVER
            expression, position = found
            parts.append(expression)
        elif byte == b"\\":
            if position + 1 == len(body):
                return NEVER
            parts.append(re.escape(body[position + 1 : position + 2]))
            position += 2
        else:
            parts.append(re.escape(byte))
            position += 1
    return b"".join(parts)


def _bracket(body: bytes, position: int) -> tuple[bytes, int] | None:
    """Return the set that begins at position, and its end; None if it never ends, or git has no such class."""
    negated = body[position : position + 1] in (b"!", b"^")
    position += negated
    members: list[bytes] = []
    last = -1  # the byte that a range would begin with
    first = True
    while True:
        byte = body[position : position + 1]
        if not byte:
            return None
        if byte == b"]" and not first:
            break
        first = False
        if byte == b"-" and last >= 0 and body[position + 1 : position + 2] not in (b"", b"]"):
            position += 1
            if body[position : position + 1] == b"\\":
                position += 1
            if position >= len(body):
                return None
            if last <= body[position]:
                members.append(b"%s-%s" % (_in_set(last), _in_set(body[position])))
            last = -1
        elif byte == b"[" and body[position + 1 : position + 2] == b":":
            end = body.find(b"]", position + 2)
            if end < 0:
                return None
            name = body[position + 2 : end]
            if not name.endswith(b":"):
                members.append(rb"\[")
                last = ord("[")
            elif name[:-1] not in _CLASSES:
                return None
            else:
                members.append(_CLASSES[name[:-1]])
                position, last = end, -1
        else:
            if byte == b"\\":
                position += 1
                if position >= len(body):
                    return None
            last = body[position]
            members.append(_in_set(last))
        position += 1
    inside = b"".join(members)
    if negated:
        return b"[^/%s]" % inside, position + 1
    return (b"(?!/)[%s]" % inside if inside else NEVER), position + 1


def _in_set(byte: int) -> bytes:
    return b"\\x%02x" % byte
