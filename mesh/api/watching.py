"""A workspace that is synced on every change, until a signal ends that."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable

from msgspec.structs import replace

from mesh.api.choosing import here, project_here
from mesh.config.project import FILE as PROJECT_FILE
from mesh.config.settings import Options
from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_OUTPUT_CLOSED
from mesh.core.ranks import counted
from mesh.workspace.watching import Survey, Watch, survey

ENDED = (128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM, EXIT_OUTPUT_CLOSED)


def keep_synced(
    sync: Callable[[Options], int],
    options: Options,
    show_line: Callable[[str], None],
    show_error: Callable[[MeshError], None],
) -> int:
    """Call sync now and after every change; return the exit status once a signal has ended it.

    sync: syncs once, shows failures and returns the exit status
    show_line, show_error: show the user messages
    Raises UsageError, and MeshError if the workspace cannot be watched.
    """
    if not options.wait:
        options = replace(options, wait=math.inf)
    watch = _watch_all()
    try:
        known, status = watch.survey, sync(options)
        if status not in ENDED:
            show_line(f"watching {counted(known.count, 'file')} in {os.fsdecode(known.root)}; Ctrl-C ends it")
        options = replace(options, fresh=False)  # what hosts make from now on stays
        while status not in ENDED:
            if status:
                show_line("the next change tries again")
            watch.wait(known)
            try:
                known = _survey()
                if watch.is_broken or known.directories != watch.survey.directories:
                    watch, before = _watch_all(), watch
                    before.close()
                    known = watch.survey
                status = sync(options)
            except MeshError as error:
                if watch.is_broken:
                    raise
                show_error(error)
                status = error.exit_code
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        watch.close()
    return status


def _survey() -> Survey:
    """List the workspace, by rules that are read anew."""
    project = project_here()
    # A mesh.yaml that is nearer, or comes, decides instead.
    settings = [directory / PROJECT_FILE for directory in (here(), *here().parents)]
    nearest = next((number for number, path in enumerate(settings) if path.exists()), 0)
    return survey(project.workspace, project.ignore, settings[: nearest + 1], include_git=project.include_git)


def _watch_all() -> Watch:
    """Watch every directory of the workspace, also those that come while that is being set up."""
    known = _survey()
    while True:
        with contextlib.suppress(FileNotFoundError):  # a directory is gone already
            watch = Watch(known)
            found = _survey()
            if found.directories == known.directories:
                return watch
            watch.close()
        known = _survey()
