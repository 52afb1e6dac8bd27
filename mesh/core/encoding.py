"""Events as JSON objects: the names and fields that scripts rely on. Fields may be added, never renamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import asdict

from mesh.core import stacks
from mesh.core.cluster import Placement
from mesh.core.events import (
    Busy,
    Connected,
    Event,
    Exited,
    Gone,
    HostEvent,
    HostNotice,
    LeftOut,
    Lost,
    PrepareFailed,
    PrerunDecided,
    RankEvent,
    Ready,
    StacksTaken,
    Synced,
    WorkspaceFailed,
)
from mesh.core.pull import Pulled


def objects(event: Event, placement: Placement) -> Iterator[dict[str, Any]]:
    """Return the JSON objects of an event: usually one; none for output and for events of mesh alone."""
    match event:
        case Connected():
            yield _host("connected", event, placement)
        case Synced(files=files, bytes=size, seconds=seconds):
            tree = {"tree": event.tree} if event.tree else {}
            tree |= {"source": event.source} if event.source else {}
            yield {**_host("synced", event, placement), "files": files, "bytes": size, "seconds": seconds, **tree}
        case PrerunDecided(entry=entry, why=why):
            yield {**_host("prerun_entry", event, placement), "entry": entry, "skipped": not why, "why": why}
        case Pulled(files=files, unchanged=unchanged, bytes=size, special_modes=special, seconds=seconds):
            counts = {"files": files, "unchanged": unchanged, "bytes": size, "special_modes": special}
            yield {**_host("pulled", event, placement), **counts, "seconds": seconds}
        case Ready():
            packages = {"packages": dict(event.packages)} if event.packages else {}
            yield {**_host("ready", event, placement), **packages}
        case Busy(owner=owner):
            yield {**_host("busy", event, placement), "owner": owner}
        case PrepareFailed(step=step, message=message, hint=hint):
            yield {**_host("failed", event, placement), "step": step, "message": message, "hint": hint}
        case WorkspaceFailed(time=time, message=message, hint=hint):
            yield {"event": "failed", "time": time, "step": "workspace", "message": message, "hint": hint}
        case Exited(code=code, signal=number):
            how: dict[str, Any] = {"signal": number} if number else {"code": code}
            during = {"during": event.during} if event.during else {}
            oom = {"oom": True} if event.oom else {}
            yield {**rank("exited", event, placement), **how, **during, **oom}
        case StacksTaken(answer=answer):
            about = _host("stacks", event, placement)
            yield {**about, "groups": [stacks.as_dict(group) for group in stacks.fold([(about["host"], answer)])]}
        case Lost(reason=reason):
            for number in placement.ranks(event.node):
                yield {**_host("lost", event, placement), "rank": number, "reason": reason}
        case LeftOut(stream=stream, bytes=size):
            yield {**rank("left_out", event, placement), "stream": stream.value, "bytes": size}
        case Gone(left=left, stays=stays):
            yield {**_host("gone", event, placement), "left": list(left), **({"stays": list(stays)} if stays else {})}
        case HostNotice(text=text):
            yield {**_host("notice", event, placement), "text": text}
        case _ if tag := event.__struct_config__.tag:
            yield _whole(str(tag), event, placement)


def _whole(name: str, event: Event, placement: Placement) -> dict[str, object]:
    """Return an event with all of its fields."""
    fields = asdict(event)
    fields.pop("node", None)
    match event:
        case RankEvent():
            return {**rank(name, event, placement), **fields}
        case HostEvent():
            return {**_host(name, event, placement), **fields}
    return {"event": name, **fields}


def rank(name: str, event: RankEvent, placement: Placement) -> dict[str, Any]:
    """Return the fields that every event of a rank has."""
    host = placement.hosts[event.node].name
    return {"event": name, "time": event.time, "rank": event.rank, "host": host, **label(event.rank, placement)}


def label(rank: int, placement: Placement) -> dict[str, str]:
    """Return the field with the label of a rank's group, in a run with roles."""
    found = placement.label(rank)
    return {"label": found} if found else {}


def _host(name: str, event: HostEvent, placement: Placement) -> dict[str, Any]:
    host = placement.hosts[event.node].name
    first = placement.first(event.node)
    return {"event": name, "time": event.time, "rank": first, "host": host, **label(first, placement)}
