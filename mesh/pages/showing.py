"""Text of hosts for a page: without control sequences, with its colours as spans, and with marks made visible."""

from __future__ import annotations

import re

from mesh.core.escapes import clean_lines

Spans = list[tuple[str, str]]  # a class of the style sheet, "" for none, and a text

# Marks that change the direction of text, and characters without a width: they could make a line read as another one.
_MARKS = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")
_COLOUR = re.compile(r"\x1b\[([0-9;:]*)m")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def visible(text: str) -> str:
    r"""Return a line with its marks as their code points.

    >>> visible("a\u202eb\x07")
    'a<U+202E>b\x07'
    """
    return _MARKS.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def cleaned(data: bytes) -> str:
    """Return a line of a rank as a terminal shows it. Only colours are left of its control sequences."""
    text = data.decode("utf-8", "replace")
    if "\x1b" in text or "\r" in text or not text.isprintable():
        text = clean_lines(text)
    return text if text.isascii() else visible(text)


def plain(text: str) -> str:
    """Return a cleaned line without its colours."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def spans(text: str) -> Spans:
    r"""Return a cleaned line as spans of one colour each.

    >>> spans("a \x1b[1;31mred\x1b[0m b")
    [('', 'a '), ('bold red', 'red'), ('', ' b')]
    """
    if "\x1b" not in text:
        return [("", text)]
    found: Spans = []
    colour, bold, place = "", False, 0
    for match in _COLOUR.finditer(text):
        _add(found, colour, bold, text[place : match.start()])
        place = match.end()
        colour, bold = _after(match[1], colour, bold)
    _add(found, colour, bold, text[place:])
    return found


def _add(found: Spans, colour: str, bold: bool, text: str) -> None:
    if text:
        found.append((f"{'bold ' if bold else ''}{colour}".strip(), text))


def _after(codes: str, colour: str, bold: bool) -> tuple[str, bool]:
    """Return the colour after a sequence (ECMA-48, SGR). Colours of large palettes have no class and are ignored."""
    numbers = [int(code) if code.isdecimal() else 0 for code in codes.replace(":", ";").split(";")]
    place = 0
    while place < len(numbers):
        number = numbers[place]
        if number in (38, 48):
            place += {5: 3, 2: 5}.get(numbers[place + 1] if place + 1 < len(numbers) else 0, len(numbers))
            continue
        if number == 0:
            colour, bold = "", False
        elif number in (1, 22):
            bold = number == 1
        elif number == 39:
            colour = ""
        elif 30 <= number <= 37:
            colour = _NAMES[number - 30]
        elif 90 <= number <= 97:
            colour = _NAMES[number - 90]
        place += 1
    return colour, bold
