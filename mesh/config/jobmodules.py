"""Reader of the modules of a job file: ``setup:``, ``job.env_type``, and a section for each module."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node

from mesh.config import yamlfile
from mesh.config.modules import ENVIRONMENTS, NEEDS_SECTION, SECTIONS, described, listed_modules
from mesh.config.section import Section
from mesh.core.module import Described, Ssh

COMMAND = "command"  # in `setup.modules`: the place of the command, which comes last in any case
NO_ENVIRONMENT = "none"
ENV_TYPE = f"{', '.join(ENVIRONMENTS)} or {NO_ENVIRONMENT}"


class JobModules(Struct, frozen=True, kw_only=True):
    """The modules of a job file."""

    modules: Described = ()
    files: tuple[str, ...] = ()  # in the workspace, that they need
    login_key: str = ""  # `ssh.private_key` alone: the key by which JOBMAN logs in
    notices: tuple[str, ...] = ()


def read_job_modules(keys: Section, job: Section, directory: Path, *, is_jobman: bool = False) -> JobModules:
    """Return the modules of a job. directory: the workspace, in which relative files are

    is_jobman: an environment without its section is left out, as JOBMAN does, and a notice names it
    """
    sections: dict[str, Node | None] = {
        name: keys.node(name) for name in SECTIONS if name in keys and yamlfile.found(keys.node(name)) != "nothing"
    }
    setup = Section(
        keys.node("setup") if "setup" in keys else None, "setup", ("modules",), keys.problems, "a mapping with modules:"
    )
    notices: list[str] = []
    named = _env_type(job, sections, notices if is_jobman else None)
    if "modules" in setup:
        listed = listed_modules(setup.node("modules"), setup.where("modules"), keys.problems, (COMMAND,))
        _check_listed(listed, sections, setup)
        names = [*listed, *([named] if named in ENVIRONMENTS and named not in listed else [])]
    else:
        names = _of_sections(sections, named, keys)
    left_out = [name for name in sections if name not in names]
    if left_out:
        reason = "setup.modules does not list" if "modules" in setup else "job.env_type does not name"
        notices.append(f"{', '.join(left_out)}: not used, as {reason} {'it' if len(left_out) == 1 else 'them'}")
    found = described(names, sections, directory, keys.problems)
    found, login_key = _without_login_key(found, sections.get("ssh"))
    files = [getattr(one, name) for _, one in found for name in ("file", "requirements") if getattr(one, name, "")]
    return JobModules(modules=found, files=tuple(files), login_key=login_key, notices=tuple(notices))


def _env_type(job: Section, sections: dict[str, Node | None], notices: list[str] | None) -> str:
    """Return the word of ``job.env_type``; "" where it is not there.

    notices: get a word without a section; None: that is a problem
    """
    if "env_type" not in job or yamlfile.found(job.node("env_type")) == "nothing":
        return ""
    word = job.text("env_type", ENV_TYPE).lower()
    if word not in (*ENVIRONMENTS, NO_ENVIRONMENT):
        job.unexpected("env_type", ENV_TYPE)
        return NO_ENVIRONMENT
    if word != NO_ENVIRONMENT and word not in sections:
        if notices is None:
            job.add("env_type", f"{word} has no section {word}:")
        else:
            notices.append(f"job.env_type: {word} has no section {word}:, so that the command has no environment")
        return NO_ENVIRONMENT
    return word


def _check_listed(listed: dict[str, Node], sections: dict[str, Node | None], setup: Section) -> None:
    """Note modules without the section that they need, and a second environment."""
    for name, node in listed.items():
        if name in NEEDS_SECTION and name not in sections:
            setup.problems.add(node, f"{setup.where('modules')}: {name}", f"has no section {name}:")
    environments = [name for name in listed if name in ENVIRONMENTS]
    if len(environments) > 1:
        text = f"is a second environment beside {environments[0]}: a job has one at most"
        setup.problems.add(listed[environments[1]], f"{setup.where('modules')}: {environments[1]}", text)


def _of_sections(sections: dict[str, Node | None], named: str, keys: Section) -> list[str]:
    """Return the modules of a file without a list of them: ssh, buckets, and the environment."""
    names = [name for name in SECTIONS if name in sections and name not in ENVIRONMENTS]
    there = [name for name in ENVIRONMENTS if name in sections]
    if named:
        return [*names, *([named] if named in ENVIRONMENTS else [])]
    if len(there) > 1:
        text = f"is a second environment beside {there[0]}: a job has one at most; choose it by job.env_type"
        keys.add(there[1], text)
        keys.problems.hints.append(f"job: {{env_type: {there[0]}}}")
    return [*names, *there[:1]]


def _without_login_key(found: Described, section: Node | None) -> tuple[Described, str]:
    """Return the modules, and the key of ``ssh.private_key`` without a public one: it is no identity for hosts."""
    written = {str(key.value): value for key, value in section.value} if isinstance(section, MappingNode) else {}
    if "private_key" not in written or "public_key" in written:
        return found, ""
    changed = tuple(
        (name, replace(one, identities=one.identities[1:]) if isinstance(one, Ssh) else one) for name, one in found
    )
    return changed, str(written["private_key"].value)
