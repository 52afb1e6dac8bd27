"""Launchpad's nodes as a program describes them, before they travel to their hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from mesh.core.errors import UsageError
from mesh.launchpad.runtime import reverb
from mesh.launchpad.runtime.address import Address
from mesh.launchpad.runtime.clients import CourierHandle, DummyHandle, Handle, NodePort
from mesh.launchpad.runtime.part import CLASS, COURIER, PY, THREADS, Part
from mesh.launchpad.runtime.transmit import TransmitHandle, TransmitServer

POOL_SIZE = 16  # methods that run at the same time, as Courier has it


class Where(Struct, frozen=True, kw_only=True):
    """The hosts, GPUs, interpreter and environment of the nodes of a label."""

    on: object = None  # names or ranges of hosts, or ``has(...)``; None: all hosts
    gpus: int = 0  # GPUs for each node, shared with no other node
    python: str = ""  # the interpreter on the hosts; "": python3
    env: Mapping[str, str] = field(default_factory=dict)


class PythonProcess(Struct, frozen=True):
    """The command line and environment of the processes of a label."""

    args: Mapping[str, object] = field(default_factory=dict)  # flags by their names
    env: Mapping[str, object] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        """The flags as words."""
        return tuple(f"--{name}={value}" for name, value in self.args.items())


class PyNode:
    """A node that runs a function once."""

    kind = PY

    def __init__(self, function: Callable[..., object], *args: object, **kwargs: object) -> None:
        self._target, self._args, self._kwargs = function, args, dict(kwargs)
        self._should_run = True
        self.port = NodePort()
        self.addresses: list[Address] = []
        self.host = ""  # "": any

    @property
    def function(self) -> Callable[..., object]:
        """The function that the node runs."""
        return self._target

    @property
    def concurrency(self) -> int:
        """The methods of the node that may run at the same time."""
        return POOL_SIZE

    def create_handle(self) -> Handle[object]:
        """Return a handle without methods."""
        return DummyHandle()

    def allocate_address(self, address: Address) -> None:
        """Add an address to this node."""
        address.assign(self)

    def part(self) -> Part:
        """Return the description that travels to the host."""
        part = Part(self.kind, self._target, tuple(self._args), dict(self._kwargs))
        part.should_run = self._should_run
        return part

    def bind(self, program: str, label: str, prefix: str = "") -> None:
        """Set the place of the node in its program, so that its handles become usable."""
        self.port.program, self.port.label, self.port.prefix = program, label, prefix


class PyClassNode(PyNode):
    """A node that makes an object and calls its ``run()``."""

    kind = CLASS

    def disable_run(self) -> None:
        """Turn off the call of ``run()``, for a test that calls methods by the handle."""
        self._should_run = False

    def enable_run(self) -> None:
        """Turn on the call of ``run()``, which is the default."""
        self._should_run = True


class CourierNode(PyClassNode):
    """A node that makes an object, serves its public methods, and calls its ``run()`` if there is one."""

    kind = COURIER

    def __init__(
        self,
        constructor: Callable[..., object],
        *args: object,
        courier_kwargs: Mapping[str, object] | None = None,
        courier_client_kwargs: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        """courier_kwargs: ``thread_pool_size`` counts; courier_client_kwargs: for clients of the node"""
        super().__init__(constructor, *args, **kwargs)
        self._courier_kwargs, self._client_kwargs = dict(courier_kwargs or {}), dict(courier_client_kwargs or {})
        self._address = Address("courier")
        self.allocate_address(self._address)

    def configure(self, *args: object, **kwargs: object) -> None:
        """Replace the arguments of the constructor, where nodes refer to each other in a circle."""
        self._args, self._kwargs = args, kwargs

    @property
    def concurrency(self) -> int:
        """The methods of the node that may run at the same time."""
        return int(str(self._courier_kwargs.get("thread_pool_size", POOL_SIZE)))

    @property
    def courier_address(self) -> Address:
        """An address of the node's own. Calls do not need it."""
        return self._address

    def create_handle(self) -> CourierHandle:
        """Return a handle; as an argument of another node it arrives as a client."""
        return CourierHandle(self.port, self._client_kwargs)


class MultiThreadingColocation(PyNode):
    """Nodes in threads of one process."""

    kind = THREADS

    def __init__(self, nodes: Sequence[PyNode], return_on_first_completed: bool = False) -> None:
        """return_on_first_completed: end once one of them has ended, in place of all. Raises ValueError without any."""
        super().__init__(_no_function)
        self.nodes: list[PyNode] = []
        self._ends_at_first = return_on_first_completed
        for node in nodes:
            self.add_node(node)

    def add_node(self, node: PyNode) -> Handle[object]:
        """Add a node and return its handle. Raises ValueError for anything else."""
        if not isinstance(node, PyNode):
            raise ValueError(f"a colocation has nodes of Python, not {type(node).__name__}")
        self.nodes.append(node)
        return node.create_handle()

    @property
    def concurrency(self) -> int:
        """The methods of all nodes that may run at the same time."""
        return sum(node.concurrency for node in self.nodes)

    def part(self) -> Part:
        """Return the description that travels to the host. Raises UsageError without nodes."""
        if not self.nodes:
            raise UsageError("a MultiThreadingColocation has no nodes", hint="MultiThreadingColocation([node, other])")
        part = super().part()
        part.children = [node.part() for node in self.nodes]
        part.ends_at_first = self._ends_at_first
        return part

    def bind(self, program: str, label: str, prefix: str = "") -> None:
        """Set the places of all nodes."""
        super().bind(program, label, prefix)
        for number, node in enumerate(self.nodes):
            node.bind(program, label, f"{prefix}{number}:")


class MultiProcessingColocation(PyNode):
    """Nodes in processes of one host. Each is started again after a failure."""

    def __init__(self, nodes: Sequence[PyNode], num_retries_on_failure: int = 0) -> None:
        """num_retries_on_failure: starts of a node that has failed"""
        super().__init__(_no_function)
        self.nodes, self.restarts = list(nodes), num_retries_on_failure


class ReverbNode(PyNode):
    """A node with a server of dm-reverb."""

    def __init__(
        self,
        priority_tables_fn: Callable[[], Sequence[object]],
        checkpoint_ctor: Callable[[], object] | None = None,
    ) -> None:
        """priority_tables_fn: returns the tables, on the host"""
        self._address = Address("reverb")
        super().__init__(reverb.serve, priority_tables_fn, checkpoint_ctor, self._address)
        self.allocate_address(self._address)

    @property
    def reverb_address(self) -> Address:
        """The address of reverb's server."""
        return self._address

    def create_handle(self) -> reverb.ReverbHandle:
        """Return a handle; as an argument of another node it arrives as reverb's client."""
        return reverb.ReverbHandle(self._address)


class SSHNode(PyClassNode):
    """A node of TLaunch: an object with ``run()``, or a function, on a host that ``to_host`` names."""

    def __init__(self, constructor: Callable[..., object], *args: object, **kwargs: object) -> None:
        # TLaunch needs these for its shared directory; here the arguments travel by the agent's channel.
        for name in ("share_temp_dir", "share_entry_script_path"):
            kwargs.pop(name, None)
        super().__init__(constructor, *args, **kwargs)
        self.kind = CLASS if isinstance(constructor, type) else PY

    def to_host(self, host: str, *unused: object, **ignored: object) -> SSHNode:
        """Set the host: one of cluster.yaml, an alias of ssh_config, or "[user@]host[:port]". Returns the node."""
        self.host = host
        return self


class TransmitNode(SSHNode):
    """A value on a host, which any node may replace and read."""

    def __init__(
        self,
        priority_tables_fn: Callable[[], Sequence[object]] | None = None,
        checkpoint_ctor: Callable[[], object] | None = None,
    ) -> None:
        """priority_tables_fn: tables of dm-reverb are not served. Raises UsageError for them."""
        if priority_tables_fn is not None or checkpoint_ctor is not None:
            raise UsageError("a TransmitNode has no tables of dm-reverb", hint="mesh.launchpad.ReverbNode(tables)")
        super().__init__(TransmitServer)
        self.kind = COURIER

    def create_handle(self) -> TransmitHandle:
        """Return a handle; as an argument of another node it arrives as a client."""
        return TransmitHandle(self.port)


class RLTransmitNode(TransmitNode):
    """A transmit node of TLaunch for weights, whose argument words are not needed here."""

    def __init__(self, argv: object = None, n: object = None) -> None:
        super().__init__()


def _no_function() -> None:
    """Do nothing: a colocation runs its nodes."""
