"""The private directory of a run's nodes, and their key and payloads, which are in memory. All end with the run."""

from __future__ import annotations

import os

from mesh.agent.base.directories import node_directory, remove_tree
from mesh.agent.base.light import dumps
from mesh.protocol.records import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh.protocol.nodes import NodeAddress

BOOK, KEY, PLAN = "nodes.json", "key.pem", "plan.json"
PAYLOAD = "payload-"  # begins the name of a payload, before its hash
COPY_BYTES = 1 << 20
ENDED = "ended"  # begins the name of an empty file, before the rank of a node that has ended for good
RESULT = "kept"  # begins the name of a file with the result of a node, before its rank


class NodeFiles:
    """The files of one run on this host. Only this user can read them."""

    def __init__(self, run: str, node: int) -> None:
        """Name the directory; nothing is made yet."""
        self.path = node_directory(run, node)
        self._is_made = False
        self._memory: dict[str, int] = {}  # descriptors of files without a place, by name

    def make(self) -> None:
        """Make the directory, in place of one that a killed agent has left. Raises OSError."""
        if not self._is_made:
            remove_tree(self.path)
            os.mkdir(self.path, 0o700)
            self._is_made = True

    def place(self, name: str) -> str:
        """Return the path of a file in the directory."""
        return os.path.join(self.path, name)

    def descriptor(self, name: str) -> int:
        """Return the descriptor of a file in memory, which a node inherits; -1 if there is none of this name."""
        return self._memory.get(name, -1)

    def write_addresses(self, nodes: Sequence[NodeAddress], credentials: str) -> None:
        """Write the addresses of all nodes, and the key that they show each other. Raises OSError."""
        self.write_book(nodes)
        os.ftruncate(self._in_memory(KEY), 0)
        self._append(KEY, credentials.encode())

    def write_book(self, nodes: Sequence[NodeAddress]) -> None:
        """Write the addresses of all nodes in one step, because nodes may be reading. Raises OSError."""
        book = {}
        for node in nodes:
            ports = [[node.address, port] for port in node.ports]
            tcp = ports.pop(0) if node.remote and ports else None
            book[node.label] = {"host": node.host, "unix": node.unix, "tcp": tcp, "more": ports}
        self._write(f"{BOOK}.new", dumps(plain(book)).encode("utf-8", "surrogateescape"))
        os.replace(self.place(f"{BOOK}.new"), self.place(BOOK))

    def write_plan(self, plan: Mapping[str, object]) -> None:
        """Write the run as another machine of its user needs it to call the nodes. Raises OSError."""
        self._write(PLAN, dumps(plan).encode("utf-8", "surrogateescape"))

    def add_to_payload(self, name: str, data: bytes) -> None:
        """Append a piece to a payload. Raises OSError."""
        self._append(PAYLOAD + name, data)

    def note_end(self, rank: int) -> None:
        """Note that a node has ended for good, for clients that wait for its result. A full disk loses it."""
        if self._is_made:
            try:
                self._write(f"{ENDED}-{rank}", b"")
            except OSError:
                pass

    def forget(self, name: str) -> None:
        """Remove a file of an earlier attempt, if it is there."""
        try:
            os.unlink(self.place(name))
        except OSError:
            pass

    def keep(self, name: str, directory: str) -> None:
        """Copy a file to a directory that outlives the run, if both are there. A full disk loses it."""
        path = os.path.join(directory, name)
        try:
            with open(self.place(name), "rb") as source, open(path + ".new", "wb") as file:
                while piece := source.read(COPY_BYTES):
                    file.write(piece)
            os.replace(path + ".new", path)
        except OSError:
            pass

    def remove(self) -> None:
        """Remove the directory and all that is in it, and close the files in memory."""
        for descriptor in self._memory.values():
            os.close(descriptor)
        self._memory = {}
        if self._is_made:
            remove_tree(self.path)

    def _in_memory(self, name: str) -> int:
        """Return the descriptor of a file in memory, made if need be. Raises OSError.

        A Python that was built without memfd_create(2) makes a file whose name is removed at once.
        """
        if name not in self._memory:
            if hasattr(os, "memfd_create"):
                self._memory[name] = os.memfd_create(name)
            else:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._memory[name] = os.open(self.place(name), flags, 0o600)
                os.unlink(self.place(name))
        return self._memory[name]

    def _append(self, name: str, data: bytes) -> None:
        descriptor = self._in_memory(name)
        os.lseek(descriptor, 0, os.SEEK_END)
        _write_all(descriptor, data)

    def _write(self, name: str, data: bytes) -> None:
        descriptor = os.open(self.place(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
