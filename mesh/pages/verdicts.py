"""The verdict of a run that has ended, as lines for people, from its run.json."""

from __future__ import annotations

from collections.abc import Iterator

from mesh.core.events import Exited
from mesh.core.ranks import told_ranks
from mesh.pages.fields import Fields, count, inner, number, numbers, objects, text, texts
from mesh.verdict.facts import FILE_MISSING
from mesh.verdict.verdict import LAST_LINES, told_return

INDENT = "    "
FAILURES_SHOWN = 8
SAID_BESIDE_ROOT = 3  # lines of the first failure, where another one is the cause; as on the terminal
QUOTED_CHARACTERS = 200


def verdict_lines(about: Fields) -> list[str]:
    """Return why a run ended before its time; nothing for one that has succeeded or is on."""
    verdict = inner(about, "verdict")
    if not verdict:
        return list(_failures(about))
    first, root = inner(verdict, "first"), inner(verdict, "root")
    alike = numbers(verdict, "alike")
    lines = _of_absence(first) or [_headline(first, alike, _seconds_to_first(about))]
    if len(alike) > 1 and texts(first, "said"):
        lines.append(f"last lines of {_rank(first)}:")
    lines += _quoted(first, SAID_BESIDE_ROOT if root else LAST_LINES)
    if root:
        lines.append(f"its output is about another rank; last lines of {_rank(root)}:")
        lines += _quoted(root, LAST_LINES)
    lines += _others(verdict, alike)
    if advice := text(root or first, "advice"):
        # On a missing file the advice is an explanation, or a command already.
        lines.append(advice if text(root or first, "fact") == FILE_MISSING else f"try: {advice}")
    return lines


def _quoted(failure: Fields, most: int) -> list[str]:
    return [f"{INDENT}{line[:QUOTED_CHARACTERS]}" for line in texts(failure, "said")[-most:]]


def _seconds_to_first(about: Fields) -> float | None:
    time, started = number(inner(about, "first"), "time"), number(about, "started")
    return None if time is None or started is None else max(0.0, time - started)


def sentence(about: Fields) -> str:
    """Return the first line of the verdict with its exception; "" if there is none."""
    lines = verdict_lines(about)
    exception = text(inner(inner(about, "verdict"), "first"), "exception")
    return f"{lines[0]}: {exception}" if lines and exception else lines[0] if lines else ""


def how(fields: Fields) -> str:
    """Return the end of a rank in words: "exit 3", "killed by SIGKILL"."""
    is_oom = fields.get("oom") is True
    return Exited(
        time=0.0, node=0, rank=0, code=count(fields, "code"), signal=count(fields, "signal"), oom=is_oom
    ).told()


def _of_absence(first: Fields) -> list[str]:
    """Return that the client was away for too long; nothing if that did not decide the run."""
    hosts, within = texts(first, "hosts"), number(first, "return_within")
    return told_return(hosts, numbers(first, "ranks"), within, text(first, "lost")) if hosts and within else []


def _headline(first: Fields, alike: list[int], seconds: float | None) -> str:
    if reason := text(first, "lost"):
        when = "" if seconds is None else f", {seconds:.1f} s after the start"
        return f"lost contact with {text(first, 'host')} ({told_ranks(numbers(first, 'ranks'))}){when}: {reason}"
    fact = text(first, "fact")
    end = how(first) + (f" ({fact})" if fact and fact not in how(first) else "")
    after = f"{number(first, 'after') or 0.0:.1f} s after the start"
    who = f"{told_ranks(alike)} failed alike" if len(alike) > 1 else f"{_rank(first)} failed first"
    return f"{who}: {end}, {after}"


def _rank(fields: Fields) -> str:
    label = text(fields, "label")
    return f"rank {count(fields, 'rank')}{f' ({label})' if label else ''} on {text(fields, 'host')}"


def _others(verdict: Fields, alike: list[int]) -> Iterator[str]:
    parts = []
    if others := [rank for rank in numbers(verdict, "others") if rank not in alike]:
        parts.append(f"{told_ranks(others)} failed within {number(verdict, 'span') or 0.0:.1f} s")
    if lost := texts(verdict, "lost"):
        parts.append(f"lost: {', '.join(lost)}")
    if stopped := numbers(verdict, "stopped"):
        parts.append(f"{told_ranks(stopped)} stopped by mesh")
    if parts:
        yield f"after it: {'; '.join(parts)}"


def _failures(about: Fields) -> Iterator[str]:
    """Yield why the command of a run did not start."""
    failures = objects(about, "failures")
    for failure in failures[:FAILURES_SHOWN]:
        host = text(failure, "host")
        yield f"{f'{host}: ' if host else ''}{text(failure, 'step')}: {text(failure, 'message')}"
    if len(failures) > FAILURES_SHOWN:
        yield f"and {len(failures) - FAILURES_SHOWN} more"
