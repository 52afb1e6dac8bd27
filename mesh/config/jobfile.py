"""Reader of job files: machines, command and rules of a job. All problems of a file are found at once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config import jobman, yamlfile
from mesh.config.hosts import NoHost, expand
from mesh.config.interpolation import resolved
from mesh.config.jobman import JobmanKeys
from mesh.config.jobmodules import read_job_modules
from mesh.config.jobnotify import read_job_notify
from mesh.config.modules import SECTIONS
from mesh.config.overrides import FLAG, JobProblems, overridden
from mesh.config.project import VARIABLE
from mesh.config.secretnames import is_secret_name
from mesh.config.section import Section
from mesh.config.settings import read_nproc
from mesh.config.tpuspec import KEY as TPU
from mesh.config.tpuspec import machines_of, read_tpu
from mesh.config.whentimes import read_after
from mesh.config.worker import read_queue
from mesh.core.errors import UsageError
from mesh.core.job import (
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    PRIORITY_LIMIT,
    UNLIMITED,
    CommandSpec,
    JobSpec,
    Keep,
    MachinesSpec,
    RestartOn,
    RestartSpec,
    WorkspaceSpec,
)
from mesh.core.naming import is_name
from mesh.core.run import DEFAULT_GRACE, RANKS_PER_HOST_MAX, SHELL, Launch

KEYS = (
    *("job", "machines", "tpu", "workspace", "setup", "command", "run", "restart", "results", "progress", "notify"),
    *("logs", "checkpoint", "cost"),
    *SECTIONS,
    *jobman.FILE_KEYS,
)
# Keys of the format that this version refuses, each with the reason.
NOT_YET = {
    "kubernetes": "not yet: name a cluster by `machines:`, or a TPU by `tpu:`",
}
JOB_KEYS = ("name", "user", "priority", "queue", "depends_on", "after", "env", "pass", *jobman.JOB_KEYS)
MACHINES_KEYS = ("cluster", "hosts")
COMMAND_KEYS = ("run", "cmd", "workers", "nproc", "launcher", "timeout", "grace")
WORKSPACE_KEYS = ("git", "ref")
RESTART_KEYS = ("on", "failures", "recoveries", "exit_codes", "backoff")
EXIT_CODE_KEYS = ("again", "never")
LOGS = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9](/\S*)?")
LARGEST_COUNT = 1_000_000
WORKERS = "all, or numbers of hosts such as [0, 2]"


class JobFile(Struct, frozen=True, kw_only=True):
    """A job file that was read. The hosts and the snapshot of its spec are not looked up yet."""

    spec: JobSpec
    path: Path | None = None  # None: the job was given by options alone
    lines: Mapping[str, int] = field(default_factory=dict)  # of the keys at the top
    files: tuple[str, ...] = ()  # in the workspace, that modules need
    jobman: JobmanKeys = JobmanKeys()
    notices: tuple[str, ...] = ()


def read_job_file(
    path: Path | None, overrides: Sequence[str], command: Sequence[str], now: float, directory: Path | None = None
) -> JobFile:
    """Return the job of a file, with KEY=VALUE overrides and with words of a command that win over it.

    path: None: the job is made of overrides and command alone; now: seconds since the epoch
    directory: the workspace, in which the files of modules are; None: the working directory
    Raises UsageError with all problems.
    """
    node, problems = _loaded(path)
    node = overridden(node, overrides, problems)
    keys = Section(_known(node, problems), "", KEYS, problems, "the keys of a job file")
    jobman.hint_misplaced(node, keys)
    job = Section(keys.node("job") if "job" in keys else None, "job", JOB_KEYS, problems, "a mapping")
    theirs = jobman.read_jobman(node, job)
    modules = read_job_modules(keys, job, directory or Path.cwd(), is_jobman=theirs.is_jobman)
    machines = replace(_machines(keys), login=theirs.login, login_key=modules.login_key)
    queue, worker = read_queue(job, path, machines.tpu)
    found = CommandSpec(words=()) if worker and not command else _command(keys, command)
    if theirs.is_jobman and found.words[: len(SHELL)] == SHELL:
        found = replace(found, words=(*SHELL, jobman.MERGE + found.words[-1]))
    spec = JobSpec(
        name=_name(job, path, command),
        user=job.text("user"),
        machines=machines,
        command=found,
        priority=job.integer("priority", 0, -PRIORITY_LIMIT, PRIORITY_LIMIT),
        queue=queue,
        depends_on=job.integers("depends_on", "the numbers of jobs, as [41, 42]"),
        after=_after(job, now),
        env={**_env(job, "env"), **_env(job, "environment")},
        passed=job.texts("pass", "a list of names of variables, or patterns"),
        workspace=_workspace(keys, Keep.NONE if theirs.is_jobman else Keep.SNAPSHOT),
        modules=modules.modules,
        restart=jobman.read_loop(job, lambda: _restart(keys), has_restart="restart" in keys),
        results=_results(keys),
        progress=_progress(keys) or (jobman.PROGRESS if theirs.is_jobman else ""),
        cost_limit=_cost_limit(keys, machines),
        logs=_logs(keys),
        notify=read_job_notify(keys.node("notify"), problems) if "notify" in keys else (),
        checkpoint_dir=keys.text("checkpoint", "a directory on the hosts"),
        file=_text_of(path),
        worker=worker,
    )
    problems.check()
    return JobFile(
        spec=spec,
        path=path,
        lines={name: key.start_mark.line + 1 for name, (key, _) in keys.keys.items()},
        files=modules.files,
        jobman=theirs,
        notices=(*theirs.notices, *modules.notices),
    )


def _loaded(path: Path | None) -> tuple[Node | None, JobProblems]:
    if path is None:
        return None, JobProblems(Path("--set"))
    node, problems = yamlfile.load(path)
    return node, JobProblems(path, problems.lines, problems.hints)


def _text_of(path: Path | None) -> str:
    return path.read_text("utf-8-sig") if path else ""


def _known(node: Node | None, problems: JobProblems) -> Node | None:
    """Return the tree with its references resolved and without keys that are refused, which are problems."""
    if node is None or not isinstance(node, MappingNode):
        return node
    node = resolved(node, problems)
    kept = []
    for key, value in node.value:
        reason = NOT_YET.get(str(key.value), "")
        if reason:
            problems.add(key, str(key.value), reason)
        else:
            kept.append((key, value))
    return MappingNode(node.tag, kept, node.start_mark, node.end_mark)


def _name(job: Section, path: Path | None, command: Sequence[str]) -> str:
    """Return the name of the job: from the file, else the file's own, else that of the program."""
    if "name" in job:
        name = job.text("name", "a name")
        if name and (not is_name(name) or name.isdecimal()):
            job.unexpected("name", "up to 64 letters, digits, dots, dashes and underscores, and no number alone")
        return name
    name = path.stem if path else command[0].rpartition("/")[2] if command else "job"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:64].lstrip("._-")
    return name if is_name(name) and not name.isdecimal() else "job"


def _machines(keys: Section) -> MachinesSpec:
    if TPU in keys and not ("machines" in keys and _is_override(keys.node("machines"))):
        if "machines" in keys:
            keys.add(TPU, "is there beside machines:; a job has one of the two")
        return machines_of(read_tpu(keys.node(TPU), TPU, keys.problems))
    if "machines" not in keys:
        if not keys.problems.lines:
            where = keys.problems.path
            keys.problems.lines.append(f"{where}: machines: is missing")
            keys.problems.hints.append("machines: pod, a cluster that `mesh clusters` lists, or --cluster pod")
        return MachinesSpec()
    node = keys.node("machines")
    if not isinstance(node, MappingNode):
        cluster = yamlfile.text(node, "machines", keys.problems, "a cluster, or a mapping with cluster:")
        return MachinesSpec(cluster=cluster)
    section = Section(node, "machines", MACHINES_KEYS, keys.problems, "a mapping")
    if "cluster" not in section:
        keys.problems.add(node, "machines", "has no cluster:")
    cluster = section.text("cluster", "a cluster")
    if "hosts" not in section:
        return MachinesSpec(cluster=cluster)
    written = section.text("hosts", "a number of hosts, or their names")
    if written.isdecimal():
        return MachinesSpec(cluster=cluster, hosts=section.integer("hosts", 0, 1, LARGEST_COUNT))
    try:
        names = expand(written) if written else []
    except NoHost as error:
        section.add("hosts", str(error))
        names = []
    return MachinesSpec(cluster=",".join(f"{cluster}:{name}" for name in names) if names else cluster)


def _is_override(node: Node) -> bool:
    """Return True for a value that was given beside the file, as by ``--cluster``."""
    return str(node.start_mark.name).startswith(FLAG)


def _command(keys: Section, words: Sequence[str]) -> CommandSpec:
    """Return the command. words: given on the command line in place of that of the file"""
    command = keys.node("command") if "command" in keys else None
    section = Section(command, "command", COMMAND_KEYS, keys.problems, "a mapping with run:")
    given = [(keys, "run")] if "run" in keys else []
    given += [(section, key) for key in ("run", "cmd") if key in section]
    for where, key in given[1:]:
        where.add(key, f"is there beside {given[0][0].where(given[0][1])}; a job has one command")
    if words:
        found = tuple(words)
    elif given:
        found = _words(*given[0])
    else:
        found = ()
        if not keys.problems.lines:
            keys.problems.lines.append(f"{keys.problems.path}: run: is missing")
            keys.problems.hints.append("run: python train.py")
    return CommandSpec(
        words=found,
        workers=_workers(section),
        nproc=_nproc(section),
        launcher=section.word("launcher", Launch, Launch.NONE),
        timeout=section.seconds("timeout", 0.0),
        grace=section.seconds("grace", DEFAULT_GRACE),
    )


def _words(section: Section, key: str) -> tuple[str, ...]:
    """Return what execve gets: a text is for bash, a list has the words."""
    node, expected = section.node(key), "text for bash, or a list of words"
    if isinstance(node, SequenceNode):
        words = section.texts(key, expected)
        if not words:
            section.add(key, "is empty")
    else:
        words = (*SHELL, yamlfile.text(node, section.where(key), section.problems, expected))
    if any("\0" in word for word in words):
        section.add(key, "holds a zero byte")
    return words


def _workers(section: Section) -> tuple[int, ...]:
    if "workers" not in section or str(section.node("workers").value) == "all":
        return ()
    return tuple(dict.fromkeys(section.integers("workers", WORKERS)))


def _nproc(section: Section) -> int:
    if "nproc" not in section:
        return 1
    try:
        number = read_nproc("nproc", str(section.node("nproc").value))
    except UsageError:
        number = RANKS_PER_HOST_MAX + 1
    if number > RANKS_PER_HOST_MAX:
        section.unexpected("nproc", f"a number from 1 to {RANKS_PER_HOST_MAX}, or auto")
        return 1
    return number


def _env(job: Section, key: str) -> dict[str, str]:
    env = job.environment(key)
    for name, value in env.items():
        if not VARIABLE.fullmatch(name):
            job.add(key, f"{name!r} is no name of a variable")
        elif is_secret_name(name):
            job.add(key, f"{name} would be written to the job's files; hand it on by `pass:`")
            job.problems.hints.append(f"job: {{pass: [{name}]}}")
        if "\0" in value:
            job.add(key, f"{name}: holds a zero byte")
    return env


def _after(job: Section, now: float) -> float:
    if "after" not in job:
        return 0.0
    try:
        return read_after(str(job.node("after").value), now)
    except ValueError:
        job.unexpected("after", "a time of day, a date, or a date and time: 22:00, 2026-12-24, 2026-12-24T22:00")
        return 0.0


def _workspace(keys: Section, default: Keep) -> WorkspaceSpec:
    if "workspace" not in keys:
        return WorkspaceSpec(keep=default)
    node = keys.node("workspace")
    if isinstance(node, MappingNode):
        section = Section(node, "workspace", WORKSPACE_KEYS, keys.problems, "a mapping with git:")
        if "git" not in section:
            keys.problems.add(node, "workspace", "has no git:")
        url, ref = section.text("git", "the address of a git repository"), section.text("ref", "a branch or a commit")
        for key, text in (("git", url), ("ref", ref)):
            if text.startswith("-"):
                section.add(key, "begins with a dash")
        if re.search(r"://[^/@]*:[^/@]*@", url):
            section.add("git", "holds a password; use an SSH address, or a credential helper of git")
        return WorkspaceSpec(keep=Keep.GIT, url=url, ref=ref)
    word = str(node.value) if isinstance(node, ScalarNode) else ""
    if word not in (Keep.SNAPSHOT.value, Keep.NONE.value):
        keys.unexpected("workspace", "snapshot, none, or {git: URL, ref: BRANCH-or-COMMIT}")
        return WorkspaceSpec()
    return WorkspaceSpec(keep=Keep(word))


def _restart(keys: Section) -> RestartSpec:
    if "restart" not in keys:
        return RestartSpec()
    node = keys.node("restart")
    if isinstance(node, ScalarNode):
        return RestartSpec(on=keys.word("restart", RestartOn, RestartOn.PREEMPTION))
    section = Section(node, "restart", RESTART_KEYS, keys.problems, "a mapping")
    codes = Section(
        section.node("exit_codes") if "exit_codes" in section else None,
        section.where("exit_codes"),
        EXIT_CODE_KEYS,
        keys.problems,
        "a mapping with again: or never:",
    )
    again, never = (codes.integers(key, "exit statuses such as [29]") for key in EXIT_CODE_KEYS)
    if both := set(again) & set(never):
        section.add("exit_codes", f"{min(both)} is both under again: and under never:")
    recoveries = UNLIMITED
    if "recoveries" in section and str(section.node("recoveries").value) != "unlimited":
        recoveries = section.integer("recoveries", UNLIMITED, 0, LARGEST_COUNT, expected="a number, or unlimited")
    return RestartSpec(
        on=section.word("on", RestartOn, RestartOn.PREEMPTION),
        failures=section.integer("failures", RestartSpec().failures, 0, LARGEST_COUNT),
        recoveries=recoveries,
        again=again,
        never=never,
        backoff=section.backoff("backoff", (FIRST_BACKOFF_S, LAST_BACKOFF_S)),
    )


def _results(keys: Section) -> tuple[str, ...]:
    found = keys.texts("results", "a list of paths and patterns")
    if any("\0" in path for path in found):
        keys.add("results", "holds a zero byte")
    return found


def _cost_limit(keys: Section, machines: MachinesSpec) -> float:
    """Return the limit of what the machines of a job may cost; 0 without one."""
    if "cost" not in keys:
        return 0.0
    section = Section(keys.node("cost"), "cost", ("limit",), keys.problems, "a mapping with limit:")
    if machines.tpu is None:
        keys.add("cost", "is for machines that are made by tpu:; others have no price")
    expected = "an amount above 0, in the currency of prices.yaml"
    if "limit" not in section:
        keys.unexpected("cost", f"limit: {expected}")
        return 0.0
    limit = yamlfile.number(section.node("limit"), section.where("limit"), keys.problems, expected) or 0.0
    if not 0.0 < limit < math.inf:
        section.unexpected("limit", expected)
    return limit


def _logs(keys: Section) -> str:
    found = keys.text("logs", "gs://BUCKET/DIRECTORY")
    if found and not LOGS.fullmatch(found):
        keys.unexpected("logs", "gs://BUCKET/DIRECTORY")
    return found


def _progress(keys: Section) -> str:
    text = keys.text("progress", "a regular expression")
    try:
        re.compile(text)
    except re.error as error:
        keys.add("progress", f"no regular expression of Python: {error}")
    return text
