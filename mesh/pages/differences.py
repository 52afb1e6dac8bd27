"""The differences of two runs: arguments, environment, git, tree, packages, hosts and the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from mesh.core.escapes import plain
from mesh.pages.events import all_events
from mesh.pages.fields import Fields, count, inner, number, text, texts
from mesh.pages.showing import visible
from mesh.pages.verdicts import sentence
from mesh.rundir.records import Record

# Parts of the spec that differ in every run, or stand in fields of their own.
_OWN = ("run", "groups", "rules", "workspace", "env_files", "name", "tags", "project", "owner", "kind", "watch")


class Difference(Struct, frozen=True, kw_only=True):
    """A fact of two runs that differs."""

    what: str
    left: str
    right: str


def facts(record: Record) -> dict[str, str]:
    """Return the facts of a run by their names, in the order for people."""
    about = record.about
    git, rules = inner(about, "git"), inner(about, "rules")
    found = {
        "cluster": record.cluster,
        "command": record.spec.told,
        "name": text(about, "name"),
        "tags": ", ".join(texts(about, "tags")),
        "hosts": ", ".join(record.hosts),
        "nproc": str(count(about, "nproc") or ""),
        "workspace": text(about, "workspace"),
        "git commit": text(git, "commit"),
        "git branch": text(git, "branch"),
        "tree": tree(record.directory),
        "environment": ", ".join(texts(about, "env")),
    }
    found |= {f"package {name}": version for name, version in packages(record.directory).items()}
    found |= {f"rule {name}": _short(value) for name, value in rules.items()}
    found |= {name: _short(value) for name, value in inner(about, "spec").items() if name not in _OWN and value}
    found |= {
        "state": record.state.value,
        "exit": "" if record.exit_code is None else str(record.exit_code),
        "cause": record.cause,
        "took": _took(about),
        "verdict": sentence(about),
    }
    return found


def differences(left: Record, right: Record) -> list[Difference]:
    """Return the facts of two runs that differ."""
    ours, theirs = facts(left), facts(right)
    found = []
    for what in dict.fromkeys((*ours, *theirs)):
        mine, other = ours.get(what, ""), theirs.get(what, "")
        if mine == other:
            continue
        found.append(Difference(what=what, left=mine, right=other))
    return found


def trees(directory: Path) -> Mapping[str, str]:
    """Return the tree hash of the workspace on each host, by the events of the run."""
    return {
        text(one.fields, "host"): text(one.fields, "tree")
        for one in all_events(directory)
        if text(one.fields, "event") == "synced" and text(one.fields, "tree")
    }


def tree(directory: Path) -> str:
    """Return the tree hash that the hosts have; all of them, by commas, if they differ."""
    return ", ".join(dict.fromkeys(trees(directory).values()))


def packages(directory: Path) -> dict[str, str]:
    """Return the versions of Python and its packages on the first host, by the events of the run."""
    for one in all_events(directory):
        if found := inner(one.fields, "packages"):
            return {name: text(found, name) for name in found}
    return {}


def tree_words(trees: Mapping[str, str]) -> str:
    """Return the tree hash of the first host, and how many hosts have it; "" if none has it yet. trees: by hosts"""
    known = list(trees.values())
    return f"{known[0]}, equal on {known.count(known[0])} of {len(known)} hosts" if known else ""


def _took(about: Fields) -> str:
    begin, end = number(about, "started"), number(about, "ended")
    return "" if begin is None or end is None else f"{end - begin:.1f} s"


def _short(value: object) -> str:
    if isinstance(value, str | int | float) or value is None:
        return str(value)
    return json.dumps(value, sort_keys=True, default=str)


def lines(found: list[Difference], left: str, right: str) -> Iterator[str]:
    """Yield the differences for people: the fact, and a line of each run.

    >>> list(lines([Difference(what="exit", left="0", right="3")], "a", "b"))
    ['- a', '+ b', 'exit', '- 0', '+ 3']
    """
    yield f"- {left}"
    yield f"+ {right}"
    for one in found:
        yield one.what
        yield f"- {_line(one.left)}"
        yield f"+ {_line(one.right)}"


def _line(text: str) -> str:
    """Return a text of a run directory as one line that a terminal only shows."""
    return visible(plain(text)).replace("\n", "\\n")
