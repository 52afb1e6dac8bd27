"""Tests' hold on the emulator: its process, its settings, and its journal."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import eventually

PROJECT = "lab"
ZONES = ("us-central2-b", "us-east1-d")
REPOSITORY = Path(__file__).parents[2]
START_S = 240.0  # a busy machine takes long to import the libraries of Google
CONTROL_LIMIT_S = 120.0
END_S = 60.0


class Emulator:
    """A running emulator."""

    def __init__(self, directory: Path, about: dict[str, Any]) -> None:
        self.directory, self.url = directory, str(about["url"])
        self.identity = str(about.get("identity", ""))
        self.addresses: list[str] = about.get("addresses", [])

    @property
    def environ(self) -> dict[str, str]:
        """Variables that direct mesh to it: gcloud's own way to name another endpoint."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": self.url,
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_COMPUTE_ZONE": ZONES[0],
        }

    def control(self, action: str, **words: object) -> Any:
        """Have the emulator do something; see service.Api.control."""
        request = urllib.request.Request(self.url + action, json.dumps(words).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=CONTROL_LIMIT_S) as answer:
            return json.loads(answer.read())

    def set(self, **settings: object) -> None:
        """Change settings of the cloud: times, hold, quota, capacity and so on."""
        self.control("set", **settings)

    def faults(self, *faults: dict[str, object]) -> None:
        """Have these faults from now on, and no others."""
        self.control("faults", faults=list(faults))

    def calm(self) -> None:
        """Have neither faults nor holes nor holds."""
        self.faults()
        self.control("holes")
        self.control("future")
        self.control("health")
        self.set(times={}, hold=[], quota={}, capacity={}, active_early=True, repeats_conflict=False)

    @property
    def state(self) -> Any:
        """The nodes and queued resources that are there, and the calls since the faults were set, by verb."""
        return self.control("state")

    @property
    def nodes(self) -> dict[str, Any]:
        """Nodes by ZONE/NAME."""
        return dict(self.state["nodes"])

    @property
    def requests(self) -> dict[str, Any]:
        """Queued resources by ZONE/NAME."""
        return dict(self.state["requests"])

    def journal(self) -> list[dict[str, Any]]:
        """Return the effects in their order."""
        path = self.directory / "journal.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()[: text.count("\n")]]  # the last may be half written

    def effects(self, *kinds: str) -> list[str]:
        """Return the names in the journal of some kinds of effects, as "create-node"."""
        return [str(entry["name"]) for entry in self.journal() if entry["what"] in kinds]


@contextlib.contextmanager
def emulator(directory: Path, *words: str) -> Iterator[Emulator]:
    """Have an emulator in a process of its own. words: --lab N [--image FILE], or --hosts DIRECTORY"""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "ready.json").unlink(missing_ok=True)
    argv = [sys.executable, "-m", "tests.tpuemulator", str(directory), *words]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GRPC_VERBOSITY": "NONE"}
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(argv, cwd=REPOSITORY, env=environ, stdout=log, stderr=log)
    try:
        ready = directory / "ready.json"
        assert eventually(lambda: ready.exists() or process.poll() is not None, START_S)
        assert process.poll() is None, (directory / "log").read_text()
        yield Emulator(directory, json.loads(ready.read_text()))
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def double(names: Sequence[str]) -> list[str]:
    """Return the names that are there more than once."""
    return sorted({name for name in names if list(names).count(name) > 1})
