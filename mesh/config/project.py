"""mesh.yaml: a project, and the steps before its commands."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config import yamlfile
from mesh.config.gpushare import GpuShare, read_gpu_share
from mesh.config.modules import SECTIONS, Modules, is_environment, read_modules
from mesh.config.notify import read_notify
from mesh.config.programpart import NodePlace, read_program
from mesh.config.yamlfile import Problems
from mesh.core.errors import UsageError
from mesh.core.notify import Notification
from mesh.core.run import DEFAULT_GRACE, DEFAULT_LOGS, DEFAULT_SPOOL, PrerunEntry, SetupCommand

FILE = "mesh.yaml"
_TIMES = ("grace", "hang_watch")
KEYS = (
    *("commands", "ignore", "include_git", "keep_tree", "prerun", "env", "pass", "secret"),
    *("workspace", "default", *_TIMES, "spool", "logs", "notify", "modules", "program"),
    *("gpu_share",),
    *SECTIONS,
)
COMMAND_KEYS = ("run", "unless", "sudo")
ENTRY_KEYS = ("run", "inputs")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|B|[KMGT]B)", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

TEMPLATE = """\
# mesh.yaml describes a project. Its directory is the workspace: every host gets a copy of it.
# Every key may be left out.

# `mesh setup CLUSTER` runs these commands, once on each host.
commands:
  # - run: curl -LsSf https://astral.sh/uv/install.sh | sh
  #   unless: command -v uv
  # - run: apt-get install -y libgl1
  #   sudo: true

# Files that are not sent, by git's rules. .git is not sent either, nor files that .gitignore or .meshignore names.
ignore:
  - "*.pyc"
  - ".env"
  # - "/data"

# Send .git as well. Without it, MESH_GIT_COMMIT and MESH_GIT_DIRTY have the commit.
# include_git: true

# Before each run, each host runs these steps in one bash session. The command gets what they export or activate.
prerun:
  # - run: uv venv --allow-existing && uv pip install -r requirements.txt
  #   inputs: [requirements.txt]  # skipped until this file changes; --prerun runs it all the same
  # - source .venv/bin/activate

# Variables for every rank. They win over those that mesh sets.
env:
  # JAX_PLATFORMS: cpu

# The environment of the command: uv, venv, conda or docker (docs/environments.md). If `env:` above has variables, write
# a section in place of the word: `uv: {}` or `docker: {image: IMAGE}`.
# env: uv

# Modules that prepare the hosts first: SSH keys between them, buckets.
# modules: [ssh, gcsfuse]

# Variables of your own environment that every rank gets, by pattern.
pass:
  # - WANDB_*

# The same for secrets: mesh shows *** in place of their values.
secret:
  # - HF_TOKEN

# A notification at the end of a run: bell, desktop, a command or a web address (docs/notify.md).
# notify: [bell]

# Where nodes of Launchpad's programs run, by label (docs/launchpad.md).
# program:
#   actor: {on: "tpu-[1-3]", gpus: 1}

# Resources by which a plug-in of Kubernetes shares GPUs (docs/launchpad.md).
# gpu_share: {memory: nvidia.com/gpumem, cores: nvidia.com/gpucores}

# Another directory to send, relative to this file.
# workspace: .

# The cluster of commands that name none, as `mesh run -- COMMAND` and `mesh check`.
# default: pod

# Seconds from SIGTERM to SIGKILL when a run is ended.
# grace: 10

# After so many seconds without output, mesh shows where all ranks are in their code (300 on a terminal; 0: never).
# hang_watch: 300

# Output that may wait on a host's disk for a client. Beyond it the middle is left out.
# spool: 10 GB

# Room on your disk for the logs of one run. Beyond it each log keeps its head and its tail.
# logs: 10 GB
"""


class Project(Struct, frozen=True, kw_only=True):
    """A directory with or without a mesh.yaml."""

    workspace: Path  # absolute; every host gets a copy of it
    named: bool  # a mesh.yaml names it; otherwise it is the current directory
    commands: tuple[SetupCommand, ...] = ()
    ignore: tuple[str, ...] = ()
    ignore_places: tuple[str, ...] = ()  # FILE:LINE of each
    include_git: bool = False  # .git belongs to the workspace
    keep_tree: bool = False  # each run keeps the contents of its workspace on this machine
    prerun: tuple[PrerunEntry, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()  # patterns of local variables to hand on
    secret: tuple[str, ...] = ()  # the same, and the values are masked
    notify: tuple[Notification, ...] = ()  # at the end of a run
    program: Mapping[str, NodePlace] = field(default_factory=dict)  # places of nodes, by label
    gpu_share: GpuShare = GpuShare()  # resources of GPUs in pods
    modules: Modules = Modules()  # of hosts, and the environment of the command
    grace: float = DEFAULT_GRACE  # seconds
    hang_watch: float | None = None  # seconds; None: not in the file
    spool: int = DEFAULT_SPOOL  # bytes
    logs: int = DEFAULT_LOGS  # bytes
    default: str = ""  # the cluster of commands that name none
    path: Path | None = None  # of mesh.yaml; None: there is none
    lines: Mapping[str, int] = field(default_factory=dict)  # of its keys, and of each variable as env.NAME

    def place(self, key: str) -> str:
        """Return FILE:LINE of a key of mesh.yaml; "" if it is not there."""
        return f"{FILE}:{self.lines[key]}" if key in self.lines else ""


def load_project(start: Path) -> Project:
    """Return the project of a directory, by the nearest mesh.yaml in it or above. Raises UsageError."""
    start = start.resolve()
    for directory in (start, *start.parents):
        path = directory / FILE
        if path.is_symlink() or path.exists():
            return _read(path)
    return Project(workspace=start, named=False)


def _read(path: Path) -> Project:
    node, problems = yamlfile.load(path)
    if node is None:
        return Project(workspace=path.parent, named=True, path=path)
    keys = yamlfile.mapping(node, path.name, problems, "the keys " + ", ".join(KEYS))
    yamlfile.known(keys, KEYS, "", problems)
    lists = {
        key: yamlfile.texts(keys[key][1], key, problems, "a list") if key in keys else ()
        for key in ("ignore", "pass", "secret")
    }
    workspace = _workspace(path, keys, problems)
    modules = read_modules(keys, workspace, problems)
    project = Project(
        workspace=workspace,
        named=True,
        commands=_commands(keys, problems),
        ignore=(*lists["ignore"], *modules.unsent),
        ignore_places=(*_places(path, keys, problems), *(str(path) for _ in modules.unsent)),
        include_git="include_git" in keys and yamlfile.flag(keys["include_git"][1], "include_git", problems),
        keep_tree="keep_tree" in keys and yamlfile.flag(keys["keep_tree"][1], "keep_tree", problems),
        prerun=_prerun(keys, problems),
        env=_env(keys, problems),
        passed=lists["pass"],
        secret=lists["secret"],
        notify=read_notify(keys["notify"][1], problems) if "notify" in keys else (),
        program=read_program(keys["program"][1], problems) if "program" in keys else {},
        gpu_share=read_gpu_share(keys["gpu_share"][1], problems) if "gpu_share" in keys else GpuShare(),
        modules=modules,
        grace=_time(keys, "grace", DEFAULT_GRACE, problems) or 0.0,
        hang_watch=_time(keys, "hang_watch", None, problems),
        spool=_size(keys, "spool", DEFAULT_SPOOL, problems),
        logs=_size(keys, "logs", DEFAULT_LOGS, problems),
        default=yamlfile.text(keys["default"][1], "default", problems, "a cluster") if "default" in keys else "",
        path=path,
        lines=_lines(keys),
    )
    problems.check()
    return project


def _lines(keys: Mapping[str, tuple[Node, Node]]) -> dict[str, int]:
    """Return the line of each key, and of each variable."""
    lines = {name: key.start_mark.line + 1 for name, (key, _) in keys.items()}
    env = keys["env"][1] if "env" in keys else None
    if isinstance(env, MappingNode):
        lines |= {f"env.{key.value}": key.start_mark.line + 1 for key, _ in env.value}
    return lines


def _places(path: Path, keys: Mapping[str, tuple[Node, Node]], problems: Problems) -> tuple[str, ...]:
    """Return the file and line of each pattern under ignore:."""
    if "ignore" not in keys or problems.lines or yamlfile.found(keys["ignore"][1]) == "nothing":
        return ()
    listed = yamlfile.items(keys["ignore"][1], "ignore", problems, "a list")
    return tuple(f"{path}:{node.start_mark.line + 1}" for _, node in listed)


def _commands(keys: Mapping[str, tuple[Node, Node]], problems: Problems) -> tuple[SetupCommand, ...]:
    if "commands" not in keys or yamlfile.found(keys["commands"][1]) == "nothing":
        return ()
    expected = "a list of commands"
    listed = yamlfile.items(keys["commands"][1], "commands", problems, expected)
    return tuple(_command(node, where, problems) for where, node in listed)


def _command(node: Node, where: str, problems: Problems) -> SetupCommand:
    """Read one item of setup commands: shell text, or a mapping with run:."""
    if not isinstance(node, MappingNode):
        return SetupCommand(run=_shell_text(node, where, problems, "a command in quotes, or a mapping with run:"))
    keys = yamlfile.mapping(node, where, problems, "a command")
    if _is_unquoted(keys, COMMAND_KEYS, where, problems):
        return SetupCommand(run="")
    yamlfile.known(keys, COMMAND_KEYS, where, problems)
    if "run" not in keys:
        problems.add(node, where, "has no run:")
    texts = {
        key: _shell_text(keys[key][1], f"{where}.{key}", problems, "a command in quotes")
        for key in ("run", "unless")
        if key in keys
    }
    sudo = "sudo" in keys and yamlfile.flag(keys["sudo"][1], f"{where}.sudo", problems)
    return SetupCommand(run=texts.get("run", ""), unless=texts.get("unless", ""), sudo=sudo)


def _is_unquoted(keys: Mapping[str, tuple[Node, Node]], known: Sequence[str], where: str, problems: Problems) -> bool:
    """Note a command with ``: `` and without quotes, which YAML reads as a mapping; return True for one."""
    ((name, (node, value)), *more) = keys.items() or [("", (None, None))]
    if more or node is None or name in known or " " not in name or not isinstance(value, ScalarNode):
        return False
    problems.add(node, where, "a command that holds `: ` needs quotes")
    problems.hints.append(f"- {yamlfile.quoted(f'{name}: {value.value}')}")
    return True


def _prerun(keys: Mapping[str, tuple[Node, Node]], problems: Problems) -> tuple[PrerunEntry, ...]:
    if "prerun" not in keys or yamlfile.found(keys["prerun"][1]) == "nothing":
        return ()
    listed = yamlfile.items(keys["prerun"][1], "prerun", problems, "a list")
    return tuple(_entry(node, where, problems) for where, node in listed)


def _entry(node: Node, where: str, problems: Problems) -> PrerunEntry:
    """Read one item of prerun: shell text, or a mapping with run:."""
    if not isinstance(node, MappingNode):
        return PrerunEntry(run=_shell_text(node, where, problems, "a text, or a mapping with run:"))
    keys = yamlfile.mapping(node, where, problems, "an entry")
    if _is_unquoted(keys, ENTRY_KEYS, where, problems):
        return PrerunEntry(run="")
    yamlfile.known(keys, ENTRY_KEYS, where, problems)
    run = ""
    inputs: tuple[str, ...] = ()
    if "run" in keys:
        run = _shell_text(keys["run"][1], f"{where}.run", problems, "a text")
    else:
        problems.add(node, where, "has no run:")
    if "inputs" in keys:
        inputs = _inputs(keys["inputs"][1], f"{where}.inputs", problems)
    return PrerunEntry(run=run, inputs=inputs)


def _inputs(node: Node, where: str, problems: Problems) -> tuple[str, ...]:
    """Read paths in the workspace, in their shortest form."""
    listed = yamlfile.items(node, where, problems, "a list of paths")
    if not listed and isinstance(node, SequenceNode):
        problems.add(node, where, "is empty: name what the entry reads, or leave it out, and the entry always runs")
    inputs = []
    for place, item in listed:
        written = _shell_text(item, place, problems, "a path in the workspace")
        path = posixpath.normpath(written)
        if path.startswith(("/", "~/")) or path.split("/")[0] in ("..", "~"):
            problems.add(item, place, f"{written} is not in the workspace")
        inputs.append(path)
    return tuple(dict.fromkeys(inputs))


def _shell_text(node: Node, where: str, problems: Problems, expected: str) -> str:
    text = yamlfile.text(node, where, problems, expected)
    if "\0" in text:
        problems.add(node, where, "holds a zero byte")
    return text


def _workspace(path: Path, keys: Mapping[str, tuple[Node, Node]], problems: Problems) -> Path:
    if "workspace" not in keys:
        return path.parent
    node = keys["workspace"][1]
    written = yamlfile.text(node, "workspace", problems, "a directory") or "."
    try:
        workspace = (path.parent / Path(written).expanduser()).resolve()
        if workspace.is_dir():
            return workspace
    except (OSError, RuntimeError, ValueError):  # ~user without such a user, or an invalid path
        pass
    problems.add(node, "workspace", f"there is no directory {written}")
    return path.parent


def _env(keys: Mapping[str, tuple[Node, Node]], problems: Problems) -> dict[str, str]:
    if "env" not in keys or yamlfile.found(keys["env"][1]) == "nothing" or is_environment(keys["env"][1]):
        return {}
    env = {}
    for name, (key, value) in yamlfile.mapping(keys["env"][1], "env", problems, "variables, NAME: VALUE").items():
        if not VARIABLE.fullmatch(name):
            problems.add(key, "env", f"{name!r} is no name of a variable")
        env[name] = yamlfile.scalar(value, f"env.{name}", problems, 'a text (an empty one is "")')
        if "\0" in env[name]:
            problems.add(value, f"env.{name}", "holds a zero byte")
    return env


def _time(keys: Mapping[str, tuple[Node, Node]], key: str, otherwise: float | None, problems: Problems) -> float | None:
    """Read a number of seconds."""
    if key not in keys:
        return otherwise
    seconds = yamlfile.number(keys[key][1], key, problems, "a number of seconds")
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        problems.unexpected(keys[key][1], key, "a number of seconds")
    return seconds if seconds is not None else otherwise


def _size(keys: Mapping[str, tuple[Node, Node]], key: str, otherwise: int, problems: Problems) -> int:
    if key not in keys:
        return otherwise
    node, expected = keys[key][1], "a size such as 500 MB or 10 GB"
    found = SIZE.fullmatch(yamlfile.scalar(node, key, problems, expected).strip())
    if not found:
        problems.unexpected(node, key, expected)
        return otherwise
    return int(float(found.group(1)) * _UNITS[found.group(2).upper()])


def project_directory_name(workspace: Path, user: str, machine: str) -> str:
    """Return the name of the workspace's copy on hosts: stable for the same user, machine and directory.

    >>> project_directory_name(Path("/home/me/my project"), "me", "laptop")
    'my-project-0c32a92fcf'
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", workspace.name)[:40].lstrip(".-") or "workspace"
    who_and_where = f"{user}@{machine}:{workspace}".encode("utf-8", "surrogateescape")
    return f"{name}-{hashlib.sha256(who_and_where).hexdigest()[:10]}"


def check_workspace(project: Project, home: Path) -> None:
    """Refuse to send a home directory, or all of the machine, unless a mesh.yaml names it. Raises UsageError."""
    home = home.resolve()
    if not project.named and project.workspace in (home, *home.parents):
        raise UsageError(
            f"{project.workspace} would be sent to every host, as it is the working directory",
            hint="cd into your project, or write a mesh.yaml here (mesh init)",
        )
