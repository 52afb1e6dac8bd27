"""Options of the commands about pods of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable

from mesh.cli.option import OTHER, RANKS, AnyOption, Option, switch
from mesh.config.settings import read_name
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

JOBS = switch("jobs", ("pods role",), OTHER, "also the rights to apply what `mesh pods render --as` prints")
JOB_KINDS = ("job", "jobset")


def _as_kind(flag: str, text: str) -> str:
    if text not in JOB_KINDS:
        raise UsageError(f"{flag}: expected {' or '.join(JOB_KINDS)}, found {text!r}")
    return text


def _as_count(least: int) -> Callable[[str, str], int]:
    """Return a reader of a whole number."""

    def read(flag: str, text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise UsageError(f"{flag}: expected a whole number of at least {least}, found {text!r}")
        return int(text)

    return read


RENDER = ("pods render",)
AS = Option("as", RENDER, OTHER, "KIND", "a job that needs no client: job or jobset", _as_kind, "", choices=JOB_KINDS)
RETRIES = Option("retries", RENDER, OTHER, "N", "how often a JobSet starts all pods again (0)", _as_count(0), 0)
RANKS_HERE = Option("nproc", RENDER, RANKS, "N", "ranks in each pod (default: 1)", _as_count(1), 1, field="nproc")
JOB_NAME = Option("name", RENDER, OTHER, "NAME", "call the run so", read_name, "", field="name")

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
