"""Requests of commands to the steward, and its answers: lines of JSON over its Unix socket.

A connection carries one request. Watch has an answer for each change until the client leaves; others have one answer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw, Struct

from mesh.core.errors import MeshError
from mesh.core.job import JobSpec
from mesh.jobs.coding import decode, encode
from mesh.jobs.events import FromPeople
from mesh.jobs.place import StorePlace
from mesh.jobs.reading import Selection
from mesh.jobs.sockets import connect, socket_path
from mesh.jobs.values import Row

ANSWER_TIMEOUT_S = 60.0
READ_BYTES = 1 << 20


class StewardRequest(Struct, frozen=True, kw_only=True, tag_field="do"):
    """A request to the steward."""


class AskAbout(StewardRequest, frozen=True, kw_only=True, tag="about"):
    """A question for the steward itself."""


class AskRows(StewardRequest, frozen=True, kw_only=True, tag="rows"):
    """A question for the rows of jobs."""

    selection: Selection = Selection()


class Submit(StewardRequest, frozen=True, kw_only=True, tag="submit"):
    """New jobs, all or none."""

    specs: tuple[JobSpec, ...]


class Record(StewardRequest, frozen=True, kw_only=True, tag="record"):
    """An event of people, for some jobs."""

    jobs: tuple[int, ...]
    event: FromPeople


class Watch(StewardRequest, frozen=True, kw_only=True, tag="watch"):
    """A request for the rows of jobs now, and after each change."""

    selection: Selection = Selection()


class Poke(StewardRequest, frozen=True, kw_only=True, tag="poke"):
    """A request to look at the store now, because another process has written there."""


class StopSteward(StewardRequest, frozen=True, kw_only=True, tag="stop"):
    """A request to end the steward. Runs go on."""


AnyRequest = AskAbout | AskRows | Submit | Record | Watch | Poke | StopSteward


class About(Struct, frozen=True, kw_only=True):
    """The steward's answer about itself."""

    pid: int
    version: str
    store: str
    started: float  # seconds since the epoch
    epoch: int
    jobs: int  # that have not ended
    children: int
    trouble: tuple[str, ...] = ()  # its own errors, newest last


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer of the steward."""

    error: str = ""  # "": it did what was asked
    hint: str = ""
    exit_code: int = 0  # of the error
    about: About | None = None
    rows: list[Raw] = []


class Steward(Struct, frozen=True, kw_only=True):
    """The address of a steward."""

    path: str

    def ask(self, request: AnyRequest) -> Reply:
        """Return the answer to a request. Raises OSError if no steward answers, MeshError with its error."""
        reply = next(self.listen(request), None)
        if reply is None:
            raise ConnectionResetError("the steward ended before it answered")
        return reply

    def listen(self, request: AnyRequest) -> Iterator[Reply]:
        """Yield the answers to a request until the steward ends. Raises as `ask`."""
        with connect(self.path) as way:
            way.settimeout(ANSWER_TIMEOUT_S)
            way.sendall(encode(request).encode() + b"\n")
            for line in _lines(way, endless=isinstance(request, Watch)):
                reply = decode(line, Reply)
                if reply.error:
                    error = MeshError(reply.error, hint=reply.hint)
                    error.exit_code = reply.exit_code or MeshError.exit_code
                    raise error
                yield reply


def steward_of(environ: Mapping[str, str], place: StorePlace) -> Steward:
    """Return the address at which the steward of a store listens, if it runs. Raises MeshError."""
    return Steward(path=socket_path(environ, place))


def serving_pid(steward: Steward) -> int:
    """Return the process of the steward that answers; 0 without one."""
    try:
        about = steward.ask(AskAbout()).about
    except (OSError, MeshError):
        return 0
    return about.pid if about else 0


def rows_of(replies: Sequence[Raw]) -> list[Row]:
    """Return the rows of an answer."""
    return decode(b"[" + b",".join(bytes(one) for one in replies) + b"]", list[Row])


def _lines(way: socket.socket, *, endless: bool) -> Iterator[bytes]:
    rest: list[bytes] = []
    if endless:
        way.settimeout(None)
    while data := way.recv(READ_BYTES):
        *lines, last = data.split(b"\n")
        for line in lines:
            yield b"".join([*rest, line])
            rest = []
        rest.append(last)
