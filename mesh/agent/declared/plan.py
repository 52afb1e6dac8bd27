"""The plan of a run that no client has begun: requests to agents, with places for names and addresses of pods."""

from __future__ import annotations

import fnmatch
import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh.protocol.frames import Header

FORMAT_VERSION = 2
RUN, ATTEMPT = "@mesh-run@", "@mesh-attempt@"  # places in texts of a plan
ADDRESS, HOST, VARIABLE = "@mesh-address-{}@", "@mesh-host-{}@", "@mesh-variable-{}@"


class BadPlan(Exception):
    """A plan that this program cannot carry out; the text has the reason."""


def read_plan(text: str) -> Header:
    """Return a plan. Raises BadPlan."""
    plan = json.loads(text)
    if not isinstance(plan, dict) or plan.get("format") != FORMAT_VERSION:
        raise BadPlan("another version of mesh has rendered the plan or made the Secret: do both again")
    return plan


def new_run_id(now: float) -> str:
    """Return an id of a run, as clients make them."""
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{when}-{int(now % 1 * 4096):03x}{os.urandom(2).hex()[1:]}"


def with_passed(env: Mapping[str, str], patterns: Sequence[str], names: Sequence[str]) -> Mapping[str, str]:
    """Return an environment with places for the variables of the Secret that patterns of `pass:` and `secret:` match.

    names: of the variables that the Secret has

    >>> with_passed({"A_1": "x"}, ["A_*"], ["A_1", "A_2", "B"])
    {'A_2': '@mesh-variable-A_2@', 'A_1': 'x'}
    """
    matching = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    return {**{name: VARIABLE.format(name) for name in matching if name not in env}, **env}


def filled(
    part: Header,
    run: str,
    attempt: str,
    pods: Sequence[Mapping[str, str]],
    secrets: Mapping[str, str],
    again: str = "",
) -> Header:
    """Return a part of a plan with values in all of its places. Raises BadPlan for a variable without a value.

    pods: name and address of each; secrets: values of variables by their names; again: a command that makes the Secret

    >>> filled({"a": "[@mesh-address-1@]"}, "r", "0", [{"address": "x"}, {"address": "y"}], {})
    {'a': '[y]'}
    """
    text = json.dumps(part)
    places = {RUN: run, ATTEMPT: attempt}
    for node, pod in enumerate(pods):
        address = pod.get("address", "")
        if ":" in address:
            text = text.replace(ADDRESS.format(node) + ":", f"[{address}]:")
        places[ADDRESS.format(node)] = address
        places[HOST.format(node)] = pod.get("name", "")
    places.update((VARIABLE.format(name), value) for name, value in secrets.items())
    for place, value in places.items():
        text = text.replace(place, json.dumps(value)[1:-1])
    begin, _, _ = VARIABLE.partition("{")
    if begin in text:
        name = text.partition(begin)[2].partition("@")[0]
        told = f"the Secret lacks the variable {name}"
        raise BadPlan(f"{told}: {again}" if again else told)
    found: Header = json.loads(text)
    return found
