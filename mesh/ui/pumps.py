"""Pumps: one loop for each thing that is streamed, however many streams there are; none while nobody looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from mesh.core.errors import MeshError

LOOK_S = 0.35  # between two looks at a run that is on
IDLE_LOOK_S = 2.0  # at one that is over
HINT = "the terminal of `mesh ui` has the traceback"
KEEP_ALIVE_S = 10.0  # after which a stream without news sends a comment


class PumpError(MeshError):
    """A look that has failed for a reason that nobody has foreseen."""


# Looks for news; returns their version, and the seconds to the next look. Is called in a thread.
Look = Callable[[], tuple[int, float]]


class Pump:
    """A loop that looks for news as long as it has readers."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.readers = 0
        self.is_closed = False  # the server ends, and with it all streams
        self.version = -1
        self.error: OSError | PumpError | None = None
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, version: int) -> None:
        """Wait for another version than this one, at most KEEP_ALIVE_S.

        Raises OSError if the thing is gone, and PumpError if a look has failed otherwise.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed(version), KEEP_ALIVE_S)
        if self.error:
            raise self.error

    def start(self) -> None:
        """Begin with a reader more."""
        self.readers += 1
        if self._task is None or self._task.done():
            self.error = None
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _changed(self, version: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self.version != version or self.error is not None or self.is_closed)

    async def close(self) -> None:
        """End the streams of all readers."""
        self.is_closed = True
        async with self._news:
            self._news.notify_all()

    async def _run(self) -> None:
        while self.readers and not self.is_closed:
            try:
                version, pause = await run_in_threadpool(self._look)
            except OSError as error:
                await self._fail(error)
                return
            except Exception as error:
                report(error)
                await self._fail(PumpError(words(error), hint=HINT))
                return
            if version != self.version:
                async with self._news:
                    self.version = version
                    self._news.notify_all()
            await asyncio.sleep(pause)

    async def _fail(self, error: OSError | PumpError) -> None:
        """Have the streams of all readers end with an error."""
        self.error = error
        async with self._news:
            self._news.notify_all()


def words(error: Exception) -> str:
    """Return an error of this program in a line."""
    return f"mesh ui has failed: {type(error).__name__}: {error}"


def report(error: Exception) -> None:
    """Write the traceback of an error of this program to stderr."""
    asyncio.get_running_loop().call_exception_handler({"message": words(error), "exception": error})


class Pumps:
    """The pumps by their names."""

    def __init__(self) -> None:
        self._pumps: dict[str, Pump] = {}

    def has(self, name: str) -> bool:
        """Return True if somebody reads from the pump of a name."""
        return name in self._pumps

    async def close(self) -> None:
        """End all streams."""
        for pump in list(self._pumps.values()):
            await pump.close()

    @contextlib.asynccontextmanager
    async def of(self, name: str, look: Look) -> AsyncIterator[Pump]:
        """Yield the pump of a name, which has a reader more meanwhile."""
        pump = self._pumps.get(name)
        if pump is None:
            pump = self._pumps[name] = Pump(look)
        pump.start()
        try:
            yield pump
        finally:
            pump.readers -= 1
            if not pump.readers:
                self._pumps.pop(name, None)
