"""The part of a command that the user sees: sinks, introduction, questions and summary."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.config.project import FILE as PROJECT_FILE
from mesh.core.cluster import Cluster, Placement
from mesh.core.errors import UsageError
from mesh.core.look import WHENS, Look
from mesh.core.outcome import Cause, Outcome
from mesh.core.ranks import counted
from mesh.core.run import Kind, RunSpec
from mesh.core.typed import Typed

if TYPE_CHECKING:
    from mesh.core.interfaces import Sink
    from mesh.rundir.writer import StoreSink
    from mesh.screen.output import Style
    from mesh.screen.terminal import TerminalSink
    from mesh.verdict.verdict import Verdict

SUMMARY_LIMIT_S = 1.0  # for the summary, where a reader has stood still already
ANSWER_POLL_S = 0.1
OUTPUTS, LABELS, FOLDS = ("all", "fold", "rank0", "none"), ("rank", "host"), ("numbers", "mean", "exact")

Summary = Callable[[Outcome, Placement], tuple[Sequence[str], Sequence[str]]]  # lines of success, and of failure


class Showing(Struct, frozen=True, kw_only=True):
    """How a command shows a run, and if it keeps it."""

    output: str = "all"  # one of OUTPUTS; "": "fold" on a terminal, else "all"
    label: str = "rank"  # one of LABELS
    fold: str = "numbers"  # one of FOLDS: all but "exact" also fold lines that differ only in numbers
    look: Look = Look()
    json: bool = False  # events on stdout
    quiet: bool = False  # show nothing
    kept: bool = True  # in a run directory
    stdin_notice: bool = False  # report once if our standard input has data that no rank gets
    typed: Typed | None = None  # the user's command line; None: messages have no line to paste

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--output", self.output or "all", OUTPUTS),
            ("--label", self.label, LABELS),
            ("--fold", self.fold, FOLDS),
            ("--color", self.look.color, WHENS),
        ):
            if value not in known:
                raise UsageError(f"{name}: expected {', '.join(known)}, found {value!r}")
        if self.look.terse and self.look.steps:
            raise UsageError("--quiet and --verbose contradict each other", hint="leave one of them out")

    @property
    def mode(self) -> str:
        """The output as wanted here: a member of OUTPUTS."""
        if self.output:
            return self.output
        from mesh.screen.descriptor import replaced

        return "fold" if _is_terminal(1) and replaced(1) is None else "all"


class Screen:
    """The terminal and the JSON lines of one run, as far as they are wanted."""

    def __init__(self, spec: RunSpec, cluster: Cluster, placement: Placement, showing: Showing) -> None:
        from mesh.screen.pause import Pause

        self._spec, self._cluster, self._placement, self._showing = spec, cluster, placement, showing
        self._terminal = None if showing.quiet else _terminal(spec, placement, showing)
        self.pause = Pause()  # of sinks, while the user is asked

    def sinks(self) -> list[Sink]:
        """Return the sinks that show the run."""
        sinks: list[Sink] = [self._terminal] if self._terminal else []
        if self._terminal and self._spec.rules.pty:
            from mesh.screen.rawterminal import RawTerminal

            sinks = [RawTerminal(self._terminal, self.hidden, self._placement.node(0))]
        if self._spec.rules.debug:
            from mesh.screen.unseen import Unseen

            # None of them writes while pdb is open.
            sinks = [Unseen(one, {}, self._placement, from_start=True, pause=self.pause) for one in sinks]
        if self._showing.json:
            from mesh.screen.jsonl import JsonSink

            sinks.append(JsonSink(placement=self._placement))
        return sinks

    def check_terminal(self) -> None:
        """Raise UsageError if rank 0 is to have our terminal, and there is none."""
        if self._spec.rules.debug and (self._showing.json or not (_is_terminal(0) and _is_terminal(2))):
            what = "--json" if self._showing.json else "stdin and stderr are no terminal"
            raise UsageError(f"--debug: pdb needs a terminal ({what})", hint="mesh run --debug pod COMMAND")
        if not self._spec.rules.pty:
            return
        if self._showing.json or self._showing.quiet:
            raise UsageError("--pty gives rank 0 your terminal: leave out --json", hint="mesh run --pty pod COMMAND")
        if not (_is_terminal(0) and _is_terminal(1)):
            raise UsageError("--pty: stdin and stdout are no terminal", hint="use -i to send stdin to rank 0")

    def hidden(self) -> contextlib.AbstractContextManager[None]:
        """Within: the terminal shows no live line, as a question stands there."""
        return self._terminal.hidden() if self._terminal else contextlib.nullcontext()

    def introduce(self) -> None:
        """Show notices about the cluster before it is used."""
        spec, cluster = self._spec, self._cluster
        if spec.kind is Kind.RUN and len(set(cluster.slices)) > 1:
            sizes = ", ".join(map(str, cluster.slices))
            self._say(f"the slices have {sizes} hosts; a program that joins TPU slices (Multislice) needs equal ones")
        if cluster.note and self._showing.kept:
            self._say(cluster.note)
        if spec.kind is Kind.SETUP:
            self._say(f"Setting up cluster '{cluster.name}' ({counted(len(cluster.hosts), 'host')})")
            if not spec.commands:
                self._say(f"nothing to run: there are no commands: in {spec.workspace / PROJECT_FILE}")

    def report_incomplete_logs(self, problem: str) -> None:
        """Report why the run directory is not written on."""
        self._say(f"the run continues, but its logs are incomplete: {problem}")

    def report(self, text: str) -> None:
        """Report a problem that does not end the run."""
        self._say(text)

    def headline(self, ended: Conclusion) -> str:
        """Return the first line of the summary; "" if there is none."""
        return next(iter(self._lines(ended)), "")

    def choose(self, is_over: Callable[[], bool]) -> str:
        """Ask if Ctrl-C is meant for the run: "stop", "leave" or "go on". is_over: ends the question once it is true"""
        name = self._spec.run[-6:]
        question = f"Run {name} keeps running if you leave.  [s]top  [l]eave  [Enter] keep watching "
        with self.pause.asking(), self.hidden():
            os.write(2, f"\n{question}".encode())
            while not select.select([0], [], [], ANSWER_POLL_S)[0]:
                if is_over():
                    os.write(2, b"\n")
                    return "go on"
            answer = os.read(0, 100).decode("utf-8", "replace") or "l"
        return {"s": "stop", "l": "leave"}.get(answer.strip().lower()[:1], "go on")

    def conclude(self, ended: Conclusion) -> None:
        """Show how the run ended."""
        if self._terminal is None:
            return
        if ended.is_shown:
            self._conclude(self._terminal, ended)
        else:  # its reader has stood still, and may go on to read these lines
            terminal = self._terminal
            last = threading.Thread(target=lambda: self._conclude(terminal, ended), name="mesh-last-words", daemon=True)
            last.start()
            last.join(SUMMARY_LIMIT_S)

    def _say(self, text: str) -> None:
        if self._terminal:
            self._terminal.say(text)

    def _conclude(self, terminal: TerminalSink, ended: Conclusion) -> None:
        from mesh.core.amounts import told_bytes
        from mesh.core.ranks import told_ranks

        outcome, store = ended.outcome, ended.store
        terminal.conclude(self._lines(ended), failed=bool(outcome.exit_code))
        if store and store.left_out:
            size, ranks = told_bytes(sum(store.left_out.values())), told_ranks(store.left_out)
            terminal.say(f"left out of the logs: {size} of {ranks}, beyond `logs:` in mesh.yaml or for want of room")
        if terminal.problem:
            terminal.complain(f"not all output could be shown: {terminal.problem}")
        if ended.summary:
            done, failed = ended.summary(outcome, self._placement)
            terminal.conclude(done, failed=False)
            terminal.conclude(failed, failed=True)
        if outcome.stopped and self._spec.kind is Kind.RUN and outcome.cause is not Cause.OUTPUT_CLOSED:
            from mesh.screen.summary import receipt

            text = receipt(outcome, self._placement, has_claim=self._spec.claim)
            terminal.say(text, is_good=not outcome.unclean)

    def _lines(self, ended: Conclusion) -> Sequence[str]:
        from mesh.screen.summary import modules_summary, run_summary, setup_summary, sync_summary, with_cluster

        placement, store, typed = self._placement.moved(ended.outcome.moved), ended.store, self._showing.typed
        outcome = with_cluster(ended.outcome, typed)
        if self._spec.kind is Kind.SYNC:
            return sync_summary(outcome, placement, typed)
        # After a failure of what goes on there was no run to attach to, which is an error.
        if store is None or (outcome.goes_on and outcome.failures):
            return []
        if self._spec.kind is Kind.MODULES:
            return modules_summary(outcome, placement, self._spec, store.logs)
        if self._spec.kind is Kind.SETUP:
            return setup_summary(outcome, placement, self._cluster.name, store.set_up, store.logs)
        from mesh.app.missing import advised, in_mesh_yaml, naming

        logs, verdict = ended.logs or store.logs, naming(advised(ended.verdict, self._spec), typed)
        lines = run_summary(in_mesh_yaml(outcome, self._spec), placement, verdict, store.prepared, logs, typed)
        return [*lines[:-1], ended.account, lines[-1]] if lines and ended.account else lines


class Conclusion(Struct, frozen=True, kw_only=True):
    """The end of a run, for its summary."""

    outcome: Outcome
    verdict: Verdict | None  # None: the run is not kept
    store: StoreSink | None  # None: the run is not kept
    logs: Path | None  # the directory to name instead of the store's
    summary: Summary | None  # the last lines, where the run is not kept
    account: str  # the scheduler's account of the hosts, in one line; "": there is none
    is_shown: bool  # false if a reader of the output stood still when the run was interrupted


def _terminal(spec: RunSpec, placement: Placement, showing: Showing) -> TerminalSink:
    from mesh.screen.terminal import About, Streams, TerminalSink

    mode = "none" if showing.json else showing.mode
    streams = Streams(
        environ=os.environ,
        stdin_fd=0 if spec.rules.stdin == "none" else -1,
        unsent=_unsent_notice(spec) if showing.stdin_notice else "",
        typed_for_ranks=spec.rules.stdin != "none" and _is_terminal(0),
    )
    about = About(
        progress=not showing.json,
        noun="host" if spec.kind is Kind.SETUP else "rank",
        run=spec.run if spec.kind is Kind.RUN else "",
        stacks=spec.stacks_on_timeout or spec.rules.hang_watch > 0,
        host_grace=spec.rules.host_grace,
        title=spec.told,
        undo=spec.undo,
        typed=showing.typed,
    )
    return TerminalSink(placement, style_of(replace(showing, output=mode), spec, is_cut=True), streams, about)


def style_of(showing: Showing, spec: RunSpec, *, is_cut: bool) -> Style:
    """Return the style of a run's output; is_cut: as in Style"""
    from mesh.screen.output import Style

    places = None
    if spec.project and (_is_terminal(1) or _is_terminal(2)):
        from mesh.screen.places import LocalPlaces

        places = LocalPlaces(spec.project, spec.workspace, Path(os.environ.get("PWD", "/")))
    return Style(
        mode=showing.mode,
        label=showing.label,
        fold=showing.fold,
        look=showing.look,
        is_cut=is_cut,
        places=places,
    )


def _unsent_notice(spec: RunSpec) -> str:
    hint = "" if spec.detach else "; use -i (rank 0) or --stdin all"
    return f"stdin is not sent to any rank{hint}"


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False
