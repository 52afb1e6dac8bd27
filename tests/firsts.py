"""First requests to agents, for tests of what comes after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh.core.run import PrerunEntry
from mesh.protocol import requests
from mesh.protocol.first import Begin
from mesh.protocol.requests import Finds, Prepare
from mesh.remote.greeting import new_marker


def first_request(**changes: object) -> Begin:
    """Return a first request that asks for little."""
    return Begin(
        marker=new_marker(),
        run="run",
        node=0,
        remote_dir="~/.mesh",
        project="p",
        about={},
        owner=None,
        lock=False,
        announce=False,
        exclusive=False,
        share=False,
        existing=False,
        workspace_links=False,
        needs_home=True,
        stacks=False,
        devices=(),
        device_patience=5.0,
        lease=60.0,
        return_within=5.0,
        grace=5.0,
        drain=0.0,
        timeout=0.0,
        keep_going=False,
        spool=10**9,
        ports=(),
        plan={},
    ).replaced(**changes)


def finds(env: Mapping[str, str] | None = None, interface: str = "", targets: Sequence[str] = ()) -> Finds:
    """Return the environment and network of a host's first rank."""
    return Finds(env=env or {}, interface=interface, targets=targets)


def prepare_request(prerun: Sequence[PrerunEntry] = (), given: Finds | None = None, **changes: object) -> Prepare:
    """Return a request to prepare a host. given: what prerun finds"""
    entries = [requests.PrerunEntry(run=entry.run, inputs=entry.inputs, module=entry.module) for entry in prerun]
    return Prepare(finds=given or finds(), prerun=entries, force=False, claim=False, evict=False, program="").replaced(
        **changes
    )
