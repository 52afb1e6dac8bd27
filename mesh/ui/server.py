"""The server: an address on 127.0.0.1, the token of its user, and the file by which a browser gets it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from mesh.core.errors import MeshError
from mesh.ui.guard import Guard
from mesh.ui.routes import ROUTES
from mesh.ui.state import State
from mesh.ui.static import file_routes

ADDRESS = "127.0.0.1"
TOKEN_BYTES = 16
FAREWELL_S = 1  # that open streams have at the end
ENDING = (signal.SIGTERM, signal.SIGHUP)  # by which others end the server; Ctrl-C is its usual end
PAGE = '<!doctype html><meta charset="utf-8"><title>mesh ui</title><script>location.replace({address})</script>'


class Place:
    """The socket of the server, its token and its address."""

    def __init__(self, port: int) -> None:
        """port: 0 for any. Raises MeshError if it is taken."""
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((ADDRESS, port))
            self.socket.listen()
        except OSError as error:
            self.socket.close()
            raise MeshError(f"port {port} on {ADDRESS}: {error.strerror}", hint="mesh ui --port 0") from error
        self.port: int = self.socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The address of the pages without the token."""
        return f"http://{ADDRESS}:{self.port}/"

    @property
    def whole(self) -> str:
        """The address with the token, in a part that no browser sends."""
        return f"{self.address}#token={self.token}"


def make_app(place: Place, state: State) -> Guard:
    """Return the application behind its guard."""
    app = Starlette(routes=[*ROUTES, *file_routes()])
    app.state.mesh = state
    return Guard(app, token=place.token, port=place.port)


@contextlib.contextmanager
def redirecting(place: Place) -> Iterator[Path]:
    """Yield a file of this user alone that sends a browser to the pages: the command line of a browser is public."""
    with tempfile.TemporaryDirectory(prefix="mesh-ui-") as directory:
        path = Path(directory) / "mesh-ui.html"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(PAGE.format(address=f"'{html.escape(place.whole)}'"))
        yield path


def serve(place: Place, *, has_actions: bool, ready: Callable[[], object] = lambda: None) -> int:
    """Serve the pages until a signal; return the exit status: 0 after Ctrl-C, 143 or 129 after SIGTERM or SIGHUP.

    ready: is called before the first request
    """
    state = State(has_actions=has_actions)
    config = uvicorn.Config(
        make_app(place, state),
        log_config=None,
        log_level="error",  # any program of this machine may send what is no request
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=FAREWELL_S,
    )
    server = _Server(config, state)
    logging.getLogger("uvicorn.error").addFilter(_is_no_farewell)
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, server.handle_exit)
    with contextlib.suppress(KeyboardInterrupt):
        ready()
        server.run(sockets=[place.socket])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return 128 + server.ended_by if server.ended_by in ENDING else 0


def _is_no_farewell(record: logging.LogRecord) -> bool:
    """Return False for the reports on requests that are cancelled at the end: Ctrl-C is no error."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return not isinstance(error, asyncio.CancelledError) and not str(record.msg).startswith("Cancel ")


class _Server(uvicorn.Server):
    """A server that ends its children and lets go of its files."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state
        self.ended_by = 0  # the first signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ended_by = self.ended_by or sig
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._state.pumps.close()
        await self._state.children.close()
        await super().shutdown(sockets)
        self._state.views.close()
        self._state.numbers.close()
