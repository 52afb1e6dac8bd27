"""The state of a run directory whose client has left or died, for the client that goes on with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from mesh.core.events import Stream
from mesh.core.masking import MASK_BYTES
from mesh.rundir.layout import EVENTS, MASK_RECORD, MASKED, SUFFIX, log_name, rank_and_stream, read_tail_name
from mesh.rundir.records import Record
from mesh.rundir.replay import LogFiles

# Names of events that hosts send anew to each client which attaches: each is written once for a rank and its attempt.
ONCE = frozenset(("started", "exited", "rank-ready", "restarting", "restarted"))


class Left(Struct, frozen=True, kw_only=True):
    """The state of a run directory."""

    lock: int  # a descriptor that appends to events.jsonl, and has its lock; whoever goes on closes it
    about: Mapping[str, Any]  # run.json
    have: Mapping[tuple[int, Stream], int]  # bytes of each stream that have come or were left out
    before: Mapping[str, int]  # bytes that a log's own file lacks, less those of the markers in their place
    left_out: Sequence[Mapping[str, Any]]  # as run.json has it
    told: frozenset[tuple[str, int, int]]  # events that are in events.jsonl once: name, rank and attempt of each
    skip: Mapping[tuple[int, Stream], int] = field(default_factory=dict)  # bytes of each stream that come again
    masked: Mapping[tuple[int, Stream], int] = field(default_factory=dict)  # bytes that masks stand for, less theirs


def read_left(record: Record, lock: int) -> Left:
    """lock: as in Left. Raises OSError."""
    told: set[tuple[str, int, int]] = set()
    by_hosts: list[Mapping[str, Any]] = []
    for event in _events(record.directory):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if event["event"] in ONCE:
                told.add((str(event["event"]), int(event["rank"]), int(event.get("attempt", 0))))
            elif event["event"] == "left_out":
                by_hosts.append({**event, "rank": int(event["rank"]), "bytes": int(event["bytes"])})
    names = {
        log_name(record.first_placement, rank, stream): (rank, stream)
        for rank in range(record.first_placement.world_size)
        for stream in SUFFIX
    }
    heads = _heads(record.directory / "logs")
    by_us = [item for item in _items(record) if "log" in item and _is_kept(item, heads)]
    before: dict[str, int] = {}
    for item in by_us:
        before[item["log"]] = before.get(item["log"], 0) + item["bytes"] - item["marker"]
    ends = _ends(record, names)
    masked = _masked(record.directory, ends)
    have = {key: end + masked.get(key, 0) for key, end in ends.items()}
    for event in by_hosts:
        key = event["rank"], Stream(event["stream"])
        have[key] = have.get(key, 0) + event["bytes"]
    return Left(
        lock=lock,
        about=record.about,
        have=have,
        before=before,
        left_out=[*by_hosts, *by_us],
        told=frozenset(told),
        masked=masked,
    )


def last_bytes(directory: Path, name: str, count: int) -> bytes:
    """Return the last bytes of a log; b"" if they cannot be read."""
    files = LogFiles(directory)
    try:
        files.look()
        end = files.end(name)
        return files.read(name, max(0, end - count), end)[0]
    except OSError:
        return b""
    finally:
        files.close()


def _masked(directory: Path, ends: Mapping[tuple[int, Stream], int]) -> dict[tuple[int, Stream], int]:
    """Return the bytes of each stream that masks in its log stand for, less those of the masks."""
    found: dict[tuple[int, Stream], int] = {}
    files = LogFiles(directory)
    try:
        files.look()
        place, end = 0, files.end(MASKED)
        while place < end:
            data, after = files.read(MASKED, place, end)
            torn = len(data) % MASK_RECORD.size  # by a crash
            if after - torn == place:
                break
            place = after - torn
            for mask_end, number, missing in MASK_RECORD.iter_unpack(data[: len(data) - torn]):
                key = rank_and_stream(number)
                beyond = mask_end - ends.get(key, 0)  # records are written before the log
                if beyond < len(MASK_BYTES):
                    found[key] = missing + max(0, beyond)
    except FileNotFoundError:
        pass
    finally:
        files.close()
    return found


def _ends(record: Record, names: Mapping[str, tuple[int, Stream]]) -> dict[tuple[int, Stream], int]:
    files = LogFiles(record.directory)
    try:
        files.look()
        return {key: files.end(name) for name, key in names.items()}
    except FileNotFoundError:
        return {}
    finally:
        files.close()


def _events(directory: Path) -> Sequence[Mapping[str, Any]]:
    found = []
    try:
        with (directory / EVENTS).open("rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # a crash has cut the last one
                    event = json.loads(line)
                    if isinstance(event, dict):
                        found.append(event)
    except FileNotFoundError:
        pass
    return found


def _items(record: Record) -> Sequence[Mapping[str, Any]]:
    items = record.about.get("left_out")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _heads(logs: Path) -> dict[str, int]:
    """The sizes of the heads of logs that have a tail in files of its own."""
    names = [path.name for path in logs.iterdir()] if logs.is_dir() else []
    told = [read_tail_name(name) for name in names]
    return {found[0]: found[1] for found in told if found}


def _is_kept(item: Mapping[str, Any], heads: Mapping[str, int]) -> bool:
    """Return True if a gap is in the log's own file; one that was being joined counts again."""
    numbers = [item.get("at"), item.get("bytes"), item.get("marker")]
    return all(isinstance(number, int) for number in numbers) and item["at"] < heads.get(item["log"], 1 << 62)


def open_events(directory: Path) -> int:
    """Return a descriptor that appends to events.jsonl, and has its lock as long as its client lives.

    Raises BlockingIOError if another client is there, and OSError.
    """
    descriptor = os.open(directory / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks
        pass
    return descriptor
