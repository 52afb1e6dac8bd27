"""The nodes that a user means: by a label, a handle or a group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Protocol

NAMES_SHOWN = 8  # in one message


class Labelled(Protocol):
    """A node by its handle."""

    @property
    def label(self) -> str:
        """The node's label, as "actor/3"."""


Chosen = str | Labelled | Sequence[Labelled]  # a label, a handle, or a group


def chosen(node: Chosen | None, there: Sequence[str]) -> list[str]:
    """Return the labels that are meant, in order; None: all. there: the labels of all nodes. Raises KeyError.

    >>> chosen("actor", ["actor/0", "actor/1", "learner"])
    ['actor/0', 'actor/1']
    """
    if node is None:
        return list(there)
    if isinstance(node, str):
        wanted = node
    elif isinstance(node, Sequence):
        return [label for one in node for label in chosen(one, there)]
    else:
        wanted = node.label
    labels = [one for one in there if wanted in (one, one.partition("/")[0])]
    if not labels:
        raise KeyError(no_such(wanted, there))
    return labels


def no_such(wanted: str, labels: Iterable[str]) -> str:
    """Return the message about a label that no node has.

    >>> no_such("lerner", ["actor/0", "learner"])
    "no node 'lerner'; the nearest is 'learner'"
    """
    names = list(dict.fromkeys(name for one in labels for name in (one, one.partition("/")[0])))
    near = get_close_matches(wanted, names, 1)
    found = f"the nearest is {near[0]!r}" if near else f"there are {', '.join(names[:NAMES_SHOWN])}"
    return f"no node {wanted!r}; {found}"
