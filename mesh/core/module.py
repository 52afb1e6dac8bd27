"""Modules: preparation of a host, and the environment that wraps a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from mesh.core.cluster import Host

DEFAULT_STEP_TIMEOUT_S = 1800.0


class HostFile(Struct, frozen=True, kw_only=True):
    """A file that a step finds on the host: sent over the channel, written beside and renamed."""

    path: str  # absolute, or below the home of the host's user with a leading ``~/``
    data: bytes
    mode: int = 0o600


class Step(Struct, frozen=True, kw_only=True):
    """An action of a module on one host. Texts are for bash, with every value quoted."""

    module: str  # its module's name, which also names its log
    apply: str  # may be cut at any point and repeated
    check: str = ""  # exit status 0: nothing is to be done; "": apply always
    undo: str = ""  # removes what apply made and nothing else; "": there is nothing to undo
    sudo: bool = False  # as root
    timeout: float = DEFAULT_STEP_TIMEOUT_S  # seconds, of each of the three texts
    files: tuple[HostFile, ...] = ()  # there before check, apply and undo run


class Wrapped(Struct, frozen=True, kw_only=True):
    """The command of ranks inside an environment."""

    words: tuple[str, ...]  # for execve
    path_first: tuple[str, ...] = ()  # directories in front of PATH; relative ones are below the workspace on the host
    env: Mapping[str, str] = field(default_factory=dict)  # variables that the environment sets; same rule for paths


class Module(Protocol):
    """Preparation of hosts."""

    @property
    def name(self) -> str:
        """The word by which mesh.yaml names it."""

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        """Return the steps of one host, in order. node: its index in hosts."""


class Environment(Module, Protocol):
    """A module in which the command of ranks runs: docker, conda, venv or uv."""

    def wrap(self, words: Sequence[str], env: Sequence[str], run: str) -> Wrapped:
        """Return the command inside the environment.

        words: the command for execve; env: names of the variables that the ranks have; run: the run's id
        """
