"""The steward, which looks after jobs."""

from __future__ import annotations

import time
from json import dumps

from mesh.cli import joboptions as j
from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.reports import age
from mesh.cli.speech import say, show
from mesh.core.errors import MeshError, UsageError

LOG_LINES = 50


@command(
    "serve",
    "Jobs",
    "[status | stop | install | uninstall | log]",
    examples=(
        ("mesh serve", "in the foreground, until Ctrl-C; the first submit starts it as well"),
        ("mesh serve status", "which process, since when, and its troubles"),
        ("mesh serve install", "a systemd user unit, for a machine that stays"),
    ),
)
def serve(given: Given) -> None:
    """Look after jobs: start them, restart them, end them."""
    from mesh.api import serving

    action, as_json = given[o.ACTION], given[j.JSON_JOBS]
    if not action:
        from mesh.api import straying

        serving.serve(straying.argv())
    elif action == "status":
        _status(as_json=as_json)
    elif action == "stop":
        pid = serving.stop_steward()
        text = f"stopped mesh serve (pid {pid}); runs go on" if pid else "mesh serve does not run"
        show([dumps({"pid": pid or None}) if as_json else text])
    elif action == "log":
        lines = given[j.LINES]
        found = serving.log_lines(LOG_LINES if lines is None else lines)
        show((dumps({"line": line}) for line in found) if as_json else found)
    elif action in ("install", "uninstall"):
        path, then = serving.install() if action == "install" else serving.uninstall()
        if as_json:
            show([dumps({"unit": str(path), "run": list(then)})])
            return
        say(f"{'wrote' if action == 'install' else 'removed'} {path}; now run:")
        show(then)
    else:
        raise UsageError(f"mesh serve: expected {', '.join(j.SERVE_ACTIONS)} or nothing, found {action!r}")


def _status(*, as_json: bool) -> None:
    """Show the steward that runs. Raises MeshError if none does."""
    from mesh.api import serving

    about = serving.about_steward()
    if about is None:
        if as_json:
            show([dumps({"pid": None})])
        raise MeshError("mesh serve does not run", hint="mesh serve, or any `mesh job submit`")
    if as_json:
        from msgspec import json

        show([json.encode(about).decode()])
        return
    since = age(time.time() - about.started)
    show(
        [
            f"pid {about.pid}, for {since}, mesh {about.version}",
            f"store {about.store}",
            f"jobs that have not ended: {about.jobs}; helper processes: {about.children}",
            *(f"trouble: {line}" for line in about.trouble),
        ]
    )
