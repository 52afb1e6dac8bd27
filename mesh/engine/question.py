"""A question to every host of a cluster, and how its answers are awaited."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from mesh.protocol import questions

ANSWER_TIMEOUT_S = 20.0  # a host without an answer for so long is as good as lost


def _nothing(name: str) -> bytes:
    return b""


class Question(Struct, frozen=True, kw_only=True):
    """A message to every host, and how its answers are awaited."""

    message: questions.Question[object]
    # Seconds for an answer; math.inf: it lasts, and a connection that ends meanwhile is made again.
    answer_s: float = ANSWER_TIMEOUT_S
    each_machine: bool = False  # ask once where several hosts are one machine, reached alike: the others do not answer
    wanted: Callable[[str], bytes] = _nothing  # content for a host that answers "wants"; it is then asked once more
