"""Which files belong to a workspace: git's rules from every file that git would read, and ours.

In the order of their weight: ``ignore:`` of mesh.yaml; then, from the file's own directory upwards, ``.meshignore``
and ``.gitignore``, up to the root of the repository also above the workspace; then ``.git/info/exclude``. A user's
global excludes (core.excludesFile) are not read: two people with one project would send different trees. ``.git``
belongs only with ``include_git: true``. A repository within the workspace is an ordinary directory; its .gitignore
counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from mesh.core.frozen import frozen
from mesh.workspace.patterns import NEVER, Pattern, read_lines, read_ours

FILES = (b".gitignore", b".meshignore")  # the later one wins
GIT = b".git"
LEFT_OUT = Pattern(GIT, "mesh leaves it out unless mesh.yaml says include_git: true", False, False, NEVER)


class Layer:
    """The rules that were written for one directory."""

    def __init__(self, base: bytes, patterns: Sequence[Pattern]) -> None:
        """base: the directory's path and a slash, relative to the top of the walk; b"" for the top itself."""
        self.base = len(base)
        self._patterns = [
            (re.compile(pattern.expression + rb"\Z", re.DOTALL), pattern) for pattern in reversed(patterns)
        ]
        # Most paths match nothing: one look at all rules together tells.
        self.any = _together(patterns)
        self.any_for_files = _together([pattern for pattern in patterns if not pattern.wants_directory])

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def decide(self, path: bytes, is_directory: bool) -> Pattern | None:
        """The last rule that matches a path (relative to the top of the walk), if any does."""
        path = path[self.base :]
        if not (self.any if is_directory else self.any_for_files).match(path):
            return None
        for expression, pattern in self._patterns:
            if (is_directory or not pattern.wants_directory) and expression.match(path):
                return pattern
        return None


def _together(patterns: Sequence[Pattern]) -> re.Pattern[bytes]:
    alternatives = b"|".join(pattern.expression for pattern in patterns) or rb"(?!)"
    return re.compile(b"(?:" + alternatives + rb")\Z", re.DOTALL)


@frozen(kw_only=False)
class Rules:
    """The rules for one directory and what is in it."""

    top: bytes  # what paths are relative to: the repository's root, or the workspace
    layers: tuple[Layer, ...]  # the later one weighs more
    ours: Layer  # weighs most

    keeps_git: bool = False

    def excludes(self, path: bytes, is_directory: bool) -> bool:
        """Whether a path relative to top does not belong; its parent directory must belong. Called for every path."""
        if not path.endswith(GIT):
            for base, any_, any_for_files in self._looks:
                if (any_ if is_directory else any_for_files).match(path[base:]):
                    break
            else:
                return False
        pattern = self.decide(path, is_directory)
        return pattern is not None and not pattern.negated

    @cached_property
    def _looks(self) -> list[tuple[int, re.Pattern[bytes], re.Pattern[bytes]]]:
        """What each layer that has any rules looks at first."""
        return [(layer.base, layer.any, layer.any_for_files) for layer in (self.ours, *self.layers) if layer]

    def decide(self, path: bytes, is_directory: bool) -> Pattern | None:
        """The rule that decides about a path relative to top, if any does."""
        if path.endswith(GIT) and path[: -len(GIT)][-1:] in (b"", b"/") and not self.keeps_git:
            return LEFT_OUT
        for layer in (self.ours, *reversed(self.layers)):
            pattern = layer.decide(path, is_directory)
            if pattern is not None:
                return pattern
        return None

    def below(self, path: bytes, names: Sequence[bytes]) -> Rules:
        """The rules for a directory (relative to top; b"" for top) in which these names are."""
        base = path + b"/" if path else b""
        patterns: list[Pattern] = []
        for name in FILES:
            if name in names:
                patterns += _read_file(os.path.join(self.top, base + name))
        return replace(self, layers=(*self.layers, Layer(base, patterns))) if patterns else self


def _read_file(path: bytes) -> list[Pattern]:
    try:
        # As git does: a link in place of an ignore file is not followed.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return read_lines(file.read(), os.fsdecode(path))
    except OSError:  # a directory, a link, or unreadable: the listing tells about what cannot be read
        return []


def load_rules(
    workspace: Path, ignore: Sequence[str], *, include_git: bool = False, places: Sequence[str] = ()
) -> tuple[Rules, bytes]:
    """The rules for a workspace's own directory, and its path relative to their top (b"" if it is the top).

    places: where each pattern of ignore was written, for people
    """
    here = os.fsencode(workspace.resolve())
    top = next(
        (os.fsencode(d) for d in (workspace.resolve(), *workspace.resolve().parents) if (d / ".git").exists()), here
    )
    inside = here[len(top) :].strip(b"/")
    exclude = _read_file(os.path.join(top, b".git/info/exclude"))
    ours = Layer(inside + b"/" if inside else b"", read_ours(ignore, places))
    rules = Rules(top, (Layer(b"", exclude),) if exclude else (), ours, include_git)
    above = inside.split(b"/")[:-1] if inside else []
    if inside:  # the workspace's own directory is read by the walk
        for depth in range(len(above) + 1):
            rules = rules.below(b"/".join(above[:depth]), FILES)
    return rules, inside


@frozen
class Decision:
    """Why a path belongs, or does not."""

    belongs: bool
    path: bytes  # relative to the workspace: the path that was asked about, or a directory above it that is left out
    rule: Pattern | None  # None: no rule is about it


def explain(
    workspace: Path, path: bytes, ignore: Sequence[str], *, include_git: bool = False, places: Sequence[str] = ()
) -> Decision:
    """Which rule decides about a path, relative to the workspace; with a slash at its end, a directory.

    The path need not exist. As with git, nothing below a directory that is left out can belong.
    """
    rules, inside = load_rules(workspace, ignore, include_git=include_git, places=places)
    parts = path.strip(b"/").split(b"/")
    above = inside + b"/" if inside else b""
    rule = None
    for depth in range(1, len(parts) + 1):
        asked = b"/".join(parts[:depth])
        place = os.path.join(os.fsencode(workspace.resolve()), asked)
        is_directory = depth < len(parts) or path.endswith(b"/") or (os.path.isdir(place) and not os.path.islink(place))
        rules = rules.below((above + b"/".join(parts[: depth - 1])).rstrip(b"/"), FILES)
        rule = rules.decide(above + asked, is_directory)
        if rule is not None and not rule.negated:
            return Decision(belongs=False, path=asked, rule=rule)
    return Decision(belongs=True, path=path.strip(b"/"), rule=rule)
