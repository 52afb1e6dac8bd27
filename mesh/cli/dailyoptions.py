"""Options of the commands for the day after a run."""

from __future__ import annotations

from mesh.cli.option import COMMAND, HOSTS, AnyOption, Option, switch

FAILED = switch("failed", ("again",), HOSTS, "only on the hosts that have failed")
EDIT = switch("edit", ("again",), COMMAND, "change the command line in $VISUAL or $EDITOR first")

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
