"""The API of Kubernetes: requests, watches and the websockets of ``pods/exec``."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

from mesh.backends.pods.access import EXTRA, Access, access_of
from mesh.backends.pods.access import NoContext as NoContext
from mesh.backends.pods.channel import ExecChannel
from mesh.backends.pods.objects import Change, Status, Thing, decoded
from mesh.core.cluster import PodPlace
from mesh.core.errors import MeshError, UsageError
from mesh.core.installing import extra_line

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
WEBSOCKET_STATUS = 101  # the status of HTTP that opens a websocket
OTHER_UID = "recondition"  # in the words of a server that has another object of the name
CONNECTIONS_KEPT = 16  # for requests at the same time
ROLE_HINT = "`mesh pods role` prints the Role that mesh needs"
APPLY = "application/apply-patch+yaml"  # JSON is YAML
MANAGER = "mesh"  # the field manager of what mesh applies
CONNECTION = re.compile(r"^.*?HTTPS?Connection(Pool)?( object|\([^)]*\))( at 0x\w+)?>?: ")  # in errors of urllib3
Body = Mapping[str, object]  # of a request
T = TypeVar("T")


class ApiFailed(MeshError):
    """The API server has refused a request; status is that of HTTP."""

    def __init__(self, message: str, *, status: int, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status, self.reason = status, reason


class ApiAway(MeshError):
    """The API server does not answer."""


class OtherServer(MeshError):
    """A context of kubeconfig names another API server than the one that has the pods."""


def only(uid: str) -> Body:
    """Return the body of a request that deletes an object only if it has this UID."""
    return {"preconditions": {"uid": uid}}


class Api:
    """The API server of one context, for one namespace; a context manager closes its connections."""

    def __init__(self, place: PodPlace, environ: Mapping[str, str] = os.environ) -> None:
        """Read the configuration. Raises UsageError, OtherServer, and MeshError if credentials cannot be had."""
        self._access = access = access_of(place.context, environ)
        if place.server not in ("", access.server):
            context = f"context {access.context}" if access.context else "this pod's service account"
            raise OtherServer(
                f"{context}: names the API server {access.server}, and the pods are at {place.server}",
                hint=PodPlace(context=access.context).kubectl("config view --minify"),
            )
        self._pool = _pool(access)
        self.place = PodPlace(
            context=access.context,
            namespace=place.namespace or access.namespace or "default",
            container=place.container,
            selector=place.selector,
            server=access.server,
        )
        self.server = access.server
        self._watched: BaseHTTPResponse | None = None

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    @property
    def server_fields(self) -> Mapping[str, object]:
        """The server as a kubeconfig names it, with its certificates in the text."""
        access = self._access
        found: dict[str, object] = {"server": access.server}
        if access.tls.verify_mode is ssl.CERT_NONE:
            found["insecure-skip-tls-verify"] = True
        elif access.authority:
            found["certificate-authority-data"] = base64.b64encode(access.authority).decode()
        if access.server_name:
            found["tls-server-name"] = access.server_name
        return found

    @property
    def pods(self) -> str:
        """The path of the pods of the namespace."""
        return self.path("pods")

    def path(self, kind: str, name: str = "", group: str = "") -> str:
        """Return the path of objects of the namespace. group: as "rbac.authorization.k8s.io/v1"; "": the core's"""
        base = f"/apis/{group}" if group else "/api/v1"
        return f"{base}/namespaces/{self.place.namespace}/{kind}" + f"/{name}" * bool(name)

    def get(
        self, path: str, kind: type[T], query: Mapping[str, str] | None = None, timeout: float = ANSWER_TIMEOUT_S
    ) -> T:
        """Return an object or a list. Raises ApiFailed and ApiAway."""
        until = time.monotonic() + timeout
        try:
            return self._read("GET", path, kind, query, None, timeout)
        except ApiAway:  # a connection that was kept may be dead
            left = until - time.monotonic()
            if left < timeout / 2:
                raise
            return self._read("GET", path, kind, query, None, left)

    def create(self, path: str, body: Body) -> Thing:
        """Create an object. Raises ApiFailed and ApiAway."""
        return self.post(path, body, Thing)

    def post(self, path: str, body: Body, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        """Send an object, and return the one that the server answers. Raises ApiFailed and ApiAway."""
        return self._read("POST", path, kind, query, body, ANSWER_TIMEOUT_S)

    def apply(self, path: str, body: Body, *, dry_run: bool = False, is_forced: bool = False) -> dict[str, object]:
        """Make an object, or give it these fields; return it as it is then. Raises ApiFailed and ApiAway.

        Fields that others have set stay. A field that others have set to another value is a conflict (409).
        dry_run: change nothing; is_forced: take over the fields of a conflict
        """
        query = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry_run else {})}
        query |= {"force": "true"} if is_forced else {}
        return self._read("PATCH", path, dict[str, object], query, body, ANSWER_TIMEOUT_S)

    def credentials_end(self) -> float:
        """Return when the credentials end, in seconds since the epoch; infinity where they do not show it."""
        from mesh.backends.pods.credentials import end_of_certificate, end_of_token

        token = self._access.header().get("authorization", "")
        return min(end_of_token(token), end_of_certificate(self._access.certificate))

    def delete(self, path: str, body: Body | None = None) -> None:
        """Delete an object; it is no error if there is none, or one of another UID. Raises ApiFailed and ApiAway.

        body: of the request, as ``only`` returns it
        """
        try:
            self._read("DELETE", path, Thing, None, body, ANSWER_TIMEOUT_S)
        except ApiFailed as error:
            if error.status != 404 and not (error.status == 409 and OTHER_UID in str(error)):
                raise

    def watch(self, path: str, query: Mapping[str, str], is_over: threading.Event) -> Iterator[Change]:
        """Yield each change of pods until the server ends the stream. Raises ApiFailed and ApiAway."""
        import urllib3

        response = self._call("GET", path, {**query, "watch": "1"}, None, None)
        rest, self._watched = b"", response
        try:
            if is_over.is_set():
                return
            for data in response.stream(65536, decode_content=False):
                *lines, rest = (rest + data).split(b"\n")
                yield from (decoded(line, Change) for line in lines if line)
                if is_over.is_set():
                    return
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            raise ApiAway(f"{self.server}: the watch has ended ({type(error).__name__})") from error
        finally:
            self._watched = None
            with contextlib.suppress(Exception):
                response.close()

    def end_watch(self) -> None:
        """End the watch that is open now, from any thread; urllib3 before 2.3 cannot."""
        if (end := getattr(self._watched, "shutdown", None)) is not None:
            with contextlib.suppress(Exception):
                end()

    def close(self) -> None:
        """Close the connections that are kept for the next request."""
        pools = self._pool.pools
        for pool in [pools.get(key) for key in pools.keys()]:  # noqa: SIM118 - it is no dict, and forbids iteration
            if pool is not None:
                pool.close()
        pools.clear()

    def exec(
        self, pod: str, argv: Sequence[str], timeout: float = CONNECT_TIMEOUT_S, *, tty: bool = False
    ) -> ExecChannel:
        """Start a program in a container of a pod; return its streams. Raises ApiFailed and ApiAway."""
        import websocket

        query = [("command", word) for word in argv]
        query += [("stdin", "true"), ("stdout", "true"), ("stderr", str(not tty).lower()), ("tty", str(tty).lower())]
        if self.place.container:
            query.append(("container", self.place.container))
        address = urlsplit(self.server)
        scheme = "wss" if address.scheme == "https" else "ws"
        url = f"{scheme}://{address.netloc}{address.path}{self.path('pods', pod)}/exec?{urlencode(query)}"
        own_name = {"server_hostname": self._access.server_name} if self._access.server_name else {}
        opened = websocket.WebSocket(sslopt={"context": self._access.tls, **own_name})
        headers = [f"{name}: {value}" for name, value in self._access.header().items()]
        try:
            # A redirected request would send the token elsewhere.
            opened.connect(url, header=headers, subprotocols=list(PROTOCOLS), timeout=timeout, **self._connecting())
        except websocket.WebSocketBadStatusException as error:
            opened.shutdown()
            raise self._refused(error.status_code, error.resp_body or b"") from error
        except (websocket.WebSocketException, OSError) as error:
            opened.shutdown()
            raise ApiAway(f"{self.server}: does not answer ({error})") from error
        if opened.sock is None or opened.getstatus() != WEBSOCKET_STATUS:
            opened.shutdown()
            raise ApiAway(f"{self.server}: does not open a websocket (HTTP {opened.getstatus()})")
        return ExecChannel(opened.sock, opened.getsubprotocol() or "")

    def _connecting(self) -> dict[str, object]:
        """Return how a websocket is connected: by no redirection, and by the proxy of requests or none at all."""
        proxy = urlsplit(self._access.proxy)
        if not proxy.hostname:  # a host must be named, or the library would read the environment by its own rules
            none = {"http_proxy_host": "none", "http_proxy_port": 1, "http_no_proxy": ["*"]}
            return {"redirect_limit": 0, **none}
        found: dict[str, object] = {"http_proxy_host": proxy.hostname, "proxy_type": "http", "redirect_limit": 0}
        found["http_proxy_port"] = proxy.port or (443 if proxy.scheme == "https" else 80)
        if proxy.username:
            found["http_proxy_auth"] = (unquote(proxy.username), unquote(proxy.password or ""))
        if excepted := self._access.no_proxy:
            found["http_no_proxy"] = [one.strip() for one in excepted.split(",") if one.strip()]
        return found

    def _read(
        self,
        method: str,
        path: str,
        kind: type[T],
        query: Mapping[str, str] | None,
        body: Body | None,
        timeout: float,
    ) -> T:
        import urllib3

        response = self._call(method, path, query, body, timeout)
        try:
            return decoded(response.read() or b"{}", kind)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiAway(f"{self.server}: no answer to {method} {path} ({error})") from error
        finally:
            response.release_conn()

    def _call(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Body | None, timeout: float | None
    ) -> BaseHTTPResponse:
        """Return the response of urllib3, not read yet. timeout: None for a watch, which has no end"""
        import urllib3

        headers = {"Accept": "application/json", **self._access.header()}
        if body is not None:
            headers["Content-Type"] = APPLY if method == "PATCH" else "application/json"
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        limit = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout or CONNECT_TIMEOUT_S), read=timeout)
        try:
            response: BaseHTTPResponse = self._pool.urlopen(
                method,
                url,
                body=data,
                headers=headers,
                timeout=limit,
                preload_content=False,
                redirect=False,  # it would send the token elsewhere
                retries=False,
            )
            if 200 <= response.status < 300:
                return response
            answer = response.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiAway(f"{self.server}: does not answer ({_reason(error)})") from error
        response.release_conn()
        raise self._refused(response.status, answer)

    def _refused(self, status: int, body: bytes | str) -> ApiFailed:
        """Return the error for an answer that is none of success."""
        data = body if isinstance(body, bytes) else body.encode()
        try:
            answer = decoded(data, Status)
        except ValueError:
            answer = Status(message=data.decode(errors="replace").strip())
        message, reason = answer.message or f"HTTP {status}", answer.reason
        hint = ""
        if status == 401:
            context = f" of context {self.place.context}" if getattr(self, "place", None) else ""
            message = f"{self.server}: the credentials{context} are refused (expired, or wrong)"
            hint = "log in again as your cluster wants it, then `kubectl auth can-i get pods`"
        elif status == 403 and "quota" in message and getattr(self, "place", None):
            hint = self.place.kubectl("describe resourcequota")
        elif status == 403:
            hint = ROLE_HINT
        return ApiFailed(message, status=status, reason=reason, hint=hint)


def _pool(access: Access) -> PoolManager:
    """Return what keeps connections to a server. Raises UsageError without the extra."""
    try:
        import urllib3
        import websocket  # noqa: F401  (named by the message that lacks it, before a pod is made)
    except ImportError as error:
        raise UsageError(f"pods need Kubernetes' Python client ({error})", hint=extra_line(EXTRA)) from error
    if not access.proxy or _goes_around(access):
        pool = urllib3.PoolManager(maxsize=CONNECTIONS_KEPT)
    else:
        proxy = urlsplit(access.proxy)
        own = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}" if proxy.username else None
        headers = urllib3.make_headers(proxy_basic_auth=own) if own else None
        pool = urllib3.ProxyManager(access.proxy, proxy_headers=headers, maxsize=CONNECTIONS_KEPT)
    if access.server.startswith("https:"):
        pool.connection_pool_kw["ssl_context"] = access.tls
        if access.server_name:
            pool.connection_pool_kw["server_hostname"] = access.server_name
        if not access.tls.check_hostname:
            pool.connection_pool_kw["assert_hostname"] = False
    return pool


def _goes_around(access: Access) -> bool:
    """Return True if requests to the server use no proxy."""
    from requests.utils import should_bypass_proxies  # as the official client does; its own dependency

    return bool(should_bypass_proxies(access.server, no_proxy=access.no_proxy))


def _reason(error: BaseException) -> str:
    """Return an error's text without urllib3's connection at its beginning.

    >>> _reason(OSError("<a.HTTPSConnection(host='h', port=1) at 0x1>: Failed to connect: refused"))
    'Failed to connect: refused'
    >>> _reason(OSError("HTTPSConnection(host='h', port=1): Failed to connect: refused"))
    'Failed to connect: refused'
    """
    return CONNECTION.sub("", str(error)) or type(error).__name__
