"""JSON of the values of jobs, in the store and between the steward, its children and commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import json

from mesh.jobs.events import AnyEvent
from mesh.jobs.values import Job

Value = TypeVar("Value")

_encoder = json.Encoder(enc_hook=str)  # of paths


def read_path(kind: type, value: object) -> object:
    """Return a path of its text, as a hook of msgspec's decoders."""
    return Path(str(value)) if issubclass(kind, Path) else value


_jobs = json.Decoder(list[Job], dec_hook=read_path)
_job = json.Decoder(Job, dec_hook=read_path)
_events = json.Decoder(list[AnyEvent], dec_hook=read_path)


def encode(value: object) -> str:
    """Return the JSON of a value in one line."""
    return _encoder.encode(value).decode()


def decode(text: str | bytes, kind: type[Value]) -> Value:
    """Return the value of a kind that JSON holds. Raises ValueError."""
    return json.decode(text, type=kind, dec_hook=read_path)


def decode_job(text: str) -> Job:
    """Return the job that JSON holds."""
    return _job.decode(text)


def decode_jobs(texts: Sequence[str]) -> list[Job]:
    """Return the jobs that JSON objects hold."""
    return _jobs.decode(f"[{','.join(texts)}]")


def decode_events(texts: Sequence[str]) -> list[AnyEvent]:
    """Return the events that JSON objects hold."""
    return _events.decode(f"[{','.join(texts)}]")
