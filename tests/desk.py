"""A user with jobs, and the stewards and hands of that user."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mesh.jobs.place import STORE_FILE, STORE_VARIABLE, StorePlace
from mesh.jobs.reading import FINAL, Selection, json_rows
from mesh.jobs.requests import serving_pid, steward_of
from tests.conftest import Done, Home
from tests.lab import eventually

FIRST_COMMAND_S, COMMAND_INTERVAL_S = 2.0, 10.0  # to the first command while a test waits for a job, and to the next
GENEROUS_S = 240.0  # for a command or a job, on a machine with much to do
SUBMITTED = re.compile(r"==> jobs? (\d+)")


class Desk:
    """A user with jobs."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.place = home.path / ".local/state/mesh/jobs"

    def mesh(self, *words: str, within: float = GENEROUS_S, **options: object) -> Done:
        """Run mesh to its end, which may be the end of a job."""
        return self.home.mesh(*words, within=within, **options)  # type: ignore[arg-type]

    def submit(self, text: str, *words: str, name: str = "train") -> int:
        """Submit a job file of the project; return the job's id."""
        (self.home.project / f"{name}.yaml").write_text(text)
        done = self.mesh("job", "submit", f"{name}.yaml", *words)
        assert done.status == 0, done.err
        found = SUBMITTED.search(done.err)
        assert found, done.err
        return int(found.group(1))

    def show(self, job: int) -> dict[str, object]:
        """Return a job as `mesh job show --json` has it."""
        done = self.mesh("job", "show", str(job), "--json")
        assert done.status == 0, done.err
        found: dict[str, object] = json.loads(done.out)
        return found

    @property
    def store(self) -> Path:
        """The file of the store."""
        return Path(self.home.environ.get(STORE_VARIABLE) or self.place) / STORE_FILE

    def rows(self, *jobs: int) -> list[dict[str, object]]:
        """Return all jobs or some as the store's file has them, without a command."""
        return [json.loads(text) for text in json_rows(self.store, Selection(ids=jobs))]

    def until(self, job: int, *states: str, within: float = GENEROUS_S) -> dict[str, object]:
        """Wait until a job is in one of these states."""
        return self.until_row(job, lambda row: row["state"] in states, within)

    def until_row(
        self, job: int, holds: Callable[[dict[str, object]], object], within: float = GENEROUS_S
    ) -> dict[str, object]:
        """Wait until the row of a job is as it should be; return it as `mesh job show --json` has it.

        Commands in a loop would take the processor from what is waited for. So the store's file is read, and a
        command once in a while starts a steward where none is left.
        """
        deadline, interval = time.monotonic() + within, FIRST_COMMAND_S
        found: list[dict[str, object]] = []

        def is_so() -> bool:
            found[:] = filter(holds, self.rows(job))
            return bool(found)

        while not eventually(is_so, interval):
            shown, interval = self.show(job), COMMAND_INTERVAL_S
            assert time.monotonic() < deadline, shown
        return {**found[0], "directory": str(self.store.parent / str(job))}

    def end_jobs(self, within: float) -> str:
        """Stop the jobs that have not ended, and wait for their end; return the messages of the wait."""
        if self.store.exists() and all(row["state"] in FINAL for row in self.rows()):
            return ""
        self.mesh("job", "stop", "*")
        return self.mesh("job", "wait", "*", "--timeout", f"{within:g}", within=within + 30.0).err

    def serving(self) -> int:
        """Return the pid of the steward that answers, without a command; 0: none does."""
        named = self.home.environ.get(STORE_VARIABLE, "")
        url = "" if named.startswith("/") else named
        place = StorePlace(directory=self.place if url or not named else Path(named), url=url)
        return serving_pid(steward_of(self.home.environ, place))

    def steward(self) -> int:
        """Return the pid of the steward."""
        return int(json.loads(self.mesh("serve", "status", "--json").out)["pid"])

    def processes(self, title: str = "mesh") -> list[int]:
        """Return the stewards and hands of this user."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            entry = Path("/proc", name)
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if not words.startswith((b"mesh\0serve", b"mesh-hand")) or not words.startswith(title.encode()):
                    continue
                if f"HOME={self.home.path}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found

    def kill(self, pids: Iterable[int], number: int = signal.SIGKILL) -> None:
        """Send a signal to stewards and hands. Some may have ended: the kernel ends hands with their steward."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def output(self, job: int) -> bytes:
        """Return the stdout of rank 0 of all attempts."""
        (row,) = self.rows(job)
        runs = row["runs"]
        assert isinstance(runs, list)
        logs = [self.home.path / f".local/state/mesh/runs/{run}/logs/rank-0000.out" for run in runs]
        return b"".join(log.read_bytes() for log in logs if log.exists())


@contextlib.contextmanager
def desk_of(home: Home) -> Iterator[Desk]:
    """Make a desk, at whose end nothing of the user's jobs is left."""
    with tempfile.TemporaryDirectory(prefix="mesh-") as runtime:  # the name of a socket must be short
        home.environ["XDG_RUNTIME_DIR"] = runtime
        desk = Desk(home)
        try:
            yield desk
        finally:
            home.environ.pop("MESH_SERVE", None)
            if desk.place.exists():
                desk.end_jobs(GENEROUS_S)
            if desk.serving() or desk.processes():
                desk.mesh("serve", "stop")
            eventually(lambda: not desk.processes(), 30.0)  # the kernel ends the hands of a steward that has ended
            left = desk.processes()
            desk.kill(left)
        assert not left
