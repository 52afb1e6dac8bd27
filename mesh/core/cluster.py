"""Hosts and clusters, as they are used: every default filled in, nothing left to look up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

DEFAULT_REMOTE_DIR = "~/.mesh"
LONGEST_KEEP = 600.0  # seconds; an agent that waits leaves by itself after a little more
# TPU chips of v2 to v4, and of v5e and later; GPUs. Not /dev/nvidiactl and the like, which belong to all of them.
DEFAULT_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*")


class HostKeys(Enum):
    """Rule for the key of a host that known_hosts does not name; a changed key is always refused."""

    ACCEPT_NEW = "accept-new"
    STRICT = "strict"


class Host(Struct, frozen=True, kw_only=True):
    """Machine of a cluster."""

    name: str  # how the user calls it: unique in its cluster, used in labels and file names
    address: str  # a name, an ssh_config alias or an IP address (IPv6 without brackets); "": there is none to go by
    port: int = 0  # 1 .. 65535; 0: ssh_config's, else 22
    user: str = ""  # "": ssh_config's, else the local user
    identity_file: str = ""  # a path, ~ expanded; "": ssh_config's, else the agent and default keys
    remote_dir: str = ""  # mesh's directory there; "": the cluster's
    internal_ip: str = ""  # the address by which the other hosts reach it; "": `address`
    proxy_command: str = ""  # carries connections to it, as in ssh_config; "": ssh_config's
    pod: str = ""  # its pod, with backend "pods", where pods are in groups; "": the pod of its name
    key_alias: str = ""  # its name in known_hosts; "": ssh_config's, else its address
    slice_index: int = -1  # its index in its slice, where its source numbers hosts; -1: it does not
    hints: Mapping[str, str] = field(default_factory=dict)  # what to try, by the step of connecting that failed

    @property
    def group(self) -> str:
        """The group of its pod; "" where pods are in none.

        >>> Host(name="actor-7", address="", pod="mesh-gpus-ana-0a1b2-actor-7").group
        'actor'
        """
        return self.name.rpartition("-")[0] if self.pod else ""


class PodPlace(Struct, frozen=True, kw_only=True):
    """The place of the pods of a cluster, with backend "pods"."""

    context: str = ""  # of kubeconfig; "": its current one, or in a pod without kubeconfig that pod's service account
    namespace: str = ""  # "": the context's
    container: str = ""  # "": the only one of a pod, or the one that the pod names as its default
    selector: str = ""  # labels that all of the pods have
    switchboard: bool = False  # one exec carries the streams of all pods

    def kubectl(self, verb: str) -> str:
        """Return the beginning of a kubectl command in this context and namespace, for hints.

        >>> PodPlace(context="prod", namespace="team-a").kubectl("get pods"), PodPlace().kubectl("get pods")
        ('kubectl get pods --context prod -n team-a', 'kubectl get pods')
        """
        import shlex

        options = {"--context": self.context, "-n": self.namespace}
        return " ".join(
            ("kubectl", verb, *(f"{name} {shlex.quote(value)}" for name, value in options.items() if value))
        )


class AllocationPlace(Struct, frozen=True, kw_only=True):
    """The allocation whose nodes are the hosts of a cluster, with backend "slurm"."""

    job: str = ""  # its number
    record: str = ""  # the name of its record here, which has the key of its switchboard
    end: float = 0.0  # seconds since the epoch when its time is up; 0: unlimited
    login: Host | None = None  # where Slurm's commands are; None: on this machine


class Source(Struct, frozen=True, kw_only=True):
    """A description of where hosts come from; only the source itself (``mesh.hosts``) reads it."""

    backend: ClassVar[str] = "ssh"  # by which the hosts are reached, as in Cluster


class Cluster(Struct, frozen=True, kw_only=True):
    """A named, ordered set of hosts and how they are reached."""

    name: str
    hosts: tuple[Host, ...]
    backend: str = "ssh"  # a key of app.carriers.CARRIERS
    command: tuple[str, ...] = ()  # with backend "command": the words before the agent's, see core/prefix.py
    pods: PodPlace = PodPlace()  # with backend "pods"
    allocation: AllocationPlace = AllocationPlace()  # with backend "slurm"
    gateway: str = ""  # [user@]host[:port] that every connection goes through; "": ssh_config decides
    python: str = "python3"  # the interpreter that runs the agent on the hosts
    remote_dir: str = DEFAULT_REMOTE_DIR  # mesh's directory on a host; ~ is the host's
    password_env: str = ""  # the name of the variable that holds the password; "": no password
    ask_password: bool = False  # ask for the password before anything is tried
    host_keys: HostKeys = HostKeys.ACCEPT_NEW
    devices: tuple[str, ...] = DEFAULT_DEVICES  # files, by shell patterns, that one run at a time may use
    slices: tuple[int, ...] = ()  # how many of the hosts each slice has, at least 1, in order; (): there are no slices
    spares: int = 0  # hosts at the end that have no ranks in runs until a rank moves there; fewer than hosts
    interface: str = ""  # that NCCL and gloo use on every host; "": the one towards rank 0
    ports: tuple[int, ...] = ()  # the first and the last one at which nodes of programs listen; (): any
    source: Source | None = None  # finds its hosts, of which there are none before; None: they are listed
    parts: tuple[Cluster, ...] = ()  # the clusters that it was joined from; (): it was not
    note: str = ""  # how its hosts were found, for people
    workspace: str = ""  # the directory on hosts of the job that has them; "": that of the user's project
    fetched: str = ""  # where its hosts have got `workspace` from by themselves, for people; "": mesh sends it
    workspace_links: bool = False  # a workspace on a host may be a symbolic link
    # Seconds for each try to connect and log in, and then for the login to start the agent; 0: the defaults of each.
    connect_timeout: float = 0.0
    keep: float = 0.0  # seconds, at most LONGEST_KEEP, that connections may outlive a command; 0: none does


class Rank(Struct, frozen=True):
    """Where one rank of a run is."""

    node: int  # index of its host
    local: int = 0  # index among the ranks of its host
    group: int = 0  # index of its group
    index: int = 0  # among the ranks of its group


class NodeSockets(Struct, frozen=True):
    """The sockets at which a node of a program listens, on its host."""

    rank: int
    unix: str  # path; "": there is none
    ports: tuple[int, ...] = ()  # of TCP


class Placement(Struct, frozen=True, kw_only=True, dict=True):
    """Which ranks of a run are where; at the start of a run, the ranks of one host follow each other.

    >>> hosts = tuple(Host(name=name, address=name) for name in ("a", "b"))
    >>> placement = place_ranks(hosts, nprocs=(2, 1))
    >>> placement.world_size, list(placement.ranks(1)), placement.node(1)
    (3, [2], 0)
    """

    hosts: tuple[Host, ...]
    table: tuple[Rank, ...]  # by rank
    slices: tuple[int, ...] = ()  # as in Cluster
    labels: tuple[str, ...] = ("",)  # of the groups; ("",): there are no roles
    spares: int = 0  # hosts at the end that have no ranks at the start of the run

    @property
    def world_size(self) -> int:
        return len(self.table)

    @property
    def count(self) -> int:
        """The number of hosts that have ranks at the start of the run: those at the beginning."""
        return len(self.hosts) - self.spares

    @cached_property
    def _ranks(self) -> tuple[Sequence[int], ...]:
        """The ranks of each host."""
        found: list[list[int]] = [[] for _ in self.hosts]
        for rank, place in enumerate(self.table):
            found[place.node].append(rank)
        return tuple(
            range(own[0], own[-1] + 1) if own and own[-1] - own[0] + 1 == len(own) else tuple(own) for own in found
        )

    def ranks(self, node: int) -> Sequence[int]:
        """The ranks of the node-th host, in order; none for a spare host that has taken none."""
        return self._ranks[node]

    def first(self, node: int) -> int:
        """Return the number that stands for a host: its first rank, or for a host without ranks one beyond all ranks.

        >>> hosts = tuple(Host(name=name, address=name) for name in "abc")
        >>> placement = place_groups(hosts, [[(0, 2)], [(0, 1)], []])
        >>> [placement.first(node) for node in range(3)], placement.node(5), placement.spares
        ([0, 2, 5], 2, 1)
        """
        ranks = self._ranks[node]
        return ranks[0] if ranks else self.world_size + node

    def node(self, rank: int) -> int:
        """The index of the host that runs this rank, or for which this number stands."""
        return self.table[rank].node if rank < self.world_size else rank - self.world_size

    def moved(self, moves: Iterable[tuple[int, int]]) -> Placement:
        """Return the placement with ranks on other hosts, each as rank and index of its host. The rest stays.

        >>> hosts = tuple(Host(name=name, address=name) for name in "abc")
        >>> placement = place_groups(hosts, [[(0, 2)], [(0, 1)], []]).moved([(1, 2)])
        >>> [list(placement.ranks(node)) for node in range(3)], placement.table[1].local
        ([[0], [2], [1]], 1)
        """
        table = list(self.table)
        for rank, node in moves:
            table[rank] = replace(table[rank], node=node)
        return replace(self, table=tuple(table))

    def group(self, node: int) -> int:
        """Return the index of the group of a host's first rank; 0 for a host without ranks."""
        ranks = self._ranks[node]
        return self.table[ranks[0]].group if ranks else 0

    def groups(self, node: int) -> list[int]:
        """Return the indices of the groups that have ranks on a host, in the order of their first ranks there."""
        return list(self._groups[node])

    @cached_property
    def _groups(self) -> tuple[tuple[int, ...], ...]:
        """The same for every host: the variables of each rank depend on it."""
        return tuple(
            tuple(dict.fromkeys(self.table[rank].group for rank in self.ranks(node))) for node in range(len(self.hosts))
        )

    def label(self, rank: int) -> str:
        """Return the label of a rank's group; "" in a run without roles, and for the number of a host."""
        return self.labels[self.table[rank].group] if rank < self.world_size else ""

    def role(self, rank: int) -> str:
        """Return the name of a rank within its group, as "actor/1"; "" in a run without roles."""
        return f"{label}/{self.table[rank].index}" if (label := self.label(rank)) else ""

    def worker(self, rank: int) -> tuple[int, int]:
        """The slice of a rank, and its index among the ranks of that slice; slice 0 where there are none.

        >>> hosts = tuple(Host(name=name, address=name) for name in "abc")
        >>> [place_ranks(hosts, slices=(2, 1)).worker(rank) for rank in range(3)]
        [(0, 0), (0, 1), (1, 0)]
        """
        end = 0
        for number, size in enumerate(self.slices):
            begin, end = end, end + size
            if self.node(rank) < end:
                return number, rank - self.first(begin)
        return 0, rank


def allocation_mark(cluster: Cluster) -> dict[str, str]:
    """Return the variable by which the programs of an allocation find the agents and ranks that end with it.

    {} without an allocation, or if its nodes are not reached by SSH: then the agents are in its step.
    """
    is_marked = bool(cluster.allocation.job) and cluster.backend == "ssh"
    return {"MESH_ALLOCATION": cluster.allocation.job} if is_marked else {}


def place_ranks(
    hosts: Sequence[Host],
    nprocs: Sequence[int] = (),
    *,
    groups: Sequence[int] = (),
    labels: Sequence[str] = ("",),
    slices: Sequence[int] = (),
) -> Placement:
    """Number the ranks of a run, host after host.

    nprocs: of each host how many ranks it has, at least 1; (): one each
    groups: of each host the index of its ranks' group; (): there is one. labels: of the groups

    >>> hosts = tuple(Host(name=name, address=name) for name in "abc")
    >>> placement = place_ranks(hosts, (1, 2, 1), groups=(1, 0, 1), labels=("actor", "learner"))
    >>> [placement.role(rank) for rank in range(4)]
    ['learner/0', 'actor/0', 'actor/1', 'learner/1']
    """
    shares = [((groups[node] if groups else 0, nprocs[node] if nprocs else 1),) for node in range(len(hosts))]
    return place_groups(hosts, shares, labels=labels, slices=slices)


def place_groups(
    hosts: Sequence[Host],
    shares: Sequence[Sequence[tuple[int, int]]],
    *,
    labels: Sequence[str] = ("",),
    slices: Sequence[int] = (),
) -> Placement:
    """Number the ranks of a run whose groups may share hosts, host after host.

    shares: of each host the index of each group there, and how many ranks of it; only the last hosts may have none
    """
    table: list[Rank] = []
    sizes = [0] * len(labels)  # of the groups so far
    for node, share in enumerate(shares):
        local = 0
        for group, count in share:
            for _ in range(count):
                table.append(Rank(node, local, group, sizes[group]))
                sizes[group] += 1
                local += 1
    spares = len(hosts) - sum(map(bool, shares))
    return Placement(hosts=tuple(hosts), table=tuple(table), slices=tuple(slices), labels=tuple(labels), spares=spares)
