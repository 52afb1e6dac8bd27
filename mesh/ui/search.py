"""A search of output in a process of its own, because some expressions take hours on a line of a few characters.

Python can neither interrupt such a match nor do anything else meanwhile. The process limits its own CPU time.
"""

from __future__ import annotations

import contextlib
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from msgspec import msgpack

from mesh.core.errors import UsageError
from mesh.core.events import Output
from mesh.rundir.grep import LineFilter

CPU_LIMIT_S = 2.0  # for one batch
BATCH_OUTPUTS, BATCH_BYTES = 512, 1 << 20
_SIZE = struct.Struct("<Q")
_OUTPUTS = msgpack.Decoder(list[Output])
HINT = "search for another expression: repeats of repeats as (a+)+ are slow"


class ChildSearch:
    """A search in a child process, which ends with this one."""

    def __init__(self, expression: str) -> None:
        """Raises re.error for a wrong expression."""
        re.compile(expression)
        self._expression = expression
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def through(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Yield the lines that match, and output without data after each batch. Raises UsageError for a slow search."""
        batch: list[Output] = []
        size = 0
        for output in outputs:
            batch.append(output)
            size += len(output.data)
            if len(batch) >= BATCH_OUTPUTS or size >= BATCH_BYTES:
                yield from self._asked(batch)
                yield Output(time=output.time, node=output.node, rank=output.rank, stream=output.stream, data=b"")
                batch, size = [], 0
        if batch:
            yield from self._asked(batch)

    def end(self) -> Iterator[Output]:
        """Yield the rest of lines that never ended. Raises UsageError for a slow search."""
        yield from self._asked([])

    def close(self) -> None:
        """Kill the process."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError, ValueError):
                    if pipe:
                        pipe.close()

    def _asked(self, batch: list[Output]) -> list[Output]:
        process = self._started()
        assert process.stdin
        assert process.stdout
        try:
            _write(process.stdin, msgpack.encode(batch))
            found = _read(process.stdout)
        except (OSError, ValueError):
            found = None
        if found is None:
            raise UsageError(f"the search took more than {CPU_LIMIT_S:g} s for a part of the output", hint=HINT)
        return _OUTPUTS.decode(found)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            if self._is_closed:
                raise UsageError("the search has ended")
            argv = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._process.stdin
            with contextlib.suppress(OSError):  # its end is seen at the first batch
                _write(self._process.stdin, self._expression.encode("utf-8", "surrogatepass"))
        return self._process


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(_SIZE.pack(len(data)) + data)
    file.flush()


def _read(file: IO[bytes]) -> bytes | None:
    """Return the next frame, None at the end."""
    head = file.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    data = file.read(size)
    return data if len(data) == size else None


def main() -> None:
    """Search batches from stdin until its end; an empty one asks for the rest."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's: it closes our stdin
    given = _read(sys.stdin.buffer)
    if given is None:
        return
    lines = LineFilter(re.compile(given.decode("utf-8", "surrogatepass")))
    while (frame := _read(sys.stdin.buffer)) is not None:
        # The kernel ends this process at the limit, also in the middle of a match.
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
        batch = _OUTPUTS.decode(frame)
        found: Iterable[Output] = (one for output in batch for one in lines.feed(output)) if batch else lines.end()
        _write(sys.stdout.buffer, msgpack.encode(list(found)))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the server has ended
        main()
