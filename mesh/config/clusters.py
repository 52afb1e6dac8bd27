"""Reader of cluster.yaml: clusters, and how their hosts are reached."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode

from mesh.config import lpjobs, ports, spares, userspaces, ways, yamlfile
from mesh.config.hosts import NoHost, check_port, expand, named_once, split
from mesh.config.readers import BEGINNINGS, BUILT_IN_READERS, RESERVED, SOURCE_READERS
from mesh.config.readers import LOCAL as LOCAL
from mesh.config.yamlfile import Problems
from mesh.core.cluster import DEFAULT_DEVICES, DEFAULT_REMOTE_DIR, LONGEST_KEEP, Cluster, Host, HostKeys
from mesh.core.errors import UnknownCluster, UsageError

LOCAL_HOSTS, MOST_LOCAL_HOSTS = 2, 64
_LOCAL_NAME = re.compile(rf"{LOCAL}(:[0-9]+)?")


CLUSTER_KEYS = (
    "user",
    "identity_file",
    "hosts",
    "port",
    "gateway",
    "python",
    "remote_dir",
    "workspace_links",
    "password_env",
    "host_keys",
    "devices",
    "slices",
    "interface",
    ports.KEY,
    spares.KEY,
    *(reader.KEY for reader in SOURCE_READERS),
    "keep",
    "backend",
    "command",
)
SLICE_KEYS = ("hosts",)
HOST_KEYS = ("host", "port", "user", "internal_ip", "identity_file")

_Found = tuple[Host, str, Node]  # a host as it is written, its path in the file and its place there

EXAMPLE_FILE = """\
pod:
  user: me
  hosts:
    - 10.0.0.1
    - 10.0.0.2"""
EXAMPLE = f"""\
write that file, for example:
{textwrap.indent(EXAMPLE_FILE, "    ")}
or try the built-in cluster: mesh run local COMMAND"""


class ClusterFile(Struct, frozen=True, kw_only=True):
    """The clusters of one file, good and bad ones."""

    path: Path
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the bad ones, by name

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, as they stand in the file."""
        return (*self.clusters, *self.problems)


def load_clusters(path: Path, *, required: bool) -> ClusterFile:
    """Read the file; one that is not there holds no clusters, unless it is required. Raises UsageError."""
    if not required and not path.exists():
        return ClusterFile(path=path)
    if not path.exists():
        raise UsageError(f"{path}: there is no such file", hint=f"mesh clusters --example > {shlex.quote(str(path))}")
    node, problems = yamlfile.load(path)
    if node is None:
        return ClusterFile(path=path)
    keys = yamlfile.mapping(node, "", problems, "a mapping of cluster names")
    if not isinstance(node, MappingNode):
        raise UsageError(f"{path}:1: expected clusters by name, found {yamlfile.found(node)}", hint=EXAMPLE)
    problems.check()
    clusters, bad = {}, {}
    for name, (_, value) in keys.items():
        cluster, own = _cluster(name, value, path)
        if own.lines:
            bad[name] = tuple(own.lines)
        else:
            clusters[name] = cluster
    return ClusterFile(path=path, clusters=clusters, problems=bad)


def cluster_text(name: str, hosts: Sequence[str]) -> str:
    """Return a cluster as it stands in the file.

    >>> print(cluster_text("pod", ["me@tpu-0", "[::1]:22", "1.5"]), end="")
    pod:
      hosts:
        - me@tpu-0
        - '[::1]:22'
        - '1.5'
    """
    lines = [f"{yamlfile.quoted(name)}:", "  hosts:", *(f"    - {yamlfile.quoted(host)}" for host in hosts)]
    return "".join(f"{line}\n" for line in lines)


def find_cluster(name: str, file: ClusterFile) -> Cluster:
    """Return the cluster of that name, a built-in one or one of the file. Raises UnknownCluster and UsageError.

    A cluster with a source has no hosts yet.
    """
    if name == LOCAL or name.startswith(f"{LOCAL}:"):
        return _local(name)
    for reader in BUILT_IN_READERS:
        if name.startswith(reader.BUILT_IN):
            source = reader.built_in(name)
            return Cluster(name=name, hosts=(), source=source, backend=source.backend)
    if name in file.problems:
        raise UsageError("\n".join(file.problems[name]))
    if name in file.clusters:
        return file.clusters[name]
    if lpjobs.is_lpjob(name) and file.path != lpjobs.lpjob_path(name):
        return find_cluster(name, load_clusters(lpjobs.lpjob_path(name), required=True))
    if userspaces.is_dev_cluster(name):
        dev = userspaces.dev_pods(name)
        return Cluster(name=name, hosts=(), source=dev, backend=dev.backend)
    if not file.path.exists():
        raise UnknownCluster(f"no cluster {name!r}: there is no {file.path}", hint=EXAMPLE)
    if not file.names:
        raise UnknownCluster(f"no cluster {name!r}: {file.path} lists none", hint=EXAMPLE)
    near = yamlfile.did_you_mean(name, [*file.names, LOCAL])
    raise UnknownCluster(f"no cluster {name!r} in {file.path}{near}", hint="`mesh clusters` lists them")


def is_cluster(name: str, file: ClusterFile) -> bool:
    """True if this is the whole name of a cluster, built-in or of the file, good or bad."""
    if name in file.names or _LOCAL_NAME.fullmatch(name):
        return True
    for reader in BUILT_IN_READERS:
        if name.startswith(reader.BUILT_IN):
            try:
                reader.built_in(name)
            except UsageError:
                return False
            return True
    return lpjobs.is_lpjob(name) or userspaces.is_dev_cluster(name)


def _local(name: str) -> Cluster:
    _, colon, count = name.partition(":")
    number = int(count) if count.isdecimal() and len(count) < 4 else 0
    if colon and not 1 <= number <= MOST_LOCAL_HOSTS:
        raise UsageError(f"{name!r}: expected local:N with N from 1 to {MOST_LOCAL_HOSTS}")
    hosts = (
        Host(name=f"local-{i}", address="127.0.0.1", remote_dir=f"{DEFAULT_REMOTE_DIR}/local/{i}")
        for i in range(number if colon else LOCAL_HOSTS)
    )
    return Cluster(name=name, hosts=tuple(hosts), backend="local")


def _cluster(name: str, node: Node, path: Path) -> tuple[Cluster, Problems]:
    """Read one cluster; return it with its problems. It is valid only without any."""
    problems = Problems(path)
    if name in RESERVED or name.startswith(BEGINNINGS):
        problems.add(node, name, "is the name of a built-in cluster; choose another one")
    keys = yamlfile.mapping(node, name, problems, "a mapping with hosts:")
    yamlfile.known(keys, CLUSTER_KEYS, name, problems)

    def text(key: str, expected: str) -> str:
        return yamlfile.text(keys[key][1], f"{name}.{key}", problems, expected) if key in keys else ""

    way = ways.read(keys, name, problems)
    defaults = Host(
        name="",
        address="",
        user=_user(text("user", "a user name"), keys, name, problems),
        port=_port(keys, name, problems),
        identity_file=_identity_file(keys, name, problems),
    )
    host_keys = text("host_keys", "accept-new or strict") or HostKeys.ACCEPT_NEW.value
    if host_keys not in [kind.value for kind in HostKeys]:
        problems.unexpected(keys["host_keys"][1], f"{name}.host_keys", "accept-new or strict")
        host_keys = HostKeys.ACCEPT_NEW.value
    sources = [reader.read(keys, name, defaults, problems) for reader in SOURCE_READERS if reader.KEY in keys]
    hosts, slices = ((), ()) if sources else _all_hosts(keys, name, node, defaults, way, problems)
    cluster = Cluster(
        name=name,
        hosts=hosts,
        slices=slices,
        spares=spares.read(keys, name, len(hosts), problems),
        gateway=_gateway(text("gateway", "a gateway, [user@]host[:port]"), keys, name, problems),
        python=text("python", "a path or name of an interpreter") or "python3",
        remote_dir=text("remote_dir", "a directory on the hosts") or DEFAULT_REMOTE_DIR,
        workspace_links=_workspace_links(keys, name, problems),
        password_env=text("password_env", "the name of a variable"),
        host_keys=HostKeys(host_keys),
        devices=_devices(keys, name, problems),
        interface=_interface(text("interface", "the name of a network interface"), keys, name, problems),
        ports=ports.read(keys, name, problems),
        source=sources[0] if sources else None,
        keep=_keep(keys, name, problems),
        backend=sources[0].backend if sources else way.backend,
        command=way.command,
    )
    return cluster, problems


def _devices(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> tuple[str, ...]:
    if "devices" not in keys:
        return DEFAULT_DEVICES
    patterns = yamlfile.texts(keys["devices"][1], f"{where}.devices", problems, "a list of file patterns")
    for pattern in patterns:
        if not pattern.startswith("/"):
            problems.add(
                keys["devices"][1], f"{where}.devices", f"expected patterns such as /dev/accel*, found {pattern}"
            )
    return patterns


def _workspace_links(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> bool:
    if "workspace_links" not in keys:
        return False
    return yamlfile.flag(keys["workspace_links"][1], f"{where}.workspace_links", problems)


def _keep(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> float:
    if "keep" not in keys:
        return 0.0
    expected = f"seconds from 0 to {LONGEST_KEEP:g}"
    seconds = yamlfile.number(keys["keep"][1], f"{where}.keep", problems, expected)
    if seconds is not None and not 0 <= seconds <= LONGEST_KEEP:
        problems.unexpected(keys["keep"][1], f"{where}.keep", expected)
    return seconds or 0.0


def _interface(interface: str, keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> str:
    if any(character.isspace() or character in "/\0" for character in interface):
        problems.unexpected(keys["interface"][1], f"{where}.interface", "the name of a network interface, as eth0")
    return interface


def _user(user: str, keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> str:
    if user:
        try:
            split(f"{user}@host")
        except NoHost as error:
            problems.add(keys["user"][1], f"{where}.user", str(error))
    return user


def _gateway(gateway: str, keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> str:
    if gateway:
        try:
            split(gateway)
        except NoHost as error:
            problems.add(keys["gateway"][1], f"{where}.gateway", str(error))
    return gateway


def _port(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> int:
    if "port" not in keys:
        return 0
    node, expected = keys["port"][1], "a port (1 to 65535)"
    if not isinstance(node, ScalarNode):
        problems.unexpected(node, f"{where}.port", expected)
        return 0
    try:
        return check_port(node.value)
    except NoHost:
        problems.unexpected(node, f"{where}.port", expected)
        return 0


def _identity_file(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> str:
    if "identity_file" not in keys:
        return ""
    node, place = keys["identity_file"][1], f"{where}.identity_file"
    written = yamlfile.text(node, place, problems, "the path of a private key")
    if not written:
        return ""
    try:
        path = Path(written).expanduser()
        if not path.is_file():
            problems.add(node, place, f"there is no file {path}")
    except (OSError, RuntimeError, ValueError):  # no such user for ~user; a path that is none
        problems.add(node, place, f"there is no file {written}")
        return written
    return str(path)


def _all_hosts(
    keys: Mapping[str, tuple[Node, Node]], name: str, cluster: Node, defaults: Host, way: ways.Way, problems: Problems
) -> tuple[tuple[Host, ...], tuple[int, ...]]:
    """Return the hosts of a cluster, and how many each slice has."""
    if "slices" not in keys:
        return _named_once(_hosts(keys, name, cluster, defaults, problems), defaults, way, problems), ()
    node, place = keys["slices"][1], f"{name}.slices"
    if "hosts" in keys:
        problems.add(node, place, "has hosts: beside it; a cluster has one of the two")
    listed = yamlfile.items(node, place, problems, "a list of slices, each with hosts:")
    if not listed and not problems.lines:
        problems.add(node, place, "is empty")
    found: list[_Found] = []
    sizes = []
    for where, item in listed:
        own = yamlfile.mapping(item, where, problems, "a slice with hosts:")
        yamlfile.known(own, SLICE_KEYS, where, problems)
        hosts = _hosts(own, where, item, defaults, problems)
        found += hosts
        sizes.append(len(hosts))
    return _named_once(found, defaults, way, problems), tuple(sizes)


def _hosts(
    keys: Mapping[str, tuple[Node, Node]], name: str, parent: Node, defaults: Host, problems: Problems
) -> list[_Found]:
    if "hosts" not in keys:
        if isinstance(parent, MappingNode):
            problems.add(parent, name, "has no hosts:")
        return []
    place = f"{name}.hosts"
    listed = yamlfile.items(keys["hosts"][1], place, problems, "a list of hosts")
    hosts = [(host, where, node) for where, node in listed for host in _host(node, where, defaults, problems)]
    if not hosts and not problems.lines:
        problems.add(keys["hosts"][1], place, "is empty")
    return hosts


def _named_once(hosts: Sequence[_Found], defaults: Host, way: ways.Way, problems: Problems) -> tuple[Host, ...]:
    """Return the hosts, each with a name of its own."""
    for host, where, node in hosts:
        ways.check_host(way, host, defaults, (node, where), problems)
    named, repeated = named_once([host for host, _, _ in hosts])
    for index in repeated:
        _, where, node = hosts[index]
        problems.add(node, where, f"{named[index].name} is listed twice")
    return named


def _host(node: Node, where: str, defaults: Host, problems: Problems) -> list[Host]:
    """Return the hosts of one item of the list: one, or those of a range."""
    if isinstance(node, MappingNode):
        return _host_mapping(node, where, defaults, problems)
    written = yamlfile.text(node, where, problems, "a host name")
    return _named(written, node, where, defaults, problems) if written else []


def _host_mapping(node: MappingNode, where: str, defaults: Host, problems: Problems) -> list[Host]:
    keys = yamlfile.mapping(node, where, problems, "a host")
    yamlfile.known(keys, HOST_KEYS, where, problems)
    if "host" not in keys:
        problems.add(node, where, "has no host:")
        return []
    own = defaults
    if "user" in keys:
        user = yamlfile.text(keys["user"][1], f"{where}.user", problems, "a user name")
        own = replace(own, user=_user(user, keys, where, problems))
    if "port" in keys:
        own = replace(own, port=_port(keys, where, problems))
    if "identity_file" in keys:
        own = replace(own, identity_file=_identity_file(keys, where, problems))
    if "internal_ip" in keys:
        place = f"{where}.internal_ip"
        address = yamlfile.text(keys["internal_ip"][1], place, problems, "an address")
        try:
            user, address, port = split(address or "x")
            if user or port:
                problems.unexpected(keys["internal_ip"][1], place, "an address without user and port")
        except NoHost as error:
            problems.add(keys["internal_ip"][1], place, str(error))
        own = replace(own, internal_ip=address)
    place = f"{where}.host"
    written = yamlfile.text(keys["host"][1], place, problems, "a host name")
    hosts = _named(written, keys["host"][1], place, own, problems) if written else []
    if own.internal_ip and len(hosts) > 1:
        problems.add(node, where, "a range of hosts cannot share one internal_ip")
    return hosts


def _named(written: str, node: Node, where: str, defaults: Host, problems: Problems) -> list[Host]:
    try:
        hosts = []
        for name in expand(written):
            user, address, port = split(name)
            host = replace(defaults, name=address, address=address)
            hosts.append(replace(host, user=user or host.user, port=port or host.port))
        return hosts
    except NoHost as error:
        problems.add(node, where, f"expected a host name, found {yamlfile.found(node)}: {error}")
        return []
