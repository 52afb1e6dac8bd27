"""Options of `mesh logs` and `mesh job logs` that depend on each other."""

from __future__ import annotations

import re

from mesh.cli import joboptions as j
from mesh.cli import options as o
from mesh.cli.option import AnyOption
from mesh.cli.options import Given
from mesh.core.errors import UsageError
from mesh.core.naming import LAST

OF_RANKS: tuple[AnyOption, ...] = (j.ATTEMPT, o.FOLLOW, o.SOME_RANKS, o.STDERR, o.SINCE, o.GREP, o.FIXED, j.JSON_OUTPUT)


def pattern_of(given: Given) -> str:
    """Return the regular expression for lines; "": all are shown. Raises UsageError for -F without a text."""
    if not given[o.FIXED]:
        return given[o.GREP]
    if not given[o.GREP]:
        hint = f"mesh {given.command} -F --grep TEXT"
        raise UsageError(f"{o.FIXED.flag}: there is no --grep whose text is plain", hint=hint)
    return re.escape(given[o.GREP])


def check_module(given: Given) -> None:
    """Raise UsageError if an option for the output of ranks stands beside --module, which shows none."""
    if found := next((option.flag for option in OF_RANKS if given[option] != option.default), ""):
        hint = f"mesh job logs {given[j.JOB] or LAST} --module {given[j.LOGS_MODULE]}"
        raise UsageError(f"{found}: --module shows a set-up, and no output of ranks", hint=hint)
