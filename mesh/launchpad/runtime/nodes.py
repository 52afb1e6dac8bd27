"""The object of every node of a Launchpad program: it makes the user's object, serves it, and runs it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Callable, Dict, List, Sequence, Tuple

from mesh.launchpad.runtime import flags, stopping
from mesh.launchpad.runtime.address import kept_address, release_addresses
from mesh.launchpad.runtime.batching import Batched
from mesh.launchpad.runtime.clients import arguments_of
from mesh.launchpad.runtime.part import COURIER, PY, THREADS, Part
from mesh.program.runtime.errors import NotServed
from mesh.program.runtime.here import CURRENT, Context, current

NOT_SERVED = ("set_courier_server",)
STOP_POLL_S = 0.5  # between looks of a call that waits for the user's object


class CourierServer:
    """The server of a node, for an object with ``set_courier_server``: it decides when calls begin."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.methods: Dict[str, Callable[..., object]] = {}
        self.started = threading.Event()
        self._stopped = threading.Event()

    def Start(self) -> None:
        """Begin the calls that wait."""
        self.started.set()

    def Stop(self) -> None:
        """End ``Join``. The node serves until its process ends."""
        self._stopped.set()

    def Join(self) -> None:
        """Wait for ``Stop``, or for the end of the program."""
        while not (self._stopped.wait(STOP_POLL_S) or current().stopped.is_set()):
            pass

    def Bind(self, name: str, function: "Callable[..., object]") -> None:
        """Serve a function under a name."""
        self.methods[name] = function

    def Unbind(self, name: str) -> None:
        """Serve no more what ``Bind`` has bound."""
        self.methods.pop(name, None)

    @property
    def has_started(self) -> bool:
        """True once calls may begin."""
        return self.started.is_set()

    @property
    def address(self) -> str:
        """The label of the node."""
        return self._label

    @property
    def port(self) -> int:
        """A port of this host that is the node's own. Calls come by mesh's links and do not use it."""
        return int(kept_address(self._label, "courier").rpartition(":")[2])


class Worker:
    """A node at work, or one of a colocation."""

    def __init__(self, part: Part, context: Context) -> None:
        self._part, self._context = part, context
        self.children = [Worker(child, context) for child in part.children]
        self._server = CourierServer(context.here.label)
        self._instance: object = None
        self._error: "BaseException | None" = None

    # ---- calls

    def find(self, name: str) -> "Callable[..., object]":
        """Return the method of a name, once the user's object is there. Raises NotServed, or its constructor's error.

        "1:name" is a method of the second node of a colocation; names with a leading colon are our own.
        """
        head, colon, rest = name.partition(":")
        if colon and head.isdigit() and int(head) < len(self.children):
            return self.children[int(head)].find(rest)
        if name == ":address":
            return lambda number: kept_address(self._context.here.label, number)
        self._wait()
        if name == ":methods":
            return self.names
        found = self._method("run" if name == ":run" else name)
        if found is None:
            raise NotServed(f"{self._context.here.label} serves no method {name!r}; it has {', '.join(self.names())}")
        return found.serve if isinstance(found, Batched) else found

    def _method(self, name: str) -> "Callable[..., object] | None":
        if self._part.kind != COURIER or name in NOT_SERVED or (name.startswith("_") and name != "__call__"):
            return None
        found = self._server.methods.get(name) or getattr(self._instance, name, None)
        return found if callable(found) else None

    def names(self) -> "List[str]":
        """Return the names of the methods that are served."""
        names = {*self._server.methods, *(dir(self._instance) if self._part.kind == COURIER else ())}
        return sorted(name for name in names if self._method(name) is not None)

    def _wait(self) -> None:
        """Wait for the user's object. Raises what its constructor has raised, ConnectionError at the end."""
        while not self._server.started.wait(STOP_POLL_S):
            if self._context.stopped.is_set():
                raise ConnectionError("the program is stopped")
        if self._error is not None:
            raise self._error

    # ---- work

    def run(self) -> object:
        """Make the object and run it, or run the function or the colocation; return the value. Raises what it raises.

        An object that serves and does not run is served until the program is stopped.
        """
        part = self._part
        if part.kind == THREADS:
            self._run_children()
            return None
        try:
            args, kwargs = arguments_of(part.args, part.kwargs)
            assert part.target is not None
            if part.kind == PY:
                return part.target(*args, **kwargs)
            self._instance = part.target(*args, **kwargs)
        except BaseException as error:
            self._error = error
            self._server.Start()
            raise
        run = getattr(self._instance, "run", None)
        if part.kind != COURIER:
            return run() if callable(run) and part.should_run else None
        own = getattr(self._instance, "set_courier_server", None)
        if own is None:
            self._server.Start()
        else:
            own(self._server)
        if callable(run) and part.should_run:
            return run()
        if own is None:
            self._context.stopped.wait()
        return None

    def _run_children(self) -> None:
        """Run the nodes of a colocation in threads. Raises the first exception."""
        changed = threading.Condition()
        ended: List[Tuple[int, "BaseException | None"]] = []

        def work(number: int, worker: Worker) -> None:
            CURRENT.context = self._context
            error: "BaseException | None" = None
            try:
                worker.run()
            except SystemExit as failure:
                error = failure if failure.code else None
            except BaseException as failure:
                error = failure
            with changed:
                ended.append((number, error))
                changed.notify_all()

        for number, worker in enumerate(self.children):
            name = f"mesh-{self._context.here.label}-part-{number}"
            threading.Thread(target=work, args=(number, worker), name=name, daemon=True).start()
        wanted = 1 if self._part.ends_at_first else len(self.children)
        with changed:
            changed.wait_for(lambda: len(ended) >= wanted or any(error for _, error in ended))
            error = next((error for _, error in ended if error is not None), None)
        if error is not None:
            raise error


class LaunchpadNode:
    """The served object of one label. All of its nodes get all parts, and each takes its own."""

    def __init__(self, parts: "Sequence[Part]") -> None:
        context = current()
        self._context = context
        part = parts[context.here.index]
        if "MESH_CONTROL_FD" in os.environ:  # a process of this node alone
            prepare_process(part)
        self._worker = Worker(part, context)

    def run(self) -> object:
        """Run the node to its end."""
        here = self._context.here
        stopping.enter(self._context)
        try:
            return self._worker.run()
        finally:
            stopping.leave(self._context)
            release_addresses(self._context.caller.program, here.label)

    def __getattr__(self, name: str) -> "Callable[..., object]":
        if name.startswith("_"):
            raise AttributeError(name)
        return self._worker.find(name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._worker.find("__call__")(*args, **kwargs)

    def __dir__(self) -> "List[str]":
        return [*super().__dir__(), *self._worker.names()]


def prepare_process(part: Part) -> None:
    """Prepare the process of a node as absl's ``app.run`` does: parse flags, and show log messages."""
    sys.argv = [*(sys.argv[:1] if part.has_own_argv else sys.argv), *part.argv]
    if "absl.flags" in sys.modules:
        flags.parsed()
    logging = sys.modules.get("absl.logging")
    if logging is not None:
        logging.use_absl_handler()
        if logging.get_verbosity() < 0:  # the user has chosen none
            logging.set_verbosity(0)
