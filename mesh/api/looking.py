"""How a detached run is, by its hosts' own word: it runs, it has ended, no host has it, or not all hosts answer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.checking import TCP_TIMEOUT_S
from mesh.api.detached import DetachedRun, Scratch
from mesh.api.gathering import GOING_ON, RUNNING
from mesh.api.inquiries import ask, told_failures
from mesh.api.lookout import Lookouts
from mesh.app.assemble import Parts, launch, placed
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.events import Stream
from mesh.core.outcome import Outcome
from mesh.core.run import RunSpec, followed
from mesh.engine.question import Question
from mesh.protocol.questions import AskJournals, AskRuns
from mesh.protocol.replies import Journals, Runs
from mesh.rundir.about import describe
from mesh.rundir.results import RunResult, run_result

SILENT_HOST_LIMIT_S = 20.0  # for a host that sends nothing
ANSWER_LIMIT_S = 60.0  # for a host's answer about its runs


class Standing(Enum):
    """How a run is."""

    RUNNING = "running"  # its hosts have it, and it needs no client
    CLIENT = "client"  # its hosts have it, and it ends by itself once its client is gone
    ENDED = "ended"
    UNKNOWN = "unknown"  # every host has answered, and none has it or had it
    NOT_ASKED = "not asked"  # hosts gave no answer


class Seen(Struct, frozen=True, kw_only=True):
    """The answer to a look at a run."""

    standing: Standing
    problem: str = ""  # with NOT_ASKED: which hosts, and why
    result: RunResult | None = None  # with ENDED
    lost: tuple[str, ...] = ()  # with ENDED: the hosts that were lost


def look_at(spec: RunSpec, cluster: Cluster, lookouts: Lookouts | None = None) -> Seen:
    """Return how a run is. The first host is asked alone, and all of them only if it does not have the run.

    spec: as the run was started; cluster: its hosts; lookouts: connections to first hosts that stay
    Raises UsageError.
    """
    alone = replace(cluster, hosts=cluster.hosts[:1], slices=())
    if lookouts is not None:
        runs = lookouts.of(alone).runs()
        if runs is not None and _in_answers(spec.run, [runs]) is Standing.RUNNING:
            return Seen(standing=Standing.RUNNING)
    elif len(cluster.hosts) > 1 and _standing(spec.run, alone).standing is Standing.RUNNING:
        return Seen(standing=Standing.RUNNING)
    found = _standing(spec.run, cluster)
    if found.standing in (Standing.RUNNING, Standing.CLIENT):
        return found
    return look_at_end(spec, cluster, unasked=found.problem)


def _standing(run: str, cluster: Cluster) -> Seen:
    """Ask for agents that have the run now; UNKNOWN without any."""
    inquiry = ask(cluster, Question(message=AskRuns(), answer_s=ANSWER_LIMIT_S), reach=TCP_TIMEOUT_S, quiet=True)
    standing = _in_answers(run, list(inquiry.replies(Runs).values()))
    if standing is not Standing.UNKNOWN:
        return Seen(standing=standing)
    if failures := told_failures(cluster, inquiry):
        return Seen(standing=Standing.NOT_ASKED, problem="; ".join(failures))
    return Seen(standing=Standing.UNKNOWN)


def _in_answers(run: str, answers: Sequence[Runs]) -> Standing:
    """Return how a run is by the agents that hosts have reported; UNKNOWN without any of it."""
    agents = [one for answer in answers for one in answer.runs if one.run == run]
    live = [one for one in agents if (one.state or RUNNING) in GOING_ON]
    if any(one.detached for one in live):
        return Standing.RUNNING
    if live or any(orphan.run == run for answer in answers for orphan in answer.orphans):
        return Standing.CLIENT
    return Standing.UNKNOWN


def look_at_end(spec: RunSpec, cluster: Cluster, *, unasked: str = "") -> Seen:
    """Return how a run has ended that no agent runs any more, by the journals that its hosts keep.

    unasked: hosts that gave no answer about their agents, and why
    """
    question = Question(message=AskJournals(), answer_s=ANSWER_LIMIT_S)
    inquiry = ask(cluster, question, reach=TCP_TIMEOUT_S, quiet=True)
    kept = [one.run for answer in inquiry.replies(Journals).values() for one in answer.tapes]
    problem = "; ".join(told_failures(cluster, inquiry)) or unasked
    if spec.run not in kept:
        return Seen(standing=Standing.NOT_ASKED if problem else Standing.UNKNOWN, problem=problem)
    try:
        outcome, result = _end_of(spec, cluster)
    except MeshError as error:
        return Seen(standing=Standing.NOT_ASKED, problem=str(error))
    if outcome is None:
        return Seen(standing=Standing.NOT_ASKED, problem=problem or "not every host has reported its end yet")
    lost = tuple(dict.fromkeys(cluster.hosts[one.node].name for one in outcome.lost))
    return Seen(standing=Standing.ENDED, result=result, lost=lost)


def _end_of(spec: RunSpec, cluster: Cluster) -> tuple[Outcome | None, RunResult | None]:
    """Return how a run has ended, without its output; None while that is not certain. Raises MeshError."""
    from mesh.engine.fetching import Fetching

    rules = replace(spec.rules, host_grace=min(spec.rules.host_grace, SILENT_HOST_LIMIT_S))
    spec = replace(followed(spec), rules=rules)
    placement = placed(spec, cluster)
    deciding = Fetching(spec, placement, lasting=True)
    about = describe(spec, cluster.name, placement)
    with contextlib.closing(Scratch(DetachedRun(run=spec.run, cluster=cluster.name, about=about))) as scratch:
        parts = Parts(
            spec=spec,
            cluster=cluster,
            showing=Showing(quiet=True),
            decider=deciding,
            attaching=replace(scratch.attaching, only_reads=True),
            reach_limit_s=TCP_TIMEOUT_S,
        )
        outcome, placement, store = launch(parts)
        if not deciding.has_ended or outcome.goes_on or store is None:
            return None, None
        return outcome, run_result(outcome, placement, store, (Stream.STDOUT, Stream.STDERR))
