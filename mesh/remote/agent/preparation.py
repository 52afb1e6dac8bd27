"""Prerun on this host: one session, whose entries with inputs run only where they must."""

from __future__ import annotations

from .errand import hint, why
from .lean import partial
from .once import Once
from .ranks import Source
from .shell import ASKS, DONE, GO_ON, HELD, RUN, SKIP, Prerun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .main import Agent
    from .shell import Entry
    from .state import State


class Preparation:
    """Runs prerun, once; what takes long in it is done on errands."""

    def __init__(self, agent: Agent, state: State, share: bool) -> None:
        """share: the workspace is a copy that the run has for itself: there is nothing to skip."""
        self._agent, self._state, self._share = agent, state, share
        self._session: Prerun | None = None
        self._once: Once | None = None
        self._row: dict[str, Any] = {}  # to be kept when the entry that runs has succeeded

    @property
    def pid(self) -> int:
        """Of the session; 0: there is none."""
        return self._session.pid if self._session else 0

    @property
    def words(self) -> int:
        """The descriptor on which the session speaks; -1: it says nothing more."""
        return self._session.status if self._session and self._session.setting is None else -1

    def start(self, entries: Sequence[Entry], force: bool) -> None:
        """Run the entries; force: whatever is known of them."""
        agent = self._agent
        if self._share:
            entries = [{"run": entry["run"], "inputs": []} for entry in entries]
        try:
            self._session = Prerun(entries, agent.outfit.setting)
        except OSError as error:
            agent.fail("prerun", why(error))
            return
        self._once = Once(self._state, entries, force)
        source = Source(self._session.output, -1, "prerun")
        agent.locking.note(self._session.pid, [source])
        agent.work.add_source(source)

    def listen(self) -> None:
        """The session has said something."""
        session, agent = self._session, self._agent
        word = session.heard() if session and session.setting is None else ""
        if session is not None and word == HELD:
            assert session.setting is not None
            agent.outfit.setting = session.setting
            agent.ending.spared = {session.pid, session.holder}  # bash would tell of a child that was terminated
            if not agent.is_over():
                agent.work.relay_all(session.output)
                agent.outfit.tell_ready()
        elif word == ASKS and not agent.is_over():
            self._ask(wait=False)
        elif word == DONE and not agent.is_over():
            self._succeeded()

    def ended(self, status: int) -> None:
        """The session has; status is from waitpid."""
        self.listen()  # its last words may still be in the pipe
        session, agent = self._session, self._agent
        if session is not None and session.setting is None and not agent.is_over():
            agent.work.relay_all(session.output)
            agent.fail("prerun", session.failure(status))
        if self._once is not None:
            self._once.close()

    def release(self) -> None:
        """Let the session end, if its entries have run: one that waits for an answer would go on."""
        if self._session is not None and self._session.setting is not None:
            self._session.release()

    # ---- entries with inputs

    def _ask(self, wait: bool) -> None:
        """Find out whether the session must run the entry that it has come to."""
        assert self._session is not None
        assert self._once is not None
        try:
            if not wait:
                self._once.open()
            work = partial(self._once.decide, self._session.step, self._session.found, wait)
            self._agent.send_on_errand(work, self._decided)
        except OSError as error:
            self._agent.fail("prerun", why(error), hint(error))

    def _decided(self, answer: dict[str, Any]) -> None:
        session, once, agent = self._session, self._once, self._agent
        if session is None or once is None or agent.is_over():
            return
        if "error" in answer:
            agent.fail("prerun", answer["error"], answer["hint"])
        elif "busy" in answer:
            self._say("waits: another host runs the next entry in the same workspace")
            self._ask(wait=True)
        else:
            self._row = answer["row"]
            self._say("")
            told = {"entry": session.step, "why": answer["why"], "missing": answer["missing"]}
            agent.out.send({"type": "decided", **told})
            once.has_run = once.has_run or bool(answer["why"])
            if not answer["why"]:
                once.close()
            session.answer(RUN if answer["why"] else SKIP)

    def _succeeded(self) -> None:
        """An entry has: note it before the next one begins."""
        assert self._session is not None
        assert self._once is not None
        if not self._row:
            self._go_on({})
            return
        work = partial(self._once.keep, self._session.step, self._session.found, self._row)
        try:
            self._agent.send_on_errand(work, self._go_on)
        except OSError as error:
            self._go_on({"error": why(error)})

    def _go_on(self, answer: dict[str, Any]) -> None:
        session, once = self._session, self._once
        if session is None or once is None or self._agent.is_over():
            return
        if "error" in answer:
            self._say(f"that it has succeeded could not be noted, so that it will run again: {answer['error']}")
        once.close()
        session.answer(GO_ON)

    def _say(self, text: str) -> None:
        """A line of ours between those of the session; "": only end its last one."""
        assert self._session is not None
        source = self._agent.work.sources.get(self._session.output)
        self._agent.work.relay_all(self._session.output)
        lead = "" if source is None or source.ends_line else "\n"
        line = lead + (f"==> {text}\n" if text else "")
        if line:
            self._agent.out.send({"type": "output", "rank": -1, "stream": "prerun"}, line.encode("utf-8", "replace"))
