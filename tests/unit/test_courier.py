"""The courier and its luggage, while files change and packs are no longer wanted."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from mesh.app.luggage import WorkspaceLuggage
from mesh.core.errors import MeshError
from mesh.core.events import Serving
from mesh.core.run import RunSpec
from mesh.engine.courier import FANOUT_BYTES, FORESEEN_BYTES, LISTING_TRIES, Courier, Luggage
from mesh.remote.session import Session
from tests.conftest import PATIENCE, Home
from tests.firsts import first_request
from tests.lab import eventually
from tests.scripted import ScriptedChannel, silent
from tests.specs import spec_of


class Restless(WorkspaceLuggage):
    """In its workspace somebody saves a file before each of the first packs."""

    saves = 0

    def pack(self, wants: Sequence[Mapping[str, Any]], *, compress: bool) -> int:
        if self.saves:
            self.saves -= 1
            (self._spec.workspace / "a").write_text(f"{self.saves} to go")
        return super().pack(wants, compress=compress)


class Unwanted(WorkspaceLuggage):
    """Its pack is begun, and then nobody wants it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begun, self.stopped = threading.Event(), threading.Event()
        self.error = ""

    def pack(self, wants: Sequence[Mapping[str, Any]], *, compress: bool) -> int:
        self.begun.set()
        assert self.stopped.wait(PATIENCE)
        try:
            return super().pack(wants, compress=compress)
        except MeshError as error:
            self.error = str(error)
            raise

    def stop(self) -> None:
        super().stop()
        self.stopped.set()


class Host(ScriptedChannel):
    """One that says nothing, and notes what it is told."""

    def __init__(self, node: int) -> None:
        super().__init__(node, silent, {}, None)
        self.orders: list[str] = []

    def _on_changes(self, header: Mapping[str, Any]) -> None:
        self.orders.append("lacks?" if header.get("last") else "changes")

    def _on_serve(self, header: Mapping[str, Any]) -> None:
        self.orders.append("serve")

    def _on_fetch(self, header: Mapping[str, Any]) -> None:
        self.orders.append(f"fetch from {header['address']}:{header['port']}")

    def _on_pack(self, header: Mapping[str, Any]) -> None:
        if header.get("last"):
            self.orders.append("pack")


class Road:
    """A courier and its hosts, which have no tree and say nothing."""

    def __init__(self, luggage: Luggage, count: int = 1, *, is_bare: bool = False) -> None:
        self.failures: list[Exception] = []
        self.threads: list[threading.Thread] = []
        self.hosts = [Host(node) for node in range(count)]
        ready: Future[Luggage] = Future()
        ready.set_result(luggage)
        spec = spec_of(workspace=Path("/"), command=("true",))
        self.courier = Courier(spec, count, ready, str, self.spawn, self.failures.append)
        self.courier.start()
        for node, host in enumerate(self.hosts):
            self.session = Session(node, node, host)
            self.session.begin(first_request(run="r", node=node))
            self.session.round_trip = 0.001
            self.courier.begin(node, self.session, "", is_bare=is_bare)

    def spawn(self, name: str, function: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=function, name=name))
        self.threads[-1].start()

    def __enter__(self) -> Road:
        return self

    def __exit__(self, *why: object) -> None:
        self.courier.stop()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def spec(home: Home, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    home.files(a="as it was")
    return spec_of(run="r", project="p", workspace=home.project, command=())


@pytest.fixture
def files() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as files:
        yield files


@pytest.mark.parametrize("saves", [0, 1, LISTING_TRIES])
def test_a_file_that_changes_each_time_is_listed_again(spec: RunSpec, files: contextlib.ExitStack, saves: int) -> None:
    luggage = Restless(spec, files, lambda event: None)
    luggage.saves = saves
    with Road(luggage) as road:
        assert eventually(lambda: road.session.attempt == saves and road.session.sent > 0, PATIENCE), road.failures
    assert not road.failures


def test_one_that_changes_too_often_is_named(spec: RunSpec, files: contextlib.ExitStack) -> None:
    luggage = Restless(spec, files, lambda event: None)
    luggage.saves = LISTING_TRIES + 1
    with Road(luggage) as road:
        assert eventually(lambda: bool(road.failures), PATIENCE)
    assert "a: changes while it is read" in str(road.failures[0])


def test_hosts_with_nothing_are_not_asked_and_only_those_that_are_fetched_from_listen(
    spec: RunSpec, files: contextlib.ExitStack
) -> None:
    (spec.workspace / "large").write_bytes(os.urandom(FANOUT_BYTES))
    luggage = WorkspaceLuggage(spec, files, lambda event: None)
    with Road(luggage, 4, is_bare=True) as road:

        def told(order: str) -> set[int]:
            return {node for node, host in enumerate(road.hosts) if order in host.orders}

        assert eventually(lambda: len(told("pack")) == 1 and len(told("serve")) == 2, PATIENCE), road.failures
        (first,), (second,) = told("pack"), told("serve") - told("pack")
        road.courier.handle(Serving(time=0.0, node=first, tree=1, port=5001))
        road.courier.handle(Serving(time=0.0, node=second, tree=1, port=5002))
        from_first, from_second = f"fetch from {first}:5001", f"fetch from {second}:5002"
        assert eventually(lambda: len(told(from_first)) == 2 and len(told(from_second)) == 1, PATIENCE)
    leaves = [["changes", from_first], ["changes", from_second]]
    serving = [["changes", "serve", "pack"], ["changes", "serve", from_first]]
    assert sorted(host.orders for host in road.hosts) == sorted(leaves + serving)


def test_a_pack_that_nobody_wants_any_more_is_broken_off(spec: RunSpec, files: contextlib.ExitStack) -> None:
    """Otherwise a command would wait for it before it ends."""
    (spec.workspace / "large").write_bytes(bytes(FORESEEN_BYTES + 1))
    luggage = Unwanted(spec, files, lambda event: None)
    with Road(luggage) as road:
        assert luggage.begun.wait(PATIENCE)
    assert luggage.error == "this pack is not needed any more"
    assert not road.failures
