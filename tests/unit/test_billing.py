"""The bill by a stand-in for BigQuery's REST API: what is asked, pages, refusals, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mesh.config.billing import CATEGORIES, Billing
from mesh.config.prices import read_prices
from mesh.core.errors import UsageError
from tests.conftest import Home

COLUMNS = ("day", "project_id", "service_name", "sku_name", "currency", "net")
FIRST = [
    ("2026-11-01", "lab", "Cloud TPU", "TPU VM v4 spot", "USD", "10.5"),
    ("2026-11-01", "lab", "Cloud Storage", "Standard Storage", "USD", "1.25"),
]
SECOND = [
    ("2026-11-02", "other", "Cloud TPU", "TPU VM v4 spot", "USD", "2"),
    ("2026-11-02", "lab", "Support", None, "USD", "-0.5"),
]
TABLE = "lab.billing.gcp_export_v1_0123"


def page(rows: list[tuple[str | None, ...]], **more: object) -> dict[str, object]:
    """Return an answer with rows, as the API has them."""
    schema = {"fields": [{"name": name, "type": "STRING"} for name in COLUMNS]}
    cells = [{"f": [{"v": value} for value in row]} for row in rows]
    job = {"projectId": "payer", "jobId": "job_1", "location": "EU"}
    return {"jobComplete": True, "jobReference": job, "schema": schema, "rows": cells, **more}


class BigQuery:
    """Answers a query in three steps: not complete, a page, and the rest."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.refusal: tuple[int, str] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                if outer.refusal:
                    status, text = outer.refusal
                    self.answer(status, {"error": {"message": text}})
                    return
                self.answer(200, {"jobComplete": False, "jobReference": page([])["jobReference"]})

            def do_GET(self) -> None:
                place = urlsplit(self.path)
                words = {name: values[0] for name, values in parse_qs(place.query).items()}
                outer.asked.append((place.path, words))
                more = words.get("pageToken") == "next"
                self.answer(200, page(SECOND) if more else page(FIRST, pageToken="next"))

            def answer(self, status: int, fields: object) -> None:
                data = json.dumps(fields).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/bigquery/v2/"


@pytest.fixture
def bigquery(home: Home) -> Iterator[BigQuery]:
    found = BigQuery()
    thread = Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    home.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY"] = found.url
    (home.path / ".config/mesh").mkdir(parents=True, exist_ok=True)
    (home.path / ".config/mesh/prices.yaml").write_text(f"billing: {{table: {TABLE}, project: payer}}\n")
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def test_the_bill_by_day_and_category(home: Home, bigquery: BigQuery) -> None:
    done = home.mesh("job", "billing", "--days", "7")
    assert done.status == 0, done.err
    assert [line.split() for line in done.out.decode().splitlines()] == [
        ["day", "compute", "other", "storage", "all,", "USD"],
        ["2026-11-01", "10.50", "0.00", "1.25", "11.75"],
        ["2026-11-02", "2.00", "-0.50", "0.00", "1.50"],
        ["sum", "12.50", "-0.50", "1.25", "13.25"],
    ]
    (path, query), (_, first), (_, second) = bigquery.asked
    assert path == "/bigquery/v2/projects/payer/queries"
    assert f"FROM `{TABLE}`" in query["query"]
    assert query["useLegacySql"] is False
    assert [one["name"] for one in query["queryParameters"]] == ["first", "after"]
    assert (first["location"], second["location"]) == ("EU", "EU")
    assert "pageToken" not in first
    assert second["pageToken"] == "next"


def test_the_bill_by_project_and_as_json(home: Home, bigquery: BigQuery) -> None:
    by_project = home.mesh("jobman", "billing", "--by", "project").out.decode()
    assert [line.split() for line in by_project.splitlines()[1:]] == [["lab", "11.25", "USD"], ["other", "2.00", "USD"]]
    lines = [json.loads(line) for line in home.mesh("job", "billing", "--json").out.splitlines()]
    assert lines[0] == {"key": "2026-11-01", "category": "compute", "amount": 10.5, "currency": "USD"}
    assert [line["category"] for line in lines] == ["compute", "storage", "compute", "other"]


@pytest.mark.parametrize(
    ("status", "hint"),
    [(403, "roles/bigquery.jobUser"), (404, "bq show"), (401, "gcloud auth application-default login")],
)
def test_a_refusal_of_the_api(home: Home, bigquery: BigQuery, status: int, hint: str) -> None:
    bigquery.refusal = status, "Access Denied: no such thing"
    done = home.mesh("job", "billing")
    assert (done.status, done.out) == (125, b"")
    assert "BigQuery refuses: Access Denied: no such thing" in done.err
    assert hint in done.err


def test_without_a_server_and_without_a_table(home: Home, bigquery: BigQuery) -> None:
    home.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY"] = "http://127.0.0.1:9/"
    done = home.mesh("job", "billing")
    assert done.status == 125
    assert "BigQuery does not answer: " in done.err
    (home.path / ".config/mesh/prices.yaml").unlink()
    done = home.mesh("job", "billing")
    assert done.status == 2
    assert "no billing table is named" in done.err
    assert home.mesh("job", "billing", "--table", "a`; DROP").status == 2
    assert home.mesh("jobman", "billing").out == b"no job had machines that were made for it\n"


def test_without_the_libraries_the_message_names_them(home: Home, bigquery: BigQuery) -> None:
    text = "import sys; sys.modules['requests.exceptions'] = None; from mesh.__main__ import main; sys.exit(main())"
    argv = [sys.executable, "-c", text, "job", "billing"]
    done = subprocess.run(argv, env=home.environ, cwd=home.project, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{sys.executable} -m pip install google-auth requests" in done.stderr


def test_categories_are_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(f"billing:\n  table: {TABLE}\n  categories:\n    - {{name: tpu, sku: [TPU]}}\n")
    found = read_prices(path).billing
    assert found is not None
    assert (found.payer, found.category("Compute Engine", "tpu v4"), found.category("Cloud Storage", "")) == (
        "lab",
        "tpu",
        "other",
    )
    path.write_text("billing:\n  table: a.b\n  categories:\n    - {name: tpu}\n    - {sku: [a]}\n  by: day\n")
    with pytest.raises(UsageError) as caught:
        read_prices(path)
    assert [line.partition("prices.yaml:")[2] for line in str(caught.value).splitlines()] == [
        "6: billing: unknown key 'by'; there are 'table', 'project', 'categories'",
        "2: billing.table: expected PROJECT.DATASET.TABLE, found 'a.b'",
        "4: billing.categories[0]: needs service: or sku:, a list of texts",
        "5: billing.categories[1]: name: is missing",
    ]


def test_the_first_category_that_matches_counts() -> None:
    bill = Billing(table="p.d.t")
    assert bill.category("Compute Engine", "Network Egress from Americas") == "network"
    assert bill.category("Compute Engine", "Storage PD Capacity") == "storage"
    assert bill.category("Cloud TPU", "TPU VM v6e") == "compute"
    assert bill.categories is CATEGORIES
