"""The serving end of a node: links of callers, one inbox, and threads that run the methods of the node's object."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import queue
import struct
import threading
import time
from concurrent.futures import CancelledError
from typing import Callable, Coroutine, Dict, Iterator, List, Tuple

from mesh.program.runtime import codec, failures, frames, plain
from mesh.program.runtime.calls import Inbox
from mesh.program.runtime.errors import CLIENT, CallTimeout, LinkRefused, NotServed
from mesh.program.runtime.frames import Frame
from mesh.program.runtime.here import CURRENT, Context, Mark
from mesh.program.runtime.links import Link

NOT_SERVED = ("run",)
GREETING_BYTES_LIMIT = 65536
FINISH_POLL_S = 0.02
TIMEOUT = struct.Struct(">d")  # begins the body of a call: seconds in which it must begin
Key = Tuple["Session", int]


class Session:
    """A caller at the other end of a link."""

    def __init__(self, server: "Server", link: Link) -> None:
        self._server, self.link = server, link
        self.credits: Dict[int, threading.Semaphore] = {}  # of streams, by call
        self.cancels: Dict[int, Mark] = {}
        self.calls: Dict[int, Frame] = {}
        self.tasks: Dict[int, asyncio.Future[object]] = {}  # of coroutines
        self.thread = threading.Thread(target=self._read, name="mesh-serving", daemon=True)

    def _read(self) -> None:
        is_lent = False
        try:
            is_lent = self._greet(self.link.receive())
            while not is_lent:
                self._take(self.link.receive())
        except (EOFError, OSError, ValueError, TypeError):
            pass  # the caller is gone, or no caller of ours
        finally:
            if not is_lent:
                self.link.release()
            self._server.forget(self)

    def _greet(self, frame: Frame) -> bool:
        """Answer the greeting; return True for a link over which this node is the one that calls."""
        if frame.kind != frames.HELLO or frame.size > GREETING_BYTES_LIMIT:
            raise LinkRefused("no greeting")
        greeting = plain.loads(frame.body)
        context = self._server.context
        if not isinstance(greeting, dict):
            raise LinkRefused("no greeting")
        expected = (context.caller.program, context.here.label)
        if (greeting.get("program"), greeting.get("to")) != expected:
            text = f"this is {context.here.label}, and not {greeting.get('to')} of that program"
            self.link.send(Frame(frames.HELLO, body=plain.dumps(text)[0]))
            raise LinkRefused(text)
        if greeting.get("serves") is True and context.here.host != CLIENT:  # the client calls no host over such a link
            context.caller.adopt(str(greeting.get("from")), self.link)
            return True
        self.link.send(Frame(frames.WELCOME, body=plain.dumps(self._server.backlog)[0]))
        return False

    def _take(self, frame: Frame) -> None:
        number = frame.call
        if frame.kind == frames.CALL:
            self.calls[number] = frame
            self.cancels[number] = Mark()
            if frame.flags & frames.AT_ONCE:
                self._server.serve(self, number)
                return
            self._server.arrive(self, number, TIMEOUT.unpack_from(frame.body)[0])
        elif frame.kind == frames.CANCEL:
            self._server.cancel(self, number)
        elif frame.kind == frames.CREDIT and number in self.credits:
            for _ in range(int(str(plain.loads(frame.body)))):
                self.credits[number].release()

    def answer(self, frame: Frame) -> None:
        """Send the answer of a call and forget it; a caller that is gone needs none."""
        for table in (self.calls, self.cancels, self.credits, self.tasks):
            table.pop(frame.call, None)
        try:
            self.link.send(frame)
        except OSError:
            self.link.close()

    def fail(self, number: int, error: BaseException) -> None:
        """Send an exception as the answer of a call."""
        here = self._server.context.here
        try:
            body, buffers = plain.dumps(failures.describe(error, here.label, here.host))
        except Exception as failure:  # code of the exception's class, which must not end the thread of calls
            text = f"{type(error).__name__}, which cannot be described ({type(failure).__name__})"
            body, buffers = plain.dumps(failures.describe(RuntimeError(text), here.label, here.host))
        self.answer(Frame(frames.ERROR, number, body, buffers))


class Server:
    """Runs calls of all callers of one node."""

    def __init__(
        self,
        context: Context,
        concurrency: int,
        backlog: int,
        on_failure: "Callable[[BaseException], None]",
        loads: "Callable[..., object]" = codec.loads,
    ) -> None:
        """on_failure: called with the exception of a call that has no caller waiting; loads: of the codec of calls"""
        self._loads = loads
        self.context, self.backlog = context, backlog
        self._on_failure = on_failure
        self._inbox = Inbox(concurrency)
        self._changed = threading.Condition()
        self._arrivals: "queue.SimpleQueue[None]" = queue.SimpleQueue()  # one item for each call, and for each close
        self._sessions: List[Session] = []
        self._threads: List[threading.Thread] = []
        self._concurrency = concurrency
        self._served: object = None
        self._loop: "asyncio.AbstractEventLoop | None" = None
        self._is_open, self._is_closed = False, False
        self._awaiting: "List[Tuple[Session, Frame]]" = []  # callers that wait until it is open

    def attach(self, link: Link) -> None:
        """Serve the caller at the other end of a link."""
        session = Session(self, link)
        with self._changed:
            if self._is_closed:
                link.release()
                return
            self._sessions.append(session)
        session.thread.start()

    def open(self, served: object) -> None:
        """Begin the calls that wait. served: the object whose public methods are called"""
        with self._changed:
            self._served, self._is_open = served, True
            awaiting, self._awaiting = self._awaiting, []
            for number in range(self._concurrency):
                name = f"mesh-{self.context.here.label}-{number}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        for session, frame in awaiting:
            self._reply(session, frame, None)

    def close(self, timeout: float = 2.0) -> None:
        """End all links and threads; a method that does not return is left in its daemon thread."""
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            sessions = list(self._sessions)
        for _ in self._threads:
            self._arrivals.put(None)
        for session in sessions:
            session.link.close()
        if self._loop is not None and not was_closed:
            self._loop.call_soon_threadsafe(self._loop.stop)
        deadline = time.monotonic() + timeout
        for thread in [*(session.thread for session in sessions), *self._threads]:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def leave(self) -> None:
        """Leave all callers to the parent, in a process that was just forked: they must notice the parent's end."""
        self._changed = threading.Condition()
        for session in self._sessions:
            session.link.leave()
        self._sessions = []

    def finish(self, timeout: float) -> None:
        """Wait until no caller waits for an answer, at most so many seconds: the process is about to end."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while any(session.calls for session in self._sessions) and time.monotonic() < deadline:
                self._changed.wait(FINISH_POLL_S)  # coroutines end without a notice

    def arrive(self, session: Session, number: int, timeout: float) -> None:
        """Queue a call. timeout: seconds from now in which it must begin"""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._inbox.arrive((session, number), deadline)
        self._arrivals.put(None)

    def cancel(self, session: Session, number: int, is_gone: bool = False) -> None:
        """Cancel a call: one that waits never begins, a generator is closed, others are marked.

        is_gone: the caller's process has ended
        """
        mark = session.cancels.get(number)
        if mark is not None:
            mark.is_set = True
        if number in session.credits:
            session.credits[number].release()
        task = session.tasks.get(number)
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)
        with self._changed:
            state = self._inbox.cancel((session, number))
        if state == "waiting":
            session.fail(number, CancelledError())
        self.context.exchange.drop((session, number), is_gone)

    def forget(self, session: Session) -> None:
        """Drop the calls of a caller that is gone."""
        for number in list(session.calls):
            self.cancel(session, number, is_gone=True)
        with self._changed:
            if session in self._sessions:
                self._sessions.remove(session)

    def _work(self) -> None:
        CURRENT.context = self.context
        while True:
            self._arrivals.get()
            with self._changed:
                taken = self._inbox.take(time.monotonic())
            if taken is None:  # the call was cancelled, or the end has come
                if self._is_closed:
                    return
                continue
            session, number = _key(taken[0])
            try:
                if taken[1]:
                    session.fail(number, CallTimeout(f"{self.context.here.label}: its turn came after its timeout"))
                else:
                    self.serve(session, number)
            finally:
                CURRENT.cancelled = None
                with self._changed:
                    self._inbox.end(taken[0])

    def serve(self, session: Session, number: int) -> None:
        """Run one call and send its answer."""
        frame = session.calls.get(number)
        if frame is None:  # cancelled meanwhile
            return
        CURRENT.cancelled = session.cancels.get(number)
        try:
            body = memoryview(frame.body)[TIMEOUT.size :]
            name, args, kwargs, buffer = _call(self._loads(body, frame.buffers))
            if name == frames.READY_CALL:
                self._reply_once_open(session, frame)
                return
            if name == frames.ROUND_CALL:
                answer = lambda value: self._reply(session, frame, value)  # noqa: E731
                self.context.exchange.take((session, number), args, answer)
                return
            method = self._method(name)
            if frame.flags & frames.STREAM:
                self._stream(session, frame, iter(method(*args, **kwargs)), buffer)  # type: ignore[call-overload]
                return
            value = method(*args, **kwargs)
            if inspect.iscoroutine(value):
                self._begin_task(session, frame, value)
                return
            self._reply(session, frame, value)
        except BaseException as error:
            self._failed(session, frame, error)

    def _method(self, name: str) -> "Callable[..., object]":
        """Return a public method. Raises NotServed with the nearest name."""
        if name == frames.STOP_CALL:  # of the client, which has no other way to the agents
            return self.context.stop_program
        served = self._served
        if name == "__call__" and callable(served):
            return served
        if not name.startswith("_") and name not in NOT_SERVED:
            method = getattr(served, name, None)
            if callable(method):
                found: "Callable[..., object]" = method
                return found
        names = [one for one in dir(served) if not one.startswith("_") and one not in NOT_SERVED]
        near = difflib.get_close_matches(name, [one for one in names if callable(getattr(served, one, None))], 1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise NotServed(f"{self.context.here.label} serves no method {name!r}{hint}")

    def _reply_once_open(self, session: Session, frame: Frame) -> None:
        """Answer a caller that waits until the node is ready."""
        with self._changed:
            if not self._is_open:
                self._awaiting.append((session, frame))
                return
        self._reply(session, frame, None)

    def _reply(self, session: Session, frame: Frame, value: object) -> None:
        if frame.flags & frames.ONE_WAY:
            value = None
        dumps = plain.dumps if frame.flags & frames.PLAIN else codec.dumps
        body, buffers = dumps(value)
        session.answer(Frame(frames.RESULT, frame.call, body, buffers, frame.flags & frames.PLAIN))

    def _failed(self, session: Session, frame: Frame, error: BaseException) -> None:
        session.fail(frame.call, error)
        if frame.flags & frames.ONE_WAY:
            self._on_failure(error)

    def _stream(self, session: Session, frame: Frame, items: "Iterator[object]", buffer: int) -> None:
        """Send the items of a generator, as fast as its reader takes them."""
        window = session.credits[frame.call] = threading.Semaphore(buffer)
        cancelled = session.cancels[frame.call]
        dumps = plain.dumps if frame.flags & frames.PLAIN else codec.dumps
        try:
            while True:
                window.acquire()
                if cancelled.is_set:
                    raise CancelledError
                try:
                    value = next(items)
                except StopIteration:
                    break
                body, buffers = dumps(value)
                session.link.send(Frame(frames.ITEM, frame.call, body, buffers, frame.flags & frames.PLAIN))
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        self._reply(session, frame, None)

    def _begin_task(self, session: Session, frame: Frame, work: "Coroutine[object, object, object]") -> None:
        """Run a coroutine on the node's loop; the thread of the call is free at once."""
        loop = self._running_loop()
        loop.call_soon_threadsafe(self._start_task, session, frame, work)

    def _start_task(self, session: Session, frame: Frame, work: "Coroutine[object, object, object]") -> None:
        """Start a coroutine, on the loop."""
        task = asyncio.ensure_future(work)
        session.tasks[frame.call] = task
        task.add_done_callback(lambda done: self._end_task(session, frame, done))
        mark = session.cancels.get(frame.call)
        if mark is not None and mark.is_set:
            task.cancel()

    def _end_task(self, session: Session, frame: Frame, task: "asyncio.Future[object]") -> None:
        """Answer the call of a coroutine that has ended."""
        if task.cancelled():
            session.fail(frame.call, CancelledError())
            return
        try:
            self._reply(session, frame, task.result())
        except BaseException as error:
            self._failed(session, frame, error)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._changed:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._run_loop, args=(self._loop,), name="mesh-loop", daemon=True)
                self._threads.append(thread)
                thread.start()
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        CURRENT.context = self.context
        loop.run_forever()
        loop.close()


def _key(taken: object) -> Key:
    assert isinstance(taken, tuple)
    return taken


def _call(value: object) -> "Tuple[str, Tuple[object, ...], Dict[str, object], int]":
    """Return method, arguments, keywords and the buffer of a stream. Raises TypeError for anything else."""
    call: "Tuple[Tuple[str, Tuple[object, ...], Dict[str, object]], int]" = value  # type: ignore[assignment]
    (name, args, kwargs), buffer = call
    return name, args, kwargs, buffer
