"""The logs of modules, ``logs/MODULE-HOST.log``: all that their steps print on one host."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mesh.core.cluster import Placement
from mesh.core.module import ModuleStep
from mesh.rundir.logfile import LogFile, Shelf


class ModuleLogs:
    """Writes the output of steps to the log of the module whose step the host carries out."""

    def __init__(self, directory: Path, placement: Placement, shelf: Shelf) -> None:
        self._directory, self._placement, self._shelf = directory, placement, shelf
        self._current: dict[int, LogFile] = {}  # by node
        self._logs: dict[str, LogFile] = {}  # by name

    def begin(self, event: ModuleStep) -> None:
        """Note the step that a host begins."""
        host = self._placement.hosts[event.node].name.replace("/", "_")
        name = f"{event.module}-{host}.log"
        if name not in self._logs:
            self._logs[name] = LogFile(self._directory / name, self._shelf)
        self._current[event.node] = self._logs[name]

    def add(self, node: int, data: bytes) -> None:
        """Take output of a host."""
        if node in self._current:
            self._current[node].add(data)

    def flush(self) -> None:
        """Write what waits."""
        for log in self._logs.values():
            log.flush()

    def close(self) -> None:
        """Make one file for each module and host, also where it has printed nothing."""
        for log in self._logs.values():
            log.make()
            log.finish()
            with contextlib.suppress(OSError):  # its parts stay beside it
                log.join()
                log.drop_tail()
