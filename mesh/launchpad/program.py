"""Programs of Launchpad and TLaunch: nodes by label."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mesh.launchpad.nodes import PyNode
from mesh.launchpad.runtime.clients import Handle

GROUP_IS_OPEN = "a group is open already: group() cannot be nested"


class Program:
    """Nodes by label. ``add_node`` returns a handle, which other nodes get as an argument."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._groups: dict[str, list[PyNode]] = {}
        self.current_group: str | None = None

    @property
    def name(self) -> str:
        """The name of the program."""
        return self._name

    @property
    def groups(self) -> dict[str, list[PyNode]]:
        """The nodes of each label."""
        return self._groups

    def add_node(self, node: PyNode, label: str | None = None) -> Handle[object]:
        """Add a node and return its handle. label: needed outside of ``group``. Raises ValueError without one."""
        if self.current_group and label and label != self.current_group:
            raise ValueError(f"label {label!r} within the group {self.current_group!r}")
        label = self.current_group or label
        if not label:
            raise ValueError("a node needs a label; add_node(node, label='actor')")
        self._groups.setdefault(label, []).append(node)
        return node.create_handle()

    @contextlib.contextmanager
    def group(self, label: str) -> Iterator[None]:
        """Give a label to all nodes that are added in the block. Raises ValueError for an empty one, or in a group."""
        if not label:
            raise ValueError("a group needs a label")
        if self.current_group:
            raise ValueError(GROUP_IS_OPEN)
        self.current_group = label
        try:
            yield
        finally:
            self.current_group = None

    def get_all_nodes(self) -> list[PyNode]:
        """Return the nodes of all labels."""
        return [node for nodes in self._groups.values() for node in nodes]


class SSHProgram(Program):
    """A program of TLaunch."""

    def __init__(self, name: str, all_args: object = None) -> None:
        """all_args: kept for the program's own use"""
        super().__init__(name)
        self.all_args = all_args


def make_program(*nodes: PyNode, name: str = "launchpad") -> Program:
    """Return a program of some nodes, whose labels are the names of their classes or functions."""
    program = Program(name)
    for node in nodes:
        function = node.function
        label = getattr(function, "__name__", type(node).__name__).strip("<>").lower()
        program.add_node(node, label)
    return program
