"""Notifications at the end of a run, without a run."""

from __future__ import annotations

import os

from mesh.app.notify import Ending, notify
from mesh.core.notify import Notification

ENDING = Ending(
    job="r", run="r", name="", cluster="pod", command="true", state="done", exit_code=0, duration="0:01", verdict=""
)


def test_a_command_that_does_not_end_is_killed_and_named() -> None:
    slow = Notification(command=("sleep", "1000"))
    quick = Notification(command=("true",))
    assert notify([slow, quick], ENDING, os.environ, limit=0.3) == ["notify: sleep: timed out after 0.3 s"]
