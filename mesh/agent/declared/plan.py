"""The plan of a run that no client has begun: requests to agents, with places for names and addresses of pods."""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh.protocol.frames import Header

FORMAT_VERSION = 1
RUN, ATTEMPT = "@mesh-run@", "@mesh-attempt@"  # places in texts of a plan
ADDRESS, HOST, VARIABLE = "@mesh-address-{}@", "@mesh-host-{}@", "@mesh-variable-{}@"


class BadPlan(Exception):
    """A plan that this program cannot carry out; the text has the reason."""


def read_plan(text: str) -> Header:
    """Return a plan. Raises BadPlan."""
    plan = json.loads(text)
    if not isinstance(plan, dict) or plan.get("format") != FORMAT_VERSION:
        raise BadPlan("the plan was rendered by another version of mesh")
    return plan


def new_run_id(now: float) -> str:
    """Return an id of a run, as clients make them."""
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{when}-{int(now % 1 * 4096):03x}{os.urandom(2).hex()[1:]}"


def filled(
    part: Header, run: str, attempt: str, pods: Sequence[Mapping[str, str]], secrets: Mapping[str, str]
) -> Header:
    """Return a part of a plan with values in all of its places. Raises BadPlan for a variable without a value.

    pods: name and address of each; secrets: values of variables by their names

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
        raise BadPlan(f"the Secret lacks the variable {name}")
    found: Header = json.loads(text)
    return found
