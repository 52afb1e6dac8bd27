"""A kubeconfig with a token or a certificate in it, as administrators hand out; read without the official client."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

# Other keys, as of plug-ins that fetch a token, are the official client's.
CLUSTER_KEYS = {
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
    "tls-server-name",
    "extensions",
}
USER_KEYS = {
    "token",
    "tokenFile",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "extensions",
}
PROXIES = ("https_proxy", "http_proxy")  # variables that the official client reads, in either case
Table = Mapping[str, object]


class Plain(Struct, frozen=True, kw_only=True):
    """A context of such a file."""

    server: str
    context: str
    namespace: str
    ca_file: str = ""
    ca_data: str = ""  # PEM
    verifies: bool = True
    server_name: str = ""
    token: str = ""
    token_file: str = ""  # of a service account, whose token is replaced now and then
    certificate: str | bytes = ""  # the path of a PEM file, or what would be in it
    key: str | bytes = ""

    def header(self) -> Mapping[str, str]:
        """Return the header that authorizes a request."""
        token = self.token
        if self.token_file:
            with contextlib.suppress(OSError):
                token = Path(self.token_file).read_text().strip()
        return {"authorization": f"Bearer {token}"} if token else {}

    def load_certificate(self, tls: ssl.SSLContext) -> bytes:
        """Have a context of TLS present the client's certificate; return that as PEM. Raises OSError and ValueError."""
        if not self.certificate:
            return b""
        pem, key = _data(self.certificate), _data(self.key)
        with tempfile.NamedTemporaryFile(prefix="mesh-") as file:  # only its owner may read it
            file.write(pem + b"\n" + key)
            file.flush()
            tls.load_cert_chain(file.name)
        return pem


def read(named: str, context: str, environ: Mapping[str, str]) -> Plain | None:
    """Return a context of a kubeconfig; None if the official client is to read it, also for all that is wrong in it.

    named: paths of files, as KUBECONFIG has them; context: "": the current one
    """
    paths = [path for path in named.split(os.pathsep) if path]
    if len(paths) != 1 or any(environ.get(name) or environ.get(name.upper()) for name in PROXIES):
        return None
    import yaml

    try:
        text = Path(paths[0]).read_bytes()
        read = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _chosen(read, context, Path(paths[0]).parent)
    except (OSError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def _chosen(read: Table, context: str, directory: Path) -> Plain | None:
    """Return a context of what a file has. Raises many errors for what is no kubeconfig."""
    name = context or str(read["current-context"])
    chosen = _named(read["contexts"], name, "context")
    cluster = _named(read["clusters"], chosen["cluster"], "cluster")
    user = _named(read["users"], chosen["user"], "user")
    if not cluster.keys() <= CLUSTER_KEYS or not user.keys() <= USER_KEYS:
        return None
    server = _text(cluster["server"]).rstrip("/")
    if not server.startswith(("http://", "https://")):
        return None
    verifies = cluster.get("insecure-skip-tls-verify", False)
    if not isinstance(verifies, bool):
        return None
    ca = _file_or_data(cluster, "certificate-authority", directory)
    certificate = _file_or_data(user, "client-certificate", directory)
    key = _file_or_data(user, "client-key", directory)
    if bool(certificate) != bool(key):
        return None
    token_file = str(directory / _text(user["tokenFile"])) if user.get("tokenFile") else ""
    if token_file and user.get("token"):
        return None
    found = Plain(
        server=server,
        context=name,
        namespace=_text(chosen.get("namespace", "")),
        ca_file=ca if isinstance(ca, str) else "",
        ca_data=ca.decode() if isinstance(ca, bytes) else "",
        verifies=not verifies,
        server_name=_text(cluster.get("tls-server-name", "")),
        token=_text(user.get("token", "")),
        token_file=token_file,
        certificate=certificate,
        key=key,
    )
    (
        _data(certificate),
        _data(key),
        _data(ca),
        _data(token_file),
    )  # the official client has the words for files that are not there
    return found


def _named(listed: object, name: object, kind: str) -> Table:
    """Return the value of an entry of a list, which must be the only one of its name. Raises many errors."""
    assert_list = listed if isinstance(listed, list) else []
    (found,) = [one for one in assert_list if one["name"] == name]
    value = found[kind]
    if not isinstance(value, dict):
        raise TypeError(kind)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _file_or_data(table: Table, key: str, directory: Path) -> str | bytes:
    """Return the path or the bytes of a certificate or a key; "": there is none. Raises ValueError and TypeError."""
    if data := table.get(f"{key}-data"):
        return base64.b64decode(_text(data), validate=True)
    file = _text(table.get(key) or "")
    return str(directory / file) if file else ""


def _data(value: str | bytes) -> bytes:
    """Return the bytes of a certificate or a key. Raises OSError."""
    return value if isinstance(value, bytes) else Path(value).read_bytes() if value else b""
