"""The output of nodes as text, from the directory of their run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mesh.api.records import find_record
from mesh.core.errors import MeshError
from mesh.core.escapes import plain
from mesh.core.events import Output, Stream
from mesh.rundir.replay import Replay

TAIL_BYTES, LINES_SHOWN = 4096, 10


class LastLines:
    """The last lines of each rank, for errors about its end."""

    def __init__(self) -> None:
        """Start without any."""
        self._tails: dict[int, bytes] = {}

    def add(self, rank: int, data: bytes) -> None:
        """Note output of a rank."""
        self._tails[rank] = (self._tails.get(rank, b"") + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    def forget(self, rank: int) -> None:
        """Forget the output of a process, as a new one begins."""
        self._tails.pop(rank, None)

    def below(self, rank: int) -> str:
        """Return the last lines, each behind a line break and indented; "": it has printed nothing.

        >>> lines = LastLines()
        >>> lines.add(0, b"one\\ntwo\\n")
        >>> lines.below(0), lines.below(1)
        ('\\n    one\\n    two', '')
        """
        lines = plain(self._tails.get(rank, b"").decode("utf-8", "replace")).splitlines()
        found = [line.rstrip() for line in lines if line.strip()][-LINES_SHOWN:]
        return "".join(f"\n    {line}" for line in found)


def output_of(run: str, labels: Mapping[int, str], *, only_stderr: bool) -> str:
    """Return the output of some ranks of a run up to now. labels: of these ranks

    Raises MeshError if the directory of the run is not there, or cannot be read.
    """
    record = find_record(run, is_exact=True)
    if record is None:
        raise MeshError(f"run {run} has no directory on this machine", hint="mesh runs")
    streams = (Stream.STDERR,) if only_stderr else (Stream.STDOUT, Stream.STDERR)
    replay = Replay(record, streams=streams, ranks=set(labels))
    try:
        return text_of(labels, [*replay.advance(), *replay.rest()])
    except OSError as error:
        raise MeshError(f"cannot read the logs of run {run}: {error}", hint=f"mesh logs {run}") from error
    finally:
        replay.close()


def text_of(labels: Mapping[int, str], outputs: Iterable[Output]) -> str:
    """Return output as text; with several ranks each line begins with its label.

    >>> put = lambda rank, data: Output(time=0.0, node=0, rank=rank, stream=Stream.STDOUT, data=data)
    >>> text_of({0: "actor/0", 1: "actor/1"}, [put(0, b"one"), put(1, b"two\\n"), put(0, b"!\\n")])
    '[actor/1] two\\n[actor/0] one!\\n'
    """
    if len(labels) == 1:
        return b"".join(output.data for output in outputs).decode("utf-8", "replace")
    lines: list[tuple[int, bytes]] = []
    begun: dict[tuple[int, Stream], bytes] = {}  # lines without an end yet
    for output in outputs:
        key = output.rank, output.stream
        *whole, begun[key] = (begun.get(key, b"") + output.data).split(b"\n")
        lines += [(output.rank, line) for line in whole]
    lines += [(rank, line) for (rank, _), line in begun.items() if line]
    return "".join(f"[{labels[rank]}] {line.decode('utf-8', 'replace')}\n" for rank, line in lines)
