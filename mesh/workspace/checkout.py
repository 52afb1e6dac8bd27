"""Files of a commit in a git repository elsewhere, with those of its submodules."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from mesh.core.errors import MeshError, UsageError

GIT_TIMEOUT_S = 900.0  # for one command of git, which may have to fetch much
ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_PASSWORD = re.compile(r"(://[^/@:]*):[^/@]*@")


class Checkout(Struct, frozen=True, kw_only=True):
    """The files of a commit."""

    directory: Path
    commit: str  # its whole hash


@contextlib.contextmanager
def checked_out(url: str, ref: str, cache: Path) -> Iterator[Checkout]:
    """Fetch a commit, and give its files until the block ends. No file has a later time than the commit.

    ref: a branch, a tag or a commit; "": the default branch. cache: a directory for the files meanwhile
    Raises UsageError if the repository or the commit cannot be had, and MeshError without git.
    """
    if url.startswith("-") or ref.startswith("-"):
        raise UsageError(f"workspace: expected a repository and a branch or commit, found {url!r} and {ref!r}")
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="checkout-", dir=cache) as place:
        directory = Path(place) / "tree"
        told = f"workspace: {shown(url)}{f' at {ref}' if ref else ''}"
        git = _Git(directory, told, f"git ls-remote {shown(url)}")
        directory.mkdir()
        git.run("init", "--quiet")
        git.run("remote", "add", "origin", "--", url)
        commit = _fetched(git, ref)
        git.run("-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", commit)
        git.run("submodule", "update", "--quiet", "--init", "--recursive")
        time = int(git.run("show", "--no-patch", "--format=%ct", commit))
        _remove_git(directory)
        _set_times(directory, time)
        yield Checkout(directory=directory, commit=commit)


def shown(url: str) -> str:
    """Return an address without a password.

    >>> shown("https://me:secret@example.org/a.git"), shown("git@example.org:a.git")
    ('https://me@example.org/a.git', 'git@example.org:a.git')
    """
    return _PASSWORD.sub(r"\1@", url)


def _fetched(git: _Git, ref: str) -> str:
    """Fetch one commit, or all where a server gives single ones only by name; return its hash."""
    wanted = ref or "HEAD"
    if git.can("fetch", "--quiet", "--depth", "1", "origin", wanted):
        return git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}")
    git.run("fetch", "--quiet", "origin", *ALL)
    for name in (f"refs/remotes/origin/{wanted}", f"refs/tags/{wanted}", wanted):
        if git.can("rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"):
            return git.run("rev-parse", "--verify", f"{name}^{{commit}}")
    raise UsageError(f"{git.told}: there is no such branch, tag or commit", hint=git.hint)


class _Git:
    """Commands of git in one directory."""

    def __init__(self, directory: Path, told: str, hint: str) -> None:
        self._directory, self.told, self.hint = directory, told, hint

    def run(self, *words: str) -> str:
        """Return the output of a command. Raises UsageError if it fails."""
        done = self._done(words)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            last = next((line for line in lines if line.startswith(("fatal:", "error:"))), "".join(lines[-1:]))
            raise UsageError(f"{self.told}: git {words[0]} failed ({shown(last)})", hint=self.hint)
        return done.stdout.strip()

    def can(self, *words: str) -> bool:
        """Return True if a command succeeds."""
        return self._done(words).returncode == 0

    def _done(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        argv = ["git", "-C", str(self._directory), *words]
        try:
            return subprocess.run(
                argv,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=GIT_TIMEOUT_S,
                env={**_environ(), "LC_ALL": "C"},
            )
        except FileNotFoundError as error:
            raise MeshError("git is not installed", hint="`workspace: {git: ...}` needs git on this machine") from error
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"{self.told}: git did not end within {GIT_TIMEOUT_S:g} s", hint=self.hint) from error


def _environ() -> dict[str, str]:
    """Return the environment without variables that name another repository, as in a hook of git."""
    names = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in names}


def _remove_git(directory: Path) -> None:
    """Remove git's own files, those of submodules too."""
    for place, directories, files in os.walk(directory):
        if ".git" in directories:
            directories.remove(".git")
            shutil.rmtree(os.path.join(place, ".git"))
        if ".git" in files:
            os.unlink(os.path.join(place, ".git"))


def _set_times(directory: Path, time: int) -> None:
    """Give all files the time of their commit, so that a second checkout makes the same tree."""
    for place, directories, files in os.walk(directory, topdown=False):
        for name in (*directories, *files):
            os.utime(os.path.join(place, name), (time, time), follow_symlinks=False)
