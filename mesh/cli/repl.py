"""mesh repl: a Python prompt on all ranks."""

from __future__ import annotations

import os

from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.options import Given


@command(
    "repl",
    "Run",
    "CLUSTER",
    examples=(
        ("mesh repl pod", "a Python prompt on one rank of each host"),
        ("mesh repl --nproc 8 pod:0-3", "on 8 ranks of each of 4 hosts"),
    ),
)
def repl(given: Given) -> int:
    """Open a Python prompt on all ranks: each cell runs on every rank."""
    from mesh.program.prompt.session import Wishes, run_prompt

    if given[o.CLUSTERS]:  # a program has no parameter for it
        os.environ["MESH_CLUSTERS"] = given[o.CLUSTERS]

    return run_prompt(
        Wishes(
            cluster=given[o.CLUSTER],
            python=given[o.PYTHON],
            options=given.options(),
            fold=given[o.FOLD],
            look=given.look(),
        )
    )
