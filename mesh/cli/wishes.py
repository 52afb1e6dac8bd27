"""The ranks that a command line of ``mesh repl`` asks for, or the line above a notebook's cell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import COMMANDS
from mesh.cli.options import Given
from mesh.core.errors import UsageError

if TYPE_CHECKING:
    from mesh.program.prompt.notebook import Asked
    from mesh.program.prompt.starting import Wishes

PROMPT = "repl"  # the command whose options notebooks have


def wishes_of(given: Given) -> Wishes:
    """Return the ranks that a command line asks for. Raises UsageError."""
    from mesh.program.prompt.starting import Wishes

    if given[o.CLUSTERS]:  # a program has no parameter for it
        os.environ["MESH_CLUSTERS"] = given[o.CLUSTERS]
    return Wishes(
        cluster=given[o.CLUSTER],
        python=given[o.PYTHON],
        options=given.options(),
        fold=given[o.FOLD],
        look=given.look(),
    )


def read_asked(words: Sequence[str]) -> Asked:
    """Return the ranks that the words of a line ask for. Raises UsageError, and HelpWanted for ``--help``."""
    from mesh.cli.parser import parse, split
    from mesh.program.prompt.notebook import Asked

    given = parse(COMMANDS[PROMPT], words)
    if given[d.INSTALL_KERNEL]:
        line = f"mesh repl {d.INSTALL_KERNEL.flag} {given[d.INSTALL_KERNEL]} {given[o.CLUSTER]}".rstrip()
        raise UsageError(f"{d.INSTALL_KERNEL.flag}: not in a notebook", hint=line)
    options, _ = split(COMMANDS[PROMPT], words)
    own = tuple(sorted(option for option in options if not option.startswith(f"{o.CLUSTER.flag}=")))
    return Asked(cluster=given[o.CLUSTER], options=own, wishes=wishes_of(given))
