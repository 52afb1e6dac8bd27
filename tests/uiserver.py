"""A real `mesh ui` with a plain HTTP client, for tests of its answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.conftest import PATIENCE, Home


class Served:
    """A server that runs, and its token."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, address
        self.base, _, self.token = address.partition("#token=")
        self.port = urlsplit(self.base).port or 0

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of an answer below /api/; a header with the value "" is left out."""
        status, _, data = self.fetch(f"/api/{path}", method=method, body=body, **headers)
        return status, json.loads(data)

    def get(self, path: str) -> Any:
        """Return the JSON of an answer that is no error."""
        status, found = self.ask(path)
        assert status == 200, found
        return found

    def fetch(
        self, path: str, *, method: str = "GET", body: str = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(self._begin(path, method, body, headers)) as connection:
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    @contextlib.contextmanager
    def stream(self, path: str, last: str = "") -> Iterator[Iterator[tuple[str, str, Any]]]:
        """Yield the events of a stream: id, name and data of each."""
        headers = {"Last-Event-ID": last} if last else {}
        with contextlib.closing(self._begin(f"/api/{path}", "GET", "", headers)) as connection:
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            with answer:
                yield _events(answer)

    def begin(self, path: str) -> http.client.HTTPConnection:
        """Send a request whose answer is not read."""
        return self._begin(path, "GET", "", {})

    def _begin(self, path: str, method: str, body: str, headers: dict[str, str]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {self.token}", **given}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {**sent, "Content-Length": str(len(body))}.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders(body.encode())
        return connection


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    deadline = time.monotonic() + PATIENCE
    while line := answer.readline().decode():
        assert time.monotonic() < deadline, "the stream brings nothing that the test waits for"
        name, colon, value = line.rstrip("\n").partition(": ")
        if colon and name:
            fields[name] = value
        elif fields and line == "\n":
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


@contextlib.contextmanager
def serving(home: Home, *words: str) -> Iterator[Served]:
    """Yield a server of a user. It is ended by Ctrl-C, and leaves nothing."""
    temporary = home.path / "tmp"
    temporary.mkdir(exist_ok=True)
    home.environ["TMPDIR"] = str(temporary)
    process = home.popen("ui", "--no-browser", *words)
    assert process.stdout
    assert process.stderr
    try:
        address = process.stdout.readline().decode().strip()
        assert address, process.stderr.read().decode()
        yield Served(process, address)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err.decode()) == (0, b"", ""), err.decode()
        assert os.listdir(temporary) == []
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def redirecting_file(home: Home) -> Path:
    """Return the file that sends a browser to the server."""
    (found,) = (home.path / "tmp").glob("mesh-ui-*/mesh-ui.html")
    return found
