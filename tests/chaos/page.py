"""docs/reliability.md: written by the programs that measure, one section each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.chaos.faults import BEHAVIOURS, FAULTS
from tests.chaos.schedule import Schedule, Verdict
from tests.chaos.trial import Cell, Result
from tests.pages import DOCS, Page, machine, today

INTRODUCTION = """\
# What is left when something dies

**When a run has ended, however it ended, no process of it is left on any host.** This is the promise. While a run
goes on, no line of its output gets lost or comes twice. Whatever dies, a rule decides what happens next:

| what happens | rule |
| --- | --- |
| Ctrl-C, SIGTERM, SIGHUP, a closed terminal | signal, `--grace`, SIGKILL; mesh leaves when all are gone |
| the client is killed | the hosts wait 5 s for it to come back, then SIGTERM, `--grace`, SIGKILL |
| the client falls silent (stopped, asleep, network) | the hosts keep the run for `--lease`, then the same |
| a host falls silent | lost after `--host-grace`, status 76; it ends its part when its lease runs out |
| an agent or its guardian is killed | the other one ends the ranks; the host is lost, status 76 |
| both are killed | the client's next connection ends what a control group or notes show, and names the rest |
| a rank fails | the others may print for 2 s, then SIGTERM, `--grace`, SIGKILL; the rank decides the status |
| a connection ends, and its host answers | mesh connects again and goes on where the output stopped |

The programs that wrote the tables below have measured them, on test hosts with a real sshd each. The hosts are
namespaces of one machine, with a network, processes and files of their own. Processes are counted from outside, in the
hosts' PID namespaces, and not by asking mesh. Every rank prints lines that can be computed, and notes on its host how
many. So the client's log files are compared to the byte.

Two clients started at once on the same 8 hosts, 50 times (`tests/integration/test_lock.py`, MESH_LOCK_ROUNDS=50, on
2026-11-22). Each time one of them had all hosts, and the other ended with 75. If one of the two had the hosts in
another order, both may have ended with 75.
"""
PAGE = Page(
    DOCS / "reliability.md",
    INTRODUCTION,
    ("matrix", "matrix-plain", "matrix-shared", "schedules", "schedules-plain", "orphans"),
)
# Who logs in to the hosts, in a heading, and what that means there.
USERS = {
    "root": ("as root", "mesh logs in as root: each run has a control group"),
    "plain": ("as a plain user", "mesh logs in as a plain user, who may make no control group"),
    "shared": ("with two hosts in one PID namespace", "the first two hosts see each other's processes"),
}
OPTIONS = {"root": "", "plain": " --user plain", "shared": " --shared-pids"}


def matrix(results: Mapping[Cell, Result], seconds: float, user: str = "root") -> str:
    """Return the table of all cells, and what was wrong with any of them. user: who logs in to the hosts"""
    heading, means = USERS[user]
    head = ["what dies", "user", "status", "output in the log files", "gone after, s (allowed)", *BEHAVIOURS]
    rows = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    wrong = []
    for name, fault in FAULTS.items():
        found = {ranks: results[cell] for ranks in BEHAVIOURS if (cell := Cell(fault=name, ranks=ranks)) in results}
        if not found:
            continue
        slowest = max(result.seconds for result in found.values())
        gone = "the run goes on" if fault.goes_on else f"{slowest:.1f} ({fault.allowed - 5:g} + 5)"
        cells = [_cell(found.get(ranks)) for ranks in BEHAVIOURS]
        told = [_counted(result.status for result in found.values()), _counted(r.output for r in found.values())]
        rows.append(f"| {' | '.join([name, user, *told, gone, *cells])} |")
        for ranks, result in found.items():
            wrong += [f"* {name}, {ranks}: {_short(problem)}" for problem in result.problems]
    good = sum(not result.problems for result in results.values())
    failed = "\n".join(["", "What was not as promised:", "", *wrong]) if wrong else ""
    return f"""\
## What dies, and what ranks do, {heading}

Written by `inv dev.chaos --all{_option(user)} --write` on {today()}: {len(results)} runs on 4 hosts each,
{seconds / 60:.0f} minutes, {good} as promised. Here {means}. Machine: {machine()}, shared with other work.

The heads of the last columns show what the ranks do. Below them stands the number of processes that were left on all
hosts once the time of the rule was over. That time has 1 s of grace, 2 s for the agents to leave, and 5 s for four
hosts on two busy cores. "gone after" is the slowest of the row, from the fault until no process was left, agents too.

* Output `all`: every byte that the ranks had printed. `a beginning`: all up to the loss of client or host, without a
  gap, a doubled line or a wrong byte. `less what was counted`: mesh counted each missing byte.
* `--grace 1` everywhere. `--lease 6 --host-grace 6` if something is gone for good, else the defaults.
* Status -9: the client was killed. A number in bold: not all was as promised.
* OpenSSH 9.2 times out only idle connections. If ranks print, the suite ended those connections itself.

{chr(10).join(rows)}
{failed}"""


def _option(user: str) -> str:
    return OPTIONS[user]


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return f"**{result.survivors}**" if result.problems else str(result.survivors)


def _short(text: str) -> str:
    """One line, without the paths and addresses of one run."""
    return " ".join(text.split())[:300].replace("|", "/")


def _counted(values: object) -> str:
    """`76`, or `all (8), a beginning (1)`."""
    listed = [str(value) for value in values]  # type: ignore[attr-defined]
    counts = {value: listed.count(value) for value in sorted(set(listed))}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{value} ({n})" for value, n in counts.items())


def schedules(first: int, verdicts: Sequence[tuple[Schedule, Verdict]], seconds: float, user: str = "root") -> str:
    """Return what became of random schedules. user: who logs in to the hosts"""
    heading, means = USERS[user]
    command = f"inv dev.chaos --seed {first} --rounds {len(verdicts)}{_option(user)} --write"
    survivors = sum(verdict.survivors for _, verdict in verdicts)
    lost = sum(verdict.lost for _, verdict in verdicts)
    hung = sum(verdict.hung for _, verdict in verdicts)
    strange = sum(verdict.status not in plan.status for plan, verdict in verdicts)
    strikes = sum(len(plan.strikes) for plan, _ in verdicts)
    ended = sum(plan.ends for plan, _ in verdicts)
    wrong = [f"* {plan.told()}: {_short(verdict.problems[0])}" for plan, verdict in verdicts if verdict.problems]
    failed = "\n".join(["", "Not as promised:", "", *wrong]) if wrong else ""
    return f"""\
## Random faults at random moments, {heading}

Written by `{command}` on {today()}: {len(verdicts)} runs on 4 hosts
each, {seconds / 60:.0f} minutes, with the seeds {first} to {first + len(verdicts) - 1}. What each rank does is chosen
at random, and so are one to three faults, their moments and targets. There were {strikes} faults; a run that ended
early did not meet all of its own. {ended} of the runs meet one that ends them, the others are only disturbed. Agent and
guardian are not killed together here. Here {means}. Machine: {machine()}, shared with other work.

| | |
| --- | --- |
| processes left | {survivors} |
| runs with a line lost, doubled or torn | {lost} |
| runs that hung | {hung} |
| runs with a status that no fault of theirs explains | {strange} |
{failed}"""
