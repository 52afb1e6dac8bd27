"""Prerun on this host: one session, whose entries with inputs run only where they must."""

from __future__ import annotations

import select

from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import partial
from mesh.agent.prerun.done import DoneEntries
from mesh.agent.prerun.shell import ASKS, DONE, GO_ON, HELD, RUN, SKIP, Prerun
from mesh.agent.run.rank import Source
from mesh.protocol.answers import Decided, Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh.agent.base.background import Answer
    from mesh.agent.base.directories import Directories
    from mesh.agent.loop import Loop
    from mesh.agent.port import Port
    from mesh.agent.prerun.shell import Entry
    from mesh.agent.process.spawning import Setting
    from mesh.agent.run.group import Group
    from mesh.agent.run.sources import Sources


class PrerunSession:
    """The one session of prerun. Work in it that takes long is done in the background."""

    def __init__(
        self, port: Port, loop: Loop, state: Directories, sources: Sources, group: Group, held: Callable[[Prerun], None]
    ) -> None:
        """Take what it works with. held: called once every entry has run, and the shell only holds its setting"""
        self._port, self._loop, self._state = port, loop, state
        self._sources, self._group, self._held = sources, group, held
        self._shell: Prerun | None = None
        self._once: DoneEntries | None = None
        self._row: dict[str, object] = {}  # to be kept when the entry that runs has succeeded

    def start(self, entries: Sequence[Entry], setting: Setting, force: bool) -> None:
        """Run the entries with a setting. force: also those that need not run again"""
        try:
            shell = self._shell = Prerun(entries, setting)
        except OSError as error:
            self._port.fail("prerun", why(error))
            return
        self._once = DoneEntries(self._state, entries, force)
        source = Source(shell.output, -1, "prerun")
        self._group.note(shell.pid, [source])
        self._sources.add(source)
        self._loop.watch(shell.status, select.POLLIN, partial(self._read, shell))
        self._loop.on_child_end(shell.pid, partial(self._ended, shell))

    def release(self) -> None:
        """Let the shell end if its entries have run; one that waits for an answer would go on."""
        if self._shell is not None and self._shell.setting is not None:
            self._shell.release()

    def _read(self, shell: Prerun, events: int) -> None:
        if events & select.POLLIN:
            self._listen(shell)
        else:
            self._loop.unwatch(shell.status)

    def _listen(self, shell: Prerun) -> None:
        """Answer a word of the shell."""
        word = shell.receive() if shell.setting is None else ""
        if word == HELD:
            self._loop.unwatch(shell.status)
            if not self._port.is_over:
                self._sources.relay_all(shell.output)
            self._held(shell)
        elif word == ASKS and not self._port.is_over:
            self._ask(shell, wait=False)
        elif word == DONE and not self._port.is_over:
            self._succeeded(shell)

    def _ended(self, shell: Prerun, status: int) -> None:
        self._listen(shell)  # its last words may still be in the pipe
        self._loop.unwatch(shell.status)
        if shell.setting is None and not self._port.is_over:
            self._sources.relay_all(shell.output)
            self._port.fail("prerun", shell.failure(status))
        if self._once is not None:
            self._once.close()

    # ---- entries with inputs

    def _ask(self, shell: Prerun, wait: bool) -> None:
        """Find out if the shell must run its next entry. wait: for other hosts that run it"""
        assert self._once is not None
        try:
            if not wait:
                self._once.open()
            work = partial(self._once.decide, shell.step, shell.found, wait)
            self._port.background(work, partial(self._decided, shell, self._once))
        except OSError as error:
            self._port.fail("prerun", why(error), hint(error))

    def _decided(self, shell: Prerun, once: DoneEntries, answer: Answer) -> None:
        if self._port.is_over:
            return
        if "error" in answer:
            self._port.fail("prerun", str(answer["error"]), str(answer["hint"]))
        elif "busy" in answer:
            self._print(shell, "waits: another host runs the next entry in the same workspace")
            self._ask(shell, wait=True)
        else:
            row, missing, reason = answer["row"], answer["missing"], str(answer["why"])
            assert isinstance(row, dict)
            assert isinstance(missing, list)
            self._row = row
            self._print(shell, "")
            self._port.send(Decided(entry=shell.step, why=reason, missing=missing))
            once.has_run = once.has_run or bool(reason)
            if not reason:
                once.close()
            shell.answer(RUN if reason else SKIP)

    def _succeeded(self, shell: Prerun) -> None:
        """Note the success of an entry before the next one begins."""
        once = self._once
        assert once is not None
        go_on = partial(self._go_on, shell, once)
        if not self._row:
            go_on({})
            return
        try:
            self._port.background(partial(once.keep, shell.step, shell.found, self._row), go_on)
        except OSError as error:
            go_on({"error": why(error)})

    def _go_on(self, shell: Prerun, once: DoneEntries, answer: Answer) -> None:
        if self._port.is_over:
            return
        if "error" in answer:
            self._print(shell, f"its success could not be noted, so that it will run again: {answer['error']}")
        once.close()
        shell.answer(GO_ON)

    def _print(self, shell: Prerun, text: str) -> None:
        """Send a line of the agent's own between those of the shell; "": only end the last of those."""
        self._sources.relay_all(shell.output)
        lead = "" if self._sources.ends_line(shell.output) else "\n"
        line = lead + (f"==> {text}\n" if text else "")
        if line:
            self._port.send(Output(rank=-1, stream="prerun"), line.encode("utf-8", "replace"))
