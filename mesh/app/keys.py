"""Keys for the hosts of a cluster, and the local files that identities name."""

from __future__ import annotations

from pathlib import Path

from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.module import Ssh
from mesh.modules.ssh import KeyPair, SshModule


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
    return SshModule(description, cluster=cluster.name, key=new_key_pair(), contents=contents)


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
