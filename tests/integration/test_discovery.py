"""TPUs by name and `mesh multihost`, on test hosts that a stand-in for Google's API tells of (tests/tpu_emulator.py)."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Done, Home
from tests.lab import Lab
from tests.tpu_emulator import PROJECT, ZONE, Emulator, emulator, node

pytestmark = pytest.mark.root

PLACE = 'echo "$SLICE_ID/$WORKER_ID of ${MEGASCALE_NUM_SLICES:-1} on $MASTER_ADDR"'
# Google's metadata server, as each TPU VM sees it: on that machine alone. $1: the worker's number.
METADATA = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path.endswith("/agent-worker-number") and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if known else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(sys.argv[1].encode() if known else b"")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("169.254.169.254", 80), Handler)
print("there", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def tpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("tpu") / "state.json") as running:
        yield running


@pytest.fixture
def user(home: Home, lab: Lab, tpus: Emulator) -> Home:
    """A user whose key gcloud has made, and who has named nothing but project and zone."""
    home.trust(lab)
    shutil.copy(lab.identity, home.path / ".ssh/google_compute_engine")
    home.environ |= {**tpus.environ(), "LOGNAME": "root", "USER": "root"}
    return home


def addresses(lab: Lab) -> list[str]:
    return [host.address for host in lab.hosts]


def test_twelve_slices_in_the_order_of_their_numbers(user: Home, lab: Lab, tpus: Emulator) -> None:
    a = addresses(lab)
    # Listed as text, and with others whose names only begin so; each answer has a few of them.
    nodes = [node(f"pod-{n}", [a[n % 4]]) for n in range(12)]
    others = [node("pod", [], "CREATING")[0:0] if False else node("podium-3", [a[0]]), node("pod-1-7", [a[1]])]
    tpus.tell(sorted([*nodes, *others], key=lambda told: str(told["name"])), page=5)
    user.clusters("all:\n  tpu:\n    prefix: pod\none:\n  tpu:\n    name: pod-1\n")
    done = user.mesh("run", "--label", "host", "--output", "all", "all", PLACE)
    assert done.status == 0, done.err
    expected = [f"[pod-{n}-w0:{n}] {n}/0 of 12 on {a[0]}" for n in range(12)]
    assert sorted(line.replace(":0", ":") for line in done.lines) == sorted(
        line.replace(":0", ":") for line in expected
    )
