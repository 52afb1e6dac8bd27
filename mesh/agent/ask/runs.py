"""Questions about the runs of this user on the host, and orders to them."""

from __future__ import annotations

from mesh.agent.base.directories import machine_directory, places_of
from mesh.agent.control import requests
from mesh.agent.control.sockets import remove_socket
from mesh.agent.control.takeover import end_agent, wait_until_ended
from mesh.agent.link.journal import journals
from mesh.agent.process.notes import left_notes, remove_notes, strays
from mesh.agent.process.processes import all_processes, below, is_agent, is_own, run_of, variable_of
from mesh.agent.process.sweep import sweep
from mesh.protocol import control
from mesh.protocol.kinds import as_it_is
from mesh.protocol.replies import (
    AllPassed,
    Journal,
    Journals,
    LeftAlone,
    NewProcesses,
    Orphan,
    Passed,
    Runs,
    Stopped,
    StoppedRun,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.ask.context import Context
    from mesh.agent.process.processes import Process
    from mesh.protocol.questions import AskJournals, AskRuns, Detach, Pass, Restart, Stop
    from mesh.protocol.replies import Run

END_MARGIN_S = 10.0  # beyond a run's grace, for SIGKILL to take effect and for a look that all is gone


def list_runs(question: AskRuns, context: Context) -> Runs:
    """Return the runs of all agents, and the processes of runs without one."""
    found = requests.runs(limit_s=requests.LIST_LIMIT_S)
    orphaned = [Orphan(run=run, told=process.described()) for run, process in orphans(found)]
    return Runs(runs=found, orphans=orphaned)


def list_journals(question: AskJournals, context: Context) -> Journals:
    """Return the journals of this user's detached runs."""
    found = [journal for place in places_of(context.remote_dir) for journal in journals(machine_directory(place))]
    tapes = [Journal.take({"run": journal.run, "plan": journal.about.plan}, as_it_is) for journal in found]
    return Journals(tapes=[tape.replaced(taken=one.about.taken) for tape, one in zip(tapes, found)])


def detach(question: Detach, context: Context) -> LeftAlone:
    """Have the agents of a run go on without their client."""
    return LeftAlone(told=requests.describe(question.run, control.Detach()))


def pass_on(question: Pass, context: Context) -> AllPassed:
    """Have the agents of a run signal ranks as their user would."""
    order = control.Pass(signal=question.signal, ranks=question.ranks, id=question.id)
    answers = requests.request_all(question.run, order, Passed, requests.ANSWER_LIMIT_S)
    return AllPassed(told=[passed or Passed(ranks={}) for _, passed in answers])


def restart(question: Restart, context: Context) -> NewProcesses:
    """Have the agents of a run start ranks again, and wait until they have."""
    order = control.Restart(ranks=question.ranks, grace=question.grace, to=question.to, id=question.id)
    answers = [answer for _, answer in requests.request_all(question.run, order, NewProcesses, question.limit)]
    found = [one for answer in answers if answer is not None for one in answer.ranks]
    return NewProcesses(ranks=found, agents=len(answers), silent=sum(answer is None for answer in answers))


def stop(question: Stop, context: Context) -> Stopped:
    """End runs, and wait until all their processes are gone. An agent that does not answer is ended with its ranks."""
    run, grace = question.run, question.grace
    stopped = requests.stop_runs(run, grace)
    own = [END_MARGIN_S if one.grace is None else one.grace for one in stopped]
    longest = max(own if grace is None else [grace] * len(stopped), default=0.0)
    at_work, stuck = wait_until_ended(stopped, longest + END_MARGIN_S)
    left = at_work | {agent for agent in stuck if end_agent(*agent)}
    names = [one.run for one in stopped]
    for orphan in [] if left else {name: None for name, _ in orphans(requests.runs()) if run in ("", name)}:
        names.append(orphan)
        if sweep(orphan):
            left.add((orphan, -1))
        else:
            for note in left_notes(orphan):
                remove_socket(note.run, note.node)
                remove_notes(note.run, note.node)
    return Stopped(stopped=[StoppedRun(run=name) for name in names], left=sorted({name for name, _ in left}))


def orphans(runs: Sequence[Run]) -> list[tuple[str, Process]]:
    """Return this user's processes of runs that have no agent any more, but for those that a setup left on purpose.

    runs: the answers of all agents
    """
    every = all_processes()
    kept = {process.pid for process in below({process.pid for process in every if is_agent(process.pid)}, every)}
    live = {one.run for one in runs} | {run_of(pid) for pid in kept}
    found = []
    for process in every:
        run = run_of(process.pid) if process.pid not in kept else ""
        if run and run not in live and is_own(process.pid) and not variable_of(process.pid, b"MESH_SETUP"):
            found.append((run, process))
    listed = {process.pid for _, process in found}
    hidden = [(note.run, process) for note in left_notes() for process in strays(note)]
    return found + [(run, process) for run, process in hidden if process.pid not in listed]
