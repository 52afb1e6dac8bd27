"""The program as users write it: a graph that can be launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from mesh.core.errors import UsageError
from mesh.program.graph import Graph
from mesh.program.launching import launch
from mesh.program.running import Running
from mesh.program.runtime.collectives import broadcast
from mesh.program.runtime.combining import COMBINE
from mesh.program.runtime.errors import CLIENT
from mesh.program.runtime.handles import Group, Handle
from mesh.program.runtime.mailbox import (
    ALL,
    BY_SENDER,
    LATEST,
    QUEUE,
    STAR,
    TREE,
    Mailbox,
    MailboxHandle,
    Relay,
)

MAILBOX_BACKLOG = 1000  # calls of one caller that may wait


class Program(Graph):
    """A graph of Python objects and functions, each on a host, that call each other through handles."""

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None: ...

    def launch(
        self, where: str = "cluster", *, run: bool = True, ready_timeout: float = 300.0, keep_results: bool = False
    ) -> Running:
        """Start all nodes and return once every one is ready for calls.

        where: "threads" of this process, "local" processes, or "cluster"
        run: False to call no ``run()``, so that a test steps nodes by their handles
        ready_timeout: seconds until every node must be ready
        keep_results: write what nodes return to ``results/`` of the run directory, where ``connect`` finds it later
        Raises UsageError for what cannot be placed, MeshError if a node fails or is not ready in time.
        """
        return launch(self, where, calls_run=run, ready_timeout=ready_timeout, keep_results=keep_results)

    def broadcast(self, value: object, group: Sequence[Handle[object]], *, timeout: float | None = None) -> None:
        """Send a value from here to all nodes of a group, which call ``broadcast(root="client")``.

        Each host gets the value once. timeout: seconds until all have it, None: no limit
        Raises CallTimeout and NodeLost with the node that is missing.
        """
        broadcast(value, CLIENT, group=group, timeout=timeout)

    def mailbox(
        self,
        label: str,
        kind: str = QUEUE,
        *,
        size: int = 1000,
        spread: str = STAR,
        combine: str | Callable[[object, object], object] = "merge",
        **place: object,
    ) -> MailboxHandle:
        """Add a mailbox and return its handle, which has ``put``, ``get`` and ``items``.

        kind: "queue", "latest" (one value), or "latest_by_sender"; size: of a queue, beyond which senders wait
        spread: "star": one mailbox; "tree": each host of ``on=`` combines what its nodes put, and the first has the
            mailbox; "all": every host of ``on=`` has a copy, from which its nodes read
        combine: "sum", "max", "min", "merge" (dictionaries), or a function of two values; for a tree
        place: ``on=`` of ``add``. Raises UsageError.
        """
        if kind not in (QUEUE, LATEST, BY_SENDER) or spread not in (STAR, TREE, ALL):
            kinds, spreads = ", ".join((QUEUE, LATEST, BY_SENDER)), ", ".join((STAR, TREE, ALL))
            hint = f'program.mailbox("{label}", "{QUEUE}", spread="{STAR}")'
            raise UsageError(f"{label}: expected a mailbox of {kinds}; spread: {spreads}", hint=hint)
        if spread == ALL and kind == QUEUE:
            raise UsageError(f"{label}: a queue has one place", hint='spread="star", or kind="latest"')
        if not (callable(combine) or combine in COMBINE):
            what = f"combine={combine!r}: expected {', '.join(COMBINE)} or a function"
            raise UsageError(f"{label}: {what}", hint='combine="sum"')
        common = {"backlog": MAILBOX_BACKLOG, **place}
        if spread == STAR:
            return MailboxHandle(cast("Handle[object]", self.add(Mailbox, kind, size, label=label, **common)))
        if spread == ALL:
            group = cast("Group[object]", self.add(Mailbox, kind, size, label=label, per_host=1, **common))
            root, *others = cast("list[Handle[object]]", list(group))
            return MailboxHandle(root, others, ALL)
        hosts = self.hosts_of(label, place.get("on"))
        root = cast("Handle[object]", self.add(Mailbox, kind, size, label=label, **{**common, "on": hosts[:1]}))
        relays = self.add(Relay, combine, root, label=f"{label}-relay", per_host=1, **{**common, "on": hosts})
        return MailboxHandle(root, list(cast("Group[object]", relays)), TREE)
