"""Notifications at the end of a run, by mesh.yaml."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.conftest import Home
from tests.integration.test_attach import left

SAVE = "notify: [{%scommand: [sh, -c, 'echo \"$@\" > said', sh, '{state}', '{exit_code}', '{cluster}', '{verdict}']}]\n"


class Hook(HTTPServer):
    """A webhook on this machine that keeps what it gets."""

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.status = status
        self.got: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/very-secret"

    def told(self) -> list[str]:
        """Return the texts, with each duration as that of a fast machine."""
        assert all(one.keys() == {"text"} for one in self.got)
        return [re.sub(r"after \d:\d\d$", "after 0:00", one["text"]) for one in self.got]


class _Post(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def hook(request: pytest.FixtureRequest) -> Iterator[Hook]:
    server = Hook(getattr(request, "param", 200))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_command_gets_state_and_verdict(home: Home) -> None:
    home.files(mesh__yaml=SAVE % "")
    assert home.mesh("run", "local:1", "true").status == 0
    assert (home.project / "said").read_text() == "done 0 local:1 \n"
    assert home.mesh("run", "local:1", "exit 3").status == 3
    assert "failed 3 local:1 rank 0 on local-0 failed first: exit 3" in (home.project / "said").read_text()


def test_a_notification_comes_only_for_the_ends_that_it_names(home: Home) -> None:
    home.files(mesh__yaml=SAVE % "on: [failed, held], ")
    assert home.mesh("run", "local:1", "true").status == 0
    assert not (home.project / "said").exists()
    assert home.mesh("exec", "local:1", "false").status == 1
    assert not (home.project / "said").exists()
    assert home.mesh("run", "local:1", "false").status == 1
    assert (home.project / "said").exists()


def test_a_webhook_gets_one_line_with_the_duration(home: Home, hook: Hook) -> None:
    home.files(mesh__yaml="notify: [{url_env: HOOK, on: [end]}]\n")
    home.environ["HOOK"] = hook.url
    done = home.mesh("run", "local:1", "echo", "hello")
    assert done.status == 0, done.err
    assert hook.told() == ["mesh: echo hello on local:1: done after 0:00"]


def test_a_notification_has_the_name_of_the_run(home: Home, hook: Hook) -> None:
    save = "{command: [sh, -c, 'echo \"$@\" > said', sh, '{name}', '{job}']}"
    home.files(mesh__yaml=f"notify: [{{url_env: HOOK}}, {save}]\n")
    home.environ["HOOK"] = hook.url
    assert home.mesh("run", "--name", "lr3", "local:1", "true").status == 0
    assert hook.told() == ["mesh: lr3: true on local:1: done after 0:00"]
    assert (home.project / "said").read_text() == "lr3 lr3\n"


@pytest.mark.parametrize("hook", [500], indirect=True)
def test_a_notification_that_fails_is_a_warning_without_the_address(home: Home, hook: Hook) -> None:
    words = (
        "[{url_env: HOOK}, {url_env: NONE}, {command: [no-such-program]}, {command: [sh, -c, 'echo bad >&2; exit 5']}]"
    )
    home.files(mesh__yaml=f"notify: {words}\n")
    home.environ["HOOK"] = hook.url
    done = home.mesh("run", "local:1", "exit 7")
    assert done.status == 7
    assert "==> notify: HOOK: the server answered with status 500" in done.err
    assert "==> notify: NONE: the variable is not set" in done.err
    assert "==> notify: no-such-program: No such file or directory" in done.err
    assert "==> notify: sh: exit 5 (bad)" in done.err
    assert "very-secret" not in done.err


def test_bell_and_desktop_are_for_terminals(home: Home) -> None:
    home.files(mesh__yaml="notify: [bell, desktop]\n")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "VTE_VERSION"):
        home.environ.pop(name, None)
    done = home.mesh("run", "local:1", "true")
    assert done.status == 0
    assert "\a" not in done.err
    assert "notify" not in done.err
    with home.terminal("run", "local:1", "true") as terminal:
        assert terminal.end() == 0
        assert re.search(rb"\x1b\]9;mesh: true on local:1: done after \d:\d\d\x1b\\", terminal.shown)
        assert b"\a" in terminal.shown


def test_a_secret_is_masked_in_a_notification(home: Home) -> None:
    home.files(mesh__yaml="secret: [TOKEN]\n" + SAVE % "")
    home.environ["TOKEN"] = "0123456789abcdef"
    assert home.mesh("run", "local:1", "echo KeyError: $TOKEN >&2; exit 2; : 0123456789abcdef").status == 2
    said = (home.project / "said").read_text()
    assert "failed 2" in said
    assert "0123456789abcdef" not in said


def test_a_detached_run_notifies_the_client_that_sees_its_end(home: Home) -> None:
    home.files(mesh__yaml=SAVE % "")
    run = left(home, "local:1", f"until [ -e {home.project}/enough ]; do sleep 0.05; done")
    assert not (home.project / "said").exists()
    (home.project / "enough").touch()
    assert home.mesh("attach", run).status == 0
    assert (home.project / "said").read_text() == "done 0 local:1 \n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[ding]", "notify[0]: expected bell or desktop"),
        ("[{on: [end]}]", "notify[0]: needs one of command: and url_env:"),
        ("[{command: [a, '{stat}']}]", "notify[0].command: {stat}: expected one of job, run,"),
        ("[{url_env: X, on: [never]}]", "notify[0].on[0]: expected end, done, failed, held, preempted"),
    ],
)
def test_mistakes_in_notify_are_named(home: Home, text: str, problem: str) -> None:
    home.files(mesh__yaml=f"notify: {text}\n")
    done = home.mesh("run", "local:1", "true")
    assert done.status == 2
    assert problem in done.err
