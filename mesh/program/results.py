"""The report of a node: its value or its failure, as its process has written it."""

from __future__ import annotations

from mesh.program.runtime import frames, plain


def read_result(data: bytes) -> tuple[str, object]:
    """Return the kind and the value of a node's report. Raises ValueError for a damaged one."""
    view = memoryview(data)
    place = 0

    def fill(memory: memoryview) -> None:
        nonlocal place
        if memory.nbytes > len(view) - place:
            raise ValueError("it ends early")
        memory[:] = view[place : place + memory.nbytes]
        place += memory.nbytes

    frame = frames.read_frame(fill)
    report = plain.loads(frame.body, frame.buffers)
    if not (isinstance(report, tuple) and len(report) == 2):
        raise ValueError("no report")
    return str(report[0]), report[1]
