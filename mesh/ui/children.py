"""Child processes that ask hosts: `mesh check`, `stacks` and `top` with fixed words, one of each kind at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time

from msgspec import Struct

ANSWER_LIMIT_S = 90.0
KILL_AFTER_S = 10.0  # from SIGTERM to SIGKILL
FRESH_S = 2.0  # for which an answer serves another request
ERROR_CHARACTERS = 2000


class Answer(Struct, frozen=True):
    """The end of a child."""

    status: int
    found: object  # the JSON that it printed; None: none
    error: str


class Children:
    """The children of this server. They end with it."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, ...], asyncio.Task[Answer]] = {}
        self._processes: set[asyncio.subprocess.Process] = set()
        self._is_closed = False
        self._doing: set[asyncio.Task[Answer]] = set()
        self._answers: dict[tuple[str, ...], tuple[float, Answer]] = {}

    async def ask(self, *words: str) -> Answer:
        """Run mesh with these words. Requests for the same share one child."""
        at, known = self._answers.get(words, (0.0, None))
        if known and time.monotonic() < at + FRESH_S:
            return known
        task = self._running.get(words)
        if task is None:
            task = self._running[words] = asyncio.create_task(self._run(words))
            task.add_done_callback(lambda done: self._running.pop(words, None))
        answer = await asyncio.shield(task)
        self._answers = {words: (time.monotonic(), answer)}
        return answer

    async def do(self, *words: str) -> Answer:
        """Run mesh with these words, which change something: each call has a child of its own."""
        task = asyncio.create_task(self._run(words))
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End all children. Those who wait for them get an answer."""
        self._is_closed = True
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if tasks := [*self._running.values(), *self._doing]:
            _, late = await asyncio.wait(tasks, timeout=KILL_AFTER_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, words: tuple[str, ...]) -> Answer:
        if self._is_closed:
            return Answer(143, None, "the server ends")
        process = await _start(words)
        self._processes.add(process)
        if self._is_closed:
            process.terminate()
        try:
            return await _answer(process, words)
        finally:
            self._processes.discard(process)


async def _start(words: tuple[str, ...]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mesh",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )


async def _answer(process: asyncio.subprocess.Process, words: tuple[str, ...]) -> Answer:
    try:
        out, err = await asyncio.wait_for(process.communicate(), ANSWER_LIMIT_S)
    except asyncio.TimeoutError:
        return Answer(124, None, f"mesh {words[0]}: no answer after {ANSWER_LIMIT_S:.0f} s")
    finally:
        await end(process)
    return Answer(process.returncode or 0, _json(out), err.decode("utf-8", "replace")[-ERROR_CHARACTERS:])


async def end(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs, at last by SIGKILL."""
    for strike in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            strike()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_AFTER_S)


def _json(out: bytes) -> object:
    """Return the JSON that a child has printed: of several lines, the list of their values. None: it is no JSON."""
    for text in (out, b"[" + b",".join(out.splitlines()) + b"]"):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return None
