"""The greeting of a program on a host: its marker, and the refusal of one that has another protocol or none."""

from __future__ import annotations

import os
import time

from mesh.core.events import Lost, PrepareFailed
from mesh.core.text import one_line
from mesh.protocol.frames import FrameError
from mesh.protocol.messages import PROTOCOL_VERSION, VersionError

MAX_BANNER_BYTES = 16 << 20  # that login scripts may print before the greeting
REFUSED = "does not speak our protocol: "  # before the reason, and behind the name of the host
NO_GREETING_HINT = "`mesh check CLUSTER` shows the host's Python; python: in cluster.yaml names another one"


def new_marker() -> str:
    """Return a line that the agent's greeting begins with, and that no login script prints."""
    return os.urandom(16).hex()


def refusal(error: FrameError, node: int, step: str, *, is_greeted: bool) -> Lost | PrepareFailed:
    """Return the event of a message that is refused.

    step: that fails without a greeting; is_greeted: the host has greeted before
    """
    now, text = time.time(), one_line(str(error))
    if is_greeted:
        return Lost(time=now, node=node, reason=REFUSED + text)
    if not isinstance(error, VersionError):
        text = f"{REFUSED}{text}, and named no version; this mesh speaks protocol {PROTOCOL_VERSION}"
    return PrepareFailed(time=now, node=node, step=step, message=text, hint=error.hint or NO_GREETING_HINT)
