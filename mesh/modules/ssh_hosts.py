"""Hosts as the others reach them over SSH: what they report, and the files of OpenSSH that are made of it."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.cluster import Host
from mesh.core.module import ModuleError

DIGEST_CHARACTERS = 16
LINE_CHARACTERS = 2000  # of names in one line of ssh_config; older versions of ssh cut lines at 4096
FROM_ADDRESSES = 100  # in one line of authorized_keys; older versions of sshd cut lines at 8192
SSH_PORT = 22
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]*")
KEY_TYPE = re.compile(r"[a-z0-9][a-z0-9@.-]*")
KEY_ID = re.compile(r"[0-9a-f]+")
PREFERRED_TYPE = "ssh-ed25519"  # the others get this key alone of a host that has one
DEFAULT_IDENTITIES = "    # default identities"  # the host puts IdentityFile lines for the user's own keys here


class Machine(Struct, frozen=True, kw_only=True):
    """A host by what it has reported, and by what cluster.yaml has about it."""

    user: str
    port: int
    names: tuple[str, ...]
    addresses: tuple[str, ...]  # its own
    keys: tuple[tuple[str, str], ...]  # type and key of its sshd
    setup: str = ""  # the id of the keys for other hosts that are there and work; "": there are none
    members: tuple[str, ...] = ()  # digests of the machines that these keys were made for
    main: str = ""  # the address by which the others reach it
    digest: str = ""  # of all above that decides how it is reached


def machines_of(hosts: Sequence[Host], facts: Sequence[str]) -> list[Machine]:
    """Return the machines of hosts, in order. Raises ModuleError for reports that cannot be used."""
    machines = [_with_names(host, _parse(host, fact)) for host, fact in zip(hosts, facts, strict=False)]
    # Hosts that share keys and addresses are one machine. A name or an address that two machines have is no way to
    # either: the bridge of docker has one address everywhere.
    distinct = {(machine.keys, machine.addresses): machine for machine in machines}.values()
    counts = Counter(word for machine in distinct for word in {*machine.names, *machine.addresses})
    result = []
    for host, machine in zip(hosts, machines, strict=False):
        names = tuple(name for name in machine.names if counts[name] == 1)
        addresses = tuple(address for address in machine.addresses if counts[address] == 1)
        if not addresses:
            raise ModuleError(f"{host.name} has no address of its own by which the other hosts can reach it")
        wanted = [address for address in (host.internal_ip, host.address) if address in addresses]
        result.append(replace(machine, names=names, addresses=addresses, main=(wanted or addresses)[0]))
    return result


def _with_names(host: Host, machine: Machine) -> Machine:
    """Add the names that cluster.yaml has for a host, and the digest."""
    named = [name for name in (host.name, host.address) if HOST_NAME.fullmatch(name) and not _is_address(name)]
    machine = replace(machine, names=tuple(dict.fromkeys((*named, *machine.names))))
    words = [machine.user, str(machine.port), *sorted(machine.names), *sorted(machine.addresses)]
    text = "\n".join([*words, *sorted(f"{kind} {key}" for kind, key in machine.keys)])
    return replace(machine, digest=hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS])


def _parse(host: Host, fact: str) -> Machine:
    """Return a report as a value. Raises ModuleError for any line that could do harm in a file of OpenSSH."""
    found: dict[str, list[str]] = {"user": [], "port": [], "name": [], "address": [], "key": [], "setup": []}
    members: tuple[str, ...] = ()
    for line in fact.splitlines():
        word, _, value = line.partition(" ")
        if word == "members":
            members = tuple(value.split())
        elif word in found and CHECKS[word](value):
            found[word].append(value)
        else:
            raise ModuleError(f"{host.name} reports {line[:80]!r}")
    if not (found["user"] and found["port"] and found["key"]):
        raise ModuleError(f"{host.name} does not report its user, its port and the keys of its sshd")
    keys = tuple(dict.fromkeys((kind, key) for kind, key in map(str.split, found["key"])))
    preferred = tuple(key for key in keys if key[0] == PREFERRED_TYPE)
    return Machine(
        user=found["user"][0],
        port=int(found["port"][0]),
        names=tuple(name for name in dict.fromkeys(found["name"]) if name.split(".")[0] != "localhost"),
        addresses=tuple(dict.fromkeys(found["address"])),
        keys=preferred or keys,
        setup="".join(found["setup"][:1]),
        members=members,
    )


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_multicast or "%" in text)


def _is_key(text: str) -> bool:
    kind, _, key = text.partition(" ")
    try:
        return bool(KEY_TYPE.fullmatch(kind)) and bool(base64.b64decode(key, validate=True))
    except ValueError:
        return False


CHECKS: Mapping[str, Callable[[str], bool]] = {
    "user": lambda value: bool(USER_NAME.fullmatch(value)),
    "port": lambda value: value.isdecimal() and 0 < int(value) < 1 << 16,
    "name": lambda value: bool(HOST_NAME.fullmatch(value)),
    "address": _is_address,
    "key": _is_key,
    "setup": lambda value: bool(KEY_ID.fullmatch(value)),
}

# ---- files of OpenSSH


def known_hosts(machines: Sequence[Machine]) -> str:
    """Return the keys of all machines by names and addresses, as ``known_hosts`` has them."""
    lines: dict[str, None] = {}
    for machine in machines:
        words = (*machine.names, *machine.addresses)
        shown = words if machine.port == SSH_PORT else [f"[{word}]:{machine.port}" for word in words]
        lines.update({f"{','.join(shown)} {kind} {key}\n": None for kind, key in machine.keys})
    return "".join(lines)


def authorized_keys(machines: Sequence[Machine], public: str, comment: str) -> str:
    """Return lines that let in the holders of a key from the machines' addresses, and from nowhere else."""
    addresses = list(dict.fromkeys(address for machine in machines for address in machine.addresses))
    parts = [addresses[i : i + FROM_ADDRESSES] for i in range(0, len(addresses), FROM_ADDRESSES)]
    return "".join(f'from="{",".join(part)}" {public} {comment}\n' for part in parts)


def config_block(machines: Sequence[Machine], cluster: str, key: str) -> str:
    """Return the part of ssh_config for these machines.

    IdentitiesOnly stays as the user has it: with ``yes``, keys of a forwarded agent would no longer be tried.
    key: the name of the private key below ~/.ssh
    """
    shown = re.sub(r"[^\x20-\x7e]", "?", cluster)
    lines = [f"# Made by mesh for the cluster {shown}; mesh setup --undo removes it."]
    has_users = len({machine.user for machine in machines}) > 1
    for machine in dict.fromkeys(machines):
        if machine.names:
            lines += [f"Host {' '.join(machine.names)}", f"    HostName {machine.main}"]
        own = [f"    Port {machine.port}"] if machine.port != SSH_PORT else []
        own += [f"    User {machine.user}"] if has_users else []
        if own:
            lines += [f"Host {' '.join((*machine.names, *machine.addresses))}", *own]
    for words in _lines_of_names(machines):
        lines += [
            f"Host {words}",
            f"    IdentityFile ~/.ssh/{key}",
            DEFAULT_IDENTITIES,
            f"    UserKnownHostsFile ~/.ssh/{key}.known_hosts",
            "    StrictHostKeyChecking yes",
            "    UpdateHostKeys no",
        ]
    return "".join(f"{line}\n" for line in lines)


def _lines_of_names(machines: Sequence[Machine]) -> Iterator[str]:
    """Yield all names and addresses, as many as fit in one line of ssh_config."""
    line = ""
    for word in dict.fromkeys(word for machine in machines for word in (*machine.names, *machine.addresses)):
        if len(line) + len(word) > LINE_CHARACTERS:
            yield line
            line = ""
        line = f"{line} {word}".lstrip()
    if line:
        yield line
