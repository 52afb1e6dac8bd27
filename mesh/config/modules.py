"""The readers of ``modules:``, of the sections of modules, and of ``env:`` where it names an environment."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from yaml.nodes import MappingNode, Node, ScalarNode

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems
from mesh.core.module import Bucket, Conda, Described, Description, Docker, Gcsfuse, Identity, Python, Ssh

Keys: TypeAlias = Mapping[str, tuple[Node, Node]]

ENVIRONMENTS = ("uv", "venv", "conda", "docker")
SECTIONS = ("ssh", "gcsfuse", *ENVIRONMENTS)
NEEDS_SECTION = ("gcsfuse", "conda", "docker")  # the others have a meaning without any key
ENGINES = ("docker", "podman")
DEFAULT_PLACE = ".venv"  # of the environments of uv and venv, in the workspace
# Keys of a section, with JOBMAN's names for them.
DOCKER_KEYS = ("image", "mounts", "mount_dirs", "env", "env_vars", "workdir", "work_dir", "flags", "engine", "manage")
PYTHON_KEYS = ("path", "name", "python", "requirements", "requirements_file")
CONDA_KEYS = ("name", "env_name", "file", "config_file", "installer", "checksum", "accept_tos")
GCSFUSE_KEYS = ("bucket", "bucket_name", "path", "mount_path", "cache", "extra_mounts")
MOUNT_KEYS = ("bucket", "bucket_name", "path", "mount_path", "cache")
SSH_KEYS = ("identities", "private_key", "public_key", "tpu_private_key", "tpu_public_key")
IDENTITY_KEYS = ("private_key", "public_key", "config_entry")
CACHE_TEXTS = ("dir", "prefix")
CACHE_SIZES = ("metadata_ttl_secs", "stat_cache_max_size_mb", "type_cache_max_size_mb", "file_cache_max_size_mb")
CACHE_FLAGS = ("cache_file_for_range_read", "enable_parallel_downloads")
CACHE_KEYS = (*CACHE_TEXTS, *CACHE_SIZES, *CACHE_FLAGS)


class Modules(Struct, frozen=True, kw_only=True):
    """The modules of a project."""

    descriptions: Described = ()

    @property
    def unsent(self) -> tuple[str, ...]:
        """Patterns for local environments at paths where hosts make theirs; ``.venv`` is left out anyway."""
        found = [one.path for _, one in self.descriptions if isinstance(one, Python)]
        paths = [posixpath.normpath(path) for path in found if not path.startswith(("/", "~/"))]
        return tuple(f"/{path}/" for path in paths if path != DEFAULT_PLACE)


def read_modules(keys: Keys, directory: Path, problems: Problems) -> Modules:
    """Return the modules of a mesh.yaml. directory: the workspace, in which relative files are"""
    sections: dict[str, Node | None] = {name: keys[name][1] for name in SECTIONS if name in keys}
    _take_env(keys, sections, problems)
    listed = _listed(keys, problems)
    for name, node in listed.items():
        if name in NEEDS_SECTION and name not in sections:
            problems.add(node, f"modules: {name}", f"has no section {name}:")
    chosen = [name for name in (*listed, *SECTIONS) if name in listed or name in sections]
    names = list(dict.fromkeys(chosen))
    environments = [name for name in names if name in ENVIRONMENTS]
    if len(environments) > 1:
        node = sections.get(environments[1]) or listed[environments[1]]
        problems.add(node, environments[1], f"is a second environment beside {environments[0]}: a run has one at most")
    return Modules(descriptions=described(names, sections, directory, problems))


def described(
    names: Sequence[str], sections: Mapping[str, Node | None], directory: Path, problems: Problems
) -> Described:
    """Return the descriptions of modules, in order. sections: by name; directory: as in ``read_modules``"""
    return tuple(
        (name, READERS[name](_Section(name, sections.get(name), directory, problems)))
        for name in names
        if name in sections or name not in NEEDS_SECTION
    )


def is_environment(node: Node) -> bool:
    """Return True if ``env:`` names an environment: one of the words, or a mapping of one of them to a mapping."""
    if isinstance(node, ScalarNode):
        return node.value in ENVIRONMENTS
    if not isinstance(node, MappingNode) or len(node.value) != 1:
        return False
    (key, value), *_ = node.value
    return isinstance(key, ScalarNode) and key.value in ENVIRONMENTS and isinstance(value, MappingNode)


def _take_env(keys: Keys, sections: dict[str, Node | None], problems: Problems) -> None:
    """Add the environment that ``env:`` names to the sections, if it names one."""
    node = keys["env"][1] if "env" in keys else None
    if node is None or not is_environment(node):
        return
    if isinstance(node, MappingNode):
        ((key, value),) = node.value
        if key.value in sections:
            problems.add(key, f"env.{key.value}", f"stands beside a section {key.value}: of its own")
        sections[str(key.value)] = value
    else:
        sections.setdefault(node.value, None)
        if node.value in NEEDS_SECTION and sections[node.value] is None:
            problems.add(node, "env", f"{node.value} has no section {node.value}:")
            del sections[node.value]


def _listed(keys: Keys, problems: Problems) -> dict[str, Node]:
    if "modules" not in keys or yamlfile.found(keys["modules"][1]) == "nothing":
        return {}
    return listed_modules(keys["modules"][1], "modules", problems)


def listed_modules(listed: Node, place: str, problems: Problems, others: Sequence[str] = ()) -> dict[str, Node]:
    """Return the names of a list of modules in their order. others: words that may stand there and are left out"""
    found: dict[str, Node] = {}
    expected = f"a list of {', '.join((*SECTIONS, *others))}"
    for where, node in yamlfile.items(listed, place, problems, expected):
        name = yamlfile.text(node, where, problems, expected)
        if name in others:
            continue
        if name and name not in SECTIONS:
            problems.add(node, where, f"unknown module {name!r}{yamlfile.did_you_mean(name, SECTIONS)}")
        elif name in found:
            problems.add(node, where, f"{name} is there twice")
        elif name:
            found[name] = node
    return found


class _Section:
    """The keys of a section, which are read by name. A problem is noted, and read as the default."""

    def __init__(self, where: str, node: Node | None, directory: Path, problems: Problems) -> None:
        self._where, self._node, self._directory, self.problems = where, node, directory, problems
        self.keys: Keys = {}
        if node is not None and yamlfile.found(node) != "nothing":
            self.keys = yamlfile.mapping(node, where, problems, f"the keys of {where}")

    def only(self, names: tuple[str, ...]) -> None:
        """Note keys with other names."""
        yamlfile.known(dict(self.keys), names, self._where, self.problems)

    def find(self, *names: str) -> tuple[str, Node] | None:
        """Return place and value of the key with one of these names; two of them are a problem."""
        there = [name for name in names if name in self.keys and yamlfile.found(self.keys[name][1]) != "nothing"]
        if len(there) > 1:
            self.problems.add(self.keys[there[1]][0], f"{self._where}.{there[1]}", f"means the same as {there[0]}:")
        return (f"{self._where}.{there[0]}", self.keys[there[0]][1]) if there else None

    def text(self, *names: str, needed: bool = False) -> str:
        """Read a text, "" where it is not there."""
        found = self.find(*names)
        if found is None:
            if needed and self._node is not None:
                self.problems.add(self._node, self._where, f"has no {names[0]}:")
            return ""
        return yamlfile.scalar(found[1], found[0], self.problems, "a text")

    def texts(self, *names: str) -> tuple[str, ...]:
        """Read a list of texts."""
        found = self.find(*names)
        return yamlfile.texts(found[1], found[0], self.problems, "a list of texts") if found else ()

    def flag(self, name: str) -> bool:
        """Read true or false; false where it is not there."""
        found = self.find(name)
        return found is not None and yamlfile.flag(found[1], found[0], self.problems)

    def file(self, *names: str) -> str:
        """Read the path of a file in the workspace; "" where it is not there."""
        found, path = self.find(*names), self.text(*names)
        if not path or found is None:
            return ""
        full = Path(posixpath.normpath(self._directory / Path(path).expanduser()))
        if not full.is_relative_to(self._directory):
            self.problems.add(found[1], found[0], f"{path} is not in the workspace, which is all that hosts get")
            return ""
        if not full.is_file():
            self.problems.add(found[1], found[0], f"there is no file {path}")
        return full.relative_to(self._directory).as_posix()

    def below(self, where: str, node: Node) -> _Section:
        """Return a section inside of this one."""
        return _Section(where, node, self._directory, self.problems)


def _docker(section: _Section) -> Docker:
    section.only(DOCKER_KEYS)
    engine = section.text("engine")
    found = section.find("engine")
    if engine and found and engine not in ENGINES:
        section.problems.unexpected(found[1], found[0], " or ".join(ENGINES))
    return Docker(
        image=section.text("image", needed=True),
        mounts=section.texts("mounts", "mount_dirs"),
        env=section.texts("env", "env_vars"),
        workdir=section.text("workdir", "work_dir"),
        flags=_flags(section),
        engine=engine,
        manage=section.flag("manage"),
    )


def _flags(section: _Section) -> tuple[str, ...]:
    """Return the words for ``docker run``: each entry is split as a shell would."""
    words: list[str] = []
    found = section.find("flags")
    for text in section.texts("flags"):
        try:
            words += shlex.split(text)
        except ValueError as error:
            assert found is not None
            section.problems.add(found[1], found[0], f"{text!r}: {error}")
    return tuple(words)


def _python(tool: str) -> Callable[[_Section], Python]:
    def read(section: _Section) -> Python:
        section.only(PYTHON_KEYS)
        name, path = section.text("name"), section.text("path")
        return Python(
            tool=tool,
            path=path or (f"~/{name}" if name else DEFAULT_PLACE),
            python=section.text("python").removeprefix("python"),
            requirements=section.file("requirements", "requirements_file"),
        )

    return read


def _conda(section: _Section) -> Conda:
    section.only(CONDA_KEYS)
    return Conda(
        name=section.text("name", "env_name", needed=True),
        file=section.file("file", "config_file"),
        installer=section.text("installer"),
        checksum=section.text("checksum").lower(),
        accept_tos=section.flag("accept_tos"),
    )


def _gcsfuse(section: _Section) -> Gcsfuse:
    section.only(GCSFUSE_KEYS)
    buckets = [_bucket(section, "")]
    found = section.find("extra_mounts")
    if found:
        expected = "a list of mounts, each with bucket_name: and mount_path:"
        for where, node in yamlfile.items(found[1], found[0], section.problems, expected):
            below = section.below(where, node)
            below.only(MOUNT_KEYS)
            buckets.append(_bucket(below, buckets[0].name))
    return Gcsfuse(buckets=tuple(buckets))


def _bucket(section: _Section, default: str) -> Bucket:
    path = section.text("path", "mount_path", needed=True)
    found = section.find("path", "mount_path")
    if found and path and not path.startswith(("/", "~/")):
        section.problems.unexpected(found[1], found[0], "an absolute path, or one with a leading ~/")
    name = section.text("bucket", "bucket_name", needed=not default).removeprefix("gs://").rstrip("/") or default
    cache: dict[str, str | int | bool] = {}
    below = section.find("cache")
    if below:
        cached = section.below(*below)
        cached.only(CACHE_KEYS)
        cache = {key: value for key in CACHE_KEYS if (value := _cache_value(cached, key)) is not None}
    return Bucket(name=name, path=path, cache=cache)


def _cache_value(section: _Section, key: str) -> str | int | bool | None:
    found = section.find(key)
    if found is None:
        return None
    if key in CACHE_FLAGS:
        return section.flag(key)
    if key in CACHE_TEXTS:
        return section.text(key)
    value = yamlfile.number(found[1], found[0], section.problems, "a whole number; -1 has no limit")
    return None if value is None else int(value)


def _ssh(section: _Section) -> Ssh:
    section.only(SSH_KEYS)
    identities = []
    private = section.text("private_key", "tpu_private_key")
    if private:
        identities.append(Identity(private_key=private, public_key=section.text("public_key", "tpu_public_key")))
    found = section.find("identities")
    if found:
        for where, node in yamlfile.items(found[1], found[0], section.problems, "a list with private_key: in each"):
            below = section.below(where, node)
            below.only(IDENTITY_KEYS)
            identities.append(
                Identity(
                    private_key=below.text("private_key", needed=True),
                    public_key=below.text("public_key"),
                    config_entry=below.text("config_entry"),
                )
            )
    return Ssh(identities=tuple(identities))


READERS: Mapping[str, Callable[[_Section], Description]] = {
    "ssh": _ssh,
    "gcsfuse": _gcsfuse,
    "uv": _python("uv"),
    "venv": _python("venv"),
    "conda": _conda,
    "docker": _docker,
}
