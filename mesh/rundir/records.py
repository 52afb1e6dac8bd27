"""Reading run directories: what a run was, and whether its client is there. Whatever a crash has left can be read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from mesh.core.amounts import ago
from mesh.core.cluster import Host, Placement
from mesh.core.naming import NamedRun, is_name
from mesh.core.nodes import Arrived
from mesh.core.outcome import Cause
from mesh.core.run import Group, Kind, Rules, RunSpec
from mesh.rundir.layout import EVENTS, LOGS, RUN

UNFETCHED = "unfetched"  # in run.json: the end of the run is recorded, and its hosts may have more output
ARRIVED = ("time", "node", "rank", "attempt", "printed")
NUMBER_MAX = 1e11  # the year 5138: no number of ours is greater
_RANK_LOG = re.compile(r"rank-([0-9]{4,9})\.(?:out|err)")


class State(Enum):
    """The progress of a run, by its directory."""

    ON = "on"  # its client is there
    ENDED = "ended"
    DETACHED = "detached"  # it goes on without a client, or has ended since it had one
    DIED = "died"  # its client is gone, and has not written how it ended


class Record(Struct, frozen=True, kw_only=True, dict=True):
    """A run that this machine has started. Fields that its directory lacks are empty, 0 or None."""

    run: str  # its id
    directory: Path
    state: State
    cluster: str
    kind: str  # "run", "setup" or "sync"
    command: tuple[str, ...]  # (): the run has roles
    hosts: tuple[str, ...]  # their names
    created: float  # seconds since the epoch: when mesh began with it
    started: float | None  # when its ranks started
    ended: float | None
    exit_code: int | None
    cause: str  # a value of Cause
    about: Mapping[str, Any]  # run.json; {} if it cannot be read

    @property
    def lacks_output(self) -> bool:
        """True if the hosts may have output that is not here."""
        return self.state is State.DETACHED or (self.state is State.ENDED and self.about.get(UNFETCHED) is True)

    @property
    def verb(self) -> str:
        """The command of mesh that has started it: "run", "exec", "setup" or "push"; "" if that is not recorded."""
        if self.kind == Kind.SYNC.value:
            return "push"
        return "exec" if self.kind == Kind.RUN.value and self.spec.is_exec else self.kind

    @property
    def counts_as_last(self) -> bool:
        """True for a ``mesh run`` that has found its hosts free; "last" is the newest of these."""
        return self.verb in ("run", "") and self.cause != Cause.BUSY.value

    @property
    def named(self) -> NamedRun:
        """The words by which the user may call it."""
        name, tags = _text(self.about, "name"), _texts(self.about, "tags")
        return NamedRun(
            run=self.run,
            name=name if is_name(name) else "",
            tags=tuple(filter(is_name, tags)),
            command=f"mesh {self.verb}" if self.verb in ("setup", "push") else self.spec.told,
            age=ago(time.time() - self.created),
            is_over=self.state in (State.ENDED, State.DIED),
        )

    @cached_property
    def spec(self) -> RunSpec:
        """The spec of the run, as far as its directory has it."""
        return read_spec(self.about, self.run)

    @cached_property
    def placement(self) -> Placement:
        """The ranks by their hosts now, as far as labels need it."""
        moves = moves_of(self.about, self.hosts)
        return self.first_placement.moved(moves) if moves else self.first_placement

    @cached_property
    def first_placement(self) -> Placement:
        """The ranks by their hosts at the start of the run: names and numbers of logs go by it."""
        hosts = [Host(name=name, address="") for name in self.hosts or ("?",)]
        if self.about.get("spec") or _number(self.about, "nproc"):
            return self.spec.placed(hosts)
        return self.spec.with_nproc(_ranks_with_logs(self.directory) // len(hosts)).placed(hosts)


def read_record(directory: Path) -> Record:
    """The run of a directory. Raises nothing: fields that cannot be read are empty."""
    # In this order: who has let go of the directory has written the end.
    is_there = has_client(directory)
    about = read_about(directory)
    ended = _number(about, "ended")
    hosts = _texts(about, "hosts")
    return Record(
        run=directory.name,
        directory=directory,
        state=_state(about, is_there),
        cluster=_text(about, "cluster"),
        kind=_text(about, "kind"),
        command=_texts(about, "command"),
        hosts=hosts,
        created=_number(about, "created") or _number(about, "started") or _time_of(directory.name),
        started=_number(about, "started"),
        ended=ended,
        exit_code=None if ended is None else int(_number(about, "exit_code") or 0),
        cause=_text(about, "cause"),
        about=about,
    )


def read_spec(about: Mapping[str, Any], run: str) -> RunSpec:
    """Return the spec of a run from its run.json, or from one of its hosts.

    The version before wrote no spec, but the fields that a client needs to follow the run.
    """
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return RunSpec.from_json({**about["spec"], "run": run})
    rules, group = Rules(), Group(command=_texts(about, "command"))
    with contextlib.suppress(ValueError):
        rules = convert(about.get("rules") or {}, Rules)
    with contextlib.suppress(ValueError):
        group = convert({"command": group.command, "nproc": about.get("nproc", 1)}, Group)
    workspace = Path(_text(about, "workspace") or "/")
    return RunSpec(run=run, project="", workspace=workspace, groups=(group,), rules=rules)


def _state(about: Mapping[str, Any], is_there: bool) -> State:
    if _number(about, "ended") is not None:
        return State.ENDED
    if is_there:
        return State.ON
    return State.DETACHED if about.get("detached") is True else State.DIED


def has_client(directory: Path) -> bool:
    """Return True while a client writes there: it holds a lock as long as it lives."""
    try:
        descriptor = os.open(directory / EVENTS, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:  # another process has it, or there are no locks
        return True
    finally:
        os.close(descriptor)


def size_on_disk(directory: Path) -> int:
    """Bytes that the files below a directory take; links are not followed, and what vanishes is not counted."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += size_on_disk(Path(entry.path))
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def read_about(directory: Path) -> Mapping[str, Any]:
    """Return run.json; {} if it cannot be read."""
    try:
        about = json.loads((directory / RUN).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _ranks_with_logs(directory: Path) -> int:
    """Count the ranks by their logs, for a run.json of version 1 or a broken one, which lack the number."""
    with contextlib.suppress(OSError):
        found = (_RANK_LOG.match(name) for name in os.listdir(directory / LOGS))
        return max((int(match.group(1)) + 1 for match in found if match), default=0)
    return 0


def _text(about: Mapping[str, Any], key: str) -> str:
    value = about.get(key)
    return value if isinstance(value, str) else ""


def _texts(about: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = about.get(key)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _number(about: Mapping[str, Any], key: str) -> float | None:
    value = about.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        return None
    return float(value)


def _time_of(run: str) -> float:
    """The time that an id begins with."""
    try:
        return time.mktime(time.strptime(run[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


def arrivals_of(about: Mapping[str, object], hosts: Sequence[str]) -> tuple[Arrived, ...]:
    """Return the moves of ranks between hosts, in order.

    about: run.json; hosts: the names of all hosts of the run
    """
    written = about.get("moves")
    found: list[Arrived] = []
    for item in written if isinstance(written, list) else ():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            own = {**item, "node": hosts.index(item["host"]), "time": 0.0}
            found.append(convert({name: own[name] for name in ARRIVED}, Arrived))
    return tuple(found)


def moves_of(about: Mapping[str, object], hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranks that have moved to another host, each with the index of that host.

    about: run.json; hosts: the names of all hosts of the run
    """
    written = about.get("moved")
    moved = written.items() if isinstance(written, dict) else ()
    return [(int(rank), hosts.index(host)) for rank, host in moved if rank.isdecimal() and host in hosts]
