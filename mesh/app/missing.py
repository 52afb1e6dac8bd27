"""Facts of this machine about a failure: the rule that keeps a file from being sent, the entry of mesh.yaml."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from msgspec.structs import replace

from mesh.core.errors import MeshError
from mesh.core.events import PrepareFailed
from mesh.core.outcome import Outcome
from mesh.core.run import Kind, RunSpec
from mesh.core.typed import Typed
from mesh.verdict.facts import FILE_MISSING, missing_path
from mesh.verdict.verdict import Failure, Verdict


def naming(verdict: Verdict | None, typed: Typed | None) -> Verdict | None:
    """Return the verdict with advice that names the cluster as it was typed."""
    if verdict is None or typed is None:
        return verdict
    found = {}
    for name, failure in (("first", verdict.first), ("root", verdict.root)):
        if isinstance(failure, Failure) and failure.fact:
            fact = replace(failure.fact, advice=typed.filled(failure.fact.advice))
            found[name] = replace(failure, fact=fact)
    return replace(verdict, **found)


def advised(verdict: Verdict | None, spec: RunSpec) -> Verdict | None:
    """Return the verdict with advice on the very file that is missing, if it is about one."""
    if verdict is None or spec.kind is not Kind.RUN:
        return verdict
    name = "root" if verdict.root else "first"
    failure = verdict.root or verdict.first
    if not isinstance(failure, Failure) or failure.fact is None or failure.fact.name != FILE_MISSING:
        return verdict
    fact = replace(failure.fact, advice=_advice(missing_path(failure.said), spec))
    return replace(verdict, **{name: replace(failure, fact=fact)})


def in_mesh_yaml(outcome: Outcome, spec: RunSpec) -> Outcome:
    """Return the outcome with the entries of prerun that failed named by their place in mesh.yaml."""
    entries = [entry for entry in spec.prerun if not entry.module]
    places = {f" in {entry.run!r}": f"prerun[{number}] of mesh.yaml" for number, entry in enumerate(entries)}

    def named(failure: PrepareFailed) -> PrepareFailed:
        if failure.step != "prerun":
            return failure
        place = next((place for end, place in places.items() if failure.message.endswith(end)), "")
        return replace(failure, message=f"{place}: {failure.message}") if place else failure

    return replace(outcome, failures=tuple(map(named, outcome.failures)))


def _advice(path: str, spec: RunSpec) -> str:
    """Return what to do about a path, "" if there is nothing to do. path: relative, or as it was printed"""
    if not path or path.startswith("/"):
        return ""
    inside = os.path.normpath(path)
    if inside.split("/")[0] == "..":
        return f"{path} is outside of the workspace ({spec.workspace}), and only that is sent"
    if not os.path.lexists(spec.workspace / inside):
        return f"{path} is not in {spec.workspace} either{_near(inside, spec)}"
    if not spec.sync:
        return "mesh exec sends no files; mesh run and mesh push do"
    from mesh.workspace.ignore import explainer

    try:
        decision = explainer(spec.workspace, spec.ignore, include_git=spec.include_git)(os.fsencode(inside))
    except MeshError:
        return ""
    if decision.belongs or decision.rule is None:
        return ""
    rule = os.fsdecode(decision.rule.text)
    place = decision.rule.place.removeprefix(f"{spec.workspace}/")
    return f"{path} is here, but not sent: `{rule}` in {place} leaves it out"


def _near(inside: str, spec: RunSpec) -> str:
    """Return the nearest name in the same directory as the end of a message."""
    directory, name = os.path.split(inside)
    near: Sequence[str] = ()
    try:
        near = difflib.get_close_matches(name, os.listdir(spec.workspace / directory), n=1, cutoff=0.6)
    except OSError:
        pass
    return f"; did you mean {os.path.join(directory, near[0])}?" if near else ""
