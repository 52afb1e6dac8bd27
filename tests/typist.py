"""Commands of mesh, typed one after the other: each in a fork of a process that has imported mesh already.

    python -m tests.typist FILE

Each line of the file is a command line, or the text of a file for the next command: ``NAME: TEXT``, with ``\\n`` in the
text and ``__`` for a dot in the name.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import mesh.api.running
import mesh.cli.program
import mesh.engine.launcher
from mesh.__main__ import main

LOADED = (mesh.api.running, mesh.cli.program, mesh.engine.launcher)  # what most commands import


def typed(line: str) -> None:
    """Run a command to its end; write its line, its output and its status."""
    print(f"$ {line}", flush=True)
    child = os.fork()
    if not child:
        sys.argv = shlex.split(line)
        try:
            main()
        except SystemExit as end:  # its streams are flushed
            os._exit(end.code if isinstance(end.code, int) else 1)
    _, status = os.waitpid(child, 0)
    print(f"[{os.waitstatus_to_exitcode(status)}]\n", flush=True)


def play(lines: list[str]) -> None:
    """Type all lines in this directory."""
    written: list[Path] = []
    for line in lines:
        if line.startswith("mesh "):
            typed(line)
            while written:
                written.pop().unlink(missing_ok=True)
            continue
        name, _, text = line.partition(": ")
        written.append(Path(name.replace("__", ".")))
        written[-1].write_text(text.replace("\\n", "\n") + "\n")
        print(f"({written[-1]}: {text})", flush=True)


if __name__ == "__main__":
    play(Path(sys.argv[1]).read_text().splitlines())
