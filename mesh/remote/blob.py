"""The agent as it travels: the command that starts it, what looks for its modules there, and those in one piece."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import zlib
from pathlib import Path

from mesh.remote.agent.processes import BOOT

HERE = Path(__file__).parent
STARTER, LOADER = "starter", "loader"
MODULES = tuple(
    sorted(path.stem for path in (HERE / "agent").glob("*.py") if path.stem not in (STARTER, LOADER, "__init__"))
)

MESHRUN = "meshrun.py"  # what a rank's program may import

NO_PYTHON = frozenset((126, 127))  # exit status of the start command when there is no interpreter, as shells have it
OLD_PYTHON = 96  # when it is below 3.8

# Read exactly as many bytes as the starter has, and run it. -I and -S keep the user's own modules and .pth files
# out, and save time. No quotes in it: it stands in single quotes.
_BOOT = (
    BOOT + "sys.exit({old});"
    "r=lambda n,b=bytes():b if len(b)==n else r(n,b+(os.read(0,n-len(b))or sys.exit(1)));"
    "exec(r({size}))"
)

HOME = "~/"  # the login shell sees it in quotes


_DOCSTRING = re.compile(r'^( *)"""(?:[^"\\]|\\.|"(?!""))*"""\n', re.MULTILINE)
_COMMENT = re.compile(r"^ *# .*\n", re.MULTILINE)


def without_words(source: str) -> str:
    """Remove docstrings and comments from a module, because it travels to every host of every run.

    Remove the import of annotations as well, which would load a module there (loader.py compiles with it).
    """
    return _COMMENT.sub("", _DOCSTRING.sub('\\1""\n', source)).replace("from __future__ import annotations\n", "")


@functools.cache
def blob() -> bytes:
    """The sources of the modules, for a host that lacks them."""
    texts = {name: without_words(_sources()[name].decode()) for name in MODULES}
    return zlib.compress(json.dumps({**texts, LOADER: _loader()}).encode(), 9)


@functools.cache
def opening() -> bytes:
    """Return the text that the start command reads first from its stdin."""
    return f"{without_words(_sources()[STARTER].decode())}\nbegin('{_key()}', {_loader()!r})\n".encode()


@functools.cache
def _loader() -> str:
    """It stands in one namespace with the starter."""
    return without_words(_sources()[LOADER].decode()).replace("from .starter import PLACES, find_place\n", "")


def lacking() -> bytes:
    """Return the line by which the loader asks for the blob."""
    return b"\nlacks %s\n" % _key().encode()


@functools.cache
def _key() -> str:
    """Differs from that of every other agent."""
    return hashlib.blake2b(b"\0".join(_sources().values()), digest_size=16).hexdigest()


@functools.cache
def _sources() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in files()}


def files() -> list[Path]:
    """Where the agent's modules are."""
    return [HERE / "agent" / f"{name}.py" for name in (STARTER, LOADER, *MODULES)]


@functools.cache
def library() -> bytes:
    """The source of what programs on the hosts may import, with its docstrings: they are for whoever reads it there."""
    return (HERE / MESHRUN).read_bytes()


def start_command(python: str) -> list[str]:
    """The argv that runs the agent with the host's interpreter ``python`` (a name or a path)."""
    options = ["-I", "-S", "-c", _BOOT.format(old=OLD_PYTHON, size=len(opening()))]
    if python.startswith(HOME):
        return ["sh", "-c", 'exec "$HOME/$0" "$@"', python[len(HOME) :], *options]
    return [python, *options]
