"""The table of messages, in part: the answers to questions. What an answer has depends on its question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mesh.remote.agent.frames import FrameError
from mesh.remote.agent.messages import (
    PLACE_MAX,
    RANK_MAX,
    Wrong,
    anything,
    described,
    integer,
    listed,
    mapping,
    nullable,
    number,
    record,
    row,
    text,
    truth,
    within,
    word,
)
from mesh.remote.messages import COUNT, INDEX, LINES, OTHERS, OWNER, PID, PORT, TIME, address, either, maybe, shown

Kind = Callable[[Any], Any]


def failing(value: Any) -> bool:
    """Check that it is false."""
    if value is not False:
        raise Wrong(f"expected false, found {described(value)}")
    return False


def versions(value: Any) -> dict[str, str]:
    """Check the versions of a Python and of what is installed for it."""
    found: dict[str, str] = mapping(shown, 64)(value)
    for name in ("program", "python"):
        if name not in found:
            raise Wrong(f"no {name}")
    for name in ("error", "missing"):
        if name in found:
            raise Wrong(f"{name}: unexpected")
    return found


def counts_of_ranks(value: Any) -> dict[str, int]:
    """Check how many processes of each rank were signalled. A list stands for an agent that did not answer."""
    found: dict[str, int] = {} if isinstance(value, list) else mapping(COUNT)(value)
    for name in found:
        if not (name.isascii() and name.isdecimal() and len(name) < 9):
            raise Wrong(f"expected a rank, found {described(name)}")
    return found


_NOTHING = record({})
_FAILURE = record({"error": shown, "hint": shown}, {"late": truth})
_WORKER = record({}, {"number": COUNT})
_RUN = record(
    {
        "run": shown,
        "node": integer(-1, RANK_MAX),
        "about": OWNER,
        "attached": truth,
        "ranks": listed(record({"rank": INDEX, "ended": truth})),
    },
    {"state": shown, "detached": truth, "devices": LINES},
)
_HOST = {
    **dict.fromkeys(("python", "user", "place", "problem", "driver"), shown),
    "bash": truth,
    **dict.fromkeys(("disk_free", "disk_total", "memory_free", "memory_total"), COUNT),
    "inodes_free": integer(-1, PLACE_MAX),
    "addresses": listed(row(shown, address, COUNT)),
    "devices": either(_FAILURE, _NOTHING),
    "ends_with": word("", "login", "logins"),
    "name": record({"name": shown}, {"error": shown}),
    "others": OTHERS,
    "sees_others": truth,
}
_PYTHON = either(
    record({"missing": shown}),
    record({"error": shown, "hint": shown}, {"program": shown, "late": truth}),
    versions,
)
_PROGRAM = either(_FAILURE, record({"place": shown}))
_PATH = either(
    _FAILURE,
    record({"there": failing}),
    record(
        {
            **dict.fromkeys(("kind", "source", "type", "holds"), shown),
            **dict.fromkeys(("there", "reads", "writes"), truth),
        }
    ),
)
_STACK = record(
    {
        **dict.fromkeys(("role", "how", "thread", "program", "words"), shown),
        "main": truth,
        "frames": listed(row(shown, shown, integer(-PLACE_MAX, PLACE_MAX))),
        "of": listed(row(INDEX, PID), least=1),
    }
)
_STACKS = record(
    {
        "ranks": listed(record({"rank": INDEX, "ended": truth})),
        "silent": truth,
        "stacks": listed(_STACK),
        "notes": listed(row(shown, shown)),
    }
)
# A detached run, as a client needs it to follow it; rundir/about.py writes it.
_PLAN = record(
    {
        "cluster": shown,
        "hosts": listed(shown, least=1),
        "command": listed(text()),
        "nproc": integer(1, RANK_MAX),
    },
    {
        "workspace": text(),
        "spec": mapping(anything),
        "created": TIME,
        "slices": listed(INDEX),
        "rules": mapping(either(truth, COUNT, number(0.0, 1e18)), 64),
    },
)
# The answers to questions whose answer depends on nothing else.
_TO_QUESTIONS: dict[str, Kind] = {
    "hush": _NOTHING,
    "pull": _NOTHING,
    "worker": _WORKER,
    "gpus": record({"gpus": COUNT}),
    "runs": record({"runs": listed(_RUN), "orphans": listed(record({"run": shown, "told": shown}))}),
    "tapes": record({"tapes": listed(record({"run": shown}, {"plan": maybe(_PLAN)}))}),
    "detach": record({"told": listed(_RUN)}),
    "pass": record({"told": listed(record({"ranks": counts_of_ranks}))}),
    "clean": record({"found": listed(record({"what": shown, "bytes": COUNT}, {"stays": truth}))}),
    "stop": record({"stopped": listed(record({"run": shown})), "left": LINES}),
}


def answer(question: Mapping[str, Any], value: Any, *, has_enclosed: bool = False) -> dict[str, Any]:
    """Return the answer to a question, checked. Raises FrameError.

    has_enclosed: the question came with what the agent may lack
    """
    name = question["question"]
    try:
        found: dict[str, Any] = within("answer", _kind_of_answer(question, has_enclosed=has_enclosed), value)
    except Wrong as wrong:
        raise FrameError(f"{name}: {wrong}") from None
    return found


def _kind_of_answer(question: Mapping[str, Any], *, has_enclosed: bool) -> Kind:
    match question["question"]:
        case "check":
            return _check_of(question)
        case "listen":
            count = len(question["ports"])
            return record({"ports": listed(either(PORT, shown), count, count)})
        case "try":
            count = len(question["targets"])
            return record({"tried": listed(row(shown, shown), count, count)})
        case "stacks":
            offered = question.get("tool", {}).get("hash")
            if offered and not has_enclosed:
                return either(record({"wants": word(offered)}), _STACKS)
            return _STACKS
        case name:
            return _TO_QUESTIONS[name]


def _check_of(question: Mapping[str, Any]) -> Kind:
    """Return the kind of a host's answer to a check: it has what was asked for, and no more."""
    return record(
        {
            **_HOST,
            "lock": nullable(OWNER),
            "versions": nullable(_PYTHON) if question["venv"] is None else _PYTHON,
            "worker": nullable(_WORKER),
            "paths": record(dict.fromkeys(question["paths"], _PATH)),
            "programs": record(dict.fromkeys(question["programs"], _PROGRAM)),
        }
    )
