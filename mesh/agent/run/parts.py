"""The parts of an agent with a run, each behind its port, made from the first message of the client."""

from __future__ import annotations

import os

from mesh.agent.ask.answering import Answering
from mesh.agent.base.directories import Directories, machine_directory, remove_nodes
from mesh.agent.control.server import ControlServer
from mesh.agent.detached.detachment import Detachment
from mesh.agent.detached.followers import Followers
from mesh.agent.detached.other_hosts import OtherHosts
from mesh.agent.link.client import ClientConnection
from mesh.agent.link.outbox import Outbox
from mesh.agent.link.spool import Spool
from mesh.agent.loop import Watches
from mesh.agent.process.containers import containers_of
from mesh.agent.process.ending import Ending
from mesh.agent.run.environment import Environment
from mesh.agent.run.group import Group
from mesh.agent.run.locking import Locking
from mesh.agent.run.modules import Modules
from mesh.agent.run.moving import Moves
from mesh.agent.run.ranks import Ranks
from mesh.agent.run.restarting import Restarts
from mesh.agent.run.sources import Sources
from mesh.agent.sync.requests import SyncRequests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from mesh.agent.loop import Loop
    from mesh.agent.nodes.nodes import Nodes
    from mesh.agent.nodes.pairs import Pairs
    from mesh.agent.nodes.relay import Relays
    from mesh.agent.port import AskPort, ControlPort, LockPort, NodesPort, RanksPort
    from mesh.agent.prerun.session import PrerunSession
    from mesh.agent.prerun.shell import Entry, Prerun
    from mesh.agent.process.spawning import Setting
    from mesh.agent.run.requests import Requests
    from mesh.protocol.first import Begin
    from mesh.protocol.frames import Decoder
    from mesh.protocol.requests import Prepare

    class RunPort(LockPort, RanksPort, NodesPort, ControlPort, AskPort, Protocol):
        """The ports of all parts."""


class Parts:
    """All parts. They reach each other only as their constructors show."""

    def __init__(self, port: RunPort, loop: Loop, begin: Begin, decoder: Decoder, requests: Requests, is_moved: bool):
        """Make the parts, none of which does anything yet.

        decoder: may hold the beginning of a request; is_moved: HOME is read-only, and the files of the run are in /tmp
        """
        self._port, self._loop = port, loop
        run, node, self.begin, self.requests = begin.run, begin.node, begin, requests
        self.share = f"share-{run}-{node}" if begin.share else ""
        machine = machine_directory(begin.remote_dir)
        self.out = Outbox(Spool(os.path.join(machine, f"spool-{run}-{node}"), begin.spool))
        self.state = Directories(begin.remote_dir, begin.project, self.share, begin.workspace_links)
        self.processes = Ending()
        self.group = Group(run, node, machine, self.processes)
        self.containers = containers_of(begin.remote_dir, run, node)
        self.client = ClientConnection(loop, self.out, decoder, port.post, requests.receive)
        self.sources = Sources(port, loop, self.client)
        self.locking = Locking(port, loop, self.state, self.group, begin, is_moved)
        self.sync = SyncRequests(port, self.state, run)
        self.prerun: PrerunSession | None = None
        self.environment = Environment(port, self.state, self.containers, self.group, begin, self._start_prerun)
        self.modules = Modules(port, loop, self.state, self.sources, self.processes, self.environment)
        self.ranks = Ranks(port, loop, self.client, self.sources, self.environment, self.group)
        self.ranks.use(Restarts(port, loop, self.containers, begin.grace))
        self.moves = Moves(port, self.ranks, self.environment)
        self.followers = Followers()
        self.following = Watches(loop)
        self.detachment = Detachment(port, self.out, self.state, self.group, begin, self.locking.machine_lock)
        self.peers = OtherHosts(port, loop)
        self.nodes: Nodes | None = None
        self.relays: Relays | None = None
        self.pairs: Pairs | None = None
        if begin.nodes or begin.program:
            self._make_nodes(begin)
        self.control = ControlServer(port, loop, self.client, self.followers, not begin.tied)
        self.ranks.on_restart = self.control.restarts.note
        self.answering = Answering(port, loop, self.out, self.state, begin.remote_dir)

    def _make_nodes(self, begin: Begin) -> None:
        """Make the parts of a program; few runs are programs."""
        from mesh.agent.nodes.nodes import Nodes
        from mesh.agent.nodes.pairs import Pairs
        from mesh.agent.nodes.relay import Relays

        self.nodes = nodes = Nodes(self._port, self._loop, begin, self.peers.change)
        self.locking.nodes = self.ranks.nodes = nodes
        self.peers.on_changes = nodes.take_changes
        self.relays = Relays(self._loop, self.out, self.client, nodes)
        self.pairs = Pairs(self._port, self._loop, nodes, self.relays, begin.node)
        nodes.on_addresses = self.pairs.open

    def holds(self) -> bool:
        """Return True if a lock, a copy, devices, containers or a process of the run are here."""
        held = self.begin.owner or self.share or self.environment.has_claimed or self.containers.used()
        return bool(held) or not self.processes.is_empty()

    def close(self, keeps_journal: bool) -> None:
        """Remove what the run has on this machine; the lock goes with the process."""
        self.control.close()
        if self.relays is not None and self.pairs is not None:
            self.pairs.close()
            self.relays.close()
        if self.nodes is not None:
            self.nodes.close()
        if self.begin.debug or self.nodes is None:  # mesh debug may have made them
            remove_nodes(self.begin.run, self.begin.node)
        self.locking.withdraw()
        self.group.remove_notes()
        self.out.close()
        self.following.take()
        self.followers.close()
        self.peers.close()
        self.detachment.close(keeps_journal)

    def _start_prerun(self, request: Prepare, setting: Setting) -> None:
        from mesh.agent.prerun.session import PrerunSession  # few runs have prerun

        # In a copy of the workspace that the run has for itself, there is nothing to skip.
        entries: list[Entry] = [
            {"run": one.run, "inputs": [] if self.share else list(one.inputs), "module": one.module}
            for one in request.prerun
        ]
        self.prerun = PrerunSession(self._port, self._loop, self.state, self.sources, self.group, self._prerun_held)
        self.prerun.start(entries, setting, request.force)

    def _prerun_held(self, shell: Prerun) -> None:
        """Go on with the setting of a shell whose entries have run."""
        assert shell.setting is not None
        self.processes.spared = {shell.pid, shell.holder}  # bash would report a child that was terminated
        self.environment.adopt(shell.setting)
