"""The notes of an agent about its processes, and which processes they show."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mesh.agent.base.light import dumps
from mesh.agent.process import notes
from mesh.agent.process.processes import look_at


def note_of(path: Path, session: int, start: int) -> notes.Note:
    """Write the notes of an agent whose rank led a session, and read them."""
    about = {"boot": notes.boot_id(), "namespace": notes._namespace(), "agent": [1, 0]}
    first = {"run": "r", "node": 0, **about, "began": 0, "places": []}
    lines = [first, {"session": session, "start": [start], "pipes": []}]
    path.write_text("".join(f"{dumps(line)}\n" for line in lines))
    return notes.Note(str(path))


def test_a_session_whose_number_was_given_to_another_process_is_not_the_runs(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True, env={}) as process:
        try:
            (found,) = look_at([process.pid])
            assert os.getsid(process.pid) == process.pid
            assert note_of(tmp_path / "note", process.pid, found.start).shows(found)
            assert not note_of(tmp_path / "note", process.pid, found.start - 1).shows(found)
        finally:
            process.kill()
