"""Cache of the API's answers.

A damaged answer counts as absent. A cache that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path

from msgspec import Struct, to_builtins

from mesh.config.tpu import TpuName
from mesh.hosts.tpu.gcloud import Zone
from mesh.hosts.tpu.nodes import TpuNode, Worker

CACHE_VERSION = 1


class Answer(Struct, frozen=True, kw_only=True):
    """Nodes of one name, and the time of the API's answer."""

    time: float  # seconds since the epoch
    nodes: tuple[TpuNode, ...]


class AnswerCache:
    """File of one name. Another mesh may write it at the same time; the last one wins."""

    def __init__(self, directory: Path, tpu: TpuName, zone: Zone) -> None:
        """directory: mesh's own for caches"""
        about = json.dumps([zone.project, zone.zone, zone.endpoint, tpu.name, tpu.is_prefix, tpu.iap])
        self._path = directory / "tpu" / f"{tpu.name}-{hashlib.sha256(about.encode()).hexdigest()[:10]}.json"

    def get(self) -> Answer | None:
        """Return the last answer, None if there is none."""
        try:
            told = json.loads(self._path.read_bytes())
            if told["version"] != CACHE_VERSION:
                return None
            nodes = (TpuNode(**{**node, "workers": _workers(node["workers"])}) for node in told["nodes"])
            return Answer(time=float(told["time"]), nodes=tuple(nodes))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, answer: Answer) -> None:
        """Write an answer, in one step."""
        new = self._path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_text(json.dumps({"version": CACHE_VERSION, **to_builtins(answer)}))
            new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()

    def forget(self) -> None:
        """Remove the answer, so that the API is asked the next time."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def _workers(told: object) -> tuple[Worker, ...]:
    if not isinstance(told, list):
        raise TypeError(told)
    return tuple(Worker(**worker) for worker in told)
