"""Options of the pages of a browser, of the comparison of two runs, and of questions that pages ask."""

from __future__ import annotations

from mesh.cli.option import COMMAND, OTHER, OUTPUT, AnyOption, Option, switch
from mesh.config.settings import read_number

UI_PORT: Option[int | None] = Option(
    "port", ("ui",), OTHER, "PORT", "listen there on 127.0.0.1 (default: any)", read_number, 0
)
ACTIONS = switch("actions", ("ui",), OTHER, "let its pages stop, signal and detach runs")
NO_BROWSER = switch("no-browser", ("ui",), OTHER, "only print the address")
WORKSPACES = switch("workspaces", ("check",), COMMAND, "also the size of each workspace there")
JSON_DIFF = switch("json", ("diff",), OUTPUT, "print the differences as one JSON object")

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
