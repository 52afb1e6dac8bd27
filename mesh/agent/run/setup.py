"""Setup: the project's commands, each in a bash of its own, one after the other in a child process of the agent."""

from __future__ import annotations

from mesh.agent.base.light import partial
from mesh.agent.run.rank import Rank, Source
from mesh.agent.run.worker import WorkerProcess
from mesh.protocol.frames import to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    from mesh.agent.process.spawning import Setting
    from mesh.agent.run.worker import Worker

    class Command(TypedDict):
        """A command of a setup, as the client sends it."""

        run: str
        unless: str  # a command whose success skips this one; "": none
        sudo: bool


class Setup(Rank):
    """The process that runs the commands, as a rank whose two outputs are one stream."""

    def __init__(self, rank: int, commands: Sequence[Command], force: bool, setting: Setting) -> None:
        """Start it. commands: each with "run", "unless" and "sudo". Raises OSError if there is no way to."""
        self._commands = commands
        self.number = 0  # of the command that runs
        self._failed_status: int | None = None  # of the command that failed, from waitpid
        self._process = WorkerProcess(setting, partial(_run, commands, force))
        Rank.__init__(self, rank, self._process.pid, [Source(self._process.out, rank, "setup")])

    @property
    def words(self) -> int:
        """The descriptor of its messages; -1 once it has ended."""
        return self._process.words

    def receive(self) -> list[str]:
        """Return the messages of the process, each of them once.

        "show": it waits to run the command ``number``, which is to be shown first. "password": it waits for the
        password that sudo wants now. "wants": a later command will ask for that.
        """
        asked = []
        for word in self._process.receive():
            name, _, number = word.partition(" ")
            if name == "failed":
                self._failed_status = int(number)
            elif name == "show":
                self.number = int(number)
            if name != "failed":
                asked.append(name)
        return asked

    def shown(self) -> bytes:
        """Return the line that shows the command."""
        return b"$ %s\n" % to_bytes(self._commands[self.number]["run"])

    def answer(self, line: bytes = b"") -> None:
        """Let the process continue, with a line of text."""
        self._process.answer(line)

    def end(self, status: int, now: float) -> None:
        self.receive()  # its last words may still be in the pipe
        self._process.close()
        # If a command failed, its own status counts and not that of the process that ran it.
        Rank.end(self, status if self._failed_status is None else self._failed_status, now)

    def failed_command(self) -> str:
        return str(self._commands[self.number]["run"]) if self.status else ""


def _run(commands: Sequence[Command], force: bool, worker: Worker) -> bool:
    """Run the commands in order, up to the first that fails; return True if one did."""
    if any(command["sudo"] for command in commands):
        worker.look_for_password(announce=True)  # so that no host waits in the middle for a user who has left
    for number, command in enumerate(commands):
        worker.ask(f"show {number}")
        if command["unless"] and not force and _is_done(worker, command["unless"]):
            worker.print(f"(skipped: {command['unless']})")
            continue
        argv = ["bash", "-c", command["run"]]
        status = worker.sudo(argv, worker.call) if command["sudo"] and not worker.is_root else worker.call(argv)
        if status:
            worker.send(f"failed {status}")
            return True
    return False


def _is_done(worker: Worker, unless: str) -> bool:
    status = worker.call(["bash", "-c", unless], quiet=True)
    if status not in (0, 1 << 8):  # neither yes nor no: a slip of the pen would run the command every time
        worker.print(f"(unless: exit {status >> 8 or 128 + status}: {unless})")
    return status == 0
