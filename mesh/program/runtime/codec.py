"""Values as bytes between nodes, by pickle 5; large buffers travel beside the body and are not copied.

Hosts of one program trust each other. The client reads no pickle: its codec is ``mesh.program.runtime.plain``.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import mmap
import pickle
import sys
import types
from collections import ChainMap
from typing import Callable, Dict, List, Sequence, Tuple

from mesh.program.runtime.errors import CannotTravel, Opaque

BUFFER_BYTES = 65536  # a buffer of at least this size travels beside the body

Buffer = memoryview


def _restored(opaque: Opaque) -> "tuple[object, ...]":
    """Reduce an opaque value to the value itself, which only a node unpickles."""
    if not opaque.data:
        raise CannotTravel(f"{opaque!r} was not readable at its node, so that it cannot be sent back")
    return pickle.loads, (opaque.data,)


class _Pickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, Opaque: _restored}  # type: ignore[dict-item]  # noqa: RUF012


def provide_cloudpickle(source: str) -> None:
    """Make the module cloudpickle, which reads classes and functions without a file, unless this Python has it.

    source: of the client's version; "": not needed
    """
    if not source:
        return
    try:
        importlib.import_module("cloudpickle.cloudpickle")
    except ImportError:
        package, module = types.ModuleType("cloudpickle"), types.ModuleType("cloudpickle.cloudpickle")
        package.__path__ = []
        sys.modules.update({"cloudpickle": package, "cloudpickle.cloudpickle": module})
        exec(compile(source, "<cloudpickle of the client>", "exec"), module.__dict__)
        package.__dict__.update({name: value for name, value in vars(module).items() if not name.startswith("__")})


def has_main_file() -> bool:
    """Return True if the main module is a file, so that its classes travel by name; notebooks have none."""
    main = sys.modules.get("__main__")
    return main is None or bool(getattr(main, "__file__", "")) or "__mesh_main__" in sys.modules


def dumps(value: object) -> Tuple[bytes, List[Buffer]]:
    """Return a value as a body and buffers. Raises CannotTravel with the reason if it cannot be pickled."""
    buffers: List[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    if has_main_file():
        try:
            body = io.BytesIO()
            _Pickler(body, protocol=5, buffer_callback=keep).dump(value)
            return body.getvalue(), buffers
        except Exception as error:
            buffers.clear()
            by_name = error
    else:
        by_name = pickle.PicklingError("classes of a notebook or prompt have no file")
    return _by_value(value, keep, by_name), buffers


def _by_value(value: object, keep: "Callable[[pickle.PickleBuffer], bool]", by_name: Exception) -> bytes:
    """Pickle what has no file: functions and classes of a notebook, lambdas, local classes."""
    try:
        import cloudpickle
    except ImportError:
        hint = f"classes and functions without a file need `{sys.executable} -m pip install cloudpickle`"
        raise CannotTravel(f"{type(value).__name__} cannot be sent: {by_name}; {hint}") from by_name
    try:
        body = io.BytesIO()
        table = ChainMap({Opaque: _restored}, cloudpickle.Pickler.dispatch_table)
        # The pickler takes the table of its class, once, when it is made.
        make = type("ByValue", (cloudpickle.Pickler,), {"dispatch_table": table})
        make(body, protocol=5, buffer_callback=keep).dump(value)
    except Exception as error:
        raise CannotTravel(f"{type(value).__name__} cannot be sent: {error}") from error
    return body.getvalue()


def loads(body: "bytes | bytearray | memoryview | mmap.mmap", buffers: Sequence[object] = ()) -> object:
    """Return the value of a body and its buffers."""
    return pickle.loads(body, buffers=buffers)


Dumps = Callable[[object], Tuple[bytes, List[Buffer]]]
Loads = Callable[..., object]
NAMES: Dict[str, str] = {"pickle": "between nodes", "plain": "to the client"}
