"""Events made from the messages of an agent."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec import convert

from mesh.core import events, nodes
from mesh.core.cluster import NodeSockets
from mesh.core.events import HostEvent
from mesh.core.module import Applied
from mesh.protocol import answers
from mesh.protocol import nodes as messages
from mesh.protocol.frames import FrameError
from mesh.protocol.messages import Message
from mesh.protocol.replies import Stacks
from mesh.remote.lacking import read_lacks
from mesh.remote.owners import other_line, other_owner, other_run, owner_line

# Messages with the fields of an event. ``event_of`` makes the events of all others.
SAME_FIELDS: Mapping[type[Message], type[HostEvent]] = {
    answers.OtherTree: events.OtherTree,
    answers.Serving: events.Serving,
    answers.Unfetched: events.Unfetched,
    answers.WantsPassword: events.WantsPassword,
    answers.Notice: events.HostNotice,
    answers.Clear: events.Cleared,
    answers.Attached: events.Reconnected,
    answers.Detached: events.Detached,
    answers.StaysAttached: events.StaysAttached,
    answers.Introduced: events.Introduced,
}


# The same of messages about nodes, whose time is the host's.
OF_NODES: Mapping[type[Message], type[HostEvent]] = {
    messages.RankReady: nodes.RankReady,
    messages.Restarting: nodes.Restarting,
    messages.Restarted: nodes.Restarted,
    messages.ProgramStopped: nodes.ProgramStopped,
    messages.PairRelayed: nodes.PairRelayed,
    messages.MoveAsked: nodes.MoveAsked,
    messages.Released: nodes.Released,
    messages.Kept: nodes.Kept,
}


def event_of(message: Message, data: bytes, *, node: int, sent: int, lacks_bytes: int, offset: float) -> HostEvent:
    """Return the event of a message. Raises FrameError if it makes no event.

    sent: bytes of the workspace so far; lacks_bytes: of the longest list of what the host lacks
    offset: seconds that the host's clock is ahead of ours
    """
    now = time.time()
    if event := SAME_FIELDS.get(type(message)):
        values = message.items()
        fields = {name: values[name] for name in event.__struct_fields__ if name in values}
        return convert(fields | {"time": now, "node": node}, event)
    if event := OF_NODES.get(type(message)):
        values = message.items()
        fields = {name: values[name] for name in event.__struct_fields__ if name in values}
        return convert(fields | {"time": float(str(values["time"])) - offset, "node": node}, event)
    match message:
        case messages.Result(rank=rank, last=is_last):
            return nodes.NodeResult(time=now, node=node, rank=rank, data=data, is_last=is_last)
        case messages.Adopted(rank=rank, sockets=own):
            return nodes.Adopted(time=now, node=node, rank=rank, sockets=_sockets(own))
        case answers.Stopped(time=at):
            return events.Stopped(time=at - offset, node=node)
        case answers.Lacks(attempt=attempt):
            return events.Lacks(time=now, node=node, wants=read_lacks(data, lacks_bytes), attempt=attempt)
        case answers.Started(time=at, rank=rank, pid=pid):
            return events.Started(time=at - offset, node=node, rank=rank, pid=pid)
        case answers.Exited():
            return _end(events.Exited, message, node, offset)
        case answers.Ended():
            return _end(events.Ended, message, node, offset)
        case answers.Synced(files=files, seconds=seconds, tree=tree, attempt=attempt):
            return events.Synced(
                time=now, node=node, files=files, bytes=sent, seconds=seconds, tree=tree, attempt=attempt
            )
        case _:
            return _once_a_run(message, now, node, offset)


def _once_a_run(message: Message, now: float, node: int, offset: float) -> HostEvent:
    """Return the event of a message that comes once for each host, most of them before the ranks start."""
    match message:
        case answers.Locked(tree=tree, bare=is_bare, ports=ports):
            others = tuple(other_run(other, offset) for other in message.others)
            sockets = tuple(map(_sockets, message.sockets))
            return events.Locked(
                time=now, node=node, tree=tree, is_bare=is_bare, ports=tuple(ports), others=others, sockets=sockets
            )
        case answers.Busy(owner=owner):
            line = other_line(other_run(other_owner(owner), offset)) if owner.other_user else owner_line(owner)
            return events.Busy(time=now, node=node, owner=line, is_brief=owner.watch, is_other_user=owner.other_user)
        case answers.Decided(entry=entry, why=why, missing=missing):
            return events.PrerunDecided(time=now, node=node, entry=entry, why=why, missing=tuple(missing))
        case answers.Applied(facts=facts, applied=applied):
            return Applied(time=now, node=node, facts=tuple(facts), applied=tuple(applied))
        case answers.Ready():
            return events.Ready(
                time=now,
                node=node,
                interfaces=message.interfaces,
                status=message.status,
                nearest=message.nearest,
                packages=message.packages,
            )
        case answers.Failed(signal=number):
            killed_by = "" if number is None else f"signal {number}" if number else "a signal"
            return events.PrepareFailed(
                time=message.time - offset,  # the host's own time: the ranks that it ends for this reason end later
                node=node,
                step=message.step,
                message=message.message,
                hint=message.hint,
                killed_by=killed_by,
            )
        case answers.Answer(answer=Stacks() as answer):
            return events.StacksTaken(time=now, node=node, answer=answer, clock=offset)
        case answers.Answer(answer=answer):
            return events.Answered(time=now, node=node, answer=answer, clock=offset)
        case answers.Gone(left=left, stays=stays):
            return events.Gone(time=now, node=node, left=tuple(left), stays=tuple(stays))
        case other:
            raise FrameError(f"an unexpected message {other.NAME!r}")


def _sockets(own: messages.NodeSockets) -> NodeSockets:
    return NodeSockets(own.rank, own.unix, tuple(own.ports))


def _end(event: type[events.Exited], message: answers.End, node: int, offset: float) -> events.Exited:
    return event(
        time=message.time - offset,
        node=node,
        rank=message.rank,
        code=message.code or 0,
        signal=message.signal or 0,
        during=message.during,
        oom=message.oom,
        is_last=message.last,
    )
