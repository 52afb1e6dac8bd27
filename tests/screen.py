"""A real terminal for tests: tmux, which says what a person would see."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab import eventually

TMUX = shutil.which("tmux")
# A program: mesh whose lines wait for those of slower ranks until these have ended. On a machine with much to do, equal
# lines of several ranks may come seconds apart.
PATIENT = """\
import sys
import mesh.screen.units
mesh.screen.units.HOLD_S = 60.0
from mesh.__main__ import main
sys.argv[0] = "mesh"
main()
"""


class Screen:
    """A command on a terminal of its own; a context manager."""

    def __init__(
        self, argv: Sequence[str], directory: Path, environ: Mapping[str, str], *, columns: int = 80, rows: int = 30
    ) -> None:
        """directory: where the command runs; the terminal's socket lies beside it."""
        self._tmux = [TMUX or "tmux", "-S", str(directory.parent / "tmux"), "-f", "/dev/null"]
        # What has ended stays on the screen.
        self._environ = {**environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        size = ["-x", str(columns), "-y", str(rows)]
        command = f"cd {shlex.quote(str(directory))}; {shlex.join(argv)}"
        self._do(
            "new-session", "-d", *size, command, ";", "set", "-g", "remain-on-exit", "on", ";", "set", "status", "off"
        )
        self._server = int(self._do("display", "-p", "#{pid}"))

    def text(self) -> str:
        """What is to be seen, with what has gone up, from the first line to the last that is not empty."""
        return self._captured("-J", "-S", "-")

    def coloured(self) -> str:
        """The same with its colours, as escape sequences that people can read: ``{31}error:{0}``."""
        shown = re.sub(r"\x1b\[([0-9;]*)m", r"{\1}", self._captured("-e", "-J", "-S", "-"))
        return re.sub(r"(\{0\})+", "{0}", shown.replace("{39}", "{0}").replace("{49}", ""))  # tmux writes several ends

    def in_sight(self) -> str:
        """What is to be seen now, without what has gone up."""
        return self._captured()

    def expect(self, text: str, within: float = 120.0) -> None:
        """Wait until a text is to be seen."""
        assert eventually(lambda: text in self.text(), within), f"{text!r} is not in\n{self.text()}"

    def type(self, *keys: str) -> None:
        """Press keys, as tmux calls them: "Enter", "C-c"."""
        self._do("send-keys", *keys)

    def resize(self, columns: int) -> None:
        self._do("resize-window", "-x", str(columns))

    @property
    def has_ended(self) -> bool:
        return self._do("display", "-p", "#{pane_dead}").strip() == "1"

    def wait(self, within: float = 120.0) -> None:
        """Wait until the command has ended."""
        assert eventually(lambda: self.has_ended, within), f"still running:\n{self.text()}"

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._do("kill-server")
        assert eventually(lambda: not Path(f"/proc/{self._server}").exists() or self._is_zombie(), 20.0)

    def _is_zombie(self) -> bool:
        return ") Z" in Path(f"/proc/{self._server}/stat").read_text()

    def _captured(self, *how: str) -> str:
        shown = self._do("capture-pane", "-p", *how)
        lines = [line.rstrip() for line in shown.split("\n") if "Pane is dead" not in line]
        return "\n".join(lines).strip("\n") + "\n"

    def _do(self, *words: str) -> str:
        # The runner of the tests sets COLUMNS, which counts for more than the terminal.
        others = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        done = subprocess.run(
            [*self._tmux, *words],
            env={**others, **self._environ},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout
