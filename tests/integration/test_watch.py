"""mesh push --watch: the hosts follow the workspace, until Ctrl-C."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Home
from tests.lab import Lab, PlainLab, eventually

pytest.importorskip("watchfiles")


class Watcher:
    """A mesh that watches, and the lines that it tells."""

    def __init__(self, home: Home, cluster: str, *words: str) -> None:
        self.process = home.popen("push", cluster, "--watch", *words)
        self._rest = b""

    def line(self) -> str:
        """The next line."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.process.stderr.fileno(), 65536) if ready else b""
            assert data, f"no line came after {self._rest!r}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def until(self, text: str) -> str:
        """The next line that holds this text."""
        while text not in (line := self.line()):
            pass
        return line

    def until_so(self, holds: Callable[[str], object]) -> None:
        """Read lines about a sync until this holds with one of them: a change may be seen in parts, or twice."""
        while not holds(self.until("synced")):
            pass

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


@contextmanager
def watching(home: Home, cluster: str, *words: str) -> Iterator[Watcher]:
    """Watch from the first sync on; Ctrl-C at the end."""
    watcher = Watcher(home, cluster, *words)
    try:
        watcher.until("watching ")
        yield watcher
        assert watcher.interrupt() == 130
    finally:
        if watcher.process.poll() is None:
            watcher.process.kill()
            watcher.process.communicate()


def same(project: Path, copies: list[Path]) -> bool:
    """Compare by diff, and not by our own means."""
    compare = ["diff", "-r", "--no-dereference", "-x", "*.log", "-x", "build", "-x", ".git"]
    return not any(
        subprocess.run([*compare, str(project), str(copy)], check=False, capture_output=True).returncode
        for copy in copies
    )


def copies(home: Home) -> list[Path]:
    """The workspaces of the built-in cluster."""
    return [path for path in (home.path / ".mesh").glob("local/*/workspaces/*") if not path.name.startswith(".")]


def test_the_hosts_follow(home: Home) -> None:
    home.files(a="one", __gitignore="*.log\nbuild/\n")
    project = home.project
    with watching(home, "local") as watcher:
        there = copies(home)
        assert len(there) == 2

        def follows(files: int) -> None:
            watcher.until_so(lambda line: f"==> synced {files} files to 2 hosts: " in line and same(project, there))

        (project / "a").write_text("two")
        follows(2)
        (project / "new").write_text("three")
        (project / "new").rename(project / "a")
        follows(2)
        (project / "d/e").mkdir(parents=True)
        (project / "d/e/f").write_text("1")
        follows(3)
        (project / "d/e/f").write_text("2")
        follows(3)
        (project / "d/e").rename(project / "moved")
        follows(3)
        (project / "moved/f").write_text("3")
        follows(3)
        shutil.rmtree(project / "d")
        shutil.rmtree(project / "moved")
        (project / "a.log").write_text("ignored")
        follows(2)
        (project / "mesh.yaml").write_text("nonsense: 1\n")
        assert "unknown key 'nonsense'" in watcher.until("error: ")
        (project / "mesh.yaml").write_text("ignore: [late]\n")
        (project / "late").write_text("ignored as well")
        watcher.until("synced 3 files")
        (project / "mesh.yaml").unlink()
        follows(3)
        (project / ".gitignore").unlink()
        watcher.until_so(lambda line: "synced 3 files" in line and all((copy / "a.log").exists() for copy in there))
        assert all((copy / "a.log").read_text() == "ignored" for copy in there)
    assert not (home.path / ".local/state/mesh/runs").exists()


def test_ignored_files_start_no_sync(home: Home) -> None:
    home.files(a="one", __gitignore="*.log\nbuild/\n")
    (home.project / "build").mkdir()
    with watching(home, "local") as watcher:
        (home.project / "x.log").write_text("ignored")
        (home.project / "build/x").write_text("ignored")
        shutil.rmtree(home.project / "build")
        # Had it started one, that would have begun before what comes now.
        assert not select.select([watcher.process.stderr], [], [], 1.0)[0]
        (home.project / "a").write_text("two")
        watcher.until("synced 2 files")


def test_files_that_git_begins_to_track_follow(home: Home) -> None:
    home.files(a="one", __gitignore="build/\n")
    (home.project / "build/deep").mkdir(parents=True)
    for name in ("kept", "other"):
        (home.project / "build/deep" / name).write_text("1")

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=home.project, env=home.environ, check=True)

    git("init", "-q")
    git("add", "a")
    with watching(home, "local") as watcher:
        there = copies(home)
        git("add", "-f", "build/deep/kept")
        watcher.until("synced 3 files")
        (home.project / "build/deep/kept").write_text("2")
        copied = [copy / "build/deep/kept" for copy in there]
        watcher.until_so(lambda line: "synced 3 files" in line and all(path.read_text() == "2" for path in copied))
        assert [[path.name for path in (copy / "build/deep").iterdir()] for copy in there] == [["kept"]] * 2
        git("rm", "-qf", "--cached", "build/deep/kept")
        watcher.until_so(lambda line: "synced 2 files" in line and not any((copy / "build").exists() for copy in there))


def test_changes_during_a_sync_start_another_one(home: Home) -> None:
    home.files(a="0")
    with watching(home, "local") as watcher:
        there = copies(home)
        for number in range(1, 40):
            (home.project / "a").write_text(str(number))
            (home.project / f"d{number}").mkdir()
            (home.project / f"d{number}/f").write_text(str(number))
            watcher.until("synced") if number % 10 == 0 else None
        while not same(home.project, there):
            watcher.until("synced")


def test_a_usage_error_ends_it(home: Home) -> None:
    done = home.mesh("push", "nowhere", "--watch")
    assert done.status == 2
    assert "no cluster 'nowhere'" in done.err


@pytest.mark.sshd
def test_a_host_that_is_down_is_told_and_tried_again(home: Home) -> None:
    home.files(a="one")
    with PlainLab(2) as lab:
        home.clusters(lab.cluster_yaml())
        with watching(home, "pod") as watcher:
            lab.stop(lab.hosts[1])
            (home.project / "a").write_text("two")
            watcher.until("error: not every host has the workspace")
            assert lab.hosts[1].address in watcher.line()
            watcher.until("the next change tries again")
            lab.start(lab.hosts[1])
            (home.project / "a").write_text("three")
            watcher.until("synced 1 file")


@pytest.mark.root
@pytest.mark.sshd
def test_it_waits_while_a_run_is_on(pod: Home, lab: Lab) -> None:
    pod.files(a="one")
    with watching(pod, "pod") as watcher:
        run = pod.popen("run", "--wait", "pod", "sh", "-c", "echo up; exec sleep 1000")
        try:
            assert run.stdout is not None
            run.stdout.readline()
            (pod.project / "a").write_text("two")
            assert "it is busy with" in watcher.until("waiting for ")
            (pod.project / "a").write_text("three")
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=PATIENCE)
        assert "synced 1 file to 4 hosts" in watcher.line()  # told once

        def arrived() -> bool:
            found = [path for host in lab.hosts for path in host.path("/root/.mesh/workspaces").glob("[!.]*/a")]
            return [path.read_text() for path in found] == ["three"] * 4

        assert eventually(arrived, PATIENCE)


@pytest.mark.root
@pytest.mark.sshd
def test_a_file_that_is_saved_and_run_at_once(pod: Home, lab: Lab) -> None:
    """The run waits for the sync that the change has started, if that was first."""
    pod.files(a="one")
    with watching(pod, "pod"):
        for number in range(4):
            (pod.project / "a").write_text(str(number))
            time.sleep(0.1 * number)  # whoever is first
            done = pod.mesh("run", "pod", "cat", "a")
            assert done.lines == [f"[{rank}] {number}" for rank in range(4)], done.err


@pytest.mark.root
@pytest.mark.sshd
def test_ctrl_c_while_it_waits(pod: Home, lab: Lab) -> None:
    pod.files(a="one")
    run = pod.popen("run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    try:
        assert run.stdout is not None
        run.stdout.readline()
        watcher = Watcher(pod, "pod")
        watcher.until("waiting for ")
        assert watcher.interrupt() == 130
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE)
