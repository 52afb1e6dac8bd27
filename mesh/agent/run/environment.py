"""Environment, directory and limits for ranks, merged from client, host and prerun, and the devices that they need."""

from __future__ import annotations

import os

from mesh.agent.base.directories import node_directory
from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import partial
from mesh.agent.process import cgroups
from mesh.agent.process.oom import Memory
from mesh.agent.process.spawning import NOT_FOUND, Setting, check_program, first_environment, status_of
from mesh.agent.run.rank import extend_path, rank_environment
from mesh.protocol.answers import INTERFACES, Notice, Ready
from mesh.protocol.frames import to_bytes, to_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mesh.agent.base.background import Answer
    from mesh.agent.base.directories import Directories
    from mesh.agent.port import Port
    from mesh.agent.process.containers import Containers
    from mesh.agent.run.group import Group
    from mesh.protocol.first import Begin
    from mesh.protocol.requests import Finds, Prepare


class Environment:
    """The setting that ranks start with. Requests to prepare and to start change it, and prerun does."""

    def __init__(
        self,
        port: Port,
        state: Directories,
        containers: Containers,
        group: Group,
        begin: Begin,
        prerun: Callable[[Prepare, Setting], None],
    ) -> None:
        """Start without a setting. prerun: starts the entries of a request, and calls ``adopt`` at their end"""
        self._port, self._state, self._containers, self._group = port, state, containers, group
        self._begin, self._prerun = begin, prerun
        self._host = first_environment()
        self.setting: Setting  # from prepare on; prerun leaves another one, as does what comes with the start
        self.is_known = False  # there is a setting
        self.path = b""  # PATH, before any directory of mesh was on it
        self.memory: Memory | None = None  # once a process was started
        self.has_claimed = False  # devices
        self._given: Mapping[bytes, bytes] = {}  # variables
        self._library = ""  # the directory in which Python finds mesh's own modules; "": none
        self._program = b""  # the first word of the command line of the ranks; b"": there is none

    def prepare(self, request: Prepare, data: bytes) -> None:
        """Look at devices, and run prerun, if there is any, with the environment of the host's first rank.

        data: the source of meshrun, if it is to be there
        """
        if not self._port.is_over:
            self._program = to_bytes(request.program)
            self.learn(request.finds, lambda: self._prepare(request, data))

    def learn(self, finds: Finds, then: Callable[[], None]) -> None:
        """Take the environment of the first rank, find the interface towards rank 0, and go on.

        finds: as in network.find_interface; without interface and targets no rank needs an interface
        """
        self._given = {to_bytes(key): to_bytes(value) for key, value in finds.env.items()}
        named, targets = finds.interface, finds.targets
        known = set(self._given) if named else self._given.keys() | self._host.keys()
        if not (named or targets) or known.issuperset(map(to_bytes, INTERFACES)):
            self._learned({}, named, then)
            return
        from mesh.agent.run import network

        work = partial(network.find_interface, named, targets)
        if named or all(map(network.is_numeric, targets)):
            self._learned(work(), named, then)
            return
        try:  # a name server may take long
            self._port.background(work, lambda answer: self._learned(answer, named, then))
        except OSError as error:
            self._learned({"notice": f"no process to look for the interface: {why(error)}"}, named, then)

    def at_start(self) -> None:
        """Put mesh's own directories in place again: prerun may have hidden them. Raises OSError."""
        environment = self.setting.environment
        environment[b"PATH"] = self._containers.cover(environment.get(b"PATH", os.defpath.encode()))
        if self._begin.stacks or self._begin.debug:
            from mesh.agent.ask import handlers

            text = handlers.source()
            if self._begin.debug:
                from mesh.agent.forward import debugging

                text += debugging.source()
            prepared = self._state.library("sitecustomize", text)
            extend_path(environment, b"PYTHONPATH", prepared, first=True)
        if self._library:
            extend_path(environment, b"PYTHONPATH", self._library)

    def of_rank(self, variables: Mapping[str, str]) -> Setting:
        """Return the setting of one rank. variables: those that only it has"""
        found = self.setting
        environment = dict(found.environment)
        for key, value in variables.items():
            # A value of prerun or the user stays; the rest is this rank's own.
            name = to_bytes(key)
            if environment.get(name) == self._given.get(name):
                environment[name] = to_bytes(value)
        return Setting(environment, found.directory, found.umask, found.limits, self._group.path)

    @property
    def has_debugger(self) -> bool:
        """True if ranks stop in a debugger."""
        return self._begin.debug

    def allow_debugging(self, setting: Setting, rank: int) -> None:
        """Let the Pythons of a rank stop in a debugger. Raises OSError."""
        from mesh.agent.forward.inside import VARIABLE

        place = os.path.join(node_directory(self._begin.run, self._begin.node), "debug")
        os.makedirs(place, 0o700, exist_ok=True)
        setting.environment[VARIABLE.encode()] = os.fsencode(os.path.join(place, str(rank)))

    def of_setup(self) -> Setting:
        """Return the setting of a setup, which runs in the home directory, without mesh's own directories."""
        environment = self.setting.environment
        home = os.fsdecode(environment[b"HOME"])
        # MESH_SETUP: processes that a setup leaves in the background are there on purpose, however long.
        return Setting({**environment, b"PWD": os.fsencode(home), b"PATH": self.path, b"MESH_SETUP": b"1"}, home)

    def of_modules(self, marks: str, force: bool) -> Setting:
        """Return the setting of steps of modules, whose processes belong to no run.

        marks: the directory for marks; force: what is in place is set up again
        """
        environment = {**self.setting.environment, b"MESH_SETUP": b"1", b"MESH_MODULES": os.fsencode(marks)}
        environment[b"MESH_FORCE"] = b"1" if force else b""
        environment.pop(b"MESH_RUN_ID", None)
        return Setting(environment, self._state.workspace)

    def adopt(self, setting: Setting) -> None:
        """Go on with the setting that prerun has left."""
        self.setting = setting
        if not self._port.is_over:
            self._report_ready()

    def _learned(self, found: Answer, named: str, then: Callable[[], None]) -> None:
        """Go on with the interface towards rank 0, or without one."""
        if self._port.is_over:
            return
        if "error" in found:
            self._port.fail("interface", str(found["error"]), str(found["hint"]))
            return
        if "notice" in found:
            self._port.send(Notice(text=str(found["notice"]), seconds=0))
        variables = found.get("variables", {})
        assert isinstance(variables, dict)
        given = dict(self._given)
        for name, value in variables.items():
            if named or to_bytes(name) not in self._host:
                given.setdefault(to_bytes(name), to_bytes(value))
        self._given = given
        environment = rank_environment(self._host, given, self._state.workspace)
        self.path = environment[b"PATH"]
        self.setting = Setting(environment, self._state.workspace, cgroup=self._group.path)
        self.is_known = True
        then()

    def _prepare(self, request: Prepare, data: bytes) -> None:
        """Make ready what the ranks need of this disk, and of its devices."""
        environment = self.setting.environment
        try:
            environment[b"PATH"] = self._containers.cover(self.path)
            self._library = self._state.library("meshrun", data) if data else ""
        except OSError as error:
            self._port.fail("home", why(error), hint(error))
            return
        if self._library:
            extend_path(environment, b"PYTHONPATH", self._library)
        self.memory = Memory(self._group.path or cgroups.own())
        self._claim(request)

    def _claim(self, request: Prepare) -> None:
        """Claim devices that only one run may use; then comes prerun."""
        patterns = self._begin.devices
        if not request.claim:
            self._go_on(request)
            return
        from mesh.agent.run import devices

        try:
            if devices.find(patterns):
                work = partial(devices.claim, patterns, request.evict, self._begin.grace)
                self._port.background(work, lambda answer: self._claimed(answer, request))
            else:
                self._go_on(request)
        except OSError as error:
            self._port.fail("devices", why(error))

    def _claimed(self, answer: Answer, request: Prepare) -> None:
        """Go on if no process holds a device any more."""
        self.has_claimed = True
        ended = answer.get("ended", ())
        assert isinstance(ended, (list, tuple))
        for line in ended:
            self._port.send(Notice(text=line, seconds=0))
        if self._port.is_over:
            return
        if "error" in answer:
            self._port.fail("devices", str(answer["error"]), str(answer["hint"]))
        else:
            self._go_on(request)

    def _go_on(self, request: Prepare) -> None:
        if request.prerun:
            self._prerun(request, self.setting)
        else:
            self._report_ready()

    def _report_ready(self) -> None:
        """Report that the ranks can start, or that their program cannot: prerun may have made or hidden it."""
        interfaces = {name: to_text(self.setting.environment.get(to_bytes(name), b"")) for name in INTERFACES}
        status, nearest = 0, ""
        found: Mapping[str, str] = {}
        if self._program:
            try:
                check_program(self._program, self.setting)
                if not self._begin.node:  # for all hosts, which `mesh check` compares
                    from mesh.agent.run.packages import packages

                    found = packages(self._program, self.setting)
            except OSError as error:
                status = status_of(error)
                if status == NOT_FOUND:
                    from mesh.agent.run.nearest import nearest_program

                    nearest = to_text(nearest_program(self._program, self.setting))
        self._port.send(Ready(interfaces=interfaces, status=status, nearest=nearest, packages=found))
