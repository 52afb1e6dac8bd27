"""Modules: descriptions in YAML files of what prepares a host, and of the environment in which the command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from mesh.core.cluster import Host
from mesh.core.errors import MeshError
from mesh.core.events import HostEvent

DEFAULT_STEP_TIMEOUT_S = 1800.0
FACT_BYTES = 65536  # the most that one step reports

# ---- descriptions


class Docker(Struct, frozen=True, kw_only=True, tag="docker"):
    """An image whose containers run the command: ``docker:`` in mesh.yaml."""

    image: str
    mounts: tuple[
        str, ...
    ] = ()  # A or A:B or A:B:OPTIONS; ``~`` is the host's home, relative paths are in the workspace
    env: tuple[str, ...] = ()  # NAME=VALUE, or NAME for one that the ranks have
    workdir: str = ""  # in the container; "": the workspace, at its path on the host
    flags: tuple[str, ...] = ()  # more words for ``docker run``
    engine: str = ""  # "docker" or "podman"; "": docker where it is, else podman
    manage: bool = False  # the user may be added to the group docker, and the daemon may be started


class Python(Struct, frozen=True, kw_only=True, tag="python"):
    """A virtual environment: ``uv:`` or ``venv:`` in mesh.yaml."""

    tool: str  # "uv" or "venv"
    path: str = ".venv"  # in the workspace on the host; absolute, or with a leading ``~/``: outside of it
    python: str = ""  # a version such as 3.11; "": the tool's own choice
    requirements: str = ""  # a file in the workspace; "": uv.lock, pyproject.toml or requirements.txt, as the tool can


class Conda(Struct, frozen=True, kw_only=True, tag="conda"):
    """An environment of conda: ``conda:`` in mesh.yaml."""

    name: str
    file: str = ""  # environment.yml in the workspace; "": the environment must be there
    installer: str = ""  # the address of Miniconda's installer; "": conda must be there
    checksum: str = ""  # its SHA-256 in hexadecimal; "": it is not checked
    accept_tos: bool = False  # accept the terms of Anaconda's channels


class Bucket(Struct, frozen=True, kw_only=True):
    """A bucket at a path of every host."""

    name: str
    path: str  # absolute, or with a leading ``~/``
    cache: Mapping[str, str | int | bool] = field(default_factory=dict)  # as JOBMAN's ``gcsfuse.cache``


class Gcsfuse(Struct, frozen=True, kw_only=True, tag="gcsfuse"):
    """Buckets that are mounted by gcsfuse: ``gcsfuse:`` in mesh.yaml."""

    buckets: tuple[Bucket, ...]


class Identity(Struct, frozen=True, kw_only=True):
    """A key pair of the user that hosts get: an item of ``identities:``."""

    private_key: str  # a local path
    public_key: str = ""  # a local path; "": there is none
    config_entry: str = ""  # lines for the hosts' ssh_config


class Ssh(Struct, frozen=True, kw_only=True, tag="ssh"):
    """Keys by which the hosts of a cluster reach each other: ``ssh:`` in mesh.yaml."""

    identities: tuple[Identity, ...] = ()


Description = Docker | Python | Conda | Gcsfuse | Ssh
Described = tuple[tuple[str, Description], ...]  # in order, each with the word that names it

# ---- modules


class ModuleError(MeshError):
    """The hosts cannot be prepared as the description has it. No rank starts."""


class HostFile(Struct, frozen=True, kw_only=True):
    """A file that a step finds on the host: sent over the channel, written beside and renamed."""

    path: str  # absolute, or below the home of the host's user with a leading ``~/``
    data: bytes
    mode: int = 0o600


class Step(Struct, frozen=True, kw_only=True):
    """An action of a module on one host. Texts are for bash, with every value quoted.

    Each text runs in the workspace, with the variables of the host's first rank. MESH_RUN_ID is not among them, and
    MESH_SETUP is 1. MESH_MODULES is a directory of the host for marks of modules. MESH_FORCE is 1 where a step in
    place is applied again, else empty. Processes that a step leaves stay after the run.
    What ``check`` writes to descriptor 3 is the fact that the step reports: see ``Module.join``.
    """

    module: str  # its module's name, which also names its log
    apply: str  # may be cut at any point and repeated
    check: str = ""  # exit status 0: nothing is to be done. It runs again after ``apply``; "": apply always
    undo: str = ""  # removes what apply made and nothing else; "": there is nothing to undo
    sudo: bool = False  # apply and undo run as root; check never does
    timeout: float = DEFAULT_STEP_TIMEOUT_S  # seconds, of each of the three texts
    files: tuple[HostFile, ...] = ()  # there before apply runs


class Module(Protocol):
    """Preparation of hosts. Everything here is pure."""

    @property
    def name(self) -> str:
        """The word by which mesh.yaml names it."""

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        """Return the steps of one host, in order. node: its index in hosts"""

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        """Compare what the steps reported on all hosts, and return further steps for each host; () if there are none.

        facts: for each host, one text for each of its steps
        Raises ModuleError if the hosts do not fit together.
        """


class Environment(Module, Protocol):
    """A module in which the command of ranks runs: docker, conda, venv or uv."""

    @property
    def enter(self) -> str:
        """Shell text that runs before prerun, and whose variables hold for the command; "": none."""

    def wrap(self, words: Sequence[str], env: Sequence[str], run: str) -> Sequence[str]:
        """Return the command inside the environment, for execve.

        words: the command for execve; env: names of the variables that mesh and the user set; run: the run's id
        """


class Preparation(Struct, frozen=True, kw_only=True):
    """All modules of a run, and what is to be done with them."""

    modules: tuple[Module, ...] = ()  # in order; the environment is one of them
    environment: Environment | None = None  # None: the command runs as it is
    undo: bool = False  # undo the steps of all modules, the last one first

    def steps(self, hosts: Sequence[Host], node: int) -> tuple[Step, ...]:
        """Return the steps of a host in the order in which they are carried out."""
        steps = [step for module in self.modules for step in module.steps(hosts, node)]
        return tuple(reversed(steps) if self.undo else steps)

    def wrapped(self, words: Sequence[str], env: Sequence[str] = (), run: str = "") -> tuple[str, ...]:
        """Return a command inside the environment. env, run: as in Environment.wrap"""
        return tuple(self.environment.wrap(words, env, run) if self.environment and words else words)


NO_PREPARATION = Preparation()


# ---- events


class ModuleStep(HostEvent, frozen=True, kw_only=True, tag="module"):
    """The host carries out a step of a module."""

    module: str
    step: int  # index in the steps that the host was sent together
    state: str  # "check", or "apply" once it is not in place; "apply" also where it is undone


class Applied(HostEvent, frozen=True, kw_only=True):
    """The host has carried out all steps of modules that it was sent."""

    facts: tuple[str, ...]  # the report of each step
    applied: tuple[int, ...]  # the steps that were not in place
