"""Address of an API server and credentials for it.

The official client reads any kubeconfig, but its import takes longer than a command on eight pods. So a file with
nothing but a token or a certificate in it is read here (``plain``); all else goes to the official client.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from mesh.backends.pods import plain
from mesh.core.errors import UsageError
from mesh.core.installing import extra_line

EXTRA = "kubernetes"  # of mesh, with the client
IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_TOKEN: Mapping[str, str] = {}


class NoContext(UsageError):
    """The kubeconfig has no context of a name."""


class Access(Struct, frozen=True, kw_only=True):
    """An API server, as a context of kubeconfig or a pod's service account names it."""

    server: str  # without a slash at its end
    context: str  # "": there is none, as in a pod
    namespace: str  # "": the server's default
    tls: ssl.SSLContext
    server_name: str = ""  # that the server's certificate has; "": its host's
    proxy: str = ""  # a URL; "": none
    no_proxy: str = ""
    certificate: bytes = b""  # the client's, as PEM; b"": it has none
    authority: bytes = b""  # that has signed the server's certificate, as PEM; b"": one that this machine trusts
    header: Callable[[], Mapping[str, str]] = lambda: NO_TOKEN  # that authorizes a request; a token may be refreshed


def tls_of(*, ca_file: str = "", ca_data: str = "", verifies: bool = True) -> ssl.SSLContext:
    """Return a context for connections to a server. Raises OSError and ValueError for certificates that are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file or ca_data:
        context.load_verify_locations(cafile=ca_file or None, cadata=ca_data or None)
    else:
        context.load_default_certs()
    return context


def access_of(context: str, environ: Mapping[str, str]) -> Access:
    """Return the access that a context names. context: "": kubeconfig's current one. Raises UsageError, MeshError."""
    named = environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "~"), ".kube/config").expanduser())
    found = plain.read(named, context, os.environ)
    if found is not None:
        with contextlib.suppress(OSError, ValueError):  # the official client has the words for what is wrong
            return _of_plain(found)
    return _official(named, context)


def _of_plain(found: plain.Plain) -> Access:
    """Return the access of a context. Raises OSError and ValueError for certificates that are none."""
    tls = tls_of(ca_file=found.ca_file, ca_data=found.ca_data, verifies=found.verifies)
    certificate = found.load_certificate(tls)
    _allow_unverified(tls)
    return Access(
        server=found.server,
        context=found.context,
        namespace=found.namespace,
        tls=tls,
        server_name=found.server_name,
        certificate=certificate,
        authority=Path(found.ca_file).read_bytes() if found.ca_file else found.ca_data.encode(),
        header=found.header,
    )


def _official(named: str, context: str) -> Access:
    """Return what the official client reads. Raises UsageError."""
    try:
        import kubernetes.client
        import yaml
        from kubernetes import config
    except ImportError as error:
        raise UsageError(f"pods need Kubernetes' Python client ({error})", hint=extra_line(EXTRA)) from error
    configuration = kubernetes.client.Configuration()
    paths = [path for path in named.split(os.pathsep) if path]
    if not any(Path(path).exists() for path in paths):
        if (IN_POD / "token").exists() and not context:
            config.load_incluster_config(client_configuration=configuration)
            return _access(configuration, "", (IN_POD / "namespace").read_text().strip())
        raise UsageError(
            f"there is no kubeconfig ({named})", hint="export KUBECONFIG=FILE  # or copy the file to ~/.kube/config"
        )
    try:
        contexts, current = config.list_kube_config_contexts(config_file=named)
        names = [str(one["name"]) for one in contexts]
        chosen = context or str(current["name"])
        if chosen not in names:
            raise NoContext(
                f"{named}: there is no context {chosen!r}",
                hint=f"it has {', '.join(names)}; kubectl config get-contexts",
            )
        config.load_kube_config(config_file=named, context=chosen, client_configuration=configuration)
        found = next(one for one in contexts if one["name"] == chosen)
        return _access(configuration, chosen, str(found["context"].get("namespace") or ""))
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, LookupError, TypeError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{named}: is no kubeconfig ({words})", hint="kubectl config view --minify") from error


def _access(configuration: object, context: str, namespace: str) -> Access:
    """Return the access of a Configuration of the official client. Raises OSError for certificates that are none."""

    def setting(name: str) -> str:
        return str(getattr(configuration, name, None) or "")

    def header() -> Mapping[str, str]:
        settings = configuration.auth_settings()  # type: ignore[attr-defined]  # refreshes the token where that is due
        found = settings.get("BearerToken")
        return {str(found["key"]): str(found["value"])} if found and found["value"] else NO_TOKEN

    verifies = bool(getattr(configuration, "verify_ssl", True))
    tls = tls_of(ca_file=setting("ssl_ca_cert"), verifies=verifies)
    if getattr(configuration, "assert_hostname", None) is False:
        tls.check_hostname = False
    certificate = b""
    if file := setting("cert_file"):
        tls.load_cert_chain(file, setting("key_file") or None)
        certificate = Path(file).read_bytes()
    _allow_unverified(tls)
    return Access(
        server=setting("host").rstrip("/"),
        context=context,
        namespace=namespace,
        tls=tls,
        server_name=setting("tls_server_name"),
        proxy=setting("proxy"),
        no_proxy=setting("no_proxy"),
        certificate=certificate,
        authority=Path(authority).read_bytes() if (authority := setting("ssl_ca_cert")) else b"",
        header=header,
    )


def _allow_unverified(tls: ssl.SSLContext) -> None:
    """Silence a warning that would come with every request, as the user has chosen not to verify the server."""
    if tls.verify_mode is ssl.CERT_NONE:
        from urllib3 import disable_warnings
        from urllib3.exceptions import InsecureRequestWarning

        disable_warnings(InsecureRequestWarning)
