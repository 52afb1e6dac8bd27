"""The signs by which the processes of a run are found after their agent was killed: a control group, or notes."""

from __future__ import annotations

import os

from mesh.agent.process import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.process.ending import Ending
    from mesh.agent.process.notes import Notes
    from mesh.agent.run.rank import Source


class Group:
    """The control group of a run on this host; notes of its processes where there is none."""

    def __init__(self, run: str, node: int, machine: str, processes: Ending) -> None:
        """Start without either. machine: the machine's directory; processes: looked for in the group as well"""
        self._run, self._node, self._machine, self._processes = run, node, machine, processes
        self._notes: Notes | None = None

    @property
    def path(self) -> str:
        """The directory of the control group; "": there is none."""
        return self._processes.cgroup

    def make(self) -> str:
        """Make the group; return where the processes are found, "" if only notes show them."""
        if not self.path:
            self._processes.cgroup = cgroups.make(cgroups.name_of(self._run, self._node))
        where = self.path or cgroups.scope_of(cgroups.own())
        if not where:
            self._begin_notes()
        return where

    def note(self, session: int, sources: Sequence[Source]) -> None:
        """Note a process that was started, by its pid and the pipes that it prints into."""
        try:
            if self._notes is not None:
                self._notes.add(session, [source.descriptor for source in sources])
        except OSError:  # the disk is full
            pass

    def remove_notes(self) -> None:
        """Remove the notes of a run that has ended here."""
        if self._notes is not None:
            self._notes.remove()

    def _begin_notes(self) -> None:
        from mesh.agent.process.notes import Notes

        places = [os.path.join(self._machine, f"{kind}-{self._run}-{self._node}") for kind in ("bin", "share")]
        try:
            if self._notes is None:
                self._notes = Notes(self._run, self._node, places)
        except OSError:  # the client reports then that the end cannot be verified
            pass
