"""The guard of the server: no other page, host or user gets an answer with data."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
# The pages load nothing from elsewhere, run no inline script and stand in no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Passes requests on that name this server and, below /api/, carry its token.

    Another Host is refused because of DNS that is bound anew, another Origin because pages of other sites may send
    requests. There is no cookie, so that a browser adds nothing to such a request by itself.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._bearer = app, f"Bearer {token}".encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, reason = self._refusal(scope)
        if status:
            await _refuse(send, status, reason)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        """Return a status and the reason; (0, ""): the request may pass."""
        found: list[tuple[bytes, bytes]] = scope["headers"]
        headers: Mapping[bytes, bytes] = dict(found)
        if [value for name, value in found if name == b"host"] not in [[host] for host in self._hosts]:
            return 403, "this name is not the server's"
        if any(name == b"origin" and value not in self._origins for name, value in found):
            return 403, "pages of other sites get no answer"
        path: str = scope["path"]
        if path.startswith(API):
            if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
                return 403, "pages of other sites get no answer"
            if not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
                return 401, "the token is missing or wrong: open the address that `mesh ui` has printed"
        elif scope["method"] not in ("GET", "HEAD"):
            return 405, "pages are only read"
        return 0, ""


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
