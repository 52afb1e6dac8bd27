"""The client as a process among others: signals that it was started with, and files that only it can open."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys

import pytest

from tests.conftest import Home

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

UNTIL_OVER = ("sh", "-c", "echo up; while ! [ -e $MESH_OVER ]; do sleep 0.02; done; echo done")


def begun(home: Home, number: signal.Signals) -> subprocess.Popen[bytes]:
    """Start a command with a signal ignored, and wait for its first line."""
    home.environ["MESH_OVER"] = str(home.path / "over")
    client = home.popen("exec", "local:1", *UNTIL_OVER, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    assert client.stdout is not None
    assert client.stdout.readline()
    return client


def test_a_hangup_that_was_ignored_before_stays_so(home: Home) -> None:
    client = begun(home, signal.SIGHUP)
    client.send_signal(signal.SIGHUP)
    (home.path / "over").touch()
    out, err = client.communicate(timeout=60)
    assert (client.returncode, out) == (0, b"[0] done\n"), err


def test_an_interrupt_ends_a_command_that_was_started_in_the_background(home: Home) -> None:
    """A shell without job control has its background ignore Ctrl-C, but a signal by hand is meant."""
    client = begun(home, signal.SIGINT)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=60)
    assert client.returncode == 128 + signal.SIGINT


def test_clusters_come_from_a_descriptor_of_the_client(home: Home) -> None:
    mesh = shlex.join(home.argv("exec", "--dry-run", "--clusters"))
    script = f"{mesh} <(printf 'p:\\n  hosts: [a.invalid]\\n') p true"
    done = subprocess.run(["bash", "-c", script], env=home.environ, capture_output=True, cwd=home.project, check=False)
    assert (done.returncode, b"a.invalid" in done.stdout + done.stderr) == (0, True), done
