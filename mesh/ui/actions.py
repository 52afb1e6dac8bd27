"""The three actions of `mesh ui --actions`: stop, signal and detach a run."""

from __future__ import annotations

import json
import re

from mesh.core.errors import UsageError
from mesh.ui.children import Answer, Children

VERBS = ("stop", "signal", "detach")
_SIGNAL = re.compile(r"[A-Z][A-Z0-9]{1,9}")
BODY_BYTES_MAX = 1000


async def act(children: Children, run: str, verb: str, body: bytes) -> Answer:
    """Carry out an action on a run, which was found in the listing. Raises UsageError for any other action.

    body: of a signal a JSON object with its name as "signal"
    """
    if verb not in VERBS:
        raise UsageError(f"no such action; there are {', '.join(VERBS)}")
    if verb != "signal":
        return await children.do(verb, run)
    try:
        name = json.loads(body)["signal"] if len(body) <= BODY_BYTES_MAX else ""
    except (ValueError, KeyError, TypeError):
        name = ""
    if not isinstance(name, str) or not _SIGNAL.fullmatch(name):
        raise UsageError("expected the name of a signal, as USR1")
    return await children.do("signal", run, name)
