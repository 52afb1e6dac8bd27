"""Runs to look at: pages of a browser, a run as one HTML file, and the differences of two runs."""

from __future__ import annotations

import contextlib
import os
import sys
from io import TextIOWrapper
from json import dumps
from typing import TYPE_CHECKING

from mesh.cli import options as o
from mesh.cli import pageoptions as p
from mesh.cli.command import Takes, command
from mesh.cli.options import Given
from mesh.cli.speech import say, show
from mesh.core.errors import UsageError
from mesh.core.installing import extra_line
from mesh.core.naming import LAST

if TYPE_CHECKING:
    from pathlib import Path

    from mesh.ui.server import Place

GROUP = "Runs"
PORT_MAX = 65535
OPENERS = {"darwin": ("open",), "linux": ("xdg-open",)}


@command(
    "ui",
    GROUP,
    examples=(
        ("mesh ui", "runs, jobs and hosts in your browser, on this machine alone"),
        ("mesh ui --port 8765 --no-browser", "on a login machine: it prints the line for ssh -L"),
        ("mesh ui --actions", "with buttons that stop, signal and detach"),
    ),
)
def ui(given: Given) -> int:
    """Look at runs, jobs and hosts in a browser."""
    try:
        from mesh.ui import server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise UsageError(f"mesh ui: {error.name} is not installed", hint=extra_line("ui")) from error
    port = given[p.UI_PORT] or 0
    if port > PORT_MAX:
        raise UsageError(f"--port: expected a port (0 to {PORT_MAX}), found {port}")
    place = server.Place(port)
    with contextlib.closing(place.socket), server.redirecting(place) as file:
        status = server.serve(place, has_actions=given[p.ACTIONS], ready=lambda: _open(place, file, given))
    _leave(status)
    return status


def _leave(status: int) -> None:
    """End this process at once if a thread still waits for a file, as on a network mount that gives no answer."""
    import threading

    own = threading.current_thread()
    if any(one is not own and one.is_alive() and not one.daemon for one in threading.enumerate()):
        os._exit(status)  # the threads only read


def _open(place: Place, file: Path, given: Given) -> None:
    """Print the address, and open a browser unless there is none to see."""
    import socket
    import subprocess

    show([place.whole])
    is_remote = "SSH_CONNECTION" in os.environ
    if is_remote:
        say(f"from your own machine: ssh -L {place.port}:127.0.0.1:{place.port} {socket.gethostname()}")
    opener = OPENERS.get(sys.platform)
    has_screen = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if given[p.NO_BROWSER] or is_remote or opener is None or not has_screen:
        return
    with contextlib.suppress(OSError):  # no such program: the address is printed
        quiet = subprocess.DEVNULL
        subprocess.Popen([*opener, str(file)], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


@command(
    "report",
    GROUP,
    "[RUN]",
    examples=(("mesh report last > run.html", "a file to send: verdict, output, stacks, timeline"),),
)
def report(given: Given) -> None:
    """Write a run as one HTML file that opens offline."""
    from mesh.api import reporting

    run = given[o.RUN] or LAST
    reporting.recorded(run)  # nothing is printed for a run that is not there
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the file declares, whatever the locale is
    show("".join(reporting.report(run)).rstrip("\n").split("\n"))


@command(
    "diff",
    GROUP,
    "RUN RUN",
    takes=Takes.PATHS,
    examples=(("mesh diff lr3 lr4", "arguments, environment, git, tree, packages, hosts, end"),),
)
def diff(given: Given) -> int:
    """Show in which facts two runs differ; status 1 if there are any."""
    from msgspec.structs import asdict

    from mesh.api import reporting
    from mesh.pages.differences import lines

    if len(given.words) != 2:
        raise UsageError("expected two runs", hint="mesh diff RUN RUN")
    left, right, found = reporting.diff(given.words[0], given.words[1])
    if given[p.JSON_DIFF]:
        show([dumps({"runs": [left.run, right.run], "differences": [asdict(one) for one in found]})])
    else:
        show(lines(found, left.run, right.run) if found else [f"{left.run} and {right.run} do not differ"])
    return 1 if found else 0
