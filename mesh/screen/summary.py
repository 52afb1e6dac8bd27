"""The summary of a run in at most 25 lines: the first failure, and the last lines of its rank."""

from __future__ import annotations

import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.core.amounts import told_bytes
from mesh.core.cluster import Placement
from mesh.core.events import CONNECTING, Lost, NoCommand, PrepareFailed
from mesh.core.outcome import EXIT_NOT_FOUND, Cause, Outcome
from mesh.core.pull import NotPulled, Pulled
from mesh.core.ranks import counted, few, told_ranks
from mesh.core.run import RunSpec
from mesh.core.typed import SHELL_BUILTINS, Typed
from mesh.screen.alikehosts import joined, key_of
from mesh.verdict.verdict import LAST_LINES, Failure, Tail, Verdict, agents_killed_together, told_return

SUMMARY_LINES = 25
QUOTED_CHARACTERS = 200  # characters of a line that is quoted
INDENT = "    "
_NOT_FOUND = re.compile(r"bash: ([\w.+-]+): command not found$")
# Words that steps of prerun begin with.
PRERUN_WORDS = ("cd", "conda", "export", "mkdir", "module", "pip", "python3", "source", "ulimit", "uv")
_SCRIPT = re.compile(r"^/proc/self/fd/\d+: line \d+: ")  # bash names the script of prerun by this, and our own line


def run_summary(
    outcome: Outcome,
    placement: Placement,
    verdict: Verdict | None,
    prepared: Tail,
    logs: Path,
    typed: Typed | None = None,
) -> list[str]:
    """Return the lines for people. A closed stdout has none.

    prepared: the last lines of a host's prerun
    typed: the command line of the run, from which lines to paste are made
    """
    if outcome.cause is Cause.OUTPUT_CLOSED:
        return []
    lines = _why(verdict, placement, outcome) if verdict else _ending(outcome, placement, prepared, typed=typed)
    if outcome.started and outcome.cause is Cause.LOST and outcome.failures:
        lines = [*_skipped(outcome, placement), *lines]
    lines += left_out(outcome, placement, typed)
    return [*_fitted(lines, outcome, placement), f"logs: {logs}"]


def receipt(outcome: Outcome, placement: Placement, *, has_claim: bool) -> str:
    """Return the line about hosts that are proven to be clean, after mesh has ended ranks.

    has_claim: the hosts have also waited until their devices were free
    """
    all_hosts = len(placement.hosts)
    clean = all_hosts - len(outcome.unclean)
    seconds = max(0.0, outcome.ended - outcome.ending_since) if outcome.ending_since else 0.0
    hosts = f"{clean}/{all_hosts} host{'s' * (all_hosts != 1)} clean in {seconds:.1f} s"
    ended = f"{hosts}: {counted(len(outcome.stopped), 'rank')} ended"
    if outcome.unclean:
        return f"{ended}; not verified: {few([placement.hosts[node].name for node in outcome.unclean])}"
    return f"{ended}, no process left{', devices free' if has_claim else ''}"


def setup_summary(outcome: Outcome, placement: Placement, cluster: str, tail: Tail, logs: Path) -> list[str]:
    """Return the lines for people after a setup.

    tail: the last lines of a host's setup
    """
    if outcome.cause is Cause.OUTPUT_CLOSED:
        return []
    lines = []
    if outcome.cause is Cause.COMPLETED:
        lines = [f"Cluster '{cluster}' setup complete"]
    elif outcome.cause in (Cause.RANK, Cause.LOST):
        failed = sorted((e for e in outcome.exits if e.status), key=lambda e: e.time)
        number = len(failed) + len(outcome.lost)
        lines = [f"setup of cluster '{cluster}' failed on {number} of {counted(len(placement.hosts), 'host')}"]
        for event in failed:
            lines.append(f"{placement.hosts[event.node].name}: {event.told()} in {event.during!r}"[:QUOTED_CHARACTERS])
            most = max(2, LAST_LINES // len(failed))
            lines += [f"{INDENT}{line[:QUOTED_CHARACTERS]}" for line in _of_last_command(tail(event.node))[-most:]]
        lines += [f"{placement.hosts[lost.node].name}: lost: {lost.reason}" for lost in outcome.lost]
    else:
        lines = _ending(outcome, placement, tail, what="setup")
    return [*_fitted(lines, outcome, placement), f"logs: {logs}"]


def modules_summary(outcome: Outcome, placement: Placement, spec: RunSpec, logs: Path) -> list[str]:
    """Return the lines for people after modules were set up or undone."""
    if outcome.cause is Cause.OUTPUT_CLOSED:
        return []
    state, hosts = "undone" if spec.undo else "in place", counted(len(placement.hosts), "host")
    lines = [f"{state} on {hosts}: {', '.join(spec.modules)}"]
    if outcome.cause is not Cause.COMPLETED:
        lines = _ending(outcome, placement, lambda node: [], what="setup")
    return [*_fitted(lines, outcome, placement), f"logs: {logs}"]


def sync_summary(outcome: Outcome, placement: Placement, typed: Typed | None = None) -> list[str]:
    """Return the lines for people after a sync; none if it succeeded, as the terminal has shown that.

    typed: as with run_summary
    """
    if outcome.cause in (Cause.COMPLETED, Cause.OUTPUT_CLOSED):
        return []
    if outcome.cause is Cause.SIGNAL:
        lines = [f"ended by {signal.Signals(outcome.exit_code - 128).name}"]
    else:
        lines = _failures(outcome, placement, lambda node: [], "sync")
        lines += left_out(outcome, placement, typed)
    return _fitted(lines, outcome, placement)


def pull_summary(
    outcome: Outcome,
    placement: Placement,
    pulled: Sequence[Pulled],
    missing: Sequence[NotPulled],
    took: float,
    into: str,
) -> tuple[list[str], list[str]]:
    """Return the lines for people after a pull: the files that came, and the paths that did not.

    took: seconds; into: the directory of the files
    """
    if outcome.cause is Cause.OUTPUT_CLOSED:
        return [], []
    if outcome.cause is Cause.SIGNAL:
        return [], [f"ended by {signal.Signals(outcome.exit_code - 128).name}: the same command goes on from there"]
    all_hosts = len(placement.hosts)
    hosts = counted(all_hosts, "host") if len(pulled) == all_hosts else f"{len(pulled)} of {counted(all_hosts, 'host')}"
    files, unchanged = sum(one.files for one in pulled), sum(one.unchanged for one in pulled)
    were_here = f" ({unchanged} unchanged)" if unchanged else ""
    size = told_bytes(sum(one.bytes for one in pulled))
    told = [f"pulled {counted(files, 'file')}{were_here} from {hosts} into {into}: {size}, {took:.1f} s"]
    if special := sum(one.special_modes for one in pulled):
        told += [f"{counted(special, 'path')}: setuid, setgid and sticky bits were not kept"]
    told += _limited(_of_hosts(placement, [one for one in missing if not one.fails], "not pulled: "), LAST_LINES)
    lines = _of_hosts(placement, [one for one in missing if one.fails])
    if outcome.failures:
        lines += _grouped(outcome, placement, lambda node: ())
    if lines:
        lines = ["not everything was pulled", *_limited(lines, SUMMARY_LINES - LAST_LINES)]
    return told if files or not lines else [], lines


def _of_hosts(placement: Placement, missing: Sequence[NotPulled], lead: str = "") -> list[str]:
    """List paths that were not pulled; equal failures of several hosts are one line."""
    groups: dict[tuple[str, str], list[int]] = {}
    for one in missing:
        groups.setdefault((one.path, one.reason), []).append(one.node)
    return [f"{lead}{_who(placement, nodes)}: {path}: {reason}" for (path, reason), nodes in groups.items()]


def _who(placement: Placement, nodes: Sequence[int]) -> str:
    names = list(dict.fromkeys(placement.hosts[node].name for node in sorted(nodes)))
    return names[0] if len(names) == 1 else f"{len(names)} hosts ({few(names)})"


def _of_last_command(said: Sequence[str]) -> Sequence[str]:
    """Return the output of the last command of a setup, without the line that shows the command."""
    begins = [number for number, line in enumerate(said) if line.startswith("$ ")]
    return said[begins[-1] + 1 :] if begins else said


def _fitted(lines: list[str], outcome: Outcome, placement: Placement) -> list[str]:
    """Add lines about hosts that were not verified, and leave room for one more line."""
    lines += [likely] if (likely := agents_killed_together(outcome, placement)) else []
    lines += _limited([f"not verified: {line}" for line in outcome.unverified], 5)
    room = SUMMARY_LINES - 1
    if len(lines) > room:
        lines = [*lines[: room - 1], f"and {len(lines) - room + 1} lines more in run.json"]
    return lines


def _ending(
    outcome: Outcome, placement: Placement, prepared: Tail, what: str = "command", typed: Typed | None = None
) -> list[str]:
    """Describe the end of a run that no failure of a rank has decided."""
    took = outcome.ended - outcome.started
    match outcome.cause:
        case Cause.COMPLETED | Cause.LOST:  # lost without a verdict: hosts were not reached, and have no ranks
            ranks = placement.world_size if outcome.cause is Cause.COMPLETED else len(outcome.exits)
            return [f"done: {counted(ranks, 'rank')} exited 0 in {took:.1f} s"]
        case Cause.PROGRAM:
            return [f"done: the program was stopped with status {outcome.exit_code} after {took:.1f} s"]
        case Cause.TIMEOUT:
            return [f"timed out: the {what} was stopped"]
        case _ if outcome.goes_on and not outcome.failures:
            run = outcome.run
            if len(outcome.exits) == placement.world_size:
                return [f"all ranks of {run} have ended by now: `mesh attach {run}` shows how"]
            return [
                f"{run} is still running, detached",
                f"mesh attach {run}  # come back",
                f"mesh stop {run}  # end it",
            ]
        case Cause.SIGNAL:
            name = signal.Signals(outcome.exit_code - 128).name
            where = f"the {what} was stopped" if outcome.started else f"before the {what} was started"
            return [f"ended by {name}: {where}"]
        case Cause.RANK:
            return _no_command(outcome, placement, typed)
        case _:
            return _failures(outcome, placement, prepared, what, typed)


def _why(verdict: Verdict, placement: Placement, outcome: Outcome) -> list[str]:
    """Describe the failure of a rank or the loss of a host that ended the run."""
    first, root = verdict.first, verdict.root
    if isinstance(first, Lost) and (away := verdict.not_returned):
        hosts = [placement.hosts[lost.node].name for lost in away]
        of_them = [rank for lost in away for rank in placement.ranks(lost.node)]
        lines = told_return(hosts, of_them, first.return_within, first.reason)
    elif isinstance(first, Lost):
        ranks = told_ranks(placement.ranks(first.node))
        after = f"{max(0.0, first.time - outcome.started):.1f} s after the start"
        lines = [f"lost contact with {placement.hosts[first.node].name} ({ranks}), {after}: {first.reason}"]
    else:
        who = first.who
        what = f"{told_ranks(verdict.alike)} failed alike" if len(verdict.alike) > 1 else f"{who} failed first"
        lines = [f"{what}: {_how(first)}, {first.after:.1f} s after the start"]
        lines += [f"last lines of {who}:"] if len(verdict.alike) > 1 and first.said else []
        lines += _quoted(first, 3 if root else LAST_LINES)
    if root:
        lines.append(f"its output is about another rank; last lines of rank {root.event.rank} on {root.host}:")
        lines += _quoted(root, LAST_LINES)
    lines += _others(verdict)
    failure = root or first
    from mesh.verdict.facts import FILE_MISSING

    if isinstance(failure, Failure) and failure.fact and failure.fact.advice:
        # On a missing file the advice is an explanation, or a command already.
        lines.append(failure.fact.advice if failure.fact.name == FILE_MISSING else f"try: {failure.fact.advice}")
    return lines


def _how(failure: Failure) -> str:
    told, fact = failure.event.told(), failure.fact
    return told if fact is None or fact.name in told or failure.event.oom else f"{told} ({fact.name})"


def _quoted(failure: Failure, most: int) -> list[str]:
    return [f"{INDENT}{line[:QUOTED_CHARACTERS]}" for line in failure.said[-most:]]


def _others(verdict: Verdict) -> list[str]:
    """Describe the later failures in one line."""
    parts = []
    if others := [event for event in verdict.others if event.rank not in verdict.alike]:
        how = sorted({event.told() for event in others})
        ranks = told_ranks(event.rank for event in others)
        parts.append(f"{ranks} failed within {verdict.span:.1f} s ({', '.join(how[:3])}{', ...' * (len(how) > 3)})")
    if more := len(verdict.lost) - max(0, len(verdict.not_returned) - 1):
        parts.append(f"{counted(more, 'more host')} lost")
    if verdict.stopped:
        parts.append(f"{told_ranks(verdict.stopped)} stopped by mesh")
    return ["after it: " + "; ".join(parts)] if parts else []


def _failures(
    outcome: Outcome, placement: Placement, prepared: Tail, what: str, typed: Typed | None = None
) -> list[str]:
    """List the failures that kept the command from being started."""
    begin = f"the {what} could not be started everywhere" if outcome.started else f"the {what} was not started"
    if what == "sync":
        begin = "not every host has the workspace"
    return [begin, *_grouped(outcome, placement, prepared, typed)]


def _skipped(outcome: Outcome, placement: Placement) -> list[str]:
    """Name the hosts that ``exec --keep-going`` went on without."""
    nodes = [failure.node for failure in outcome.failures]
    ranks = told_ranks(rank for node in nodes for rank in placement.ranks(node))
    first = f"{ranks} did not run: {len(nodes)} of {counted(len(placement.hosts), 'host')} could not be reached"
    return [first, *_grouped(outcome, placement, lambda node: ())]


def left_out(outcome: Outcome, placement: Placement, typed: Typed | None) -> list[str]:
    """Return the command line that leaves unreachable hosts out or waits for busy ones, if there is a use for it."""
    if typed and any(one.step == "lock" for one in outcome.failures):
        return [f"to wait for it: {typed.with_switch('--wait')}"]
    names = [placement.hosts[one.node].name for one in outcome.failures if one.step in CONNECTING]
    if typed is None or not 0 < len(names) < len(placement.hosts) or len(names) < len(outcome.failures):
        return []
    return [f"to leave {'it' if len(names) == 1 else 'them'} out: {typed.without(names)}"]


def _no_command(outcome: Outcome, placement: Placement, typed: Typed | None) -> list[str]:
    """Explain in two lines that hosts cannot execute the command, and what to type instead."""
    found = [failure for failure in outcome.failures if isinstance(failure, NoCommand)]
    program = found[0].program
    lacking = [failure.node for failure in found if failure.status == EXIT_NOT_FOUND]
    forbidden = [failure.node for failure in found if failure.status != EXIT_NOT_FOUND]
    parts = [f"no such command on {_of_all(placement, lacking)}"] if lacking else []
    parts += [f"not executable on {_of_all(placement, forbidden)}"] if forbidden else []
    first = f"the command was not started: {shlex.quote(program)}: {'; '.join(parts)}"
    is_typed = typed is not None and typed.command[:1] == (program,)
    if typed and is_typed and program in SHELL_BUILTINS:
        return [first, f"{program} belongs to a shell; for bash: {typed.as_shell_text()}"]
    if typed and is_typed and program.endswith(".py"):
        return [first, f"a file needs its interpreter: {shlex.join([*typed.before, 'python3', *typed.command])}"]
    names = Counter(failure.nearest for failure in found if failure.nearest)
    if not names:
        from mesh.verdict.facts import advice_on

        return [first, _filled(f"try: {advice_on(outcome.exit_code)}", typed)]
    ((nearest, _),) = names.most_common(1)
    line = f": {typed.with_program(nearest)}" if typed and is_typed else ""
    return [first, f"the nearest name there is {shlex.quote(nearest)}{line}"]


def with_cluster(outcome: Outcome, typed: Typed | None) -> Outcome:
    """Return the outcome with hints that name the cluster as it was typed."""
    if typed is None:
        return outcome
    return replace(outcome, failures=tuple(replace(one, hint=typed.filled(one.hint)) for one in outcome.failures))


def _filled(advice: str, typed: Typed | None) -> str:
    return typed.filled(advice) if typed else advice


def _of_all(placement: Placement, nodes: Sequence[int]) -> str:
    """
    >>> from mesh.core.cluster import Host, place_ranks
    >>> placement = place_ranks([Host(name=f"h{n}", address="") for n in range(3)])
    >>> _of_all(placement, [0, 1, 2]), _of_all(placement, [1])
    ('any of 3 hosts', '1 of 3 hosts (h1)')
    """
    count = len(placement.hosts)
    if len(nodes) == count:
        return placement.hosts[0].name if count == 1 else f"any of {count} hosts"
    return f"{len(nodes)} of {count} hosts ({few([placement.hosts[node].name for node in nodes])})"


def _grouped(outcome: Outcome, placement: Placement, prepared: Tail, typed: Typed | None = None) -> list[str]:
    """List failures; equal ones of several hosts are one line."""
    groups: dict[tuple[str, str, str], list[PrepareFailed]] = {}
    for failure in outcome.failures:
        groups.setdefault(key_of(failure), []).append(failure)
    lines: list[str] = []
    for (step, _, _), failures in groups.items():
        who = _who(placement, [failure.node for failure in failures])
        message, hint = joined(failures, placement.hosts[failures[0].node].name)
        # A fault on our side is no host's; of these steps the message is complete.
        text = f"{step}: {message}" if step in ("home", "sync", "devices", "prerun", "start") else message
        text = text.replace("prerun: prerun[", "prerun[", 1)  # with its place in mesh.yaml
        lines += (text if step == "workspace" else f"{who}: {text}").split("\n")
        if step == "prerun":
            said = [_SCRIPT.sub("bash: ", line) for line in prepared(failures[0].node)[-LAST_LINES:]]
            lines += [f"{INDENT}{line[:QUOTED_CHARACTERS]}" for line in [*said, *_instead(said, typed)]]
        lines += [f"{INDENT}{line}" for line in hint]
    return lines


def _instead(said: Sequence[str], typed: Typed | None = None) -> Iterator[str]:
    """Return what to do about a command that the last lines of prerun name as not found.

    >>> list(_instead(["bash: sourc: command not found"]))
    ['did you mean source?']
    """
    found = _NOT_FOUND.search(said[-1]) if said else None
    if found is None:
        return
    import difflib  # only for mistakes

    near = difflib.get_close_matches(found.group(1), PRERUN_WORDS, n=1, cutoff=0.7)
    if near and near[0] != found.group(1):
        yield f"did you mean {near[0]}?"
    else:
        yield _filled(f"`commands:` in mesh.yaml may install {found.group(1)}: mesh setup CLUSTER", typed)


def _limited(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]
