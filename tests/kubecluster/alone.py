"""A stand-in of a cluster without machines, and a user of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.kubecluster.stand_in import StandIn
from tests.lab import Lab


@contextlib.contextmanager
def stand_in_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Have a stand-in whose pods wait for ever, and make a directory the home of its user."""
    for name in ("KUBECONFIG", "MESH_CLUSTER", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("MESH_CLUSTERS", str(home / "cluster.yaml"))
    monkeypatch.chdir(home)
    with StandIn(cast("Lab", SimpleNamespace(hosts=[]))) as stand_in:
        stand_in.write_kubeconfig(home)
        yield stand_in
