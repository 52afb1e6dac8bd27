"""Runs that go on without a client: leaving one, coming back to it, signalling its ranks."""

from __future__ import annotations

import os
import secrets
import signal as signals
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from mesh.api.choosing import usable_project
from mesh.api.detached import DetachedRun, Place, find_detached, known, prepared, with_hosts, with_moves
from mesh.api.inquiries import FoundRun, ask, find_run, told_failures
from mesh.api.meant import run_meant
from mesh.api.newest import present_attempt
from mesh.api.noderesults import fetch_results
from mesh.api.records import find_record
from mesh.api.replaying import logs
from mesh.app.assemble import Parts, launch, placed
from mesh.app.screen import Showing
from mesh.config.settings import Options
from mesh.core.amounts import ago
from mesh.core.cluster import Placement
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Stream
from mesh.core.look import Look
from mesh.core.naming import LAST
from mesh.core.outcome import Cause
from mesh.core.ranks import choose_ranks, told_ranks
from mesh.engine.question import ANSWER_TIMEOUT_S, Question
from mesh.protocol import questions
from mesh.protocol.records import Record as Reply
from mesh.protocol.replies import AllPassed, LeftAlone
from mesh.rundir.layout import LOGS
from mesh.rundir.records import Record, State, arrivals_of
from mesh.rundir.results import RankResult, RunResult, run_result

R = TypeVar("R", bound=Reply)
T = TypeVar("T")
DEFAULTS, PLAIN = Options(), Look()
FROM = ("here", "start", "now")


def attach(
    run: str = LAST,
    *,
    cluster: str = "",
    begin: str = "here",
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    fold: str = "numbers",
    json: bool = False,
    quiet: bool = False,
    look: Look = PLAIN,
) -> RunResult:
    """Show the output of a detached run until it has ended, and return how it ended; also of one that has ended before.

    run: an id, a name or tag, a part of an id or name, "last", or a cluster for the newest run there
    cluster: where it is; "": from this machine's record, else every cluster of cluster.yaml is asked
    begin: what is shown: "here" what this machine has not seen yet, "start" all of it, "now" what comes from now on.
    The run directory gets everything in any case.
    output, label, fold, json, quiet, look: as with ``run``
    In the main thread SIGINT, SIGTERM and SIGHUP end the looking on, and not the run; on a terminal Ctrl-C asks.
    Raises UsageError, and MeshError if there is no such run to attach to.
    """
    if begin not in FROM:
        raise UsageError(f"--from: expected {', '.join(FROM)}, found {begin!r}")
    showing = Showing(output=output, label=label, fold=fold, json=json, quiet=quiet, look=look)
    run, cluster = present_attempt(*run_meant(run, cluster, clusters_file), clusters_file)
    record = None if cluster and run == LAST else find_record(run)
    if record is not None and record.state is State.ENDED and not record.lacks_output:
        return _ended(record, showing, begin)
    if record is not None and record.about.get("hosts"):
        found = known(record, cluster)
        if record.state is State.DIED:
            found = with_moves(found, clusters_file)
    else:
        found = find_detached(record.run if record else run, cluster, clusters_file)
    return _attach(found, showing, begin, clusters_file)


def detach(run: str = LAST, *, cluster: str = "", clusters_file: str = "") -> str:
    """Have the hosts of a run keep it without its client, which ends with status 0; return the run's id.

    run, cluster: as with ``attach``
    Raises UsageError, and MeshError if a host cannot be asked, or does not do it.
    """
    return detach_found(find_run(run, cluster, DEFAULTS, clusters_file))


def detach_found(where: FoundRun) -> str:
    """Have the hosts of a run that was found keep it without its client; return its id. Raises MeshError."""
    full = where.run
    answers = ask_agents(where, questions.Detach(run=full), LeftAlone)
    runs = require_agents([one for answer in answers for one in answer.told], where)
    if missing := sorted({one.node for one in runs if not one.detached}):
        if why := next((one.tied for one in runs if one.tied), ""):
            raise MeshError(f"{full} cannot be detached: {why}", hint=f"mesh stop {full}")
        states = ", ".join(sorted({one.state for one in runs if one.node in missing}))
        raise MeshError(
            f"{full} cannot be detached: it is {states}", hint="a run can be once all its ranks have started"
        )
    return full


def signal(
    run: str,
    name: str,
    *,
    ranks: Iterable[int] | str | None = None,
    cluster: str = "",
    clusters_file: str = "",
) -> Mapping[int, int]:
    """Signal the ranks of a run; return to how many processes of each rank it went.

    name: as kill(1) has it: "USR1", "SIGUSR1" or "10"
    ranks: their numbers, or text as --rank takes it; None: all
    Signals that ask for an end or a pause go to every process of a rank. All others go only to processes that have a
    handler for them, because they would end the others, as the shell around a program.
    run, cluster: as with ``attach``. Raises UsageError, and MeshError if a host cannot be asked.
    """
    return signalled(run, name, ranks=ranks, cluster=cluster, clusters_file=clusters_file)[1]


def signalled(
    run: str, name: str, *, ranks: Iterable[int] | str | None, cluster: str, clusters_file: str
) -> tuple[Placement | None, Mapping[int, int]]:
    """Do what ``signal`` does; return the places of the ranks as well; None: no record has them."""
    number = _number(name)
    where = find_run(run, cluster, DEFAULTS, clusters_file)
    if isinstance(ranks, str):
        ranks = choose_ranks("--rank", ranks, where.record.placement if where.record else None)
    wanted = None if ranks is None else sorted(set(ranks))
    question = questions.Pass(run=where.run, signal=number, ranks=wanted, id=secrets.token_hex(8))
    answers = ask_agents(where, question, AllPassed)
    passed = require_agents([one for answer in answers for one in answer.told], where)
    went = {int(rank): count for one in passed for rank, count in one.ranks.items()}
    if wanted is not None and (missing := set(wanted) - went.keys()):
        raise MeshError(f"{told_ranks(missing)}: no such process is there any more", hint="`mesh ps` lists what runs")
    placement = where.record.placement if where.record and where.record.hosts else None
    return placement, dict(sorted(went.items()))


def _number(name: str) -> int:
    upper = name.upper()
    if name.isdecimal() and int(name) in signals.valid_signals():
        return int(name)
    try:
        return signals.Signals[upper if upper.startswith("SIG") else f"SIG{upper}"].value
    except KeyError:
        raise UsageError(f"no signal is called {name!r}", hint="`kill -l` lists them") from None


def ask_agents(
    where: FoundRun, question: questions.Question[R], kind: type[R], answer_s: float = ANSWER_TIMEOUT_S
) -> list[R]:
    """Ask all hosts of a run; return the answers of this kind. Raises MeshError if a host cannot be asked.

    answer_s: seconds for each answer
    """
    answers, troubles = ask_some(where, question, kind, answer_s)
    if troubles:
        raise MeshError("\n".join(troubles), hint=f"mesh check {where.clusters[0].name}")
    return answers


def ask_some(
    where: FoundRun, question: questions.Question[R], kind: type[R], answer_s: float = ANSWER_TIMEOUT_S
) -> tuple[list[R], list[str]]:
    """Do the same; return also a line for each host that cannot be asked."""
    answers: list[R] = []
    troubles: list[str] = []
    for found in where.clusters:
        if where.record and where.record.hosts:
            found = with_hosts(found, where.record.hosts)
        inquiry = ask(found, Question(message=question, answer_s=answer_s), busy=answer_s)
        troubles += told_failures(found, inquiry)
        answers += inquiry.replies(kind).values()
    return answers, troubles


def require_agents(agents: list[T], where: FoundRun) -> list[T]:
    """Return the answers of a run's agents. Raises MeshError if there is none, because the run has ended."""
    if not agents:
        raise _has_ended(where)
    return agents


def _has_ended(found: FoundRun) -> MeshError:
    """Return the error for a run that no host has an agent of."""
    record = found.record
    if record is None or record.ended is None:
        return MeshError(f"run {found.run} has ended", hint=f"mesh attach {found.run}")
    how = f"exit {record.exit_code}"
    return MeshError(f"run {found.run} ended {ago(time.time() - record.ended)} ({how})", hint=f"mesh logs {found.run}")


def _attach(found: DetachedRun, showing: Showing, begin: str, clusters_file: str) -> RunResult:
    from mesh.engine.attachment import Attachment

    spec, cluster = prepared(found, clusters_file)
    can_ask = sys.stdin is not None and sys.stdin.isatty() and os.isatty(2) and not showing.quiet
    arrivals = arrivals_of(found.about, [host.name for host in cluster.hosts])
    attachment = Attachment(spec, placed(spec, cluster), can_ask=can_ask, arrivals=arrivals)
    place = Place(found, begin)
    try:
        parts = Parts(spec=spec, cluster=cluster, showing=showing, decider=attachment, attaching=place.attaching)
        # Those of this directory's mesh.yaml: a host may have sent the spec, and names no command that runs here.
        parts = replace(parts, notify=usable_project().notify)
        outcome, placement, store = launch(parts)
        assert store is not None
        if outcome.cause is Cause.PREPARE:
            place.forget()
            (failure, *_) = outcome.failures
            raise MeshError(f"{cluster.hosts[failure.node].name}: {failure.message}", hint=failure.hint)
        if spec.keep_results and not outcome.goes_on:
            fetch_results(spec, cluster, store.directory)
        return place.told(run_result(outcome, placement, store, (Stream.STDOUT, Stream.STDERR)))
    finally:
        place.close()


def _ended(record: Record, showing: Showing, begin: str) -> RunResult:
    """Return the result of a run that has ended, from its directory."""
    from mesh.rundir.layout import log_name
    from mesh.screen.output import Style
    from mesh.screen.terminal import Streams, TerminalSink

    if begin == "start" and not showing.quiet and not showing.json:
        logs(record.run, output=showing.output, label=showing.label, fold=showing.fold, look=showing.look)
    if not showing.quiet:
        terminal = TerminalSink(record.placement, Style(mode="none", look=showing.look), Streams(environ=os.environ))
        lines = [
            f"{record.run} has ended: exit {record.exit_code} ({record.cause})",
            f"logs: {record.directory / LOGS}",
        ]
        terminal.conclude(lines, failed=bool(record.exit_code))
    exits = {item.get("rank"): item for item in record.about.get("ranks", ()) if isinstance(item, dict)}
    placement, place = record.placement, record.directory / LOGS
    ranks = []
    for rank in range(placement.world_size):
        about = exits.get(rank, {})
        ranks.append(
            RankResult(
                rank=rank,
                host=placement.hosts[placement.node(rank)].name,
                label=placement.label(rank),
                code=about.get("code"),
                signal=about.get("signal"),
                stdout_path=place / log_name(placement, rank, Stream.STDOUT),
                stderr_path=place / log_name(placement, rank, Stream.STDERR),
            )
        )
    return RunResult(
        run=record.run,
        exit_code=record.exit_code or 0,
        cause=Cause(record.cause),
        ranks=tuple(ranks),
        failures=(),
        directory=record.directory,
    )
