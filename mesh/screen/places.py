"""Places in the user's own files, for the lines of tracebacks."""

from __future__ import annotations

import re
from pathlib import Path


class LocalPlaces:
    """Replaces the path of a host's workspace in tracebacks by the user's own: on the screen, never in the logs."""

    def __init__(self, project: str, workspace: Path, here: Path) -> None:
        """project: the name of the workspace on hosts; here: the directory that shown paths are relative to"""
        self._pattern = re.compile(rf'File "[^"\n]*/workspaces/{re.escape(project)}/([^"\n]+)", line (\d+)')
        try:
            prefix = workspace.relative_to(here).as_posix()
        except ValueError:  # mesh was started in a directory of the workspace, or beside it
            prefix = workspace.as_posix()
        self._prefix = "" if prefix == "." else f"{prefix}/"

    def shown(self, text: str) -> str:
        """Return a text with local places.

        >>> places = LocalPlaces("proj-01f7", Path("/home/me/proj"), Path("/home/me/proj"))
        >>> places.shown('  File "/root/.mesh/local/0..3/workspaces/proj-01f7/train.py", line 9, in <module>')
        '  File "train.py:9", in <module>'
        """
        if 'File "' not in text:
            return text
        return self._pattern.sub(lambda match: f'File "{self._prefix}{match[1]}:{match[2]}"', text)
