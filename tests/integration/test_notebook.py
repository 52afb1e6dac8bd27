"""`mesh notebook`: Jupyter on a host. A small stand-in has Jupyter's command line and reads its token."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import urllib.request
from pathlib import Path

from tests.conftest import PATIENCE, Home
from tests.lab import eventually

JUPYTER = """\
#!/usr/bin/env python3
import http.server, os, sys
(port,) = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port=")]
(address,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--ip=")]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_ours = self.path.endswith("?token=" + os.environ["JUPYTER_TOKEN"])
        self.send_response(200 if is_ours else 403)
        self.end_headers()
        self.wfile.write(os.getcwd().encode())
    def log_message(self, *words):
        pass
http.server.HTTPServer((address, port), Handler).serve_forever()
"""


def content(path: Path) -> bytes:
    """Return the bytes of a file; none of one that is gone, as an agent removes some when it leaves."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_jupyter_runs_in_the_workspace_and_its_token_stands_nowhere(home: Home) -> None:
    home.files(mesh__yaml="prerun:\n  - run: export PATH=$PWD/bin:$PATH\n")
    program = home.project / "bin/jupyter-lab"
    program.parent.mkdir()
    program.write_text(JUPYTER)
    program.chmod(0o755)
    process = home.popen("notebook", "local:1")
    assert process.stderr is not None
    try:
        shown = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", shown)):
            line = process.stderr.readline().decode()
            assert line, shown
            shown += line
        token = re.findall(r"\?token=(\S+)", shown)[0]
        answers: list[str] = []

        def answers_now() -> bool:  # it is reached before it listens
            assert process.poll() is None
            address = f"{found.group()}/lab?token={token}"
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=60) as answer:
                answers.append(answer.read().decode())
            return bool(answers)

        assert eventually(answers_now, PATIENCE)
        assert "/workspaces/" in answers[0]
        assert not any(token.encode() in content(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    files = [Path(place, name) for place, _, names in os.walk(home.path) for name in names]
    assert not [path for path in files if path.is_file() and token.encode() in content(path)]


def test_without_jupyter_the_message_has_the_line_to_add(home: Home) -> None:
    home.environ["PATH"] = "/usr/bin:/bin"
    done = home.mesh("notebook", "local:1")
    assert done.status == 125
    assert "pip install --quiet jupyterlab" in done.err


def test_a_notebook_is_on_one_host(home: Home) -> None:
    done = home.mesh("notebook", "local:2")
    assert (done.status, "expected one host, found 2" in done.err) == (2, True)
