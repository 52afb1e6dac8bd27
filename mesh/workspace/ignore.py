"""The files that belong to a workspace, by git's rules from every file that git would read, and by ours.

In the order of their weight: ``ignore:`` of mesh.yaml; then, from the file's own directory upwards, ``.meshignore``
and ``.gitignore``, up to the root of the repository also above the workspace; then ``.git/info/exclude``; then the
names that are left out by default (``.venv``, ``__pycache__``, ``node_modules``), unless git tracks them. A user's
global excludes (core.excludesFile) are not read: two people with one project would send different trees. ``.git``
belongs only with ``include_git: true``. A repository within the workspace is an ordinary directory; its .gitignore
counts.

A rule of git's own (``.gitignore``, ``.git/info/exclude``) excludes nothing that git tracks; those of ``ignore:`` and
``.meshignore`` do. What a repository within the workspace tracks is asked of that repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.workspace.patterns import NEVER, Pattern, read_lines, read_ours
from mesh.workspace.tracked import DEFAULT_NAMES, TrackedFiles

GITIGNORE = b".gitignore"
FILES = (GITIGNORE, b".meshignore")  # the later one wins
GIT = b".git"
DEFAULT_PLACE = "left out by default; `ignore: ['!NAME']` in mesh.yaml sends it"
DEFAULTS = tuple(
    replace(pattern, place=DEFAULT_PLACE.replace("NAME", name))
    for name in DEFAULT_NAMES
    for pattern in read_lines(name.encode(), "", of_git=True)
)
LEFT_OUT = Pattern(GIT, "mesh leaves it out unless mesh.yaml has include_git: true", False, False, NEVER)


class Layer:
    """The rules in one directory's ignore file."""

    def __init__(self, base: bytes, patterns: Sequence[Pattern]) -> None:
        """base: the directory's path and a slash, relative to the top of the walk; b"" for the top itself."""
        self.base = len(base)
        self._patterns = [
            (re.compile(pattern.expression + rb"\Z", re.DOTALL), pattern) for pattern in reversed(patterns)
        ]
        # Most paths match no rule: one search with all rules together shows that.
        self.any = _together(patterns)
        self.any_for_files = _together([pattern for pattern in patterns if not pattern.wants_directory])

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def decide(self, path: bytes, is_directory: bool, is_tracked: bool = False) -> Pattern | None:
        """Return the last rule that matches a path (relative to the top of the walk), or None.

        is_tracked: skip the rules that exclude no tracked file
        """
        path = path[self.base :]
        if not (self.any if is_directory else self.any_for_files).match(path):
            return None
        for expression, pattern in self._patterns:
            if is_tracked and pattern.of_git and not pattern.negated:
                continue
            if (is_directory or not pattern.wants_directory) and expression.match(path):
                return pattern
        return None


def _together(patterns: Sequence[Pattern]) -> re.Pattern[bytes]:
    alternatives = b"|".join(pattern.expression for pattern in patterns) or rb"(?!)"
    return re.compile(b"(?:" + alternatives + rb")\Z", re.DOTALL)


class Rules(Struct, frozen=True, dict=True):
    """The rules for one directory and its entries."""

    top: bytes  # the directory that paths are relative to: the repository's root, or the workspace
    layers: tuple[Layer, ...]  # the later one weighs more
    ours: Layer  # weighs most

    keeps_git: bool = False
    tracked: TrackedFiles | None = None  # of the repository that the directory is in; None outside of git
    # A rule of git excludes the directory, but git tracks files in it: only those belong.
    all_but_tracked: Pattern | None = None
    as_is: bool = False  # everything belongs

    def excludes(self, path: bytes, is_directory: bool) -> bool:
        """Report a path relative to top that does not belong, in a directory that does. May wait for git."""
        pattern = self.named_by(path, is_directory)
        if pattern is not None and pattern.of_git and self.is_tracked(path, is_directory):
            pattern = self.decide(path, is_directory, is_tracked=True)
        return pattern is not None and not pattern.negated

    def named_by(self, path: bytes, is_directory: bool) -> Pattern | None:
        """Return the rule that excludes a path unless git tracks it. Called for every path; never waits for git."""
        if self.all_but_tracked is None and not path.endswith(GIT):
            for base, any_, any_for_files in self._looks:
                if (any_ if is_directory else any_for_files).match(path[base:]):
                    break
            else:
                return None
        pattern = self.decide(path, is_directory)
        return None if pattern is None or pattern.negated else pattern

    def is_tracked(self, path: bytes, is_directory: bool) -> bool:
        """Report an ignored path that git tracks, or a directory with such paths in it. May wait for git."""
        return self.tracked is not None and self.tracked.holds(path, is_directory)

    @cached_property
    def _looks(self) -> list[tuple[int, re.Pattern[bytes], re.Pattern[bytes]]]:
        """Return the expressions to try first, for each layer with rules."""
        return [(layer.base, layer.any, layer.any_for_files) for layer in (self.ours, *self.layers) if layer]

    def decide(self, path: bytes, is_directory: bool, is_tracked: bool = False) -> Pattern | None:
        """Return the rule that decides about a path relative to top, or None."""
        if path.endswith(GIT) and path[: -len(GIT)][-1:] in (b"", b"/") and not self.keeps_git:
            return LEFT_OUT
        if self.all_but_tracked is not None and not is_tracked:
            return self.all_but_tracked
        for layer in (self.ours, *reversed(self.layers)):
            pattern = layer.decide(path, is_directory, is_tracked)
            if pattern is not None:
                return pattern
        return None

    def for_tracked(self, path: bytes) -> Rules:
        """Return the rules inside a directory that git's rules exclude and that holds tracked files."""
        if self.tracked is None or self.tracked.is_submodule(path):
            return replace(self, all_but_tracked=None)
        return replace(self, all_but_tracked=self.decide(path, is_directory=True))

    def below(self, path: bytes, names: Sequence[bytes]) -> Rules:
        """Return the rules for a directory (relative to top; b"" for top) with these entries."""
        if self.as_is:
            return self
        base = path + b"/" if path else b""
        patterns: list[Pattern] = []
        for name in FILES:
            if name in names:
                patterns += _read_file(os.path.join(self.top, base + name), of_git=name == GITIGNORE)
        rules = replace(self, layers=(*self.layers, Layer(base, patterns))) if patterns else self
        if path and GIT in names:  # a repository within the one around it
            return replace(rules, tracked=TrackedFiles(self.top, path, self.tracked))
        return rules


def _read_file(path: bytes, *, of_git: bool) -> list[Pattern]:
    try:
        # Like git, follow no link in place of an ignore file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return read_lines(file.read(), os.fsdecode(path), of_git=of_git)
    except OSError:  # a directory, a link, or unreadable: the listing reports unreadable files
        return []


def no_rules(workspace: Path) -> Rules:
    """Return rules for a workspace that leave nothing out."""
    nothing = Layer(b"", ())
    return Rules(os.fsencode(workspace.resolve()), (nothing,), nothing, keeps_git=True, as_is=True)


def load_rules(
    workspace: Path, ignore: Sequence[str], *, include_git: bool = False, places: Sequence[str] = ()
) -> tuple[Rules, bytes]:
    """Return the rules for a workspace's own directory, and its path relative to their top (b"" if it is the top).

    places: where each pattern of ignore was written, for people
    """
    here = os.fsencode(workspace.resolve())
    repository = next((d for d in (workspace.resolve(), *workspace.resolve().parents) if (d / ".git").exists()), None)
    top = os.fsencode(repository) if repository else here
    inside = here[len(top) :].strip(b"/")
    exclude = _read_file(os.path.join(top, b".git/info/exclude"), of_git=True)
    ours = Layer(inside + b"/" if inside else b"", read_ours(ignore, places))
    tracked = TrackedFiles(top) if repository else None
    rules = Rules(top, (Layer(b"", [*DEFAULTS, *exclude]),), ours, include_git, tracked)
    above = inside.split(b"/")[:-1] if inside else []
    if inside:  # the workspace's own directory is read by the walk
        for depth in range(len(above) + 1):
            rules = rules.below(b"/".join(above[:depth]), FILES)
    return rules, inside


class Decision(Struct, frozen=True, kw_only=True):
    """The reason why a path belongs, or does not."""

    belongs: bool
    path: bytes  # relative to the workspace: the path itself, or a directory above it that is left out
    rule: Pattern | None  # None: no rule matches
    tracked: str = ""  # "it" or "files in it": git tracks that and so overrules ``rule``
    git_problem: str = ""  # the path does not belong, and git could not be asked if it tracks it, for this reason


def explain(
    workspace: Path, path: bytes, ignore: Sequence[str], *, include_git: bool = False, places: Sequence[str] = ()
) -> Decision:
    """Return the rule that decides about a path, relative to the workspace; with a slash at its end, a directory.

    The path need not exist. As with git, nothing below a directory that is left out can belong.
    """
    return explainer(workspace, ignore, include_git=include_git, places=places)(path)


def explainer(
    workspace: Path, ignore: Sequence[str], *, include_git: bool = False, places: Sequence[str] = ()
) -> Callable[[bytes], Decision]:
    """Return ``explain`` for many paths of one workspace: git is asked once."""
    rules, inside = load_rules(workspace, ignore, include_git=include_git, places=places)
    return partial(_explain, workspace, rules, inside)


def _explain(workspace: Path, rules: Rules, inside: bytes, path: bytes) -> Decision:
    parts = path.strip(b"/").split(b"/")
    above = inside + b"/" if inside else b""
    root = os.fsencode(workspace.resolve())
    rule, tracked = None, ""
    for depth in range(1, len(parts) + 1):
        asked, parent = b"/".join(parts[:depth]), b"/".join(parts[: depth - 1])
        is_directory = depth < len(parts) or path.endswith(b"/") or _is_directory(os.path.join(root, asked))
        rules = rules.below((above + parent).rstrip(b"/"), [*FILES, *_repository_in(os.path.join(root, parent))])
        rule, tracked = rules.decide(above + asked, is_directory), ""
        if rule is None or rule.negated:
            continue
        if rule.of_git and rules.is_tracked(above + asked, is_directory):
            other = rules.decide(above + asked, is_directory, is_tracked=True)
            if other is None or other.negated:
                tracked = "files in it" if is_directory else "it"
                rules = rules.for_tracked(above + asked) if is_directory else rules
                continue
            rule = other
        problem = rules.tracked.problem if rule.of_git and rules.tracked is not None else ""
        return Decision(belongs=False, path=asked, rule=rule, git_problem=problem)
    return Decision(belongs=True, path=path.strip(b"/"), rule=rule, tracked=tracked)


def _is_directory(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _repository_in(path: bytes) -> list[bytes]:
    """Return the name of the repository in a directory, if there is one."""
    return [GIT] if os.path.lexists(os.path.join(path, GIT)) else []


def left_by_default(workspace: Path, ignore: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are left out by default in the workspace's own directory, and by no other rule."""
    rules, inside = load_rules(workspace, ignore)
    rules = rules.below(inside, FILES)
    base = inside + b"/" if inside else b""
    decisions = {name: rules.decide(base + os.fsencode(name), is_directory=True) for name in DEFAULT_NAMES}
    return tuple(name for name, pattern in decisions.items() if pattern in DEFAULTS)
