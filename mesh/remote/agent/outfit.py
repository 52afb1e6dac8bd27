"""What the ranks of a run start with: their environment, directory and limits, and the devices that they need."""

from __future__ import annotations

import os

from . import cgroups
from .errand import hint, why
from .frames import to_bytes, to_text
from .lean import partial
from .oom import Memory
from .ranks import INTERFACES, extend_path, rank_environment
from .spawning import NOT_FOUND, Setting, check_program, status_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .main import Agent


class Outfit:
    """Made of what the client gives, the host has and prerun leaves."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.setting: Setting  # from prepare on; prerun leaves another one, as does what comes with the start
        self.is_known = False  # there is a setting
        self.path = b""  # PATH, before there was anything of ours on it
        self.memory: Memory | None = None  # once something is started
        self.has_claimed = False  # devices
        self._given: dict[bytes, bytes] = {}  # variables
        self._library = ""  # where Python finds what we bring it; "": nowhere
        self._program = b""  # the first word of the command line of the ranks; b"": there is none

    def do_prepare(self, header: dict[str, Any], data: bytes) -> None:
        """Look at devices, and run prerun, if there is any, with what the host's first rank finds.

        data: the source of meshrun, if it is to be there
        """
        if not self._agent.is_over():
            self._program = to_bytes(header["program"])
            self.learn(header["finds"], lambda: self._prepare(header, data))

    def learn(self, finds: dict[str, Any], then: Callable[[], None]) -> None:
        """Take what the client knows of the first rank's surroundings, find the interface towards rank 0, and go on.

        env: its variables; interface, targets: as in network.find_interface; without either nobody needs to know
        """
        agent = self._agent
        self._given = {to_bytes(key): to_bytes(value) for key, value in finds["env"].items()}
        named, targets = finds["interface"], finds["targets"]
        known = set(self._given) if named else self._given.keys() | agent.environment.keys()
        if not (named or targets) or known.issuperset(map(to_bytes, INTERFACES)):
            self._learned({}, named, then)
            return
        from . import network

        work = partial(network.find_interface, named, targets)
        if named or all(map(network.is_numeric, targets)):
            self._learned(work(), named, then)
            return
        try:  # who asks for a name may wait
            agent.send_on_errand(work, lambda answer: self._learned(answer, named, then))
        except OSError as error:
            self._learned({"notice": f"nobody to look for the interface: {why(error)}"}, named, then)

    def at_start(self) -> None:
        """Once more: prerun may have brought another docker, or hidden what is ours. Raises OSError."""
        agent, environment = self._agent, self.setting.environment
        environment[b"PATH"] = agent.containers.cover(environment.get(b"PATH", os.defpath.encode()))
        if agent.begin["stacks"]:
            from . import handlers

            prepared = agent.state.library("sitecustomize", handlers.source())
            extend_path(environment, b"PYTHONPATH", prepared, first=True)
        if self._library:
            extend_path(environment, b"PYTHONPATH", self._library)

    def of_rank(self, variables: dict[str, str]) -> Setting:
        """What one rank starts with. variables: those that are its own."""
        found = self.setting
        environment = dict(found.environment)
        for key, value in variables.items():
            # What prerun or the user has set differently stays; the rest is this rank's own.
            name = to_bytes(key)
            if environment.get(name) == self._given.get(name):
                environment[name] = to_bytes(value)
        return Setting(environment, found.directory, found.umask, found.limits, self._agent.ending.cgroup)

    def _learned(self, found: dict[str, Any], named: str, then: Callable[[], None]) -> None:
        """Go on once it is known which interface leads to rank 0."""
        agent = self._agent
        if agent.is_over():
            return
        if "error" in found:
            agent.fail("interface", found["error"], found["hint"])
            return
        if "notice" in found:
            agent.out.send({"type": "notice", "text": found["notice"], "seconds": 0})
        for name, value in found.get("variables", {}).items():
            if named or to_bytes(name) not in agent.environment:
                self._given.setdefault(to_bytes(name), to_bytes(value))
        environment = rank_environment(agent.environment, self._given, agent.state.workspace)
        self.path = environment[b"PATH"]
        self.setting = Setting(environment, agent.state.workspace, cgroup=agent.ending.cgroup)
        self.is_known = True
        then()

    def _prepare(self, header: dict[str, Any], data: bytes) -> None:
        """Have ready what the ranks need of this disk, and of its devices."""
        agent, environment = self._agent, self.setting.environment
        try:
            environment[b"PATH"] = agent.containers.cover(self.path)
            self._library = agent.state.library("meshrun", data) if data else ""
        except OSError as error:
            agent.fail("home", why(error), hint(error))
            return
        if self._library:
            extend_path(environment, b"PYTHONPATH", self._library)
        self.memory = Memory(agent.ending.cgroup or cgroups.own())
        self._claim(header)

    def _claim(self, header: dict[str, Any]) -> None:
        """Have the devices, if there are any that nobody else may hold; then comes prerun."""
        agent = self._agent
        if not header["claim"]:
            self._go_on(header)
            return
        from . import devices

        try:
            if devices.find(agent.begin["devices"]):
                work = partial(devices.claim, agent.begin["devices"], header["evict"], agent.begin["grace"])
                agent.send_on_errand(work, lambda answer: self._claimed(answer, header))
            else:
                self._go_on(header)
        except OSError as error:
            agent.fail("devices", why(error))

    def _claimed(self, answer: dict[str, Any], header: dict[str, Any]) -> None:
        """Nobody holds a device any more, or somebody does."""
        agent = self._agent
        self.has_claimed = True
        for line in answer.get("ended", ()):
            agent.out.send({"type": "notice", "text": line, "seconds": 0})
        if agent.is_over():
            return
        if "error" in answer:
            agent.fail("devices", answer["error"], answer["hint"])
        else:
            self._go_on(header)

    def _go_on(self, header: dict[str, Any]) -> None:
        """With prerun, if there is any."""
        if not header["prerun"]:
            self.tell_ready()
            return
        from .preparation import Preparation  # few runs have any

        self._agent.dismiss_spare()

        self._agent.preparation = Preparation(self._agent, self._agent.state, bool(self._agent.share))
        self._agent.preparation.start(header["prerun"], header["force"])

    def tell_ready(self) -> None:
        """Report that the ranks can be started, or that their program cannot: prerun may have made or hidden it."""
        interfaces = {name: to_text(self.setting.environment.get(to_bytes(name), b"")) for name in INTERFACES}
        ready: dict[str, Any] = {"type": "ready", "interfaces": interfaces}
        if self._program:
            try:
                check_program(self._program, self.setting)
            except OSError as error:
                ready["status"] = status_of(error)
                if ready["status"] == NOT_FOUND:
                    from .nearest import nearest_program

                    ready["nearest"] = to_text(nearest_program(self._program, self.setting))
        self._agent.out.send(ready)
