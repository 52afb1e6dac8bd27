"""``mesh job billing``: the real bill, from the table that Google exports it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mesh.cli import joboptions as j
from mesh.cli.command import command
from mesh.cli.jobs import GROUP
from mesh.cli.options import Given
from mesh.cli.reports import aligned
from mesh.cli.speech import show

if TYPE_CHECKING:
    from mesh.api.billing import BillLine


@command(
    "job billing",
    GROUP,
    examples=(
        ("mesh job billing", "by day and category, for 30 days"),
        ("mesh job billing --by project --days 7", "by project, for a week"),
    ),
)
def billing(given: Given) -> None:
    """Show Google's bill, from its export to BigQuery."""
    from msgspec import json

    from mesh.api.billing import DAY, DEFAULT_DAYS, PROJECT, billing

    by, days = given[j.BILL_BY] or DAY, given[j.BILL_DAYS]
    lines = billing(by=by, days=DEFAULT_DAYS if days is None else days, table=given[j.BILL_TABLE])
    if given[j.JSON_MACHINES]:
        show(json.encode(one).decode() for one in lines)
    elif not lines:
        show(["the bill has no charge of this time"])
    else:
        show(aligned(project_rows(lines) if by == PROJECT else day_rows(lines)))


def project_rows(lines: Sequence[BillLine]) -> list[list[str]]:
    """Return the rows of a table of projects, below a head."""
    return [["project", "cost", "currency"], *([one.key, f"{one.amount:.2f}", one.currency] for one in lines)]


def day_rows(lines: Sequence[BillLine]) -> list[list[str]]:
    """Return the rows of a table of days, whose columns are categories: a head, each day, and the sums."""
    categories = sorted({one.category for one in lines})
    rows = [["day", *categories, f"all, {lines[0].currency}".rstrip(", ")]]
    for day in (*sorted({one.key for one in lines}), ""):
        of_day = [one for one in lines if day in ("", one.key)]
        sums = [sum(one.amount for one in of_day if one.category == name) for name in categories]
        rows.append([day or "sum", *(f"{amount:.2f}" for amount in (*sums, sum(sums)))])
    return rows
