"""Keys for the hosts of a cluster, and the local files that identities name."""

from __future__ import annotations

import re
from pathlib import Path

from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.module import Ssh
from mesh.modules.ssh import KeyPair, SshModule

JOB = "job:"
INDICES = re.compile(r"[0-9]+(-[0-9]+)?")


def ssh_module(description: Ssh, cluster: Cluster) -> SshModule:
    """Return the module with a new pair of keys and the contents of the user's identities.

    Raises UsageError for a file that cannot be read.
    """
    contents = {}
    for identity in description.identities:
        for path in filter(None, (identity.private_key, identity.public_key)):
            try:
                contents[path] = Path(path).expanduser().read_bytes()
            except OSError as error:
                raise UsageError(f"ssh: {path}: {error.strerror}") from error
    return SshModule(description, cluster=base_name(cluster), key=new_key_pair(), contents=contents)


def base_name(cluster: Cluster) -> str:
    """Return the name without a choice of hosts, because some of the hosts share the keys of all.

    >>> base_name(Cluster(name="pod:0-3,5", hosts=())), base_name(Cluster(name="tpu:abc", hosts=()))
    ('pod', 'tpu:abc')
    >>> base_name(Cluster(name="job:42", hosts=())), base_name(Cluster(name="job:42:0", hosts=()))
    ('job:42', 'job:42')
    """
    if cluster.name.startswith(JOB):
        return ":".join(cluster.name.split(":")[:2])
    name, colon, picks = cluster.name.rpartition(":")
    hosts = {host.name for host in cluster.hosts}
    chosen = all(pick in hosts or INDICES.fullmatch(pick) for pick in picks.split(","))
    return name if colon and chosen and not cluster.parts else cluster.name


def new_key_pair() -> KeyPair:
    """Make a pair of Ed25519 keys in memory."""
    # cryptography takes 50 ms to load, and a run without ssh: needs none of it.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return KeyPair(
        private=private, public=key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    )
