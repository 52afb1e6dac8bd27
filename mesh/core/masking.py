"""Masking of secret values: in texts, in streams of bytes that come in any chunks, and in events."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.events import Event, Output
from mesh.core.outcome import Outcome
from mesh.core.run import RunSpec
from mesh.core.typed import Typed

MASK = "***"
MASK_BYTES = MASK.encode()
SECRET_CHARACTERS_MIN = 8  # shorter values would be masked in words that hold them by chance
# Fields of events that the client computes with: addresses, hashes, requests of a sync.
_EXACT = {"address", "machine", "tree", "wants", "interfaces", "run", "stream", "cause", "nearest"}
E = TypeVar("E", bound=Event)
S = TypeVar("S", bound=Struct)


class Secrets:
    """The values that no output, file or message of the client may hold.

    >>> Secrets(["correct horse"]).text("--key 'correct horse'")
    "--key '***'"
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        """values: shorter ones are left out; each long line of a value is a value too, as programs print lines"""
        texts = {
            part
            for value in values
            for part in (value, *map(str.strip, value.splitlines()))
            if len(part) >= SECRET_CHARACTERS_MIN
        }
        # Longest first: where two values begin alike, the longer one is masked.
        ordered = sorted(texts, key=lambda text: (-len(text), text))
        self.values = tuple(sorted({os.fsencode(text) for text in ordered}, key=lambda value: (-len(value), value)))
        self.longest = max(map(len, self.values), default=0)  # bytes
        # Messages may quote a value, for a shell, as Python or as JSON.
        shell = (text.replace("'", "'\"'\"'") for text in ordered)  # as shlex.quote does it
        forms = {
            *ordered,
            *shell,
            *(repr(text)[1:-1] for text in ordered),
            *(json.dumps(text)[1:-1] for text in ordered),
        }
        self._texts = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))) or "(?!)")
        self._bytes = re.compile(b"|".join(map(re.escape, self.values)) or b"(?!)")

    def __bool__(self) -> bool:
        return bool(self.values)

    def text(self, text: str) -> str:
        """Return a text with all values masked."""
        return self._texts.sub(MASK, text) if self.values else text

    def data(self, data: bytes) -> bytes:
        """Return bytes with all values masked."""
        return self._bytes.sub(MASK_BYTES, data) if self.values else data

    def first_in(self, data: bytes, start: int) -> tuple[int, int] | None:
        """Return where the first value begins and ends in data, from a place on; None if there is none."""
        if not any(value in data for value in self.values):  # much faster than the expression
            return None
        found = self._bytes.search(data, start)
        return found.span() if found else None

    def open_at(self, data: bytes, start: int) -> int:
        """Return where the last bytes of data begin that are the beginning of a value; the end if they are none."""
        return min((self._open_at(value, data, start) for value in self.values), default=len(data))

    def json(self, value: object) -> object:
        """Return a value as JSON has it with all texts in it masked, keys too."""
        if not self.values:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key) if isinstance(key, str) else key: self.json(item) for key, item in value.items()}
        if isinstance(value, list):
            return list(map(self.json, value))
        if isinstance(value, tuple):
            return tuple(map(self.json, value))
        return value

    def event(self, event: E) -> E:
        """Return an event with the texts for people masked; the bytes of ``Output`` need a ``Masker``."""
        return event if not self.values or isinstance(event, Output) else self._struct(event)

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the texts masked that its decider has made of the command."""
        if not self.values:
            return outcome
        failures, unverified = tuple(map(self._struct, outcome.failures)), tuple(map(self.text, outcome.unverified))
        return replace(outcome, failures=failures, unverified=unverified)

    def _struct(self, struct: S) -> S:
        """Return the same value where nothing is masked, as some are compared by identity."""
        fields = ((name, getattr(struct, name)) for name in struct.__struct_fields__ if name not in _EXACT)
        masked = {name: (value, self._field(value)) for name, value in fields}
        changed = {name: new for name, (value, new) in masked.items() if new != value}
        return replace(struct, **changed) if changed else struct

    def _field(self, value: object) -> object:
        if isinstance(value, Struct):
            return self._struct(value)
        if isinstance(value, tuple):
            return tuple(map(self._field, value))
        return self.json(value)

    def spec(self, spec: RunSpec) -> RunSpec:
        """Return a spec with the texts masked that people read: commands, prerun and paths."""
        if not self.values:
            return spec
        groups = [replace(group, command=tuple(map(self.text, group.command))) for group in spec.groups]
        commands = [replace(one, run=self.text(one.run), unless=self.text(one.unless)) for one in spec.commands]
        prerun = [replace(entry, run=self.text(entry.run)) for entry in spec.prerun]
        workspace, ignore = Path(self.text(str(spec.workspace))), tuple(map(self.text, spec.ignore))
        texts = {"groups": tuple(groups), "commands": tuple(commands), "prerun": tuple(prerun)}
        return replace(spec, workspace=workspace, ignore=ignore, **texts)

    def typed(self, typed: Typed | None) -> Typed | None:
        """Return a command line with all values masked."""
        if typed is None or not self.values:
            return typed
        before, command, again = (tuple(map(self.text, words)) for words in (typed.before, typed.command, typed.again))
        return replace(typed, before=before, command=command, again=again)

    def _open_at(self, value: bytes, data: bytes, start: int) -> int:
        place = data.find(value[:1], max(start, len(data) - len(value) + 1))
        while place >= 0:
            if value.startswith(data[place:]):
                return place
            place = data.find(value[:1], place + 1)
        return len(data)


def after(event: Output, count: int) -> Output:
    """Return an event without the first bytes of the rank's stream; a mask stays whole.

    >>> from mesh.core.events import Stream
    >>> after(Output(time=0, node=0, rank=0, stream=Stream.STDOUT, data=b"abc"), 1).data
    b'bc'
    """
    rest = event.size - count
    is_mask = event.size != len(event.data)
    data = (event.data if rest else b"") if is_mask else event.data[count:]
    return replace(event, data=data, taken=rest)


class Piece(Struct, frozen=True):
    """Bytes to show, and how many bytes of the stream they stand for."""

    data: bytes
    taken: int


class Masker:
    """Masks one stream. The bytes of all pieces are those of the whole stream, masked at once.

    Bytes at the end of a chunk that may begin a value are held back until the next chunk, ``release`` or ``end``.

    >>> masker = Masker(Secrets(["abcdefgh"]))
    >>> list(masker.feed(b"x abc")), list(masker.feed(b"defgh y"))
    ([Piece(data=b'x ', taken=2)], [Piece(data=b'***', taken=8), Piece(data=b' y', taken=2)])
    """

    def __init__(self, secrets: Secrets, before: bytes = b"") -> None:
        """before: bytes of the stream that were shown earlier; a value may have begun in them"""
        self._secrets = secrets
        begin = secrets.open_at(before, 0)
        self._bytes = before[begin:]  # the beginning of a value: what was shown of it, and what is held back
        self._shown = len(self._bytes)

    @property
    def held(self) -> int:
        """The number of bytes that are held back."""
        return len(self._bytes) - self._shown

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Add a chunk; yield what can be shown now."""
        return self._cut(self._bytes + chunk, holds=True)

    def release(self) -> Iterator[Piece]:
        """Yield what is held back, as no more has come for some time. If more comes, the rest of a value is masked."""
        return self._cut(self._bytes, holds=False)

    def end(self) -> Iterator[Piece]:
        """Yield what is held back, as nothing follows it."""
        yield from self._cut(self._bytes, holds=False)
        self._bytes, self._shown = b"", 0

    def _cut(self, data: bytes, *, holds: bool) -> Iterator[Piece]:
        """Yield the pieces of data after the bytes that were shown. holds: keep back what may begin a value"""
        place, shown, pieces = 0, self._shown, []
        while True:
            found, open_at = self._secrets.first_in(data, place), self._secrets.open_at(data, place)
            is_last = found is None or (holds and open_at <= found[0])
            end = found[0] if found and not is_last else open_at if holds else len(data)
            begin = max(place, shown)
            if end > begin:
                pieces.append(Piece(data[begin:end], end - begin))
            if found is None or is_last:
                break
            place = found[1]
            if place > shown:
                pieces.append(Piece(MASK_BYTES, place - max(found[0], shown)))
        self._bytes, self._shown = data[open_at:], max(0, max(end, shown) - open_at)
        yield from pieces
