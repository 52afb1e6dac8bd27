"""The first requests to an agent, as values and as frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import asdict

from mesh.core.interfaces import CLIENT_RETURN_S
from mesh.core.run import PrerunEntry, Rules
from mesh.remote.agent.frames import encode


class Begin(Struct, frozen=True, kw_only=True):
    """The first request to an agent: everything that it needs from its first moment."""

    run: str
    project: str  # the workspace's directory on the host
    remote_dir: str
    about: Mapping[str, object]  # the run, as other clients see it
    owner: Mapping[str, object] | None  # the lock's holder, as other clients see it; None: take no lock
    lock: bool = False  # do at once what ``Session.lock`` asks for
    node: int  # index of the host in the run
    announce: bool = False  # name the run to other users of the machine, and look for their runs
    exclusive: bool = False  # with announce: be busy where another user's run is
    share: bool  # work in a copy of the workspace, and remove it afterwards
    existing: bool = False  # fail unless the workspace is there
    workspace_links: bool = False  # the workspace may be a symbolic link
    needs_home: bool = True  # fail where HOME is read-only; False: work in /tmp there
    devices: Sequence[str]  # shell patterns of device files
    device_patience: float  # seconds in which they must be free again after the run
    return_within: float = CLIENT_RETURN_S  # for a client to be back whose channel has ended while it was beating
    rules: Rules = Rules()  # fields of the request as well; the agent's table of messages names those that it reads
    ports: Sequence[int] = ()  # TCP ports to keep for the ranks from its lock to their start; 0: any that is free
    stacks: bool = False  # every Python of the ranks is prepared to write its stacks
    plan: Mapping[str, object] = field(default_factory=dict)  # of the run, for a client that comes back


class Finds(Struct, frozen=True, kw_only=True):
    """The environment and network of a host's first rank."""

    env: Mapping[str, str] = field(default_factory=dict)
    interface: str = ""  # that NCCL and gloo are to use; "": the one towards the first of the targets
    # Addresses; the second one for the case that the first is the host itself; (): not needed.
    targets: Sequence[str] = ()


class Preparation(Struct, frozen=True, kw_only=True):
    """The work of a host before its ranks can start."""

    prerun: Sequence[PrerunEntry] = ()
    force: bool = False  # also entries whose inputs have not changed
    claim: bool = False  # see first that nobody holds a device
    evict: bool = False  # end processes of the same user that do
    library: bytes = b""  # the source of what Python programs there may import as ``meshrun``; b"": nothing
    program: str = ""  # the first word of the command line, which the host looks for after prerun; "": none


class Rank(Struct, frozen=True, kw_only=True):
    """A rank to start: the differences from the host's first one."""

    rank: int
    env: Mapping[str, str]
    stdin: bool  # it gets our standard input


def begin_frame(begin: Begin, marker: str) -> bytes:
    """Return the first message of a run to its agent. marker: what the agent's greeting begins with"""
    lists = {name: list(getattr(begin, name)) for name in ("devices", "ports")}
    maps = {name: dict(getattr(begin, name)) for name in ("about", "plan")}
    fields = {**asdict(begin), **lists, **maps, **asdict(begin.rules)}
    del fields["rules"]
    return encode({"type": "begin", "marker": marker, **fields})


def prepare_frame(preparation: Preparation, finds: Finds) -> bytes:
    """Return the request to prepare a host. finds: the environment of prerun, which is the first rank's"""
    entries = [asdict(entry) for entry in preparation.prerun]
    chosen = {name: getattr(preparation, name) for name in ("force", "claim", "evict", "program")}
    return encode({"type": "prepare", "finds": finds_of(finds), "prerun": entries, **chosen}, preparation.library)


def finds_of(finds: Finds) -> dict[str, object]:
    """Return the field of a request that holds Finds."""
    return {"env": dict(finds.env), "interface": finds.interface, "targets": list(finds.targets)}
