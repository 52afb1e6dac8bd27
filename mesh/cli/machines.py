"""Machines that were made for jobs: list, audit, delete those that jobs have left, quotas and costs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mesh.cli import joboptions as j
from mesh.cli.command import Takes, command
from mesh.cli.options import Given
from mesh.cli.reports import UNKNOWN_PRICE, age, amount
from mesh.cli.speech import columns, say, show
from mesh.core.errors import MeshError
from mesh.core.width import Table

if TYPE_CHECKING:
    from mesh.api.machines import HeldMachines
    from mesh.jobs.audit import Found, Quota
    from mesh.jobs.costs import Cost

GROUP = "Jobs"
EXIT_FOUND = 1  # `audit` has found orphans, unknown or missing machines


@command(
    "job machines",
    GROUP,
    examples=(("mesh job machines", "those that jobs have now"), ("mesh job machines --all", "also those given back")),
)
def machines(given: Given) -> None:
    """List the machines of jobs, as the steward has recorded them."""
    from mesh.api.jobs import stray_lines
    from mesh.api.machines import list_machines

    found = list_machines(every=given[j.ALL_MACHINES])
    show(_json(found) if given[j.JSON_MACHINES] else [*_machine_lines(found), *stray_lines()])


@command(
    "job audit", GROUP, examples=(("mesh job audit", "ask every zone; status 1: orphan, unknown or missing ones"),)
)
def audit(given: Given) -> int:
    """List all machines that mesh has made in the cloud, with their jobs."""
    from mesh.api.machines import audit_machines
    from mesh.jobs.audit import TROUBLES

    found = audit_machines(every=given[j.ALL_MACHINES])
    show(_json(found.found) if given[j.JSON_MACHINES] else _audit_lines(found.found, found.currency))
    _refuse_silence(found.silent)
    return EXIT_FOUND if any(one.whose in TROUBLES for one in found.found) else 0


@command(
    "job gc",
    GROUP,
    "[--yes NAME ...]",
    takes=Takes.PATHS,
    examples=(
        ("mesh job gc --dry-run", "what would be deleted"),
        ("mesh job gc", "after two looks, a minute apart"),
        ("mesh job gc --yes mesh-abc123-7-g1", "also a machine that the store does not have"),
    ),
)
def gc(given: Given) -> None:
    """Delete machines that jobs have given back, and those whose job has ended."""
    from mesh.api.machines import collect

    dry_run = given[j.DRY_GC] or not (given[j.GC_YES] or (sys.stdin is not None and sys.stdin.isatty()))
    found = collect((*given[j.GC_YES], *given.words), dry_run=dry_run)
    if given[j.JSON_MACHINES]:
        show(_json(found.deleted))
    else:
        done = "would be deleted" if dry_run else "deleted"
        show([*_audit_lines(found.deleted, ""), f"{done}: {len(found.deleted)}"])
    if dry_run and found.deleted and not given[j.DRY_GC]:
        say("nothing is deleted without a terminal: run `mesh job gc` in one")
    for line in found.failed:
        say(f"not deleted: {line}")
    _refuse_silence(found.silent)
    if found.failed:
        raise MeshError(f"{len(found.failed)} machines could not be deleted", hint="mesh job gc")


@command("job quota", GROUP, examples=(("mesh job quota", "chips by kind, zone and pricing"),))
def quota(given: Given) -> None:
    """Show how many chips are used and asked for, against quotas.yaml."""
    from mesh.api.machines import quota

    found, silent = quota()
    show(_json(found) if given[j.JSON_MACHINES] else _quota_lines(found))
    _refuse_silence(silent)


@command(
    "job cost",
    GROUP,
    "[ID ...]",
    takes=Takes.PATHS,
    examples=(("mesh job cost", "the cost of all jobs"), ("mesh job cost --by day", "or by user, or zone")),
)
def cost(given: Given) -> None:
    """Estimate what the machines of jobs have cost, by prices.yaml."""
    from mesh.api.machines import cost

    found = cost(given.words, by=given[j.COST_BY] or "job")
    if given[j.JSON_MACHINES]:
        show(_json(found.costs))
        return
    show(_cost_lines(found.costs, given[j.COST_BY] or "job", found.currency))
    if any(one.unknown for one in found.costs):
        say("a price is unknown: add it to ~/.config/mesh/prices.yaml, as docs/machines.md shows")
    elif found.costs:
        say(f"an estimate{f', by prices of {found.date}' if found.date else ''}; the bill is Google's")


@command(
    "job selftest",
    GROUP,
    examples=(("mesh job selftest --project lab --zone us-west4-a", "it costs a machine for some minutes"),),
)
def selftest(given: Given) -> None:
    """Test jobs on the real cloud: make and delete a small machine. Costs money."""
    from mesh.api.selftest import selftest

    where = given[j.SELF_PROJECT], given[j.SELF_ZONE]
    selftest(*where, given[j.SELF_ACCELERATOR], given[j.SELF_VERSION], say)


def _refuse_silence(silent: Sequence[str]) -> None:
    """Raise MeshError if a zone gave no complete answer, so that the list may lack machines."""
    if silent:
        raise MeshError("\n".join(f"not listed: {line}" for line in silent), hint="mesh job audit")


def _json(found: Iterable[object]) -> Iterator[str]:
    from msgspec import json

    return (json.encode(one).decode() for one in found)


def _machine_lines(found: Sequence[HeldMachines]) -> Iterator[str]:
    import time

    if not found:
        yield "no job has machines that were made for it"
        return
    now = time.time()
    rows = [
        [
            f"{one.job} {one.job_name}",
            one.name,
            f"{f'{one.slices} x ' if one.slices > 1 else ''}{one.accelerator}",
            one.zone,
            one.pricing or "-",
            one.phase,
            age(now - one.since) if one.since else "-",
            f"{one.chip_hours:.1f}" if one.pricing else "-",
            _cost(one),
            one.state,
        ]
        for one in found
    ]
    head = ["job", "name", "machines", "zone", "pricing", "phase", "for", "chip-hours", "cost", "why"]
    yield from Table(head, width=columns(), dropped=["for", "pricing", "chip-hours"]).lines(rows)


def _cost(one: HeldMachines) -> str:
    """Return what machines have cost; "-" for hosts of a scheduler, which have no price."""
    if not one.pricing:
        return "-"
    return UNKNOWN_PRICE if one.cost is None else f"{one.cost:.2f}"


def _audit_lines(found: Sequence[Found], currency: str) -> Iterator[str]:
    from mesh.jobs.audit import Whose

    if not found:
        yield "there is no machine of mesh"
        return
    order = list(Whose)
    rows = [
        [
            one.whose.value,
            one.name,
            one.kind,
            one.zone,
            one.accelerator or "-",
            one.pricing or "-",
            one.state or "-",
            f"{one.job}" if one.job is not None else one.store or "-",
            "-" if one.whose is Whose.MISSING else UNKNOWN_PRICE if one.per_hour is None else f"{one.per_hour:.2f}",
        ]
        for one in sorted(found, key=lambda one: (order.index(one.whose), one.zone, one.name))
    ]
    head = ["whose", "name", "kind", "zone", "machines", "pricing", "state", "job", "per hour"]
    yield from Table(head, width=columns(), dropped=["pricing", "kind", "zone"]).lines(rows)
    known = sum(one.per_hour or 0.0 for one in found)
    unknown = sum(one.per_hour is None and one.whose is not Whose.MISSING for one in found)
    yield f"{amount(known, unknown)} {currency}".rstrip() + " per hour"


def _quota_lines(found: Sequence[Quota]) -> Iterator[str]:
    if not found:
        yield "no chip is used, and no quota is listed"
        return
    rows = [
        [
            one.pool,
            str(one.used),
            str(one.asked),
            str(one.idle),
            "-" if one.limit is None else f"{one.limit:g}",
            ", ".join(one.holders) or "-",
        ]
        for one in found
    ]
    head = ["quota", "used", "asked", "idle", "limit", "held for nothing by"]
    yield from Table(head, width=columns(), dropped=[]).lines(rows)


def _cost_lines(found: Sequence[Cost], by: str, currency: str) -> Iterator[str]:
    from mesh.jobs.costs import total

    if not found:
        yield "no job had machines that were made for it"
        return
    rows = [
        [one.key, f"{one.chip_hours:.1f}", f"{amount(one.amount, one.unknown)} {currency}".rstrip()]
        for one in ([*found, total(found)] if len(found) > 1 else found)
    ]
    yield from Table([by, "chip-hours", "cost"], width=columns(), dropped=[]).lines(rows)
