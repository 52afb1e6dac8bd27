"""The table of handlers: the part that carries out each request of a client."""

from __future__ import annotations

import time

from mesh.agent.run.facts import ClientLeft, DetachAsked, FinishAsked, KillAsked, SignalAsked
from mesh.protocol import requests
from mesh.protocol.answers import Beat
from mesh.protocol.frames import FrameError
from mesh.protocol.requests import COMMON, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.port import Port
    from mesh.agent.run.parts import Parts
    from mesh.protocol.questions import Question


def carry_out(port: Port, parts: Parts, request: Request, data: bytes) -> None:
    """Carry out a request. Raises FrameError for one that cannot be carried out now."""
    handler = HANDLERS.get(type(request), _ask)  # the classes of questions are imported with the first question
    handler(port, parts, request, data)


def _ask(port: Port, parts: Parts, request: Question[object], data: bytes) -> None:
    parts.answering.answer(request)


def _signal(port: Port, parts: Parts, request: requests.Signal, data: bytes) -> None:
    more: dict[str, object] = {}
    if request.more is not None:
        more = {"lost": request.more.lost, "reason": request.more.reason}
        if request.cause == "program":
            more["code"] = request.more.code
    port.post(SignalAsked(request.signal, request.grace, request.cause, more))


def _give_password(port: Port, parts: Parts, request: requests.Password, data: bytes) -> None:
    if parts.modules.is_running:
        parts.modules.give_password(data)
    else:
        parts.ranks.give_password(data)


def _beat(port: Port, parts: Parts, request: requests.Beat, data: bytes) -> None:
    """Answer together with what else the beat brings about."""
    answer = Beat(echo=request.time, time=time.time(), orders=parts.requests.last_order)
    parts.out.answer(answer, time.monotonic())


def _ack(port: Port, parts: Parts, request: requests.Ack, data: bytes) -> None:
    parts.out.acknowledge(request.place)
    parts.client.flush()


def _to_nodes(port: Port, parts: Parts, request: Request, data: bytes) -> None:
    """Hand a request about the nodes of a program to its part. Raises FrameError if the run has no nodes here."""
    if parts.nodes is None or parts.relays is None:
        raise FrameError(f"{request.NAME}: the run has no nodes here")
    if isinstance(request, requests.Program):
        parts.nodes.take_program(request)
    elif isinstance(request, requests.Payload):
        parts.nodes.take_payload(request, data)
    elif isinstance(request, requests.Changed):
        parts.nodes.take_changes(request.nodes)
    elif isinstance(request, requests.RestartNode):
        parts.ranks.restart(request.rank)
    elif isinstance(request, requests.Adopt):
        parts.nodes.adopt(request.node)
    elif isinstance(request, requests.Readdress):
        parts.nodes.readdress(request.nodes)
    elif isinstance(request, requests.Relay):
        parts.relays.take(request, data)
    elif isinstance(request, requests.RelayTaken):
        parts.relays.widen(request)
    elif isinstance(request, requests.RelayEnd):
        parts.relays.end(request.stream, request.why)


def _note_move(port: Port, parts: Parts, request: requests.Moved, data: bytes) -> None:
    parts.moves.note_outcome(request.rank)
    parts.control.restarts.note(request.rank, request.pid, request.why)


# Each handler takes the port, the parts, a request of the class under which it stands, and the bytes behind it.
HANDLERS: dict[type[Request], Callable[..., None]] = {
    requests.Lock: lambda port, parts, request, data: parts.locking.lock(request.take_over),
    requests.Unlock: lambda port, parts, request, data: parts.locking.unlock(),
    requests.Changes: lambda port, parts, request, data: parts.sync.take_changes(request, data),
    requests.Pack: lambda port, parts, request, data: parts.sync.take_pack(request, data),
    requests.Serve: lambda port, parts, request, data: parts.sync.serve(request),
    requests.Fetch: lambda port, parts, request, data: parts.sync.fetch(request),
    requests.Settled: lambda port, parts, request, data: parts.sync.drop(),
    requests.Apply: lambda port, parts, request, data: parts.modules.apply(request),
    requests.StepFile: lambda port, parts, request, data: parts.modules.give_file(request, data),
    requests.Prepare: lambda port, parts, request, data: parts.environment.prepare(request, data),
    requests.Start: lambda port, parts, request, data: parts.ranks.start(request),
    requests.Setup: lambda port, parts, request, data: parts.ranks.start_setup(request),
    requests.Detach: lambda port, parts, request, data: port.post(DetachAsked()),
    requests.Introduce: lambda port, parts, request, data: parts.peers.introduce(request),
    requests.Password: _give_password,
    requests.Enclosed: lambda port, parts, request, data: parts.answering.enclose(data),
    requests.Reply: lambda port, parts, request, data: parts.answering.give_pull(data),
    requests.Stdin: lambda port, parts, request, data: parts.ranks.give_stdin(request.rank, data),
    requests.Resize: lambda port, parts, request, data: parts.ranks.resize(request),
    requests.Signal: _signal,
    requests.Kill: lambda port, parts, request, data: port.post(KillAsked()),
    requests.Finish: lambda port, parts, request, data: port.post(FinishAsked(request.signal, request.grace)),
    requests.Beat: _beat,
    requests.Ack: _ack,
    requests.Bye: lambda port, parts, request, data: port.post(ClientLeft()),
    requests.Program: _to_nodes,
    requests.Payload: _to_nodes,
    requests.Changed: _to_nodes,
    requests.RestartNode: _to_nodes,
    requests.Adopt: _to_nodes,
    requests.Readdress: _to_nodes,
    requests.Release: lambda port, parts, request, data: parts.moves.release(request.rank, request.grace),
    requests.Take: lambda port, parts, request, data: parts.moves.take(request),
    requests.Moved: _note_move,
    requests.Relay: _to_nodes,
    requests.RelayTaken: _to_nodes,
    requests.RelayEnd: _to_nodes,
    requests.Over: lambda port, parts, request, data: parts.answering.end_runs(request.runs),
}

if set(COMMON) != set(HANDLERS):
    raise ImportError(f"requests without a handler: {', '.join(kind.NAME for kind in set(COMMON) - set(HANDLERS))}")
