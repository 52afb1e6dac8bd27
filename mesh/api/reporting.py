"""A run as one HTML file, and the differences of two runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mesh.api.choosing import usable_project
from mesh.api.meant import run_meant
from mesh.api.records import find_record
from mesh.app.secrets import secrets_of
from mesh.config.variables import secret_names
from mesh.core.errors import MeshError, UsageError
from mesh.core.masking import Secrets
from mesh.core.naming import LAST
from mesh.pages.differences import Difference, differences
from mesh.rundir.records import Record


def report(run: str = LAST) -> Iterator[str]:
    """Yield the pieces of an HTML file about a run, which opens offline.

    run: an id, a name or tag, a part of an id or name, or "last". Values of secrets are masked.
    Raises UsageError if there is no such run, and MeshError if its logs cannot be read.
    """
    from mesh.pages.report import report_html

    record = recorded(run)
    try:
        yield from report_html(record, mask_of(record).text)
    except OSError as error:
        raise MeshError(f"cannot read the logs of run {record.run}: {error}") from error


def diff(left: str, right: str) -> tuple[Record, Record, list[Difference]]:
    """Return two runs, and the facts in which they differ: arguments, environment, git, tree, rules, hosts, end.

    left, right: as ``run`` of ``report``. Raises UsageError if there is no such run.
    """
    one, other = recorded(left), recorded(right)
    mask = Secrets((*_values(one), *_values(other))).text
    found = [
        Difference(what=item.what, left=mask(item.left), right=mask(item.right)) for item in differences(one, other)
    ]
    return one, other, found


def recorded(run: str) -> Record:
    """Return the run of this machine that a word means. Raises UsageError."""
    word, _ = run_meant(run, "", "")
    record = find_record(word)
    if record is None:
        what = "this machine has started no run yet" if run == LAST else f"no run {run!r} was started on this machine"
        raise UsageError(what, hint="`mesh runs` lists those that were")
    return record


def mask_of(record: Record) -> Secrets:
    """Return the values that pages about a run mask: those of the run, and those of this directory's project."""
    return Secrets(_values(record))


def _values(record: Record) -> list[str]:
    names = secret_names(usable_project(), os.environ)
    own = [value.decode("utf-8", "replace") for value in secrets_of(record.spec, os.environ).values]
    return [*own, *(os.environ[name] for name in names if name in os.environ)]
