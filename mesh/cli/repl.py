"""mesh repl: a Python prompt on all ranks."""

from __future__ import annotations

from mesh.cli import dailyoptions as d
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.wishes import wishes_of


@command(
    "repl",
    "Run",
    "CLUSTER",
    examples=(
        ("mesh repl pod", "a Python prompt on one rank of each host"),
        ("mesh repl --nproc 8 pod:0-3", "on 8 ranks of each of 4 hosts"),
        ("mesh repl --install-kernel pod pod", "Jupyter then lists a kernel whose cells run on all ranks"),
    ),
)
def repl(given: Given) -> int:
    """Open a Python prompt on all ranks: each cell runs on every rank."""
    if given[d.INSTALL_KERNEL]:
        from mesh.cli.kernelspec import install

        return install(given)

    from mesh.program.prompt.session import run_prompt

    return run_prompt(wishes_of(given))
