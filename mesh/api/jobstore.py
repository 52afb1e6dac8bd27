"""Access of commands to the store of jobs: through the steward where one answers, else to the store itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mesh.api.serving import Serving, ensure_steward
from mesh.core.errors import MeshError, UsageError
from mesh.core.job import JobSpec
from mesh.jobs.coding import decode
from mesh.jobs.events import AnyEvent, FromPeople
from mesh.jobs.place import StorePlace, refuse_remote, store_place
from mesh.jobs.reading import ALL_JOBS, FINAL, Selection, json_rows, read_events, read_id, read_job, read_jobs
from mesh.jobs.requests import AskRows, Record, Steward, Submit, Watch, steward_of
from mesh.jobs.values import Job, Row

START_AGAIN_S = 10.0  # between two starts of a steward by one command
ENDS = tuple(f'"state":"{state}"' for state in FINAL)  # in the row of a job that has ended
ANSWERS_AGAIN_S = 0.5  # between two looks at a store that no steward serves


class JobRow(Row, frozen=True, kw_only=True):
    """A job as `mesh job show ID --json` prints it."""

    directory: str


class JobStore:
    """The jobs of this user's store."""

    def __init__(self) -> None:
        """Raises UsageError for a wrong MESH_STORE."""
        self.place: StorePlace = store_place(os.environ)
        self._steward: Steward = steward_of(os.environ, self.place)
        self._start_at = 0.0  # monotonic: no steward is started before

    def check(self) -> None:
        """Raise MeshError for a store that cannot take jobs, before anything is made."""
        if self.place.url:
            return
        refuse_remote(self.place.directory)
        if self.place.directory.exists() and not os.access(self.place.directory, os.W_OK):
            hint = "make the store writable for you, or name another directory by MESH_STORE; runs that are on go on"
            raise MeshError(f"{self.place.name}: cannot be written (read-only)", hint=hint)
        read_job(self.place.file, 0)  # of a newer mesh, or damaged

    def submit(self, specs: Sequence[JobSpec]) -> tuple[list[JobRow], Serving]:
        """Write new jobs, all or none; start the steward where none runs. Raises MeshError."""
        serving = ensure_steward(self.place)
        if serving.pid:
            try:
                return self._rows(self._asked(Submit(specs=tuple(specs)))), serving
            except OSError as error:
                raise MeshError(
                    f"the steward did not answer ({error}): the jobs may have been submitted", hint="mesh job list"
                ) from error
        from mesh.jobs.store import open_store
        from mesh.jobs.values import row_of

        store = open_store(self.place)
        try:
            rows = [row_of(job) for job in store.submit(specs, time.time())]
        finally:
            store.close()
        return [self._with_directory(row) for row in rows], serving

    def record(self, jobs: Sequence[int], event: FromPeople) -> list[JobRow]:
        """Write an event of a person for some jobs; start the steward where none runs. Raises MeshError."""
        if ensure_steward(self.place).pid:
            try:
                return self._rows(self._asked(Record(jobs=tuple(jobs), event=event)))
            except OSError as error:
                raise MeshError(f"the steward did not answer ({error})", hint="mesh serve status") from error
        from msgspec.structs import replace

        from mesh.jobs.store import open_store
        from mesh.jobs.values import row_of

        store = open_store(self.place)
        try:
            event = replace(event, time=time.time())
            rows = [row_of(decided.job) for decided in store.record_all([(job, event) for job in sorted(set(jobs))])]
        finally:
            store.close()
        return [self._with_directory(row) for row in rows]

    def texts(self, selection: Selection = ALL_JOBS) -> list[str]:
        """Return the rows of jobs as JSON objects, by id. No row is taken apart. Raises MeshError."""
        return [self._text(text) for text in self._found(selection)]

    def rows(self, selection: Selection = ALL_JOBS) -> list[JobRow]:
        """Return the rows of jobs, by id. Raises MeshError."""
        return decode(f"[{','.join(self.texts(selection))}]", list[JobRow])

    def watch(self, selection: Selection = ALL_JOBS) -> Iterator[list[JobRow]]:
        """Yield the rows of jobs, and then those that have changed, whenever some have. Raises MeshError."""
        while True:
            try:
                for reply in self._steward.listen(Watch(selection=selection)):
                    yield self._rows([bytes(one).decode() for one in reply.rows])
            except OSError:  # no steward runs, or it has ended
                yield self.rows(selection)
            time.sleep(ANSWERS_AGAIN_S)

    def events(self, job: int, after: int = 0) -> list[AnyEvent]:
        """Return the events of a job, oldest first. after: only those behind so many. Raises MeshError."""
        if not self.place.url:
            return read_events(self.place.file, job, after)
        from mesh.jobs.store import open_store

        store = open_store(self.place)
        try:
            return store.events(job)[after:]
        finally:
            store.close()

    def jobs(self) -> list[Job]:
        """Return all jobs with their machines, by id, also deleted ones. Raises MeshError."""
        if not self.place.url:
            return read_jobs(self.place.file)
        from mesh.jobs.store import open_store

        store = open_store(self.place)
        try:
            return store.jobs()
        finally:
            store.close()

    @property
    def id(self) -> str:
        """The id of the store, which labels of machines have; "" where there is no store yet. Raises MeshError."""
        if not self.place.url:
            return read_id(self.place.file)
        from mesh.jobs.store import open_store

        store = open_store(self.place)
        try:
            return store.id
        finally:
            store.close()

    def _found(self, selection: Selection) -> list[str]:
        try:
            return self._asked(AskRows(selection=selection))
        except OSError:
            pass
        texts = self._read(selection)
        # No steward answers: one is started if a job needs it.
        if time.monotonic() > self._start_at and not all(any(end in text for end in ENDS) for text in texts):
            self._start_at = time.monotonic() + START_AGAIN_S
            ensure_steward(self.place, waits=False)
        return texts

    def _read(self, selection: Selection) -> list[str]:
        """Return rows from the store itself. Raises MeshError."""
        if not self.place.url:
            return json_rows(self.place.file, selection)
        from mesh.jobs.store import open_store

        store = open_store(self.place)
        try:
            return [text for _, text in store.rows(selection)]
        finally:
            store.close()

    def _asked(self, request: Submit | Record | AskRows) -> list[str]:
        """Return the rows of the steward's answer. Raises OSError if none answers, MeshError with its error."""
        return [bytes(one).decode() for one in self._steward.ask(request).rows]

    def _rows(self, texts: Sequence[str]) -> list[JobRow]:
        return decode(f"[{','.join(map(self._text, texts))}]", list[JobRow])

    def _text(self, text: str) -> str:
        """Return the JSON of a row with the job's directory."""
        job = text[text.index(":") + 1 : text.index(",")]  # "id" is its first field
        return f'{text[:-1]},"directory":"{_escaped(self.place.directory)}/{job}"}}'

    def _with_directory(self, row: Row) -> JobRow:
        fields = {name: getattr(row, name) for name in row.__struct_fields__}
        return JobRow(**fields, directory=str(self.place.of_job(row.id)))


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def chosen(rows: Sequence[JobRow], words: Sequence[str]) -> list[JobRow]:
    """Return the jobs that words mean: ids, names with or without wildcards, or "last". Raises UsageError."""
    import fnmatch

    found: dict[int, JobRow] = {}
    for word in words:
        number = word.removeprefix("job:")
        if number.isdecimal():
            these = [row for row in rows if row.id == int(number)]
        elif word == "last":
            these = [row for row in rows if row.kept_from is None][-1:]  # a keeper is nobody's last job
        else:
            these = [row for row in rows if fnmatch.fnmatchcase(row.name, word)]
        if not these:
            raise UsageError(f"there is no job {word!r}", hint="mesh job list --all")
        found |= {row.id: row for row in these}
    return list(found.values())
