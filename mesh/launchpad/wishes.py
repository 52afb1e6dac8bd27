"""The hosts, GPUs and interpreters of labels that the project's mesh.yaml has under ``program:``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from mesh.api.choosing import project_here
from mesh.config.hosts import NoHost, expand
from mesh.config.project import FILE
from mesh.core.errors import UsageError
from mesh.launchpad.nodes import Where

_COMMA = re.compile(r",(?![^\[]*\])")


def hosts_named(where: Mapping[str, Where]) -> list[str]:
    """Return the hosts that labels name, in order of first use. Raises UsageError for a range that is none."""
    found: list[str] = []
    for label, one in where.items():
        texts = _COMMA.split(one.on) if isinstance(one.on, str) else one.on if isinstance(one.on, list | tuple) else ()
        try:
            found += [name for text in texts for name in expand(str(text).strip())]
        except NoHost as error:
            raise UsageError(f"{label}: {error}") from error
    return list(dict.fromkeys(found))


def with_project(where: Mapping[str, Where], labels: Sequence[str]) -> dict[str, Where]:
    """Return where= of a launch, and mesh.yaml's entries for labels that it lacks.

    Writes a notice about a label of mesh.yaml that looks like a misspelt one of the program.
    Raises UsageError for a mesh.yaml that cannot be read.
    """
    places = project_here().program
    found = dict(where)
    for label, place in places.items():
        near = [] if label in labels else get_close_matches(label, labels, 1)
        if near:
            text = f"the program has no label {label!r}; the nearest is {near[0]!r}"
            sys.stderr.write(f"mesh: {FILE}:{place.line}: program.{label}: {text}\n")
        if label in labels and label not in found:
            found[label] = Where(on=",".join(place.on) or None, gpus=place.gpus, python=place.python, env=place.env)
    return found
