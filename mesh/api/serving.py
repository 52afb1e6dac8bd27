"""The steward's process: start it, be it, ask how it is, end it, and have systemd start it."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.app.owner import user_name
from mesh.core.errors import MeshError, UsageError
from mesh.core.title import set_title
from mesh.jobs.place import StorePlace, store_place
from mesh.jobs.requests import About, AskAbout, StopSteward, serving_pid, steward_of
from mesh.jobs.sockets import socket_path

SERVE_VARIABLE = "MESH_SERVE"  # "0": no command starts the steward
START_TIMEOUT_S = 60.0  # for a steward to answer, on a machine with much to do
START_AGAIN_S = 2.0  # between two starts, where another steward has the store and does not answer
START_POLL_S = 0.02
STOP_TIMEOUT_S = 30.0
LOG_FILE = "serve.log"
LOG_BYTES = 10 << 20  # beyond it the log begins anew, and the one before is kept beside it
USER_PATH = "MESH_PYTHONPATH"  # the PYTHONPATH of the user, where this process has one of its own to find mesh
UNIT = "mesh-serve.service"
LOOK_S = 3.0  # between two looks at a run: a message each way over a connection that stays
URGENT_LOOK_S = 1.0
AUDIT_INTERVAL_S = 600.0  # between two audits of the steward


class Serving(Struct, frozen=True, kw_only=True):
    """The steward of a store, as a command found or started it."""

    pid: int  # 0: none runs, and none may be started
    has_started: bool = False  # by this command
    at_boot: bool = False  # systemd starts it


def ensure_steward(place: StorePlace, *, waits: bool = True) -> Serving:
    """Start the steward where none runs, unless MESH_SERVE=0. waits: until it answers

    Raises MeshError if it does not.
    """
    steward = steward_of(os.environ, place)
    if pid := serving_pid(steward):
        return Serving(pid=pid, at_boot=unit_path(os.environ).exists())
    if os.environ.get(SERVE_VARIABLE, "") == "0":
        return Serving(pid=0)
    process = _spawn(place)
    if not waits:
        return Serving(pid=process.pid, has_started=True)
    began = spawned = time.monotonic()
    while (now := time.monotonic()) < spawned + START_TIMEOUT_S:
        if pid := serving_pid(steward):
            return Serving(pid=pid, has_started=pid == process.pid, at_boot=unit_path(os.environ).exists())
        if process.poll() is not None:
            if not _has_other(process.returncode):
                break
            if spawned + START_AGAIN_S < now < began + START_TIMEOUT_S:  # the other one has ended, or is about to
                process, spawned = _spawn(place), now
        time.sleep(START_POLL_S)
    raise MeshError(f"mesh serve does not answer: {last_line(place)}", hint="mesh serve log")


def _has_other(status: int) -> bool:
    """Return True if a steward ended because another one has the store, which starts or ends."""
    from mesh.jobs.locking import AlreadyServed

    return status == AlreadyServed.exit_code


def _spawn(place: StorePlace) -> subprocess.Popen[bytes]:
    """Start a steward without a terminal, and with no descriptor of this process. Raises MeshError."""
    here = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(_log(place), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__.partition(".")[0], "serve"],
                cwd="/",
                env={**os.environ, "PYTHONPATH": here, USER_PATH: os.environ.get("PYTHONPATH", "")},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
    except OSError as error:
        raise MeshError(f"cannot start mesh serve: {error.filename or ''}: {error.strerror}") from error
    threading.Thread(target=process.wait, name="mesh-serve", daemon=True).start()  # a program may outlive it
    return process


def _log(place: StorePlace) -> Path:
    """Return the path of the log; one that has grown too long is put aside."""
    path = place.directory / LOG_FILE
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    return path


def last_line(place: StorePlace) -> str:
    """Return the last line of the steward's log."""
    with contextlib.suppress(OSError):
        lines = (place.directory / LOG_FILE).read_text("utf-8", "replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "its log is empty")
    return "it has no log"


# ---- mesh serve


def serve(audit: Sequence[str] = ()) -> None:
    """Be the steward until a signal or ``mesh serve stop`` ends it.

    audit: the argv that finds machines without an owner; (): no audit

    Raises MeshError: another steward looks after the store (status 75), or the store cannot be used.
    """
    from mesh.config.prices import PricesFile, prices_path
    from mesh.jobs.locking import take_lock
    from mesh.jobs.rounds import RoundOptions
    from mesh.jobs.steward import Steward, StewardOptions
    from mesh.jobs.store import open_store

    place = store_place(os.environ)
    path = socket_path(os.environ, place)
    os.umask(0o077)
    lock = take_lock(place)
    set_title("mesh serve")
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    try:
        store = open_store(place)
        try:
            options = StewardOptions(
                user=user_name(),
                hand=hand_argv(),
                path=path,
                limits=_limits(),
                rounds=RoundOptions(
                    price_of=PricesFile(prices_path(os.environ)).of,
                    audit=tuple(audit),
                    interval=AUDIT_INTERVAL_S,
                ),
                look_s=LOOK_S,
                urgent_look_s=URGENT_LOOK_S,
            )
            Steward(store, options, os.environ, keep=(lock,)).run()
        finally:
            store.close()
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(lock)


def _limits() -> Mapping[str, float]:
    """Return the limits of quotas.yaml. A file with mistakes is logged, and limits nothing."""
    from mesh.config.places import config_directory
    from mesh.config.quotas import FILE, read_quotas

    try:
        return read_quotas(config_directory(os.environ) / FILE)
    except UsageError as error:
        logging.getLogger(__name__).warning("%s; no quota holds", error)
        return {}


def hand_argv() -> tuple[str, ...]:
    """Return the argv of a child of the steward, without its operation."""
    from mesh.api import hand

    return (sys.executable, "-m", hand.__name__)


def about_steward() -> About | None:
    """Return what the steward reports of itself; None if none runs. Raises MeshError."""
    try:
        return steward_of(os.environ, store_place(os.environ)).ask(AskAbout()).about
    except OSError:
        return None


def stop_steward() -> int:
    """End the steward, and wait until it is gone; return its process id, 0 if none runs. Runs go on."""
    steward = steward_of(os.environ, store_place(os.environ))
    pid = serving_pid(steward)
    if not pid:
        return 0
    with contextlib.suppress(OSError):
        steward.ask(StopSteward())
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _is_alive(pid):
        if time.monotonic() > deadline:
            raise MeshError(f"mesh serve (pid {pid}) has not ended", hint=f"kill {pid}")
        time.sleep(START_POLL_S)
    return pid


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except ProcessLookupError:
        return False
    except OSError:  # macOS has no /proc
        return not sys.platform.startswith("linux")
    return state != ["Z"]


def log_lines(lines: int) -> Iterator[str]:
    """Yield the last lines of the steward's log. Raises UsageError if there is none."""
    path = store_place(os.environ).directory / LOG_FILE
    try:
        found = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise UsageError(f"there is no {path}", hint="mesh serve status") from error
    yield from found[-lines:]


# ---- systemd


def unit_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the systemd user unit."""
    named = environ.get("XDG_CONFIG_HOME", "")
    base = Path(named) if named.startswith("/") else Path.home() / ".config"
    return base / "systemd/user" / UNIT


def unit_text(environ: Mapping[str, str], place: StorePlace) -> str:
    """Return the systemd user unit that starts the steward at login, or at boot with lingering."""
    package = Path(__file__).resolve().parents[2]
    variables = {"PYTHONPATH": str(package), USER_PATH: "", "PATH": environ.get("PATH", "/usr/bin:/bin")}
    variables |= {
        name: environ[name] for name in ("MESH_STORE", "XDG_STATE_HOME", "XDG_CONFIG_HOME") if name in environ
    }
    lines = "".join(f'Environment="{name}={_quoted(value)}"\n' for name, value in variables.items())
    log = _quoted(str(place.directory / LOG_FILE))
    return (
        f"[Unit]\nDescription=mesh serve: looks after jobs\n\n[Service]\n"
        f"ExecStart={shlex.join([sys.executable, '-m', __name__.partition('.')[0], 'serve']).replace('%', '%%')}\n"
        f"{lines}WorkingDirectory=/\nRestart=always\nRestartSec=5\nRestartPreventExitStatus=75\n"
        f"KillMode=process\nStandardOutput=append:{log}\nStandardError=append:{log}\n\n"
        "[Install]\nWantedBy=default.target\n"
    )


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def install() -> tuple[Path, tuple[str, ...]]:
    """Write the systemd user unit; return its path and the commands that make it work at boot. Raises MeshError."""
    place, path = store_place(os.environ), unit_path(os.environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(unit_text(os.environ, place))
    except OSError as error:
        raise MeshError(f"cannot write {path}: {error.strerror}") from error
    return path, (
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {UNIT}",
        "loginctl enable-linger",
    )


def uninstall() -> tuple[Path, tuple[str, ...]]:
    """Remove the systemd user unit; return its path and the commands that end the service. Raises MeshError."""
    path = unit_path(os.environ)
    try:
        path.unlink()
    except FileNotFoundError:
        raise UsageError(f"there is no {path}", hint="mesh serve install") from None
    except OSError as error:
        raise MeshError(f"cannot remove {path}: {error.strerror}") from error
    return path, (f"systemctl --user disable --now {UNIT}", "systemctl --user daemon-reload")
