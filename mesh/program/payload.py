"""The payload of each node: its object, arguments and place, as bytes for another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.core.errors import UsageError
from mesh.program.graph import Graph, Node
from mesh.program.placing import Place
from mesh.program.runtime import codec
from mesh.program.runtime.errors import CLIENT, CannotTravel

PAYLOAD_BYTES_LIMIT = 64 * 1024 * 1024


class Payload(Struct, frozen=True, kw_only=True):
    """The payload of one node."""

    place: Place
    body: tuple[bytes, list[memoryview]]  # class, arguments and keywords by the codec
    concurrency: int
    backlog: int
    runs: bool
    after: tuple[str, ...] = ()  # labels of nodes that are ready before


def payloads(program: Graph, places: Sequence[Place]) -> dict[str, Payload]:
    """Return the payload of every node by its label. Raises UsageError for what cannot be sent."""
    nodes = {node.wish.label: node for node in program.nodes}
    for node in nodes.values():
        if unknown := set(node.after) - {name for one in places for name in (one.label, one.group)}:
            labels = ", ".join(sorted({one.label for one in places if one.group == min(unknown).partition("/")[0]}))
            hint = f"there are {labels}" if labels else "add that node first"
            raise UsageError(f"{node.wish.label}: after= names {min(unknown)}, which is not there", hint=hint)
    bodies = {label: _body(node) for label, node in nodes.items()}
    others = {
        label: tuple(one.label for one in places if {one.label, one.group} & set(node.after))
        for label, node in nodes.items()
    }
    return {
        place.label: Payload(
            place=place,
            body=bodies[place.group],
            concurrency=nodes[place.group].options.concurrency,
            backlog=nodes[place.group].options.backlog,
            runs=nodes[place.group].runs,
            after=others[place.group],
        )
        for place in places
    }


def tie_of(payloads: Mapping[str, Payload]) -> str:
    """Return why a program ends with its client; "": it can go on without it."""
    here = [label for label, payload in payloads.items() if payload.place.host == CLIENT]
    return f"{min(here)} is on the client, and ends with it" if here else ""


def cloudpickle_source() -> str:
    """Return the source of cloudpickle, so that hosts need not have it installed."""
    from cloudpickle import cloudpickle

    return Path(cloudpickle.__file__).read_text()


def _body(node: Node) -> tuple[bytes, list[memoryview]]:
    try:
        body, buffers = codec.dumps((node.what, node.args, dict(node.kwargs)))
    except CannotTravel as error:
        hint = "let the node make it on its host: Deferred(make, ARGUMENTS)"
        raise UsageError(f"{node.wish.label}: {error}", hint=hint) from error
    size = len(body) + sum(buffer.nbytes for buffer in buffers)
    if size > PAYLOAD_BYTES_LIMIT:
        hint = "let the node load it on its host: Deferred(load, PATH)"
        raise UsageError(f"{node.wish.label}: its arguments have {size:,} bytes; at most 64 MB are sent", hint=hint)
    return body, buffers
