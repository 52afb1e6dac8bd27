"""Options of the commands about pods of Kubernetes."""

from __future__ import annotations

from mesh.cli import userpodoptions
from mesh.cli.option import OTHER, AnyOption, Option
from mesh.core.errors import UsageError

GANG_KINDS = ("volcano",)


def _as_gang(flag: str, text: str) -> str:
    if text not in GANG_KINDS:
        raise UsageError(f"{flag}: expected {' or '.join(GANG_KINDS)}, found {text!r}")
    return text


GANG = Option(
    "gang",
    ("pods role",),
    OTHER,
    "KIND",
    "also the rights for pods with `gang: KIND`: volcano",
    _as_gang,
    "",
    choices=GANG_KINDS,
)

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
TABLE += userpodoptions.TABLE
