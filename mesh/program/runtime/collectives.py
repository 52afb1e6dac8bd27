"""Collectives over the nodes of a group: every member calls the same function, and all get their part.

Values are any objects in the memory of hosts. Between hosts each value travels in pieces over a tree of hosts.
"""

from __future__ import annotations

from typing import List, Sequence

from mesh.program.runtime.combining import combine_of, name_of
from mesh.program.runtime.turns import Group, How, Root, Turn


def broadcast(value: object = None, root: Root = 0, *, group: Group = None, timeout: "float | None" = None) -> object:
    """Return the root's value on all members. Each host gets it once, and hands it on while it comes.

    root: an index in the group, a handle, a label, or "client": the process that launches, which is no member
    group: handles in the same order on all members; None: this node's own group
    timeout: seconds until all members have finished, None: no limit
    Raises CallTimeout and NodeLost with the member that is missing, RuntimeError where members call other functions.
    """
    with Turn("broadcast from {}", root, group, timeout) as turn:
        return turn.broadcast(value, turn.root)


def scatter(
    values: "Sequence[object] | None" = None,
    root: Root = 0,
    *,
    group: Group = None,
    timeout: "float | None" = None,
) -> object:
    """Return this member's part of the root's values, of which there is one for each member. As ``broadcast``."""
    with Turn("scatter from {}", root, group, timeout) as turn:
        return turn.scatter(values)


def gather(
    value: object, root: Root = 0, *, group: Group = None, timeout: "float | None" = None
) -> "List[object] | None":
    """Return the values of all members in order at the root, None elsewhere. As ``broadcast``."""
    with Turn("gather at {}", root, group, timeout) as turn:
        return turn.gather(value)


def all_gather(value: object, *, group: Group = None, timeout: "float | None" = None) -> "List[object]":
    """Return the values of all members in order, on every member. As ``broadcast``."""
    with Turn("all_gather", 0, group, timeout) as turn:
        found = turn.broadcast(turn.gather(value), turn.root)
        assert isinstance(found, list)
        return found


def reduce(
    value: object, how: How = "sum", root: Root = 0, *, group: Group = None, timeout: "float | None" = None
) -> object:
    """Return the combination of all values at the root, None elsewhere. As ``broadcast``.

    how: "sum", "max", "min", "merge" (dictionaries), or a function of two values whose order does not matter. Lists,
        tuples and dictionaries are combined member by member, arrays element by element.
    """
    combine = combine_of(how)
    with Turn(f"reduce by {name_of(how)} at {{}}", root, group, timeout) as turn:
        return turn.reduce(value, combine)


def all_reduce(value: object, how: How = "sum", *, group: Group = None, timeout: "float | None" = None) -> object:
    """Return the combination of all values on every member. how: as that of ``reduce``"""
    combine = combine_of(how)
    with Turn(f"all_reduce by {name_of(how)}", 0, group, timeout) as turn:
        return turn.broadcast(turn.reduce(value, combine), turn.root)


def barrier(timeout: "float | None" = None, *, group: Group = None) -> None:
    """Wait until all members have come. As ``broadcast``."""
    with Turn("barrier", 0, group, timeout, has_data=False):
        pass
