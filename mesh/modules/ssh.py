"""Keys by which the hosts of a cluster reach each other over SSH, and keys of the user that hosts get."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mesh.core.cluster import Host
from mesh.core.module import HostFile, Identity, ModuleError, Ssh, Step
from mesh.modules.ssh_hosts import Machine, authorized_keys, config_block, known_hosts, machines_of
from mesh.modules.ssh_texts import COMMON, HAVE_IDENTITIES, KEYS, KEYS_IN_PLACE, NO_SERVER, REPORT, SET_IDENTITIES, UNDO

STATE = "~/.mesh/ssh"  # the module's own directory in a home
ID_CHARACTERS = 8  # of the hash of a public key
LABEL_CHARACTERS = 40  # of a cluster's name that is part of the names of files
STEP_TIMEOUT_S = 300.0
PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o644
IDENTITY_FILE = re.compile(r'^[ \t]*IdentityFile[ \t=]+"?([^"\n]+?)"?[ \t]*$', re.IGNORECASE | re.MULTILINE)


class KeyPair(Struct, frozen=True, kw_only=True):
    """A new pair of keys for the hosts of a cluster."""

    private: bytes  # in OpenSSH's format, without a passphrase
    public: str  # type and key, as in authorized_keys, without a comment


class SshModule:
    """The module ``ssh:`` of mesh.yaml.

    The first round reports each host's keys and addresses, and copies the user's identities. The second round gives
    all hosts the new pair of keys, unless they have a working one for all of these hosts already.
    Raises ModuleError for an identity that cannot be copied to any host.
    """

    def __init__(self, description: Ssh, *, cluster: str, key: KeyPair, contents: Mapping[str, bytes]) -> None:
        """cluster: its name; contents: of the local files that identities name, by their paths in the description"""
        self._identities = description.identities
        self._label, self._key = label_of(cluster), key
        self._cluster, self._contents = cluster, contents
        self._copies = [copy for identity in self._identities for copy in self._copies_of(identity)]

    @property
    def name(self) -> str:
        """The word by which mesh.yaml names it."""
        return "ssh"

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        """Return a step that reports what the host is, and one that copies the identities."""
        begin = f"label={shlex.quote(self._label)}\n" + COMMON
        report = Step(
            module=self.name,
            check=begin + REPORT,
            apply=begin + NO_SERVER,
            undo=begin + UNDO,
            timeout=STEP_TIMEOUT_S,
        )
        return (report, self._identity_step(begin, hosts, node)) if self._identities else (report,)

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        """Return the steps that give all hosts the new keys; () if all share a pair that works and has these hosts."""
        machines = machines_of(hosts, [reports[0] for reports in facts])
        if _is_covered(machines):
            return ()
        key_id = hashlib.sha256(self._key.public.encode()).hexdigest()[:ID_CHARACTERS]
        comment = f"mesh-{self._label}-{key_id}"
        members = " ".join(sorted({machine.digest for machine in machines}))
        texts = {
            "key": self._key.private,
            "known_hosts": known_hosts(machines).encode(),
            "block": config_block(machines, self._cluster, comment).encode(),
            "authorized": authorized_keys(machines, self._key.public, comment).encode(),
            "setup": f"{key_id}\n{members}\n".encode(),
        }
        begin = f"label={shlex.quote(self._label)}\nkey_id={key_id}\n" + COMMON
        step = Step(
            module=self.name,
            check=begin + KEYS_IN_PLACE,
            apply=begin + KEYS,
            timeout=STEP_TIMEOUT_S,
            files=tuple(HostFile(path=f"{STATE}/{self._label}/new/{name}", data=data) for name, data in texts.items()),
        )
        return [(step,)] * len(machines)

    def _copies_of(self, identity: Identity) -> list[HostFile]:
        """Return the files of an identity as hosts get them. Raises ModuleError for a path outside of the home."""
        named = IDENTITY_FILE.findall(identity.config_entry)
        base = os.path.basename(identity.private_key)
        same = [path for path in named if os.path.basename(path) == base]
        path = (same or named or [f"~/.ssh/{base}"])[0].replace("%d/", "~/", 1)
        if not path.startswith("~/") or ".." in path.split("/") or not base:
            raise ModuleError(f"IdentityFile {path}: expected a path that begins with ~/")
        private = HostFile(path=path, data=self._contents[identity.private_key], mode=PRIVATE_MODE)
        if not identity.public_key:
            return [private]
        return [private, HostFile(path=f"{path}.pub", data=self._contents[identity.public_key], mode=PUBLIC_MODE)]

    def _identity_step(self, begin: str, hosts: Sequence[Host], node: int) -> Step:
        entries = "".join(
            f"{identity.config_entry.rstrip()}\n" for identity in self._identities if identity.config_entry
        )
        names = [os.path.basename(identity.private_key) for identity in self._identities]
        told = [f"your private key {name} is on {len(hosts)} host{'s'[: len(hosts) != 1]}" for name in names]
        lists = {
            "paths": [copy.path[2:] for copy in self._copies],
            "sums": [hashlib.sha256(copy.data).hexdigest() for copy in self._copies],
            "modes": [f"{copy.mode:o}" for copy in self._copies],
            "notes": told if node == 0 else [],
        }
        values = "".join(f"{name}=({' '.join(map(shlex.quote, words))})\n" for name, words in lists.items())
        values += f"entries={shlex.quote(entries)}\n"
        staged = f"{STATE}/{self._label}@identities/new"
        return Step(
            module=self.name,
            check=values + begin + HAVE_IDENTITIES,
            apply=values + begin + SET_IDENTITIES,
            undo=begin + UNDO,
            timeout=STEP_TIMEOUT_S,
            files=tuple(HostFile(path=f"{staged}/{i}", data=copy.data) for i, copy in enumerate(self._copies)),
        )


def label_of(cluster: str) -> str:
    """Return a cluster's name as a part of the names of files.

    >>> label_of("pod-1"), label_of("tpu:a/b")
    ('pod-1', 'tpu-a-b-522bc1d7')
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", cluster)[:LABEL_CHARACTERS]
    return safe if safe == cluster else f"{safe}-{hashlib.sha256(cluster.encode()).hexdigest()[:ID_CHARACTERS]}"


def _is_covered(machines: Sequence[Machine]) -> bool:
    """True if all machines have the same keys already, which were made for all of them as they are now."""
    digests = {machine.digest for machine in machines}
    return len({machine.setup for machine in machines}) == 1 and all(
        machine.setup and digests <= set(machine.members) for machine in machines
    )
