"""The end of an attempt of a detached run, by the journals that its agents have left. Pure, but for reading them."""

from __future__ import annotations

import glob
import json
import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

    from mesh.protocol.frames import Header as Message

LOST_STATUS, TIMEOUT_STATUS = 76, 124  # as in mesh/core/outcome.py
SIGNAL_BASE = 128
KILLED_STATUSES = (128 + 9, 128 + 15)
TOGETHER_S = 5.0  # before an agent receives SIGTERM: Slurm sends that to ranks at the same time
STOP_SIGNAL = "signal"  # the cause of an end that a user has ordered


class Judged(NamedTuple):
    """The end of an attempt, as its journals show it."""

    status: int  # exit status of the run; LOST_STATUS as well while it goes on
    is_stopped: bool  # somebody has ordered its end
    has_begun: bool  # a rank was started
    is_over: bool  # every host has reported its end


def judge(journals: Sequence[Sequence[Message]], ranks: Sequence[int]) -> Judged:
    """Return how an attempt has ended. Ranks without an end count as lost.

    journals: the messages of each node's journal; ranks: how many each node has

    >>> judge([[{"type": "started"}, {"type": "exited", "rank": 0, "code": 0, "time": 1.0}, {"type": "gone"}]], [1])
    Judged(status=0, is_stopped=False, has_begun=True, is_over=True)
    """
    every = [message for messages in journals for message in messages]
    is_over = all(any(one.get("type") == "gone" for one in messages) for messages in journals)
    losses = [_time(message) for message in every if _status(message) == LOST_STATUS and not _is_exit(message)]
    until = min(losses, default=float("inf")) - TOGETHER_S
    causes = sorted(
        (_time(message), LOST_STATUS if _is_exit(message) and _time(message) >= until else _status(message))
        for message in every
        if _status(message)
    )
    ended = [len({one.get("rank") for one in messages if one.get("type") == "exited"}) for messages in journals]
    has_all = len(ended) == len(ranks) and all(found >= count for found, count in zip(ended, ranks))
    status = causes[0][1] if causes else 0 if has_all else LOST_STATUS
    if status in KILLED_STATUSES and not is_over:  # its agent was killed as well
        status = LOST_STATUS
    return Judged(
        status=status,
        is_stopped=any(_is_stop(message) for message in every),
        has_begun=any(message.get("type") == "started" for message in every),
        is_over=is_over,
    )


def is_tried_again(judged: Judged, statuses: Sequence[int], *, attempt: int) -> bool:
    """Return True if another attempt follows. attempt: the number of this one, from 0, which a client begins

    >>> is_tried_again(Judged(76, False, True, True), [76], attempt=0)
    True
    >>> is_tried_again(Judged(76, False, False, False), [76], attempt=0)  # its client has not begun it
    False
    """
    if judged.is_stopped or not (judged.has_begun or attempt):
        return False
    return not judged.has_begun or judged.status in statuses


def read_journals(remote_dir: str, run: str, nodes: Sequence[int]) -> List[List[Message]]:
    """Return the messages of nodes' journals; [] of a node without one."""
    return [_read(remote_dir, run, node) for node in nodes]


def _read(remote_dir: str, run: str, node: int) -> List[Message]:
    found: List[Message] = []
    place = glob.escape(os.path.join(os.path.expanduser(remote_dir), "machines"))
    for path in glob.glob(os.path.join(place, "*", f"tape-{run}-{node}", "facts")):
        try:
            with open(path, "rb") as file:
                lines = file.read().split(b"\n")
        except OSError:  # it was removed
            continue
        for line in lines:
            try:
                message = json.loads(line.decode("utf-8", "replace"))
            except ValueError:  # the last one was cut short
                continue
            if isinstance(message, dict):
                found.append(message)
    return found


def _is_stop(message: Message) -> bool:
    kind = message.get("type")
    return kind == "stopped" or (kind == "end-ordered" and message.get("cause") == STOP_SIGNAL)


def _is_exit(message: Message) -> bool:
    return message.get("type") == "exited"


def _time(message: Message) -> float:
    return float(message.get("time") or 0.0)


def _status(message: Message) -> int:
    """Return the exit status for which a message ends a run; 0: it does not."""
    kind, cause = message.get("type"), message.get("cause")
    if kind == "exited":
        return SIGNAL_BASE + int(message["signal"]) if message.get("signal") else int(message.get("code") or 0)
    if kind == "failed" or (kind == "end-ordered" and cause == "lost"):
        return LOST_STATUS
    if kind == "end-ordered" and cause == "timeout":
        return TIMEOUT_STATUS
    if kind == "end-ordered" and cause == "program":
        return int(message.get("code") or 0)
    return 0
