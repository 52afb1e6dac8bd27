"""The variables of the ranks: the local ones that mesh.yaml hands on, and those of mesh.yaml, files and options."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh.config.envfile import read_env_file
from mesh.config.project import VARIABLE, Project
from mesh.core.errors import UsageError
from mesh.core.masking import SECRET_CHARACTERS_MIN

PATTERN_CHARACTERS = "*?["


def rank_variables(
    project: Project, env_files: Sequence[str], chosen: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables of the ranks, and the names of those whose values are masked. Raises UsageError."""
    of_files: dict[str, str] = {}
    for path in env_files:
        of_files |= read_env_file("--env-file", Path(path))
    env = {**passed_variables(project, environ), **project.env, **of_files, **chosen}
    secrets = dict.fromkeys(of_files, "--env-file")
    secrets |= {name: "secret" for name in env if is_secret(project, name)}
    for name, place in secrets.items():
        if len(env[name]) < SECRET_CHARACTERS_MIN:
            raise UsageError(
                f"{place}: {name}: its value has fewer than {SECRET_CHARACTERS_MIN} characters and cannot be masked",
                hint="a value that is no secret goes into `env:` or `pass:` of mesh.yaml, or --env NAME=VALUE",
            )
    return env, tuple(sorted(secrets))


def passed_variables(project: Project, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the local variables that ``pass:`` and ``secret:`` of mesh.yaml hand on."""
    patterns = (*project.passed, *project.secret)
    return {name: value for name, value in environ.items() if VARIABLE.fullmatch(name) and _matches(name, patterns)}


def passed_words(project: Project) -> tuple[list[str], list[str]]:
    """Return the names that ``pass:`` and ``secret:`` of mesh.yaml have in full, and their patterns."""
    words = (*project.passed, *project.secret)
    patterns = [word for word in words if set(PATTERN_CHARACTERS) & set(word)]
    return [word for word in words if word not in patterns], patterns


def secret_names(project: Project, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the user's variables that `secret:` names."""
    return tuple(sorted(name for name in environ if is_secret(project, name)))


def is_secret(project: Project, name: str) -> bool:
    """Return True for the name of a variable whose value `secret:` of mesh.yaml has masked."""
    return _matches(name, project.secret)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
