"""The values that a client masks: those of the run's own variables, and those that a later client finds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mesh.config.envfile import read_env_file
from mesh.core.errors import UsageError
from mesh.core.masking import SECRET_CHARACTERS_MIN, Secrets
from mesh.core.run import RunSpec

ENV_FILE_BYTES_MAX = 1 << 20  # a later client reads no larger file, as a host may have sent its name


def secrets_of(spec: RunSpec, environ: Mapping[str, str]) -> Secrets:
    """Return the values that this client masks.

    A client that starts the run has them all. No value is written down, so that a later client takes them from its own
    environment and from the files of --env-file that are there.
    """
    return Secrets(value for name in spec.secrets for value in _values(name, spec, environ))


def unknown(spec: RunSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of variables whose values this client cannot mask, as it does not have them."""
    return tuple(
        name
        for name in spec.secrets
        if not any(len(value) >= SECRET_CHARACTERS_MIN for value in _values(name, spec, environ))
    )


def unmasked_notice(names: Sequence[str]) -> str:
    """Return the notice that this client has no values for these variables."""
    return f"{', '.join(names)}: not set here, so that output which comes now is not masked (secret:, --env-file)"


def _values(name: str, spec: RunSpec, environ: Mapping[str, str]) -> Iterator[str]:
    own = [group.env[name] for group in spec.groups if name in group.env]
    yield from own
    if own:
        return
    if name in environ:
        yield environ[name]
    for path in spec.env_files:
        with contextlib.suppress(UsageError, OSError):
            if _is_small_file(path) and name in (found := read_env_file("--env-file", path)):
                yield found[name]


def _is_small_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= ENV_FILE_BYTES_MAX
