"""Windows that show the logs of nodes. They own no process: closing one changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence

from mesh.app.screen import Showing
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError

OUTPUT_TO_FILES = "output_to_files"
CURRENT_TERMINAL = "current_terminal"
TMUX = ("tmux_session", "ssh_tmux_session")
XTERM, GNOME, TABS = "xterm", "gnome-terminal", "gnome-terminal-tabs"
TERMINALS = (CURRENT_TERMINAL, *TMUX, XTERM, GNOME, TABS, OUTPUT_TO_FILES)
TMUX_TIMEOUT_S = 20.0


def check_terminal(terminal: str | None) -> None:
    """Raise UsageError for a terminal that Launchpad and TLaunch do not have."""
    if terminal is not None and terminal not in TERMINALS:
        hint = f'terminal="{CURRENT_TERMINAL}"'
        raise UsageError(f"terminal {terminal!r}: expected {', '.join(TERMINALS)}", hint=hint)


def showing_for(terminal: str | None, options: Options) -> Showing:
    """Return how the launching process shows the output of nodes."""
    return Showing(output="all", quiet=terminal == OUTPUT_TO_FILES, stdin_notice=options.stdin_notice)


def view_command(run: str, label: str) -> list[str]:
    """Return the words that show the log of one node."""
    return [sys.executable, "-m", "mesh", "logs", "--follow", "--rank", label, run]


def open_windows(terminal: str, session: str, run: str, labels: Sequence[str]) -> None:
    """Open a window for each node. Without tmux, or without a display, write that on stderr."""
    if terminal in TMUX:
        problem = _open_tmux(session, run, labels)
    elif terminal in (XTERM, GNOME, TABS):
        problem = _open_graphical(terminal, run, labels)
    else:
        return
    if problem:
        sys.stderr.write(f"mesh: no windows for terminal={terminal!r} ({problem}); the output is shown here\n")


def _open_tmux(session: str, run: str, labels: Sequence[str]) -> str:
    """Open a tmux session with a window for each node; return why that failed, "" if it did not."""
    if not shutil.which("tmux"):
        return "tmux is not installed"
    name = session.replace(".", "_").replace(":", "_")  # tmux gives these characters a meaning
    for number, label in enumerate(labels):
        words = ["new-session", "-d", "-s", name] if not number else ["new-window", "-d", "-t", f"={name}:"]
        done = _tmux(*words, "-n", label, *view_command(run, label))
        if done.returncode:
            return done.stderr.strip()
        if not number:
            _tmux("set-option", "-t", f"={name}:", "@mesh_run", run)
    sys.stderr.write(f"mesh: tmux attach -t {name}\n")
    return ""


def _tmux(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["tmux", *words], capture_output=True, text=True, timeout=TMUX_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _open_graphical(terminal: str, run: str, labels: Sequence[str]) -> str:
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "there is no display"
    program = XTERM if terminal == XTERM else GNOME
    if not shutil.which(program):
        return f"{program} is not installed"
    for label in labels:
        view = view_command(run, label)
        shape = {XTERM: [XTERM, "-T", label, "-e"], GNOME: [GNOME, "--title", label, "--"]}
        words = [*shape.get(terminal, [GNOME, "--tab", "--title", label, "--"]), *view]
        window = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        threading.Thread(target=window.wait, name="mesh-window", daemon=True).start()  # no zombie is left
    return ""


def kill_tmux(hosts: object = None, prefix: str = "", kill_all: bool = False) -> list[str]:
    """End the programs of a name with their tmux sessions, and nothing that mesh has not started; return their runs.

    hosts: not needed; prefix: the name of the session; kill_all: every session of a program
    Raises UsageError without a name.
    """
    from mesh import api

    del hosts
    if not prefix and not kill_all:
        raise UsageError("kill_tmux needs the name of a session", hint='kill_tmux(prefix="launchpad")')
    found = _tmux("list-sessions", "-F", "#{session_name}\t#{@mesh_run}").stdout if shutil.which("tmux") else ""
    ended: list[str] = []
    for line in found.splitlines():
        name, _, run = line.partition("\t")
        if run and (kill_all or name == prefix):
            try:
                ended += api.stop(run)
            except MeshError:  # it has ended already, or its hosts do not answer
                ended.append(run)
            _tmux("kill-session", "-t", f"={name}")
    return ended
