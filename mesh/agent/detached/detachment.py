"""The journal of a run that goes on without its client, or keeps what a client has not received."""

from __future__ import annotations

from mesh.agent.base.errors import why
from mesh.agent.process import cgroups
from mesh.agent.run.facts import Detached, DetachFailed, JournalKept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.base.directories import Directories
    from mesh.agent.base.lock import MachineLock
    from mesh.agent.link.journal import Journal
    from mesh.agent.link.outbox import Outbox
    from mesh.agent.port import Port
    from mesh.agent.run.group import Group
    from mesh.protocol.first import Begin
    from mesh.protocol.nodes import Taken


class Detachment:
    """The journal, which exists once it is wanted."""

    def __init__(
        self, port: Port, out: Outbox, state: Directories, group: Group, begin: Begin, lock: MachineLock
    ) -> None:
        """Start without a journal."""
        self._port, self._out, self._state, self._group, self._begin = port, out, state, group, begin
        self._lock = lock
        self.about = dict(begin.about)  # the run, as other clients see it
        self.taken: list[Taken] = []  # ranks that have come from other hosts
        self._journal: Journal | None = None

    def hold(self) -> None:
        """Hold all output for the journal: the client is to leave once all ranks have started. Raises OSError."""
        self._make_journal()
        self._out.hold()

    def detach(self) -> None:
        """Write the journal and the owner in the lock, so that the client may leave; post what came of it."""
        out, owner = self._out, self._begin.owner
        try:
            journal = self._make_journal()
            if owner:
                self._lock.change_owner({**owner, "detached": True})
            out.part(journal)  # there is no way back from here: steps that may fail come before
            out.move()  # ends of ranks are in the journal before the client may leave
            journal.flush()
            self.about["detached"] = True
        except OSError as error:
            self._port.post(DetachFailed(why(error)))
        else:
            self._port.post(Detached())

    def keep(self, is_empty: bool) -> None:
        """Keep output that the client has not received, as in a detached run. Without room it is lost.

        is_empty: no process of the run is left
        """
        if self._out.is_acknowledged and is_empty:
            return
        try:
            self._out.part(self._make_journal())
        except OSError:
            self._out.release()
        else:
            self._port.post(JournalKept())

    def write(self) -> bool:
        """Write all that waits to the journal; False if nothing was new."""
        if self._journal is None:
            return False
        self._out.move()
        return self._journal.flush()

    def close(self, is_wanted: bool) -> None:
        """Remove the journal unless a client will read it. Called after the outbox was closed."""
        if self._journal is not None and not is_wanted:
            self._journal.discard()

    def _make_journal(self) -> Journal:
        """Return the journal of this run, made in place of old ones if need be. Raises OSError."""
        if self._journal is None:
            from mesh.agent.base.directories import boot_id
            from mesh.agent.link.journal import Journal, journal_directory, prune
            from mesh.protocol.journal import About

            begin = self._begin
            prune(self._state.machine, begin.spool)
            cgroup = self._group.path or cgroups.scope_of(cgroups.own())
            about = About(about=self.about, plan=begin.plan, boot=boot_id(), cgroup=cgroup, taken=self.taken)
            directory = journal_directory(begin.remote_dir, begin.run, begin.node)
            self._journal = Journal(directory, begin.spool, about)
        return self._journal
