"""One run, from what was typed, the environment and the project."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mesh.config.hosts import NoHost, expand, numbers
from mesh.config.project import VARIABLE, Project, project_directory_name
from mesh.config.yamlfile import did_you_mean
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.run import DEFAULT_DRAIN, DEFAULT_HOST_GRACE, RunSpec, command_words

USAGE = "mesh run [options] CLUSTER COMMAND [ARG ...]"
MOST_RANKS = 1024  # on one host
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What was typed, as it was typed; "" is what was not."""

    hosts: str = ""
    ranks: str = ""
    exclude: str = ""
    nproc: str = ""
    env: tuple[str, ...] = ()  # each "NAME=VALUE"
    grace: str = ""
    drain: str = ""
    timeout: str = ""
    host_grace: str = ""
    keep_going: bool = False
    interactive: bool = False  # -i: our standard input for rank 0
    stdin: str = ""  # "none", "rank0" or "all"


def select_hosts(cluster: Cluster, flags: RunFlags) -> Cluster:
    """The cluster less the hosts that were not picked, in its own order. Raises UsageError.

    ``--hosts`` and ``--exclude`` take names and ranges of names, or numbers of hosts; ``--ranks`` takes the numbers.
    """
    count = len(cluster.hosts)
    picked = set(range(count))
    if flags.hosts:
        picked &= _by_name(cluster, "--hosts", flags.hosts)
    if flags.ranks:
        picked &= _by_number(cluster, "--ranks", flags.ranks)
    if flags.exclude:
        picked -= _by_name(cluster, "--exclude", flags.exclude)
    if not picked:
        raise UsageError(f"no host of {cluster.name} is left", hint=f"it has {', '.join(_names(cluster)[:8])}")
    hosts = tuple(host for node, host in enumerate(cluster.hosts) if node in picked)
    return Cluster(**{**vars(cluster), "hosts": hosts})


def _names(cluster: Cluster) -> list[str]:
    return [host.name for host in cluster.hosts]


def _by_name(cluster: Cluster, flag: str, text: str) -> set[int]:
    names = _names(cluster)
    found: set[int] = set()
    # A comma inside brackets belongs to a range.
    for part in re.split(r",(?![^\[]*\])", text):
        part = part.strip()
        try:
            for name in expand(part):
                if name in names:
                    found.add(names.index(name))
                elif re.fullmatch(r"[0-9]+(-[0-9]+)?", name):
                    found |= _by_number(cluster, flag, name)
                else:
                    near = did_you_mean(name, names)
                    raise UsageError(f"{flag}: no host {name!r} in {cluster.name}{near}")
        except NoHost as error:
            raise UsageError(f"{flag}: {error}") from error
    return found


def _by_number(cluster: Cluster, flag: str, text: str) -> set[int]:
    try:
        found = {int(number) for number in numbers(text)}
    except NoHost as error:
        raise UsageError(f"{flag}: {error}") from error
    if max(found) >= len(cluster.hosts):
        last = len(cluster.hosts) - 1
        raise UsageError(f"{flag}: no host {max(found)} in {cluster.name}: its hosts are 0-{last}")
    return found


def run_spec(
    project: Project,
    flags: RunFlags,
    words: Sequence[str],
    run: str,
    environ: Mapping[str, str],
    user: str,
    machine: str,
) -> RunSpec:
    """Everything about a run but its hosts: flag > environment > project file > default. Raises UsageError.

    run: the id of the run; user, machine: who runs it and where, for the directory on the hosts
    """
    command = command_words(list(words))
    if not command or (words[0] == "-c" and len(words) == 1):
        raise UsageError("no command was given", hint=USAGE)
    if any("\0" in word for word in command):
        raise UsageError("a word of the command holds a zero byte")
    stdin = flags.stdin or ("rank0" if flags.interactive else "none")
    if stdin not in ("none", "rank0", "all"):
        raise UsageError(f"--stdin: expected none, rank0 or all, found {stdin!r}")
    return RunSpec(
        run=run,
        project=project_directory_name(project.workspace, user, machine),
        workspace=project.workspace,
        command=command,
        ignore=project.ignore,
        prerun=project.prerun,
        env=_environment(project, flags, environ),
        nproc=_nproc(flags.nproc),
        grace=_seconds("grace", flags.grace, environ, project.grace),
        drain=_seconds("drain", flags.drain, environ, DEFAULT_DRAIN),
        timeout=_seconds("timeout", flags.timeout, environ, 0.0),
        host_grace=_seconds("host-grace", flags.host_grace, environ, DEFAULT_HOST_GRACE, least=1.0),
        keep_going=flags.keep_going,
        stdin=stdin,
    )


def _environment(project: Project, flags: RunFlags, environ: Mapping[str, str]) -> dict[str, str]:
    env = {
        name: value
        for name, value in environ.items()
        if VARIABLE.fullmatch(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in project.passed)
    }
    env.update(project.env)
    for typed in flags.env:
        name, equals, value = typed.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise UsageError(f"--env: expected NAME=VALUE, found {typed!r}")
        env[name] = value
    return env


def _nproc(typed: str) -> int:
    if not typed:
        return 1
    if not typed.isdecimal() or not 1 <= int(typed) <= MOST_RANKS:
        raise UsageError(f"--nproc: expected a number from 1 to {MOST_RANKS}, found {typed!r}")
    return int(typed)


def _seconds(name: str, typed: str, environ: Mapping[str, str], otherwise: float, least: float = 0.0) -> float:
    """A time such as 10, 1.5, 30s, 5m or 2h, in seconds."""
    variable = f"MESH_{name.upper().replace('-', '_')}"
    place, text = (f"--{name}", typed) if typed else (variable, environ.get(variable, ""))
    if not text:
        return otherwise
    found = _DURATION.fullmatch(text)
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else math.inf
    if not math.isfinite(seconds):
        raise UsageError(f"{place}: expected seconds, or a time such as 30s, 5m or 2h, found {text!r}")
    if seconds < least:
        raise UsageError(f"{place}: expected at least {least:g} s, found {text!r}")
    return seconds
