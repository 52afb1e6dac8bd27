"""The spec of a run, from the options, the environment and the project."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import asdict, replace

from mesh.config.project import VARIABLE, Project, project_directory_name
from mesh.config.roles import Role
from mesh.config.variables import rank_variables
from mesh.core.cluster import LONGEST_KEEP, Cluster
from mesh.core.errors import UsageError
from mesh.core.forwarding import Forwarded
from mesh.core.naming import LAST, is_name
from mesh.core.run import (
    AUTO,
    DEFAULT_DRAIN,
    DEFAULT_HOST_GRACE,
    DEFAULT_LEASE,
    RANKS_PER_HOST_MAX,
    VISIBLE_DEVICES,
    Group,
    Launch,
    RuleOptions,
    Rules,
    RunSpec,
    command_words,
    visible_devices,
)

CLUSTER_VARIABLE = "MESH_CLUSTER"  # names the cluster of commands that name none
DEFAULT = "default"  # the place of a value that nothing sets
KEEP_VARIABLE = "MESH_KEEP"
NPROC = f"a number from 1 to {RANKS_PER_HOST_MAX}, or auto"
LAUNCHERS = ", ".join(launch.value for launch in Launch if launch.value)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")  # absl.flags.BooleanParser, and yes, no
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")


class Options(RuleOptions, frozen=True, kw_only=True):
    """The choices for one run.

    Times are in seconds. None leaves a time to its variable (MESH_GRACE and the like), then to mesh.yaml, then to the
    default.
    """

    hosts: str = ""  # only these: names or ranges, as "tpu-0,tpu-[4-7]"; "": all
    ranks: str = ""  # only the hosts with these numbers, as "0-3,6"; "": all
    exclude: str = ""  # not these: names, ranges or numbers
    nodes: int = 0  # of an allocation that mesh asks for; 0: as cluster.yaml has it
    slurm: Mapping[str, str] = field(default_factory=dict)  # other values of its ``slurm:``, by their keys
    roles: tuple[Role, ...] = ()  # commands by hosts, in place of one command for all
    nproc: int = 1  # ranks on each host, 1 .. 1024; AUTO: as many as it has GPUs
    launcher: str = ""  # the value of a Launch, which starts them; "": mesh itself
    bind: bool = False  # each rank sees one GPU of its host: that with the number of its LOCAL_RANK
    master_port: int = 0  # where the ranks meet on the first host, 1 .. 65535; 0: one that is free
    env: Mapping[str, str] = field(default_factory=dict)  # for every rank
    env_files: tuple[str, ...] = ()  # paths of files with more of them, whose values are masked
    grace: float | None = None  # from SIGTERM to SIGKILL (10)
    drain: float | None = None  # that the others may speak after the first failure (2)
    timeout: float | None = None  # from the start of the ranks; 0: none (0)
    host_grace: float | None = None  # that a host may be silent before it is lost, at least 1 (60)
    # For each try to connect and log in (10), and then for the login to start mesh's agent (20).
    connect_timeout: float | None = None
    lease: float | None = None  # that hosts keep the run without a sign of us, at least 1 (900 on a terminal, else 60)
    stdin_notice: bool = False  # show a message once if it has data and no rank gets it
    wait: float = 0.0  # for hosts that are busy with another run, at most so long; math.inf: without an end
    share: bool = False  # run beside others, in a copy of the workspace that is removed afterwards
    exclusive: bool = False  # refuse hosts where another Unix user's run is
    evict: bool = False  # end other processes of our user that hold a device
    fresh: bool = False  # remove from the workspace what hosts have made in it
    fan_out: bool = True  # hosts may hand on among themselves what they all lack
    prerun: bool = False  # run also the prerun entries whose inputs have not changed
    check: bool = False  # see first whether every host is fit for the run
    stacks: bool = False  # prepare every Python of the ranks to report its stacks
    stacks_on_timeout: bool = False  # show all stacks before the timeout ends the run
    hang_watch: float | None = None  # without output, after which stacks are taken (300 on a terminal, else 0: never)
    detach: bool = False  # leave once the ranks have started: the hosts keep the run by themselves
    retries: int = 0  # how often the command may be tried again
    retry_on: tuple[int, ...] = ()  # exit statuses after which it is; (): RETRY_STATUSES
    name: str = ""  # of the run, for every command that takes a run
    tags: tuple[str, ...] = ()  # of the run
    forward: tuple[Forwarded, ...] = ()  # ports of the hosts that this machine reaches during the run

    def checked(self) -> Options:
        """Return these options. Raises UsageError where two of them contradict each other."""
        if self.share and self.wait:
            hint = "leave one of them out"
            raise UsageError("--share takes no lock, so that there is nothing to --wait for", hint=hint)
        if self.share and self.exclusive:
            hint = "leave one of them out"
            raise UsageError("--share runs beside others, and --exclusive beside nobody", hint=hint)
        if self.stacks_on_timeout and not self.timeout:
            hint = "mesh run --timeout 2h --stacks-on-timeout ..."
            raise UsageError("--stacks-on-timeout needs --timeout", hint=hint)
        if self.detach and self.stacks_on_timeout:
            hint = "leave it out: `mesh stacks` shows where the ranks of a detached run are"
            raise UsageError("--stacks-on-timeout needs a client that is there, and --detach leaves", hint=hint)
        if self.pty and (self.detach or self.roles):
            other = "--detach" if self.detach else "--role"
            raise UsageError(f"--pty gives rank 0 your terminal: leave out {other}", hint="mesh run --pty pod COMMAND")
        if self.detach and self.stdin != "none":
            hint = "leave out -i or --stdin"
            raise UsageError("--detach leaves, so that there is no standard input to give", hint=hint)
        if self.debug and (self.detach or self.pty or self.stdin != "none"):
            other = "--detach" if self.detach else "--pty" if self.pty else "-i or --stdin"
            raise UsageError(
                f"--debug has your terminal for pdb: leave out {other}", hint="mesh run --debug pod COMMAND"
            )
        if self.detach and self.forward:
            hint = "mesh forward CLUSTER PORT"
            raise UsageError("--forward needs a client that is there, and --detach leaves", hint=hint)
        return self


class Client(Struct, frozen=True, kw_only=True):
    """The client that starts a run."""

    user: str  # with machine and workspace, decides the directory on the hosts
    machine: str
    environ: Mapping[str, str]
    lease: float = DEFAULT_LEASE  # seconds, where no option, variable or file sets it
    hang_watch: float = 0.0  # likewise


_TYPES = get_type_hints(Options)


def read_nproc(place: str, text: str) -> int:
    """Read a number of ranks on each host, or AUTO. Raises UsageError that names its place."""
    if text == "auto":
        return AUTO
    if not (text.isdecimal() and int(text)):
        raise UsageError(f"{place}: expected {NPROC}, found {text!r}")
    return int(text)


def read_port(place: str, text: str) -> int:
    """Read a TCP port. Raises UsageError that names its place."""
    if not (text.isdecimal() and int(text)):
        raise UsageError(f"{place}: expected a port (1 to 65535), found {text!r}")
    return int(text)


def read_name(place: str, text: str) -> str:
    """Read the name or tag of a run. Raises UsageError that names its place."""
    if not is_name(text):
        expected = f"up to 64 letters, digits, dots, dashes and underscores, neither {LAST} nor an id"
        raise UsageError(f"{place}: expected {expected}, found {text!r}")
    return text


def read_environment(place: str, text: str) -> dict[str, str]:
    """Read one NAME=VALUE. Raises UsageError that names its place."""
    name, equals, value = text.partition("=")
    if not equals or not VARIABLE.fullmatch(name):
        raise UsageError(f"{place}: expected NAME=VALUE, found {text!r}")
    return {name: value}


def is_time(text: str) -> bool:
    """Return True for a time such as 10, 1.5, 30s, 5m or 2h."""
    return bool(DURATION.fullmatch(text))


def read_seconds(place: str, text: str) -> float | None:
    """A time such as 10, 1.5, 30s, 5m or 2h, in seconds; None for "". Raises UsageError that names its place."""
    if not text:
        return None
    found = DURATION.fullmatch(text)
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else math.inf
    if not math.isfinite(seconds):
        raise UsageError(f"{place}: expected seconds, or a time such as 30s, 5m or 2h, found {text!r}")
    return seconds


def read_number(place: str, text: str) -> int | None:
    """A number of something; None for "". Raises UsageError that names its place."""
    if text and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{place}: expected a number, found {text!r}")
    return int(text) if text else None


def read_flag(place: str, text: str) -> bool | None:
    """true or false, as absl's flags take them; None for "". Raises UsageError that names its place."""
    if not text:
        return None
    if text.lower() not in (*_TRUE, *_FALSE):
        raise UsageError(f"{place}: expected true or false, found {text!r}")
    return text.lower() in _TRUE


def given_command(words: Sequence[str], usage: str, *, launcher: str = "") -> tuple[str, ...]:
    """The words that were typed after CLUSTER, as execve gets them. Raises UsageError if there are none.

    launcher: what gets them instead, none of them being shell text
    """
    command = tuple(words[words[:1] == ["--"] :]) if launcher else command_words(list(words))
    if not command or (words[0] == "-c" and len(words) == 1):
        raise UsageError("no command was given", hint=usage)
    return command


def run_spec(project: Project, options: Options, command: Sequence[str], run: str, client: Client) -> RunSpec:
    """Return the spec of a run without its hosts: option > environment > project file > default. Raises UsageError.

    command: the words for execve
    run: the id of the run
    """
    _check_types(options)
    environ = client.environ
    if any(not isinstance(word, str) or "\0" in word for word in command):
        raise UsageError("the words of a command are texts without zero bytes")
    if options.stdin not in ("none", "rank0", "all"):
        raise UsageError(f"--stdin: expected none, rank0 or all, found {options.stdin!r}")
    if options.nproc != AUTO and not 1 <= options.nproc <= RANKS_PER_HOST_MAX:
        raise UsageError(f"--nproc: expected {NPROC}, found {options.nproc}")
    if not 0 <= options.master_port <= 65535:
        raise UsageError(f"--master-port: expected a port (1 to 65535), found {options.master_port}")
    env, secrets = rank_variables(project, options.env_files, options.env, environ)
    name, tags = _names(options, [env[name] for name in secrets])
    launcher = _launcher(options)
    chosen = times(project, options, client)
    rules = Rules(
        grace=chosen["grace"].value,
        drain=chosen["drain"].value,
        timeout=chosen["timeout"].value,
        host_grace=chosen["host-grace"].value,
        lease=chosen["lease"].value,
        hang_watch=chosen["hang-watch"].value,
        spool=project.spool,
        logs=project.logs,
    )
    return RunSpec(
        run=run,
        project=project_directory_name(project.workspace, client.user, client.machine),
        workspace=project.workspace,
        groups=(Group(command=tuple(command), env=env, nproc=_nproc(options, env)),),
        rules=replace(rules, **{name: getattr(options, name) for name in RuleOptions.__struct_fields__}),
        ignore=project.ignore,
        include_git=project.include_git,
        keep_tree=project.keep_tree,
        prerun=project.prerun,
        force=options.prerun,
        launcher=launcher,
        bind=options.bind,
        master_port=options.master_port,
        wait=options.wait,
        share=options.share,
        exclusive=options.exclusive,
        evict=options.evict,
        fresh=options.fresh,
        fan_out=options.fan_out,
        detach=options.detach,
        name=name,
        tags=tags,
        stacks=options.stacks,
        stacks_on_timeout=options.stacks_on_timeout,
        secrets=secrets,
        env_files=tuple(Path(path).absolute() for path in options.env_files),
    )


def _names(options: Options, secrets: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the name and the tags of the run. Raises UsageError also for one that holds a secret, as hosts show it."""
    for place, text in (("--name", options.name), *(("--tag", tag) for tag in options.tags)):
        if any(value in text for value in secrets):
            raise UsageError(f"{place}: holds the value of a secret variable", hint=f"choose another {place[2:]}")
    name = read_name("--name", options.name) if options.name else ""
    return name, tuple(dict.fromkeys(read_name("--tag", tag) for tag in options.tags))


def _launcher(options: Options) -> Launch:
    if options.launcher not in [launch.value for launch in Launch]:
        raise UsageError(f"--launcher: expected one of {LAUNCHERS}, found {options.launcher!r}")
    if options.launcher and options.bind:
        hint = "leave --bind out: the processes choose theirs by LOCAL_RANK"
        raise UsageError(f"--bind would leave {options.launcher} one GPU for all processes of its host", hint=hint)
    return Launch(options.launcher)


def _nproc(options: Options, env: Mapping[str, str]) -> int:
    """Processes on each host: where the user has named GPUs, AUTO stands for all of these."""
    listed = visible_devices(env)
    nproc = (len(listed) or AUTO) if options.nproc == AUTO else options.nproc
    if options.bind and listed and len(listed) < nproc:
        name = next(name for name in VISIBLE_DEVICES if env.get(name))
        raise UsageError(f"--bind: {name} names {len(listed)} GPUs for {nproc} ranks on each host")
    return nproc


def _check_types(options: Options) -> None:
    """Check the values that a program may have put into options. Raises UsageError that names the field."""
    for name, value in asdict(options).items():
        try:
            convert(value, _TYPES[name])
        except ValidationError as error:
            text = str(error)
            raise UsageError(f"{name}: {text[:1].lower()}{text[1:]}, found {value!r}") from error
    for name, value in options.env.items():
        if not VARIABLE.fullmatch(name):
            raise UsageError(f"env: {name!r} is no name of a variable")
        if "\0" in value:
            raise UsageError(f"env: {name}: expected a text without zero bytes, found {value!r}")


class Seconds(Struct, frozen=True, kw_only=True):
    """A time, and the place that it comes from."""

    value: float
    place: str = DEFAULT


def times(project: Project, options: Options, client: Client) -> dict[str, Seconds]:
    """Return the times of a run by their options' names: option > environment > project file > default.

    Raises UsageError.
    """
    environ = client.environ
    grace = Seconds(value=project.grace, place=project.place("grace") or DEFAULT)
    host_grace, lease = Seconds(value=DEFAULT_HOST_GRACE), Seconds(value=client.lease)
    return {
        "grace": _seconds("grace", options.grace, environ, grace),
        "drain": _seconds("drain", options.drain, environ, Seconds(value=DEFAULT_DRAIN)),
        "timeout": _seconds("timeout", options.timeout, environ, Seconds(value=0.0)),
        "host-grace": _seconds("host-grace", options.host_grace, environ, host_grace, least=1.0),
        "lease": _seconds("lease", options.lease, environ, lease, least=1.0),
        "hang-watch": _hang_watch(project, options, client),
    }


def _hang_watch(project: Project, options: Options, client: Client) -> Seconds:
    if options.detach:  # a client takes the stacks, and leaves
        return Seconds(value=0.0, place="--detach")
    otherwise = Seconds(value=client.hang_watch)
    if project.hang_watch is not None:
        otherwise = Seconds(value=project.hang_watch, place=project.place("hang_watch"))
    return _seconds("hang-watch", options.hang_watch, client.environ, otherwise)


class Chosen(Struct, frozen=True, kw_only=True):
    """A value and the place that it comes from."""

    text: str = ""
    place: str = DEFAULT  # as "--grace", "MESH_GRACE" or "mesh.yaml:12"


def chosen_default(project: Project, environ: Mapping[str, str]) -> Chosen:
    """Return the cluster of commands that name none: environment > project file."""
    if named := environ.get(CLUSTER_VARIABLE, ""):
        return Chosen(text=named, place=CLUSTER_VARIABLE)
    return Chosen(text=project.default, place=project.place("default") or DEFAULT)


def patient(cluster: Cluster, options: Options, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster with --connect-timeout or MESH_CONNECT_TIMEOUT, where one is given. Raises UsageError."""
    _check_types(options)
    return replace(cluster, connect_timeout=connect_time(cluster, options, environ).value)


def connect_time(cluster: Cluster, options: Options, environ: Mapping[str, str]) -> Seconds:
    """Return the time for each try to connect. Raises UsageError."""
    otherwise = Seconds(value=cluster.connect_timeout)
    return _seconds("connect-timeout", options.connect_timeout, environ, otherwise, least=0.1)


def kept(cluster: Cluster, environ: Mapping[str, str]) -> Cluster:
    """The cluster, with MESH_KEEP where that is set. Raises UsageError."""
    seconds = read_seconds(KEEP_VARIABLE, environ.get(KEEP_VARIABLE, ""))
    if seconds is None:
        return cluster
    if not 0 <= seconds <= LONGEST_KEEP:
        raise UsageError(f"MESH_KEEP: expected seconds from 0 to {LONGEST_KEEP:g}, found {seconds:g}")
    return replace(cluster, keep=seconds)


def _seconds(
    name: str, chosen: float | None, environ: Mapping[str, str], otherwise: Seconds, least: float = 0.0
) -> Seconds:
    """A time: as chosen, or from the environment."""
    place, seconds = f"--{name}", chosen
    if seconds is None:
        place = f"MESH_{name.upper().replace('-', '_')}"
        seconds = read_seconds(place, environ.get(place, ""))
    if seconds is None:
        return otherwise
    if not least <= seconds < math.inf:
        raise UsageError(f"{place}: expected at least {least:g} s, found {seconds:g}")
    return Seconds(value=seconds, place=place)
