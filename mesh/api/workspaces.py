"""The files that belong to the workspace, and the rule that decides on each."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from mesh.api.choosing import (
    here,
    project_here,
)
from mesh.config.project import check_workspace
from mesh.core.errors import UsageError


class Listed(Struct, frozen=True, kw_only=True):
    """A file or link of the workspace."""

    path: str  # relative to the workspace
    size: int  # bytes


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a path belongs to the workspace, or does not."""

    belongs: bool
    path: str  # relative to the workspace
    obstacle: str  # why it is not sent although no rule leaves it out, as "it is a FIFO"; "": nothing is in the way
    above: str  # the directory above it that is left out, relative to the workspace; "": none is
    rule: str  # the pattern that decides; "": none is about it
    place: str  # its file and line
    emptied: bool = (
        False  # the path is a directory that is sent without anything in it, for which ``rule`` is the reason
    )
    tracked: str = ""  # "it" or "files in it": git tracks that and so overrules ``rule``; "" otherwise
    git_problem: str = ""  # the reason for which git could not be asked if it tracks the path; "": it was, or need not


def list_workspace() -> list[Listed]:
    """List the files that a run would send, the biggest first. Raises MeshError."""
    from mesh.workspace import listing

    project = project_here()
    check_workspace(project, Path.home())
    found = listing.list_workspace(project.workspace, project.ignore, include_git=project.include_git)
    listed = [
        Listed(path=os.fsdecode(entry.path), size=entry.size)
        for entry in found.entries
        if entry.kind != listing.DIRECTORY
    ]
    return sorted(listed, key=lambda one: (-one.size, one.path))


def explain(path: str) -> Explanation:
    """Return if a path belongs to the workspace, and which rule decides. Raises UsageError if it is outside."""
    from mesh.workspace.ignore import explainer
    from mesh.workspace.listing import obstacle

    project = project_here()
    inside = _inside(project.workspace, path)

    decided = explainer(
        project.workspace, project.ignore, include_git=project.include_git, places=project.ignore_places
    )
    decision = decided(inside)
    in_the_way = obstacle(project.workspace, inside) if decision.belongs else ""
    belongs = decision.belongs and not in_the_way
    below = [decided(child) for child in _children(project.workspace, inside)] if belongs else []
    emptied = bool(below) and not any(child.belongs for child in below)
    rule = below[0].rule if emptied else decision.rule
    return Explanation(
        belongs=belongs,
        path=os.fsdecode(inside),
        obstacle=in_the_way,
        above="" if decision.path == inside.strip(b"/") else os.fsdecode(decision.path),
        rule=os.fsdecode(rule.text) if rule else "",
        place=rule.place if rule else "",
        emptied=emptied,
        tracked=decision.tracked,
        git_problem=below[0].git_problem if emptied else decision.git_problem,
    )


def _children(workspace: Path, path: bytes) -> list[bytes]:
    """List a directory of the workspace in order. Return [] for anything else, and for one that cannot be read."""
    place = os.path.join(os.fsencode(workspace), path.strip(b"/"))
    try:
        return [] if os.path.islink(place) else [os.path.join(path, name) for name in sorted(os.listdir(place))]
    except OSError:
        return []


def _inside(workspace: Path, path: str) -> bytes:
    """A path as it is relative to the workspace; a slash at its end stays. Raises UsageError."""
    given = os.path.normpath(here() / path)
    # A link in it is not followed, unless the way to the workspace leads over one.
    for place in (given, os.path.join(os.path.realpath(os.path.dirname(given)), os.path.basename(given))):
        inside = os.path.relpath(place, workspace)
        if inside == os.curdir:
            raise UsageError(f"{path} is the workspace itself")
        if inside.split(os.sep)[0] != os.pardir:
            return os.fsencode(inside + "/" * path.endswith("/"))
    raise UsageError(f"{path} is not in the workspace, {workspace}")
