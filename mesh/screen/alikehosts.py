"""Failures of several hosts as one report, though each names facts of its host, as changed host keys do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mesh.core.events import PrepareFailed

OWN_FACTS = ("host-key",)  # steps whose messages name facts of one host, behind a colon or in parentheses
LINES_SHOWN = 10  # of hints that cannot become one line
_HEAD = re.compile(r"(.*?)(?:: | \()(.*?)\)?", re.DOTALL)


def key_of(failure: PrepareFailed) -> tuple[str, str, str]:
    """Return a value that failures have in common which are one report."""
    found = _HEAD.fullmatch(failure.message) if failure.step in OWN_FACTS else None
    return (failure.step, found[1], "") if found else (failure.step, failure.message, failure.hint)


def joined(failures: Sequence[PrepareFailed], first: str) -> tuple[str, list[str]]:
    """Return the message and the lines of the hint of failures with one key. first: the host of the first failure"""
    message, hint = failures[0].message, failures[0].hint
    found = _HEAD.fullmatch(message)
    if len(failures) > 1 and failures[0].step in OWN_FACTS and found:
        return f"{found[1]}; on {first}: {found[2]}", joined_hints([one.hint for one in failures])
    return message, hint.split("\n") if hint else []


def joined_hints(hints: Sequence[str]) -> list[str]:
    """Return the lines of several hosts' hints as those of one hint.

    >>> joined_hints(["forget it:\\nssh-keygen -R 'a' -f keys", "forget it:\\nssh-keygen -R 'b' -f keys"])
    ['forget it:', 'for host in \\'a\\' \\'b\\'; do ssh-keygen -R "$host" -f keys; done']
    """
    texts = [hint.split("\n") for hint in dict.fromkeys(hints)]
    if len({len(lines) for lines in texts}) > 1:
        return _few([line for lines in texts for line in lines])
    return [line for same in zip(*texts, strict=True) for line in _one_line(same)]


def _one_line(lines: Sequence[str]) -> Iterator[str]:
    """Yield a line that all hosts have, or a loop of the shell over the one word in which their lines differ."""
    words = [line.split(" ") for line in lines]
    places = [place for place, same in enumerate(zip(*words, strict=False)) if len(set(same)) > 1]
    if len(set(lines)) == 1:
        yield lines[0]
    elif len({len(one) for one in words}) == 1 and len(places) == 1:
        (place,) = places
        command = " ".join([*words[0][:place], '"$host"', *words[0][place + 1 :]])
        yield f"for host in {' '.join(dict.fromkeys(one[place] for one in words))}; do {command}; done"
    else:
        yield from _few(lines)


def _few(lines: Sequence[str]) -> list[str]:
    each = list(dict.fromkeys(lines))
    more = len(each) - LINES_SHOWN
    return [*each[:LINES_SHOWN], *([f"and {more} more"] if more > 0 else [])]
