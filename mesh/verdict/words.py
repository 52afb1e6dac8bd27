"""Python's own report of an error, found in a program's output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

# torch.distributed puts "[rank3]: " before each line of a traceback.
_LEAD = re.compile(r"^(?:\[rank\d+\]: ?)?(?:[ |+-]*\| ?)?")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
# Without a traceback: SyntaxError at the program's own text, and errors that programs print themselves.
_BARE = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit): ")
# The line that an agent writes between two processes of a rank.
STARTED_AGAIN = re.compile(r"mesh: .+: started again after (?:signal|exit) \d+, attempt \d+")
MESSAGE_LINES = 3  # of a message that has several


def of_last_process(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of a rank's last process: those after the line in which its agent names a restart.

    >>> of_last_process(["old", "mesh: rank 3: started again after signal 15, attempt 1", "new"])
    ['new']
    """
    for number in range(len(lines) - 1, -1, -1):
        if STARTED_AGAIN.fullmatch(lines[number]):
            return lines[number + 1 :]
    return lines


class Raised(Struct, frozen=True, kw_only=True):
    """An exception that ended a program."""

    error: str  # its last line: type and message
    where: str  # "train.py:88 in step": the innermost place; "" if none was printed
    lines: tuple[str, ...]  # the traceback up to and with the message


def raised(said: Sequence[str]) -> Raised | None:
    """Return the last exception in a program's last lines.

    >>> raised(["epoch 1", "Traceback (most recent call last):", '  File "/w/a.py", line 3, in step', "    f()",
    ...         "ValueError: bad shape", "bye"])  # doctest: +NORMALIZE_WHITESPACE
    Raised(error='ValueError: bad shape', where='a.py:3 in step', lines=('Traceback (most recent call last):',
           '  File "/w/a.py", line 3, in step', '    f()', 'ValueError: bad shape'))
    """
    lines = [without_lead(line) for line in said]
    begin = max((number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=-1)
    if begin < 0:
        found = [number for number, line in enumerate(lines) if _BARE.match(line)]
        return _raised(lines, found[-1], found[-1]) if found else None
    for number in range(begin + 1, len(lines)):
        if lines[number][:1].strip():
            return _raised(lines, begin, number) if _EXCEPTION.match(lines[number]) else None
    return None


def without_lead(line: str) -> str:
    """Return a line without the prefix of a launcher.

    >>> without_lead("[rank3]: ValueError: no"), without_lead("  | ValueError: no")
    ('ValueError: no', 'ValueError: no')
    """
    return _LEAD.sub("", line, count=1)


def _raised(lines: Sequence[str], begin: int, error: int) -> Raised:
    frames = [match for line in lines[max(0, begin - MESSAGE_LINES) : error] if (match := _FRAME.match(line))]
    where = ""
    if frames:
        file, number, function = frames[-1].group("file", "line", "function")
        where = f"{file.rpartition('/')[2]}:{number}" + (f" in {function}" if function else "")
    end = error + 1
    while end < min(len(lines), error + 1 + MESSAGE_LINES) and lines[end].startswith((" ", "\t")):
        end += 1  # a message of several lines
    return Raised(error=lines[error], where=where, lines=tuple(lines[begin:end]))
