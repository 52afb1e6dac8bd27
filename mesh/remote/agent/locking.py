"""The lock of the machine, and what a run holds together with it: its control group, and the ports for its ranks."""

from __future__ import annotations

import errno
import os
import time

from . import cgroups
from .errand import hint, why
from .lean import partial
from .state import Busy, is_home_read_only, known_tree, machine_id, stand_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .guardian import Guardian
    from .main import Agent
    from .neighbours import Announcement
    from .network import Ports
    from .notes import Notes
    from .ranks import Source

RELEASE_LIMIT_S = 5.0  # for the agent of a run that has been ended to release the lock


class Locking:
    """Taken once the client asks for it, and given back if another host is busy."""

    def __init__(self, agent: Agent, guardian: Guardian) -> None:
        self._agent, self._guardian = agent, guardian
        self._guardian_has_it = False
        self._until = 0.0  # when we give up waiting for the lock of a run that is ending; 0: not waiting
        self._ports: Ports | None = None
        self._notes: Notes | None = None
        self._announcement: Announcement | None = None  # to other users of the machine
        self.is_held = False  # or none is needed
        self._is_silent = False  # the lock names the end of the lease, as the client is silent

    @property
    def is_waiting(self) -> bool:
        """Whether ``try_again`` is to be called soon."""
        return self._until > 0.0

    def do_lock(self, header: dict[str, Any], data: bytes) -> None:
        """Make our directories, and take the machine's lock if the run takes any.

        take_over: the run whose owner is known to be dead; it is ended first
        """
        agent = self._agent
        if agent.is_over():
            return
        if agent.begin["existing"] and not os.path.isdir(agent.state.workspace):
            told = "there is no " + agent.state.workspace
            agent.fail("home", told, "a run that sends the workspace makes it: leave out what has it there already")
            return
        try:
            agent.state.make()
            agent.visits.make_door()
            if header.get("take_over"):
                from .takeover import end_run

                agent.send_on_errand(partial(end_run, header["take_over"]), self._took_over)
                return
        except OSError as error:
            remote_dir = agent.begin["remote_dir"]
            # A server may refuse what a mount allows.
            is_refused = error.errno == errno.EROFS and error.filename == os.path.expanduser(remote_dir)
            if is_home_read_only(remote_dir) or (is_refused and remote_dir.startswith("~/")):
                told = f"add to the cluster in cluster.yaml: remote_dir: {stand_in(remote_dir)}"
                agent.fail("home", f"HOME is read-only: {os.path.expanduser(remote_dir)}", told)
            else:
                agent.fail("home", why(error), hint(error))
        else:
            if agent.is_moved:
                told = f"HOME is read-only: this command works in {stand_in()}"
                agent.out.send({"type": "notice", "text": told, "seconds": 0})
            self._try()

    def _took_over(self, ended: dict[str, Any]) -> None:
        """Take the lock of a run that was ended for it."""
        if not self._agent.is_over():
            self._until = time.monotonic() + RELEASE_LIMIT_S
            self._try()

    def try_again(self) -> None:
        """The run of a dead client may have ended by now."""
        if self._until and not self._agent.is_over():
            self._try()

    def do_unlock(self, header: dict[str, Any], data: bytes) -> None:
        """Another host is busy: whoever waits keeps nobody waiting."""
        self.release_ports()
        self.unlock()

    def unlock(self) -> None:
        """Let other runs have this machine."""
        self.is_held = False
        self.withdraw()
        self._agent.state.unlock()

    def withdraw(self) -> None:
        """Remove the file that names this run to other users."""
        if self._announcement is not None:
            self._announcement.remove()
            self._announcement = None

    def silence_at(self) -> float:
        """Return the monotonic time of the next ``note_silence``, at the latest."""
        return self._agent.client.silent_at() if self._notes_silence() and not self._is_silent else float("inf")

    def note_silence(self) -> None:
        """Write into the lock when the ranks of a silent client end, for others who want the machine."""
        agent = self._agent
        is_silent = agent.client.is_silent()
        if not self._notes_silence() or is_silent == self._is_silent:
            return
        self._is_silent = is_silent
        left_s = agent.client.given_up_at() - time.monotonic() + agent.begin["grace"]
        more = {"ends_by": time.time() + left_s} if is_silent else {}
        try:
            agent.state.tell({**agent.begin["owner"], **more})
        except OSError:  # it stays as it was
            pass

    def _notes_silence(self) -> bool:
        agent = self._agent
        return bool(self.is_held and agent.begin["owner"] and not (agent.client.is_detached or agent.is_over()))

    def release_ports(self) -> None:
        """They are for the ranks now."""
        if self._ports is not None:
            self._ports.release()

    def _try(self) -> None:
        agent = self._agent
        try:
            if agent.begin["owner"]:
                lock = agent.state.lock(agent.begin["owner"])
                if not self._guardian_has_it:  # it is held until the guardian has ended what a killed agent has left
                    self._guardian_has_it = True
                    self._guardian.keep_open(lock)
        except Busy as busy:
            if time.monotonic() > self._until:
                self._until = 0.0
                agent.out.send({"type": "busy", "owner": busy.owner})
        except OSError as error:
            self._until = 0.0
            agent.fail("home", why(error), hint(error))
        else:
            self._until = 0.0
            self.is_held = True
            try:
                others = self._announce_and_look()
            except OSError as error:
                text = f"the runs of other users cannot be seen: {why(error)}"
                agent.fail("lock", text, "leave out --exclusive where you know that no other user runs anything there")
                return
            if others and agent.begin["exclusive"]:
                self.do_unlock({}, b"")
                agent.out.send({"type": "busy", "owner": {**others[0], "other_user": True}})
            else:
                self._locked(others)

    def _announce_and_look(self) -> list[dict[str, Any]]:
        """Name this run to other users, and return their runs. Raises OSError for a run that is to be alone."""
        if not self._agent.begin["announce"]:
            return []
        from .neighbours import Announcement, others

        try:
            # Written before we look: of two runs that begin together one at least sees the other.
            self._announcement = self._announcement or Announcement(self._agent.begin["run"])
        except OSError:
            if self._agent.begin["exclusive"]:
                raise
        return others()

    def _locked(self, others: list[dict[str, Any]]) -> None:
        """Take what only one run may have, and tell. others: the runs of other users here"""
        agent = self._agent
        if not agent.ending.cgroup:
            agent.ending.cgroup = cgroups.make(cgroup_of(agent.begin))
        ports: list[int] = []
        if agent.begin["ports"]:
            from .network import Ports, Unavailable

            self._ports = Ports()
            try:
                ports = self._ports.hold(agent.begin["ports"])
            except Unavailable as error:
                hint = "without --master-port mesh finds a free one; `ss -tlnp` there tells more"
                agent.fail("port", str(error), hint)
                return
        where = agent.ending.cgroup or cgroups.scope_of(cgroups.own())
        if not where:
            self._begin_notes()
        found = {"tree": known_tree(agent.state.beside("record")), "bare": agent.state.is_bare()}
        agent.out.send({"type": "locked", **found, "cgroup": where, "ports": ports, "others": others})

    def _begin_notes(self) -> None:
        """Have the run's processes found where agent and guardian are killed and no control group shows them."""
        from .notes import Notes

        begin, state = self._agent.begin, self._agent.state
        places = [os.path.join(state.machine, f"{kind}-{begin['run']}-{begin['node']}") for kind in ("bin", "share")]
        try:
            if self._notes is None:
                self._notes = Notes(begin["run"], begin["node"], places)
        except OSError:  # the client is told then that it cannot be verified
            pass

    def note(self, session: int, sources: Sequence[Source]) -> None:
        """Note a process that was started, by its pid and the pipes that it prints into."""
        try:
            if self._notes is not None:
                self._notes.add(session, [source.descriptor for source in sources])
        except OSError:  # the disk is full
            pass

    def close(self) -> None:
        """The run has ended here."""
        self.withdraw()
        if self._notes is not None:
            self._notes.remove()


def cgroup_of(begin: dict[str, Any]) -> str:
    """The name of a run's control group; hosts that are containers of one machine may share the tree of groups."""
    return f"mesh-{begin['run']}-{begin['node']}-{machine_id()}"
