"""The environment docker: each rank's command runs in a container of its own, by docker or podman."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from shlex import quote

from mesh.core.cluster import Host
from mesh.core.errors import UsageError
from mesh.core.module import Docker, ModuleError, Step
from mesh.modules import docker_texts as texts

NAME = "docker"
PULL_TIMEOUT_S = 7200.0
ID_CHARACTERS = 12  # of an image's id, as docker shows it
SHOWN_HOSTS = 8  # in one message

# Names in one word, in which each stands between two equals signs, because no name can have one.
# Variables that never come from the host: the image has its own, or they make no sense in a container.
NEVER = (
    "=PATH=HOME=SHELL=USER=LOGNAME=MAIL=PWD=OLDPWD=SHLVL=_=TMPDIR=HOSTNAME=TERM"
    "=DOCKER_HOST=DOCKER_CONTEXT=DOCKER_CONFIG=CONTAINER_HOST=XDG_RUNTIME_DIR=SSH_AUTH_SOCK="
)
# Paths of the host, handed on only where mesh.yaml names them: prerun and mesh set them for the host.
HOST_PATHS = (
    "=LD_LIBRARY_PATH=LD_PRELOAD=MANPATH=PYTHONPATH=PYTHONHOME=VIRTUAL_ENV"
    "=CONDA_PREFIX=CONDA_DEFAULT_ENV=CONDA_EXE=CONDA_PYTHON_EXE=CONDA_SHLVL="
)
# A shell or an engine's client would take these for itself, so that they travel as a file on a pipe.
TAKEN_BY_CLIENT = re.compile(
    r"(BASH|SHELLOPTS|POSIXLY_CORRECT|UID|EUID|PPID|GROUPS|IFS|RANDOM|SECONDS|LINENO|FUNCNAME|DIRSTACK|PIPESTATUS|OPT|"
    r"EPOCH|SRANDOM|HIST|LC_|LANG|CONTAINER|REGISTRY_|DOCKER_|XDG_|LD_|GO|HTTPS?_PROXY|NO_PROXY|SUDO_|MESH_ENGINE|_)"
)
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NETWORK_OPTIONS = ("--network", "--net")
FOREGROUND_ONLY = ("-d", "--detach", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "-td", "-dt")


class DockerEnvironment:
    """Containers of one image, as an ``Environment``; podman where docker is not."""

    def __init__(self, description: Docker) -> None:
        """Raises UsageError if the description cannot work on any host."""
        self._description = description
        self._mounts = [_mount(text) for text in description.mounts]
        pairs = [text.partition("=") for text in description.env]
        self._values = [(name, value) for name, sign, value in pairs if sign]
        self._asked = [name for name, sign, _ in pairs if not sign]
        for word in description.flags:
            if word in FOREGROUND_ONLY:
                hint = f"remove {word}: mesh attaches to the container, without a terminal"
                raise UsageError(f"docker: flags: {word} cannot be used", hint=hint)
        for name, value in self._values:
            if _is_for_file(name) and ("\n" in value or "\r" in value):
                raise UsageError(f"docker: env: {name} cannot have several lines")

    @property
    def name(self) -> str:
        """The word by which mesh.yaml names it."""
        return NAME

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        """Return the one step: the image is there. Undo removes nothing, because images are a cache for later runs."""
        manage = "yes" if self._description.manage else ""
        values = _assigned(image=self._description.image, manage=manage, pause="3")
        find = texts.WITH_GROUP + texts.FIND
        check, apply = (f"{self._engines()}{values}{find}{text}" for text in (texts.CHECK, texts.APPLY))
        return (Step(module=NAME, apply=apply, check=check, timeout=PULL_TIMEOUT_S),)

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        """Compare the images of all hosts. Two are the same if they share an id, or a registry's digest.

        A digest counts because engines name one image differently: by its configuration or by its manifest.
        """
        kinds: list[tuple[set[str], list[str]]] = []  # ids and digests of an image, and the hosts that have it
        for host, reported in zip(hosts, facts, strict=True):
            words = {_digest(word) for word in " ".join(reported).split()}
            if not words:
                raise ModuleError(f"{host.name} reported no image", hint=f"ssh {host.name} docker images")
            same = [kind for kind in kinds if kind[0] & words]
            kinds = [kind for kind in kinds if not kind[0] & words]
            names = [name for kind in same for name in kind[1]]
            kinds.append((words.union(*(kind[0] for kind in same)), [*names, host.name]))
        if len(kinds) > 1:
            raise self._differ(hosts, facts, [names for _, names in kinds])
        return ()

    @property
    def enter(self) -> str:
        """Shell text that chooses the engine, and exports it and the values of ``env``."""
        values = "".join(
            f"export MESH_ENGINE_VALUE_{number}={quote(value)}\n" for number, (_, value) in enumerate(self._values)
        )
        return f"{self._engines()}{values}{texts.WITH_GROUP}{texts.FIND}{texts.ENTER}"

    def wrap(self, words: Sequence[str], env: Sequence[str], run: str) -> Sequence[str]:
        """Return the command inside a container, for execve: bash, which becomes the engine's client.

        words: the command for execve; env: names of the variables that mesh and the user set; run: the run's id
        Raises ModuleError if a word is no UTF-8: engines take nothing else.
        """
        for word in words:
            if not _is_utf8(word):
                raise ModuleError(f"docker: {word!a} is no UTF-8, and cannot be passed to a container")
        mounts = [part for mount in self._mounts for part in mount]
        # A value that the run has for a name wins, for example that of --env.
        given = {name for name in env if f"={name}=" not in NEVER}
        values = ["" if name in given else f"={name}" if _is_for_file(name) else name for name, _ in self._values]
        header = _assigned(
            image=self._description.image,
            run=run,
            workdir=_place(self._description.workdir),
            never=NEVER,
            paths=HOST_PATHS,
            named=_names(env),
            asked=_names(self._asked),
            set=_names(name for name, _ in self._values if name not in given),
        )
        lists = {"options": self._options(), "mounts": mounts, "flags": self._description.flags, "values": values}
        arrays = "".join(f"_mesh_{name}=({' '.join(map(quote, items))})\n" for name, items in lists.items())
        text = f"{texts.WITH_GROUP}{texts.RUN_WITH_GROUP}{header}{arrays}{texts.RUN}"
        return ("bash", "-c", text, "mesh", *words)

    def _engines(self) -> str:
        return _assigned(engines=self._description.engine or "docker podman")

    def _options(self) -> list[str]:
        """Return the options that stand unless flags have them. Output goes to mesh alone: the daemon keeps no copy."""
        given = {word.partition("=")[0] for word in self._description.flags}
        options = [] if "--init" in given else ["--init"]
        options += [] if "--log-driver" in given else ["--log-driver", "none"]
        options += [] if given.intersection(NETWORK_OPTIONS) else ["--network", "host"]
        return options

    def _differ(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]], kinds: list[list[str]]) -> ModuleError:
        """Return the error that names each image with its hosts, the most frequent one first."""
        first = {host.name: _digest(" ".join(reported).split()[0]) for host, reported in zip(hosts, facts, strict=True)}
        kinds = sorted(kinds, key=len, reverse=True)
        told = "; ".join(f"{first[names[0]][:ID_CHARACTERS]} on {_listed(names)}" for names in kinds)
        image = self._description.image
        others = _listed([name for names in kinds[1:] for name in names])
        hint = f"`docker pull {quote(image)}` on {others}, or name the image by its digest: image: NAME@sha256:..."
        return ModuleError(f"the image {image} is not the same on all hosts: {told}", hint=hint)


def _assigned(**values: str) -> str:
    """Return assignments for bash.

    >>> print(_assigned(image="a b", run="r"), end="")
    _mesh_image='a b'
    _mesh_run=r
    """
    return "".join(f"_mesh_{name}={quote(value)}\n" for name, value in values.items())


def _names(names: Iterable[str]) -> str:
    """Return names in one word, as in NEVER."""
    return "".join(f"={name}" for name in names) + "="


def _place(path: str) -> str:
    """Return a path in a short form; relative ones are in the workspace, and ``~`` stays.

    >>> [_place(path) for path in ("", "./data/", "~/x//y", "/a/../b")]
    ['', 'data', '~/x/y', '/b']
    """
    return posixpath.normpath(path) if path else ""


def _mount(text: str) -> tuple[str, str, str]:
    """Return the source, target and options of a mount; the options with their colon.

    >>> _mount("~/data"), _mount("data:/data:ro")
    (('~/data', '~/data', ''), ('data', '/data', ':ro'))
    """
    source, _, rest = text.partition(":")
    target, colon, options = rest.partition(":")
    if not source or (text.endswith(":") and text):
        raise UsageError(f"docker: mounts: {text!r} is no mount", hint="write A, A:B or A:B:OPTIONS")
    return _place(source), _place(target or source), colon + options


def _is_for_file(name: str) -> bool:
    """Return True for a variable that cannot be exported to the engine's client."""
    return f"={name}=" in NEVER or not IDENTIFIER.fullmatch(name) or bool(TAKEN_BY_CLIENT.match(name))


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(word: str) -> str:
    """Return the hexadecimal part of ``sha256:...`` or ``NAME@sha256:...``; podman writes ids without the prefix."""
    return word.rpartition(":")[2]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_HOSTS])
    return f"{shown} and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else shown
