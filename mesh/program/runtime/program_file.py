"""The user's program on a host: where its modules are, and its main module, which is imported under another name."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Dict, List

MAIN = "__mesh_main__"


def enter(about: "Dict[str, object]") -> None:
    """Set directory, path of modules, and words of the command as they were at the client.

    about: "cwd" ("" to stay), "path" (directories, relative ones below the working directory), "argv"
    """
    directory = str(about.get("cwd") or "")
    if directory:
        os.chdir(directory)
    root = os.getcwd()
    own = [os.path.join(root, str(one)) for one in _list(about.get("path"))]
    sys.path[:] = [*own, *(one for one in sys.path if one not in own)]
    sys.argv = [str(one) for one in _list(about.get("argv"))] or sys.argv


def load_main(about: "Dict[str, object]") -> None:
    """Import the client's main module, so that its classes are found; its ``__main__`` part does not run.

    about: "main_name" of a module run by ``-m``, or "main_file", the path of a script; "": there is none
    Raises what the module raises.
    """
    name, file = str(about.get("main_name") or ""), str(about.get("main_file") or "")
    if name:
        spec = importlib.util.find_spec(name)
    elif file:
        spec = importlib.util.spec_from_file_location(MAIN, os.path.join(os.getcwd(), file))
    else:
        sys.modules[MAIN] = types.ModuleType(MAIN)  # values are written by name here, unlike in a notebook
        return
    if spec is None or spec.loader is None:
        raise ImportError(f"the program's main module is not on this host: {name or file}")
    module = types.ModuleType(MAIN)
    module.__file__, module.__spec__ = spec.origin, spec
    module.__package__ = name.rpartition(".")[0] if name else ""
    sys.modules["__main__"] = sys.modules[MAIN] = module
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    exec(code, module.__dict__)


def _list(value: object) -> "List[object]":
    return value if isinstance(value, list) else []
