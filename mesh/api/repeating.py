"""The last command line of a directory, and the hosts that failed in its run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.api.records import list_records
from mesh.core.errors import UsageError
from mesh.rundir.commandline import CommandLine, read_command_line
from mesh.rundir.records import Record, State

PICKS_HOSTS = ("--hosts", "--ranks", "--exclude")  # replaced by the hosts that failed
ROLE = "--role"


class Repeatable(Struct, frozen=True, kw_only=True):
    """A run of this machine, and its command line."""

    record: Record
    line: CommandLine


def last_command(directory: Path) -> Repeatable:
    """Return the newest ``mesh run`` or ``mesh exec`` that was typed in a directory. Raises UsageError."""
    here = os.path.realpath(directory)
    for record in list_records():
        line = read_command_line(record.directory)
        if line is not None and line.directory == here:
            return Repeatable(record=record, line=line)
    hint = "`mesh run CLUSTER COMMAND` starts one; `mesh runs` lists those of all directories"
    raise UsageError("again: no mesh run or mesh exec was started in this directory", hint=hint)


def repeated(found: Repeatable, env: Collection[str], *, only_failed: bool) -> list[str]:
    """Return the words of the same command line, beginning with the name of its command. Raises UsageError.

    env: variables with a value; the command line has no values of its own, and the caller adds these
    only_failed: only on the hosts that have failed
    """
    line = found.line
    if line.is_masked:
        hint = f"its words, masked: mesh {shlex.join(line.words)}"
        raise UsageError("again: the command line held a secret, which no file has", hint=hint)
    if missing := [name for name in line.env if name not in env]:
        given = " ".join(f"--env {name}=VALUE" for name in missing)
        raise UsageError(f"again: values of --env are in no file: {', '.join(missing)}", hint=f"mesh again {given}")
    command, *rest = line.words
    if only_failed:
        return [command, f"--hosts={','.join(failed_hosts(found.record))}", *_without_hosts(rest)]
    return [command, *rest]


def _without_hosts(words: Sequence[str]) -> list[str]:
    """Return words without the options that pick hosts. Raises UsageError if roles name hosts."""
    kept = list[str]()
    for place, word in enumerate(words):
        flag = word.partition("=")[0]
        if not word.startswith("--") or word == "--":
            return [*kept, *words[place:]]
        if flag == ROLE:
            raise UsageError("--failed: the roles of the command line name their hosts", hint="mesh again")
        if flag not in PICKS_HOSTS:
            kept.append(word)
    return kept


def failed_hosts(record: Record) -> list[str]:
    """Return the hosts of a run that have failed, in their order. Raises UsageError if none has, or it is not over.

    Ranks that mesh has stopped because another one failed have not failed themselves.
    """
    if record.state is not State.ENDED:
        hint = f"mesh attach {record.run}" if record.state is State.DETACHED else "mesh again"
        raise UsageError(f"--failed: the end of run {record.run} is not recorded", hint=hint)
    about = record.about
    stopped = set(_list(about, "stopped"))
    failed = {
        rank.get("host")
        for rank in _list(about, "ranks")
        if isinstance(rank, dict) and (rank.get("code") or rank.get("signal")) and rank.get("rank") not in stopped
    }
    for name in ("lost", "failures"):
        failed |= {event.get("host") for event in _list(about, name) if isinstance(event, dict)}
    found = [host for host in record.hosts if host in failed]
    if not found:
        raise UsageError(f"--failed: no host of run {record.run} has failed", hint="mesh again")
    return found


def _list(about: Mapping[str, object], name: str) -> list[object]:
    found = about.get(name)
    return found if isinstance(found, list) else []
