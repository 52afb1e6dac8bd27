"""Files of variables, NAME=VALUE a line, as ``--env-file`` names them."""

from __future__ import annotations

from pathlib import Path

from mesh.config.project import VARIABLE
from mesh.core.errors import UsageError

EXPORT = "export "


def read_env_file(place: str, path: Path) -> dict[str, str]:
    """Return the variables of a file: NAME=VALUE, with `export` and quotes around the value if wanted.

    place: the option that names the file
    Raises UsageError with the file and line, and never with the text of a line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"{place}: cannot read {path} ({error.strerror})") from error
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        name, equals, value = words.removeprefix(EXPORT).partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not VARIABLE.fullmatch(name) or "\0" in value:
            raise UsageError(f"{path}:{number}: expected NAME=VALUE, a comment or an empty line")
        if value[:1] in ("'", '"'):
            if len(value) < 2 or value[-1] != value[0]:
                raise UsageError(f"{path}:{number}: {name}: expected a closing {value[0]} at the end of the line")
            value = value[1:-1]
        variables[name] = value
    return variables
