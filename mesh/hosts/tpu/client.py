"""Client of the Cloud TPU API, on Google's own."""

from __future__ import annotations

import shutil
import subprocess
import time
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from mesh.config.tpu import TpuName
from mesh.core.errors import MeshError
from mesh.core.installing import extra_line
from mesh.hosts.tpu.gcloud import Zone, directory, is_google
from mesh.hosts.tpu.nodes import TpuNode, Worker, matching

ASK_LIMIT_S = 20.0  # for all requests of one question
RETRY_LIMIT_S = 3.0  # for more tries while the service answers that it is unavailable
PAGE_NODES = 500  # a zone may have more
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
LOG_IN = "gcloud auth application-default login"
Api = Any  # Google's client, its types and its messages, which have types in part only


class NotAsked(MeshError):
    """Raised if the API gives no answer, so that there may be hosts or none."""


def ask(tpu: TpuName, zone: Zone, environ: Mapping[str, str], deadline: float = ASK_LIMIT_S) -> tuple[TpuNode, ...]:
    """Return the nodes of that name, in order. Takes a second, and as many as deadline at most.

    Raises NotAsked if the API does not answer, or not all of it, and MeshError if there is no such TPU.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of Pythons that Google supports no more
            from google.api_core.exceptions import GoogleAPIError
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import tpu_v2
            from google.protobuf.json_format import ParseError
            from requests.exceptions import RequestException  # of Google's client where it speaks REST
    except ImportError as error:
        raise needs_client() from error
    try:
        client = tpu_v2.TpuClient(transport=_transport(tpu_v2, zone, environ))
        with client:
            return ask_client(client, tpu, zone, time.monotonic() + deadline)
    except (GoogleAPIError, GoogleAuthError, RequestException, ParseError) as error:
        raise not_asked(error, zone, deadline) from error


def needs_client() -> MeshError:
    """Return the error of a machine without Google's client."""
    return MeshError("TPUs of Google Cloud need Google's client", hint=extra_line("tpu"))


def ask_client(client: Api, tpu: TpuName, zone: Zone, until: float) -> tuple[TpuNode, ...]:
    """Ask through a TpuClient of any transport. until: monotonic. Raises as ``ask``, and what the client raises."""
    nodes = matching(_all_nodes(client, zone, until), tpu, zone)
    return tuple(with_instances(client, node, zone, until) for node in nodes) if tpu.iap else nodes


def _transport(tpu_v2: Api, zone: Zone, environ: Mapping[str, str]) -> Api:
    """Return REST for an http:// endpoint, as gcloud speaks it, without credentials; else gRPC."""
    place = urlsplit(zone.endpoint)
    if place.scheme == "http":
        from google.auth.credentials import AnonymousCredentials

        return tpu_v2.TpuClient.get_transport_class("rest")(host=zone.endpoint, credentials=AnonymousCredentials())
    kind = tpu_v2.TpuClient.get_transport_class("grpc")
    host = place.netloc or zone.endpoint or tpu_v2.TpuClient.DEFAULT_ENDPOINT
    return kind(host=host, credentials=credentials(environ))


def login_problem(zone: Zone, environ: Mapping[str, str]) -> str:
    """Return why a request from this machine would have no client or no credentials, with the next step; else ""."""
    try:
        is_there = find_spec("google.cloud.tpu_v2") is not None
    except ModuleNotFoundError:  # of a package above it
        is_there = False
    if not is_there:
        error = needs_client()
        return f"{error}: {error.hint}"
    if urlsplit(zone.endpoint).scheme == "http":  # which needs none
        return ""
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials(environ)
    except MeshError as problem:
        return f"{problem}: {problem.hint}"
    except GoogleAuthError as problem:
        return f"{problem}: {LOG_IN}"
    return ""


def credentials(environ: Mapping[str, str]) -> Api:
    """Return application default credentials; else gcloud's own, which is all that those who only use that have."""
    import google.auth
    from google.auth import compute_engine
    from google.oauth2.credentials import Credentials

    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    path = Path(named) if named else directory(environ) / "application_default_credentials.json"
    if named or path.exists():
        try:
            return google.auth.load_credentials_from_file(str(path), scopes=SCOPES)[0]
        except OSError as error:
            raise NotAsked(f"cannot read {path}: {error.strerror or error}", hint=LOG_IN) from error
    if is_google():
        return compute_engine.Credentials()
    return Credentials(_token_of_gcloud())


def _token_of_gcloud() -> str:
    if not shutil.which("gcloud"):
        raise NotAsked("there are no credentials for Google Cloud", hint=LOG_IN)
    try:
        done = subprocess.run(
            ["gcloud", "auth", "print-access-token", "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAsked(f"gcloud has no credentials for us: {error}", hint=LOG_IN) from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise NotAsked(f"there are no credentials for Google Cloud: {said}", hint=f"gcloud auth login, or {LOG_IN}")
    return done.stdout.strip()


def _all_nodes(client: Api, zone: Zone, until: float) -> list[TpuNode]:
    """Return the nodes of every page of the zone. Raises NotAsked where the answer has holes."""
    from google.cloud import tpu_v2

    parent = f"projects/{zone.project}/locations/{zone.zone}"
    request = tpu_v2.ListNodesRequest(parent=parent, page_size=PAGE_NODES)
    found: list[TpuNode] = []
    while True:
        page = next(client.list_nodes(request, **patience(until)).pages)
        if page.unreachable:
            told = f"the TPU API cannot see all of {zone} now: {', '.join(page.unreachable)}"
            raise NotAsked(told, hint="try again in a moment")
        # Nodes of the older API are no machines to log in to.
        found += [node_of(node) for node in page.nodes if not name_of(node.api_version).startswith("V1")]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def patience(until: float) -> dict[str, Api]:
    """Return the time limit of one call, and the rule for more tries while the service is unavailable."""
    from google.api_core.exceptions import DeadlineExceeded, ServiceUnavailable
    from google.api_core.retry import Retry, if_exception_type
    from requests import exceptions as rest

    left = until - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("its pages took too long")
    again = Retry(
        if_exception_type(ServiceUnavailable, rest.ConnectionError),
        initial=0.2,
        maximum=2.0,
        timeout=min(left, RETRY_LIMIT_S),
    )
    return {"timeout": left, "retry": again}


def node_of(node: Api) -> TpuNode:
    """Return a node of the API's answer; its machines only if there is an address of each."""
    networks = max(1, len(node.network_configs))  # the first endpoint of each machine is the one to log in by
    name, endpoints = node.name.rpartition("/")[2], node.network_endpoints
    first = endpoints[::networks]
    # Without the address of one, the numbers of all others would be wrong.
    has_hole = len(endpoints) % networks or not all(endpoint.ip_address for endpoint in first)
    return TpuNode(
        name=name,
        state=name_of(node.state),
        workers=tuple(
            Worker(internal=endpoint.ip_address, external=endpoint.access_config.external_ip)
            for endpoint in ([] if has_hole else first)
        ),
        id=str(node.id or ""),
        os_login=node.metadata.get("enable-oslogin", "").upper() == "TRUE",
    )


def name_of(value: Api) -> str:
    """Return the name of an enumeration's value; a number that is newer than the client stays one."""
    return str(getattr(value, "name", value))


def with_instances(client: Api, node: TpuNode, zone: Zone, until: float) -> TpuNode:
    """Return the node with its machines' own names, by which tunnels reach them. Raises NotAsked."""
    place = f"projects/{zone.project}/locations/{zone.zone}/nodes/{node.name}"
    answer = client.get_guest_attributes({"name": place}, **patience(until))
    names = [
        next((item.value for item in told.query_value.items if item.key == "hostname"), "")
        for told in answer.guest_attributes
    ]
    if len(names) != len(node.workers) or not all(names):
        told = f"TPU {node.name} lists no names of its machines, which iap: true needs"
        raise NotAsked(told, hint="the policy compute.disableGuestAttributesAccess may forbid it")
    workers = (replace(worker, instance=name) for worker, name in zip(node.workers, names, strict=True))
    return replace(node, workers=tuple(workers))


def not_asked(error: Exception, zone: Zone, deadline: float) -> NotAsked:
    """Return the error for a failed request, with a hint."""
    from google.api_core import exceptions as api
    from google.auth.exceptions import GoogleAuthError
    from requests import exceptions as rest

    if isinstance(error, api.RetryError) and error.cause:
        error = error.cause
    said = " ".join(str(getattr(error, "message", "") or error).split())[:300]
    listing = f"gcloud compute tpus locations list --project {zone.project}"
    again = "try again in a moment; https://status.cloud.google.com lists outages"
    for kinds, what, hint in (
        ((GoogleAuthError, api.Unauthenticated), "does not take our credentials", LOG_IN),
        (api.Forbidden, "refuses", "it takes roles/tpu.viewer, and `gcloud services enable tpu.googleapis.com`"),
        (api.TooManyRequests, "has had enough of this project's requests (quota)", "try again in a minute"),
        ((api.NotFound, api.BadRequest), "has no such place", f"is it right? {listing}"),
        ((api.GatewayTimeout, rest.Timeout), f"did not answer within {deadline:g} s", again),
        ((api.ServiceUnavailable, rest.ConnectionError), "cannot be reached", again),
    ):
        if isinstance(error, kinds):
            return NotAsked(f"the TPU API {what}, asked about {zone}: {said}", hint=hint)
    return NotAsked(f"the TPU API failed, asked about {zone}: {said}", hint=again)
