"""The lock of the machine, and what a run holds together with it: its control group, and the ports for its ranks."""

from __future__ import annotations

import errno
import os
import time

from mesh.agent.base.directories import is_home_read_only, known_tree, stand_in
from mesh.agent.base.errors import hint, why
from mesh.agent.base.lock import Busy, MachineLock
from mesh.agent.run.facts import LockReleased, LockTaken
from mesh.protocol import answers
from mesh.protocol.kinds import as_it_is
from mesh.protocol.messages import read_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from mesh.agent.base.background import Answer
    from mesh.agent.base.directories import Directories
    from mesh.agent.control.neighbours import Announcement
    from mesh.agent.loop import Loop
    from mesh.agent.nodes.nodes import Nodes
    from mesh.agent.port import LockPort
    from mesh.agent.run.group import Group
    from mesh.agent.run.network import Ports
    from mesh.protocol.first import Begin
    from mesh.protocol.nodes import NodeSockets

    Others = List[answers.OtherUser]

RELEASE_LIMIT_S = 5.0  # for the agent of a run that has been ended to release the lock
LOCK_POLL_S = 0.004


class Locking:
    """The lock from the client's request for it until the run has ended here, or another host is busy."""

    def __init__(
        self, port: LockPort, loop: Loop, state: Directories, group: Group, begin: Begin, is_moved: bool
    ) -> None:
        """Start without the lock. is_moved: HOME is read-only, and the files of the run are in /tmp"""
        self.nodes: Nodes | None = None  # of a program, whose sockets are opened with the lock
        self._port, self._loop, self._state, self._group = port, loop, state, group
        self._begin, self._is_moved = begin, is_moved
        self._guardian_has_it = False
        self._until = 0.0  # monotonic: the end of the wait for the lock of a run that is ending; 0: not waiting
        self._ports: Ports | None = None
        self._announcement: Announcement | None = None  # to other users of the machine
        self.machine_lock = MachineLock(state.machine)
        self.is_held = False  # or none is needed

    def lock(self, take_over: str = "") -> None:
        """Make the directories, and take the machine's lock if the run takes any.

        take_over: a run whose client is over, and which is ended first
        """
        port, state = self._port, self._state
        if port.is_over:
            return
        if self._begin.existing and not os.path.isdir(state.workspace):
            advice = "a run that sends the workspace makes it: leave out what has it there already"
            port.fail("home", "there is no " + state.workspace, advice)
            return
        try:
            state.make()
            port.listen()
            if take_over:
                from mesh.agent.control.takeover import end_run

                port.background(lambda: {"left": end_run(take_over)[0]}, self._took_over)
                return
        except OSError as error:
            self._fail_at_home(error)
        else:
            if self._is_moved:
                text = f"HOME is read-only: this command works in {stand_in()}"
                port.send(answers.Notice(text=text, seconds=0))
            self._try()

    def unlock(self) -> None:
        """Release lock and ports: another host is busy, and a run that waits must not keep others waiting."""
        self.release_ports()
        if self.nodes is not None:
            self.nodes.close_sockets()
        self.release()

    def release(self) -> None:
        """Let other runs have this machine."""
        self.is_held = False
        self.withdraw()
        self.machine_lock.release()
        self._port.post(LockReleased())

    def withdraw(self) -> None:
        """Remove the file that names this run to other users."""
        if self._announcement is not None:
            self._announcement.remove()
            self._announcement = None

    def release_ports(self) -> None:
        """Release the ports, so that the ranks can have them."""
        if self._ports is not None:
            self._ports.release()

    def _fail_at_home(self, error: OSError) -> None:
        remote_dir = self._begin.remote_dir
        place = os.path.expanduser(remote_dir)
        # A server may refuse what a mount allows.
        is_refused = error.errno == errno.EROFS and error.filename == place
        if is_home_read_only(remote_dir) or (is_refused and remote_dir.startswith("~/")):
            advice = f"add to the cluster in cluster.yaml: remote_dir: {stand_in(remote_dir)}"
            self._port.fail("home", f"HOME is read-only: {place}", advice)
        else:
            self._port.fail("home", why(error), hint(error))

    def _took_over(self, answer: Answer) -> None:
        """Take the lock of a run that was ended for it."""
        if not self._port.is_over:
            self._until = time.monotonic() + RELEASE_LIMIT_S
            self._try()

    def _try_again(self) -> None:
        if not self._port.is_over:
            self._try()

    def _try(self) -> None:
        owner, until, self._until = self._begin.owner, self._until, 0.0
        try:
            if owner:
                lock = self.machine_lock.take(owner)
                if not self._guardian_has_it:
                    self._guardian_has_it = True
                    self._port.keep_open(lock)
        except Busy as busy:
            if time.monotonic() > until:
                self._report_busy(busy.owner)
            else:
                self._until = until
                self._loop.at("lock", time.monotonic() + LOCK_POLL_S, self._try_again)
        except OSError as error:
            self._port.fail("home", why(error), hint(error))
        else:
            self.is_held = True
            if owner:
                self._port.post(LockTaken())
            self._take_rest()

    def _take_rest(self) -> None:
        """Look for other users' runs, and take what belongs to the lock."""
        try:
            others = self._announce_and_look()
        except OSError as error:
            text = f"the runs of other users cannot be seen: {why(error)}"
            advice = "leave out --exclusive where no other user runs anything there"
            self._port.fail("lock", text, advice)
            return
        if others and self._begin.exclusive:
            self.unlock()
            self._report_busy(
                {"user": others[0].user, "run": others[0].run, "since": others[0].since, "other_user": True}
            )
        else:
            self._locked(others)

    def _report_busy(self, owner: dict[str, object]) -> None:
        self._port.send(answers.Busy(owner=read_record("owner", answers.Owner, owner, as_it_is)))

    def _announce_and_look(self) -> Others:
        """Name this run to other users, and return their runs. Raises OSError for a run that is to be alone."""
        if not self._begin.announce:
            return []
        from mesh.agent.control.neighbours import Announcement, others

        try:
            # Written before the look: of two runs that begin together at least one sees the other.
            self._announcement = self._announcement or Announcement(self._begin.run)
        except OSError:
            if self._begin.exclusive:
                raise
        return others()

    def _locked(self, others: Others) -> None:
        """Take what only one run may have, and report it. others: the runs of other users here"""
        where = self._group.make()
        ports: list[int] = []
        if self._begin.ports:
            from mesh.agent.run.network import Ports, Unavailable

            self._ports = Ports()
            try:
                ports = self._ports.hold(self._begin.ports)
            except Unavailable as error:
                advice = "without --master-port mesh finds a free one; `ss -tlnp` there shows who has it"
                self._port.fail("port", str(error), advice)
                return
        sockets: list[NodeSockets] = []
        try:
            sockets = self.nodes.open() if self.nodes is not None else []
        except OSError as error:
            advice = hint(error)
            if error.errno == errno.EADDRINUSE:
                advice = "ports: in cluster.yaml needs one for each node of a host; `ss -tlnp` there shows who has them"
            self._port.fail("port", f"the sockets of nodes cannot be opened: {why(error)}", advice)
            return
        self._port.send(
            answers.Locked(
                tree=known_tree(self._state.beside("record")),
                bare=self._state.is_bare(),
                cgroup=where,
                ports=ports,
                others=others,
                sockets=sockets,
            )
        )
