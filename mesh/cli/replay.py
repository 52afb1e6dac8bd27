"""mesh replay: a run once more with the files that it had."""

from __future__ import annotations

from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.speech import say
from mesh.core.naming import LAST


@command(
    "replay",
    "Run",
    "[RUN]",
    examples=(
        ("mesh replay", "the last run, with the files that it had"),
        ("mesh replay lr3 --env LR=1e-3", "values of --env are in no file, so they are given again"),
    ),
)
def replay(given: Given) -> int:
    """Repeat a past run with its own files, command and hosts."""
    from mesh.api.rerunning import replay
    from mesh.app.screen import Showing

    look, json = given.look(), given[o.JSON]
    showing = Showing(
        output=given[o.SHOWN],
        label=given[o.LABEL],
        fold=given[o.FOLD],
        json=json,
        look=look,
        typed=given.typed,
    )
    result = replay(
        given[o.RUN] or LAST,
        env=given[o.ENV],
        clusters_file=given[o.CLUSTERS],
        showing=showing,
        report=(lambda text: None) if look.terse or json else say,
    )
    return result.exit_code
