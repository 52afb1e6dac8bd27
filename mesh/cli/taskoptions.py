"""The rows of the option table for ``mesh job queue``."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from mesh.cli.option import COMMAND, OUTPUT, AnyOption, Option, as_text, as_words, switch, text

QUEUE = ("job queue", "jobman queue")
REQUEUE = ("job requeue", "jobman requeue")
WHICH_TASKS = "Which tasks"
CHANGES = "Changes"


def _ids(name: str, about: str) -> Option[Sequence[str]]:
    """Return an option that takes the id of a task, and may be repeated."""
    return Option(name, QUEUE, CHANGES, "ID", about, as_words, (), joined=add)


TASK_FILE = text("file", QUEUE, COMMAND, "FILE", "a task file", is_place=True)
TASK = text("task", QUEUE, WHICH_TASKS, "ID", "all about one task")
SHOW_ALL = switch("show-all", QUEUE, WHICH_TASKS, "also those with hide:")
RESET = _ids("reset", "let a task run anew; repeatable")
RESET_ALL = switch("reset-all", QUEUE, CHANGES, "let all tasks run anew")
RESET_FAILED = switch("reset-failed", QUEUE, CHANGES, "let those run anew that have failed for good")
RESET_PATTERN = text("reset-pattern", QUEUE, CHANGES, "PATTERN", "let those run anew whose ids match, as 'pretrain-*'")
PRIORITIZE = _ids("prioritize", "have a task taken before all others; repeatable")
DONE: Option[str | bool | None] = Option(
    "done", QUEUE, CHANGES, "ID", "mark a task as done; alone: list those that are", as_text, None, bare=True
)
CLEANUP = switch("cleanup", QUEUE, CHANGES, "nothing to do: a task of a lost worker is free once it is proved gone")
JSON_TASKS = switch("json", (*QUEUE, *REQUEUE), OUTPUT, "print one JSON object for each")

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
