"""The modules of a run on this host: a child process carries out their steps before prerun."""

from __future__ import annotations

import os
import select

from mesh.agent.base.directories import cut_short
from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import loads, partial
from mesh.agent.process.processes import descendants
from mesh.agent.run.rank import Source
from mesh.protocol.answers import Applied, Applying, AsksPassword, WantsFiles, WantsPassword
from mesh.protocol.answers import Step as StepBegins
from mesh.protocol.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.base.directories import Directories
    from mesh.agent.loop import Loop
    from mesh.agent.port import Port
    from mesh.agent.process.ending import Ending
    from mesh.agent.run.environment import Environment
    from mesh.agent.run.sources import Sources
    from mesh.agent.run.worker import WorkerProcess
    from mesh.protocol.requests import Apply, StepFile

NO_RANK = -1


class Modules:
    """The steps that a client has sent, and the process that carries them out."""

    def __init__(
        self,
        port: Port,
        loop: Loop,
        state: Directories,
        sources: Sources,
        processes: Ending,
        environment: Environment,
    ) -> None:
        """Start without any. processes: those that steps leave are noted there, because they stay after the run"""
        self._port, self._loop, self._state = port, loop, state
        self._sources, self._processes, self._environment = sources, processes, environment
        self._request: Apply
        self._process: WorkerProcess | None = None
        self._incoming = Incoming(os.path.join(state.machine, "modules"))
        self._applied: list[int] = []
        self._facts: dict[int, str] = {}
        self._is_failed = False

    def apply(self, request: Apply) -> None:
        """Begin to carry out steps with the environment of the host's first rank; report once all are done."""
        if not self._port.is_over:
            self._environment.learn(request.finds, lambda: self._apply(request))

    def give_file(self, request: StepFile, data: bytes) -> None:
        """Take a piece of a file; the step goes on with the last one. Raises FrameError for one that is not awaited."""
        if self._port.is_over or self._process is None:
            return
        try:
            is_complete = self._incoming.take(request, data)
        except OSError as error:
            self._port.fail("module", f"{self._name(request.step)}: {why(error)}", hint(error))
            return
        if is_complete:
            self._process.answer()

    def give_password(self, data: bytes) -> None:
        """Answer a step that has asked for a password."""
        if self._process is not None:
            self._process.answer(data)

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._process is not None

    def _apply(self, request: Apply) -> None:
        from mesh.agent.run.steps import StepRunner
        from mesh.agent.run.worker import WorkerProcess

        self._request, self._applied, self._facts, self._is_failed = request, [], {}, False
        try:
            os.makedirs(self._incoming.directory, 0o700, exist_ok=True)
            for path in cut_short(self._state.machine):
                os.unlink(path)
            setting = self._environment.of_modules(self._incoming.directory, request.force)
            process = self._process = WorkerProcess(
                setting, lambda worker: StepRunner(worker).run(request.steps, request.undo, request.force)
            )
        except OSError as error:
            self._port.fail("module", why(error), hint(error))
            return
        self._sources.add(Source(process.out, NO_RANK, "module"))
        self._loop.watch(process.words, select.POLLIN, partial(self._read, process))
        self._loop.on_child_end(process.pid, partial(self._ended, process))

    def _read(self, process: WorkerProcess, events: int) -> None:
        if events & select.POLLIN:
            self._listen(process)
        else:
            self._loop.unwatch(process.words)

    def _listen(self, process: WorkerProcess) -> None:
        for line in process.receive():
            word, _, rest = line.partition(" ")
            if not self._port.is_over:
                self._take(process, word, rest)

    def _take(self, process: WorkerProcess, word: str, rest: str) -> None:
        if word == "wants":
            self._port.send(WantsPassword())
        elif word == "password":
            self._port.send(AsksPassword())
        elif word == "step":
            self._sources.relay_all(process.out)
            self._port.send(StepBegins(number=int(rest)))
            process.answer()
        elif word == "apply":
            self._begin_apply(process, int(rest))
        elif word == "fact":
            number, _, fact = rest.partition(" ")
            self._facts[int(number)] = loads(fact)
        elif word == "failed":
            number, _, reason = rest.partition(" ")
            self._is_failed = True
            self._sources.relay_all(process.out)
            self._port.fail("module", f"{self._name(int(number))}: {loads(reason)}")

    def _begin_apply(self, process: WorkerProcess, number: int) -> None:
        """Report that a step is to be applied or undone, and have its files sent first."""
        self._applied.append(number)
        self._sources.relay_all(process.out)
        self._port.send(Applying(step=number))
        files = self._request.steps[number].files
        if files and not self._request.undo:
            self._incoming.expect(number, [(file.path, file.mode) for file in files])
            self._port.send(WantsFiles(step=number))
        else:
            process.answer()

    def _ended(self, process: WorkerProcess, status: int) -> None:
        self._listen(process)  # its last words may still be in the pipe
        self._loop.unwatch(process.words)
        process.close()
        self._process = None
        self._incoming.drop()
        if self._port.is_over:
            return
        self._sources.relay_all(process.out)
        if status or self._is_failed:
            self._port.fail("module", f"the process for the steps of modules ended with status {status}")
            return
        self._processes.stays.update((left.pid, left.start) for left in descendants(os.getpid()))
        facts = [self._facts.get(number, "") for number in range(len(self._request.steps))]
        self._port.send(Applied(facts=facts, applied=self._applied))

    def _name(self, number: int) -> str:
        return self._request.steps[number].module


class Incoming:
    """The files of one step, while they arrive: written beside, then renamed."""

    def __init__(self, directory: str) -> None:
        """directory: for files that are not complete; it need not exist yet"""
        self.directory = directory
        self._step = -1  # the step that waits for its files; -1: none does
        self._waiting: list[tuple[str, int]] = []  # path and mode of each
        self._number = 0  # of the file that comes now
        self._file = -1

    def expect(self, step: int, files: list[tuple[str, int]]) -> None:
        """Wait for the files of a step: the path and mode of each."""
        self._step, self._waiting, self._number = step, files, 0

    def take(self, request: StepFile, data: bytes) -> bool:
        """Write a piece; return True if it was the last of the last file. Raises OSError and FrameError."""
        if request.step != self._step or request.file != self._number:
            raise FrameError(f"step-file: file {request.file} of step {request.step} is not awaited")
        if self._file < 0:
            self._file = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        while data:
            data = data[os.write(self._file, data) :]
        if not request.last:
            return False
        path, mode = self._waiting[self._number]
        path = os.path.expanduser(path)
        os.fchmod(self._file, mode)
        os.close(self._file)
        self._file = -1
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        self._put(path)
        self._number += 1
        if self._number < len(self._waiting):
            return False
        self._step = -1
        return True

    def drop(self) -> None:
        """Forget a file that is not complete."""
        if self._file >= 0:
            os.close(self._file)
            os.unlink(self._partial)
        self._file = self._step = -1

    @property
    def _partial(self) -> str:
        return os.path.join(self.directory, f"incoming-{os.getpid()}")

    def _put(self, path: str) -> None:
        """Move the file into place, also from one file system to another. Raises OSError."""
        beside = f"{path}.{os.getpid()}"
        try:
            os.replace(self._partial, path)
        except OSError:
            import shutil

            shutil.copy2(self._partial, beside)
            os.replace(beside, path)
            os.unlink(self._partial)
