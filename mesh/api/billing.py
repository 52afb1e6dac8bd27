"""The real bill of Google Cloud, from the table that Cloud Billing exports it to: by BigQuery's REST API."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Protocol, cast

from msgspec import MsgspecError, Struct, convert, field, json
from msgspec.structs import replace

from mesh.api.costing import prices_here
from mesh.config.billing import Billing, table_of
from mesh.core.errors import MeshError, UsageError
from mesh.core.installing import install_line
from mesh.hosts.tpu.client import NotAsked, credentials

# gcloud's own way to name another endpoint; at one by http:// no credentials are needed.
ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY"
GOOGLE = "https://bigquery.googleapis.com/bigquery/v2/"
DAY, PROJECT = "day", "project"
GROUPS = (DAY, PROJECT)
DEFAULT_DAYS = 30  # up to now, unless other ones are asked for
LONGEST_DAYS = 3660
ANSWER_S = 20.0  # that one request waits for the result, before the next one asks for it
QUERY_LIMIT_S = 300.0
LIMITS = {"maxResults": 10000, "timeoutMs": round(ANSWER_S * 1000)}  # of an answer
# https://cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/standard-usage
QUERY = """\
SELECT
  FORMAT_DATE('%F', DATE(usage_start_time)) AS day,
  IFNULL(project.id, '-') AS project_id,
  IFNULL(service.description, '') AS service_name,
  IFNULL(sku.description, '') AS sku_name,
  currency,
  SUM(cost + IFNULL((SELECT SUM(credit.amount) FROM UNNEST(credits) AS credit), 0)) AS net
FROM `{table}`
WHERE usage_start_time >= TIMESTAMP(@first) AND usage_start_time < TIMESTAMP(@after)
GROUP BY 1, 2, 3, 4, 5
"""


class Charge(Struct, frozen=True, kw_only=True):
    """The charges of one day and SKU in a project, less credits."""

    day: str  # YYYY-MM-DD, in UTC
    project: str = field(name="project_id")
    service: str = field(name="service_name")
    sku: str = field(name="sku_name")
    currency: str
    net: float


class BillLine(Struct, frozen=True, kw_only=True):
    """An amount of the bill: of a day and a category, or of a project."""

    key: str  # the day, or the project
    category: str  # "": all of them
    amount: float
    currency: str


def billing(
    *,
    by: str = DAY,
    days: int = DEFAULT_DAYS,
    table: str = "",
    environ: Mapping[str, str] = os.environ,
) -> list[BillLine]:
    """Return the bill of the last days, by "day" and category, or by "project", the greatest amount first.

    table: PROJECT.DATASET.TABLE; "": the one of ``billing:`` in prices.yaml
    Raises UsageError without a table or without Google's libraries, MeshError if the API refuses or does not answer.
    """
    if by not in GROUPS:
        raise UsageError(f"--by: expected {' or '.join(GROUPS)}, found {by!r}")
    if not 1 <= days <= LONGEST_DAYS:
        raise UsageError(f"--days: expected 1 to {LONGEST_DAYS}, found {days}")
    where = prices_here().billing
    if table:
        where = replace(where, table=table_of(table)) if where else Billing(table=table_of(table))
    if where is None:
        raise UsageError(
            "no billing table is named: write `billing: {table: PROJECT.DATASET.TABLE}` into prices.yaml",
            hint='mesh job billing --table PROJECT.DATASET.TABLE; docs/machines.md, "The bill"',
        )
    today = datetime.datetime.now(datetime.timezone.utc).date()
    first, after = today - datetime.timedelta(days=days - 1), today + datetime.timedelta(days=1)
    charges = ask(where, first.isoformat(), after.isoformat(), environ)
    return by_project(charges) if by == PROJECT else by_day(charges, where)


# ---- sums


def by_day(charges: Iterable[Charge], where: Billing) -> list[BillLine]:
    """Return the amounts of each day by category, in the order of days and categories."""
    sums: dict[tuple[str, str, str], float] = {}
    for one in charges:
        key = one.day, where.category(one.service, one.sku), one.currency
        sums[key] = sums.get(key, 0.0) + one.net
    return [
        BillLine(key=day, category=name, amount=sums[day, name, unit], currency=unit)
        for day, name, unit in sorted(sums)
    ]


def by_project(charges: Iterable[Charge]) -> list[BillLine]:
    """Return the amount of each project, the greatest first."""
    sums: dict[tuple[str, str], float] = {}
    for one in charges:
        key = one.project, one.currency
        sums[key] = sums.get(key, 0.0) + one.net
    keys = sorted(sums, key=lambda key: (-sums[key], key))
    return [BillLine(key=name, category="", amount=sums[name, unit], currency=unit) for name, unit in keys]


# ---- the API


def ask(where: Billing, first: str, after: str, environ: Mapping[str, str]) -> list[Charge]:
    """Return the charges from a day up to another one, which is not included. Raises UsageError, MeshError."""
    try:
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException
    except ImportError as error:
        hint = install_line("google-auth", "requests")
        raise UsageError("the bill needs google-auth and requests, which are not installed", hint=hint) from error
    endpoint = environ.get(ENDPOINT, "") or GOOGLE
    try:
        with closing(_session(endpoint, environ)) as session:
            query = Query(session, f"{endpoint.rstrip('/')}/projects/{where.payer}/queries")
            return query.charges(QUERY.format(table=where.table), {"first": first, "after": after})
    except NotAsked:
        raise
    except GoogleAuthError as error:
        raise MeshError(f"BigQuery: {error}", hint="gcloud auth application-default login") from error
    except RequestException as error:
        raise MeshError(f"BigQuery does not answer: {error}", hint="mesh job billing") from error


class Response(Protocol):
    """An answer of HTTP."""

    status_code: int
    content: bytes


class Session(Protocol):
    """The part of a session of requests that is used here."""

    def get(self, url: str, *, params: Mapping[str, object], timeout: float) -> Response: ...

    def post(self, url: str, *, json: object, timeout: float) -> Response: ...

    def close(self) -> None: ...


class Job(Struct, frozen=True, rename="camel"):
    """A query that runs."""

    job_id: str = ""
    location: str = ""


class Text(Struct, frozen=True):
    """A message of the API."""

    message: str = ""


class Column(Struct, frozen=True):
    """A column of the result."""

    name: str


class Columns(Struct, frozen=True):
    """The columns of the result."""

    fields: tuple[Column, ...] = ()


class Cell(Struct, frozen=True):
    """A value of the result, as text."""

    v: str | None = None


class Cells(Struct, frozen=True):
    """A row of the result."""

    f: tuple[Cell, ...] = ()


class Answer(Struct, frozen=True, rename="camel"):
    """An answer of the API: a page of the result, or why there is none."""

    job_complete: bool = False
    job_reference: Job = Job()
    schema: Columns = Columns()
    rows: tuple[Cells, ...] = ()
    page_token: str = ""
    errors: tuple[Text, ...] = ()
    error: Text = Text()

    def charges(self) -> list[Charge]:
        """Return the charges of a page."""
        names = [column.name for column in self.schema.fields]
        rows = [dict(zip(names, (cell.v or "" for cell in row.f), strict=True)) for row in self.rows]
        return [convert({**row, "net": row.get("net") or 0.0}, Charge, strict=False) for row in rows]


def _session(endpoint: str, environ: Mapping[str, str]) -> Session:
    """Return a session of HTTP with the user's credentials. Raises NotAsked without any."""
    import requests
    from google.auth.transport.requests import AuthorizedSession

    if endpoint.startswith("http://"):
        return cast(Session, requests.Session())
    return cast(Session, AuthorizedSession(credentials(environ)))


class Query:
    """A query, its job, and the pages of its result."""

    def __init__(self, session: Session, url: str) -> None:
        self._session, self._url = session, url
        self._until = time.monotonic() + QUERY_LIMIT_S

    def charges(self, text: str, parameters: Mapping[str, str]) -> list[Charge]:
        """Return all charges. Raises MeshError, and what requests raises."""
        answer = self._post(text, parameters)
        job, found = answer.job_reference, list[Charge]()
        while True:
            if answer.job_complete:
                found += answer.charges()
                if not answer.page_token:
                    return found
            elif time.monotonic() > self._until:
                raise MeshError(f"BigQuery has no result after {QUERY_LIMIT_S:.0f} s", hint="mesh job billing --days 7")
            words = {"location": job.location, "pageToken": answer.page_token}
            given = {**{name: value for name, value in words.items() if value}, **LIMITS}
            answer = _read(self._session.get(f"{self._url}/{job.job_id}", params=given, timeout=2 * ANSWER_S))

    def _post(self, text: str, parameters: Mapping[str, str]) -> Answer:
        values = [
            {"name": name, "parameterType": {"type": "STRING"}, "parameterValue": {"value": value}}
            for name, value in parameters.items()
        ]
        words = {"query": text, "useLegacySql": False, "parameterMode": "NAMED", "queryParameters": values}
        return _read(self._session.post(self._url, json={**words, **LIMITS}, timeout=2 * ANSWER_S))


def _read(response: Response) -> Answer:
    """Return an answer. Raises MeshError for a refusal, and for one that is no answer of the API."""
    try:
        answer = json.decode(response.content, type=Answer)
    except MsgspecError as error:
        raise MeshError(f"BigQuery: status {response.status_code}, and no answer", hint="mesh job billing") from error
    if response.status_code != 200:
        hint = _hint(response.status_code)
        raise MeshError(f"BigQuery refuses: {answer.error.message or response.status_code}", hint=hint)
    if answer.errors:
        raise MeshError(f"BigQuery: {answer.errors[0].message}", hint="mesh job billing")
    return answer


def _hint(status: int) -> str:
    """Return the next step after a refusal."""
    if status == 401:
        return "gcloud auth application-default login"
    if status == 403:
        return "roles/bigquery.jobUser for the project, and roles/bigquery.dataViewer for the table"
    return "bq show PROJECT:DATASET.TABLE" if status == 404 else "mesh job billing"
