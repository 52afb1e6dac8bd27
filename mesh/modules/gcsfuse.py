"""Buckets of Google Cloud Storage, mounted on every host by gcsfuse."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence

from mesh.core.cluster import Host
from mesh.core.module import Bucket, Gcsfuse, ModuleError, Step
from mesh.modules.gcsfuse_texts import APPLY, CHECK, INSTALL_PROGRAM, INSTALLED, MOUNT_FUNCTIONS, UNDO

KEY_CHARACTERS = 16  # of the hash that names a mark
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]+")  # cloud.google.com/storage/docs/buckets#naming
OPTION_NAME = re.compile(r"[a-z][a-z0-9_-]*")

# Options that every mount has; one that `cache:` names takes the place of its namesake.
GENERAL: dict[str, str | int | bool] = {"implicit-dirs": True, "dir-mode": "777", "file-mode": "777"}
# Keys of `cache:` whose option has another name; see cfg/params.yaml of gcsfuse. Other keys are options' own names.
OPTIONS = {
    "dir": "cache-dir",
    "metadata_ttl_secs": "metadata-cache-ttl-secs",
    "cache_file_for_range_read": "file-cache-cache-file-for-range-read",
    "enable_parallel_downloads": "file-cache-enable-parallel-downloads",
}
PREFIX = "prefix"  # a key of `cache:` that is no option but a text for bash, run before the mount


class GcsfuseModule:
    """The module ``gcsfuse:`` of mesh.yaml: a step that installs the program, and a step for each bucket.

    Raises ModuleError if the description cannot be carried out on any host.
    """

    def __init__(self, description: Gcsfuse) -> None:
        paths = [_plain(bucket.path) for bucket in description.buckets]
        for bucket, path in zip(description.buckets, paths, strict=True):
            _check(bucket)
            if paths.count(path) > 1:
                names = ", ".join(other.name for other in description.buckets if _plain(other.path) == path)
                raise ModuleError(f"gcsfuse: {path} is the path of several buckets: {names}")
        self._buckets = description.buckets

    @property
    def name(self) -> str:
        """The word by which mesh.yaml names it."""
        return "gcsfuse"

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        """Return the steps of one host: the program, then the buckets in their order."""
        program = Step(module=self.name, check=INSTALLED, apply=INSTALL_PROGRAM, sudo=True)
        return (program, *map(self._mount, self._buckets))

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        """Return (), as no host depends on another."""
        return ()

    def _mount(self, bucket: Bucket) -> Step:
        options, prefix = _options(bucket), str(bucket.cache.get(PREFIX, ""))
        path = _on_host(_plain(bucket.path))
        wanted = _digest(*options, prefix)
        values = [
            f"bucket={shlex.quote(bucket.name)}",
            f"path={path}",
            f"prefix={shlex.quote(prefix)}",
            f"options=({' '.join(options)})",
            f"wanted={wanted}",
            f"key=gcsfuse-{_digest(_plain(bucket.path), bucket.name)}",
        ]
        begin = "\n".join(values) + "\n" + MOUNT_FUNCTIONS
        return Step(module=self.name, check=begin + CHECK, apply=begin + APPLY, undo=begin + UNDO)


def _check(bucket: Bucket) -> None:
    """Raise ModuleError for a bucket that gcsfuse cannot mount on any host."""
    if not BUCKET_NAME.fullmatch(bucket.name):
        hint = f"write {bucket.name[5:].strip('/')}" if bucket.name.startswith("gs://") else ""
        raise ModuleError(f"gcsfuse: {bucket.name!r} is no name of a bucket", hint=hint)
    inside = bucket.path.removeprefix("~")
    if not inside.startswith("/") or not inside.strip("/") or "\n" in inside or ".." in inside.split("/"):
        raise ModuleError(f"gcsfuse: {bucket.path!r}: expected an absolute path, or one that begins with ~/")
    for key in bucket.cache:
        if not OPTION_NAME.fullmatch(key):
            raise ModuleError(f"gcsfuse: {key!r} is no key of cache:")


def _options(bucket: Bucket) -> list[str]:
    """Return the options of a mount, quoted for bash.

    >>> cache = {"dir": "~/c", "implicit_dirs": False, "stat_cache_max_size_mb": -1}
    >>> " ".join(_options(Bucket(name="b", path="/b", cache=cache)))
    '--implicit-dirs=false --dir-mode=777 --file-mode=777 --cache-dir="$HOME"/c --stat-cache-max-size-mb=-1'
    """
    values = dict(GENERAL)
    for key, value in bucket.cache.items():
        if key != PREFIX:
            values[OPTIONS.get(key, key.replace("_", "-"))] = value
    return [f"--{key}{_value(value)}" for key, value in values.items()]


def _value(value: str | int | bool) -> str:
    if value is True:
        return ""
    return "=false" if value is False else f"={_on_host(str(value))}"


def _plain(path: str) -> str:
    """Return a path without doubled and final slashes, so that one path has one spelling."""
    return "/".join(part for i, part in enumerate(path.split("/")) if i == 0 or part not in ("", "."))


def _on_host(path: str) -> str:
    """Return a path quoted for bash, with ``~/`` for the home of the host's user."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:KEY_CHARACTERS]
