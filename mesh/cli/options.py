"""The option table: every option of every command, written once.

The ``mesh`` parser, the Invoke tasks, ``--help``, completion and docs/reference.md are made from it. If the
engine reads an option, its ``field`` is the field of ``mesh.config.settings.Options`` that gets the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import add, or_
from typing import TYPE_CHECKING, TypeVar, cast

from mesh.cli import dailyoptions, jobmanoptions, joboptions, otheroptions, pageoptions, podoptions, taskoptions
from mesh.cli.option import (
    COMMAND,
    DIAGNOSIS,
    ENDS,
    FILES,
    HOSTS,
    OTHER,
    OUTPUT,
    RANKS,
    SHARING,
    WHICH_RUN,
    AnyOption,
    Option,
    as_wait,
    as_words,
    seconds,
    switch,
    text,
)
from mesh.config.roles import Role, read_role
from mesh.config.settings import (
    CLUSTER_VARIABLE,
    LAUNCHERS,
    Options,
    read_environment,
    read_name,
    read_nproc,
    read_number,
    read_port,
    read_seconds,
)
from mesh.config.slurm import read_change, read_nodes
from mesh.core.errors import UsageError
from mesh.core.typed import Typed

if TYPE_CHECKING:
    from mesh.core.look import Look

T = TypeVar("T")

OUTPUTS, LABELS, FOLDS = ("all", "fold", "rank0", "none"), ("rank", "host"), ("numbers", "mean", "exact")
WHENS = ("auto", "always", "never")
TEMPLATES, FILES_READ = ("jax-tpu", "torch-ddp", "maxtext", "uv"), ("mesh.yaml", "cluster.yaml")
STDINS, BEGINS = ("none", "rank0", "all"), ("here", "start", "now")


class Given:
    """The values of one command line, and the words that are no options."""

    def __init__(
        self, command: str, values: Mapping[str, object], words: Sequence[str] = (), typed: Typed | None = None
    ) -> None:
        """values: by the names of options; words: the user's command, or paths; typed: the whole command line"""
        self.command, self.words, self.typed = command, list(words), typed
        self._values = values

    def __getitem__(self, option: Option[T]) -> T:
        """Return the value of an option, or its default."""
        return cast(T, self._values.get(option.name, option.default))

    def look(self) -> Look:
        """Return how the user wants mesh's own lines. Raises UsageError for an unknown word."""
        if self[COLOR] not in WHENS:
            raise UsageError(f"--color: expected {', '.join(WHENS)}, found {self[COLOR]!r}")
        from mesh.core.look import Look

        return Look(color=self[COLOR], terse=self[QUIET], steps=self[VERBOSE])

    def options(self) -> Options:
        """Return the values that the engine reads. Raises UsageError where two of them contradict each other."""
        fields = {option.field: self[option] for option in options_of(self.command) if option.field}
        if self[INTERACTIVE] and STDIN.name not in self._values:
            fields["stdin"] = "rank0"
        if fields.get("pty"):
            fields["stdin"] = "rank0"
        if STDIN.field in fields:
            fields["stdin_notice"] = STDIN.name not in self._values and not self[INTERACTIVE]
        return Options(**fields).checked()


def _as_tag(flag: str, text: str) -> tuple[str, ...]:
    return (read_name(flag, text),)


SELECT = (  # commands that pick hosts of a cluster
    *("run", "exec", "repl", "setup", "push", "pull", "check"),
    *("ps", "top", "clean", "forward", "notebook"),
)
STARTS = ("run", "exec")
WITH_PROMPT = (*STARTS, "repl")
NAMES_RUN = ("attach", "detach", "signal", "restart", "stop", "logs", "stacks", "debug")
READS_RUN = (*NAMES_RUN, "report", "replay")  # the others ask hosts as well
SHOWS = ("run", "exec", "replay", "attach", "logs", "job attach", "job logs")
NARRATES = (*STARTS, "replay", "setup", "push", "pull", "attach")  # commands with lines about the steps of hosts
MAKES_HOSTS = ("up", "down")
SHOWS_PODS = ("pods show", "pods render", "pods secret")
NAMES_CLUSTER = ("ps", "pull", "forward", *MAKES_HOSTS, *SHOWS_PODS)  # commands that have no default cluster
TAKES_CLUSTERS_FILE = (
    *(*SELECT, *NAMES_RUN, "replay", "bisect", "ssh", "config", "clusters"),
    *(*MAKES_HOSTS, *SHOWS_PODS, "job submit", "jobman create"),
)
READS_LOGS = ("logs", "job logs")
WITH_RANKS = (*READS_LOGS, "signal", "restart", "stacks", "debug")

CLUSTER = text(
    "cluster",
    (*(command for command in SELECT if command not in NAMES_CLUSTER), "ssh", "config"),
    HOSTS,
    "CLUSTER",
    "a cluster, some of its hosts (pod:0-3,5), or any hosts (@h1,me@h2:22)",
    is_place=True,
    variable=CLUSTER_VARIABLE,
)
NAMED_CLUSTER = text("cluster", NAMES_CLUSTER, HOSTS, "CLUSTER", CLUSTER.help, is_place=True)
RUN = text("run", READS_RUN, WHICH_RUN, "RUN", "an id, name or tag, a part of one, last, or a cluster", is_place=True)
SIGNAL = text("name", ("signal",), WHICH_RUN, "SIGNAL", "as kill has it: USR1, SIGUSR1 or 10", is_place=True)
CLUSTER_OF_RUN = text("cluster", NAMES_RUN, WHICH_RUN, "CLUSTER", "the run's cluster, if another machine started it")
ACTION = text("action", ("runs", "keep", "serve"), OTHER, "ACTION", "prune; stop", is_place=True)
SHELL = text("shell", ("completion",), OTHER, "SHELL", "bash, zsh or fish", is_place=True)

PICK_HOSTS = text("hosts", SELECT, HOSTS, "HOSTS", "only these: names or ranges, as 'tpu-0,tpu-[4-7]'", field="hosts")
PICK_RANKS = text("ranks", SELECT, HOSTS, "RANKS", "only the hosts with these numbers: 0-3,6", field="ranks")
EXCLUDE = text("exclude", SELECT, HOSTS, "HOSTS", "not these: names, ranges or numbers", field="exclude")

NODES = Option("nodes", ("run",), HOSTS, "N", "ask Slurm for so many nodes", read_nodes, 0, field="nodes")
SLURM: Option[Mapping[str, str]] = Option(
    "slurm",
    ("run",),
    HOSTS,
    "KEY=VALUE",
    "change a key of `slurm:` for this run; repeatable",
    read_change,
    {},
    joined=or_,
    field="slurm",
)

CONNECT_TIMEOUT = seconds(
    "connect-timeout", (*SELECT, "stop", "config"), "limits of the login (10) and of mesh's start (20)", group=HOSTS
)

ROLES: Option[tuple[Role, ...]] = Option(
    "role", ("run",), RANKS, "ROLE", "'LABEL@HOSTS: bash text'; repeatable", read_role, (), joined=add, field="roles"
)
NPROC = Option(
    "nproc",
    WITH_PROMPT,
    RANKS,
    "N|auto",
    "ranks on each host (default: 1); auto: one for each GPU",
    read_nproc,
    1,
    field="nproc",
)
LAUNCHER = text(
    "launcher",
    STARTS,
    RANKS,
    "NAME",
    f"start ranks by {LAUNCHERS}",
    choices=tuple(LAUNCHERS.split(", ")),
    field="launcher",
)
BIND = switch("bind", STARTS, RANKS, "each rank sees one GPU (CUDA_VISIBLE_DEVICES)", field="bind")
SLURM_ENV = switch("slurm-env", STARTS, RANKS, "set Slurm's variables as srun would", field="slurm_env")
MASTER_PORT = Option(
    "master-port",
    (*STARTS, "check"),
    RANKS,
    "PORT",
    "where ranks meet on the first host (default: any)",
    read_port,
    0,
    field="master_port",
)
ENV: Option[Mapping[str, str]] = Option(
    "env",
    (*WITH_PROMPT, "again", "replay", "bisect"),
    RANKS,
    "NAME=VALUE",
    "a variable for every rank; repeatable",
    read_environment,
    {},
    joined=or_,
    field="env",
)
ENV_FILES: Option[tuple[str, ...]] = Option(
    "env-file",
    WITH_PROMPT,
    RANKS,
    "FILE",
    "variables from NAME=VALUE lines, masked; repeatable",
    as_words,
    (),
    joined=add,
    field="env_files",
)
STDIN = text(
    "stdin",
    STARTS,
    RANKS,
    "WHO",
    "ranks that get your stdin: none, rank0 or all",
    default="none",
    choices=STDINS,
    field="stdin",
)
INTERACTIVE = switch("interactive", STARTS, RANKS, "give your stdin to rank 0", short="-i")

SHOWN = text(
    "output", (*SHOWS, "mad"), OUTPUT, "MODE", "all, fold, rank0 or none (default: fold on a terminal)", choices=OUTPUTS
)
FOLD = text(
    "fold",
    (*SHOWS, "repl"),
    OUTPUT,
    "HOW",
    "join lines by numbers (ranges), mean, or exact (equal)",
    default="numbers",
    choices=FOLDS,
)
LABEL = text(
    "label", SHOWS, OUTPUT, "WHAT", "lead a line by rank or host (default: rank)", default="rank", choices=LABELS
)
MAD_LABEL = text(
    "label", ("mad",), OUTPUT, "WHAT", "lead a line by host or rank (default: host)", default="host", choices=LABELS
)
COLOR = text(
    "color",
    (*NARRATES, "repl", "logs", "check", "ps", "clean", "clusters", "stacks", "runs", *joboptions.WITH_COLOR),
    OUTPUT,
    "WHEN",
    "auto, always or never; also NO_COLOR, FORCE_COLOR",
    default="auto",
    choices=WHENS,
)
QUIET = switch("quiet", NARRATES, OUTPUT, "show only output and errors", short="-q")
VERBOSE = switch("verbose", NARRATES, OUTPUT, "show each step of all hosts with its time", short="-v")
JSON = switch(
    "json", (*STARTS, "replay", "setup", "push", "pull", "attach", "mad"), OUTPUT, "print events as JSON lines"
)
JSON_LIST = switch(
    "json", ("check", "ps", "top", "clean", "clusters", "stacks", "config"), OUTPUT, "print what was found as JSON"
)
JSON_RUNS = switch("json", ("runs",), OUTPUT, "print each run as one JSON object, as in run.json")

GRACE = seconds("grace", (*WITH_PROMPT, "setup", "stop", "restart", "config"), "from SIGTERM to SIGKILL (default: 10)")
DRAIN = seconds("drain", (*STARTS, "config"), "the others' output after a failure (default: 2)")
TIMEOUT = seconds("timeout", (*STARTS, "setup", "config"), "end the run after this time (or 30m, 2h), status 124")
HOST_GRACE = seconds("host-grace", (*WITH_PROMPT, "config"), "a host silent so long is lost, status 76 (default: 60)")
LEASE = seconds("lease", (*WITH_PROMPT, "config"), "time ranks outlive a lost client (900; in scripts 60)")
KEEP_GOING = switch(
    "keep-going", STARTS, ENDS, "go on past a failed rank (exec: or unreachable host)", field="keep_going"
)
DETACH = switch("detach", STARTS, ENDS, "leave once all ranks run; print the run's id", short="-d", field="detach")

NAME = Option(
    "name", WITH_PROMPT, OTHER, "NAME", "name the run, for `mesh logs NAME` and the like", read_name, "", field="name"
)
TAG: Option[tuple[str, ...]] = Option(
    "tag", WITH_PROMPT, OTHER, "TAG", "tag for `mesh runs --tag`; repeatable", _as_tag, (), joined=add, field="tags"
)

FRESH = switch("fresh", ("run", "push"), FILES, "first remove files that runs made in the workspace", field="fresh")
NO_FANOUT = switch("no-fanout", ("run", "push"), FILES, "no copies from host to host", on=False, field="fan_out")
PRERUN = switch("prerun", ("run",), FILES, "run steps of `prerun:` with unchanged inputs too", field="prerun")
LIST = switch("list", ("push",), FILES, "list what would be sent, biggest first; needs no cluster")
EXPLAIN = text("explain", ("push",), FILES, "PATH", "which rule decides whether PATH is sent")
WATCH = switch("watch", ("push",), FILES, "push again whenever a file changes, until Ctrl-C")
INTO = text("into", ("pull",), FILES, "DIR", "PATH of the first host is DIR/rank-0000/PATH (default: pulled)")
FORCE = switch("force", ("setup",), COMMAND, "run also the commands that `unless` would skip, and modules in place")
UP_FOR: Option[float | None] = Option(
    "for", ("up",), OTHER, "TIME", "how long pods or nodes stay: 30m, 2d (default: 8h)", read_seconds, None
)
POD = text("pod", ("pods show",), HOSTS, "HOST", "one pod, by its name or number", is_place=True)
EXISTING = switch("existing", ("pods role",), OTHER, "only the rights for pods that mesh does not make")
ADOPT = switch("adopt", ("up",), OTHER, "take over pods that you have made on another machine")
FORCE_DOWN = switch("force", ("down",), OTHER, "also while a run is on, or hosts do not answer")
UNDO = switch("undo", ("setup",), COMMAND, "undo what modules have set up, and run no command")

WAIT = Option(
    "wait",
    (*WITH_PROMPT, "setup", "push"),
    SHARING,
    "SECONDS",
    "wait for busy hosts, at most so long (or 10m)",
    as_wait,
    0.0,
    bare=math.inf,
    field="wait",
)
MAD_WAIT = Option(
    "wait",
    ("mad",),
    SHARING,
    "SECONDS",
    "wait for busy nodes, at most so long (or 10m)",
    as_wait,
    0.0,
    bare=math.inf,
)
PYTHON = text(
    "python", ("repl",), RANKS, "PROGRAM", "the interpreter on the hosts (default: python3)", default="python3"
)
SHARE = switch("share", ("run", "repl"), SHARING, "run beside others, in a copy of the workspace", field="share")
EXCLUSIVE = switch(
    "exclusive", WITH_PROMPT, SHARING, "refuse hosts with another Unix user's run, status 75", field="exclusive"
)
EVICT = switch("evict", WITH_PROMPT, SHARING, "end your own processes that hold a device", field="evict")

DRY_RUN = switch("dry-run", (*STARTS, "mad"), DIAGNOSIS, "print what would be done, and do nothing")
CHECK = switch("check", STARTS, DIAGNOSIS, "check devices, disk and network of every host first", field="check")
STACKS = switch("stacks", STARTS, DIAGNOSIS, "for `mesh stacks` on hosts that forbid py-spy", field="stacks")
STACKS_ON_TIMEOUT = switch(
    "stacks-on-timeout",
    STARTS,
    DIAGNOSIS,
    "show where every rank is when --timeout runs out",
    field="stacks_on_timeout",
)
HANG_WATCH = seconds(
    "hang-watch", (*STARTS, "config"), "stacks after so long without output (terminal: 300)", group=DIAGNOSIS
)

PATHS: Option[Sequence[str]] = Option(
    "path", ("check",), COMMAND, "PATH", "must be there, alike on all hosts; repeatable", as_words, (), joined=add
)
PROGRAMS: Option[Sequence[str]] = Option(
    "program", ("check",), COMMAND, "NAME", "must be on PATH; repeatable", as_words, (), joined=add
)
DRY_CLEAN = switch("dry-run", ("clean",), OTHER, "list it, and remove nothing")
FULL = switch("full", ("stacks",), OUTPUT, "all calls of all threads and processes")
ADD = text("add", ("clusters",), OTHER, "NAME", "add a cluster of these hosts to cluster.yaml")
TEMPLATE = text("template", ("init",), OTHER, "NAME", f"a project that runs: {', '.join(TEMPLATES)}", choices=TEMPLATES)
SCHEMA = text(
    "schema", ("config",), OUTPUT, "FILE", f"print the JSON Schema of {' or '.join(FILES_READ)}", choices=FILES_READ
)
REFRESH = switch("refresh", ("clusters",), OTHER, "ask again for TPUs and pods")
EXAMPLE = switch("example", ("clusters",), OTHER, "print a cluster.yaml to begin with")

ALL = switch("all", ("stop",), WHICH_RUN, "every run of yours on the cluster")
FROM = text(
    "from", ("attach",), OUTPUT, "WHERE", "start, now, or here: where we left off", default="here", choices=BEGINS
)
SOME_RANKS = text("rank", WITH_RANKS, WHICH_RUN, "RANKS", "only these: 3,5-7, actor, actor/1, act*")
ON_HOST = text("on", ("restart",), WHICH_RUN, "HOST", "start them on this host: their own, or a spare one")
STDERR = switch("stderr", READS_LOGS, OUTPUT, "only what they printed on stderr")
PRERUN_LOGS = switch("prerun", ("logs",), OUTPUT, "show what prerun printed instead")
SINCE = Option("since", READS_LOGS, OUTPUT, "TIME", "only output of the last 10m, 1d, ...", read_seconds, None)
GREP = text("grep", READS_LOGS, OUTPUT, "REGEX", "only lines in which this Python regex matches")
FIXED = switch("fixed-strings", READS_LOGS, OUTPUT, "--grep is plain text, no regex", short="-F")
FOLLOW = switch("follow", READS_LOGS, OUTPUT, "go on until the run has ended", short="-f")
LOCAL = switch("local", ("logs",), OUTPUT, "only what this machine has: ask no host")

RUNS_TAG = text("tag", ("runs",), OTHER, "TAG", "only runs with this tag")
RUNS_ALL = switch("all", ("runs",), OTHER, "all of them, not only the newest 20")
KEEP = Option("keep", ("runs",), OTHER, "N", "prune: keep the newest N", read_number, None)
OLDER_THAN = Option(
    "older-than", ("runs",), OTHER, "TIME", "prune: keep what ended within TIME (default: 30d)", read_seconds, None
)
DRY_PRUNE = switch("dry-run", ("runs",), OTHER, "prune: print what would be removed, and stop")

CLUSTERS = text(
    "clusters",
    TAKES_CLUSTERS_FILE,
    OTHER,
    "FILE",
    "clusters file (default: ~/.config/mesh/cluster.yaml)",
    variable="MESH_CLUSTERS",
)

# All options in the order of this module, which is that of the help below each heading.
TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
TABLE += [*otheroptions.TABLE, *pageoptions.TABLE, *dailyoptions.TABLE, *podoptions.TABLE]
TABLE += [*joboptions.TABLE, *taskoptions.TABLE, *jobmanoptions.TABLE]


def options_of(command: str) -> list[AnyOption]:
    """Return the options of one command, in the order of the table."""
    return [option for option in TABLE if command in option.commands]
