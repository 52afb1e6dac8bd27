"""The agent as it travels: the command that starts it, its first program, and all of it in one zip."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mesh.agent.process.processes import BOOT
from mesh.core.interpreter import interpreter

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[1]
ROOMS = ("agent", "protocol")  # that are shipped
ELSEWHERE = ("switchboard", "declared")  # packages of the agent's room that travel as programs of their own
STARTER, FINDER = "agent/starter.py", "agent/version.py"  # the first program on a host: the second one is its import
PACKAGE = "mesh"
# The first line of the opening. To Python it is 0. A shell that replaced the login shell takes it for the start of a
# document that never ends (sh(1), "<<"), so that it runs no line of the program.
NO_SHELL = b'0 and "" << "no shell runs this program"\n'
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member of the zip, which is the same for the same modules
FILE_MODE = 0o600

MESHRUN = "meshrun.py"  # the module that the program of a rank may import

NO_PYTHON = frozenset((126, 127))  # exit status of the start command when there is no interpreter, as shells have it
OLD_PYTHON = 96  # when it is below 3.8

# Read exactly as many bytes as the starter has, and run it. -I and -S keep the user's own modules and .pth files
# out, and save time. No quotes in it: it stands in single quotes.
_BOOT = (
    BOOT + "sys.exit({old});"
    "r=lambda n,b=bytes():b if len(b)==n else r(n,b+(os.read(0,n-len(b))or sys.exit(1)));"
    "exec(r({size}))"
)


@functools.cache
def blob() -> bytes:
    """Return the zip of the agent's modules, for a host that lacks them."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in _sources().items():
            member = zipfile.ZipInfo(f"{PACKAGE}/{name}", EPOCH)
            member.external_attr, member.compress_type = FILE_MODE << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, source)
    return packed.getvalue()


@functools.cache
def opening() -> bytes:
    """Return the text that the start command reads first from its stdin."""
    size = sum(map(len, _sources().values()))
    starter = _sources()[STARTER].replace(b"from mesh.agent.version import find\n", b"")
    return NO_SHELL + _sources()[FINDER] + starter + f"\nstart('{_key()}', {size})\n".encode()


def lacking() -> bytes:
    """Return the line by which the starter asks for the zip."""
    return b"\nlacks %s\n" % _key().encode()


@functools.cache
def _key() -> str:
    """Return the name of this version: a hash of all modules and their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, source in _sources().items():
        digest.update(b"%s %d\n%s" % (name.encode(), len(source), source))
    return digest.hexdigest()


@functools.cache
def _sources() -> dict[str, bytes]:
    """Return the modules by their paths below the package."""
    modules = sorted(
        path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.parent.name not in ELSEWHERE
    )
    return {"__init__.py": b"", **{path.relative_to(ROOT).as_posix(): path.read_bytes() for path in modules}}


def files() -> list[Path]:
    """Return the paths of the agent's modules."""
    return [ROOT / name for name in _sources()]


@functools.cache
def library() -> bytes:
    """Return the source of the module for programs on hosts, with its docstrings, which people read there."""
    return (HERE / MESHRUN).read_bytes()


def boot() -> str:
    """Return the text by which an interpreter reads the opening from its standard input, and runs it."""
    return _BOOT.format(old=OLD_PYTHON, size=len(opening()))


def start_command(python: str, environ: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the argv that runs the agent with the host's interpreter ``python`` (a name or a path).

    environ: variables of the agent, by which others on the host find it
    """
    options = ["-I", "-S", "-c", boot()]
    words = ["env", *(f"{name}={value}" for name, value in environ.items())] if environ else []
    return [*words, *interpreter(python), *options]
