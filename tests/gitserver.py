"""A server of git repositories over HTTP, as a forge has one; for a user with a password, if that is wanted."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

USER = "ana"


class GitServer:
    """The server; a context manager. ``url`` is that of the repository ``code.git``."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", password: str = "") -> None:
        """password: of USER; "": everybody may read"""
        self.directory = directory
        self._server = _Server((address, 0), _Handler)
        self._server.root = directory
        self._server.wanted = f"Basic {base64.b64encode(f'{USER}:{password}'.encode()).decode()}" if password else ""
        self._server.seen = self.seen = []
        self.url = f"http://{address}:{self._server.server_address[1]}/code.git"

    seen: list[str]  # the header with the credentials, or "", of each request

    def commit(self, files: dict[str, str]) -> tuple[str, str]:
        """Make a commit of these files alone; return its id and that of its tree."""
        work = self.directory / "work"
        if not work.exists():
            git(self.directory, "init", "-q", "-b", "main", "work")
            git(self.directory, "init", "-q", "--bare", "-b", "main", "code.git")
        for path in [path for path in work.iterdir() if path.name != ".git"]:
            path.unlink()
        for name, text in files.items():
            (work / name).write_text(text)
        git(work, "add", "-A")
        git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "change")
        git(work, "push", "-q", str(self.directory / "code.git"), "main")
        return git(work, "rev-parse", "HEAD"), git(work, "rev-parse", "HEAD^{tree}")

    def __enter__(self) -> GitServer:
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.05), name="git-server")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def git(directory: Path, *words: str) -> str:
    """Run git in a directory; return what it prints."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *words], cwd=directory, env=environ, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class _Server(ThreadingHTTPServer):
    root: Path
    wanted: str
    seen: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        given = self.headers.get("Authorization", "")
        self.server.seen.append(given)
        if self.server.wanted and given != self.server.wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        place = urlsplit(self.path)
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": place.path,
            "QUERY_STRING": place.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        done = subprocess.run(["git", "http-backend"], input=body, env=environ, capture_output=True)
        head, _, data = done.stdout.partition(b"\r\n\r\n")
        fields = [line.partition(": ")[::2] for line in head.decode().split("\r\n") if line]
        self.send_response(next((int(value.split()[0]) for name, value in fields if name == "Status"), 200))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
