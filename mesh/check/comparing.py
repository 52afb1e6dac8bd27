"""Properties that must be equal on all hosts: versions, and shared paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh.core.findings import Finding, Findings, failed, ok, usual, warning
from mesh.protocol.replies import Facts, Failure, PathAbsent, PathPresent, PythonFailure, PythonMissing

ByNode = Mapping[int, Facts]
Versions = PythonMissing | PythonFailure | Mapping[str, str]
PathState = Failure | PathAbsent | PathPresent

PYTHON = "python"
INSTALL = "install the same on all hosts, by prerun or `mesh setup`"
# File systems that several machines may share; also everything that FUSE mounts, as buckets.
SHARED = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "9p", "virtiofs", "beegfs", "gpfs", "afs", "fuse")
)


def versions(facts: ByNode) -> Findings:
    """Judge the versions of Python, frameworks and driver, if they are wanted."""
    looked = {node: host.versions for node, host in facts.items() if host.versions is not None}
    found = {node: _by_itself(one) for node, one in looked.items()}
    able = {node: one for node, one in looked.items() if not isinstance(one, PythonMissing | PythonFailure)}
    names = dict.fromkeys(name for one in able.values() for name in one if name != "program")
    for name in names:
        have = {node: _short(name, one.get(name, "")) for node, one in able.items()}
        _compare(found, name, have, failing=name != PYTHON)
    drivers = {node: host.driver for node, host in facts.items()}
    if any(drivers.values()):
        _compare(found, "NVIDIA driver", {node: drivers[node] for node in looked}, failing=False)
    return {node: findings or [ok("versions", _list(able[node]))] for node, findings in found.items()}


def _by_itself(found: Versions) -> list[Finding]:
    match found:
        case PythonMissing(missing=path):
            return [ok("versions", f"{path} is not there yet")]
        case PythonFailure(error=error, hint=hint):
            return [warning("versions", error, hint)]
        case _:
            return []


def _short(name: str, version: str) -> str:
    """Return the part of a version that must be equal: of Python, 3.11 of 3.11.2."""
    return ".".join(version.split(".")[:2]) if name == PYTHON else version


def _compare(found: dict[int, list[Finding]], name: str, have: Mapping[int, str], *, failing: bool) -> None:
    most = usual(have) if have else ""
    for node, version in have.items():
        if version != most:
            others = f"others have {most}" if most else "others have none"
            told = f"{name} {version}, {others}" if version else f"no {name}, {others}"
            found[node].append((failed if failing else warning)("versions", told, INSTALL))


def _list(told: Mapping[str, str]) -> str:
    """
    >>> _list({"python": "3.11.2", "jax": "0.4.30", "program": "/usr/bin/python3"})
    '3.11.2, jax 0.4.30 (/usr/bin/python3)'
    """
    names = [f"{name} {version}" for name, version in told.items() if name not in ("program", PYTHON)]
    return f"{', '.join([told.get(PYTHON, ''), *names])} ({told['program']})"


def paths(facts: ByNode, names: Sequence[str]) -> Findings:
    """Judge the wanted paths. names: of the hosts, by node"""
    found: dict[int, list[Finding]] = {node: [] for node in facts}
    for path in next(iter(facts.values())).paths if facts else ():
        each = {node: host.paths[path] for node, host in facts.items()}
        there = {node: state for node, state in each.items() if isinstance(state, PathPresent) and state.reads}
        for node, state in each.items():
            if node not in there:
                found[node].append(_no_use(path, state, there, names))
        for node, finding in _different(path, there, names).items():
            found[node].append(finding)
    return found


def _no_use(path: str, state: PathState, there: Mapping[int, PathPresent], names: Sequence[str]) -> Finding:
    if isinstance(state, Failure):
        hint = "is its server there? `sudo umount -l` and mount it again" if state.late else state.hint
        return failed("path", f"{path}: {state.error}", hint)
    if isinstance(state, PathPresent):
        return failed("path", f"{path} cannot be read by this user", "see its owner and mode: `ls -ld` there")
    shared = next((node for node in there if _is_shared(there[node])), None)
    if shared is None:
        return failed("path", f"{path} is not there", "make it, or mount it there")
    hint = f"mount {there[shared].source} ({there[shared].type}) there, as it is on {names[shared]}"
    return failed("path", f"{path} is not there", hint)


def _different(path: str, there: Mapping[int, PathPresent], names: Sequence[str]) -> dict[int, Finding]:
    """Find the hosts where a path is usable and is not the same as on the others."""
    if not there:
        return {}
    shared = {node: told for node, told in there.items() if _is_shared(told)}
    mounts = {node: (told.type, told.source) for node, told in (shared or there).items()}
    held = {node: (told.kind, told.holds) for node, told in there.items()}
    most, most_held = usual(mounts), usual(held)
    writes = any(told.writes for told in there.values())
    like = next(node for node in sorted(held) if held[node] == most_held)
    found = {}
    for node, told in there.items():
        place = f"{told.type} {told.source}"
        if shared and node not in shared:
            hint = f"mount {most[1]} ({most[0]}) there: the others have that"
            found[node] = failed("path", f"{path} is on the host's own disk ({place}): nothing is mounted there", hint)
        elif shared and mounts[node] != most:
            hint = f"mount the same on all hosts: the others have {most[0]} {most[1]}"
            found[node] = warning("path", f"{path} is another file system ({place})", hint)
        elif held[node] != most_held:
            hint = f"`mesh exec` with `ls -la {path}` shows how they differ"
            found[node] = warning("path", f"{path} holds something else than on {names[like]}", hint)
        elif writes and not told.writes:
            hint = "see its owner and mode (`ls -ld` there), and whether it is mounted read-only"
            found[node] = warning("path", f"{path} cannot be written here, but on other hosts", hint)
        else:
            found[node] = ok("path", f"{path} on {place}{'' if told.writes else ', read-only'}")
    return found


def _is_shared(told: PathPresent) -> bool:
    return told.type in SHARED or told.type.startswith("fuse.")
