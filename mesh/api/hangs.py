"""The stacks of the ranks of a run."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import shutil
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.api.inquiries import FoundRun, ask, find_run, told_failures
from mesh.config.settings import Options
from mesh.core.cluster import Placement
from mesh.core.errors import UsageError
from mesh.core.naming import LAST
from mesh.core.ranks import choose_ranks, told_ranks, told_roles
from mesh.core.stacks import Group, ended, fold, notes
from mesh.engine.question import Question
from mesh.protocol import replies
from mesh.protocol.questions import AskStacks
from mesh.rundir.records import State

DEFAULTS = Options()
PY_SPY = "py-spy"
MACHINES = {62: "x86_64", 183: "aarch64"}  # linux/include/uapi/linux/elf-em.h; as uname(1) has them
HASH_BYTES = 20  # of BLAKE2b, as for contents of a workspace


class Stacks(Struct, frozen=True, kw_only=True):
    """The stacks of all ranks of a run."""

    run: str
    groups: tuple[Group, ...]  # equal ones as one, the odd one out first
    ended: tuple[int, ...]  # ranks that have ended already
    notes: tuple[str, ...]  # why some have less, with a hint
    failures: tuple[str, ...]  # hosts that could not be asked, one line each
    ended_names: str = ""  # the ranks that have ended, by their labels; "": they have none


def stacks(
    run: str = LAST, *, ranks: str = "", cluster: str = "", options: Options = DEFAULTS, clusters_file: str = ""
) -> Stacks:
    """Return where every rank of a run is: its Python stacks, or else the state that the kernel has of it.

    run: an id, a name or tag, a part of an id or name, "last", or a cluster for the one run there
    ranks: only these, as --rank takes them; "": all
    cluster: where it runs; "": the one in this machine's record of the run, else every cluster of cluster.yaml
    Raises UsageError, also if no rank of it runs.
    """
    return stacks_of(find_run(run, cluster, options, clusters_file), ranks)


def stacks_of(found: FoundRun, ranks: str = "") -> Stacks:
    """Return the stacks of a run that was found. Raises UsageError, also if no rank of it runs."""
    placement = found.record.placement if found.record and found.record.hosts else None
    chosen = choose_ranks("--rank", ranks, placement) if ranks else None
    tool, load = _py_spy()
    message = AskStacks(run=found.run, tool=tool)
    question = Question(message=message, each_machine=True, wanted=lambda name: load())
    answers: list[tuple[str, replies.Stacks]] = []
    failures = list(found.problems)
    for one in found.clusters:
        inquiry = ask(one, question)
        failures += told_failures(one, inquiry)
        answers += [(one.hosts[node].name, answer) for node, answer in inquiry.replies(replies.Stacks).items()]
    answers = _once(answers)
    is_known = not failures and not any(answer.silent for _, answer in answers)
    if is_known and not any(answer.stacks for _, answer in answers):
        raise UsageError(f"no rank of run {found.run} is running", hint="`mesh ps` lists what runs")
    left = set[int]()
    if placement is not None and found.record is not None and found.record.state is State.DETACHED:
        left = left_behind(placement, answers, failures)
    failures += unknown(placement, answers, failures, left)
    if chosen is not None:
        answers = [(host, _only(answer, chosen)) for host, answer in answers]
        left &= chosen
    over = tuple(sorted({*ended(answers), *left}))
    return Stacks(
        run=found.run,
        groups=tuple(fold(answers, placement)),
        ended=over,
        ended_names=told_roles(over, placement),
        notes=tuple(notes(answers)),
        failures=tuple(failures),
    )


def left_behind(
    placement: Placement, answers: Sequence[tuple[str, replies.Stacks]], failures: Sequence[str]
) -> set[int]:
    """Return the ranks of hosts that answer without an agent of the run.

    In a detached run an agent leaves once the ranks of its host have ended.
    """
    if any(answer.silent for _, answer in answers):
        return set()
    seen = {rank.rank for _, answer in answers for rank in answer.ranks}
    failed = {line.partition(": ")[0] for line in failures}
    of_hosts = [set(placement.ranks(node)) for node, host in enumerate(placement.hosts) if host.name not in failed]
    return {rank for ranks in of_hosts if not seen & ranks for rank in ranks}


def unknown(
    placement: Placement | None,
    answers: Sequence[tuple[str, replies.Stacks]],
    failures: Sequence[str],
    left: Collection[int] = (),
) -> list[str]:
    """Return the hosts that were asked and reported none of their ranks; one line each. left: ranks that have ended"""
    seen = {rank.rank for _, answer in answers for rank in answer.ranks} | set(left)
    failed = {line.partition(": ")[0] for line in failures}
    if placement is None:
        silent = [host for host, answer in answers if answer.silent]
        return [f"{host}: the agent of the run does not answer" for host in silent]
    return [
        f"{host.name}: the agent of the run is gone or does not answer; no stacks of {told_ranks(ranks)}"
        for host, ranks in ((host, set(placement.ranks(node))) for node, host in enumerate(placement.hosts))
        if host.name not in failed and not seen & ranks
    ]


def _once(answers: list[tuple[str, replies.Stacks]]) -> list[tuple[str, replies.Stacks]]:
    """Keep each rank in the first answer that has it: a machine may be in several clusters."""
    seen: set[int] = set()
    kept: list[tuple[str, replies.Stacks]] = []
    for host, answer in answers:
        new = {rank.rank for rank in answer.ranks} - seen
        seen |= new
        kept.append((host, _only(answer, new)))
    return kept


def _only(answer: replies.Stacks, chosen: set[int]) -> replies.Stacks:
    """Return a host's answer without other ranks than these."""
    found = [stack.replaced(of=[one for one in stack.of if one.rank in chosen]) for stack in answer.stacks]
    ranks = [rank for rank in answer.ranks if rank.rank in chosen]
    return answer.replaced(ranks=ranks, stacks=[stack for stack in found if stack.of])


def _py_spy() -> tuple[dict[str, str], Callable[[], bytes]]:
    """Return our own py-spy, for hosts of the same kind that have none: its description ({}: none), and its content."""
    try:
        files = importlib.metadata.files(PY_SPY) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [Path(str(file.locate())) for file in files if file.name == PY_SPY]
    found = shutil.which(PY_SPY)
    for path in [*paths, *([Path(found)] if found else [])]:
        try:
            data = path.read_bytes()
        except OSError:
            continue
        machine = MACHINES.get(int.from_bytes(data[18:20], "little"), "")
        if data.startswith(b"\x7fELF\x02\x01") and machine:  # of Linux; on macOS ours is for nobody there
            digest = hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest()
            return {"machine": machine, "hash": digest, "path": str(path.resolve())}, functools.cache(
                functools.partial(zlib.compress, data)
            )
    return {}, lambda: b""
